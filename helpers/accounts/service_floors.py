"""What a service would measure at best: the floors of TTFT, TPOT and throughput under the conditions of one run."""

from dataclasses import dataclass

from helpers.accounts.devices import Device, device_names
from helpers.accounts.expert_load import ExpertLoad
from helpers.accounts.memory import weight_bytes
from helpers.accounts.model import Model, MoEFFN
from helpers.accounts.observation import Run
from helpers.accounts.roofline import Floor, decode_floor, prefill_floor
from helpers.accounts.units import MIB, positive_int
from helpers.errors import InputError

# 10 to 15 kernels a layer and 3 to 6 µs for each launch: the upper ends, since this is what may be excused.
_KERNELS_PER_LAYER = 15
_LAUNCH_MS = 0.006
# Weights that fit a last-level cache are not read from memory at every step.
_CACHE_BYTES = 256 * MIB


@dataclass(frozen=True)
class Subject:
    """What runs where, and what it costs: the model, the device and how many of them serve this load together.

    `price_source`: whose price it is and of which date. `expert_load`, `ranks`: expert counts of the service and over
    how many ranks its experts are spread. `tpot_target_ms`: the TPOT that was promised.
    """

    model: Model
    device: Device
    devices: int = 1
    weights_dtype: str | None = None
    kv_dtype: str = "bf16"
    usd_per_device_hour: float | None = None
    price_source: str | None = None
    expert_load: ExpertLoad | None = None
    ranks: int | None = None
    tpot_target_ms: float | None = None

    def __post_init__(self) -> None:
        positive_int(self.devices, "devices")
        if self.ranks is not None:
            positive_int(self.ranks, "ranks")
        if self.expert_load is not None:
            self._check_experts(len(self.expert_load.counts[0]))
        for name in ("usd_per_device_hour", "tpot_target_ms"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not 0 < value < float("inf")):
                raise InputError(f"{name} must be a finite number above zero, not {value!r}")

    def _check_experts(self, counted: int) -> None:
        """Refuses counts of another model; an engine may hold copies of busy experts beside those of the config."""
        known = {layer.feed_forward.experts for layer in self.model.layers if isinstance(layer.feed_forward, MoEFFN)}
        if not known:
            raise InputError(f"the expert counts are of {counted} experts, and {self.model.name} has none")
        if not any(experts <= counted <= 2 * experts for experts in known):
            told = " or ".join(str(experts) for experts in sorted(known))
            raise InputError(f"the expert counts are of {counted} experts a layer, and {self.model.name} has {told}")

    @property
    def together(self) -> Device:
        """All devices as one: their FLOP/s, bandwidths and memories added, so a floor of any way to split the model."""
        one = self.device
        return Device(
            name=one.name,
            flops_per_s={dtype: self.devices * rate for dtype, rate in one.flops_per_s.items()},
            bandwidth_bytes_per_s=self.devices * one.bandwidth_bytes_per_s,
            visible_memory_bytes=None if one.visible_memory_bytes is None else self.devices * one.visible_memory_bytes,
            source=one.source,
        )

    def prefill(self, prompt_tokens: int, cached_tokens: int = 0) -> Floor:
        """Floor of one prompt, `cached_tokens` of it in the cache already (the last token is always computed)."""
        cached = min(cached_tokens, prompt_tokens - 1)
        return prefill_floor(
            self.model,
            prompt_tokens - cached,
            self.together,
            past_tokens=cached,
            weights_dtype=self.weights_dtype,
            kv_dtype=self.kv_dtype,
        )

    def decode(self, context: int, batch: int) -> Floor:
        """Floor of one decode step of `batch` sequences of `context` tokens."""
        return decode_floor(
            self.model, context, batch, self.together, weights_dtype=self.weights_dtype, kv_dtype=self.kv_dtype
        )


