"""What an OpenAI-style stream says: when output came, how much, why it stopped, and what cannot be known.

`read_stream` is pure: the same exchange gives the same result, live or out of a stored log. It knows the
habits of vLLM, SGLang, llama.cpp, llama-cpp-python, Ollama, TGI, transformers serve, OpenAI, and gateways
before them, for ``/chat/completions`` and ``/completions``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from helpers.measure.exchange import Exchange
from helpers.measure.sse import ServerSentEvent, SSEParser

ERRORS = ("no_output", "stream_error", "truncated", "connection", "not_streaming", "timeout", "protocol", "left")
"""The words of `RequestResult.error`, beside ``http_<status>``."""

SHORTEST_WINDOW_MS = 0.5
"""A window below what arrival times are good for shows no pace."""

_END_ERRORS = {
    "cut": "connection",
    "refused": "connection",
    "timeout": "timeout",
    "protocol": "protocol",
    "left": "left",
}
_FAILED_FINISHES = ("error", "abort", "cancelled")


@dataclass(frozen=True)
class OutputEvent:
    """One event with output anyone can use.

    `kind`: "answer", "reasoning" or "tool_call". `read`: which read completed it.
    `tokens_so_far`: completion tokens up to and with this event, where the server says so per event.
    """

    at_ns: int
    read: int
    kind: str
    text: str
    tokens_so_far: int | None = None


@dataclass(frozen=True)
class RequestResult:
    """What is known of one request. None: it cannot be known. Times are milliseconds after the first byte was sent.

    ttft_ms      first event with output anyone can use: text, reasoning or a tool call
    ttfa_ms      first event of the answer itself (TTFT where nothing was reasoned)
    tpot_ms      (last output event − first event of a generated token, even one with empty text) ÷ (N − 1)
    tpot_after_first_event_ms   the same window ÷ (N − tokens of the first event), where the server counts per
                 event and that first event carried several
    tpot_note    why there is no `tpot_ms`: "unobservable_single_read" (all output came in one read, so its pace
                 was not seen), "unobservable_single_burst" (in several reads within `SHORTEST_WINDOW_MS`, as a large
                 answer held back is), "token_count_unknown", "token_count_suspect", "fewer_than_two_tokens", "failed"
    e2e_ms       last output event; None on failure
    headers_ms   end of the response's head, which is no TTFT; stream_closed_ms: ``[DONE]`` or the end of the body
    output_tokens   N, from the server's `usage`; None where it says nothing, cannot be right, or the request failed
    event_gaps_ms   gaps between output events ("ITL" only where an event is a token)
    error        None where the request is sound, else one of `ERRORS` or ``http_<status>``; `detail` says it in words
    """

    ttft_ms: float | None
    tpot_ms: float | None
    output_tokens: int | None
    finish_reason: str | None
    error: str | None
    detail: str = ""
    error_code: int | str | None = None
    ttfa_ms: float | None = None
    e2e_ms: float | None = None
    headers_ms: float | None = None
    stream_closed_ms: float | None = None
    connect_ms: float | None = None
    start_lag_ms: float | None = None
    tpot_note: str | None = None
    tpot_after_first_event_ms: float | None = None
    tpot_ms_if_cap_trusted: float | None = None
    event_gaps_ms: tuple[float, ...] = ()
    output_events: tuple[OutputEvent, ...] = ()
    text: str = ""
    reasoning_text: str = ""
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    usage_completion_tokens: int | None = None
    token_count_source: str = "none"
    token_count_suspect: bool = False
    requested_output_tokens: int | None = None
    stamps: str = "none"

    @property
    def events(self) -> int:
        """How many events carried output."""
        return len(self.output_events)

    @property
    def reads_with_output(self) -> int:
        """In how many reads they came: fewer than `events` means that something on the way held them back."""
        return len({event.read for event in self.output_events})

    @property
    def inter_event_gap_ms(self) -> float | None:
        """Median gap between output events."""
        gaps = sorted(self.event_gaps_ms)
        middle = len(gaps) // 2
        return None if not gaps else gaps[middle] if len(gaps) % 2 else (gaps[middle - 1] + gaps[middle]) / 2

    @property
    def length_mismatch(self) -> bool:
        """Is the actual output length known, and another than the one asked for?"""
        return None not in (self.output_tokens, self.requested_output_tokens) and (
            self.output_tokens != self.requested_output_tokens
        )

    @property
    def ttft_from_intended_ms(self) -> float | None:
        """TTFT counted from when the plan wanted the request sent; a client that fell behind cannot hide it."""
        return None if self.ttft_ms is None else self.ttft_ms + (self.start_lag_ms or 0.0)


def output_cap(request: Mapping[str, object]) -> int | None:
    """The most output tokens a request asks for, under either name; None where it sets no limit."""
    for key in ("max_completion_tokens", "max_tokens"):
        cap = request.get(key)
        if isinstance(cap, int) and not isinstance(cap, bool):
            return cap
    return None


def read_stream(exchange: Exchange) -> RequestResult:
    """The result of one exchange. Never raises: whatever came back is either sound or a named failure."""
    seen = _Seen()
    for event in _events(exchange):
        seen.take(event, exchange.reads[event.read].at_ns)
    error, detail, code = _failure(exchange, seen)
    return _result(exchange, seen, error, detail, code)


def _events(exchange: Exchange) -> list[ServerSentEvent]:
    if exchange.status != 200 or not exchange.reads:
        return []
    parser = SSEParser()
    events = [event for read in exchange.reads for event in parser.feed(read.data)]
    if exchange.end in ("complete", "done"):
        events += parser.close()
    return events


class _Seen:
    """What the events said so far."""

    def __init__(self) -> None:
        self.outputs: list[OutputEvent] = []
        self.first_generated: OutputEvent | None = None
        self.usages: list[dict] = []
        self.finish_reason: str | None = None
        self.done_ns: int | None = None
        self.error: dict | None = None
        self.events = 0
        self.choices: set[int] = set()

    def take(self, event: ServerSentEvent, at_ns: int) -> None:
        if self.done_ns is not None:
            return
        if event.data.strip() == "[DONE]":
            self.done_ns = at_ns
            self.events += 1
            return
        try:
            chunk = json.loads(event.data)
        except (ValueError, RecursionError):
            chunk = None
        if event.type not in ("message", "error") and not (isinstance(chunk, dict) and "choices" in chunk):
            # A ping or another event of the server's own.
            return
        self.events += 1
        error = _error_of(event, chunk)
        if error is not None:
            self.error = self.error or error
        elif isinstance(chunk, dict):
            self._take_chunk(chunk, at_ns, event.read)

    def _take_chunk(self, chunk: dict, at_ns: int, read: int) -> None:
        choices = [choice for choice in _list(chunk.get("choices")) if isinstance(choice, dict)]
        choice = choices[0] if choices else {}
        usage = _usage_of(chunk, choice)
        if usage is not None:
            self.usages.append(usage)
        if not choices:
            return
        self.choices |= {c["index"] for c in choices if isinstance(c.get("index"), int)}
        finish = _finish_of(choice)
        self.finish_reason = self.finish_reason or finish
        tokens = None if usage is None else _count(usage, "completion_tokens")
        kind, text = _output_of(choice)
        output = OutputEvent(at_ns, read, kind or "", text, tokens)
        if kind is not None:
            self.outputs.append(output)
        if self.first_generated is None and (kind is not None or _is_empty_token(choice, finish, tokens)):
            self.first_generated = output


def _error_of(event: ServerSentEvent, chunk: object) -> dict | None:
    """The failure an event tells of, as an object with message and code where it has them."""
    if not isinstance(chunk, dict):
        return {"message": f"an event is no JSON object: {event.data[:80]!r}"}
    error = chunk.get("error")
    if error:
        return error if isinstance(error, dict) else {"message": str(error), "code": chunk.get("code")}
    if event.type == "error" or chunk.get("object") == "error":
        return chunk
    choices = _list(chunk.get("choices"))
    if choices and isinstance(choices[0], dict):
        if isinstance(choices[0].get("error"), dict):
            return choices[0]["error"]
        if _finish_of(choices[0]) in _FAILED_FINISHES:
            return {"message": f"finish_reason is {_finish_of(choices[0])!r}"}
    return None


def _finish_of(choice: dict) -> str | None:
    finish = choice.get("finish_reason")
    if isinstance(finish, dict):
        # SGLang's native form: {"type": "length", "length": 16}.
        finish = finish.get("type")
    return finish if isinstance(finish, str) and finish else None


def _output_of(choice: dict) -> tuple[str | None, str]:
    """Kind and text of a choice's output; kind is None where nobody could use it."""
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        text = choice.get("text")
        return ("answer", text) if isinstance(text, str) and text else (None, "")
    for kind, keys in (("answer", ("content", "refusal")), ("reasoning", ("reasoning_content", "reasoning"))):
        for key in keys:
            value = delta.get(key)
            if isinstance(value, str) and value:
                return kind, value
            parts = [part for part in _list(value) if isinstance(part, dict)]
            if parts:
                # Mistral sends content as a list of parts, thinking among them.
                thinking = all(part.get("type") == "thinking" for part in parts)
                text = "".join(_part_text(part) for part in parts)
                if text:
                    return ("reasoning" if thinking else kind), text
    if _list(delta.get("tool_calls")) or delta.get("function_call"):
        return "tool_call", ""
    return None, ""


