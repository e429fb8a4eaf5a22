"""The frozen description of a model that every account reads: per layer an attention kind and a feed-forward kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FullAttention:
    """Multi-head, grouped or multi-query attention over all past tokens, or over the last `window` of them.

    `heads` query heads and `kv_heads` key/value heads of `head_dim` numbers each. `window` counts the token itself;
    None means no limit. `qkv_bias` and `output_bias`: the projections carry bias vectors; `qk_norm`: one RMSNorm
    of `head_dim` on the queries and one on the keys; `sinks`: one learned number per query head (gpt-oss).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (MLA, DeepSeek-V2 paper, section 2.1).

    Keys and values of all heads are expanded from one latent of `kv_lora_rank` numbers per token; a key part of
    `qk_rope_head_dim` numbers is shared by the heads. The cache holds kv_lora_rank + qk_rope_head_dim numbers.
    `q_lora_rank` None: queries come from one plain projection. `bias`: on the down-projections and the output.
    """

    heads: int
    kv_lora_rank: int
    q_lora_rank: int | None
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    bias: bool = False

    @property
    def qk_head_dim(self) -> int:
        """Numbers in one head's query or expanded key."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


@dataclass(frozen=True)
class DenseFFN:
    """A gated feed-forward block (gate, up, down): three matrices of hidden × `width`."""

    width: int
    bias: bool = False


@dataclass(frozen=True)
class MoEFFN:
    """A mixture of experts: a router picks `experts_per_token` of `experts`; shared experts run for every token.

    `expert_width` is the width of one routed expert; `shared_width` the width of all shared experts together.
    `expert_bias` and `router_bias` mark bias vectors (gpt-oss); `shared_bias` biases in the shared experts.
    """

    experts: int
    experts_per_token: int
    expert_width: int
    shared_experts: int = 0
    shared_width: int = 0
    expert_bias: bool = False
    router_bias: bool = False
    shared_bias: bool = False


@dataclass(frozen=True)
class Layer:
    """One decoder layer; `norms` counts its RMSNorm vectors of hidden size (2, or 4 in Gemma)."""

    attention: FullAttention | LatentAttention
    feed_forward: DenseFFN | MoEFFN
    norms: int = 2


@dataclass(frozen=True)
class DecoderDetails:
    """What a decoder needs and no account reads: epsilon, activation, rotary embedding as the config gives it."""

    rms_norm_eps: float
    hidden_act: str
    rope_theta: float | None
    rope_scaling: Mapping[str, Any] | None = field(default=None, hash=False)
    partial_rotary_factor: float = 1.0


@dataclass(frozen=True)
class Model:
    """A decoder-only language model, read from its config.json.

    `model_type` is the one the file states at its top. `weights_dtype` is the number format of what is not
    quantised; `quantization` the file's own quantization_config, read by `weight_bytes`. `notes` are sentences for
    people: what was left out and which defaults were taken.
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