@dataclass(frozen=True)
class ServiceFloors:
    """Floors of one run, milliseconds: of a token at the batch that ran, and of what nothing can beat.

    `ttft`: prefill of the tokens not cached; `ttft_uncached`: of all; `tpot`: a step at `batch` and the mean context;
    `tpot_least`: a step of one sequence that holds no more than the prompt. `launch`: host time of one step that the
    floors leave out and a small model cannot avoid, excused, not required. `tolerance`: a number must be this many
    times faster than a floor to be called impossible, and `slack` times slower than usual to be called slow: 1.1 and 1
    with a datasheet's ceilings; 2 and 2 with measured ones, since the machine may be busier now than it was then.
    `least_*` are the floors nothing can beat: of weights that fit a cache, only the arithmetic.
    """

    batch: int
    ttft: Floor
    ttft_uncached: Floor
    tpot: Floor
    tpot_alone: Floor
    prompt_tokens: int
    output_tokens: int
    launch: float
    tolerance: float
    slack: float
    least_ttft_ms: float
    least_ttft_uncached_ms: float
    least_tpot_ms: float

    @property
    def ttft_ms(self) -> float:
        return 1e3 * self.ttft.seconds

    @property
    def tpot_ms(self) -> float:
        return 1e3 * self.tpot.seconds

    @property
    def tpot_alone_ms(self) -> float:
        return 1e3 * self.tpot_alone.seconds

    @property
    def e2e_ms(self) -> float:
        """TTFT + (output tokens − 1) · TPOT."""
        return self.ttft_ms + (self.output_tokens - 1) * self.tpot_ms

    @property
    def request_seconds(self) -> float:
        """Device time of one request: its prefill and its share of the steps it takes part in."""
        return self.ttft.seconds + self.output_tokens * self.tpot.seconds / self.batch

    @property
    def output_tokens_per_s(self) -> float:
        """Throughput if the device did nothing but this load at this batch, at the floors."""
        return self.output_tokens / self.request_seconds


def service_floors(subject: Subject, run: Run) -> ServiceFloors:
    """Floors under the conditions of `run`: prompt and output length, cached tokens, and the batch that decoded."""
    prompt, output = max(round(run.prompt_tokens), 1), max(round(run.output_tokens), 1)
    cached = min(round(run.cached_tokens_mean or 0), prompt - 1)
    batch = decode_batch(run)
    context = prompt + (output + 1) // 2
    ttft, uncached = subject.prefill(prompt, cached), subject.prefill(prompt)
    least = subject.decode(prompt, 1)
    listed = subject.device.name in device_names()
    cache_resident = weight_bytes(subject.model, subject.weights_dtype).total < _CACHE_BYTES

    def impossible_below(floor: Floor) -> float:
        return 1e3 * (floor.compute_s if cache_resident else floor.seconds)

    return ServiceFloors(
        batch=batch,
        ttft=ttft,
        ttft_uncached=uncached,
        tpot=subject.decode(context, batch),
        tpot_alone=subject.decode(context, 1),
        prompt_tokens=prompt,
        output_tokens=output,
        launch=len(subject.model.layers) * _KERNELS_PER_LAYER * _LAUNCH_MS,
        tolerance=1.1 if listed else 2.0,
        slack=1.0 if listed else 2.0,
        least_ttft_ms=impossible_below(ttft),
        least_ttft_uncached_ms=impossible_below(uncached),
        least_tpot_ms=impossible_below(least),
    )


def decode_batch(run: Run) -> int:
    """Sequences that decode together: the server's running gauge, else Little's law over the decode phase."""
    if run.server is not None and run.server.running_p50 is not None:
        seen = run.server.running_p50
    elif run.e2e.p50 and run.ttft.p50 is not None:
        decoding = max(run.e2e.p50 - run.ttft.p50, 0.0)
        seen = run.concurrency * decoding / run.e2e.p50 if run.concurrency else run.rate_per_s * decoding / 1e3
    else:
        seen = run.concurrency or 1
    return max(int(seen + 1e-9), 1)
