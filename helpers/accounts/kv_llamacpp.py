"""The KV cache as llama.cpp allocates it: cells of fixed count, K and V of their own widths and types.

Source: src/llama-kv-cache.cpp, src/llama-kv-cache-iswa.cpp and src/llama-context.cpp of ggml-org/llama.cpp; lines of
real start-up logs are reproduced in the tests.
"""

from dataclasses import dataclass

from helpers.accounts.model import Attention, FullAttention, LatentAttention, Model
from helpers.accounts.units import bytes_of, count, positive_int
from helpers.errors import InputError

_DTYPES = ("fp32", "fp16", "bf16", "q8_0", "q4_0")
_QUANTISED = ("q8_0", "q4_0")
_LATENT = ("latent", "latent_with_values", "expanded")

# What llama.cpp's own loaders do with a window: the hyperparameters of each LLM_ARCH in src/llama-model.cpp, from 2026
# on in src/models/*.cpp. Most read none, and that of Phi-3 is off (pull request 13676 there); the others keep a cache
# of their own for windowed layers.
_WINDOW_IGNORED = frozenset(
    {
        "llama",
        "ministral3",
        "mistral",
        "mistral3",
        "mixtral",
        "phi3",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "starcoder2",
    }
)
_WINDOW_KEPT = frozenset(
    {
        "cohere2",
        "exaone_moe",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "gemma4",
        "gemma4_text",
        "gpt_oss",
        "llama4",
        "llama4_text",
        "olmo3",
    }
)
# EXAONE-4 has a window only where it has the depth of the 32B model.
_EXAONE4_WINDOWED_DEPTH = 64


@dataclass(frozen=True)
class LlamaCppSettings:
    """Settings of a llama.cpp context that change its cache.

    `slots`: sequences at once (-np). `unified`: they share one buffer (--kv-unified) instead of a part each.
    `ubatch`: -ub, 512 by default. `padding`: cells come in multiples of it (256; older builds without flash
    attention: 32). `swa_full`: --swa-full. `type_v`: the type of V where it is not that of K. `latent`: what an MLA
    model caches: ``latent`` (kv_lora_rank + qk_rope_head_dim, from 2026 on), ``latent_with_values`` (the latent a
    second time as V, builds of 2025), ``expanded`` (keys and values of every head: before, and older GGUF files).
    """

    slots: int = 1
    unified: bool = False
    ubatch: int = 512
    padding: int = 256
    swa_full: bool = False
    type_v: str | None = None
    latent: str = "latent"

    def __post_init__(self) -> None:
        for name in ("slots", "ubatch", "padding"):
            positive_int(getattr(self, name), name)
        if self.latent not in _LATENT:
            raise InputError(f"latent must be one of {', '.join(_LATENT)}, not {str(self.latent)[:40]!r}")


@dataclass(frozen=True)
class CellCache:
    """One cache as a log line shows it: `cells` per stream, `layers`, `streams`, and the bytes of K and of V."""

    cells: int
    layers: int
    streams: int
    k_bytes: int
    v_bytes: int

    @property
    def total(self) -> int:
        """K and V together."""
        return self.k_bytes + self.v_bytes


@dataclass(frozen=True)
class LlamaCppCache:
    """The caches of one context: of the layers that keep every token, and of those with a window."""

    full: CellCache
    windowed: CellCache

    @property
    def total(self) -> int:
        """Both caches; state is apart."""
        return self.full.total + self.windowed.total


