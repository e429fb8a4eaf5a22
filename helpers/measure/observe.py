"""From what was sent and what came back to an `Observation`: pure, so that a stored log gives the same one again.

`run_of` takes a `LoadRun` (live or replayed), `run_of_summary` the JSON of ``measure --json``; an `Observation` goes to
JSON and comes back with `observation_json` and `parse_observation`; `read_observation` tells the three files apart.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from helpers.accounts.observation import Observation, Run, ServerWindow, Spread
from helpers.errors import InputError
from helpers.measure.arrivals import ClosedLoop, Trace
from helpers.measure.exchange import Exchange
from helpers.measure.load import LoadRun
from helpers.measure.percentiles import nearest_rank
from helpers.measure.replay import SCHEMA as LOG_SCHEMA
from helpers.measure.replay import load_log
from helpers.measure.results import summarize
from helpers.measure.stream import RequestResult, read_stream

SCHEMA = "inference-lab/observation/1"

FEWEST = {"p50": 1, "p95": 20, "p99": 100}
"""With fewer samples the nearest rank of a percentile is only the largest: it is left out."""

REPEATED_SHARE = 0.5
"""From this share of prompts that were sent before on, a run counts as one of repeated prompts."""


def spread(samples: Iterable[float | None]) -> Spread:
    """Median, percentiles, mean and largest of the known samples."""
    known = [sample for sample in samples if sample is not None]
    if not known:
        return Spread()
    ranks = {
        name: nearest_rank(known, int(name[1:]) / 100) if len(known) >= least else None
        for name, least in FEWEST.items()
    }
    return Spread(**ranks, mean=math.fsum(known) / len(known), max=max(known), n=len(known))


def run_of(
    load: LoadRun,
    role: str = "load",
    *,
    server: ServerWindow | None = None,
    client_cpu_share: float | None = None,
    **also: Any,
) -> Run:
    """The `Run` of a load; `also` sets further fields (``long_prompt_tokens``, ``long_ttft``).

    A trace counts as an open loop at its mean rate. `client_cpu_share` of the whole process goes before that of the
    client's thread, where it is larger: a process whose other threads hold Python's lock is as late.
    """
    summary = summarize(load)
    about, arrivals = summary.conditions, load.plan.arrivals
    measured = [sent.exchange for sent in load.sent if sent.phase == "measured"]
    results = [(exchange, result) for exchange in measured if (result := read_stream(exchange)).error is None]
    sound = [result for _, result in results]
    open_loop = not isinstance(arrivals, ClosedLoop)
    seen = _seen(results, open_loop)
    lag = summary.client_lag_ms["cpu_share"]
    shares = [share for share in (lag, client_cpu_share) if share is not None]
    per_s = summary.throughput["requests_per_s"]
    prompt = mean(result.prompt_tokens for result in sound)
    fields_ = {
        "role": role,
        "prompt_tokens": about.prompt_tokens.median or load.plan.prompt_tokens,
        "output_tokens": about.output_tokens.median or load.plan.output_tokens,
        "concurrency": about.concurrency,
        "rate_per_s": _trace_rate(arrivals, len(measured)) if isinstance(arrivals, Trace) else about.rate_per_s,
        "requests": len(measured),
        "ttft_of_window_mean": mean(read_stream(s.exchange).ttft_ms for s in load.sent if s.phase != "warmup"),
        "e2e": spread(summary.latencies["e2e_ms"].samples),
        "requests_per_s": per_s,
        "output_tokens_per_s": summary.throughput["output_tokens_per_s"],
        "prompt_tokens_per_s": None if None in (per_s, prompt) else per_s * prompt,
        "client_cpu_share": max(shares, default=None),
        "errors": dict(summary.errors["by_kind"]),
        "prompts_repeat": repeats(load),
        "base_url": load.plan.base_url,
        "server": server,
    }
    return Run(**{**fields_, **seen, **also})


def _seen(results: Sequence[tuple[Exchange, RequestResult]], open_loop: bool) -> dict[str, Any]:
    """What the client's own stamps say of sound requests."""
    sound = [result for _, result in results]
    late = [(result.start_lag_ms or 0.0) if open_loop else 0.0 for result in sound]
    events, reads = sum(r.events for r in sound), sum(r.reads_with_output for r in sound)
    all_reads = [read for exchange, _ in results for read in exchange.reads]
    return {
        "ttft": spread(r.ttft_from_intended_ms if open_loop else r.ttft_ms for r in sound),
        "tpot": spread(r.tpot_ms for r in sound),
        "gap": spread(gap for r in sound for gap in r.event_gaps_ms),
        "headers": spread(
            None if r.headers_ms is None else r.headers_ms + lag for r, lag in zip(sound, late, strict=True)
        ),
        "connect": spread(r.connect_ms for r in sound),
        "events_per_read": events / reads if reads else None,
        "sent_on_new_connection": mean(r.connect_ms is not None for r in sound),
        "cached_tokens_mean": mean(r.cached_tokens for r in sound),
        "client_lag": spread((r.user_ns - r.kernel_ns) / 1e6 for r in all_reads if r.kernel_ns is not None),
    }


