"""The inventory: every weight tensor of a model, listed once, from which parameters, FLOPs and bytes all follow."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from helpers.accounts.model import DenseFFN, FullAttention, LatentAttention, Layer, Model, MoEFFN
from helpers.accounts.units import positive_int
from helpers.errors import InputError

COMPONENTS = (
    "embedding",
    "attention",
    "dense_ffn",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "head",
)


@dataclass(frozen=True)
class Weight:
    """One weight of the checkpoint, or `copies` alike (the experts of a layer), of which a token uses `active_copies`.

    A matrix has `rows` outputs and `columns` inputs; a plain vector has one row and `is_matrix` False. `bias` is the
    number of bias elements beside the matrix. `module` is its name in a Hugging Face checkpoint.
    """

    component: str
    module: str
    rows: int
    columns: int
    bias: int = 0
    copies: int = 1
    active_copies: int = 1
    is_matrix: bool = True

    @property
    def elements_per_copy(self) -> int:
        """Parameters of one copy, bias included."""
        return self.rows * self.columns + self.bias

    @property
    def parameters(self) -> int:
        """Parameters of all copies."""
        return self.copies * self.elements_per_copy

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        return self.active_copies * self.elements_per_copy

    @property
    def flops_per_token(self) -> int:
        """2 · rows · columns · active copies: one multiply and one add per element of a matrix product."""
        return 2 * self.rows * self.columns * self.active_copies if self.is_matrix else 0


def check_tp(model: Model, tp: int) -> int:
    """`tp` where the query heads of every layer divide by it, else InputError (engines refuse the rest too)."""
    positive_int(tp, "tp")
    for heads in {layer.attention.heads for layer in model.layers}:
        if heads % tp:
            raise InputError(f"tp {tp} does not divide the {heads} attention heads of {model.name}")
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
    yield Weight("norms", "model.norm", 1, hidden, is_matrix=False)
    # A tied head is the embedding matrix again: it is multiplied and read, but stored only once.
    yield Weight("head", "lm_head", vocab, hidden, copies=0 if model.tied_embeddings else 1)


def _layer_weights(layer: Layer, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    attention, feed_forward = layer.attention, layer.feed_forward
    yield _norm(f"{prefix}.norms", layer.norms * hidden)
    if isinstance(attention, FullAttention):
        yield from _full_attention(attention, f"{prefix}.self_attn", hidden, tp)
    else:
        yield from _latent_attention(attention, f"{prefix}.self_attn", hidden, tp)
    if isinstance(feed_forward, DenseFFN):
        width = _share(feed_forward.width, tp)
        yield from _gated("dense_ffn", f"{prefix}.mlp", hidden, width, feed_forward.bias)
    else:
        yield from _mixture(feed_forward, f"{prefix}.mlp", hidden, tp)


def _full_attention(a: FullAttention, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    queries, keys = a.heads // tp * a.head_dim, _share(a.kv_heads, tp) * a.head_dim
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield Weight("attention", f"{prefix}.{name}", rows, hidden, bias=rows if a.qkv_bias else 0)
    yield Weight("attention", f"{prefix}.o_proj", hidden, queries, bias=hidden if a.output_bias else 0)
    if a.sinks:
        yield Weight("attention", f"{prefix}.sinks", 1, a.heads // tp, is_matrix=False)
    if a.qk_norm:
        yield _norm(f"{prefix}.qk_norm", 2 * a.head_dim)


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


def _mixture(moe: MoEFFN, prefix: str, hidden: int, tp: int) -> Iterator[Weight]:
    router_bias = moe.experts if moe.router_bias else 0
    yield Weight("router", f"{prefix}.router", moe.experts, hidden, bias=router_bias)
    width = _share(moe.expert_width, tp)
    copies = {"copies": moe.experts, "active_copies": moe.experts_per_token}
    # "0" stands for every expert's number: they are alike.
    yield from _gated("routed_experts", f"{prefix}.experts.0", hidden, width, moe.expert_bias, **copies)
    if moe.shared_width:
        shared = _share(moe.shared_width, tp)
        yield from _gated("shared_experts", f"{prefix}.shared_experts", hidden, shared, moe.shared_bias)


def _gated(component: str, prefix: str, hidden: int, width: int, bias: bool, **copies: int) -> Iterator[Weight]:
    for name in ("gate_proj", "up_proj"):
        yield Weight(component, f"{prefix}.{name}", width, hidden, bias=width if bias else 0, **copies)
    yield Weight(component, f"{prefix}.down_proj", hidden, width, bias=hidden if bias else 0, **copies)


def _norm(module: str, elements: int) -> Weight:
    return Weight("norms", module, 1, elements, is_matrix=False)


def _share(size: int, tp: int) -> int:
    return -(-size // tp)
