"""What /metrics tells, in Prometheus text; vLLM's names where the meaning is vLLM's, ``lab:`` before our own.

``vllm:inter_token_latency_seconds`` is, as in vLLM, the gap between two outputs of one request: with speculative
decoding an output may carry several tokens, and then it is no time per token.
``vllm:request_time_per_output_token_seconds`` is: decode time ÷ (output tokens − 1), once per request.
"""

import threading
from bisect import bisect_left

from helpers.serve.request import Request

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

GAUGES = {
    "vllm:num_requests_running": "Requests in the running batch.",
    "vllm:num_requests_waiting": "Requests in the queue.",
    "vllm:kv_cache_usage_perc": "Share of the KV cache blocks in use, 1 is all.",
}
COUNTERS = {
    "vllm:prompt_tokens": "Prompt tokens of requests whose prefill is done.",
    "vllm:generation_tokens": "Tokens generated.",
    "vllm:num_preemptions": "Times that a running request was sent back to the queue.",
    "vllm:prefix_cache_queries": "Prompt tokens looked up in the prefix cache.",
    "vllm:prefix_cache_hits": "Prompt tokens found there.",
    "vllm:spec_decode_num_drafts": "Drafts checked.",
    "vllm:spec_decode_num_draft_tokens": "Tokens drafted.",
    "vllm:spec_decode_num_accepted_tokens": "Drafted tokens that were right.",
    "lab:requests_rejected": "Requests answered 429 because the queue was full.",
}
HISTOGRAMS = {
    "vllm:time_to_first_token_seconds": ("From the whole request received to its first token.", SECONDS),
    "vllm:inter_token_latency_seconds": ("Between two outputs of one request.", SECONDS),
    "vllm:request_time_per_output_token_seconds": ("Decode time per token after the first, per request.", SECONDS),
    "vllm:e2e_request_latency_seconds": ("From the whole request received to its last token.", SECONDS),
    "vllm:request_queue_time_seconds": ("From queued to first scheduled.", SECONDS),
    "vllm:request_prefill_time_seconds": ("From first scheduled to the first token.", SECONDS),
    "vllm:request_decode_time_seconds": ("From the first token to the last.", SECONDS),
    "vllm:request_prompt_tokens": ("Prompt tokens per finished request.", TOKENS),
    "vllm:request_generation_tokens": ("Generated tokens per finished request.", TOKENS),
    "vllm:iteration_tokens_total": ("Tokens computed per engine step.", STEP_TOKENS),
}
FINISH_REASONS = ("stop", "length", "abort", "error")


class Histogram:
    """Counts of observations at or below each bound, their sum and number."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics:
    """What the engine thread counts and the web side reads, under one lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gauges = dict.fromkeys(GAUGES, 0.0)
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._finished = dict.fromkeys(FINISH_REASONS, 0)
        self._histograms = {name: Histogram(bounds) for name, (_, bounds) in HISTOGRAMS.items()}

    def gauges(self, running: int, waiting: int, kv_usage: float, preemptions: int) -> None:
        """The state after a step."""
        with self._lock:
            self._gauges.update(zip(GAUGES, (running, waiting, kv_usage), strict=True))
            self._counters["vllm:num_preemptions"] = preemptions

    def rejected(self) -> None:
        """A request was answered 429."""
        self._count("lab:requests_rejected", 1)

    def step(self, tokens: int) -> None:
        """A step computed `tokens` tokens."""
        with self._lock:
            self._histograms["vllm:iteration_tokens_total"].observe(tokens)

    def drafted(self, tokens: int, right: int) -> None:
        """A draft of `tokens` was checked, its first `right` were accepted."""
        self._count("vllm:spec_decode_num_drafts", 1)
        self._count("vllm:spec_decode_num_draft_tokens", tokens)
        self._count("vllm:spec_decode_num_accepted_tokens", right)

    def tokens(self, request: Request, count: int, before: float | None, now: float) -> None:
        """A step gave `request` `count` tokens at `now`; `before`: when it had its last ones, None for the first."""
        times = request.times
        with self._lock:
            self._counters["vllm:generation_tokens"] += count
            if before is not None:
                self._histograms["vllm:inter_token_latency_seconds"].observe(now - before)
                return
            self._counters["vllm:prompt_tokens"] += len(request.prompt)
            self._counters["vllm:prefix_cache_queries"] += len(request.prompt)
            self._counters["vllm:prefix_cache_hits"] += request.cached_tokens or 0
            self._histograms["vllm:time_to_first_token_seconds"].observe(now - _start(request))
            self._histograms["vllm:request_queue_time_seconds"].observe(times.prefill_start_s - times.queued_s)
            self._histograms["vllm:request_prefill_time_seconds"].observe(now - times.prefill_start_s)

    def finished(self, request: Request, reason: str) -> None:
        """A request ended; `reason` is one of `FINISH_REASONS`."""
        with self._lock:
            self._finished[reason] += 1
            if reason not in ("stop", "length"):
                return
            first, last = request.times.token_s[0], request.times.token_s[-1]
            histograms = self._histograms
            histograms["vllm:e2e_request_latency_seconds"].observe(last - _start(request))
            histograms["vllm:request_decode_time_seconds"].observe(last - first)
            histograms["vllm:request_prompt_tokens"].observe(len(request.prompt))
            histograms["vllm:request_generation_tokens"].observe(request.output_tokens)
            if request.output_tokens > 1:
                per_token = (last - first) / (request.output_tokens - 1)
                histograms["vllm:request_time_per_output_token_seconds"].observe(per_token)

    def _count(self, name: str, amount: int) -> None:
        with self._lock:
            self._counters[name] += amount

    def text(self, model: str) -> str:
        """All of it in Prometheus text format 0.0.4, each line labelled with the model's name."""
        label = 'model_name="' + model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") + '"'
        lines: list[str] = []
        with self._lock:
            for name, value in self._gauges.items():
                lines += [*_head(name, GAUGES[name], "gauge"), f"{name}{{{label}}} {value}"]
            for name, value in self._counters.items():
                lines += [*_head(f"{name}_total", COUNTERS[name], "counter"), f"{name}_total{{{label}}} {value}"]
            lines += _head("vllm:request_success_total", "Requests that ended, by how; error is ours.", "counter")
            for reason, value in self._finished.items():
                lines.append(f'vllm:request_success_total{{{label},finished_reason="{reason}"}} {value}')
            for name, histogram in self._histograms.items():
                lines += _head(name, HISTOGRAMS[name][0], "histogram")
                total = 0
                for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
                    total += count
                    lines.append(f'{name}_bucket{{{label},le="{bound}"}} {total}')
                lines += [f"{name}_sum{{{label}}} {histogram.sum}", f"{name}_count{{{label}}} {total}"]
        return "\n".join(lines) + "\n"


def _head(name: str, about: str, kind: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _start(request: Request) -> float:
    """When its clock starts: received, or for a request that came without a body (`Engine.submit` alone) queued."""
    return request.times.queued_s if request.times.received_s is None else request.times.received_s
