"""Token mixers with a state of fixed size: instead of keys and values of every token they keep one summary.

All keep the last few inputs of a short convolution (the window), and most a recurrent state, one matrix per head that
each token updates and reads. A mixer here is a frozen description, `shard(tp)` what one tensor-parallel rank holds of
it (heads or channels divided), and `flops_per_token` the products with the recurrent state:

* Mamba, Mamba-2 and lightning attention add one outer product and read once: 2 · 2 FLOPs per state element;
* the delta rule reads first what the state already predicts for the key, so 3 · 2.

The decay of the state and the gates are elementwise and left out, as norms and activations are elsewhere.

`state_dtype` is the number format that the config states for the recurrent state, None where it states none, and
`reference_dtype` the one the reference implementation (transformers) returns it in, None where that is the model's.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from helpers.errors import InputError


@dataclass(frozen=True)
class Mamba:
    """Mamba's selective state space (arXiv:2312.00752, figure 3), `width` channels with `state_size` numbers each.

    `time_step_rank` is the width of the step-size projection; `conv_bias` and `bias` mark bias vectors on the
    convolution and on the outer projections; `inner_norms` RMSNorms on step size, B and C (Jamba).
    """

    reference_dtype: ClassVar[str | None] = "fp32"

    width: int
    state_size: int
    conv_kernel: int
    time_step_rank: int
    conv_bias: bool = True
    bias: bool = False
    inner_norms: bool = False
    state_dtype: str | None = None

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution."""
        return self.width

    @property
    def recurrent_elements(self) -> int:
        """Numbers in the recurrent state: width · state_size."""
        return self.width * self.state_size

    @property
    def flops_per_token(self) -> int:
        """4 · recurrent elements."""
        return 4 * self.recurrent_elements

    def shard(self, tp: int) -> "Mamba":
        """What one of `tp` ranks holds; InputError where the width cannot be divided."""
        return replace(self, width=_divided(self.width, tp, "Mamba channels"))


