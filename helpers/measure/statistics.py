"""Medians, quartiles and honest answers to "is it so?" from a handful of noisy samples."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.errors import InputError

YES, NO, TOO_NOISY = "yes", "no", "too noisy to say"


@dataclass(frozen=True)
class Interval:
    """A median and the range that holds the true median with probability `coverage` (samples taken as independent)."""

    low: float
    median: float
    high: float
    coverage: float
    n: int


def quartiles(samples: Sequence[float]) -> tuple[float, float, float]:
    """First quartile, median and third quartile, by linear interpolation as `numpy.quantile` does it.

    Raises InputError where there are no samples or one is not a finite number.
    """
    if not samples:
        raise InputError("quartiles need at least one sample")
    if not all(math.isfinite(sample) for sample in samples):
        raise InputError("a sample is not a finite number")
    if len(samples) == 1:
        return (samples[0],) * 3
    q1, q2, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q1, q2, q3


def median_interval(samples: Sequence[float], confidence: float = 0.95) -> Interval:
    """The narrowest symmetric order-statistic interval of the median that reaches `confidence`.

    The true median lies outside [x(k), x(n+1-k)] with probability 2·P(Binomial(n, ½) < k), whatever
    the distribution. Under six samples even the whole range stays below 95 %: the interval is then the
    whole range and `coverage` says what it is worth.
    Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.
    """
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, not {confidence}")
    _, median, _ = quartiles(samples)
    ordered, n = sorted(samples), len(samples)
    best = (ordered[0], ordered[-1], 1 - 2 * 0.5**n)
    outside = 0.0
    for k in range(1, n // 2 + 1):
        outside += math.comb(n, k - 1) * 0.5**n
        if 1 - 2 * outside < confidence:
            break
        best = (ordered[k - 1], ordered[n - k], 1 - 2 * outside)
    low, high, coverage = best
    return Interval(low, median, high, max(coverage, 0.0), n)


def verdict(
    interval: Interval, *, at_least: float | None = None, at_most: float | None = None, confidence: float = 0.95
) -> str:
    """Does the interval settle the claim ``at_least <= value <= at_most``: "yes", "no" or "too noisy to say".

    "yes": the whole interval satisfies the claim. "no": none of it does. Otherwise, and where the
    samples were too few for `confidence`, "too noisy to say", which is a legal answer.
    """
    if at_least is None and at_most is None:
        raise InputError("a claim needs at_least or at_most")
    low = -math.inf if at_least is None else at_least
    high = math.inf if at_most is None else at_most
    if math.isnan(low) or math.isnan(high) or low > high:
        raise InputError(f"no value is at least {at_least} and at most {at_most}")
    # A hair of slack: 1 − 2·½ⁿ is computed in floating point.
    if interval.coverage < confidence - 1e-9:
        return TOO_NOISY
    if low <= interval.low and interval.high <= high:
        return YES
    if interval.high < low or interval.low > high:
        return NO
    return TOO_NOISY
