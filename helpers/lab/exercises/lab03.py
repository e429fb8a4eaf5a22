"""Lab 03, KV cache size: bytes of a request by kind of attention, ranks, blocks, logs, cards, and your own config."""

import math
import random
from collections.abc import Callable, Mapping

from helpers.lab.exercise import Exercise, Mistake


def request_bytes(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, tokens: int, bits: int) -> float:
    """KV bytes of one request: 2 · layers · kv_heads · head_dim · tokens · bits / 8."""
    return 2 * layers * kv_heads * head_dim * tokens * bits / 8


def _request_case(rng: random.Random) -> tuple:
    heads, kv_heads = rng.choice(((32, 8), (64, 8), (40, 8), (16, 2), (28, 4)))
    sizes = rng.randrange(16, 100), 128 * rng.randrange(8, 64), heads, kv_heads, rng.choice((64, 128, 256))
    return *sizes, rng.randrange(1_000, 100_000), rng.choice((4, 8, 16, 32))


def rank_bytes_per_token(layers: int, kv_heads: int, head_dim: int, tp: int) -> int:
    """bf16 KV bytes per token on the fullest of tp ranks: 4 · layers · ceil(kv_heads / tp) · head_dim."""
    return 4 * layers * math.ceil(kv_heads / tp) * head_dim


def _rank_case(rng: random.Random) -> tuple:
    kv_heads, tp = rng.choice(((8, 1), (8, 2), (8, 16), (4, 8), (10, 4), (2, 4), (16, 8), (1, 8)))
    return rng.randrange(16, 100), kv_heads, rng.choice((64, 128, 256)), tp


def latent_rank_bytes(layers: int, heads: int, kv_lora_rank: int, rope_dim: int, tp: int, tokens: int) -> int:
    """bf16 bytes of MLA cache on one rank: 2 · layers · (kv_lora_rank + rope_dim) · tokens, whatever tp is."""
    return 2 * layers * (kv_lora_rank + rope_dim) * tokens


def _latent_case(rng: random.Random) -> tuple:
    sizes = rng.randrange(20, 80), rng.choice((16, 64, 128)), rng.choice((256, 512)), rng.choice((32, 64))
    return *sizes, rng.choice((1, 2, 8)), rng.randrange(1_000, 60_000)


def mixed_bytes(full_layers: int, window_layers: int, window: int, layer_bytes: int, tokens: int) -> int:
    """KV bytes of full and windowed layers: layer_bytes · (full · tokens + windowed · min(tokens, window))."""
    return layer_bytes * (full_layers * tokens + window_layers * min(tokens, window))


