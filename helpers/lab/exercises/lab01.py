"""Lab 01, two accounts: from a parameter count to bytes, FLOPs and floor times."""

import math
import random
from collections.abc import Callable

from helpers.lab.exercise import Exercise, Mistake


def weight_bytes(parameters: int, bits_per_parameter: int) -> float:
    """Memory the weights take: parameters × bits / 8, in bytes."""
    return parameters * bits_per_parameter / 8


def _weight_case(rng: random.Random) -> tuple:
    return rng.randrange(10**6, 10**12), rng.choice((4, 8, 16, 32))


def gqa_parameters(hidden: int, heads: int, kv_heads: int, head_dim: int) -> int:
    """Parameters of one attention layer: queries and output on `heads`, keys and values on `kv_heads`; no bias."""
    return 2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim


def _gqa_case(rng: random.Random) -> tuple:
    heads, kv_heads = rng.choice(((32, 8), (64, 8), (40, 8), (16, 2), (8, 8)))
    return 1024 * rng.randrange(1, 9), heads, kv_heads, rng.choice((64, 128, 256))


def moe_active(
    always: int, embedding: int, moe_layers: int, expert: int, experts: int, chosen: int, shared: int
) -> tuple[int, int]:
    """Active parameters of an MoE model, the input embedding left out and counted: (without, with)."""
    active = always + moe_layers * (chosen + shared) * expert
    return active, active + embedding


def _moe_case(rng: random.Random) -> tuple:
    experts = rng.choice((64, 128, 256))
    sizes = (10**6 * rng.randrange(100, 20_000), 10**6 * rng.randrange(50, 2_000), rng.randrange(20, 80))
    return *sizes, 10**5 * rng.randrange(10, 500), experts, rng.randrange(2, 9), rng.randrange(1, 3)


def decode_flops(active: int, layers: int, heads: int, head_dim: int, context: int) -> int:
    """FLOPs of one decoded token: 2 per active parameter, and 4 · layers · heads · head_dim per context token."""
    return 2 * active + 4 * layers * heads * head_dim * context


def _flops_case(rng: random.Random) -> tuple:
    sizes = (10**7 * rng.randrange(10, 7_000), rng.randrange(16, 100), rng.choice((16, 32, 64)), rng.choice((64, 128)))
    return *sizes, rng.randrange(1_000, 100_000)


def cards_needed(weight_gb: float, kv_gb: float, visible_gib: float, usable: float) -> int:
    """Least number of cards: (weights + KV cache) over the usable bytes of one card, rounded up."""
    return math.ceil((weight_gb + kv_gb) * 10**9 / (usable * visible_gib * 2**30))


def _cards_case(rng: random.Random) -> tuple:
    memory = rng.choice((22.1, 44.39, 79.1, 139.7)), rng.choice((0.8, 0.85, 0.9))
    return float(rng.randrange(100, 1_400)), float(rng.randrange(20, 400)), *memory


def decode_floor_ms(
    weight_bytes: float, kv_bytes_per_token: float, context: int, batch: int, bandwidth_gb_per_s: float
) -> float:
    """Memory time of one decode step in milliseconds: weights once, the KV cache of every sequence."""
    size = weight_bytes + batch * context * kv_bytes_per_token
    return size / (bandwidth_gb_per_s * 10**9) * 1000


def _floor_case(rng: random.Random) -> tuple:
    model = 10**9 * rng.randrange(2, 150), 1024 * rng.randrange(20, 500)
    return *model, rng.randrange(500, 20_000), rng.randrange(2, 200), float(rng.choice((300, 936, 2039, 3350, 4800)))


def binding_account(flops: float, size_bytes: float, peak_tflops: float, bandwidth_gb_per_s: float) -> str:
    """ "compute" where flops / peak is at least bytes / bandwidth, else "bandwidth"."""
    return "compute" if flops / (peak_tflops * 1e12) >= size_bytes / (bandwidth_gb_per_s * 1e9) else "bandwidth"


