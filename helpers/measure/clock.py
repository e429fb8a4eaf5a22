"""How long does a call take on this machine, how sure is that, and which of two calls is faster.

The clock waits for the device before both reads: CUDA events on a GPU, a monotonic clock with
`torch.mps.synchronize` on Apple silicon, the monotonic clock alone on a CPU.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from helpers.errors import InputError
from helpers.measure.machine import threads_in_use, versions
from helpers.measure.statistics import TOO_NOISY, Interval, median_interval, quartiles, verdict

try:
    import resource
except ImportError:  # Windows has no such count.
    resource = None

Timer = Callable[[Callable[[], object], int], float]
"""A timer runs a function so many times and returns the seconds that took, the device's work included."""

SPREAD_LIMIT = 0.10
"""A timing whose IQR is more than this share of its median is called noisy."""

INTERRUPTION_LIMIT = 50.0
"""More involuntary context switches than this, per second and thread, mean that other work held the cores.

A busy neighbour on one of two cores makes some 125 of them, a quiet machine 10 to 25. The samples may then
agree to a per cent and still be ten times too long: threads that wait for one another lose a whole time
slice (4 to 16 ms) at each join, every time alike. So a small spread alone proves nothing.
"""

COUNTS_INTERRUPTIONS = resource is not None and sys.platform == "linux"
"""Other systems count other things under this name, so the limit, found on Linux, says nothing there."""

FEWEST_SAMPLES = 7
"""Fewer samples than this are called noisy: a 97.5 % interval of the median does not exist below seven."""


@dataclass(frozen=True)
class Timing:
    """The seconds of one call, measured `n` times.

    `samples`: seconds per call, in the order taken; a sample is the mean of `calls_per_sample` calls.
    `interruptions_per_s`: involuntary context switches of this process while sampling; None where not counted.
    `noisy`: `noisy_because` is not empty.
    """

    samples: tuple[float, ...]
    device: str = "cpu"
    dtype: str | None = None
    threads: int | None = None
    calls_per_sample: int = 1
    versions: Mapping[str, str] = field(default_factory=dict)
    interruptions_per_s: float | None = None

    def __post_init__(self) -> None:
        if not self.samples or not all(math.isfinite(s) and s >= 0 for s in self.samples):
            raise InputError("a timing needs at least one sample, each a finite number of seconds")
        if (self.threads is not None and self.threads < 1) or self.calls_per_sample < 1:
            raise InputError("a timing needs threads and calls_per_sample of at least 1")
        if self.interruptions_per_s is not None and self.interruptions_per_s < 0:
            raise InputError(f"interruptions_per_s must not be negative, not {self.interruptions_per_s}")

    @cached_property
    def _quartiles(self) -> tuple[float, float, float]:
        return quartiles(self.samples)

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def q1_s(self) -> float:
        return self._quartiles[0]

    @property
    def median_s(self) -> float:
        return self._quartiles[1]

    @property
    def q3_s(self) -> float:
        return self._quartiles[2]

    @property
    def iqr_s(self) -> float:
        return self.q3_s - self.q1_s

    @property
    def min_s(self) -> float:
        return min(self.samples)

    @property
    def spread(self) -> float:
        """IQR ÷ median, without unit; infinite where the median is below the clock's resolution."""
        return self.iqr_s / self.median_s if self.median_s > 0 else math.inf

    @property
    def interrupted(self) -> bool:
        """Did other work take the cores away while the samples were taken (`INTERRUPTION_LIMIT`)?"""
        return (self.interruptions_per_s or 0) > INTERRUPTION_LIMIT * (self.threads or 1)

    @property
    def noisy_because(self) -> str:
        """Why the median is not to be trusted, in words; empty where nothing speaks against it."""
        reasons = []
        if self.n < FEWEST_SAMPLES:
            reasons.append(f"only {self.n} sample{'s' if self.n > 1 else ''}")
        if self.spread > SPREAD_LIMIT:
            reasons.append(f"IQR is {self.spread:.0%} of the median")
        if self.interrupted:
            reasons.append(f"other work took the cores {self.interruptions_per_s:.0f} times a second")
        return ", ".join(reasons)

    @property
    def noisy(self) -> bool:
        return bool(self.noisy_because)

    def interval(self, confidence: float = 0.95) -> Interval:
        """The range of seconds that holds the true median with probability `confidence`."""
        return median_interval(self.samples, confidence)

    def says(self, *, at_least: float | None = None, at_most: float | None = None, confidence: float = 0.95) -> str:
        """Does a call take at least (at most) so many seconds: "yes", "no" or "too noisy to say"."""
        answer = verdict(self.interval(confidence), at_least=at_least, at_most=at_most, confidence=confidence)
        return TOO_NOISY if self.interrupted else answer

    def to_text(self) -> str:
        """One line for people: median, IQR, n, and why it is noisy where it is."""
        scale, unit = next(((s, u) for s, u in ((1, "s"), (1e-3, "ms")) if self.median_s >= s), (1e-6, "µs"))
        noisy = f"  NOISY: {self.noisy_because}" if self.noisy else ""
        return f"{self.median_s / scale:.3f} {unit} (IQR {self.iqr_s / scale:.3f} {unit}, n = {self.n}){noisy}"


