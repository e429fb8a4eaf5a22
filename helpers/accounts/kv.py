"""The KV cache: bytes as a function of length, for full, grouped, windowed and latent attention."""

from helpers.accounts.inventory import check_tp
from helpers.accounts.model import FullAttention, Layer, Model
from helpers.accounts.units import bytes_of, count
from helpers.errors import InputError


def kv_bytes(model: Model, tokens: int, dtype: str = "bf16", tp: int = 1, engine: str = "ideal") -> int:
    """Bytes of KV cache that one request of `tokens` tokens holds, on one of `tp` ranks.

    bytes(n) = Σ layers width · bytes per element · min(n, window), with width = 2 · ceil(kv_heads / tp) · head_dim
    for full and grouped attention, and kv_lora_rank + qk_rope_head_dim for latent attention (MLA), which every rank
    holds whole. No block rounding or padding: the ``ideal`` engine. State of fixed size is in `state_bytes`.

    Raises InputError for a bad count or dtype, a `tp` that does not divide the heads, or another engine.
    """
    if engine != "ideal":
        raise InputError(f"engine {engine!r} is not known: this version knows the engine 'ideal' only")
    count(tokens, "tokens")
    check_tp(model, tp)
    return bytes_of(sum(_width(layer, tp) * _held(layer, tokens) for layer in model.layers), dtype)


def kv_bytes_per_token(model: Model, context: int = 0, dtype: str = "bf16", tp: int = 1, engine: str = "ideal") -> int:
    """Bytes the next token adds to a cache of `context` tokens: kv_bytes(context + 1) − kv_bytes(context).

    Layers whose window is full add nothing. Raises as `kv_bytes` does.
    """
    kv_bytes(model, context, dtype, tp, engine)
    growing = (layer for layer in model.layers if _held(layer, context + 1) > _held(layer, context))
    return bytes_of(sum(_width(layer, tp) for layer in growing), dtype)


def state_bytes(model: Model) -> int:
    """Bytes of constant state per request (Mamba, linear attention): 0, no supported model_type keeps any."""
    return 0


def _width(layer: Layer, tp: int) -> int:
    attention = layer.attention
    if isinstance(attention, FullAttention):
        return 2 * -(-attention.kv_heads // tp) * attention.head_dim
    return attention.kv_lora_rank + attention.qk_rope_head_dim


def _held(layer: Layer, tokens: int) -> int:
    window = layer.attention.window if isinstance(layer.attention, FullAttention) else None
    return tokens if window is None else min(tokens, window)
