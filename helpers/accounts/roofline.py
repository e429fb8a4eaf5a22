"""The roofline: how fast a prefill or a decode step could be at best, and which account binds it.

Source: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009; for transformers Pope et al., arXiv:2211.05102.
"""

from dataclasses import dataclass

from helpers.accounts.compute import decode_flops, prefill_flops
from helpers.accounts.devices import Device
from helpers.accounts.inventory import check_tp, inventory
from helpers.accounts.kv import kv_bytes, kv_read_bytes
from helpers.accounts.memory import weight_cost, weight_scheme
from helpers.accounts.model import Model
from helpers.accounts.state import state_bytes
from helpers.accounts.units import count, positive_int


@dataclass(frozen=True)
class Floor:
    """The least time a phase can take on one device (one rank, with `tp` above 1); real ones are slower.

    `flops` and `bytes` are those of one rank; `compute_s` = flops / peak; `memory_s` = bytes / bandwidth.
    """

    flops: float
    bytes: float
    compute_s: float
    memory_s: float

    @property
    def seconds(self) -> float:
        """The longer of both: with perfect overlap the shorter one hides."""
        return max(self.compute_s, self.memory_s)

    @property
    def binds(self) -> str:
        """The account that sets the time: ``compute`` or ``bandwidth``."""
        return "compute" if self.compute_s >= self.memory_s else "bandwidth"

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOPs per byte."""
        return self.flops / self.bytes


def ridge_point(device: Device, dtype: str = "bf16") -> float:
    """FLOPs per byte at which `device` turns from bandwidth bound to compute bound: peak / bandwidth.

    295 for H100 SXM at bf16. Raises InputError where the device has no figure for `dtype`.
    """
    return device.peak(dtype) / device.bandwidth_bytes_per_s


def expected_distinct_experts(experts: int, experts_per_token: int, tokens: int) -> float:
    """Experts of one layer that `tokens` tokens touch on average: E · (1 − (1 − k/E)^tokens).

    Under even and independent routing. Skewed routing touches fewer. k for one token, towards E for many.
    """
    positive_int(experts, "experts")
    positive_int(experts_per_token, "experts_per_token")
    count(tokens, "tokens")
    return experts * (1 - (1 - experts_per_token / experts) ** tokens)


def weights_read_bytes(model: Model, tokens: int, weights_dtype: str | None = None, tp: int = 1) -> float:
    """Bytes of weights one forward pass over `tokens` tokens must read on one rank, each weight once.

    Of the routed experts only the `expected_distinct_experts`; of the input embedding only the tokens' rows.
    """
    positive_int(tokens, "tokens")
    scheme = weight_scheme(model, weights_dtype)
    total = 0.0
    for weight in inventory(model, tp):
        cost = weight_cost(weight, scheme, copies=1).total
        if weight.component == "embedding":
            total += cost / weight.rows * min(tokens, weight.rows)
        elif weight.component == "routed_experts":
            total += cost * expected_distinct_experts(weight.copies, weight.active_copies, tokens)
        else:
            total += cost
    return total


def prefill_floor(
    model: Model,
    prompt_tokens: int,
    device: Device,
    batch: int = 1,
    past_tokens: int = 0,
    weights_dtype: str | None = None,
    kv_dtype: str = "bf16",
    compute_dtype: str | None = None,
    tp: int = 1,
) -> Floor:
    """Floor time of one prefill pass over `batch` prompts of `prompt_tokens` tokens each, one row of logits each.

    flops = batch · prefill_flops / tp; bytes = weights read once + KV cache written (and the past read)
    + state written.
    `compute_dtype` None: see `compute_dtype_on`. Left out: activations, communication, launch overheads.
    """
    positive_int(batch, "batch")
    check_tp(model, tp)
    flops = batch * prefill_flops(model, prompt_tokens, past_tokens).total / tp
    size = weights_read_bytes(model, batch * prompt_tokens, weights_dtype, tp)
    size += batch * (kv_bytes(model, past_tokens + prompt_tokens, kv_dtype, tp) + state_bytes(model, tp=tp))
    return _floor(flops, size, device, compute_dtype or compute_dtype_on(device, model, weights_dtype))


def decode_floor(
    model: Model,
    context: int,
    batch: int,
    device: Device,
    weights_dtype: str | None = None,
    kv_dtype: str = "bf16",
    compute_dtype: str | None = None,
    tp: int = 1,
) -> Floor:
    """Floor time of one decode step: `batch` sequences of `context` tokens each, the new one included.

    flops = batch · decode_flops / tp; bytes = weights read once + batch · KV cache attended to (and state,
    read and written).
    `compute_dtype` None: see `compute_dtype_on`. Left out: activations, communication, launch overheads.
    """
    positive_int(batch, "batch")
    check_tp(model, tp)
    flops = batch * decode_flops(model, context).total / tp
    size = weights_read_bytes(model, batch, weights_dtype, tp)
    size += batch * (kv_read_bytes(model, context, kv_dtype, tp) + 2 * state_bytes(model, tp=tp))
    return _floor(flops, size, device, compute_dtype or compute_dtype_on(device, model, weights_dtype))


def compute_dtype_on(device: Device, model: Model, weights_dtype: str | None = None) -> str:
    """The number format whose peak a floor uses: that of the weights where the device multiplies in it.

    fp8 weights run at the fp8 peak where there is one; 4-bit and 8-bit integer weights are taken to be unpacked to
    16 bits. Otherwise the first of bf16, fp16, fp32 the device has a figure for.
    """
    wanted = weight_scheme(model, weights_dtype).dtype
    order = (*(() if wanted not in ("fp32", "bf16", "fp16", "fp8") else (wanted,)), "bf16", "fp16", "fp32")
    return next((dtype for dtype in order if dtype in device.flops_per_s), next(iter(device.flops_per_s)))


def _floor(flops: float, size: float, device: Device, compute_dtype: str) -> Floor:
    return Floor(flops, size, flops / device.peak(compute_dtype), size / device.bandwidth_bytes_per_s)
