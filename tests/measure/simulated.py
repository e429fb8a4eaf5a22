"""Timers that take no time: what a call "costs" is planted, so that clock logic is tested without a clock."""

import random
from collections.abc import Callable, Iterable


class SimulatedTimer:
    """Stands in for `helpers.measure.clock.Timer`; `cost_of(fn)` tells the seconds of one call of `fn`."""

    def __init__(self, cost_of: Callable[[Callable], float]) -> None:
        self.cost_of = cost_of
        self.now_s = 0.0
        self.order: list[Callable] = []

    def __call__(self, fn: Callable[[], object], calls: int) -> float:
        seconds = 0.0
        for _ in range(calls):
            fn()
            seconds += self.cost_of(fn)
        self.order.append(fn)
        self.now_s += seconds
        return seconds

    def now(self) -> float:
        return self.now_s


def nothing() -> None:
    """A call to time."""


def steady(seconds: float, noise: float = 0.0, seed: int = 0) -> SimulatedTimer:
    """Every call takes `seconds`, give or take a share `noise` (normal, standard deviation)."""
    rng = random.Random(seed)
    return SimulatedTimer(lambda fn: seconds * max(0.01, 1 + rng.gauss(0, noise)))


def scripted(costs: Iterable[float]) -> SimulatedTimer:
    """The calls take exactly these seconds, one after another."""
    script = iter(costs)
    return SimulatedTimer(lambda fn: next(script))
