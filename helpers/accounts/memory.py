"""The memory account: bytes of the weights, by number format or as the config's own quantization says."""

from dataclasses import dataclass

from helpers.accounts.inventory import COMPONENTS, inventory
from helpers.accounts.model import Model
from helpers.accounts.quantization import Scheme, read_scheme, weight_cost
from helpers.accounts.units import dtype_bytes
from helpers.errors import InputError

__all__ = ["WeightBytes", "weight_bytes", "weight_cost", "weight_scheme"]

# Checkpoints of these call their modules otherwise than the inventory does, so that a list of modules left alone
# would be matched wrongly.
_OTHER_MODULE_NAMES = frozenset(
    {"bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "minimax", "nemotron_h"}
)


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of the weights by component, scales and zero points included; `scales` says how many those are."""

    embedding: int
    attention: int
    state_mixers: int
    dense_ffn: int
    routed_experts: int
    shared_experts: int
    router: int
    norms: int
    head: int
    scales: int

    @property
    def total(self) -> int:
        """All components together."""
        return sum(getattr(self, component) for component in COMPONENTS)


def weight_bytes(model: Model, dtype: str | None = None, tp: int = 1) -> WeightBytes:
    """Bytes of the weights of `model` on one of `tp` ranks.

    `dtype` None: as the config says, quantised matrices with their scales, the rest in `model.weights_dtype`.
    A `dtype` overrides the config: every parameter in that format, bytes = parameters · bytes per element.
    Left out: buffers (rotary tables, routing bias) and what an engine allocates besides.

    Raises InputError for an unknown dtype, or a quantization_config that is not understood.
    """
    scheme = weight_scheme(model, dtype)
    sums, scales = dict.fromkeys(COMPONENTS, 0), 0
    for weight in inventory(model, tp):
        cost = weight_cost(weight, scheme, weight.copies)
        sums[weight.component] += cost.total
        scales += cost.scales
    return WeightBytes(**sums, scales=scales)


def weight_scheme(model: Model, dtype: str | None = None) -> Scheme:
    """How the weights are stored: the plain `dtype` where given, else what the config's quantization says."""
    if dtype is not None:
        dtype_bytes(dtype)
        return Scheme(dtype=dtype, unquantised_dtype=dtype)
    if model.quantization is None:
        return Scheme(dtype=model.weights_dtype, unquantised_dtype=model.weights_dtype)
    if model.model_type in _OTHER_MODULE_NAMES:
        raise InputError(
            f"{model.name}: key 'quantization_config' is not understood for model_type {model.model_type!r}; "
            "give --weights-dtype instead"
        )
    return read_scheme(model.quantization, model.weights_dtype, model.name)