def _binding_case(rng: random.Random) -> tuple:
    peak, bandwidth = rng.choice(((989, 3350), (312, 2039), (121, 300), (148, 4000)))
    intensity = peak * 1e3 / bandwidth * rng.choice((0.02, 0.6, 0.8, 1.25, 1.6, 40))
    size = float(10**9 * rng.randrange(1, 200))
    return size * intensity, size, float(peak), float(bandwidth)


def kv_bytes_per_token(config: dict, bits: int) -> float:
    """KV cache bytes of one token, from the keys of a config.json: 2 · layers · kv_heads · head_dim · bits / 8."""
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    return 2 * config["num_hidden_layers"] * kv_heads * head_dim * bits / 8


def _calculator(
    *,
    factor: int = 2,
    grouped: bool = True,
    kv_default: int | None = None,
    explicit: bool = True,
    size_default: int | None = None,
    divided_by: str = "num_attention_heads",
    bytes_of_bits: Callable[[int], float] = lambda bits: bits / 8,
):
    """The calculator with some of its faults left in, or with one that comes in when it is mended."""

    def faulty(config: dict, bits: int) -> float:
        heads = config["num_attention_heads"]
        kv_heads = config.get("num_key_value_heads", kv_default or heads) if grouped else heads
        derived = size_default or config["hidden_size"] // config.get(divided_by, heads)
        head_dim = config.get("head_dim", derived) if explicit else derived
        return factor * config["num_hidden_layers"] * kv_heads * head_dim * bytes_of_bits(bits)

    return faulty


def _undivided(bits: int) -> int:
    return bits


def _faulty_config(rng: random.Random) -> tuple:
    heads = rng.choice((16, 32, 64))
    config = {"name": "a drawn config", "num_hidden_layers": rng.randrange(16, 100)}
    config |= {"num_attention_heads": heads, "hidden_size": rng.choice((64, 96, 128)) * heads}
    if rng.random() < 0.7:
        config["num_key_value_heads"] = rng.choice((2, 4, 8))
    if rng.random() < 0.5:
        config["head_dim"] = rng.choice((64, 256))
    return config, rng.choice((4, 8, 16, 32))


