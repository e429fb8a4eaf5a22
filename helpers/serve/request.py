"""One request while the server works on it: its tokens, its place in the cache, and when each thing happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from helpers.serve.text import TextStream


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn and when it ends, as `helpers.engine.generate` understands temperature and top_p."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0


@dataclass(frozen=True)
class Output:
    """What one step adds to an answer: its text, whether it ended (``stop``, ``length``), or why it failed."""

    text: str = ""
    output_tokens: int = 0
    finish_reason: str | None = None
    error: str | None = None

    @property
    def last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


@dataclass
class Times:
    """Seconds on this machine's monotonic clock (`time.perf_counter`), each None until it happened.

    The client's TTFT is parse + queue + prefill + delivery: `received_s` (the whole request body is here) →
    `queued_s` (tokenised, in the queue) → `prefill_start_s` (first scheduled) → `token_s[0]` (first token chosen, the
    prefill is done) → `first_event_sent_s` (its event is about to be written) → the client's own stamp.
    """

    received_s: float | None = None
    queued_s: float | None = None
    prefill_start_s: float | None = None
    token_s: list[float] = field(default_factory=list)
    first_event_sent_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The stamps and the spans between them, for `return_timings`."""
        first = self.token_s[0] if self.token_s else None
        spans = {
            "parse_s": (self.received_s, self.queued_s),
            "queue_s": (self.queued_s, self.prefill_start_s),
            "prefill_s": (self.prefill_start_s, first),
            "send_s": (first, self.first_event_sent_s),
            "decode_s": (first, self.token_s[-1] if self.token_s else None),
        }
        stamps = {
            "clock": "time.perf_counter of the server",
            "received_at_s": self.received_s,
            "queued_at_s": self.queued_s,
            "prefill_start_at_s": self.prefill_start_s,
            "prefill_end_at_s": first,
            "first_event_sent_at_s": self.first_event_sent_s,
            "token_at_s": list(self.token_s),
        }
        return stamps | {name: None if None in pair else pair[1] - pair[0] for name, pair in spans.items()}


@dataclass(eq=False)
class Request:
    """A request from its arrival to its last token; `listener` gets each `Output`.

    `tokens` are the prompt and what was generated. `sequence` is its part of the KV cache, None while it waits.
    `draft` holds the tokens that the next step checks, see `helpers.engine.speculative`.
    """

    prompt: tuple[int, ...]
    sampling: Sampling
    listener: Callable[[Output], None] = lambda output: None
    text: TextStream | None = None
    times: Times = field(default_factory=Times)
    tokens: list[int] = field(default_factory=list)
    sequence: Any = None
    draft: list[int] = field(default_factory=list)
    generator: Any = None
    cached_tokens: int | None = None
    preemptions: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finish_reason: str | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def decoding(self) -> bool:
        """Only its last token is not in the cache: the next step is a decode step."""
        return self.sequence is not None and self.to_compute == 1 and self.output_tokens > 0

    @property
    def to_compute(self) -> int:
        """Tokens whose keys and values are not in the cache."""
        return len(self.tokens) - (0 if self.sequence is None else self.sequence.length)

    def timings(self) -> dict[str, Any]:
        """`Times.as_json` with what else happened to the request."""
        return self.times.as_json() | {
            "preemptions": self.preemptions,
            "cached_prompt_tokens": self.cached_tokens or 0,
            "draft_tokens": self.drafted_tokens,
            "accepted_draft_tokens": self.accepted_tokens,
        }