def _part_text(part: dict) -> str:
    inner = part.get("text", part.get("thinking"))
    if isinstance(inner, str):
        return inner
    return "".join(_part_text(p) for p in _list(inner) if isinstance(p, dict))


def _is_empty_token(choice: dict, finish: str | None, tokens_so_far: int | None) -> bool:
    """Is this an event of a generated token whose text is empty (half a character, a special token)?

    Where the server counts per event, its count decides. Else: a content key that is the empty string,
    without a role (that is the opening of the message) and without a finish reason (its end).
    """
    if tokens_so_far is not None:
        return tokens_so_far > 0 and finish is None
    delta = choice.get("delta")
    if isinstance(delta, dict):
        said = [delta.get(key) for key in ("content", "reasoning_content", "reasoning")]
        return "" in said and not delta.get("role") and finish is None
    return choice.get("text") == "" and finish is None


def _usage_of(chunk: dict, choice: dict) -> dict | None:
    """The usage object, wherever a server puts it: at the top, in the choice (Moonshot), under x_groq (Groq)."""
    groq = chunk.get("x_groq")
    for holder in (chunk, choice, groq if isinstance(groq, dict) else {}):
        usage = holder.get("usage")
        if isinstance(usage, dict) and _count(usage, "completion_tokens") is not None:
            return usage
    return None