LLAMA_70B_ACTIVE = 69_503_033_344
LLAMA_8B = {
    "name": "Llama-3.1-8B",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
QWEN3_32B = {
    "name": "Qwen3-32B",
    "num_hidden_layers": 64,
    "hidden_size": 5120,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
SMOLLM2_135M = {
    "name": "SmolLM2-135M",
    "num_hidden_layers": 30,
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
LLAMA_2_7B = {"name": "Llama-2-7B", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}


EXERCISES = (
    Exercise(
        id="1.1",
        title="Bytes of the weights",
        minutes=5,
        difficulty=1,
        why="The memory account starts here: a model whose weights do not fit is not slow, it does not run.",
        hints=(
            "A byte has 8 bits: how many bytes does one parameter of 16 bits take?",
            "Multiply before you divide: a 4-bit parameter takes half a byte, and half a byte is not zero.",
        ),
        reference=weight_bytes,
        cases=((8_030_261_248, 16), (8_030_261_248, 4), (671_026_404_352, 8)),
        random_case=_weight_case,
        mistakes=(
            Mistake(
                "bits for bytes",
                lambda parameters, bits: parameters * bits,
                "these are bits: divide by 8 to get bytes",
            ),
            Mistake(
                "whole bytes only",
                lambda parameters, bits: parameters * (bits // 8),
                "you rounded each parameter down to whole bytes (`//`): a 4-bit parameter takes half a byte",
            ),
            Mistake(
                "GB for bytes",
                lambda parameters, bits: parameters * bits / 8 / 1e9,
                "these are GB: the exercise asks for bytes",
            ),
            Mistake(
                "GiB for bytes",
                lambda parameters, bits: parameters * bits / 8 / 1024**3,
                "these are GiB (1024**3 bytes): the exercise asks for bytes",
            ),
        ),
        unit="bytes",
    ),
    Exercise(
        id="1.2",
        title="Parameters of a GQA layer",
        minutes=5,
        difficulty=2,
        why="Forgetting the groups is a common fault. It also makes the KV cache look several times too large.",
        hints=(
            "There are four matrices: queries, keys, values, output. Which of them are sized by `kv_heads`?",
            "The queries of all heads together are heads × head_dim numbers wide. Do not compute head_dim "
            "yourself: it is given, and hidden / heads is not always the same number.",
        ),
        reference=gqa_parameters,
        cases=((4096, 32, 8, 128), (5120, 64, 8, 128), (4096, 32, 32, 128)),
        random_case=_gqa_case,
        mistakes=(
            Mistake(
                "GQA ignored",
                lambda hidden, heads, kv_heads, head_dim: 4 * hidden * heads * head_dim,
                "you gave keys and values as many heads as the queries: they have `kv_heads`",
            ),
            Mistake(
                "K or V missing",
                lambda hidden, heads, kv_heads, head_dim: 2 * hidden * heads * head_dim + hidden * kv_heads * head_dim,
                "keys and values are two matrices, and one of them is missing",
            ),
            Mistake(
                "no output matrix",
                lambda hidden, heads, kv_heads, head_dim: hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim,
                "the output matrix, which leads back from the heads to the hidden size, is missing",
            ),
            Mistake(
                "head_dim = hidden / heads",
                lambda hidden, heads, kv_heads, head_dim: 2 * hidden * hidden + 2 * hidden * kv_heads * hidden // heads,
                "you used hidden / heads for the size of a head: take the `head_dim` that is given",
            ),
            Mistake(
                "four squares",
                lambda hidden, heads, kv_heads, head_dim: 4 * hidden * hidden,
                "four matrices of hidden × hidden hold only where heads × head_dim = hidden and there are no groups",
            ),
            Mistake(
                "group size for kv heads",
                lambda hidden, heads, kv_heads, head_dim: 2 * hidden * head_dim * (heads + heads // kv_heads),
                "heads // kv_heads is how many query heads share one key/value head; keys and values have `kv_heads`",
            ),
            Mistake(
                "norms added",
                lambda hidden, heads, kv_heads, head_dim: 2 * hidden * (heads + kv_heads) * head_dim + 2 * hidden,
                "you added the two norms of the layer: the four matrices of the attention alone are asked for",
            ),
            Mistake(
                "biases added",
                lambda hidden, heads, kv_heads, head_dim: (
                    2 * hidden * (heads + kv_heads) * head_dim + (heads + 2 * kv_heads) * head_dim
                ),
                "you added biases on queries, keys and values: this layer has none",
            ),
            Mistake(
                "four biases added",
                lambda hidden, heads, kv_heads, head_dim: (
                    2 * hidden * (heads + kv_heads) * head_dim + (heads + 2 * kv_heads) * head_dim + hidden
                ),
                "you added a bias to each of the four matrices: this layer has none",
            ),
            Mistake(
                "output square",
                lambda hidden, heads, kv_heads, head_dim: hidden * ((heads + 2 * kv_heads) * head_dim + hidden),
                "the output matrix is not hidden × hidden: it has one row or column per number of the heads",
            ),
        ),
        unit="parameters",
    ),
    Exercise(
        id="1.3",
        title="Active parameters of an MoE",
        minutes=7,
        difficulty=3,
        why="The compute account follows the active parameters, and sources use two conventions without naming them.",
        hints=(
            "A token runs the experts chosen for it and all shared ones, in every MoE layer.",
            "The second number of the pair is the first one and the input embedding, once.",
        ),
        reference=moe_active,
        result="a pair (without, with)",
        cases=(
            (13_636_623_360, 926_679_040, 58, 44_040_192, 256, 8, 1),
            (1_200_000_000, 300_000_000, 48, 5_000_000, 128, 8, 2),
        ),
        random_case=_moe_case,
        mistakes=(
            Mistake(
                "active for total",
                lambda a, emb, n, e, total, k, s: (a + n * (total + s) * e, a + n * (total + s) * e + emb),
                "these are the total parameters: a token runs `chosen` of the `experts`",
            ),
            Mistake(
                "shared forgotten",
                lambda a, emb, n, e, total, k, s: (a + n * k * e, a + n * k * e + emb),
                "the shared experts are missing: every token runs them too",
            ),
            Mistake(
                "one layer",
                lambda a, emb, n, e, total, k, s: (a + (k + s) * e, a + (k + s) * e + emb),
                "you counted the experts of one layer: each of the `moe_layers` has its own",
            ),
            Mistake(
                "shared of one layer",
                lambda a, emb, n, e, total, k, s: (a + (n * k + s) * e, a + (n * k + s) * e + emb),
                "you counted the shared experts once: each of the `moe_layers` has its own",
            ),
            Mistake(
                "always forgotten",
                lambda a, emb, n, e, total, k, s: (n * (k + s) * e, n * (k + s) * e + emb),
                "these are the experts alone: what every token multiplies besides them, `always`, is missing",
            ),
            Mistake(
                "always in every layer",
                lambda a, emb, n, e, total, k, s: (n * (a + (k + s) * e), n * (a + (k + s) * e) + emb),
                "you took `always` times the layers: it is already the sum over all layers",
            ),
            Mistake(
                "embedding subtracted",
                lambda a, emb, n, e, total, k, s: (a + n * (k + s) * e - emb, a + n * (k + s) * e),
                "you took the embedding away from the first number: `always` does not hold it",
            ),
            Mistake(
                "embedding subtracted from the second",
                lambda a, emb, n, e, total, k, s: (a + n * (k + s) * e, a + n * (k + s) * e - emb),
                "the first number is right; the second counts the embedding too, so add it",
            ),
            Mistake(
                "conventions swapped",
                lambda a, emb, n, e, total, k, s: (a + n * (k + s) * e + emb, a + n * (k + s) * e),
                "the two numbers are swapped: first without the input embedding, then with it",
            ),
            Mistake(
                "embedding counted twice",
                lambda a, emb, n, e, total, k, s: (a + n * (k + s) * e + emb, a + n * (k + s) * e + 2 * emb),
                "the embedding is in both numbers, and twice in the second: `always` does not hold it, "
                "the first number leaves it out",
            ),
        ),
        unit="parameters",
    ),
    Exercise(
        id="1.4",
        title="FLOPs of one decoded token",
        minutes=6,
        difficulty=2,
        why="The rule 2 × active parameters is good for a short context only; you should know when it breaks.",
        hints=(
            "Each active parameter takes part in one multiply-add. How many FLOPs is that?",
            "A head multiplies its query with the key of each context token (head_dim multiply-adds), and adds up "
            "the values with as many again.",
        ),
        reference=decode_flops,
        cases=(
            (LLAMA_70B_ACTIVE, 80, 64, 128, 8192),
            (LLAMA_70B_ACTIVE, 80, 64, 128, 131072),
            (134_515_008, 30, 9, 64, 1),
        ),
        random_case=_flops_case,
        mistakes=(
            Mistake(
                "attention left out",
                lambda active, layers, heads, head_dim, context: 2 * active,
                "this is the rule of thumb: the attention over the context is missing",
            ),
            Mistake(
                "multiply-adds for FLOPs",
                lambda active, layers, heads, head_dim, context: active + 2 * layers * heads * head_dim * context,
                "you counted multiply-adds: each is 2 FLOPs",
            ),
            Mistake(
                "weights once",
                lambda active, layers, heads, head_dim, context: active + 4 * layers * heads * head_dim * context,
                "an active parameter costs 2 FLOPs, one multiply and one add",
            ),
            Mistake(
                "scores only",
                lambda active, layers, heads, head_dim, context: 2 * active + 2 * layers * heads * head_dim * context,
                "attention has two products, queries with keys and weights with values: one is missing",
            ),
            Mistake(
                "one layer",
                lambda active, layers, heads, head_dim, context: 2 * active + 4 * heads * head_dim * context,
                "this is the attention of one layer: every layer has its own",
            ),
            Mistake(
                "context left out",
                lambda active, layers, heads, head_dim, context: 2 * active + 4 * layers * heads * head_dim,
                "the attention work grows with the context, and `context` is not used",
            ),
            Mistake(
                "heads left out",
                lambda active, layers, heads, head_dim, context: 2 * active + 4 * layers * head_dim * context,
                "this is the attention of one head in each layer: all `heads` do it",
            ),
            Mistake(
                "weights for every context token",
                lambda active, layers, heads, head_dim, context: 2 * active * context,
                "2 · active · context is the weight work of a prefill: a decode step takes in one token",
            ),
            Mistake(
                "weights and attention for every context token",
                lambda active, layers, heads, head_dim, context: (2 * active + 4 * layers * heads * head_dim) * context,
                "you took the weights once for each context token, that is a prefill: a decode step takes in one token",
            ),
            Mistake(
                "context + 1",
                lambda active, layers, heads, head_dim, context: (
                    2 * active + 4 * layers * heads * head_dim * (context + 1)
                ),
                "you counted one token too many: `context` holds the new token already",
            ),
            Mistake(
                "context - 1",
                lambda active, layers, heads, head_dim, context: (
                    2 * active + 4 * layers * heads * head_dim * (context - 1)
                ),
                "you counted one token too few: the new token is part of `context` and attends to itself too",
            ),
        ),
        unit="FLOPs",
    ),
    Exercise(
        id="1.5",
        title="How many cards does it take?",
        minutes=6,
        difficulty=3,
        why="A purchase that is one card short does not run slower, it does not run. Labels count in GB, programs "
        "see GiB, and engines keep a reserve.",
        hints=(
            "Turn everything into bytes first: 1 GB is `10**9` bytes, 1 GiB is `2**30` bytes.",
            "An engine may use the share `usable` of the visible memory, for weights and KV cache together. "
            "`math.ceil` rounds up.",
        ),
        reference=cards_needed,
        cases=(
            (673.15, 50.0, 79.1, 0.9),
            (673.15, 50.0, 139.7, 0.9),
            (16.06, 4.0, 22.1, 0.9),
            (141.1, 30.0, 79.1, 0.9),
            (8.589934592, 8.589934592, 32.0, 0.5),  # 2**34 bytes on one card of 2**34 usable ones: exactly full
        ),
        random_case=_cards_case,
        mistakes=(
            Mistake(
                "GB for GiB",
                lambda w, kv, gib, usable: math.ceil((w + kv) / (usable * gib)),
                "you divided GB by GiB: 1 GiB is 2**30 bytes, 1 GB is 10**9",
            ),
            Mistake(
                "rounded down",
                lambda w, kv, gib, usable: math.floor((w + kv) * 1e9 / (usable * gib * 2**30)),
                "you rounded down (`//`, `int` or `floor`): the last part of the model needs a card too",
            ),
            Mistake(
                "nearest",
                lambda w, kv, gib, usable: round((w + kv) * 1e9 / (usable * gib * 2**30)),
                "you rounded to the nearest whole number: whatever is left over needs one more card",
            ),
            Mistake(
                "not rounded",
                lambda w, kv, gib, usable: (w + kv) * 1e9 / (usable * gib * 2**30),
                "there is no such thing as a part of a card: round up",
            ),
            Mistake(
                "reserve ignored",
                lambda w, kv, gib, usable: math.ceil((w + kv) * 1e9 / (gib * 2**30)),
                "the engine may not use all that is visible: `usable` is ignored",
            ),
            Mistake(
                "weights only",
                lambda w, kv, gib, usable: math.ceil(w * 1e9 / (usable * gib * 2**30)),
                "the weights fit, but the KV cache has no place",
            ),
            Mistake(
                "one more always",
                lambda w, kv, gib, usable: int((w + kv) * 1e9 / (usable * gib * 2**30)) + 1,
                "you add a card even where the last one is exactly full: `math.ceil` does not",
            ),
            Mistake(
                "rounded separately",
                lambda w, kv, gib, usable: (
                    math.ceil(w * 1e9 / (usable * gib * 2**30)) + math.ceil(kv * 1e9 / (usable * gib * 2**30))
                ),
                "you rounded weights and KV cache up each on their own: they share cards, so add first and round once",
            ),
            Mistake(
                "usable on the wrong side",
                lambda w, kv, gib, usable: math.ceil((w + kv) * 1e9 * usable / (gib * 2**30)),
                "`usable` is a share of the card's memory, you took it of what has to be held",
            ),
            Mistake(
                "the reserve for the rest",
                lambda w, kv, gib, usable: math.ceil((w + kv) * 1e9 / ((1 - usable) * gib * 2**30)),
                "1 - usable is what the engine leaves free: `usable` is what it takes",
            ),
        ),
        unit="cards",
    ),
    Exercise(
        id="1.6",
        title="The floor of a decode step",
        minutes=6,
        difficulty=3,
        why="No TPOT is below this. Near it, only fewer bytes or more bandwidth help; far above it, look elsewhere.",
        hints=(
            "Which bytes are read once for the whole batch, and which once for each sequence?",
            "Bytes divided by bytes per second are seconds. The answer is asked in milliseconds.",
        ),
        reference=decode_floor_ms,
        cases=((15_009_849_344, 131_072, 2048, 1, 3350.0), (15_009_849_344, 131_072, 2048, 64, 3350.0)),
        random_case=_floor_case,
        mistakes=(
            Mistake(
                "seconds for milliseconds",
                lambda w, kv, n, b, bw: (w + b * n * kv) / (bw * 1e9),
                "these are seconds: the exercise asks for milliseconds",
            ),
            Mistake(
                "one cache for all",
                lambda w, kv, n, b, bw: (w + n * kv) / (bw * 1e6),
                "each sequence of the batch has its own KV cache: you read one of them",
            ),
            Mistake(
                "weights per sequence",
                lambda w, kv, n, b, bw: b * (w + n * kv) / (bw * 1e6),
                "the weights are read once for the whole batch, not for each sequence: that is what batching is for",
            ),
            Mistake(
                "context left out",
                lambda w, kv, n, b, bw: (w + b * kv) / (bw * 1e6),
                "a step reads the keys and values of the whole context, not of one token",
            ),
            Mistake(
                "weights only",
                lambda w, kv, n, b, bw: w / (bw * 1e6),
                "the KV cache is missing: a decode step reads it too",
            ),
            Mistake(
                "per token",
                lambda w, kv, n, b, bw: (w + b * n * kv) / b / (bw * 1e6),
                "this is the time per token; asked is the time per step, which gives a token to each of the sequences",
            ),
            Mistake(
                "the larger part",
                lambda w, kv, n, b, bw: max(w, b * n * kv) / (bw * 1e6),
                "you took the larger of weights and KV cache: both come through the same memory, so add them",
            ),
            Mistake(
                "weights by the batch",
                lambda w, kv, n, b, bw: (b * w + n * kv) / (bw * 1e6),
                "the batch is on the wrong term: the weights are read once, the KV cache once for each sequence",
            ),
            Mistake(
                "GB/s as bytes/s",
                lambda w, kv, n, b, bw: (w + b * n * kv) / bw * 1000,
                "the bandwidth is in GB/s: multiply it by 10**9 to get bytes per second",
            ),
            Mistake(
                "GB/s as bytes/s, in seconds",
                lambda w, kv, n, b, bw: (w + b * n * kv) / bw,
                "two units are unconverted: the bandwidth is in GB/s (10**9 bytes), the answer in milliseconds",
            ),
            Mistake(
                "GiB/s for GB/s",
                lambda w, kv, n, b, bw: (w + b * n * kv) / (bw * 2**30) * 1000,
                "bandwidth is given in GB/s, 10**9 bytes per second, not in GiB/s",
            ),
        ),
        unit="ms",
    ),
    Exercise(
        id="1.7",
        title="Which account binds?",
        minutes=5,
        difficulty=2,
        why="It decides what helps: a faster kernel and more FLOP/s, or fewer bytes and more bandwidth.",
        hints=(
            "Compute two times: the work over its rate, and the bytes over theirs. The longer one binds.",
            "1 TFLOP/s is `10**12` FLOPs per second, 1 GB/s is `10**9` bytes per second.",
        ),
        reference=binding_account,
        cases=(
            (29_688_401_494_016.0, 15_295_062_016.0, 989.0, 3350.0),
            (1_029_315_756_032.0, 32_190_242_816.0, 989.0, 3350.0),
            (5e9, 1e10, 989.0, 3350.0),
            (2.5e12, 1e10, 989.0, 3350.0),
            (2.5e12, 1e10, 148.0, 4000.0),
            (2e9, 1e10, 989.0, 3350.0),  # below 0.3 FLOPs per byte: bandwidth even with the prefixes left out
            (5.12e14, 2.048e12, 512.0, 2048.0),  # one second each, exactly
            (2.86e12, 1e10, 989.0, 3350.0),  # bytes take 3 % longer: GiB/s for GB/s would turn it
            (2.98e12, 1e10, 989.0, 3350.0),  # FLOPs take 1 % longer: powers of two for both would turn it
            (3.1e12, 1e10, 989.0, 3350.0),  # FLOPs take 5 % longer: 2**40 for 10**12 would turn it
        ),
        random_case=_binding_case,
        mistakes=(
            Mistake(
                "swapped",
                lambda f, b, peak, bw: "bandwidth" if f / (peak * 1e12) >= b / (bw * 1e9) else "compute",
                "it is the other way round: the account that takes longer binds",
            ),
            Mistake(
                "more FLOPs than bytes",
                lambda f, b, peak, bw: "compute" if f >= b else "bandwidth",
                "you compared FLOPs with bytes: compare the times that they take on this device",
            ),
            Mistake(
                "tera for giga",
                lambda f, b, peak, bw: "compute" if f / peak >= b / bw else "bandwidth",
                "the units differ: one is in TFLOP/s (10**12), the other in GB/s (10**9)",
            ),
            Mistake(
                "sparse peak",
                lambda f, b, peak, bw: "compute" if f / (2 * peak * 1e12) >= b / (bw * 1e9) else "bandwidth",
                "you doubled the peak, as datasheets do for sparsity: the figure given is the dense one",
            ),
            Mistake(
                "always compute",
                lambda f, b, peak, bw: "compute",
                "you say compute every time: it depends on the work and the bytes, not on the card alone",
            ),
            Mistake(
                "always bandwidth",
                lambda f, b, peak, bw: "bandwidth",
                "you say bandwidth every time: it depends on the work and the bytes, not on the card alone",
            ),
            Mistake(
                "a tie is bandwidth",
                lambda f, b, peak, bw: "compute" if f / (peak * 1e12) > b / (bw * 1e9) else "bandwidth",
                "where both times are equal, say compute (`>=`)",
            ),
            Mistake(
                "GiB/s for GB/s",
                lambda f, b, peak, bw: "compute" if f / (peak * 1e12) >= b / (bw * 2**30) else "bandwidth",
                "bandwidth is given in GB/s, 10**9 bytes per second, not in GiB/s",
            ),
            Mistake(
                "2**40 for tera",
                lambda f, b, peak, bw: "compute" if f / (peak * 2**40) >= b / (bw * 1e9) else "bandwidth",
                "1 TFLOP/s is 10**12 FLOPs per second, not 2**40",
            ),
            Mistake(
                "powers of two for both",
                lambda f, b, peak, bw: "compute" if f / (peak * 2**40) >= b / (bw * 2**30) else "bandwidth",
                "tera and giga are powers of ten here (10**12 and 10**9), you took powers of two",
            ),
        ),
    ),
    Exercise(
        id="1.8",
        title="Bug hunt: a wrong calculator",
        minutes=10,
        difficulty=4,
        why="Faults like these sit in calculators that people plan clusters with, and they multiply.",
        hints=(
            "Take llama-2-7b first, which has no groups: two factors are wrong there, 8 too high and 2 too low. Which?",
            "Once llama-2-7b agrees, what do the others have in their config that it lacks?",
            "`config.get(key, default)` reads a key that may be absent. Two keys are optional here: "
            "`num_key_value_heads` and `head_dim`.",
        ),
        reference=kv_bytes_per_token,
        cases=((LLAMA_2_7B, 16), (LLAMA_8B, 16), (QWEN3_32B, 16), (LLAMA_8B, 8), (SMOLLM2_135M, 16), (LLAMA_8B, 4)),
        random_case=_faulty_config,
        mistakes=(
            Mistake(
                "nothing mended",
                _calculator(factor=1, grouped=False, explicit=False, bytes_of_bits=_undivided),
                "this is still the faulty calculator: it has four faults",
            ),
            Mistake(
                "bits for bytes",
                _calculator(bytes_of_bits=_undivided),
                "these are bits: divide by 8 to get bytes",
            ),
            Mistake(
                "K-and-V factor missing",
                _calculator(factor=1),
                "both keys and values are cached, you counted one of them",
            ),
            Mistake(
                "GQA ignored",
                _calculator(grouped=False),
                "the cache holds key/value heads, not query heads: read `num_key_value_heads` where it is given",
            ),
            Mistake(
                "head_dim = hidden / heads",
                _calculator(explicit=False),
                "where the config gives `head_dim`, use it: hidden / heads is wrong for some models",
            ),
            Mistake(
                "only the bits mended",
                _calculator(factor=1, grouped=False, explicit=False),
                "the bits are mended; the heads, their size, and a factor are still wrong",
            ),
            Mistake(
                "heads unmended",
                _calculator(grouped=False, explicit=False),
                "bits and factor are mended; the number of heads and their size are still wrong",
            ),
            Mistake(
                "128 for every head",
                _calculator(size_default=128),
                "128 is only the usual size of a head: without `head_dim` it is hidden / heads",
            ),
            Mistake(
                "128 always",
                _calculator(size_default=128, explicit=False),
                "128 is only the usual size of a head: read `head_dim`, or take hidden / heads where it is absent",
            ),
            Mistake(
                "whole bytes only",
                _calculator(bytes_of_bits=lambda bits: bits // 8),
                "you rounded a number down to whole bytes (`//`): at 4 bits it takes half a byte",
            ),
            Mistake(
                "two widths only",
                _calculator(bytes_of_bits=lambda bits: 2 if bits == 16 else 1),
                "there are other widths than 8 and 16 bits: compute the bytes from `bits`",
            ),
            Mistake(
                "16 bits always",
                _calculator(bytes_of_bits=lambda bits: 2),
                "you took 2 bytes for every number: compute them from `bits`",
            ),
            Mistake(
                "hidden / kv_heads",
                _calculator(divided_by="num_key_value_heads"),
                "a head has hidden / (query heads) numbers: you divided by the key/value heads",
            ),
            Mistake(
                "one kv head by default",
                _calculator(kv_default=1),
                "without `num_key_value_heads` every query head has its own keys and values: 1 is not the default",
            ),
            Mistake(
                "eight kv heads by default",
                _calculator(kv_default=8),
                "8 is only usual: without `num_key_value_heads` every query head has its own keys and values",
            ),
        ),
        unit="bytes",
    ),
)
