"""Sweeps: a phase timed over lengths or batches, each point beside the floor the accounts predict for it.

The callables come from the engine; this room only times them. The floors come from `helpers.accounts` with
this machine's own measured ceilings, so a ratio of 1 means "as fast as the arithmetic allows here".
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from helpers import accounts
from helpers.errors import InputError
from helpers.measure.ceilings import Ceilings, as_device
from helpers.measure.clock import Timer, Timing, time_call
from helpers.measure.statistics import TOO_NOISY, Interval, verdict

PHASES = ("prefill", "decode")
BINDS = ("compute", "bandwidth")

FEWEST_CALLS = 4
"""A point that cannot be called this often (one warm-up, three samples) in the time left is dropped."""


@dataclass(frozen=True)
class Point:
    """One point of a sweep, predicted and measured.

    `tokens`: prompt tokens of each sequence (prefill) or the context of each (decode); `batch`: sequences.
    `flops`, `bytes`: work of one call by the accounts; `predicted_s`: its floor, and `binds` the account
    that sets it. `peak_flops_per_s`, `peak_bytes_per_s`: the measured ceilings behind it.
    """

    phase: str
    tokens: int
    batch: int
    flops: float
    bytes: float
    predicted_s: float
    binds: str
    peak_flops_per_s: float
    peak_bytes_per_s: float
    timing: Timing

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise InputError(f"phase must be prefill or decode, not {self.phase!r}")
        if self.binds not in BINDS:
            raise InputError(f"binds must be compute or bandwidth, not {self.binds!r}")
        for name in ("tokens", "batch", "predicted_s", "peak_flops_per_s", "peak_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be above zero, not {getattr(self, name)!r}")
        if min(self.flops, self.bytes) < 0 or self.timing.min_s <= 0:
            raise InputError("flops and bytes must not be negative, and every sample must be above zero seconds")

    @property
    def measured_s(self) -> float:
        return self.timing.median_s

    @property
    def ratio(self) -> float:
        """measured ÷ predicted seconds: 1 is the floor, 2 is twice as slow."""
        return self.measured_s / self.predicted_s

    @property
    def achieved_flops_per_s(self) -> float:
        return self.flops / self.measured_s

    @property
    def achieved_bytes_per_s(self) -> float:
        return self.bytes / self.measured_s

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: achieved ÷ ceiling FLOP/s. Not clipped: above 1 the ceiling was measured too low."""
        return self.achieved_flops_per_s / self.peak_flops_per_s

    @property
    def mbu(self) -> float:
        """Model bandwidth utilisation: achieved ÷ ceiling bytes/s. Not clipped either."""
        return self.achieved_bytes_per_s / self.peak_bytes_per_s

    @property
    def intensity_flops_per_byte(self) -> float:
        return self.flops / self.bytes if self.bytes else math.inf

    @property
    def noisy(self) -> bool:
        return self.timing.noisy

    def says(self, quantity: str, *, at_least: float | None = None, at_most: float | None = None) -> str:
        """Is "mfu", "mbu" or "ratio" at least (at most) so much: "yes", "no" or "too noisy to say".

        The spread of the point's own samples decides; the ceilings are taken as they were measured.
        """
        if quantity not in ("mfu", "mbu", "ratio"):
            raise InputError(f"a point says something about mfu, mbu or ratio, not {quantity!r}")
        seconds = self.timing.interval()
        now = getattr(self, quantity)
        # A utilisation falls where the seconds rise.
        scale = (lambda s: now * s / self.measured_s) if quantity == "ratio" else (lambda s: now * self.measured_s / s)
        low, high = sorted((scale(seconds.low), scale(seconds.high)))
        answer = verdict(Interval(low, now, high, seconds.coverage, seconds.n), at_least=at_least, at_most=at_most)
        return TOO_NOISY if self.timing.interrupted else answer


@dataclass(frozen=True)
class Dropped:
    """A point that was asked for and not measured, and why."""

    tokens: int
    batch: int
    reason: str


@dataclass(frozen=True)
class Sweep:
    """The points of one phase in the order measured, and those that were dropped."""

    phase: str
    points: tuple[Point, ...]
    dropped: tuple[Dropped, ...] = ()

    def __post_init__(self) -> None:
        if self.phase not in PHASES:
            raise InputError(f"phase must be prefill or decode, not {self.phase!r}")
        if any(point.phase != self.phase for point in self.points):
            raise InputError(f"a sweep of {self.phase} holds a point of another phase")

    def at(self, tokens: int, batch: int = 1) -> Point:
        """The point measured at `tokens` and `batch`. Raises InputError, with the reason, where there is none."""
        for point in self.points:
            if (point.tokens, point.batch) == (tokens, batch):
                return point
        for gone in self.dropped:
            if (gone.tokens, gone.batch) == (tokens, batch):
                raise InputError(f"{self.phase} at {tokens} tokens, batch {batch} was dropped: {gone.reason}")
        raise InputError(f"{self.phase} at {tokens} tokens, batch {batch} was not asked for")

    def to_text(self) -> str:
        """The sweep as a table for people; every dropped point has its line."""
        first = "prompt" if self.phase == "prefill" else "context"
        lines = [
            f"{first:>8} batch  predicted   measured      IQR   n  ratio  GFLOP/s     GB/s    MFU    MBU  binds",
        ]
        lines += [
            f"{p.tokens:8} {p.batch:5} {p.predicted_s * 1e3:8.2f} ms {p.measured_s * 1e3:7.2f} ms "
            f"{p.timing.iqr_s * 1e3:5.2f} ms {p.timing.n:3} {p.ratio:6.2f} {p.achieved_flops_per_s / 1e9:8.1f} "
            f"{p.achieved_bytes_per_s / 1e9:8.2f} {p.mfu:6.2f} {p.mbu:6.2f}  {p.binds}{' NOISY' if p.noisy else ''}"
            for p in self.points
        ]
        lines += [f"{p.tokens:8} {p.batch:5}  NOISY: {p.timing.noisy_because}" for p in self.points if p.noisy]
        lines += [f"{d.tokens:8} {d.batch:5}  dropped: {d.reason}" for d in self.dropped]
        return "\n".join(lines)