@dataclass(frozen=True)
class Mamba2:
    """Mamba-2 (arXiv:2405.21060, section 7): `heads` of `head_dim` channels, each a head_dim × state_size matrix.

    The inputs B and C of state_size numbers are shared by the heads of a group. `norm`: a gated RMSNorm before the
    output projection; `output_bias` a bias there, `bias` one on the input projection.
    """

    reference_dtype: ClassVar[str | None] = "fp32"

    heads: int
    head_dim: int
    groups: int
    state_size: int
    conv_kernel: int
    conv_bias: bool = True
    bias: bool = False
    output_bias: bool = False
    norm: bool = True
    state_dtype: str | None = None

    @property
    def width(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: those of the heads, and B and C of every group."""
        return self.width + 2 * self.groups * self.state_size

    @property
    def recurrent_elements(self) -> int:
        """Numbers in the recurrent state: heads · head_dim · state_size."""
        return self.width * self.state_size

    @property
    def flops_per_token(self) -> int:
        """4 · recurrent elements."""
        return 4 * self.recurrent_elements

    def shard(self, tp: int) -> "Mamba2":
        """What one of `tp` ranks holds: a single group is on every rank; InputError where heads do not divide."""
        groups = 1 if self.groups == 1 else _divided(self.groups, tp, "Mamba-2 groups")
        return replace(self, heads=_divided(self.heads, tp, "Mamba-2 heads"), groups=groups)


@dataclass(frozen=True)
class GatedDeltaNet:
    """Gated delta rule (arXiv:2412.06464): a key_head_dim × value_head_dim matrix for each of `value_heads`.

    `fused`: Qwen3-Next stores queries, keys, values and gate as one matrix, Qwen3.5 apart.
    """

    reference_dtype: ClassVar[str | None] = "fp32"

    key_heads: int
    value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    fused: bool = False
    state_dtype: str | None = None

    @property
    def key_width(self) -> int:
        """Numbers in all keys, as many as in all queries."""
        return self.key_heads * self.key_head_dim

    @property
    def value_width(self) -> int:
        """Numbers in all values."""
        return self.value_heads * self.value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution: queries, keys and values."""
        return 2 * self.key_width + self.value_width

    @property
    def recurrent_elements(self) -> int:
        """Numbers in the recurrent state: value_heads · key_head_dim · value_head_dim."""
        return self.value_heads * self.key_head_dim * self.value_head_dim

    @property
    def flops_per_token(self) -> int:
        """6 · recurrent elements."""
        return 6 * self.recurrent_elements

    def shard(self, tp: int) -> "GatedDeltaNet":
        """What one of `tp` ranks holds; InputError where key or value heads cannot be divided."""
        return replace(
            self,
            key_heads=_divided(self.key_heads, tp, "linear-attention key heads"),
            value_heads=_divided(self.value_heads, tp, "linear-attention value heads"),
        )


@dataclass(frozen=True)
class KimiDeltaAttention:
    """Kimi delta attention (arXiv:2510.26692): a gated delta rule with a decay per channel; heads of one size."""

    reference_dtype: ClassVar[str | None] = "fp32"

    heads: int
    head_dim: int
    conv_kernel: int
    # Kept in fp32 whatever the model's format, by transformers and vLLM alike.
    state_dtype: str | None = "fp32"

    @property
    def width(self) -> int:
        """Numbers in all queries, as many as in all keys and in all values."""
        return self.heads * self.head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the convolutions over queries, keys and values."""
        return 3 * self.width

    @property
    def recurrent_elements(self) -> int:
        """Numbers in the recurrent state: heads · head_dim²."""
        return self.width * self.head_dim

    @property
    def flops_per_token(self) -> int:
        """6 · recurrent elements."""
        return 6 * self.recurrent_elements

    def shard(self, tp: int) -> "KimiDeltaAttention":
        """What one of `tp` ranks holds; InputError where the heads cannot be divided."""
        return replace(self, heads=_divided(self.heads, tp, "linear-attention heads"))


@dataclass(frozen=True)
class LightningAttention:
    """Lightning attention (arXiv:2501.08313): linear attention with a fixed decay and no convolution."""

    reference_dtype: ClassVar[str | None] = None

    heads: int
    head_dim: int
    state_dtype: str | None = None
    conv_kernel: int = 1
    conv_channels: int = 0

    @property
    def width(self) -> int:
        """Numbers in all queries, as many as in all keys and in all values."""
        return self.heads * self.head_dim

    @property
    def recurrent_elements(self) -> int:
        """Numbers in the recurrent state: heads · head_dim²."""
        return self.width * self.head_dim

    @property
    def flops_per_token(self) -> int:
        """4 · recurrent elements."""
        return 4 * self.recurrent_elements

    def shard(self, tp: int) -> "LightningAttention":
        """What one of `tp` ranks holds; InputError where the heads cannot be divided."""
        return replace(self, heads=_divided(self.heads, tp, "lightning-attention heads"))


@dataclass(frozen=True)
class ShortConvolution:
    """A gated short convolution (LFM2): `width` channels, a window and no recurrent state."""

    reference_dtype: ClassVar[str | None] = None

    width: int
    conv_kernel: int
    bias: bool = False
    state_dtype: str | None = None
    recurrent_elements: int = 0
    flops_per_token: int = 0

    @property
    def conv_channels(self) -> int:
        """Channels of the convolution."""
        return self.width

    def shard(self, tp: int) -> "ShortConvolution":
        """What one of `tp` ranks holds; InputError where the width cannot be divided."""
        return replace(self, width=_divided(self.width, tp, "convolution channels"))


StateMixer = Mamba | Mamba2 | GatedDeltaNet | KimiDeltaAttention | LightningAttention | ShortConvolution
"""The kinds of mixers that keep a state of fixed size."""


def _divided(size: int, tp: int, what: str) -> int:
    if size % tp:
        raise InputError(f"tp {tp} does not divide the {size} {what}")
    return size // tp
