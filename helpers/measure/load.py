"""Measure an endpoint under load: warm-up first, the start burst and the drain outside, every slot busy in between.

Closed loop: after the warm-up, the first `concurrency` requests start at once (burst), then those that are
measured, then fillers that keep the slots busy until the last measured one has ended; what is still running
then is left. Open loop: a lead-in at the same rate, then those that are measured, then further arrivals as
fillers. A trace is sent as it is. Latencies of an open loop count from the intended start, so a client that
falls behind cannot hide a queue.
"""

import contextlib
import dataclasses
import gc
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from helpers.errors import InputError
from helpers.measure.arrivals import Arrival, Arrivals, ClosedLoop, OpenLoop, Trace
from helpers.measure.client import CHAT, COMPLETIONS, encoded, wait_for_one
from helpers.measure.driver import Driver, Job
from helpers.measure.endpoint import Endpoint, key_from, parse_endpoint
from helpers.measure.exchange import Exchange
from helpers.measure.prompts import Prompts, make_prompts
from helpers.measure.stream import read_stream

PHASES = ("warmup", "burst", "measured", "filler")
LEAD_IN_SHARE = 0.1
CALIBRATION_REQUESTS = 2
MOST_PROBES = 6


@dataclass(frozen=True)
class Plan:
    """What will be sent. `prompt_tokens` and `output_tokens` are per request; a trace's own lengths go before them."""

    base_url: str
    model: str
    arrivals: Arrivals
    requests: int
    prompt_tokens: int
    output_tokens: int
    warmup: int = 2
    path: str = CHAT
    temperature: float = 0.0
    ignore_eos: bool = True
    continuous_usage: bool = False

    def __post_init__(self) -> None:
        for name, least in (("requests", 1), ("prompt_tokens", 1), ("output_tokens", 1), ("warmup", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, not {value}")
        if not isinstance(self.model, str) or not self.model:
            raise InputError(f"model must be the model's name at the server, not {self.model!r}")
        if not isinstance(self.temperature, int | float) or not 0 <= self.temperature < math.inf:
            raise InputError(f"temperature must be a number of at least 0, not {self.temperature}")
        if self.path not in (CHAT, COMPLETIONS):
            raise InputError(f"path must be {CHAT} or {COMPLETIONS}, not {self.path}")
        if isinstance(self.arrivals, Trace) and self.requests > len(self.arrivals.arrivals):
            raise InputError(f"trace {self.arrivals.name} holds {len(self.arrivals.arrivals)} requests only")

    @property
    def burst(self) -> int:
        """Requests before the measured ones, at the same load."""
        if isinstance(self.arrivals, ClosedLoop):
            return self.arrivals.concurrency if self.arrivals.concurrency > 1 else 0
        return math.ceil(self.requests * LEAD_IN_SHARE) if isinstance(self.arrivals, OpenLoop) else 0

    @property
    def most_fillers(self) -> int:
        """Requests after the measured ones, at most."""
        if isinstance(self.arrivals, ClosedLoop):
            return 2 * self.arrivals.concurrency if self.arrivals.concurrency > 1 else 0
        return self.requests if isinstance(self.arrivals, OpenLoop) else 0

    def lengths(self) -> list[tuple[str, Arrival]]:
        """Phase and lengths of every request that may be sent, in order (`at_s` counts from the load's start)."""
        plain = Arrival(0.0, self.prompt_tokens, self.output_tokens)
        warm = [("warmup", plain)] * self.warmup
        if isinstance(self.arrivals, Trace):
            rows = self.arrivals.arrivals[: self.requests]
            return warm + [
                (
                    "measured",
                    Arrival(a.at_s, a.prompt_tokens or self.prompt_tokens, a.output_tokens or self.output_tokens),
                )
                for a in rows
            ]
        phases = ["burst"] * self.burst + ["measured"] * self.requests + ["filler"] * self.most_fillers
        if isinstance(self.arrivals, ClosedLoop):
            return warm + [(phase, plain) for phase in phases]
        times = self.arrivals.times_s(len(phases))
        return warm + [(phase, dataclasses.replace(plain, at_s=at)) for phase, at in zip(phases, times, strict=True)]

    def most_sent(self) -> tuple[int, int, int]:
        """Requests, prompt tokens and output tokens that may be sent and asked for at most, calibration included."""
        lengths = [arrival for _, arrival in self.lengths()]
        extra = CALIBRATION_REQUESTS + MOST_PROBES
        prompt = sum(a.prompt_tokens for a in lengths) + extra * max(self.prompt_tokens, 200)
        return len(lengths) + extra, prompt, sum(a.output_tokens for a in lengths) + extra


@dataclass(frozen=True)
class Sent:
    """One request of the load and the phase it belonged to."""

    phase: str
    exchange: Exchange


@dataclass(frozen=True)
class LoadRun:
    """Everything that was sent and what came back; `summarize` computes every number from this.

    `cpu_s`, `wall_s`: processor and wall time of the client's one thread while the load ran.
    """

    plan: Plan
    sent: tuple[Sent, ...]
    prompts_counted_by: str
    prompts_exact: bool
    ignore_eos_taken: bool
    cpu_s: float
    wall_s: float
    notes: tuple[str, ...] = ()


def measure_load(
    plan: Plan,
    *,
    key_variable: str | None = None,
    ca_file: str | None = None,
    timeout_s: float = 600.0,
    progress: Callable[[str], None] = lambda line: None,
    texts: Sequence[str] | None = None,
    around: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> LoadRun:
    """Send the plan's requests and keep what comes back.

    `texts`: prompts that are sent in turn instead of new ones. `around`: a context manager in which the load runs,
    after the warm-up. Raises InputError where the endpoint cannot be used at all: unknown host, or the first request
    refused.
    """
    endpoint, key = parse_endpoint(plan.base_url), key_from(key_variable)
    with Driver(endpoint, key=key, ca_file=ca_file, timeout_s=timeout_s) as driver:
        dialect, notes = _negotiate(driver, endpoint, plan)
        lengths = plan.lengths()
        targets = [arrival.prompt_tokens for _, arrival in lengths]
        if texts is None:
            progress("asking the server how long prompts are")
            prompts = _prompts(driver, endpoint, plan, dialect, targets)
        else:
            prompts = Prompts(tuple(texts[i % len(texts)] for i in range(len(targets))), "none", False, "")
        bodies = [
            dialect.request(text, arrival.output_tokens)
            for text, (_, arrival) in zip(prompts.texts, lengths, strict=True)
        ]
        jobs = [
            Job(encoded(body), body, endpoint.path + plan.path, label=phase)
            for body, (phase, _) in zip(bodies, lengths, strict=True)
        ]
        progress(f"warm-up of {plan.warmup} requests")
        sent = list(_closed(driver, jobs[: plan.warmup], _slots(plan), plan.warmup))
        jobs, times = jobs[plan.warmup :], [arrival.at_s for _, arrival in lengths[plan.warmup :]]
        progress(f"{plan.requests} measured requests")
        with around(), _no_garbage_collection():
            cpu_s, wall_s = time.thread_time(), time.monotonic()
            if isinstance(plan.arrivals, ClosedLoop):
                sent += _closed(driver, jobs, plan.arrivals.concurrency, plan.requests)
            else:
                sent += _timed(driver, jobs, times, plan.requests)
            cpu_s, wall_s = time.thread_time() - cpu_s, time.monotonic() - wall_s
    return LoadRun(
        plan=plan,
        sent=tuple(sent),
        prompts_counted_by=prompts.source,
        prompts_exact=prompts.exact,
        ignore_eos_taken=dialect.ignore_eos,
        cpu_s=cpu_s,
        wall_s=wall_s,
        notes=tuple(note for note in (*notes, _counted_by(prompts), prompts.note) if note),
    )


def _counted_by(prompts: Prompts) -> str:
    if prompts.source != "usage":
        return ""
    return f"prompt lengths were set by the usage of {CALIBRATION_REQUESTS} requests: the server has no /tokenize"


def _slots(plan: Plan) -> int:
    return plan.arrivals.concurrency if isinstance(plan.arrivals, ClosedLoop) else 1


def _closed(driver: Driver, jobs: list[Job], concurrency: int, wanted: int) -> Iterator[Sent]:
    """Run jobs so that `concurrency` are under way, until `wanted` warm-up or measured ones have ended."""
    waiting = iter(jobs)
    for job in _first(waiting, concurrency):
        driver.start(job)
    while wanted > 0 and driver.running:
        for ended, exchange in driver.poll(time.monotonic_ns() + 1_000_000_000):
            yield Sent(ended.label, exchange)
            wanted -= ended.label in ("warmup", "measured")
            for job in _first(waiting, 1):
                driver.start(job)
    for ended, exchange in driver.leave():
        yield Sent(ended.label, exchange)


def _first(jobs: Iterator[Job], count: int) -> Iterator[Job]:
    for _ in range(count):
        try:
            yield next(jobs)
        except StopIteration:
            return


PRECONNECT_NS = 250_000_000
"""A connection is opened this long before its request is due, so that connecting is not timed."""


def _timed(driver: Driver, jobs: list[Job], times_s: list[float], wanted: int) -> Iterator[Sent]:
    """Start every job at its time, until `wanted` measured ones have ended."""
    start_ns = time.monotonic_ns() + PRECONNECT_NS
    waiting = [(start_ns + round(at_s * 1e9), job) for at_s, job in zip(times_s, jobs, strict=True)][::-1]
    while wanted > 0 and (waiting or driver.running):
        now_ns = time.monotonic_ns()
        while waiting and now_ns >= waiting[-1][0] - PRECONNECT_NS:
            due_ns, job = waiting.pop()
            job.not_before_ns = due_ns
            driver.start(job)
        until_ns = waiting[-1][0] - PRECONNECT_NS if waiting else now_ns + 1_000_000_000
        for ended, exchange in driver.poll(min(until_ns, now_ns + 1_000_000_000)):
            yield Sent(ended.label, exchange)
            wanted -= ended.label == "measured"
    for ended, exchange in driver.leave():
        yield Sent(ended.label, exchange)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A collection would hold up the loop for milliseconds; what the load makes is little and kept anyway."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@dataclass(frozen=True)
class Dialect:
    """How this server wants to be asked: found out with a request of one token, because servers differ."""

    model: str
    path: str
    temperature: float | None
    ignore_eos: bool = True
    stream_options: bool = True
    continuous_usage: bool = False
    max_tokens_key: str = "max_tokens"

    def request(self, prompt: str, output_tokens: int) -> dict[str, object]:
        """The request for one prompt."""
        body: dict[str, object] = {"model": self.model}
        if self.path == CHAT:
            body["messages"] = [{"role": "user", "content": prompt}]
        else:
            body["prompt"] = prompt
        body |= {self.max_tokens_key: output_tokens, "stream": True}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.stream_options:
            body["stream_options"] = {"include_usage": True}
            if self.continuous_usage:
                body["stream_options"]["continuous_usage_stats"] = True
        return body


def _negotiate(driver: Driver, endpoint: Endpoint, plan: Plan) -> tuple[Dialect, list[str]]:
    """The first dialect that the server answers; it says 400 or 422 to fields it does not know."""
    dialect = Dialect(plan.model, plan.path, plan.temperature, plan.ignore_eos, True, plan.continuous_usage)
    notes: list[str] = []
    for _ in range(MOST_PROBES):
        result = read_stream(_ask(driver, dialect.request("Hello", 1), endpoint.path + plan.path))
        if result.error not in ("http_400", "http_422"):
            break
        said = result.detail
        if "max_completion_tokens" in said and dialect.max_tokens_key == "max_tokens":
            dialect = dataclasses.replace(dialect, max_tokens_key="max_completion_tokens")
        elif "temperature" in said and dialect.temperature is not None:
            dialect = dataclasses.replace(dialect, temperature=None)
            notes.append("the server does not take a temperature: its own is used")
        elif dialect.ignore_eos:
            dialect = dataclasses.replace(dialect, ignore_eos=False)
            notes.append("the server does not take ignore_eos: outputs may end before the length asked for")
        elif dialect.continuous_usage:
            dialect = dataclasses.replace(dialect, continuous_usage=False)
            notes.append("the server does not count tokens per event")
        elif dialect.stream_options:
            dialect = dataclasses.replace(dialect, stream_options=False)
            notes.append("the server does not take stream_options: it may tell no token counts")
        else:
            break
    if result.error not in (None, "no_output"):
        hint = ""
        if result.error == "http_404" and not endpoint.path:
            hint = "; base URLs mostly end in /v1"
        elif result.error == "connection":
            hint = "; is the server started, and is this its port?"
        said = result.detail and f" ({result.detail})"
        raise InputError(f"{plan.base_url} does not answer a request for one token: {result.error}{said}{hint}")
    return dialect, notes


def _ask(driver: Driver, request: dict[str, object], target: str) -> Exchange:
    driver.start(Job(encoded(request), request, target))
    return wait_for_one(driver)


def _prompts(driver: Driver, endpoint: Endpoint, plan: Plan, dialect: Dialect, targets: list[int]) -> Prompts:
    """Prompts counted by ``/tokenize`` where the server has it, else by the usage of two short requests."""

    def by_tokenize(text: str) -> int | None:
        body = {key: value for key, value in dialect.request(text, 1).items() if key in ("model", "messages", "prompt")}
        # Servers have it beside the /v1 of the base URL and not under it.
        exchange = _ask(driver, body, endpoint.path.removesuffix("/v1") + "/tokenize")
        try:
            count = json.loads(exchange.body).get("count") if exchange.status == 200 else None
        except (ValueError, AttributeError):
            return None
        return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else None

    def by_usage(text: str) -> int | None:
        return read_stream(_ask(driver, dialect.request(text, 1), endpoint.path + plan.path)).prompt_tokens

    if by_tokenize("Hello") is not None:
        measured = plan.warmup + plan.burst + plan.requests
        return make_prompts(targets, count=by_tokenize, source="tokenize", check_each=measured)
    return make_prompts(targets, count=by_usage, source="usage", check_each=0)
