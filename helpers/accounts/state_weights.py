"""The weights of the mixers with a state, as the `transformers` modules name and shape them."""

from collections.abc import Iterator

from helpers.accounts.state_mixers import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    ShortConvolution,
    StateMixer,
)
from helpers.accounts.weight import Weight


def state_weights(mixer: StateMixer, layer: str, hidden: int) -> Iterator[Weight]:
    """Every weight of `mixer` (as one rank holds it) in the layer called `layer`, of a model `hidden` wide."""
    module, weights = _KINDS[type(mixer)]
    yield from weights(mixer, f"{layer}.{module}", hidden)


def _mamba(m: Mamba, prefix: str, hidden: int) -> Iterator[Weight]:
    low_rank = m.time_step_rank + 2 * m.state_size
    yield _linear(f"{prefix}.in_proj", 2 * m.width, hidden, m.bias)
    yield _convolution(f"{prefix}.conv1d", m, m.conv_bias)
    yield _linear(f"{prefix}.x_proj", low_rank, m.width)
    yield _linear(f"{prefix}.dt_proj", m.width, m.time_step_rank, bias=True)
    yield _vector(f"{prefix}.A_log", m.width * m.state_size)
    yield _vector(f"{prefix}.D", m.width)
    if m.inner_norms:
        yield _norm(f"{prefix}.layernorms", low_rank)
    yield _linear(f"{prefix}.out_proj", hidden, m.width, m.bias)


def _mamba2(m: Mamba2, prefix: str, hidden: int) -> Iterator[Weight]:
    yield _linear(f"{prefix}.in_proj", m.width + m.conv_channels + m.heads, hidden, m.bias)
    yield _convolution(f"{prefix}.conv1d", m, m.conv_bias)
    for name in ("dt_bias", "A_log", "D"):
        yield _vector(f"{prefix}.{name}", m.heads)
    if m.norm:
        yield _norm(f"{prefix}.norm", m.width)
    yield _linear(f"{prefix}.out_proj", hidden, m.width, m.output_bias)


def _gated_delta_net(m: GatedDeltaNet, prefix: str, hidden: int) -> Iterator[Weight]:
    if m.fused:
        yield _linear(f"{prefix}.in_proj_qkvz", m.conv_channels + m.value_width, hidden)
        yield _linear(f"{prefix}.in_proj_ba", 2 * m.value_heads, hidden)
    else:
        yield _linear(f"{prefix}.in_proj_qkv", m.conv_channels, hidden)
        yield _linear(f"{prefix}.in_proj_z", m.value_width, hidden)
        yield _linear(f"{prefix}.in_proj_b", m.value_heads, hidden)
        yield _linear(f"{prefix}.in_proj_a", m.value_heads, hidden)
    yield _convolution(f"{prefix}.conv1d", m)
    for name in ("dt_bias", "A_log"):
        yield _vector(f"{prefix}.{name}", m.value_heads)
    yield _norm(f"{prefix}.norm", m.value_head_dim)
    yield _linear(f"{prefix}.out_proj", hidden, m.value_width)


def _kimi_delta_attention(m: KimiDeltaAttention, prefix: str, hidden: int) -> Iterator[Weight]:
    for name in ("q_proj", "k_proj", "v_proj"):
        yield _linear(f"{prefix}.{name}", m.width, hidden)
    yield _convolution(f"{prefix}.conv1d", m)
    for name in ("f", "g"):
        yield _linear(f"{prefix}.{name}_a_proj", m.head_dim, hidden)
        yield _linear(f"{prefix}.{name}_b_proj", m.width, m.head_dim)
    yield _linear(f"{prefix}.b_proj", m.heads, hidden)
    yield _vector(f"{prefix}.A_log", m.heads)
    yield _vector(f"{prefix}.dt_bias", m.width)
    yield _norm(f"{prefix}.o_norm", m.head_dim)
    yield _linear(f"{prefix}.o_proj", hidden, m.width)


def _lightning_attention(m: LightningAttention, prefix: str, hidden: int) -> Iterator[Weight]:
    yield _linear(f"{prefix}.qkv_proj", 3 * m.width, hidden)
    yield _linear(f"{prefix}.output_gate", m.width, hidden)
    yield _norm(f"{prefix}.norm", m.width)
    yield _linear(f"{prefix}.out_proj", hidden, m.width)


def _short_convolution(m: ShortConvolution, prefix: str, hidden: int) -> Iterator[Weight]:
    yield _linear(f"{prefix}.in_proj", 3 * m.width, hidden, m.bias)
    yield _convolution(f"{prefix}.conv", m, m.bias)
    yield _linear(f"{prefix}.out_proj", hidden, m.width, m.bias)


def _linear(module: str, rows: int, columns: int, bias: bool = False) -> Weight:
    return Weight("state_mixers", module, rows, columns, bias=rows if bias else 0)


def _convolution(module: str, mixer: StateMixer, bias: bool = False) -> Weight:
    channels = mixer.conv_channels
    bias_elements = channels if bias else 0
    return Weight("state_mixers", module, channels, mixer.conv_kernel, bias_elements, is_convolution=True)


def _vector(module: str, elements: int) -> Weight:
    return Weight("state_mixers", module, 1, elements, is_matrix=False)


def _norm(module: str, elements: int) -> Weight:
    return Weight("norms", module, 1, elements, is_matrix=False)


_KINDS = {
    Mamba: ("mamba", _mamba),
    Mamba2: ("mamba", _mamba2),
    GatedDeltaNet: ("linear_attn", _gated_delta_net),
    KimiDeltaAttention: ("self_attn", _kimi_delta_attention),
    LightningAttention: ("self_attn", _lightning_attention),
    ShortConvolution: ("conv", _short_convolution),
}
