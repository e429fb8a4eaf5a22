"""Percentiles of requests: a value that occurred, and how far a handful of samples can be trusted.

Nearest rank and not interpolation: the 95th percentile of ten requests is the tenth, never something
between two. Failures can be counted as infinitely late, so that a server that refuses fast looks no faster.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.errors import InputError


@dataclass(frozen=True)
class Percentile:
    """The p-th percentile of n samples and its order-statistic interval.

    `low` and `high` hold the true percentile with at least `coverage`; None: no sample is extreme enough to
    bound it on that side (the 95th percentile has no upper bound under 59 samples, one-sided).
    """

    p: float
    value: float
    low: float | None
    high: float | None
    coverage: float
    n: int


def nearest_rank(samples: Sequence[float], p: float) -> float:
    """The ⌈p·n⌉-th smallest sample, p in (0, 1]. Raises InputError on no samples or another p."""
    if not samples:
        raise InputError("a percentile needs at least one sample")
    if not 0 < p <= 1:
        raise InputError(f"a percentile must lie above 0 and at most at 1, not {p}")
    if any(math.isnan(sample) for sample in samples):
        raise InputError("a sample is not a number")
    # A hair less, because 0.07 · 100 is 7.000000000000001 in floating point.
    rank = max(1, math.ceil(p * len(samples) - 1e-9))
    return sorted(samples)[rank - 1]


def percentile(samples: Sequence[float], p: float, confidence: float = 0.95) -> Percentile:
    """The nearest-rank percentile with its distribution-free interval.

    The number of samples below the true percentile is Binomial(n, p), so [x(l), x(u)] misses it with
    probability P(B < l) + P(B ≥ u); each side is allowed (1 − confidence)/2.
    Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd ed., section 7.1.
    """
    value, n, ordered = nearest_rank(samples, p), len(samples), sorted(samples)
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, not {confidence}")
    tail = (1 - confidence) / 2
    below = _cumulative(n, p)
    # below[k] = P(B <= k). Largest l with P(B < l) <= tail; smallest u with P(B >= u) <= tail.
    lower = max((k for k in range(1, n + 1) if below[k - 1] <= tail), default=None)
    upper = min((k for k in range(1, n + 1) if 1 - below[k - 1] <= tail), default=None)
    missed = (below[lower - 1] if lower else 0.0) + (1 - below[upper - 1] if upper else 0.0)
    return Percentile(
        p,
        value,
        None if lower is None else ordered[lower - 1],
        None if upper is None else ordered[upper - 1],
        1 - missed,
        n,
    )


def _cumulative(n: int, p: float) -> list[float]:
    """P(Binomial(n, p) <= k) for k = 0 … n, by logarithms so that thousands of samples do not underflow."""
    if p == 1:
        return [0.0] * n + [1.0]
    sums, total = [], 0.0
    for k in range(n + 1):
        choose = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        total += math.exp(choose + k * math.log(p) + (n - k) * math.log1p(-p))
        sums.append(min(total, 1.0))
    return sums
