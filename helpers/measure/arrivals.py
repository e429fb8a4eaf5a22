"""When requests are sent: a fixed number at once (closed loop), at random times (open loop), or as a trace says.

A closed loop waits for a slow server and so hides its queue; an open loop does not.
"""

import csv
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

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

_COLUMNS = {
    "at_s": ("at_s",),
    "timestamp": ("timestamp", "TIMESTAMP"),
    "prompt_tokens": ("prompt_tokens", "input_length", "ContextTokens"),
    "output_tokens": ("output_tokens", "output_length", "GeneratedTokens"),
}


def read_trace(path: str | Path, limit: int | None = None) -> Trace:
    """A trace file: CSV with a header, or JSON lines.

    Columns ``at_s`` (seconds) or ``timestamp`` (milliseconds, or a date with time), ``prompt_tokens``,
    ``output_tokens``; also the names of the Azure LLM inference traces and of Mooncake. Times are taken
    from the first row on. Raises InputError that names the file and the line.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"trace {path} cannot be read ({error})") from error
    arrivals: list[Arrival] = []
    for number, row in _rows(text, path):
        if limit is not None and len(arrivals) >= limit:
            break
        try:
            arrivals.append(_arrival(row))
        except (InputError, ValueError, TypeError) as error:
            raise InputError(f"trace {path}, line {number}: {error}") from error
        if len(arrivals) > 1 and arrivals[-1].at_s < arrivals[-2].at_s:
            raise InputError(f"trace {path}, line {number}: its time lies before that of the line above")
    if not arrivals:
        raise InputError(f"trace {path} holds no arrivals")
    first_s = arrivals[0].at_s
    return Trace(tuple(Arrival(a.at_s - first_s, a.prompt_tokens, a.output_tokens) for a in arrivals), path.name)


def _rows(text: str, path: Path) -> Iterator[tuple[int, dict]]:
    """Line number and fields of each row, as far as they are asked for."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines or not lines[0][1].lstrip().startswith("{"):
        rows = csv.DictReader(line for _, line in lines)
        try:
            # Not strict: a quoted field may hold a line break, and then there are fewer rows than lines.
            yield from zip((number for number, _ in lines[1:]), rows, strict=False)
        except csv.Error as error:
            raise InputError(f"trace {path} is no CSV ({error})") from error
        return
    for number, line in lines:
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"trace {path}, line {number}: no JSON ({error})") from error
        if not isinstance(row, dict):
            raise InputError(f"trace {path}, line {number}: no JSON object")
        yield number, row


def _arrival(row: dict) -> Arrival:
    def first(kind: str) -> object:
        return next((row[name] for name in _COLUMNS[kind] if row.get(name) not in (None, "")), None)

    seconds, stamp = first("at_s"), first("timestamp")
    if seconds is not None:
        at_s = float(seconds)
    elif stamp is None:
        raise InputError("no column at_s or timestamp")
    else:
        at_s = _seconds(stamp)
    if not -1e12 < at_s < 1e12:
        raise InputError(f"{at_s} is no time")
    return Arrival(at_s, _length(first("prompt_tokens")), _length(first("output_tokens")))


def _seconds(stamp: object) -> float:
    try:
        return float(stamp) / 1e3
    except ValueError:
        # Azure writes seven digits of a second, one more than Python reads.
        day, _, fraction = str(stamp).partition(".")
        return datetime.fromisoformat(f"{day}+00:00").timestamp() + float(f"0.{fraction or 0}")


def _length(value: object) -> int | None:
    if value is None:
        return None
    tokens = int(value)
    if tokens < 1:
        raise InputError(f"a length must be at least 1 token, not {tokens}")
    return tokens