def _count(usage: dict, *path: str) -> int | None:
    """A count of a usage object by its path; None where it is absent or no count."""
    value: object = usage
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 and value == value // 1
    return int(value) if whole else None


def _list(value: object) -> list:
    return value if isinstance(value, list) else []


def _failure(exchange: Exchange, seen: _Seen) -> tuple[str | None, str, int | str | None]:
    """Error word, the same in words, and the server's own code."""
    if exchange.status is not None and exchange.status != 200:
        return f"http_{exchange.status}", _message_of_body(exchange), exchange.status
    if seen.error is not None:
        return "stream_error", str(seen.error.get("message", ""))[:500], _code(seen.error.get("code"))
    complete = seen.finish_reason is not None or seen.done_ns is not None
    if exchange.end in _END_ERRORS and not complete:
        return _END_ERRORS[exchange.end], exchange.detail, None
    if seen.events == 0 and exchange.body.strip():
        return _failure_without_events(exchange)
    if not complete:
        return "truncated", "the stream ended without finish_reason and without [DONE]", None
    if not seen.outputs:
        return "no_output", "the stream ended in order and held no output", None
    return None, "", None


def _failure_without_events(exchange: Exchange) -> tuple[str, str, int | str | None]:
    """Status 200 and a body without one event: a whole answer, an error object, or no such server at all."""
    body = _json_of_body(exchange)
    if isinstance(body, dict) and (body.get("error") or body.get("object") == "error"):
        error = body["error"] if isinstance(body.get("error"), dict) else body
        return "stream_error", _message_of_body(exchange), _code(error.get("code"))
    kind = exchange.headers.get("content-type", "")
    return "not_streaming", f"the answer came as one body ({kind or 'no content type'}) and not as events", None


def _json_of_body(exchange: Exchange) -> object:
    try:
        return json.loads(exchange.body)
    except (ValueError, RecursionError):
        return None


def _message_of_body(exchange: Exchange) -> str:
    body = _json_of_body(exchange)
    if isinstance(body, dict):
        error = body.get("error")
        holder = error if isinstance(error, dict) else body
        for key in ("message", "detail", "error"):
            if holder.get(key):
                return str(holder[key])[:500]
    return exchange.body.decode("utf-8", errors="replace").strip()[:200]


def _code(value: object) -> int | str | None:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


@dataclass(frozen=True)
class _TokenCount:
    """N and where it comes from; `suspect` says why it cannot be right."""

    tokens: int | None
    source: str
    said: int | None
    suspect: str = ""


