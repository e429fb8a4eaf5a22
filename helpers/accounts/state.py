"""The state of fixed size that one request holds beside its KV cache, whatever its length."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from helpers.accounts.inventory import check_tp
from helpers.accounts.model import CompressedAttention, Model
from helpers.accounts.state_mixers import StateMixer
from helpers.accounts.units import bytes_of, dtype_bytes
from helpers.errors import InputError


@dataclass(frozen=True)
class StateRule:
    """What an engine keeps: `extra_window` inputs above kernel − 1 in a convolution window; number formats.

    The window is in `window_dtype`, the recurrent state in `recurrent_dtype`; None for the first means the model's
    own format. None for the second: as the config states (where `follows_config`), else as the reference computes it
    (where `follows_reference`), else the model's own.
    """

    extra_window: int = 0
    window_dtype: str | None = None
    recurrent_dtype: str | None = None
    follows_config: bool = False
    follows_reference: bool = False

    def recurrent(self, mixer: StateMixer, model_dtype: str) -> str:
        """The format of the recurrent state of `mixer` in a model whose own format is `model_dtype`."""
        stated = mixer.state_dtype if self.follows_config else None
        reference = mixer.reference_dtype if self.follows_reference else None
        return self.recurrent_dtype or stated or reference or model_dtype


# ideal: what the computation needs. hf: transformers keeps the newest input too (cache_utils.LinearAttentionLayer), and
# the state as its PyTorch kernels return it. vllm: mamba_utils.py, the state in the model's format unless the config
# names one. llamacpp: llama-memory-recurrent.cpp, both in fp32.
STATE_RULES: Mapping[str, StateRule] = MappingProxyType(
    {
        "ideal": StateRule(follows_config=True, follows_reference=True),
        "hf": StateRule(extra_window=1, follows_reference=True),
        "vllm": StateRule(follows_config=True),
        "llamacpp": StateRule(window_dtype="fp32", recurrent_dtype="fp32"),
    }
)
"""By engine, how the state is kept."""


def state_bytes(
    model: Model, dtype: str | None = None, tp: int = 1, engine: str = "ideal", recurrent_dtype: str | None = None
) -> int:
    """Bytes of state of fixed size that one request holds, on one of `tp` ranks; 0 for a model of attention alone.

    Σ layers channels · (kernel − 1) · bytes of a window element + recurrent elements · bytes of a state element. The
    recurrent elements are width · state_size for Mamba, heads · head_dim · state_size for Mamba-2, value heads ·
    key dim · value dim for a gated delta net. Engines: ``ideal`` and ``vllm`` keep kernel − 1 inputs of the
    convolution, ``llamacpp`` too, ``hf`` kernel. Formats: the window in the model's (fp32 in llamacpp); the recurrent
    state as the config states (mamba_ssm_cache_dtype, mamba_ssm_dtype; ideal and vllm), else as the reference computes
    it (ideal and hf: fp32, but the model's for lightning attention), else the model's; in llamacpp always fp32.
    `dtype` overrides the window's, `recurrent_dtype` the state's. DeepSeek-V4
    adds the block that its compressors are filling, at its fullest.

    Raises InputError for an unknown engine or dtype, or a `tp` that does not divide the heads, groups or channels.
    """
    if engine not in STATE_RULES:
        raise InputError(f"engine {engine!r} is not known for the state; choose one of {', '.join(STATE_RULES)}")
    rule = STATE_RULES[engine]
    for given in (dtype, recurrent_dtype):
        if given is not None:
            dtype_bytes(given)
    check_tp(model, tp)
    window_dtype = dtype or rule.window_dtype or model.weights_dtype
    total = 0
    for mixer in (layer.state for layer in model.layers if layer.state is not None):
        state_dtype = recurrent_dtype or rule.recurrent(mixer, model.weights_dtype)
        total += bytes_of(window_elements(mixer, tp, rule.extra_window), window_dtype)
        total += bytes_of(mixer.shard(tp).recurrent_elements, state_dtype)
    for attention in {layer.attention for layer in model.layers if isinstance(layer.attention, CompressedAttention)}:
        layers = sum(layer.attention == attention for layer in model.layers)
        total += layers * bytes_of(attention.pending_elements, dtype or model.weights_dtype)
    return total


def window_elements(mixer: StateMixer, tp: int = 1, extra: int = 0) -> int:
    """Numbers in the convolution window of one layer on one of `tp` ranks: channels · (kernel − 1 + `extra`)."""
    return mixer.shard(tp).conv_channels * (mixer.conv_kernel - 1 + extra)