@dataclass(frozen=True)
class Paired:
    """Two calls timed in turn, so that a machine that drifts slows both alike.

    `ratios`: seconds of a ÷ seconds of b, one for each pair. Above 1: a is the slower one.
    """

    a: Timing
    b: Timing

    def __post_init__(self) -> None:
        if self.a.n != self.b.n:
            raise InputError(f"paired timings need as many samples of a as of b, not {self.a.n} and {self.b.n}")
        if min(self.b.samples) <= 0:
            raise InputError("a ratio needs every sample of b above zero seconds")

    @cached_property
    def ratios(self) -> tuple[float, ...]:
        return tuple(a / b for a, b in zip(self.a.samples, self.b.samples, strict=True))

    @property
    def ratio(self) -> float:
        """Median over the pairs of seconds(a) ÷ seconds(b)."""
        return quartiles(self.ratios)[1]

    @property
    def n(self) -> int:
        return len(self.ratios)

    def interval(self, confidence: float = 0.95) -> Interval:
        """The range that holds the true median ratio with probability `confidence`."""
        return median_interval(self.ratios, confidence)

    def says(self, *, at_least: float | None = None, at_most: float | None = None, confidence: float = 0.95) -> str:
        """Is a at least (at most) so many times as slow as b: "yes", "no" or "too noisy to say"."""
        return verdict(self.interval(confidence), at_least=at_least, at_most=at_most, confidence=confidence)

    def to_text(self) -> str:
        """One line for people: the median ratio, its interval and the number of pairs."""
        found = self.interval()
        if found.n == 1:
            return f"{found.median:.2f} times as long (one pair alone: no interval)"
        interval = f"{found.coverage:.0%}: {found.low:.2f} to {found.high:.2f}"
        return f"{found.median:.2f} times as long ({interval}, n = {found.n})"


def says(
    a: Timing, b: Timing, *, at_least: float | None = None, at_most: float | None = None, confidence: float = 0.95
) -> str:
    """Did a take at least (at most) so many times as long as b: "yes", "no" or "too noisy to say".

    The interval of the ratio is [low(a) ÷ high(b), high(a) ÷ low(b)], each median held with
    1 − (1 − confidence)/2, so that both hold at once with `confidence` (Bonferroni). Timings taken
    minutes apart carry the machine's drift; where that matters, use `paired`. Where other work
    interrupted either of them, the medians are biased by an unknown factor: too noisy to say.
    """
    each = 1 - (1 - confidence) / 2
    of_a, of_b = a.interval(each), b.interval(each)
    if of_b.low <= 0:
        raise InputError("a ratio needs every sample of b above zero seconds")
    coverage = max(of_a.coverage + of_b.coverage - 1, 0.0)
    ratio = Interval(of_a.low / of_b.high, of_a.median / of_b.median, of_a.high / of_b.low, coverage, min(a.n, b.n))
    answer = verdict(ratio, at_least=at_least, at_most=at_most, confidence=confidence)
    return TOO_NOISY if a.interrupted or b.interrupted else answer


def timer_for(device: str) -> Timer:
    """The timer of a device: "cpu", "cuda", "cuda:1", "mps". Raises InputError on any other."""
    kind = str(device).partition(":")[0]
    if kind == "cpu":
        return _time_on_host(lambda: None)
    if kind == "mps":
        import torch

        return _time_on_host(torch.mps.synchronize)
    if kind == "cuda":
        return _time_with_cuda_events(str(device))
    raise InputError(f"device {str(device)!r} has no clock here; known are cpu, cuda and mps")


def _time_on_host(synchronize: Callable[[], None]) -> Timer:
    def seconds(fn: Callable[[], object], calls: int) -> float:
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            fn()
        synchronize()
        return time.perf_counter() - start

    return seconds


def _time_with_cuda_events(device: str) -> Timer:
    import torch

    def seconds(fn: Callable[[], object], calls: int) -> float:
        with torch.cuda.device(device):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # The stream is drained first: the start event then fires at once, and the time until the end
            # event holds the launches too, which is what a caller waits for.
            torch.cuda.synchronize()
            start.record()
            for _ in range(calls):
                fn()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1e3

    return seconds