def mean(samples: Iterable[float | None]) -> float | None:
    """Of the known samples; None where there are none."""
    known = [sample for sample in samples if sample is not None]
    return math.fsum(known) / len(known) if known else None


def repeats(load: LoadRun) -> bool:
    """Had most measured prompts been sent before in this load?"""
    counts: Counter[str | None] = Counter()
    again = measured = 0
    for sent in sorted(load.sent, key=lambda sent: sent.exchange.start_ns):
        prompt = prompt_of(sent.exchange.request)
        if sent.phase == "measured":
            measured += 1
            again += prompt is not None and counts[prompt] > 0
        counts[prompt] += 1
    return measured > 0 and again / measured >= REPEATED_SHARE


def prompt_of(request: Mapping[str, Any]) -> str | None:
    """The prompt of a request as one string; None where it has none."""
    prompt = request.get("messages", request.get("prompt"))
    return None if prompt is None else json.dumps(prompt, sort_keys=True, ensure_ascii=False)


def _trace_rate(trace: Trace, requests: int) -> float:
    span_s = trace.arrivals[requests - 1].at_s - trace.arrivals[0].at_s
    if requests < 2 or span_s <= 0:
        raise InputError(f"trace {trace.name}: its requests all come at once, so it has no rate")
    return (requests - 1) / span_s


def run_of_summary(result: Mapping[str, Any], role: str = "load") -> Run:
    """The `Run` of what ``measure --json`` printed; what only a log holds is not known.

    Raises InputError that names the key which is missing or is not what it should be.
    """
    about = _part(result, "conditions")
    latencies = {
        name: _spread_of_metric(_part(result, key, {} if key != "ttft_ms" else None), key)
        for name, key in (
            ("ttft", "ttft_ms"),
            ("tpot", "tpot_ms"),
            ("gap", "event_gap_ms"),
            ("e2e", "e2e_ms"),
            ("connect", "connect_ms"),
        )
    }
    if about.get("trace") is not None:
        raise InputError("key 'conditions.trace': the JSON of a trace does not tell its rate; give the log instead")
    throughput, lag, errors = _part(result, "throughput"), _part(result, "client_lag_ms"), _part(result, "errors")
    sound = latencies["ttft"].n
    per_s = _number(throughput, "requests_per_s", "throughput")
    lengths = {}
    for key in ("prompt_tokens", "output_tokens"):
        known = _part(about, key, name=f"conditions.{key}")
        lengths[key] = known.get("median") or known.get("asked")
        if not _is_number(lengths[key]):
            raise InputError(f"key 'conditions.{key}' must hold a number under 'median' or 'asked'")
    kinds = _part(errors, "by_kind", name="errors.by_kind")
    if not all(isinstance(n, int) and not isinstance(n, bool) for n in kinds.values()):
        raise InputError("key 'errors.by_kind' must hold whole numbers")
    return Run(
        role=role,
        **lengths,
        concurrency=_number(about, "concurrency", "conditions"),
        rate_per_s=_number(about, "rate_per_s", "conditions"),
        requests=int(_number(about, "requests", "conditions") or 0),
        **latencies,
        sent_on_new_connection=latencies["connect"].n / sound if sound else None,
        requests_per_s=per_s,
        output_tokens_per_s=_number(throughput, "output_tokens_per_s", "throughput"),
        prompt_tokens_per_s=None if per_s is None else per_s * lengths["prompt_tokens"],
        client_lag=Spread(
            p50=_number(lag, "receive_p50", "client_lag_ms"),
            p99=_number(lag, "receive_p99", "client_lag_ms"),
            max=_number(lag, "receive_max", "client_lag_ms"),
        ),
        client_cpu_share=_number(lag, "cpu_share", "client_lag_ms"),
        errors=dict(kinds),
        base_url=about.get("base_url") if isinstance(about.get("base_url"), str) else None,
    )


def _part(holder: Mapping[str, Any], key: str, default: Any = None, *, name: str | None = None) -> Mapping[str, Any]:
    value = holder.get(key, default)
    if not isinstance(value, dict):
        raise InputError(f"key {name or key!r} must be an object, as `measure --json` prints it")
    return value


def _is_number(value: object, least: float = 0) -> bool:
    # No number of a run comes near the upper end, which an integer of JSON may exceed beyond any float.
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value < 1e15


def _number(holder: Mapping[str, Any], key: str, where: str) -> float | None:
    value = holder.get(key)
    if value is not None and not _is_number(value):
        raise InputError(f"key '{where}.{key}' must be a number of at least 0, not {str(value)[:40]!r}")
    return value


def _spread_of_metric(metric: Mapping[str, Any], key: str) -> Spread:
    n = int(_number(metric, "n", key) or 0)
    known = {name: _number(metric, name, key) if n >= least else None for name, least in FEWEST.items()}
    return Spread(**known, mean=_number(metric, "mean", key), max=_number(metric, "max", key), n=n)


