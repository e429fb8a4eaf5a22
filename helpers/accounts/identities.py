"""What must hold between the numbers of a run, whatever the service: a broken line means that a number is not right.

E2E = TTFT + (O − 1) · TPOT; Little's law C = X · E2E; the server's part of a time is no more than the whole; nothing is
faster than its floor.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import pairwise

from helpers.accounts.observation import Observation, Run, ServerWindow, Spread
from helpers.accounts.service_floors import ServiceFloors, Subject, service_floors
from helpers.accounts.words import ms
from helpers.errors import InputError

# Means over requests of slightly different lengths, and windows that begin a little apart.
_SLACK = 1.15
_LENGTHS_SLACK = 1.5
_TOKENS_SLACK = 1.5
_CLOCK_MS = 2.0


@dataclass(frozen=True)
class Broken:
    """A line that does not hold, in words; `floor`: whether it is a floor that was beaten, and by how many times.

    `number` and `bound` are its two sides as text.
    """

    words: str
    run: Run
    kind: str
    number: str
    bound: str
    times: float


def broken_lines(observation: Observation, subject: Subject | None = None) -> tuple[Broken, ...]:
    """Every identity and floor that the runs break, in their order.

    Raises InputError for a number that is no number (NaN, infinite, negative).
    """
    lines: list[Broken] = []
    for run in observation.runs:
        check_numbers(run)
        lines += _identities(run)
        if subject is not None:
            lines += _floors(run, service_floors(subject, run), "cfg_spec_on" in observation.traits)
    return tuple(lines)


def check_numbers(run: Run) -> None:
    """InputError naming the field of a run that is negative, infinite or no number."""
    for name, value in _numbers(run):
        # A kernel's stamp may lie a hair after the client's own.
        least = -1 if name.startswith("client_lag.") else 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < math.inf:
            raise InputError(f"{run.role} run: {name} must be a finite number, zero or more, not {value!r}")


def _numbers(part: object, before: str = "") -> Iterator[tuple[str, object]]:
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Spread | ServerWindow):
            yield from _numbers(value, f"{before}{field.name}.")
        elif value is not None and not isinstance(value, str | dict | bool):
            yield before + field.name, value
        elif isinstance(value, dict):
            yield from ((f"{before}{field.name}.{key}", count) for key, count in value.items())


def _identities(run: Run) -> Iterator[Broken]:
    yield from _order(run)
    e2e, ttft, tpot = run.e2e.mean, run.ttft.mean, run.tpot.mean
    # Means of different requests need not fit: some may have no TPOT, where all output came in one read.
    same_requests = run.e2e.n == run.ttft.n == run.tpot.n
    if None not in (e2e, ttft, tpot) and run.output_tokens > 1 and same_requests:
        parts = ttft + (run.output_tokens - 1) * tpot
        # Answers of different lengths make the mean of products another than the product of means.
        if not 1 / _LENGTHS_SLACK <= (e2e + _CLOCK_MS) / (parts + _CLOCK_MS) <= _LENGTHS_SLACK or e2e * _SLACK < ttft:
            yield _line(run, "E2E", ms(e2e), "TTFT + (O − 1) TPOT", ms(parts), parts / e2e if e2e else math.inf)
    # The edges of the measured time weigh too much in a run of few requests.
    many = run.requests >= 5 * (run.concurrency or 1) and run.requests >= 10
    if many and None not in (e2e, run.requests_per_s, run.concurrency):
        in_flight = run.requests_per_s * e2e / 1e3
        if in_flight > run.concurrency * _SLACK:
            told = f"{run.concurrency}"
            yield _line(run, "X · E2E", f"{in_flight:.1f}", "the concurrency", told, in_flight / run.concurrency)
    if many and run.requests_per_s and run.output_tokens_per_s and run.output_tokens:
        tokens = run.requests_per_s * run.output_tokens
        if not 1 / _TOKENS_SLACK <= run.output_tokens_per_s / tokens <= _TOKENS_SLACK:
            number = f"{run.output_tokens_per_s:.1f}"
            bound = f"{tokens:.1f}"
            yield _line(run, "output tokens/s", number, "requests/s · O", bound, run.output_tokens_per_s / tokens)
    if run.cached_tokens_mean is not None and run.cached_tokens_mean > run.prompt_tokens * _SLACK:
        number, bound = f"{run.cached_tokens_mean:.0f}", f"{run.prompt_tokens:.0f}"
        yield _line(run, "cached tokens", number, "the prompt", bound, run.cached_tokens_mean / run.prompt_tokens)
    yield from _server(run)


def _order(run: Run) -> Iterator[Broken]:
    """A percentile is no less than a lower one, and nothing is more than the largest."""
    for what, part in (("TTFT", run.ttft), ("TPOT", run.tpot), ("gap", run.gap), ("E2E", run.e2e)):
        ranks = [(name, getattr(part, name)) for name in ("p50", "p95", "p99", "max")]
        ranks = [(name, value) for name, value in ranks if value is not None]
        for (low, less), (high, more) in pairwise(ranks):
            if less > more * (1 + 1e-9):
                yield _line(run, f"{what} {low}", ms(less), f"its {high}", ms(more), less / more if more else math.inf)


def _server(run: Run) -> Iterator[Broken]:
    server = run.server
    if server is None:
        return
    if server.kv_share_max is not None and server.kv_share_max > 1.01:
        yield _line(run, "the KV share", f"{server.kv_share_max:.2f}", "1", "1", server.kv_share_max)
    # The server's means may be of other people's requests too.
    same = server.finished is not None and server.finished <= 1.1 * run.requests
    window = server.finished is not None and server.finished <= run.requests + 2 * (run.concurrency or 8) + 8
    checks = [("E2E", server.e2e_mean, run.e2e.mean, same)]
    if run.ttft_of_window_mean is None:
        checks.append(("TTFT", server.ttft_mean, run.ttft.mean, same))
    else:
        checks.append(("TTFT", server.ttft_mean, run.ttft_of_window_mean, window))
    for what, inner, outer, same in checks:
        if same and None not in (inner, outer) and inner > outer * _SLACK + _CLOCK_MS:
            yield _line(run, f"the server's mean {what}", ms(inner), "the client's", ms(outer), inner / outer)
    if None not in (server.queue_mean, server.prefill_mean, server.ttft_mean):
        parts = server.queue_mean + server.prefill_mean
        if parts > server.ttft_mean * _SLACK + _CLOCK_MS:
            whole = server.ttft_mean
            yield _line(run, "the server's queue + prefill", ms(parts), "its TTFT", ms(whole), parts / whole)


def _line(run: Run, what: str, number: str, other: str, bound: str, times: float) -> Broken:
    where = f"{what} ({run.role} run)"
    return Broken(f"{where} is {number}, and {other} is {bound}", run, "identity", f"{where} {number}", bound, times)


def _floors(run: Run, floors: ServiceFloors, speculates: bool) -> Iterator[Broken]:
    checks = [("TTFT", run.ttft.p50, floors.least_ttft_ms)]
    # With speculation a step gives several tokens.
    if not speculates:
        checks.append(("TPOT", run.tpot.p50, floors.least_tpot_ms))
    for what, measured, least in checks:
        if measured is not None and measured * floors.tolerance < least:
            times = least / measured if measured else math.inf
            number = f"{what} p50 of {ms(measured)} ({run.role} run)"
            yield Broken(
                f"{number} is {times:.1f} times faster than its floor of {ms(least)}",
                run,
                what,
                number,
                ms(least),
                times,
            )