def llamacpp_cache(
    model: Model, context: int, type_k: str = "fp16", settings: LlamaCppSettings | None = None
) -> LlamaCppCache:
    """What llama.cpp allocates for a context of `context` tokens (-c), shared by the slots.

    size = cells · streams · layers · (K width · K bytes + V width · V bytes), where cells = the context (unified) or
    the context / slots, padded; a windowed cache has min(cells, window · (slots if unified) + ubatch), padded.

    Raises InputError for a type that is not llama.cpp's, rows a quantised type does not divide, or an architecture
    whose window llama.cpp is not known to keep or to ignore.
    """
    settings = settings or LlamaCppSettings()
    positive_int(context, "context")
    types = (type_k, settings.type_v or type_k)
    for name in types:
        if name not in _DTYPES:
            raise InputError(f"kv dtype {str(name)[:40]!r} is not one llama.cpp stores (these: {', '.join(_DTYPES)})")
    streams = 1 if settings.unified else settings.slots
    cells = _padded(context if settings.unified else context // settings.slots or 1, settings.padding)
    full, windowed = [], []
    windows = set()
    for layer in model.layers:
        attention = layer.attention
        if attention is None or (isinstance(attention, FullAttention) and attention.shares_kv):
            continue
        window = _window(model, attention)
        if window is not None:
            windows.add(window)
        (full if window is None else windowed).append(_row_bytes(attention, types, settings.latent, model.name))
    if len(windows) > 1:
        raise InputError(f"{model.name}: engine llamacpp is not known for windows of different lengths in one model")
    swa_cells = cells
    if windows and not settings.swa_full:
        held = windows.pop() * (settings.slots if settings.unified else 1) + settings.ubatch
        swa_cells = _padded(min(cells, held), settings.padding)
    return LlamaCppCache(_cache(cells, streams, full), _cache(swa_cells, streams, windowed))


def llamacpp_kv_bytes(
    model: Model, tokens: int, dtype: str, tp: int = 1, settings: LlamaCppSettings | None = None
) -> int:
    """Bytes of the cache of one sequence of `tokens` tokens: a context of that length with one slot."""
    if tp != 1:
        raise InputError(f"engine llamacpp splits layers over devices, not heads: tp must be 1, not {str(tp)[:40]}")
    if count(tokens, "tokens") == 0:
        return 0
    return llamacpp_cache(model, tokens, dtype, settings).total


def _cache(cells: int, streams: int, rows: list[tuple[int, int]]) -> CellCache:
    total = cells * streams
    return CellCache(
        cells, len(rows), streams, total * sum(key for key, _ in rows), total * sum(value for _, value in rows)
    )


def _window(model: Model, attention: Attention) -> int | None:
    window = (attention.window or attention.chunk) if isinstance(attention, FullAttention) else None
    if window is None or model.model_type in _WINDOW_IGNORED:
        return None
    if model.model_type == "exaone4" and len(model.layers) == _EXAONE4_WINDOWED_DEPTH:
        return window
    if model.model_type not in _WINDOW_KEPT:
        raise InputError(
            f"{model.name}: whether llama.cpp keeps the window of model_type {model.model_type!r} is not known here"
        )
    return window


def _row_bytes(attention: Attention, types: tuple[str, str], latent: str, name: str) -> tuple[int, int]:
    """Bytes of one cell of one layer: K and V."""
    widths = _widths(attention, latent, name)
    for width, dtype in zip(widths, types, strict=True):
        if dtype in _QUANTISED and width % 32:
            raise InputError(f"{name}: kv dtype {dtype} holds blocks of 32 numbers, which {width} is no multiple of")
    return bytes_of(widths[0], types[0]), bytes_of(widths[1], types[1])


def _widths(attention: Attention, latent: str, name: str) -> tuple[int, int]:
    if isinstance(attention, FullAttention):
        return attention.kv_heads * attention.head_dim, attention.kv_heads * attention.head_dim
    if not isinstance(attention, LatentAttention):
        raise InputError(f"{name}: engine llamacpp is not known for {type(attention).__name__} layers")
    if attention.indexer is not None:
        raise InputError(f"{name}: engine llamacpp is not known for the indexer of sparse attention")
    if latent == "expanded":
        return attention.heads * attention.qk_head_dim, attention.heads * attention.v_head_dim
    key = attention.kv_lora_rank + attention.qk_rope_head_dim
    return key, attention.kv_lora_rank if latent == "latent_with_values" else 0


def _padded(cells: int, padding: int) -> int:
    return _ceil(cells, padding) * padding


def _ceil(value: int, by: int) -> int:
    return -(-value // by)
