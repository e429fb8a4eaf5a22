"""Numbers with their conditions: no latency is shown without concurrency or rate, input length and output length.

`summarize` computes them from a `LoadRun`, live or out of a stored log; `Summary` cannot be made without
`Conditions`, and `table` takes nothing else.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from helpers.errors import InputError
from helpers.measure.arrivals import ClosedLoop, OpenLoop, Trace
from helpers.measure.load import LoadRun, Sent
from helpers.measure.percentiles import Percentile, percentile
from helpers.measure.stream import RequestResult, read_stream

CACHED_SHARE_LIMIT = 0.01
FEWEST_FOR_P95 = 72
"""With fewer samples the 95 % interval of the 95th percentile has no upper end: 0.95⁷² < 2.5 % (59 do one-sided)."""

PERCENTILES = (0.50, 0.95, 0.99)


@dataclass(frozen=True)
class Lengths:
    """Tokens asked for and tokens counted: smallest, median and largest over the sound requests, and who counted."""

    asked: int | None
    low: int | None
    median: float | None
    high: int | None
    source: str

    def to_text(self) -> str:
        """Such as "512" where all were as asked, else what they were instead."""
        asked = "lengths of the trace" if self.asked is None else str(self.asked)
        if self.low is None:
            return f"{asked} asked, actual unknown"
        if self.asked is not None and self.low == self.high == self.asked:
            return asked
        return f"{asked} asked, {self.low} to {self.high} actual"


@dataclass(frozen=True)
class Conditions:
    """Under what load the numbers were taken. Exactly one of `concurrency`, `rate_per_s` and `trace` is set."""

    base_url: str
    model: str
    path: str
    concurrency: int | None
    rate_per_s: float | None
    trace: str | None
    seed: int | None
    requests: int
    warmup: int
    burst: int
    fillers: int
    prompt_tokens: Lengths
    output_tokens: Lengths
    ignore_eos: bool
    temperature: float
    full_load_share: float | None

    def __post_init__(self) -> None:
        given = [value for value in (self.concurrency, self.rate_per_s, self.trace) if value is not None]
        if len(given) != 1:
            raise InputError("conditions need exactly one of concurrency, rate_per_s and trace")
        if not isinstance(self.prompt_tokens, Lengths) or not isinstance(self.output_tokens, Lengths):
            raise InputError("conditions need the input length and the output length")

    @property
    def load(self) -> str:
        if self.concurrency is not None:
            return f"concurrency {self.concurrency}"
        return f"{self.rate_per_s:g} requests/s" if self.trace is None else f"trace {self.trace}"

    def to_text(self) -> str:
        """The line that stands over every table."""
        return (
            f"{self.model} at {self.base_url}: {self.load}, {self.prompt_tokens.to_text()} prompt tokens, "
            f"{self.output_tokens.to_text()} output tokens, {self.requests} requests measured "
            f"({self.warmup} warm-up, {self.burst} burst, {self.fillers} filler left out)"
        )


@dataclass(frozen=True)
class Metric:
    """One latency over the sound requests; `failures` more never had one and count as +∞ in `with_failures`.

    `pooled`: several samples of one request. They hang together, so an interval of as many independent ones would claim
    too much, and there is none.
    """

    samples: tuple[float, ...]
    failures: int = 0
    missing: int = 0
    pooled: bool = False

    def at(self, p: float) -> Percentile | None:
        return percentile(self.samples, p) if self.samples else None

    def with_failures(self, p: float) -> float | None:
        """The percentile with every failure as +∞."""
        everything = [*self.samples, *[math.inf] * self.failures]
        return percentile(everything, p).value if everything else None

    def as_json(self) -> dict:
        """JSON has no infinity: it is the string "inf"."""
        result: dict[str, object] = {"n": len(self.samples), "missing": self.missing}
        result["mean"] = math.fsum(self.samples) / len(self.samples) if self.samples else None
        result["min"] = min(self.samples, default=None)
        result["max"] = max(self.samples, default=None)
        for p in PERCENTILES:
            name, found = f"p{p * 100:.0f}", self.at(p)
            result[name] = None if found is None else found.value
            result[f"{name}_interval"] = None if found is None or self.pooled else [found.low, found.high]
            worst = self.with_failures(p)
            result[f"{name}_with_failures"] = "inf" if worst == math.inf else worst
        return result


@dataclass(frozen=True)
class Summary:
    """Every number of a run under its conditions; times in milliseconds."""

    conditions: Conditions
    latencies: dict[str, Metric]
    throughput: dict[str, float | str | None]
    client_lag_ms: dict[str, float | str | None]
    errors: dict[str, object]
    tpot_missing: dict[str, int]
    finish_reasons: dict[str, int]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.conditions, Conditions):
            raise InputError("no number without its conditions: concurrency or rate, input length, output length")

    def as_json(self) -> dict:
        """The JSON object of the command."""
        conditions = {
            name: vars(value) if isinstance(value, Lengths) else value for name, value in vars(self.conditions).items()
        }
        return {
            "conditions": conditions,
            **{name: metric.as_json() for name, metric in self.latencies.items()},
            "tpot_missing": self.tpot_missing,
            "finish_reasons": self.finish_reasons,
            "throughput": self.throughput,
            "client_lag_ms": self.client_lag_ms,
            "errors": self.errors,
            "notes": list(self.notes),
        }


def summarize(run: LoadRun) -> Summary:
    """All numbers of a run; pure, so a stored log gives the same ones."""
    results = [(sent, read_stream(sent.exchange)) for sent in run.sent]
    measured = [(sent, result) for sent, result in results if sent.phase == "measured"]
    sound = [result for _, result in measured if result.error is None]
    failures = len(measured) - len(sound)
    conditions = _conditions(run, measured, sound)

    def metric(values: Sequence[float | None]) -> Metric:
        known = tuple(value for value in values if value is not None)
        return Metric(known, failures, len(values) - len(known))

    open_loop = not isinstance(run.plan.arrivals, ClosedLoop)
    latencies = {"ttft_ms": metric([r.ttft_from_intended_ms if open_loop else r.ttft_ms for r in sound])}
    if open_loop:
        latencies["ttft_from_send_ms"] = metric([r.ttft_ms for r in sound])
    latencies |= {
        "ttfa_ms": metric([r.ttfa_ms for r in sound]),
        "tpot_ms": metric([r.tpot_ms for r in sound]),
        "tpot_after_first_event_ms": metric([r.tpot_after_first_event_ms for r in sound]),
        "e2e_ms": metric([None if r.e2e_ms is None else r.e2e_ms + _lag(r, open_loop) for r in sound]),
        "connect_ms": metric([r.connect_ms for r in sound]),
    }
    gaps = tuple(gap for r in sound for gap in r.event_gaps_ms)
    latencies["event_gap_ms"] = Metric(gaps, pooled=True)
    return Summary(
        conditions=conditions,
        latencies=latencies,
        throughput=_throughput(results, measured, sound),
        client_lag_ms=_client_lag(run, measured),
        errors=_errors(measured),
        tpot_missing=dict(Counter(r.tpot_note for r in sound if r.tpot_note)),
        finish_reasons=dict(Counter(str(r.finish_reason) for r in sound)),
        notes=(*run.notes, *_notes(run, sound, conditions)),
    )


def _lag(result: RequestResult, open_loop: bool) -> float:
    return (result.start_lag_ms or 0.0) if open_loop else 0.0


Measured = Sequence[tuple[Sent, RequestResult]]


def _conditions(run: LoadRun, measured: Measured, sound: Sequence[RequestResult]) -> Conditions:
    plan, arrivals = run.plan, run.plan.arrivals
    trace = isinstance(arrivals, Trace)
    phases = Counter(sent.phase for sent in run.sent)
    return Conditions(
        base_url=plan.base_url,
        model=plan.model,
        path=plan.path,
        concurrency=arrivals.concurrency if isinstance(arrivals, ClosedLoop) else None,
        rate_per_s=arrivals.rate_per_s if isinstance(arrivals, OpenLoop) else None,
        trace=arrivals.name if trace else None,
        seed=arrivals.seed if isinstance(arrivals, OpenLoop) else None,
        requests=len(measured),
        warmup=phases["warmup"],
        burst=phases["burst"],
        fillers=phases["filler"],
        prompt_tokens=_lengths(None if trace else plan.prompt_tokens, [r.prompt_tokens for r in sound], "usage"),
        output_tokens=_lengths(None if trace else plan.output_tokens, [r.output_tokens for r in sound], "usage"),
        ignore_eos=run.ignore_eos_taken,
        temperature=plan.temperature,
        full_load_share=_full_load_share(run, measured),
    )


def _lengths(asked: int | None, counts: Sequence[int | None], source: str) -> Lengths:
    known = sorted(count for count in counts if count is not None)
    if not known:
        return Lengths(asked, None, None, None, "none")
    return Lengths(asked, known[0], percentile(known, 0.5).value, known[-1], source)


def _full_load_share(run: LoadRun, measured: Measured) -> float | None:
    """Share of the measured time in which all slots of a closed loop were busy; None in an open loop."""
    if not isinstance(run.plan.arrivals, ClosedLoop) or not measured:
        return None
    begin, end = _window_ns([sent for sent, _ in measured])
    changes = [(s.exchange.start_ns, 1) for s in run.sent if s.phase != "warmup"]
    changes += [(s.exchange.end_ns, -1) for s in run.sent if s.phase != "warmup"]
    busy, full_ns, last_ns = 0, 0, begin
    for at_ns, change in sorted(changes):
        now_ns = min(max(at_ns, begin), end)
        if busy >= run.plan.arrivals.concurrency:
            full_ns += now_ns - last_ns
        last_ns, busy = now_ns, busy + change
    return full_ns / (end - begin) if end > begin else None


def _window_ns(sent: Sequence[Sent]) -> tuple[int, int]:
    return min(s.exchange.start_ns for s in sent), max(s.exchange.end_ns for s in sent)


def _throughput(results: Measured, measured: Measured, sound: Sequence[RequestResult]) -> dict[str, float | str | None]:
    """Output of the whole system between the first measured start and the last measured end.

    Requests of every phase share that time, so all their output events in it are counted, and turned into
    tokens by the tokens per event of the measured requests. Failed requests are credited nothing.
    """
    keys = ("output_tokens_per_s", "output_events_per_s", "requests_per_s", "window_s")
    if not sound:
        return dict.fromkeys(keys) | {"output_tokens_per_s_of_one_request": None}
    begin, end = _window_ns([sent for sent, _ in measured])
    events = sum(
        begin <= event.at_ns <= end
        for sent, result in results
        if sent.phase != "warmup" and result.error in (None, "left")
        for event in result.output_events
    )
    seconds = (end - begin) / 1e9
    counted = [r for r in sound if r.output_tokens is not None]
    per_event = sum(r.output_tokens for r in counted) / sum(r.events for r in counted) if counted else None
    ends = sum(begin <= s.exchange.end_ns <= end for s, r in results if s.phase != "warmup" and r.error is None)
    tpots = [r.tpot_ms for r in sound if r.tpot_ms]
    return {
        "output_tokens_per_s": None if per_event is None else per_event * events / seconds,
        "output_events_per_s": events / seconds,
        "requests_per_s": ends / seconds,
        "window_s": seconds,
        "output_tokens_per_s_of_one_request": 1e3 / percentile(tpots, 0.5).value if tpots else None,
    }


def _client_lag(run: LoadRun, measured: Measured) -> dict[str, float | str | None]:
    """How late this client itself was, and what it cost: beside every result, because it may be the cause."""
    reads = [read for sent, _ in measured for read in sent.exchange.reads]
    lags = [(read.user_ns - read.kernel_ns) / 1e6 for read in reads if read.kernel_ns is not None]
    starts = [result.start_lag_ms for _, result in measured if result.start_lag_ms is not None]
    kernel = len(lags) / len(reads) if reads else 0.0
    return {
        "receive_p50": percentile(lags, 0.5).value if lags else None,
        "receive_p99": percentile(lags, 0.99).value if lags else None,
        "receive_max": max(lags, default=None),
        "start_p50": percentile(starts, 0.5).value if starts else None,
        "start_p99": percentile(starts, 0.99).value if starts else None,
        "start_max": max(starts, default=None),
        "kernel_stamped_share": kernel,
        "cpu_s": run.cpu_s,
        "cpu_share": run.cpu_s / run.wall_s if run.wall_s > 0 else None,
    }


def _errors(measured: Measured) -> dict[str, object]:
    failed = [result for _, result in measured if result.error is not None]
    examples: dict[str, str] = {}
    for result in failed:
        examples.setdefault(result.error, result.detail)
    return {
        "total": len(failed),
        "of": len(measured),
        "by_kind": dict(Counter(result.error for result in failed)),
        "examples": examples,
    }


def _notes(run: LoadRun, sound: Sequence[RequestResult], conditions: Conditions) -> list[str]:
    notes = []
    n = len(sound)
    if not n:
        notes.append("no request was sound, so there are no latencies")
        return notes
    if n < FEWEST_FOR_P95:
        few = "1 request" if n == 1 else f"{n} requests"
        notes.append(f"{few} cannot bound the 95th percentile from above: that takes {FEWEST_FOR_P95}")
    short = sum(r.length_mismatch for r in sound)
    if short:
        notes.append(f"{short} of {n} outputs are not of the length asked for")
    clumped = sum(r.reads_with_output < r.events for r in sound)
    if clumped:
        notes.append(f"in {clumped} of {n} streams several events came in one read: gaps are not those of the server")
    bundled = sum(r.output_tokens is not None and r.output_tokens > r.events for r in sound)
    if bundled:
        notes.append(f"in {bundled} of {n} streams events carry several tokens: an event gap is not a TPOT")
    suspect = sum(r.token_count_suspect for r in sound)
    if suspect:
        notes.append(f"in {suspect} of {n} streams the server's token count cannot be right")
    cached = sum(r.cached_tokens or 0 for r in sound)
    prompt = sum(r.prompt_tokens or 0 for r in sound)
    if prompt and cached / prompt >= CACHED_SHARE_LIMIT:
        notes.append(f"{cached / prompt:.0%} of the prompt tokens came out of the server's prefix cache")
    if any(r.stamps in ("user", "mixed") for r in sound):
        notes.append("some reads were stamped by this process and not by the kernel")
    if conditions.full_load_share is not None and conditions.full_load_share < 0.9:
        notes.append(f"all slots were busy only {conditions.full_load_share:.0%} of the measured time")
    return notes


LABELS = {
    "ttft_ms": "TTFT",
    "ttft_from_send_ms": "TTFT from the send",
    "ttfa_ms": "first answer token",
    "tpot_ms": "TPOT",
    "tpot_after_first_event_ms": "TPOT after first event",
    "e2e_ms": "end to end",
    "event_gap_ms": "event gap",
}


def report(result: dict) -> str:
    """The JSON object of a run as text for people: the conditions first, then what was measured under them."""
    conditions = result["conditions"]
    about = Conditions(
        **{
            **conditions,
            "prompt_tokens": Lengths(**conditions["prompt_tokens"]),
            "output_tokens": Lengths(**conditions["output_tokens"]),
        }
    )
    lines = [about.to_text()]
    if about.concurrency is None:
        lines.append("TTFT and end to end count from the intended start of each request")
    header = f"{'milliseconds':<24}{'n':>5}{'P50':>9}  {'(95 % interval)':<19}{'P95':>9}  {'(95 % interval)':<19}"
    failed = result["errors"]["total"]
    lines.append(header + ("   with failures as infinite: P50, P95" if failed else ""))
    for key, label in LABELS.items():
        if key in result and result[key]["n"] and not _same_as_ttft(key, result):
            lines.append(_row(label, result[key], failed and key != "event_gap_ms"))
    throughput, lag = result["throughput"], result["client_lag_ms"]
    lines.append(
        f"throughput: {_number(throughput['output_tokens_per_s'])} output tokens/s of the system, "
        f"{_number(throughput['output_tokens_per_s_of_one_request'])} of one request after its first token, "
        f"{_number(throughput['requests_per_s'])} requests/s over {_number(throughput['window_s'])} s"
    )
    lines.append(
        f"this client: late by {_number(lag['receive_p50'])} ms (P50), {_number(lag['receive_p99'])} ms (P99) on "
        f"arrivals of which the kernel stamped {lag['kernel_stamped_share']:.0%}"
        + (f"; starts late by {_number(lag['start_p99'])} ms (P99)" if lag["start_p99"] is not None else "")
        + f"; {_number(lag['cpu_s'])} s of processor time"
    )
    errors = result["errors"]
    kinds = "".join(f"; {n} × {kind} ({errors['examples'][kind]})" for kind, n in errors["by_kind"].items())
    lines.append(f"errors: {errors['total']} of {errors['of']}{kinds}")
    for note, count in result["tpot_missing"].items():
        lines.append(f"no TPOT for {count} requests: {note.replace('_', ' ')}")
    lines += [f"note: {note}" for note in result["notes"]]
    return "\n".join(lines)


def _same_as_ttft(key: str, result: dict) -> bool:
    return key == "ttfa_ms" and result["ttfa_ms"]["p50"] == result["ttft_ms"]["p50"]


def _row(label: str, metric: dict, failed: bool) -> str:
    cells = f"{label:<24}{metric['n']:>5}"
    for name in ("p50", "p95"):
        interval = ""
        if metric[f"{name}_interval"] is not None:
            low, high = metric[f"{name}_interval"]
            interval = f"({_number(low, '-∞')} to {_number(high, '∞')})"
        cells += f"{_number(metric[name]):>9}  {interval:<19}"
    if failed:
        cells += f"   {_number(metric['p50_with_failures'])}, {_number(metric['p95_with_failures'])}"
    return cells.rstrip()


def _number(value: float | str | None, missing: str = "unknown") -> str:
    if value is None:
        return missing
    if value in ("inf", math.inf):
        return "∞"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def table(summaries: Sequence[Summary]) -> str:
    """A sweep as text, one line for each run; every line carries load, input length and output length.

    Raises InputError on anything but a `Summary`, which cannot exist without its conditions.
    """
    if not summaries or not all(isinstance(summary, Summary) for summary in summaries):
        raise InputError("a table takes summaries, which carry their conditions, and at least one of them")
    head = (
        "load",
        "input tokens",
        "output tokens",
        "n",
        "failed",
        "TTFT P50",
        "P95 ms",
        "TPOT P50",
        "P95 ms",
        "tokens/s",
    )
    rows = [head]
    for summary in summaries:
        about, ttft, tpot = summary.conditions, summary.latencies["ttft_ms"], summary.latencies["tpot_ms"]
        cells = [about.load, about.prompt_tokens.to_text(), about.output_tokens.to_text(), str(about.requests)]
        cells.append(str(summary.errors["total"]))
        for metric in (ttft, tpot):
            cells += [_number(found.value) if (found := metric.at(p)) else "unknown" for p in (0.50, 0.95)]
        rows.append((*cells, _number(summary.throughput["output_tokens_per_s"])))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
