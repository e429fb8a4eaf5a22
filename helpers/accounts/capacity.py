"""Capacity: how many requests of one length fit in memory at once, as an upper bound with its terms."""

from dataclasses import dataclass

from helpers.accounts.devices import Device
from helpers.accounts.inventory import check_tp
from helpers.accounts.kv import kv_bytes, state_bytes
from helpers.accounts.memory import weight_bytes
from helpers.accounts.model import Model
from helpers.accounts.units import positive_int
from helpers.errors import InputError


@dataclass(frozen=True)
class Capacity:
    """The terms of `max_concurrency`, in bytes over all GPUs. An upper bound: engines also reserve memory for
    activations, communication buffers and CUDA graphs, and allocate the cache in blocks."""

    gpus: int
    visible_bytes: int
    weight_bytes: int
    bytes_per_request: int

    @property
    def free_bytes(self) -> int:
        """What the weights leave; negative where they do not fit."""
        return self.visible_bytes - self.weight_bytes

    @property
    def weights_fit(self) -> bool:
        """Whether the weights alone fit."""
        return self.free_bytes >= 0

    @property
    def max_concurrency(self) -> int:
        """floor(free / bytes per request); 0 where the weights do not fit."""
        return max(self.free_bytes, 0) // self.bytes_per_request


def max_concurrency(
    model: Model,
    context: int,
    device: Device,
    gpus: int | None = None,
    tp: int = 1,
    weights_dtype: str | None = None,
    kv_dtype: str = "bf16",
) -> Capacity:
    """At most how many requests of `context` tokens `gpus` devices hold beside one copy of the weights.

    (visible · gpus − tp · weights of a rank) / (tp · (KV + state of a request on a rank)). Within a group of `tp`
    devices heads are split (what cannot be split is held by each); the gpus / tp groups share the layers. `gpus`
    None means `tp`.

    Raises InputError where gpus is no multiple of tp, or the device's visible memory is unknown.
    """
    positive_int(context, "context")
    check_tp(model, tp)
    gpus = tp if gpus is None else positive_int(gpus, "gpus")
    if gpus % tp:
        raise InputError(f"gpus ({gpus}) must be a multiple of tp ({tp})")
    if device.visible_memory_bytes is None:
        raise InputError(f"device {device.name} has no visible-memory figure in the registry: capacity is unknown")
    return Capacity(
        gpus=gpus,
        visible_bytes=gpus * device.visible_memory_bytes,
        weight_bytes=tp * weight_bytes(model, weights_dtype, tp).total,
        bytes_per_request=tp * (kv_bytes(model, context, kv_dtype, tp) + state_bytes(model)),
    )