def _mixed_case(rng: random.Random) -> tuple:
    window = rng.choice((128, 512, 1024, 4096))
    tokens = rng.choice((window // 2, window + 1, 3 * window, 40 * window))
    return rng.randrange(4, 20), rng.randrange(21, 60), window, 1024 * rng.randrange(1, 9), tokens


def requests_at_once(pool_bytes: int, bytes_per_token: int, tokens: int, block_tokens: int) -> int:
    """Whole requests of `tokens` tokens in a pool cut into blocks: pool blocks // ceil(tokens / block_tokens)."""
    blocks = pool_bytes // (block_tokens * bytes_per_token)
    return blocks // math.ceil(tokens / block_tokens)


def _blocks_case(rng: random.Random) -> tuple:
    block = rng.choice((16, 64, 128))
    return rng.randrange(10**9, 60 * 10**9), 1024 * rng.randrange(8, 300), rng.randrange(20, 400), block


FAULTS = ("right", "query heads", "hidden / heads", "K or V missing", "window ignored", "bits")


def variants(config: Mapping, tokens: int, *, short_requests: bool = True) -> dict[str, int]:
    """What the right calculator and each faulty one print for `config`, in bf16.

    Without `short_requests` a window layer always holds its whole window, as if every request were longer.
    """
    heads, kv_heads, head_dim = config["heads"], config["kv_heads"], config["head_dim"]
    window_layers = config["window_layers"]
    full_layers = config["layers"] - window_layers
    held = min(tokens, config["window"]) if short_requests else config["window"]
    token_layers = full_layers * tokens + window_layers * held
    right = 4 * kv_heads * head_dim * token_layers
    values = (
        right,
        4 * heads * head_dim * token_layers,
        4 * kv_heads * (config["hidden"] // heads) * token_layers,
        right // 2,
        4 * kv_heads * head_dim * config["layers"] * tokens,
        right * 8,
    )
    return dict(zip(FAULTS, values, strict=True))


def name_the_fault(config: Mapping, tokens: int, printed: int) -> str:
    """The word of FAULTS whose calculator prints `printed` for this config and length."""
    return next(name for name, value in variants(config, tokens).items() if value == printed)


def _faults_alone(config: Mapping, tokens: int) -> list[str]:
    """The faults that can be told from every other by what they print."""
    values = variants(config, tokens)
    return [name for name, value in values.items() if list(values.values()).count(value) == 1]


def _fault_case(rng: random.Random) -> tuple:
    heads, kv_heads = rng.choice(((32, 16), (64, 8), (24, 8), (40, 8)))
    layers = rng.randrange(24, 70)
    config = {"name": "a drawn config", "layers": layers, "hidden": 96 * heads, "heads": heads}
    config |= {"kv_heads": kv_heads, "head_dim": rng.choice((64, 128, 256))}
    config |= {"window_layers": layers // 2, "window": rng.choice((512, 1024))}
    tokens = rng.randrange(3_000, 50_000)
    return config, tokens, variants(config, tokens)[rng.choice(_faults_alone(config, tokens))]


GEMMA_3_27B = {
    "name": "Gemma-3-27B",
    "layers": 62,
    "hidden": 5376,
    "heads": 32,
    "kv_heads": 16,
    "head_dim": 128,
    "window_layers": 52,
    "window": 1024,
}
PHI_4 = {
    "name": "Phi-4",
    "layers": 40,
    "hidden": 5120,
    "heads": 40,
    "kv_heads": 10,
    "head_dim": 128,
    "window_layers": 0,
    "window": 0,
}
GPT_OSS_20B = {
    "name": "gpt-oss-20b",
    "layers": 24,
    "hidden": 2880,
    "heads": 64,
    "kv_heads": 8,
    "head_dim": 64,
    "window_layers": 12,
    "window": 128,
}


def _fault_cases() -> tuple[tuple, ...]:
    asked = (
        (GEMMA_3_27B, 8192, "window ignored"),
        (GEMMA_3_27B, 8192, "right"),
        (PHI_4, 4096, "query heads"),
        (GPT_OSS_20B, 20_000, "hidden / heads"),
        (PHI_4, 8192, "bits"),
        (GEMMA_3_27B, 3000, "K or V missing"),
        (GEMMA_3_27B, 500, "query heads"),
    )
    return tuple((config, tokens, variants(config, tokens)[fault]) for config, tokens, fault in asked)


def _windows_always_full(config: Mapping, tokens: int, printed: int) -> str | None:
    values = variants(config, tokens, short_requests=False)
    return next((name for name, value in values.items() if value == printed), None)


def _mistaken_names(swap: Mapping[str, str]) -> Callable:
    def answer(config: Mapping, tokens: int, printed: int) -> str:
        name = name_the_fault(config, tokens, printed)
        return swap.get(name, name)

    return answer


NUMBER_BYTES = {"fp32": 4, "bf16": 2, "fp8": 1}


def ranks_and_dtype(
    parameters: int, weights_gib: float, pool_gib: float, tokens: int, layers: int, kv_heads: int, head_dim: int
) -> tuple[int, str]:
    """(tp, KV dtype) from three log lines of one rank of a bf16 model: weights, pool, tokens."""
    tp = round(2 * parameters / (weights_gib * 2**30))
    per_number = pool_gib * 2**30 / tokens / (2 * layers * math.ceil(kv_heads / tp) * head_dim)
    return tp, min(NUMBER_BYTES, key=lambda name: abs(NUMBER_BYTES[name] - per_number))


def _ranks_with(
    *,
    ceil: bool = True,
    divided: bool = True,
    factor: int = 2,
    sharded: bool = True,
    bytes_of_weight: int = 2,
    gib: float = 2**30,
    names: Callable[[float], str | None] = lambda x: min(NUMBER_BYTES, key=lambda name: abs(NUMBER_BYTES[name] - x)),
) -> Callable:
    """`ranks_and_dtype` with one step wrong."""

    def faulty(parameters, weights_gib, pool_gib, tokens, layers, kv_heads, head_dim):
        tp = max(1, round(bytes_of_weight * parameters / (weights_gib * gib))) if sharded else 1
        heads = kv_heads if not divided else math.ceil(kv_heads / tp) if ceil else kv_heads / tp
        return tp, names(pool_gib * gib / tokens / (factor * layers * heads * head_dim))

    return faulty


def _log_case(rng: random.Random) -> tuple:
    parameters, layers, kv_heads, head_dim = rng.choice(
        ((70_553_706_496, 80, 8, 128), (8_030_261_248, 32, 8, 128), (30_532_122_624, 48, 4, 128))
    )
    tp, dtype = rng.choice((1, 2, 4, 8)), rng.choice(tuple(NUMBER_BYTES))
    pool = round(rng.uniform(4, 60), 2)
    token = 2 * layers * math.ceil(kv_heads / tp) * head_dim * NUMBER_BYTES[dtype]
    tokens = int(pool * 2**30 / token) // 16 * 16
    weights = round(2 * parameters / tp / 2**30 * rng.uniform(1.0, 1.02), 2)
    return parameters, weights, pool, tokens, layers, kv_heads, head_dim


def cards_for(
    users: int, tokens: int, weight_gb: float, kv_heads: int, head_bytes: int, visible_gib: float, usable: float
) -> int:
    """The smallest group of 1, 2, 4, 8 or 16 cards that holds weights and `users` requests; 0 where none does."""
    for tp in (1, 2, 4, 8, 16):
        one_request = math.ceil(kv_heads / tp) * head_bytes * tokens
        if weight_gb * 1e9 / tp + users * one_request <= usable * visible_gib * 2**30:
            return tp
    return 0


def _cards_with(
    *,
    heads: Callable[[int, int], float] = lambda kv_heads, tp: math.ceil(kv_heads / tp),
    weights: Callable[[float, int], float] = lambda gb, tp: gb * 1e9 / tp,
    memory: Callable[[float, float], float] = lambda gib, usable: usable * gib * 2**30,
    users_counted: bool = True,
    nothing: int = 0,
    groups: tuple[int, ...] = (1, 2, 4, 8, 16),
) -> Callable:
    """`cards_for` with one term wrong."""

    def faulty(users, tokens, weight_gb, kv_heads, head_bytes, visible_gib, usable):
        for tp in groups:
            one = heads(kv_heads, tp) * head_bytes * tokens
            if weights(weight_gb, tp) + (users if users_counted else 1) * one <= memory(visible_gib, usable):
                return tp
        return nothing

    return faulty


def _by_division(users, tokens, weight_gb, kv_heads, head_bytes, visible_gib, usable):
    needed = weight_gb * 1e9 + users * kv_heads * head_bytes * tokens
    cards = math.ceil(needed / (usable * visible_gib * 2**30))
    return next((tp for tp in (1, 2, 4, 8, 16) if tp >= cards), 0)


def _share_of_the_rest(users, tokens, weight_gb, kv_heads, head_bytes, visible_gib, usable):
    for tp in (1, 2, 4, 8, 16):
        rest = visible_gib * 2**30 - weight_gb * 1e9 / tp
        if users * math.ceil(kv_heads / tp) * head_bytes * tokens <= usable * rest:
            return tp
    return 0


def _cards_case(rng: random.Random) -> tuple:
    users, tokens = rng.choice((10, 60, 200, 900)), rng.choice((2048, 8192, 32768))
    model = rng.choice(
        ((141.1, 8, 40_960), (16.06, 8, 16_384), (61.06, 4, 24_576), (31.41, 1, 31_104), (29.3, 10, 20_480))
    )
    return users, tokens, *model, rng.choice((44.39, 79.1, 139.7)), 0.9


def bytes_at_8k(config: Mapping) -> int:
    """bf16 KV bytes of one request of 8,192 tokens, from the keys of a config.json: GQA, MLA or a window pattern."""
    layers = config["num_hidden_layers"]
    if "kv_lora_rank" in config:
        return 2 * layers * (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * 8192
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    full_layers, window = layers, 0
    if "sliding_window_pattern" in config:
        full_layers, window = layers // config["sliding_window_pattern"], min(config["sliding_window"], 8192)
    return 4 * kv_heads * head_dim * (full_layers * 8192 + (layers - full_layers) * window)


def _at_8k_with(
    *,
    latent: str = "right",
    grouped: bool = True,
    explicit: bool = True,
    windows: str = "right",
    tokens: int = 8192,
    size_default: int | None = None,
) -> Callable:
    """`bytes_at_8k` with one thing wrong."""

    def faulty(config: Mapping) -> int:
        layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
        if "kv_lora_rank" in config and latent != "as GQA":
            width = config["kv_lora_rank"] + (0 if latent == "no rope" else config["qk_rope_head_dim"])
            return (4 if latent == "twice" else 2) * layers * width * tokens
        kv_heads = config.get("num_key_value_heads", heads) if grouped else heads
        derived = size_default or config["hidden_size"] // heads
        head_dim = config.get("head_dim", derived) if explicit else derived
        full, window = layers, 0
        if "sliding_window_pattern" in config and windows != "ignored":
            window = config["sliding_window"] if windows == "always full" else min(config["sliding_window"], tokens)
            full = layers // config["sliding_window_pattern"]
            if windows == "rounded up":
                full = math.ceil(layers / config["sliding_window_pattern"])
            if windows == "in parts":
                full = layers / config["sliding_window_pattern"]
            if windows == "swapped":
                full = layers - full
        return 4 * kv_heads * head_dim * (full * tokens + (layers - full) * window)

    return faulty


def _own_case(rng: random.Random) -> tuple:
    heads = rng.choice((16, 32, 64))
    config = {"name": "a drawn config", "num_hidden_layers": rng.randrange(20, 90)}
    config |= {"num_attention_heads": heads, "hidden_size": rng.choice((64, 96)) * heads}
    kind = rng.choice(("plain", "grouped", "latent", "window"))
    if kind == "latent":
        return (config | {"kv_lora_rank": rng.choice((256, 512)), "qk_rope_head_dim": rng.choice((32, 64))},)
    if kind != "plain":
        config["num_key_value_heads"] = rng.choice((2, 4, 8))
    if rng.random() < 0.5:
        config["head_dim"] = rng.choice((128, 256))
    if kind == "window":
        config |= {"sliding_window": rng.choice((512, 4096, 16_384)), "sliding_window_pattern": rng.choice((2, 6))}
    return (config,)


OWN_CONFIGS = (
    {"name": "Llama-2-7B", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32},
    {
        "name": "Llama-3.1-8B",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    {
        "name": "Qwen3-32B",
        "num_hidden_layers": 64,
        "hidden_size": 5120,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    {
        "name": "DeepSeek-V3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
    },
    {
        "name": "Gemma-3-27B",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    {
        "name": "Qwen2.5-0.5B",
        "num_hidden_layers": 24,
        "hidden_size": 896,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
)


EXERCISES = (
    Exercise(
        id="3.1",
        title="Bytes of one request",
        minutes=5,
        difficulty=1,
        why="Popular calculators go wrong in this one line, by up to 71 times.",
        hints=(
            "What is cached for a token in a layer? A key and a value for each KV head. Which of the arguments are "
            "then not needed at all?",
            "Numbers: 2 · layers · KV heads · numbers per head · tokens. Bytes: a number has `bits` bits.",
        ),
        reference=request_bytes,
        cases=(
            (80, 8192, 64, 8, 128, 4096, 16),
            (64, 5120, 64, 8, 128, 8192, 16),
            (32, 4096, 32, 32, 128, 4096, 8),
            (80, 8192, 64, 8, 128, 4096, 4),
        ),
        random_case=_request_case,
        mistakes=(
            Mistake(
                "hidden size",
                lambda n, hidden, h, k, d, t, bits: 2 * n * hidden * t * bits / 8,
                "you used the hidden size: only with multi-head attention is it KV heads × head_dim",
            ),
            Mistake(
                "query heads",
                lambda n, hidden, h, k, d, t, bits: 2 * n * h * d * t * bits / 8,
                "you counted the query heads: keys and values have `kv_heads`",
            ),
            Mistake(
                "hidden / heads",
                lambda n, hidden, h, k, d, t, bits: 2 * n * k * (hidden // h) * t * bits / 8,
                "head_dim is given: hidden / heads is another number in some models",
            ),
            Mistake(
                "K or V missing",
                lambda n, hidden, h, k, d, t, bits: n * k * d * t * bits / 8,
                "a key and a value are cached, you counted one of them",
            ),
            Mistake(
                "bits for bytes",
                lambda n, hidden, h, k, d, t, bits: 2 * n * k * d * t * bits,
                "these are bits: divide by 8 to get bytes",
            ),
            Mistake(
                "whole bytes only",
                lambda n, hidden, h, k, d, t, bits: 2 * n * k * d * t * (bits // 8),
                "you rounded a number down to whole bytes (`//`): at 4 bits it takes half a byte",
            ),
            Mistake(
                "2 bytes always",
                lambda n, hidden, h, k, d, t, bits: 4 * n * k * d * t,
                "you took 2 bytes a number every time: `bits` says how wide a number is",
            ),
            Mistake(
                "one layer",
                lambda n, hidden, h, k, d, t, bits: 2 * k * d * t * bits / 8,
                "this is the cache of one layer: every layer has its own",
            ),
            Mistake(
                "one token",
                lambda n, hidden, h, k, d, t, bits: 2 * n * k * d * bits / 8,
                "this is one token: a request holds `tokens` of them",
            ),
        ),
        unit="bytes",
    ),
    Exercise(
        id="3.2",
        title="What one rank holds",
        minutes=5,
        difficulty=2,
        why="Tensor parallelism deals out heads. With fewer heads than ranks, more cards hold the same again.",
        hints=(
            "A head cannot be cut. How many heads has the fullest of `tp` ranks?",
            "`math.ceil(a / b)` rounds up. bf16: 2 bytes a number; and a key and a value.",
        ),
        reference=rank_bytes_per_token,
        cases=((80, 8, 128, 4), (48, 4, 128, 8), (40, 10, 128, 4), (32, 8, 128, 1), (32, 1, 64, 8)),
        random_case=_rank_case,
        mistakes=(
            Mistake(
                "a part of a head",
                lambda n, k, d, tp: 4 * n * k / tp * d,
                "a rank cannot hold a part of a head: round the heads per rank up",
            ),
            Mistake(
                "rounded down",
                lambda n, k, d, tp: 4 * n * (k // tp) * d,
                "you rounded down (`//`): asked is the fullest rank, and no rank holds less than a head",
            ),
            Mistake(
                "at least one",
                lambda n, k, d, tp: 4 * n * max(1, k // tp) * d,
                "10 heads on 4 ranks: the fullest has 3, not 2; round up",
            ),
            Mistake(
                "parts above one",
                lambda n, k, d, tp: 4 * n * max(1, k / tp) * d,
                "10 heads on 4 ranks are not 2.5 each: the fullest has 3",
            ),
            Mistake(
                "not divided",
                lambda n, k, d, tp: 4 * n * k * d,
                "this is the whole cache: the ranks share its heads",
            ),
            Mistake(
                "K or V missing",
                lambda n, k, d, tp: 2 * n * math.ceil(k / tp) * d,
                "half of it: 2 bytes a number, and both a key and a value",
            ),
            Mistake(
                "over all ranks",
                lambda n, k, d, tp: 4 * n * math.ceil(k / tp) * d * tp,
                "this is what all ranks hold together: asked is one of them",
            ),
        ),
        unit="bytes",
    ),
    Exercise(
        id="3.3",
        title="Latent attention (MLA)",
        minutes=4,
        difficulty=2,
        why="Billed as keys and values it is 2 to 71 times too large; divided by the ranks it is too small.",
        hints=(
            "One vector of `kv_lora_rank` numbers serves all heads as key and as value, and `rope_dim` numbers carry "
            "the position.",
            "No head owns a part of that vector. So what can a rank leave to another?",
        ),
        reference=latent_rank_bytes,
        cases=((61, 128, 512, 64, 8, 8192), (27, 16, 512, 64, 1, 4096), (36, 32, 256, 64, 2, 100_000)),
        random_case=_latent_case,
        mistakes=(
            Mistake(
                "divided by tp",
                lambda n, h, r, p, tp, t: 2 * n * (r + p) * t / tp,
                "the latent belongs to all heads: every rank holds all of it",
            ),
            Mistake(
                "K and V",
                lambda n, h, r, p, tp, t: 4 * n * (r + p) * t,
                "one vector serves as key and as value: do not count it twice",
            ),
            Mistake(
                "latent twice",
                lambda n, h, r, p, tp, t: 2 * n * (2 * r + p) * t,
                "the latent is key and value at once: count its numbers once",
            ),
            Mistake(
                "latent dealt out",
                lambda n, h, r, p, tp, t: 2 * n * (r / tp + p) * t,
                "the latent cannot be dealt out: not only the position, all of it is on every rank",
            ),
            Mistake(
                "keys and values of every head",
                lambda n, h, r, p, tp, t: 4 * n * h * (r + p) * t,
                "this is a key and a value for each head: MLA keeps one latent for all heads, and it once",
            ),
            Mistake(
                "position missing",
                lambda n, h, r, p, tp, t: 2 * n * r * t,
                "the `rope_dim` numbers that carry the position are cached too",
            ),
            Mistake(
                "position per head",
                lambda n, h, r, p, tp, t: 2 * n * (r + h * p) * t,
                "the position part is one for all heads",
            ),
            Mistake(
                "per head",
                lambda n, h, r, p, tp, t: 2 * n * h * (r + p) * t,
                "the latent is one for all heads, not one each",
            ),
            Mistake(
                "numbers, not bytes",
                lambda n, h, r, p, tp, t: n * (r + p) * t,
                "these are numbers: in bf16 each takes 2 bytes",
            ),
            Mistake(
                "per token",
                lambda n, h, r, p, tp, t: 2 * n * (r + p),
                "this is one token: a request holds `tokens` of them",
            ),
        ),
        unit="bytes",
    ),
    Exercise(
        id="3.4",
        title="Windows: bytes by length",
        minutes=5,
        difficulty=2,
        why="With sliding windows no single number of bytes per token exists; the curve bends.",
        hints=(
            "How many tokens does a full layer hold? And a window layer, of a short and of a long request?",
            "`min(a, b)` is the smaller of two numbers.",
        ),
        reference=mixed_bytes,
        cases=((10, 52, 1024, 8192, 8192), (10, 52, 1024, 8192, 500), (12, 12, 128, 2048, 128), (5, 25, 1024, 4096, 1)),
        random_case=_mixed_case,
        mistakes=(
            Mistake(
                "window ignored",
                lambda f, w, window, b, t: b * (f + w) * t,
                "you kept every token in every layer: a window layer holds the last `window` of them",
            ),
            Mistake(
                "window always full",
                lambda f, w, window, b, t: b * (f * t + w * window),
                "a request shorter than the window does not fill it",
            ),
            Mistake(
                "all windowed",
                lambda f, w, window, b, t: b * (f + w) * min(t, window),
                "the full layers keep every token",
            ),
            Mistake(
                "full layers only",
                lambda f, w, window, b, t: b * f * t,
                "the window layers hold something too: their window",
            ),
            Mistake(
                "the larger",
                lambda f, w, window, b, t: b * (f * t + w * max(t, window)),
                "you took the larger of tokens and window: a layer holds the smaller",
            ),
            Mistake(
                "swapped",
                lambda f, w, window, b, t: b * (w * t + f * min(t, window)),
                "full and window layers are swapped",
            ),
            Mistake(
                "one less",
                lambda f, w, window, b, t: b * (f * t + w * min(t, window - 1)),
                "one token short: here a window layer keeps all `window` of them",
            ),
        ),
        unit="bytes",
    ),
    Exercise(
        id="3.5",
        title="Blocks: requests at once",
        minutes=6,
        difficulty=3,
        why="Engines hand out whole blocks. For short requests and large blocks the last one is mostly air.",
        hints=(
            "Two steps: how many whole blocks has the pool, and how many does a request take?",
            "A block holds `block_tokens` tokens. The pool's blocks are rounded down, a request's are rounded up.",
        ),
        reference=requests_at_once,
        cases=(
            (4_090_956_349, 131_072, 20_000, 16),
            (4_090_956_349, 131_072, 100, 64),
            (10 * 2**30, 57_344, 8192, 16),
            (3 * 2**30, 147_456, 1, 16),
            (131_072 * 16 * 30, 131_072, 24, 16),
            (131_072 * 16 * 30, 131_072, 32, 16),
        ),
        random_case=_blocks_case,
        mistakes=(
            Mistake(
                "by the byte",
                lambda pool, b, t, block: pool // (b * t),
                "a request takes whole blocks: round its blocks up",
            ),
            Mistake(
                "request rounded down",
                lambda pool, b, t, block: pool // (block * b) // max(1, t // block),
                "you rounded the blocks of a request down: its last tokens need one too",
            ),
            Mistake(
                "one more block",
                lambda pool, b, t, block: pool // (block * b) // (t // block + 1),
                "a request that fills its last block exactly takes no other one: `math.ceil`",
            ),
            Mistake(
                "not whole",
                lambda pool, b, t, block: pool // (block * b) / math.ceil(t / block),
                "there is no part of a request: round down",
            ),
            Mistake(
                "nothing rounded",
                lambda pool, b, t, block: pool / (block * b) / math.ceil(t / block),
                "there is no part of a block and none of a request: round both down",
            ),
            Mistake(
                "to the nearest",
                lambda pool, b, t, block: round(pool // (block * b) / math.ceil(t / block)),
                "a request that fits in part does not fit: round down, not to the nearest",
            ),
            Mistake(
                "pool rounded up",
                lambda pool, b, t, block: math.ceil(pool / (block * b)) // math.ceil(t / block),
                "the rest of the pool is no whole block: round its blocks down",
            ),
            Mistake(
                "blocks",
                lambda pool, b, t, block: pool // (block * b),
                "these are the blocks of the pool: asked are requests",
            ),
            Mistake(
                "block of one token",
                lambda pool, b, t, block: pool // b // math.ceil(t / block),
                "a block takes the bytes of all its tokens",
            ),
        ),
        unit="requests",
    ),
    Exercise(
        id="3.6",
        title="Name the fault of a calculator",
        minutes=12,
        difficulty=4,
        why="You are shown a number, not the program. Each common fault leaves its own trace in it.",
        hints=(
            "Work out the right number first: full layers keep all tokens, window layers the last `window`; bf16 has "
            "2 bytes.",
            "Then work out what each faulty calculator would print, and compare with `printed`. A dictionary from "
            "word to number keeps it short.",
            "'bits' is 8 times the right number, 'K or V missing' half of it; the others change one factor of it.",
        ),
        reference=name_the_fault,
        cases=_fault_cases(),
        random_case=_fault_case,
        mistakes=(
            Mistake(
                "always right",
                lambda config, tokens, printed: "right",
                "you believe every calculator: compare the number with what it should be",
            ),
            Mistake(
                "windows kept whole",
                _mistaken_names({"right": "window ignored", "window ignored": "right"}),
                "your right number ignores the window: 'right' and 'window ignored' are swapped",
            ),
            Mistake(
                "heads swapped",
                _mistaken_names({"query heads": "hidden / heads", "hidden / heads": "query heads"}),
                "'query heads' and 'hidden / heads' are swapped: one is the number of heads, the other their width",
            ),
            Mistake(
                "too high is query heads",
                _mistaken_names({"window ignored": "query heads", "bits": "query heads"}),
                "not every number that is too high comes from the query heads: see how many times too high it is",
            ),
            Mistake(
                "too low is K or V",
                _mistaken_names({"hidden / heads": "K or V missing"}),
                "'K or V missing' is exactly half; another fault can make the number too low as well",
            ),
            Mistake(
                "windows always full",
                _windows_always_full,
                "a request shorter than the window does not fill it: `min(tokens, window)`",
            ),
        ),
    ),
    Exercise(
        id="3.7",
        title="Read a log: ranks and dtype",
        minutes=10,
        difficulty=4,
        why="Three lines of a start-up log say how a server was really started, whatever its owner believes.",
        hints=(
            "The weights line is of one rank: the whole model has `parameters` numbers of 2 bytes. How many times "
            "does the rank's part fit into that? Round to a whole number: buffers make it a little larger.",
            "Pool ÷ tokens are bytes per token on one rank. Divide by the numbers per token on one rank (exercise "
            "3.2) to get bytes per number.",
            "The nearest of 4, 2 and 1 byte names the dtype: 'fp32', 'bf16', 'fp8'.",
        ),
        reference=ranks_and_dtype,
        cases=(
            (8_030_261_248, 14.99, 3.81, 31_232, 32, 8, 128),
            (70_553_706_496, 16.5, 50.0, 2_621_440, 80, 8, 128),
            (70_553_706_496, 33.0, 30.0, 393_216, 80, 8, 128),
            (30_532_122_624, 7.2, 60.0, 2_621_440, 48, 4, 128),
            (30_532_122_624, 14.3, 40.0, 3_495_248, 48, 4, 128),
        ),
        random_case=_log_case,
        mistakes=(
            Mistake(
                "one rank",
                _ranks_with(sharded=False),
                "you took one rank every time: compare the weights in the log with the whole model's",
            ),
            Mistake(
                "cache not divided",
                _ranks_with(divided=False),
                "the pool is that of one rank too: it holds its own KV heads only",
            ),
            Mistake(
                "a part of a head",
                _ranks_with(ceil=False),
                "with more ranks than KV heads each rank holds a whole head: round up",
            ),
            Mistake(
                "K or V missing",
                _ranks_with(factor=1),
                "a token has a key and a value: with one of them every number looks twice as wide",
            ),
            Mistake(
                "one byte a weight",
                _ranks_with(bytes_of_weight=1),
                "the weights are bf16: the whole model has 2 bytes for each parameter",
            ),
            Mistake(
                "GB for GiB",
                _ranks_with(gib=1e9),
                "the log prints GiB: 2**30 bytes each, for the weights and for the pool",
            ),
            Mistake(
                "exact bytes only",
                _ranks_with(names={4: "fp32", 2: "bf16", 1: "fp8"}.get),
                "the bytes per number never come out whole, as the log is rounded: take the nearest of 4, 2 and 1",
            ),
            Mistake(
                "dtype of the weights",
                _ranks_with(names=lambda x: "bf16"),
                "the weights are bf16, the cache need not be: pool ÷ tokens are its bytes per token",
            ),
        ),
        result="a pair (ranks, dtype), such as (2, 'fp8')",
    ),
    Exercise(
        id="3.8",
        title="Which card count serves N users?",
        minutes=10,
        difficulty=4,
        why="It is the question behind a purchase; more cards help only as long as there is something to share out.",
        hints=(
            "Look at one rank of a group of `tp` cards. Which share of the weights does it hold, and how many KV "
            "heads of each request?",
            "Try the groups from small to large; the first that fits is the answer. If none fits, say 0.",
        ),
        reference=cards_for,
        cases=(
            (60, 8192, 141.1, 8, 40_960, 79.1, 0.9),
            (50, 8192, 16.06, 8, 16_384, 79.1, 0.9),
            (800, 8192, 16.06, 8, 16_384, 79.1, 0.9),
            (320, 8192, 61.06, 4, 24_576, 79.1, 0.9),
            (900, 8192, 61.06, 4, 24_576, 79.1, 0.9),
            (250, 8192, 31.41, 1, 31_104, 79.1, 0.9),
            (1, 1024, 150.0, 8, 40_960, 79.1, 0.9),
            (8, 8192, 149.6, 8, 40_960, 79.1, 1.0),
            (1, 1024, 75.5, 8, 40_960, 79.1, 0.9),
            (3, 131_072, 141.1, 8, 40_960, 79.1, 0.9),
            (150, 8192, 29.3, 10, 20_480, 79.1, 0.9),
            (180, 8192, 29.3, 10, 20_480, 79.1, 0.9),
            (64, 8192, 141.1, 8, 40_960, 79.1, 0.9),
        ),
        random_case=_cards_case,
        mistakes=(
            Mistake(
                "divided out",
                _by_division,
                "you divided all bytes by the memory of a card: with fewer KV heads than cards a head is held twice",
            ),
            Mistake(
                "weights on every card",
                _cards_with(weights=lambda gb, tp: gb * 1e9),
                "the weights are shared out too: a rank holds 1/tp of them",
            ),
            Mistake(
                "cache not shared",
                _cards_with(heads=lambda k, tp: k),
                "a rank holds its own KV heads of a request, not all of them",
            ),
            Mistake(
                "parts of a head",
                _cards_with(heads=lambda k, tp: max(1, k / tp)),
                "a head is held whole: 10 KV heads on 4 cards are 3 on the fullest, not 2.5",
            ),
            Mistake(
                "heads rounded down",
                _cards_with(heads=lambda k, tp: max(1, k // tp)),
                "the fullest rank decides: round its KV heads up",
            ),
            Mistake(
                "one user",
                _cards_with(users_counted=False),
                "this group holds one request: asked are `users` at once",
            ),
            Mistake(
                "weights only",
                _cards_with(heads=lambda k, tp: 0),
                "the weights fit, but the requests have no place",
            ),
            Mistake(
                "GB for GiB",
                _cards_with(memory=lambda gib, usable: usable * gib * 1e9),
                "visible memory is in GiB: 2**30 bytes each",
            ),
            Mistake(
                "GiB for GB",
                _cards_with(weights=lambda gb, tp: gb * 2**30 / tp),
                "the weights are given in GB: 10**9 bytes each",
            ),
            Mistake(
                "all memory",
                _cards_with(memory=lambda gib, usable: gib * 2**30),
                "the engine may use the share `usable` of what is visible",
            ),
            Mistake(
                "share of the rest",
                _share_of_the_rest,
                "`usable` is a share of all that is visible, the weights included, not of what they leave",
            ),
            Mistake(
                "16 where none fits",
                _cards_with(nothing=16),
                "where no group holds the load, answer 0: sixteen cards would not do either",
            ),
            Mistake(
                "any number of cards",
                _cards_with(groups=tuple(range(1, 17))),
                "a group has 1, 2, 4, 8 or 16 cards",
            ),
        ),
        unit="cards",
    ),
    Exercise(
        id="3.9",
        title="Your own config at 8 k",
        minutes=12,
        difficulty=4,
        why="Question 2 of the article: what does one request of 8 k tokens hold on your model?",
        hints=(
            "Three cases by key: `kv_lora_rank` says MLA (then `qk_rope_head_dim` too); `sliding_window_pattern` says "
            "that layers have windows; neither says that all layers keep everything.",
            "`sliding_window_pattern` 6: every sixth layer is full, so `layers // 6` of them. The others keep "
            "the last `sliding_window` tokens, of 8,192.",
            "`config.get(key, default)` reads a key that may be absent: without `num_key_value_heads` every head has "
            "its own, without `head_dim` it is hidden_size // heads.",
        ),
        reference=bytes_at_8k,
        cases=tuple((config,) for config in OWN_CONFIGS),
        random_case=_own_case,
        mistakes=(
            Mistake(
                "MLA as GQA",
                _at_8k_with(latent="as GQA"),
                "`kv_lora_rank` is there: MLA caches one latent for all heads, whatever the other keys say",
            ),
            Mistake(
                "latent twice",
                _at_8k_with(latent="twice"),
                "the latent serves as key and as value: do not count it twice",
            ),
            Mistake(
                "position missing",
                _at_8k_with(latent="no rope"),
                "MLA caches `qk_rope_head_dim` numbers for the position as well",
            ),
            Mistake(
                "window ignored",
                _at_8k_with(windows="ignored"),
                "`sliding_window_pattern` is there: most layers keep only their window",
            ),
            Mistake(
                "rounded up",
                _at_8k_with(windows="rounded up"),
                "only every p-th layer is full: `layers // p` of them, rounded down",
            ),
            Mistake(
                "in parts",
                _at_8k_with(windows="in parts"),
                "there is no part of a layer: `layers // p` layers are full",
            ),
            Mistake(
                "window always full",
                _at_8k_with(windows="always full"),
                "a request of 8,192 tokens does not fill a larger window",
            ),
            Mistake(
                "swapped",
                _at_8k_with(windows="swapped"),
                "full and window layers are swapped: every p-th layer is the full one",
            ),
            Mistake(
                "GQA ignored",
                _at_8k_with(grouped=False),
                "read `num_key_value_heads` where it is given: the cache holds KV heads",
            ),
            Mistake(
                "head_dim = hidden / heads",
                _at_8k_with(explicit=False),
                "read `head_dim` where it is given: hidden / heads is wrong for some models",
            ),
            Mistake(
                "128 for every head",
                _at_8k_with(size_default=128),
                "128 is only the usual size of a head: without `head_dim` it is hidden_size // heads",
            ),
            Mistake(
                "8,000 tokens",
                _at_8k_with(tokens=8000),
                "8 k is 8,192 tokens here",
            ),
        ),
        unit="bytes",
    ),
)
