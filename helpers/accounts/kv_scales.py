"""The scales of a quantised KV cache: what int8 and fp8 cost beside the one byte per number."""

from helpers.accounts.kv import held_elements
from helpers.accounts.model import FullAttention, Model
from helpers.accounts.units import bytes_of, count
from helpers.errors import InputError


def kv_scale_bytes(model: Model, tokens: int, scale_dtype: str = "fp32") -> int:
    """Bytes of the scales where each key and each value of a kv head has its own, for `tokens` tokens.

    Σ layers 2 · kv_heads · tokens held · bytes per scale. With head size D a number then costs 1 + 4 / D bytes:
    1.0625 at D = 64, not 1. Raises InputError for latent attention and other layers without keys and values per head.
    """
    count(tokens, "tokens")
    scales = 0
    for layer in model.layers:
        if not isinstance(layer.attention, FullAttention):
            raise InputError(f"{model.name}: {type(layer.attention).__name__} has no keys and values per head to scale")
        scales += held_elements(layer.attention, tokens) // layer.attention.head_dim
    return bytes_of(scales, scale_dtype)
