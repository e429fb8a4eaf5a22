"""The inventory: every weight tensor of a model, listed once, from which parameters, FLOPs and bytes all follow."""

from collections.abc import Iterator
from functools import lru_cache

from helpers.accounts.model import (
    CompressedAttention,
    DenseFFN,
    FullAttention,
    Indexer,
    LatentAttention,
    Layer,
    Model,
    MoEFFN,
    PerLayerInput,
)
from helpers.accounts.state_weights import state_weights
from helpers.accounts.units import positive_int
from helpers.accounts.weight import COMPONENTS, Weight
from helpers.errors import InputError

__all__ = ["COMPONENTS", "Weight", "check_tp", "inventory"]


def check_tp(model: Model, tp: int) -> int:
    """`tp` where the query heads of every layer divide by it, else InputError (engines refuse the rest too)."""
    positive_int(tp, "tp")
    for heads in {layer.heads for layer in model.layers}:
        if heads % tp:
            raise InputError(f"tp {tp} does not divide the {heads} attention heads of {model.name}")
    for mixer in {layer.state for layer in model.layers if layer.state is not None}:
        mixer.shard(tp)
    return tp


@lru_cache(maxsize=64)
def inventory(model: Model, tp: int = 1) -> tuple[Weight, ...]:
    """Every weight that one of `tp` tensor-parallel ranks holds; with tp 1, the whole model.

    Megatron's split (arXiv:1909.08053), as vLLM does it: query heads, feed-forward widths and the vocabulary are
    divided; KV heads too, down to one a rank; norms, routers and MLA's down-projections are on every rank.
    """
    check_tp(model, tp)
    return tuple(_weights(model, tp))


def _weights(model: Model, tp: int) -> Iterator[Weight]:
    hidden = model.hidden_size
    vocab = _share(model.vocab_size, tp)
    # A look-up, not a product: unless tied, the input embedding costs memory but neither FLOPs nor active weights.
    yield Weight("embedding", "model.embed_tokens", vocab, hidden, active_copies=0, is_matrix=False)
    for index, layer in enumerate(model.layers):
        yield from _layer_weights(layer, f"model.layers.{index}", hidden, tp)
    if model.per_layer_input is not None:
        yield from _per_layer_input(model.per_layer_input, len(model.layers), hidden)
    if model.streams > 1:
        yield from _hyper_connections(model.streams, len(model.layers), hidden)
    yield _norm("model.norm", model.final_norms * hidden)
    # A tied head is the embedding matrix again: it is multiplied and read, but stored only once.
    yield Weight("head", "lm_head", vocab, hidden, copies=0 if model.tied_embeddings else 1)