def observation_json(observation: Observation) -> dict[str, Any]:
    """The observation as a JSON object, from which `parse_observation` makes an equal one."""
    return {"schema": SCHEMA, **_plain(observation)}


def _plain(value: Any) -> Any:
    if isinstance(value, Observation | Run | ServerWindow | Spread):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def parse_observation(raw: Mapping[str, Any]) -> Observation:
    """The observation of a JSON object. Raises InputError that names the key which is wrong."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise InputError(f"key 'schema' must be {SCHEMA!r}")
    given = {key: value for key, value in raw.items() if key != "schema"}
    _check_keys(Observation, given, "")
    runs = given.get("runs")
    if not isinstance(runs, list):
        raise InputError("key 'runs' must be a list")
    given["runs"] = tuple(_run_in(run, f"runs[{index}]") for index, run in enumerate(runs))
    for key, kind in (("traits", frozenset), ("notes", tuple)):
        if not _is_texts(given.get(key, [])):
            raise InputError(f"key {key!r} must be a list of texts")
        given[key] = kind(given.get(key, []))
    clues = given.get("clues", {})
    if not isinstance(clues, dict) or not _is_texts(list(clues.values())):
        raise InputError("key 'clues' must be an object of texts")
    _check_plain(Observation, given, "", ("runs", "traits", "notes", "clues"))
    return Observation(**given)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_SPREADS = ("ttft", "tpot", "gap", "e2e", "headers", "connect", "client_lag")


def _run_in(raw: Any, where: str) -> Run:
    if not isinstance(raw, dict):
        raise InputError(f"key '{where}' must be an object")
    _check_keys(Run, raw, where)
    given = dict(raw)
    for key in _SPREADS:
        if key in given:
            given[key] = _record_in(Spread, given[key], f"{where}.{key}")
    if given.get("server") is not None:
        given["server"] = _record_in(ServerWindow, given["server"], f"{where}.server")
    errors = given.get("errors", {})
    if not isinstance(errors, dict) or not all(_is_number(count) for count in errors.values()):
        raise InputError(f"key '{where}.errors' must be an object of numbers")
    _check_plain(Run, given, where, (*_SPREADS, "server", "errors"))
    try:
        return Run(**given)
    except InputError as error:
        raise InputError(f"key '{where}': {error}") from error


def _record_in(kind: type, raw: Any, where: str) -> Any:
    if not isinstance(raw, dict):
        raise InputError(f"key '{where}' must be an object")
    _check_keys(kind, raw, where)
    _check_plain(kind, raw, where, ())
    return kind(**raw)


def _check_keys(kind: type, raw: Mapping[str, Any], where: str) -> None:
    known = {f.name for f in fields(kind)}
    for key in raw:
        if key not in known:
            raise InputError(f"key '{_join(where, key)}' is unknown")
    for f in fields(kind):
        if f.name not in raw and f.default is MISSING and f.default_factory is MISSING:
            raise InputError(f"key '{_join(where, f.name)}' is missing")


def _check_plain(kind: type, raw: Mapping[str, Any], where: str, besides: Sequence[str]) -> None:
    """Numbers where numbers belong, texts where texts belong; null where the field allows it."""
    for f in fields(kind):
        if f.name in besides or f.name not in raw:
            continue
        value, declared = raw[f.name], str(f.type if isinstance(f.type, str) else getattr(f.type, "__name__", f.type))
        if value is None and "None" in declared:
            continue
        # A kernel's stamp may lie a hair after the client's own.
        wants, right = "a number of at least 0", _is_number(value, -1.0 if kind is Spread else 0)
        if "bool" in declared:
            wants, right = "true or false", isinstance(value, bool)
        elif "str" in declared:
            wants, right = "a text", isinstance(value, str)
        elif "float" not in declared:
            wants, right = "a whole number of at least 0", _is_number(value) and value == int(value)
        if not right:
            raise InputError(f"key '{_join(where, f.name)}' must be {wants}, not {str(value)[:40]!r}")


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else str(key)


def read_observation(path: str | Path) -> Observation:
    """The observation in a file: one that was saved, the JSON of ``measure --json``, or a log of ``measure --log``.

    Of a log or a summary it is one run in the role "load". Raises InputError that names the file and what is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"file {path} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    first = text.partition("\n")[0]
    if f'"{LOG_SCHEMA}"' in first:
        load = load_log(path)
        return Observation((run_of(load),), notes=load.notes)
    try:
        raw = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"file {path} is neither a log nor JSON ({error})") from error
    try:
        if isinstance(raw, dict) and "schema" in raw:
            return parse_observation(raw)
        if isinstance(raw, dict) and isinstance(raw.get("observation"), dict):
            # What `judge --json` printed.
            return parse_observation(raw["observation"])
        if isinstance(raw, dict) and "conditions" in raw:
            notes = raw.get("notes", [])
            return Observation((run_of_summary(raw),), notes=tuple(notes) if _is_texts(notes) else ())
        raise InputError("it is no log, no JSON of `measure`, and no saved observation: keys 'schema' and 'conditions'")
    except InputError as error:
        raise InputError(f"file {path}: {error}") from error


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")