def _token_count(seen: _Seen, cap: int | None) -> _TokenCount:
    if not seen.usages:
        return _TokenCount(None, "none", None)
    usage = seen.usages[-1]
    said = _count(usage, "completion_tokens")
    prompt, total = _count(usage, "prompt_tokens"), _count(usage, "total_tokens")
    suspect = ""
    if cap is not None and said > cap:
        suspect = f"usage says {said} tokens under a cap of {cap}"
    elif said == 0 and seen.outputs:
        suspect = "usage says 0 tokens and there is output"
    elif None not in (prompt, total) and total != prompt + said:
        suspect = f"usage does not add up: {prompt} + {said} is not {total}"
    elif len(seen.choices) > 1:
        suspect = f"usage counts {len(seen.choices)} choices at once"
    return _TokenCount(None if suspect else said, "usage", said, suspect)


def _result(exchange: Exchange, seen: _Seen, error: str | None, detail: str, code: int | str | None) -> RequestResult:
    cap = output_cap(exchange.request)
    count = _token_count(seen, cap)
    credited = count.tokens if error in (None, "no_output") else None
    outputs = seen.outputs
    window_ms = tpot = note = None
    if error is None:
        window_ms = (outputs[-1].at_ns - seen.first_generated.at_ns) / 1e6
        tpot, note = _tpot(seen, count, window_ms)
    elif error != "no_output":
        note = "failed"

    def since_start(at_ns: int | None) -> float | None:
        return None if at_ns is None else (at_ns - exchange.start_ns) / 1e6

    usage = seen.usages[-1] if seen.usages else {}
    answer = next((event.at_ns for event in outputs if event.kind != "reasoning"), None)
    closed = seen.done_ns if seen.done_ns is not None else exchange.end_ns if exchange.status == 200 else None
    return RequestResult(
        ttft_ms=since_start(outputs[0].at_ns if outputs else None),
        tpot_ms=tpot,
        output_tokens=credited,
        finish_reason=seen.finish_reason,
        error=error,
        detail=detail or count.suspect,
        error_code=code,
        ttfa_ms=since_start(answer),
        e2e_ms=since_start(outputs[-1].at_ns) if error is None else None,
        headers_ms=since_start(exchange.head_ns),
        stream_closed_ms=since_start(closed),
        connect_ms=None if exchange.connect_ns is None else exchange.connect_ns / 1e6,
        start_lag_ms=None if exchange.intended_ns is None else (exchange.start_ns - exchange.intended_ns) / 1e6,
        tpot_note=note,
        tpot_after_first_event_ms=_tpot_after_first_event(seen, count, tpot, window_ms),
        tpot_ms_if_cap_trusted=_tpot_if_cap_trusted(seen, count, cap, window_ms),
        event_gaps_ms=tuple((b.at_ns - a.at_ns) / 1e6 for a, b in pairwise(outputs)),
        output_events=tuple(outputs),
        text="".join(event.text for event in outputs if event.kind == "answer"),
        reasoning_text="".join(event.text for event in outputs if event.kind == "reasoning"),
        prompt_tokens=_count(usage, "prompt_tokens"),
        cached_tokens=_count(usage, "prompt_tokens_details", "cached_tokens"),
        reasoning_tokens=_count(usage, "completion_tokens_details", "reasoning_tokens"),
        usage_completion_tokens=count.said,
        token_count_source=count.source,
        token_count_suspect=bool(count.suspect),
        requested_output_tokens=cap,
        stamps=exchange.stamps,
    )


def _tpot(seen: _Seen, count: _TokenCount, window_ms: float) -> tuple[float | None, str | None]:
    if count.suspect:
        return None, "token_count_suspect"
    if count.tokens is None:
        return None, "token_count_unknown"
    if count.tokens < 2:
        return None, "fewer_than_two_tokens"
    if seen.outputs[-1].read == seen.first_generated.read:
        return None, "unobservable_single_read"
    if window_ms < SHORTEST_WINDOW_MS:
        return None, "unobservable_single_burst"
    return window_ms / (count.tokens - 1), None


def _tpot_after_first_event(
    seen: _Seen, count: _TokenCount, tpot: float | None, window_ms: float | None
) -> float | None:
    first = None if seen.first_generated is None else seen.first_generated.tokens_so_far
    if tpot is None or first is None or not 1 < first < count.tokens:
        return None
    return window_ms / (count.tokens - first)


def _tpot_if_cap_trusted(seen: _Seen, count: _TokenCount, cap: int | None, window_ms: float | None) -> float | None:
    """Where usage cannot be right and the server says that the cap was met, the cap is N."""
    met = count.suspect and seen.finish_reason == "length" and cap is not None and cap >= 2
    if not met or window_ms is None or seen.outputs[-1].read == seen.first_generated.read:
        return None
    return window_ms / (cap - 1)