def _layer_weights(layer: Layer, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    attention, feed_forward = layer.attention, layer.feed_forward
    yield _norm(f"{prefix}.norms", layer.norms * hidden)
    if isinstance(attention, FullAttention):
        yield from _full_attention(attention, f"{prefix}.self_attn", hidden, tp)
    elif isinstance(attention, LatentAttention):
        yield from _latent_attention(attention, f"{prefix}.self_attn", hidden, tp)
    elif isinstance(attention, CompressedAttention):
        yield from _compressed_attention(attention, f"{prefix}.self_attn", hidden, tp)
    if layer.state is not None:
        yield from state_weights(layer.state.shard(tp), prefix, hidden)
    if isinstance(feed_forward, DenseFFN):
        width = _share(feed_forward.width, tp)
        yield from _feed_forward("dense_ffn", f"{prefix}.mlp", hidden, width, feed_forward.bias, feed_forward.gated)
        if learned := feed_forward.activation_parameters:
            yield Weight("dense_ffn", f"{prefix}.mlp.act_fn", 1, learned, is_matrix=False)
    elif isinstance(feed_forward, MoEFFN):
        yield from _mixture(feed_forward, f"{prefix}.mlp", hidden, tp)


def _per_layer_input(table: PerLayerInput, depth: int, hidden: int) -> Iterator[Weight]:
    # Left whole on every rank: engines look it up on the host or on each card.
    columns = depth * table.width
    yield Weight(
        "embedding", "model.embed_tokens_per_layer", table.vocab_size, columns, active_copies=0, is_matrix=False
    )
    yield Weight("dense_ffn", "model.per_layer_model_projection", columns, hidden)
    yield _norm("model.per_layer_projection_norm", table.width)
    for index in range(depth):
        prefix = f"model.layers.{index}"
        yield Weight("dense_ffn", f"{prefix}.per_layer_input_gate", table.width, hidden)
        yield Weight("dense_ffn", f"{prefix}.per_layer_projection", hidden, table.width)
        yield _norm(f"{prefix}.post_per_layer_input_norm", hidden)


def _full_attention(a: FullAttention, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    queries, keys = a.heads // tp * a.head_dim, _share(a.kv_heads, tp) * a.head_dim
    asked = 2 * queries if a.output_gate else queries
    projections = {"q_proj": asked, "k_proj": keys, "v_proj": keys}
    if a.shares_kv:
        projections = {"q_proj": asked}
    elif a.values_are_keys:
        del projections["v_proj"]
    for name, rows in projections.items():
        yield Weight("attention", f"{prefix}.{name}", rows, hidden, bias=rows if a.qkv_bias else 0)
    yield Weight("attention", f"{prefix}.o_proj", hidden, queries, bias=hidden if a.output_bias else 0)
    if a.sinks:
        yield Weight("attention", f"{prefix}.sinks", 1, a.heads // tp, is_matrix=False)
    if a.qk_norm:
        # Norms across heads are on every rank whole, with one result gathered from all.
        normed = (a.heads, a.kv_heads) if a.norm_across_heads else (1, 1)
        yield _norm(f"{prefix}.qk_norm", (normed[0] if a.shares_kv else sum(normed)) * a.head_dim)


def _latent_attention(a: LatentAttention, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    heads = a.heads // tp
    queries, latent = heads * a.qk_head_dim, a.kv_lora_rank + a.qk_rope_head_dim
    if a.q_lora_rank is None:
        yield Weight("attention", f"{prefix}.q_proj", queries, hidden)
    else:
        down_bias = a.q_lora_rank if a.bias else 0
        yield Weight("attention", f"{prefix}.q_a_proj", a.q_lora_rank, hidden, bias=down_bias)
        yield _norm(f"{prefix}.q_a_layernorm", a.q_lora_rank)
        yield Weight("attention", f"{prefix}.q_b_proj", queries, a.q_lora_rank)
    yield Weight("attention", f"{prefix}.kv_a_proj_with_mqa", latent, hidden, bias=latent if a.bias else 0)
    yield _norm(f"{prefix}.kv_a_layernorm", a.kv_lora_rank)
    expanded = heads * (a.qk_nope_head_dim + a.v_head_dim)
    yield Weight("attention", f"{prefix}.kv_b_proj", expanded, a.kv_lora_rank)
    yield Weight("attention", f"{prefix}.o_proj", hidden, heads * a.v_head_dim, bias=hidden if a.bias else 0)
    if a.indexer is not None:
        yield from _indexer(a.indexer, a.q_lora_rank, f"{prefix}.indexer", hidden)


def _indexer(indexer: Indexer, q_lora_rank: int, prefix: str, hidden: int) -> Iterator[Weight]:
    # Small, and every rank needs its choice of tokens: on every rank whole.
    yield Weight("attention", f"{prefix}.wq_b", indexer.heads * indexer.head_dim, q_lora_rank)
    yield Weight("attention", f"{prefix}.wk", indexer.head_dim, hidden)
    yield Weight("attention", f"{prefix}.weights_proj", indexer.heads, hidden)
    yield _norm(f"{prefix}.k_norm", 2 * indexer.head_dim)


def _compressed_attention(a: CompressedAttention, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    heads, groups = a.heads // tp, _share(a.output_groups, tp)
    yield Weight("attention", f"{prefix}.q_a_proj", a.q_lora_rank, hidden)
    yield _norm(f"{prefix}.q_a_norm", a.q_lora_rank)
    yield Weight("attention", f"{prefix}.q_b_proj", heads * a.head_dim, a.q_lora_rank)
    yield Weight("attention", f"{prefix}.kv_proj", a.head_dim, hidden)
    yield _norm(f"{prefix}.kv_norm", a.head_dim)
    # One matrix per group of heads, stacked.
    yield Weight("attention", f"{prefix}.o_a_proj", groups * a.output_rank, a.heads * a.head_dim // a.output_groups)
    yield Weight("attention", f"{prefix}.o_b_proj", hidden, groups * a.output_rank)
    yield Weight("attention", f"{prefix}.sinks", 1, heads, is_matrix=False)
    if a.rate is not None:
        yield from _compressor(f"{prefix}.compressor", a.head_dim, a, hidden)
    if a.indexer is not None:
        name, indexer = f"{prefix}.compressor.indexer", a.indexer
        yield from _compressor(name, indexer.head_dim, a, hidden)
        yield Weight("attention", f"{name}.q_b_proj", indexer.heads * indexer.head_dim, a.q_lora_rank)
        yield Weight("attention", f"{name}.scorer.weights_proj", indexer.heads, hidden)


def _compressor(prefix: str, head_dim: int, a: CompressedAttention, hidden: int) -> Iterator[Weight]:
    series = 2 if a.overlap else 1
    for name in ("kv_proj", "gate_proj"):
        yield Weight("attention", f"{prefix}.{name}", series * head_dim, hidden)
    yield Weight("attention", f"{prefix}.position_bias", 1, a.rate * series * head_dim, is_matrix=False)
    yield _norm(f"{prefix}.kv_norm", head_dim)


def _hyper_connections(streams: int, depth: int, hidden: int) -> Iterator[Weight]:
    # What mixes the residual streams stands with the norms: small, in full precision, on every rank.
    wide, mixed = streams * hidden, (2 + streams) * streams
    for index in range(depth):
        for name in ("attn_hc", "ffn_hc"):
            yield Weight("norms", f"model.layers.{index}.{name}.fn", mixed, wide)
            yield _norm(f"model.layers.{index}.{name}.base", mixed + 3)
    yield Weight("norms", "model.hc_head.hc_fn", streams, wide)
    yield _norm("model.hc_head.hc_base", streams + 1)


def _mixture(moe: MoEFFN, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    router_bias = moe.experts if moe.router_bias else 0
    yield Weight("router", f"{prefix}.router", moe.experts, hidden, bias=router_bias)
    if moe.router_scales:
        yield Weight("router", f"{prefix}.router.scales", 1, hidden + moe.experts, is_matrix=False)
    if moe.beside is not None:
        beside = moe.beside
        yield from _feed_forward("dense_ffn", prefix, hidden, _share(beside.width, tp), beside.bias, beside.gated)
    width, inputs = _share(moe.expert_width, tp), moe.latent_width or hidden
    copies = {"copies": moe.experts, "active_copies": moe.experts_per_token}
    # "0" stands for every expert's number: they are alike.
    yield from _feed_forward(
        "routed_experts", f"{prefix}.experts.0", inputs, width, moe.expert_bias, moe.gated, **copies
    )
    if moe.latent_width:
        for name, rows, columns in (("fc1", inputs, hidden), ("fc2", hidden, inputs)):
            bias = rows if moe.shared_bias else 0
            yield Weight("shared_experts", f"{prefix}.{name}_latent_proj", rows, columns, bias=bias)
    if moe.shared_width:
        # Qwen's one shared expert has a gate and its name is singular.
        name, shared = "shared_expert" if moe.shared_gate else "shared_experts", _share(moe.shared_width, tp)
        yield from _feed_forward("shared_experts", f"{prefix}.{name}", hidden, shared, moe.shared_bias, moe.gated)
        if moe.shared_gate:
            yield Weight("shared_experts", f"{prefix}.shared_expert_gate", 1, hidden)


def _feed_forward(
    component: str, prefix: str, hidden: int, width: int, bias: bool, gated: bool, **copies: int
) -> Iterator[Weight]:
    for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
        yield Weight(component, f"{prefix}.{name}", width, hidden, bias=width if bias else 0, **copies)
    yield Weight(component, f"{prefix}.down_proj", hidden, width, bias=hidden if bias else 0, **copies)


def _norm(module: str, elements: int) -> Weight:
    return Weight("norms", module, 1, elements, is_matrix=False)


def _share(size: int, tp: int) -> int:
    return -(-size // tp)
