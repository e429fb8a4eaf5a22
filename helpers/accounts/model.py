"""The frozen description of a model that every account reads: per layer an attention kind and a feed-forward kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.accounts.state_mixers import StateMixer


@dataclass(frozen=True)
class FullAttention:
    """Multi-head, grouped or multi-query attention over all past tokens, or over the last `window` of them.

    `heads` query heads and `kv_heads` key/value heads of `head_dim` numbers each. `window` counts the token itself;
    None means no limit. `chunk`: tokens attend only inside their own block of that many tokens (Llama 4).

    Weights: `qkv_bias` and `output_bias`: the projections carry bias vectors; `qk_norm`: one RMSNorm of `head_dim` on
    the queries and one on the keys, or with `norm_across_heads` over all heads (MiniMax-M2, OLMo 2); `sinks`: one
    learned number per query head (gpt-oss); `output_gate`: the query projection carries a gate for the attention's
    output too and is twice as tall (Qwen3-Next); `values_are_keys`: one projection gives keys and values, which are
    both cached; `shares_kv`: the layer reads the keys and values of an earlier one and has none of its own (both
    Gemma 4). `transformers_repeats_kv`: that library caches keys and values once per query head (Falcon's new
    decoder), which no engine does.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    output_gate: bool = False
    chunk: int | None = None
    norm_across_heads: bool = False
    values_are_keys: bool = False
    shares_kv: bool = False
    transformers_repeats_kv: bool = False


@dataclass(frozen=True)
class Indexer:
    """What picks the tokens of sparse attention (DeepSeek-V3.2): `heads` small queries score one cached key of
    `head_dim` numbers per token, and the attention reads only the `top_k` best."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2 paper, section 2.1).

    Keys and values of all heads are expanded from one latent of `kv_lora_rank` numbers per token; a key part of
    `qk_rope_head_dim` numbers is shared by the heads. The cache holds kv_lora_rank + qk_rope_head_dim numbers.
    `q_lora_rank` None: queries come from one plain projection. `bias`: on the down-projections and the output.
    `top_k`: a query attends only to that many tokens, picked by the layer's `indexer`, or with `indexer` None by that
    of an earlier layer (GLM-5).
    """

    heads: int
    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    bias: bool = False
    top_k: int | None = None
    indexer: Indexer | None = None

    @property
    def qk_head_dim(self) -> int:
        """Numbers in one head's query or expanded key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True)
class CompressedAttention:
    """Attention of DeepSeek-V4: the last `window` tokens as they are, and everything before in blocks of `rate` tokens.

    All `heads` share one vector of `head_dim` numbers per token, which is key and value at once. A compressor makes
    one such vector of each block; with `overlap` a block also draws on the one before it. An `indexer`, fed by a
    compressor of its own, picks the `top_k` blocks a query reads. `rate` None: the window alone. Queries come through
    `q_lora_rank`; the output through `output_groups` matrices of `output_rank` rows each.
    """

    heads: int
    head_dim: int
    window: int
    q_lora_rank: int
    output_groups: int
    output_rank: int
    rate: int | None = None
    overlap: bool = False
    indexer: Indexer | None = None

    @property
    def entry_elements(self) -> int:
        """Numbers that one compressed block adds to the cache: its vector and the indexer's key."""
        return 0 if self.rate is None else self.head_dim + (self.indexer.head_dim if self.indexer else 0)

    @property
    def pending_elements(self) -> int:
        """Numbers kept for the block being filled, at most: 2 · series · entry per token, and the overlap's tokens."""
        if self.rate is None:
            return 0
        series = 2 if self.overlap else 1
        overlap = 2 * self.rate * self.entry_elements if self.overlap else 0
        return 2 * series * self.entry_elements * (self.rate - 1) + overlap


@dataclass(frozen=True)
class DenseFFN:
    """A feed-forward block: matrices gate, up, down of hidden × `width`; up and down alone where not `gated`.

    `activation_parameters`: learned numbers of the activation function itself (xIELU has two).
    """

    width: int
    bias: bool = False
    gated: bool = True
    activation_parameters: int = 0


@dataclass(frozen=True)
class MoEFFN:
    """A mixture of experts: a router picks `experts_per_token` of `experts`; shared experts run for every token.

    `expert_width` is the width of one routed expert; `shared_width` the width of all shared experts together.
    `expert_bias` and `router_bias` mark bias vectors (gpt-oss); `shared_bias` biases in the shared experts.
    `gated` False: experts of two matrices, up and down (Nemotron-H); `latent_width`: the routed experts work on a
    projection of that width instead of the hidden size; `shared_gate`: one number per token scales the shared experts.
    `beside`: a dense feed-forward that runs beside the experts for every token, and `router_scales`: the router also
    has one scale per input and one per expert (both Gemma 4). `normalize_gates`: the weights of a token's experts are
    scaled to add up to 1; None where it is not read, as no account needs it.
    """

    experts: int
    experts_per_token: int
    expert_width: int
    shared_experts: int = 0
    shared_width: int = 0
    expert_bias: bool = False
    router_bias: bool = False
    shared_bias: bool = False
    gated: bool = True
    latent_width: int | None = None
    shared_gate: bool = False
    beside: DenseFFN | None = None
    router_scales: bool = False
    normalize_gates: bool | None = None


Attention = FullAttention | LatentAttention | CompressedAttention
"""The kinds a layer mixes tokens with."""

FeedForward = DenseFFN | MoEFFN
"""The kinds a layer works on each token with."""


@dataclass(frozen=True)
class Layer:
    """One decoder layer; `norms` counts its RMSNorm vectors of hidden size (2, or 4 in Gemma).

    Either part may be None: some models have layers of one part alone. `state` is a mixer with a state of fixed size,
    most often in the place of attention (which is None then), in some models beside it (Falcon-H1).
    """

    attention: Attention | None
    feed_forward: FeedForward | None
    norms: int = 2
    state: StateMixer | None = None

    @property
    def heads(self) -> int:
        """Query heads, which tensor parallelism divides; 0 in a layer that has none."""
        return getattr(self.attention, "heads", 0)


@dataclass(frozen=True)
class DecoderDetails:
    """What a decoder needs and no account reads: epsilon, activation, rotary embedding as the config gives it."""

    rms_norm_eps: float
    hidden_act: str
    rope_theta: float | None
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    partial_rotary_factor: float = 1.0


@dataclass(frozen=True)
class PerLayerInput:
    """A second embedding of the input token: `width` numbers for each layer, mixed in at its end (Gemma 4)."""

    vocab_size: int
    width: int


@dataclass(frozen=True)
class Model:
    """A decoder-only language model, read from its config.json.

    `model_type` is the one the file states at its top. `weights_dtype` is the number format of what is not
    quantised; `quantization` the file's own quantization_config, read by `weight_bytes`. `notes` are sentences for
    people: what was left out and which defaults were taken. `final_norms` counts the vectors of the last norm (a
    LayerNorm has two). `streams`: residual streams side by side, which hyper-connections mix (DeepSeek-V4).
    """

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    max_position_embeddings: int
    layers: tuple[Layer, ...]
    weights_dtype: str
    decoder: DecoderDetails
    quantization: Mapping[str, Any] | None = field(default=None, hash=False)
    notes: tuple[str, ...] = ()
    final_norms: int = 1
    per_layer_input: PerLayerInput | None = None
    streams: int = 1
