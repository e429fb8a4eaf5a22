"""The server's own numbers: /metrics read before, during and after a load, by meaning and not by one engine's names.

Names of vLLM, SGLang, llama.cpp and this project's server are known. Gauges and counters of several series (engines,
data-parallel ranks, models) are added; of tensor-parallel ranks, which all tell of the same requests, the largest is
taken; a share of KV is that of the fullest engine. Sources: the metric lists of vLLM's and SGLang's documentation and
of llama.cpp's server, as of 2026.
"""

import http.client
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import median

from helpers.accounts.observation import ServerWindow
from helpers.errors import InputError
from helpers.measure.endpoint import Endpoint, key_from, parse_endpoint, tls_context

SAMPLE_S = 0.1
"""Seconds between two looks at the gauges."""

TIMEOUT_S = 5.0
MOST_BYTES = 1 << 24

_VLLM = {
    "running": ("num_requests_running",),
    "waiting": ("num_requests_waiting",),
    "kv_share": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "preemptions": ("num_preemptions",),
    "rejected": ("requests_rejected",),
    "finished": ("request_success",),
    "prompt_tokens": ("prompt_tokens",),
    "generated_tokens": ("generation_tokens",),
    "cache_queried_tokens": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "cache_hit_tokens": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "draft_tokens": ("spec_decode_num_draft_tokens",),
    "accepted_tokens": ("spec_decode_num_accepted_tokens",),
    "ttft": ("time_to_first_token_seconds",),
    "queue": ("request_queue_time_seconds",),
    "prefill": ("request_prefill_time_seconds",),
    "decode": ("request_decode_time_seconds",),
    "tpot": ("request_time_per_output_token_seconds", "time_per_output_token_seconds", "inter_token_latency_seconds"),
    "e2e": ("e2e_request_latency_seconds",),
    "step_tokens": ("iteration_tokens_total",),
}
_SGLANG = {
    "running": ("num_running_reqs",),
    "waiting": ("num_queue_reqs",),
    "kv_share": ("token_usage",),
    "preemptions": ("num_retracted_requests",),
    "finished": ("num_requests",),
    "prompt_tokens": ("prompt_tokens",),
    "generated_tokens": ("generation_tokens",),
    "cache_hit_tokens": ("cached_tokens",),
    "ttft": ("time_to_first_token_seconds",),
    "queue": ("queue_time_seconds",),
    "prefill": ("per_stage_req_latency_seconds{stage=prefill_forward}",),
    "tpot": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "e2e": ("e2e_request_latency_seconds",),
}
_LLAMACPP = {
    "running": ("requests_processing",),
    "waiting": ("requests_deferred",),
    "kv_share": ("kv_cache_usage_ratio",),
    "prompt_tokens": ("prompt_tokens",),
    "generated_tokens": ("tokens_predicted",),
    "generated_seconds": ("tokens_predicted_seconds",),
}
NAMES: Mapping[str, Mapping[str, tuple[str, ...]]] = {"vllm": _VLLM, "sglang": _SGLANG, "llamacpp": _LLAMACPP}
"""Prefix of an engine's metrics → meaning → names after it, the newest first; ``_total`` may follow a counter's."""

GAUGES = ("running", "waiting", "kv_share")
HISTOGRAMS = ("ttft", "queue", "prefill", "decode", "tpot", "e2e", "step_tokens")
_IN_SECONDS = ("ttft", "queue", "prefill", "decode", "tpot", "e2e")
_SAME_REQUESTS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels whose series tell of the same requests again."""

_START = "process_start_time_seconds"


@dataclass(frozen=True)
class Scrape:
    """One reading of /metrics by meaning: gauges and counters as numbers, histograms as (sum, count)."""

    at_s: float
    names: str
    values: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    series: int = 1
    started_s: float | None = None
    notes: tuple[str, ...] = ()


def parse_metrics(text: str, at_s: float = 0.0, model: str | None = None) -> Scrape | None:
    """The reading in Prometheus text; None where no engine's names are in it.

    `model`: where series carry ``model_name`` and one of them is this, the others are left out. Raises InputError on
    text that is no Prometheus text.
    """
    engine = next((prefix for prefix in NAMES if f"\n{prefix}:" in "\n" + text), None)
    if engine is None:
        return None
    rows, started = _rows(text, engine)
    models = {labels["model_name"] for _, labels, _ in rows if "model_name" in labels}
    notes = []
    if model in models and len(models) > 1:
        rows = [row for row in rows if row[1].get("model_name") in (None, model)]
        notes.append(f"/metrics tells of {len(models)} models: the numbers of {model} are used")
    elif len(models) > 1:
        notes.append(f"/metrics tells of {len(models)} models, none of them called {model}: their numbers are added")
    by_name: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in rows:
        by_name.setdefault(name, []).append((labels, value))
    values, histograms, series = {}, {}, 1
    for meaning, names in NAMES[engine].items():
        for name in names:
            if meaning in HISTOGRAMS:
                pair = tuple(_total(by_name, f"{name}{end}") for end in ("_sum", "_count"))
                if None not in pair:
                    histograms[meaning] = pair
                    break
            else:
                found = _of(by_name, name) or _of(by_name, f"{name}_total")
                if found:
                    values[meaning] = max(v for _, v in found) if meaning == "kv_share" else _added(found)
                    if meaning == "running":
                        series = len({_identity(labels) for labels, _ in found})
                    break
    if series > 1:
        notes.append(f"/metrics tells of {series} engines: counts are added, the KV share is that of the fullest")
    own = engine == "vllm" and "rejected" in values
    return Scrape(at_s, "lab" if own else engine, values, histograms, series, started, tuple(notes))


def _rows(text: str, engine: str) -> tuple[list[tuple[str, dict[str, str], float]], float | None]:
    """(name without prefix, labels, value) of every finite sample that is of this engine or this project's own."""
    from prometheus_client.parser import text_string_to_metric_families

    prefixes = (f"{engine}:", "lab:")
    # Comments are left out, and buckets, which are most lines and are not needed.
    kept = [
        line
        for line in text.split("\n")
        if line.startswith((*prefixes, _START)) and "_bucket{" not in line and "_bucket " not in line
    ]
    rows, started = [], None
    try:
        for family in text_string_to_metric_families("\n".join(kept) + "\n"):
            for sample in family.samples:
                if not math.isfinite(sample.value):
                    continue
                if sample.name == _START:
                    started = max(sample.value, started or 0.0)
                else:
                    rows.append((sample.name.partition(":")[2], sample.labels, sample.value))
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        raise InputError(f"/metrics is not understood: {error}") from error
    return rows, started


