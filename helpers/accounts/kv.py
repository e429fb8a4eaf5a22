"""The KV cache: bytes as a function of length, for every kind of attention."""

from fractions import Fraction
from typing import Any

from helpers.accounts.inventory import check_tp
from helpers.accounts.model import Attention, CompressedAttention, FullAttention, LatentAttention, Model
from helpers.accounts.units import bytes_of, count
from helpers.errors import InputError


def kv_bytes(
    model: Model,
    tokens: int,
    dtype: str = "bf16",
    tp: int = 1,
    engine: str = "ideal",
    settings: Any = None,
) -> int:
    """Bytes of KV cache that one request of `tokens` tokens holds, on one of `tp` ranks.

    bytes(n) = Σ layers width · bytes per element · min(n, window), with width = 2 · ceil(kv_heads / tp) · head_dim
    for full and grouped attention, and kv_lora_rank + qk_rope_head_dim for latent attention (MLA), which every rank
    holds whole; a chunk holds like a window; layers that share an earlier one's cache hold nothing; an indexer adds
    its head_dim; compressed attention adds ⌊n / rate⌋ blocks to its window.
    No block rounding or padding: the ``ideal`` engine; ``hf`` is what transformers' cache holds. ``vllm``
    counts whole blocks and ``llamacpp`` padded cells, both by their `settings` (VllmSettings, LlamaCppSettings; None:
    the defaults). State of fixed size is in `state_bytes`.

    Raises InputError for a bad count or dtype, a `tp` that does not divide the heads, or another engine.
    """
    count(tokens, "tokens")
    check_tp(model, tp)
    if engine in ("vllm", "llamacpp"):
        return _allocated_bytes(model, tokens, dtype, tp, engine, settings)
    if engine not in ("ideal", "hf"):
        raise InputError(f"engine {engine!r} is not known: choose one of ideal, hf, vllm, llamacpp")
    return bytes_of(_elements(model, tokens, tp, engine), dtype)


