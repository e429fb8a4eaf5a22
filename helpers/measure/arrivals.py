"""When requests are sent: a fixed number at once (closed loop), at random times (open loop), or as a trace says.

A closed loop waits for a slow server and so hides its queue; an open loop does not.
"""

import random
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from helpers.accounts.trace import trace_rows
from helpers.errors import InputError


@dataclass(frozen=True)
class ClosedLoop:
    """`concurrency` requests under way at all times: a new one starts when one ends."""

    concurrency: int

    def __post_init__(self) -> None:
        if not isinstance(self.concurrency, int) or self.concurrency < 1:
            raise InputError(f"concurrency must be a whole number of at least 1, not {self.concurrency}")


@dataclass(frozen=True)
class OpenLoop:
    """Poisson arrivals: independent gaps, exponentially distributed with mean 1 / `rate_per_s`."""

    rate_per_s: float
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.rate_per_s < 1e6:
            raise InputError(f"rate must lie above 0 and under a million requests per second, not {self.rate_per_s}")

    def times_s(self, count: int) -> list[float]:
        """The first `count` arrival times, the first one after a gap like any other."""
        rng, now, times = random.Random(self.seed), 0.0, []
        for _ in range(count):
            now += rng.expovariate(self.rate_per_s)
            times.append(now)
        return times


@dataclass(frozen=True)
class Arrival:
    """One request of a trace: seconds after the first, and its lengths where the trace gives them."""

    at_s: float
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True)
class Trace:
    """Arrivals as recorded."""

    arrivals: tuple[Arrival, ...]
    name: str

    def __post_init__(self) -> None:
        if not self.arrivals:
            raise InputError(f"trace {self.name} holds no arrivals")


Arrivals = ClosedLoop | OpenLoop | Trace


def read_trace(path: str | Path, limit: int | None = None) -> Trace:
    """The arrivals of a trace file, at most `limit`, as `helpers.accounts.trace_rows` reads it; lengths may be missing.

    Times count from the first row. Raises InputError that names the file and the line.
    """
    arrivals: list[Arrival] = []
    for row in islice(trace_rows(path, lengths_required=False), limit):
        if not arrivals:
            first_s = row.arrival_s
        at_s = row.arrival_s - first_s
        if arrivals and at_s < arrivals[-1].at_s:
            raise InputError(f"{path}, line {row.line}: its time lies before that of the row above")
        arrivals.append(Arrival(at_s, row.prompt_tokens, row.output_tokens))
    return Trace(tuple(arrivals), Path(path).name)