def _of(by_name: Mapping, name: str) -> list[tuple[dict[str, str], float]]:
    """The samples of a name, which may ask for one label: ``name{label=value}``."""
    plain, _, wanted = name.partition("{")
    found = by_name.get(plain, [])
    if wanted:
        label, _, value = wanted.rstrip("}").partition("=")
        found = [row for row in found if row[0].get(label) == value]
    return found


def _total(by_name: Mapping, name: str) -> float | None:
    """The sum of a histogram's part, such as ``name{label=value}_sum``."""
    plain, brace, rest = name.partition("{")
    if brace:
        wanted, _, end = rest.partition("}")
        name = f"{plain}{end}{{{wanted}}}"
    found = _of(by_name, name)
    return _added(found) if found else None


def _identity(labels: Mapping[str, str]) -> tuple:
    return tuple(sorted((k, v) for k, v in labels.items() if k not in _SAME_REQUESTS))


def _added(found: Iterable[tuple[Mapping[str, str], float]]) -> float:
    largest: dict[tuple, float] = {}
    for labels, value in found:
        identity = _identity(labels)
        largest[identity] = max(value, largest.get(identity, value))
    return math.fsum(largest.values())


class Scraper:
    """Reads /metrics beside ``/v1`` of an endpoint, over one connection that stays open.

    `read` gives None and leaves a note where there is no such page or no known engine's numbers on it.
    """

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        key_variable: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        self._endpoint, self._model = parse_endpoint(base_url), model
        self._tls = tls_context(ca_file) if self._endpoint.scheme == "https" else None
        key = key_from(key_variable)
        self._headers = {"Accept": "text/plain", "User-Agent": "inference-lab"}
        self._headers |= {"Authorization": f"Bearer {key}"} if key else {}
        self._connection: http.client.HTTPConnection | None = None
        self.notes: list[str] = []

    @property
    def path(self) -> str:
        return self._endpoint.path.removesuffix("/v1") + "/metrics"

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def read(self) -> Scrape | None:
        """One reading now."""
        raw = self.raw()
        if raw is None:
            return None
        scrape = parse_metrics(raw[1], raw[0], self._model)
        if scrape is None:
            self._note(f"{self.path} holds no numbers of vLLM, SGLang, llama.cpp or this project's server")
            return None
        for note in scrape.notes:
            self._note(note)
        return scrape

    def raw(self, path: str | None = None) -> tuple[float, str] | None:
        """The time and the text of the page (or of another `path`); None, and a note why, where there is none."""
        path = path or self.path
        for fresh in (False, True):
            try:
                status, body = self._get(path, fresh)
            except (OSError, http.client.HTTPException) as error:
                # A server may close a connection that was kept; a new one is tried once.
                self.close()
                why = f"{path} cannot be read ({error or type(error).__name__})"
                continue
            if status == 200:
                return time.monotonic(), body.decode("utf-8", "replace")
            why = f"{path} answers {status}: the server's own numbers are not known"
            break
        self._note(why)
        return None

    def _get(self, path: str, fresh: bool) -> tuple[int, bytes]:
        if self._connection is None or fresh:
            self._connection = _connection(self._endpoint, self._tls)
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read(MOST_BYTES + 1)
        if len(body) > MOST_BYTES:
            raise http.client.HTTPException(f"larger than {MOST_BYTES} bytes")
        return response.status, body

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _connection(endpoint: Endpoint, tls) -> http.client.HTTPConnection:
    if tls is not None:
        return http.client.HTTPSConnection(endpoint.host, endpoint.port, timeout=TIMEOUT_S, context=tls)
    return http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=TIMEOUT_S)