def kv_bytes_per_token(
    model: Model,
    context: int = 0,
    dtype: str = "bf16",
    tp: int = 1,
    engine: str = "ideal",
    settings: Any = None,
) -> int:
    """Bytes the next token adds to a cache of `context` tokens: kv_bytes(context + 1) − kv_bytes(context).

    Layers whose window is full add nothing; where tokens are compressed in blocks, a block counts evenly for each of
    its tokens. Engines that allocate in blocks or cells: the growth over the next whole
    block, divided by its tokens. Raises as `kv_bytes` does.
    """
    here = kv_bytes(model, context, dtype, tp, engine, settings)
    if engine in ("vllm", "llamacpp"):
        step = _growth_step(model, dtype, tp, engine, settings)
        return -(-(kv_bytes(model, context + step, dtype, tp, engine, settings) - here) // step)
    return bytes_of(sum(_growth_elements(layer.attention, context, tp, engine) for layer in model.layers), dtype)


def _growth_elements(attention: Attention | None, context: int, tp: int, engine: str) -> int | Fraction:
    here, next_one = (held_elements(attention, n, tp, engine) for n in (context, context + 1))
    if not isinstance(attention, CompressedAttention) or attention.rate is None:
        return next_one - here
    # A block counts evenly for each of its tokens, else the answer would jump with the context.
    entries = (context + 1) // attention.rate - context // attention.rate
    return next_one - here + attention.entry_elements * (Fraction(1, attention.rate) - entries)


def _elements(model: Model, tokens: int, tp: int, engine: str) -> int:
    return sum(held_elements(layer.attention, tokens, tp, engine) for layer in model.layers)


def _allocated_bytes(model: Model, tokens: int, dtype: str, tp: int, engine: str, settings: Any) -> int:
    # Imported here because both build on the widths of this module.
    from helpers.accounts.kv_llamacpp import llamacpp_kv_bytes
    from helpers.accounts.kv_vllm import vllm_kv_bytes

    return (vllm_kv_bytes if engine == "vllm" else llamacpp_kv_bytes)(model, tokens, dtype, tp, settings)


def _growth_step(model: Model, dtype: str, tp: int, engine: str, settings: Any) -> int:
    from helpers.accounts.kv_llamacpp import LlamaCppSettings
    from helpers.accounts.kv_vllm import growth_step, vllm_layout

    if engine == "vllm":
        return growth_step(vllm_layout(model, dtype, tp, settings))
    return (settings or LlamaCppSettings()).padding


def kv_read_bytes(model: Model, context: int, dtype: str = "bf16", tp: int = 1) -> int:
    """Bytes of cache that one decode step reads of one sequence of `context` tokens, on one of `tp` ranks.

    Σ layers width · tokens attended. This differs from what is held where layers read an earlier layer's cache, or
    sparse attention reads its `top_k` tokens alone (and every indexer key to choose them). Raises as `kv_bytes` does.
    """
    count(context, "context")
    check_tp(model, tp)
    elements = 0
    for layer in model.layers:
        elements += _read_width(layer.attention, tp) * attended_tokens(layer.attention, context)
        elements += indexer_width_elements(layer.attention) * indexed_keys(layer.attention, context)
    return bytes_of(elements, dtype)


def held_elements(attention: Attention | None, tokens: int, tp: int = 1, engine: str = "ideal") -> int:
    """Numbers that one layer's cache holds after `tokens` tokens on one of `tp` ranks; `engine` ``ideal`` or ``hf``."""
    width = kv_width_elements(attention, tp)
    if isinstance(attention, CompressedAttention):
        # Without a compressor transformers uses its ordinary layer, which stores the vector as key and as value.
        copies = 2 if engine == "hf" and attention.rate is None else 1
        entries = 0 if attention.rate is None else tokens // attention.rate
        return copies * width * held_tokens(attention, tokens, engine) + attention.entry_elements * entries
    if engine == "hf" and isinstance(attention, FullAttention) and attention.transformers_repeats_kv:
        width = 2 * attention.heads // tp * attention.head_dim
    return width * held_tokens(attention, tokens, engine) + indexer_width_elements(attention) * tokens


def kv_width_elements(attention: Attention | None, tp: int = 1) -> int:
    """Numbers that one token adds to the cache of one layer, on one of `tp` ranks; 0 where it keeps none per token.

    2 · ceil(kv_heads / tp) · head_dim for full and grouped attention (0 where the layer shares an earlier one's),
    kv_lora_rank + qk_rope_head_dim for MLA. An indexer's key is apart: `indexer_width_elements`.
    """
    shares = isinstance(attention, FullAttention) and attention.shares_kv
    return 0 if shares else _read_width(attention, tp)


def indexer_width_elements(attention: Attention | None) -> int:
    """Numbers of one key of the indexer, on every rank whole; 0 in a layer without one."""
    indexer = getattr(attention, "indexer", None)
    return 0 if indexer is None else indexer.head_dim


def indexed_keys(attention: Attention | None, tokens: int) -> int:
    """Keys of the indexer after `tokens` tokens: one a token, or one a compressed block; 0 in a layer without one."""
    if getattr(attention, "indexer", None) is None:
        return 0
    return tokens // attention.rate if isinstance(attention, CompressedAttention) else tokens


def held_tokens(attention: Attention | None, tokens: int, engine: str = "ideal") -> int:
    """Tokens of the last `tokens` whose keys and values one layer still holds, as `engine` does it.

    min(tokens, window), and min(tokens, chunk) for chunked attention: room for a whole chunk, though each new chunk
    starts empty. ``hf`` keeps one less of either, without the token to come (and all where that one is the window).
    """
    limit = None
    if isinstance(attention, FullAttention):
        limit = attention.window or attention.chunk
    elif isinstance(attention, CompressedAttention):
        limit = attention.window
    if engine == "hf" and limit is not None:
        limit = limit - 1 or None
    return tokens if limit is None else min(tokens, limit)


def attended_tokens(attention: Attention | None, context: int) -> int:
    """Tokens that the newest of `context` tokens attends to in one layer, itself included; 0 without attention.

    min(context, window); with chunks those of its own chunk, (context − 1) mod chunk + 1; with an indexer
    min(context, top_k).
    """
    if attention is None or not context:
        return 0
    if isinstance(attention, LatentAttention):
        return min(context, attention.top_k or context)
    if isinstance(attention, CompressedAttention):
        return min(context, attention.window) + attended_entries(attention, context)
    if attention.chunk is not None:
        return (context - 1) % attention.chunk + 1
    return min(context, attention.window or context)


def attended_entries(attention: CompressedAttention, context: int) -> int:
    """Compressed blocks that the newest of `context` tokens reads: min(⌊context / rate⌋, top_k)."""
    if attention.rate is None:
        return 0
    entries = context // attention.rate
    return min(entries, attention.indexer.top_k) if attention.indexer is not None else entries


def _read_width(attention: Attention | None, tp: int) -> int:
    if isinstance(attention, FullAttention):
        return 2 * -(-attention.kv_heads // tp) * attention.head_dim
    if isinstance(attention, LatentAttention):
        return attention.kv_lora_rank + attention.qk_rope_head_dim
    if isinstance(attention, CompressedAttention):
        return attention.head_dim
    return 0