def prefill_sweep(
    run: Callable[[int], Callable[[], object]],
    prompt_lengths: Sequence[int],
    *,
    model: "accounts.Model",
    ceilings: Ceilings,
    budget_s: float = 60.0,
    max_point_s: float = 10.0,
    timer: Timer | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Sweep:
    """Time prefill of one sequence over prompt lengths.

    `run(prompt_tokens)` prepares and returns the function that is timed: one whole prefill of an empty
    cache, logits of the last token. Points that do not fit into `budget_s` seconds, or into memory,
    are listed in `Sweep.dropped`. Raises InputError on lengths that are not positive whole numbers.
    """
    device = as_device(ceilings)
    dtype = ceilings.dtype
    asked = [(length, 1) for length in _positive(prompt_lengths, "prompt_lengths")]

    def floor(tokens: int, batch: int):
        return accounts.prefill_floor(model, tokens, device, weights_dtype=dtype, kv_dtype=dtype, compute_dtype=dtype)

    return _sweep(
        "prefill", asked, lambda tokens, batch: run(tokens), floor, ceilings, budget_s, max_point_s, timer, now
    )


def decode_sweep(
    run: Callable[[int, int], Callable[[], object]],
    contexts: Sequence[int],
    batches: Sequence[int] = (1,),
    *,
    model: "accounts.Model",
    ceilings: Ceilings,
    budget_s: float = 60.0,
    max_point_s: float = 10.0,
    timer: Timer | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Sweep:
    """Time one decode step over every context and batch size.

    `run(context, batch)` prepares and returns the function that is timed: one step of `batch` sequences,
    the new token attending to `context` tokens, itself among them. The function must leave the cache as
    it found it, so that every call does the same work. Dropping and errors as in `prefill_sweep`.
    """
    device = as_device(ceilings)
    dtype = ceilings.dtype
    asked = [(c, b) for b in _positive(batches, "batches") for c in _positive(contexts, "contexts")]

    def floor(tokens: int, batch: int):
        return accounts.decode_floor(
            model, tokens, batch, device, weights_dtype=dtype, kv_dtype=dtype, compute_dtype=dtype
        )

    return _sweep("decode", asked, run, floor, ceilings, budget_s, max_point_s, timer, now)


def _sweep(phase, asked, run, floor_of, ceilings, budget_s, max_point_s, timer, now) -> Sweep:
    started = now()
    points: list[Point] = []
    dropped: list[Dropped] = []
    for index, (tokens, batch) in enumerate(asked):
        floor = floor_of(tokens, batch)
        left = budget_s - (now() - started)
        # So far the machine was this much slower than the floor: the next point will be no better.
        call_s = floor.seconds * max((point.ratio for point in points), default=1.0)
        needed = FEWEST_CALLS * call_s
        if needed > left:
            reason = f"{FEWEST_CALLS} calls need about {needed:.1f} s, {max(left, 0):.1f} s of {budget_s:g} s are left"
            dropped.append(Dropped(tokens, batch, reason))
            continue
        share = max(left / (len(asked) - index), needed)
        try:
            timing = time_call(
                run(tokens, batch),
                device=ceilings.device,
                dtype=ceilings.dtype,
                warmup=1 if call_s > 0.2 else 2,
                max_seconds=min(share, max_point_s),
                timer=timer,
            )
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            dropped.append(Dropped(tokens, batch, "out of memory"))
            continue
        peaks = (ceilings.flops_per_s, ceilings.bytes_per_s)
        points.append(Point(phase, tokens, batch, floor.flops, floor.bytes, floor.seconds, floor.binds, *peaks, timing))
    return Sweep(phase, tuple(points), tuple(dropped))


def _out_of_memory(error: BaseException) -> bool:
    # torch: OutOfMemoryError on CUDA, a bare RuntimeError on the CPU.
    return isinstance(error, MemoryError) or any(
        sign in str(error).lower() for sign in ("out of memory", "can't allocate memory", "not enough memory")
    )


def _positive(values: Iterable[int], name: str) -> list[int]:
    values = list(values)
    if not values:
        raise InputError(f"{name} is empty")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise InputError(f"{name} must hold whole numbers above zero, not {value!r}")
    return values