class Watch:
    """``with Watch(scraper) as watch: …``, then ``watch.window()``: a load seen from the server's side.

    A thread asks for the page every `every_s`; while the load runs it only keeps the gauges' lines, which costs a
    fraction of a millisecond, and parses them afterwards.
    """

    def __init__(self, scraper: Scraper, every_s: float = SAMPLE_S) -> None:
        self._scraper, self._every_s = scraper, every_s
        self._stop = threading.Event()
        self._kept: list[tuple[float, str]] = []
        self._thread = threading.Thread(target=self._look, name="metrics", daemon=True)
        self._before: Scrape | None = None
        self._after: Scrape | None = None
        self.cpu_s = 0.0

    def __enter__(self) -> "Watch":
        self._before = self._scraper.read()
        if self._before is not None:
            engine = "vllm" if self._before.names == "lab" else self._before.names
            names = [name for meaning in GAUGES for name in NAMES[engine][meaning]]
            self._starts = tuple(f"{engine}:{name}" for name in names)
            self._thread.start()
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if kind is None and self._before is not None:
            self._after = self._scraper.read()

    def _look(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            raw = self._scraper.raw()
            if raw is None:
                return
            at_s, text = raw
            self._kept.append((at_s, "\n".join(line for line in text.split("\n") if line.startswith(self._starts))))
            # Not at once after a slow answer: that would be a load of its own.
            due = max(due + self._every_s, time.monotonic() + self._every_s / 2)
        self.cpu_s = time.thread_time()

    def window(self) -> ServerWindow | None:
        """The server's numbers over the load; None where it tells none. Raises InputError as `window` does."""
        if self._before is None or self._after is None:
            return None
        model = self._scraper._model
        samples = [found for at_s, text in self._kept if (found := parse_metrics(text, at_s, model)) is not None]
        return window(self._before, self._after, samples)


def window(before: Scrape, after: Scrape, samples: Sequence[Scrape] = ()) -> ServerWindow:
    """The server's numbers between two readings: counters as differences, histograms as means, gauges over `samples`.

    mean = (sum after − sum before) ÷ (count after − count before), times in milliseconds. Raises InputError where a
    counter went down or the process is another: the server was restarted, or several answer in turn.
    """
    if before.names != after.names or (before.started_s or 0.0) != (after.started_s or 0.0):
        raise InputError("the server was restarted while it was measured, or several answer in turn: /metrics changed")
    counters: dict[str, float] = {}
    for meaning in sorted({*before.values, *after.values} - {*GAUGES}):
        counters[meaning] = _rise(meaning, before.values.get(meaning, 0.0), after.values.get(meaning))
    means: dict[str, float | None] = {}
    for meaning in HISTOGRAMS:
        was, now = before.histograms.get(meaning, (0.0, 0.0)), after.histograms.get(meaning)
        if now is None and meaning not in before.histograms:
            continue
        count = _rise(f"{meaning} count", was[1], now and now[1])
        total = _rise(f"{meaning} sum", was[0], now and now[0])
        means[f"{meaning}_mean"] = total / count * (1e3 if meaning in _IN_SECONDS else 1) if count else None
    seconds = counters.pop("generated_seconds", None)
    if seconds is not None and counters.get("generated_tokens"):
        means["tpot_mean"] = seconds / counters["generated_tokens"] * 1e3
    if before.names == "sglang" and "cache_hit_tokens" in counters:
        # SGLang looks every prompt token up.
        counters.setdefault("cache_queried_tokens", counters.get("prompt_tokens"))
    gauges = {}
    for meaning, ends in (("running", ("p50", "max")), ("waiting", ("p50", "max")), ("kv_share", ("max",))):
        seen = [scrape.values[meaning] for scrape in samples if meaning in scrape.values]
        find: dict[str, Callable] = {"p50": median, "max": max}
        gauges |= {f"{meaning}_{end}": find[end](seen) for end in ends if seen}
    known = {f.name for f in fields(ServerWindow)}
    return ServerWindow(
        names=before.names,
        seconds=after.at_s - before.at_s,
        samples=len(samples),
        **{name: value for name, value in {**counters, **means, **gauges}.items() if name in known},
    )


def _rise(what: str, before: float, after: float | None) -> float:
    if after is None or after < before - 1e-9 * abs(before):
        raise InputError(
            f"the server's {what.replace('_', ' ')} went down from {before:g} to {after or 0:g}: it was restarted "
            "while it was measured, or several servers answer in turn"
        )
    return max(0.0, after - before)