def time_call(
    fn: Callable[[], object],
    *,
    device: str = "cpu",
    dtype: str | None = None,
    warmup: int = 2,
    min_repeats: int = FEWEST_SAMPLES,
    max_repeats: int = 50,
    max_seconds: float = 5.0,
    target_spread: float = 0.03,
    min_sample_s: float = 2e-4,
    timer: Timer | None = None,
) -> Timing:
    """Time `fn()` until the spread is small or a limit is reached.

    Runs `warmup` calls unrecorded (the last of them sizes a sample: so many calls that it lasts
    `min_sample_s`, well above the clock's resolution), then takes samples until IQR ÷ median
    ≤ `target_spread` (after `min_repeats`), or `max_repeats` samples, or `max_seconds` in all,
    warm-up included. At least one sample is always taken; too few or too wide ones come back `noisy`.

    `timer` replaces the clock of `device` (tests plant one). Raises InputError on limits that make no sense.
    """
    if warmup < 0 or not 1 <= min_repeats <= max_repeats:
        raise InputError(
            f"time_call needs warmup >= 0 and 1 <= min_repeats <= max_repeats, "
            f"not warmup {warmup}, min_repeats {min_repeats}, max_repeats {max_repeats}"
        )
    if not max_seconds > 0:
        raise InputError(f"max_seconds must be above 0, not {max_seconds}")
    count = _interruptions if COUNTS_INTERRUPTIONS and timer is None and device == "cpu" else None
    timer = timer or timer_for(device)
    last, spent = _warm_up(fn, timer, warmup)
    calls = _calls_per_sample(last, min_sample_s)
    samples: list[float] = []
    before, warmed = count() if count else 0, spent
    while len(samples) < max_repeats:
        sample = timer(fn, calls)
        spent += sample
        samples.append(sample / calls)
        if spent >= max_seconds or (len(samples) >= min_repeats and _spread(samples) <= target_spread):
            break
    interruptions = (count() - before) / (spent - warmed) if count and spent > warmed else None
    return Timing(tuple(samples), str(device), dtype, threads_in_use(), calls, versions(), interruptions)


def paired(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    device: str = "cpu",
    dtype: str | None = None,
    warmup: int = 2,
    min_pairs: int = 10,
    max_pairs: int = 30,
    max_seconds: float = 10.0,
    target_spread: float = 0.03,
    min_sample_s: float = 2e-4,
    timer: Timer | None = None,
) -> Paired:
    """Time `a()` and `b()` in turn, the order alternated: a b, b a, a b, …

    What slows the machine for a while slows both halves of a pair, and neither gains from going
    second. Stops as `time_call` does, on the spread of the ratios, always after an even number of
    pairs unless `max_seconds` cut it short.
    """
    if warmup < 0 or not 1 <= min_pairs <= max_pairs:
        raise InputError(
            f"paired needs warmup >= 0 and 1 <= min_pairs <= max_pairs, "
            f"not warmup {warmup}, min_pairs {min_pairs}, max_pairs {max_pairs}"
        )
    if not max_seconds > 0:
        raise InputError(f"max_seconds must be above 0, not {max_seconds}")
    timer = timer or timer_for(device)
    fns = (a, b)
    warm = [_warm_up(fn, timer, warmup) for fn in fns]
    spent = sum(seconds for _, seconds in warm)
    calls = [_calls_per_sample(last, min_sample_s) for last, _ in warm]
    samples: tuple[list[float], list[float]] = ([], [])
    while (pairs := len(samples[0])) < max_pairs:
        for which in (0, 1) if pairs % 2 == 0 else (1, 0):
            sample = timer(fns[which], calls[which])
            spent += sample
            samples[which].append(sample / calls[which])
        pairs += 1
        if spent >= max_seconds:
            break
        ratios = [x / y if y > 0 else math.inf for x, y in zip(*samples, strict=True)]
        if pairs >= min_pairs and pairs % 2 == 0 and _spread(ratios) <= target_spread:
            break
    about = (str(device), dtype, threads_in_use())
    return Paired(*(Timing(tuple(s), *about, c, versions()) for s, c in zip(samples, calls, strict=True)))


def _warm_up(fn: Callable[[], object], timer: Timer, warmup: int) -> tuple[float, float]:
    """Run `fn` `warmup` times; seconds of the last run (infinite where none ran) and of all."""
    runs = [timer(fn, 1) for _ in range(warmup)]
    return (runs[-1] if runs else math.inf), sum(runs)


def _calls_per_sample(call_s: float, min_sample_s: float) -> int:
    if call_s >= min_sample_s:
        return 1
    # One nanosecond stands for "below the clock's resolution"; it bounds the count as well.
    return math.ceil(min_sample_s / max(call_s, 1e-9))


def _interruptions() -> int:
    """Involuntary context switches of this process so far, all threads together."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _spread(samples: list[float]) -> float:
    if not all(math.isfinite(s) for s in samples):
        return math.inf
    q1, median, q3 = quartiles(samples)
    return (q3 - q1) / median if median > 0 else math.inf
