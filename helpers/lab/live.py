"""Tokens of one streaming answer as they arrive: a picture and a text that grow while the request runs.

`so_far` and `timeline_svg` are pure; `LiveAnswer` is the widget; `watch` sends the request and keeps both up to date.
"""

import html
import time
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import ipywidgets
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from helpers.errors import InputError
from helpers.lab.figures import COLOURS
from helpers.measure import Exchange, Read, RequestResult, exchange_once, read_stream

REDRAW_S = 0.05
"""Seconds between two redraws at least: drawing takes processor time that a server on this machine would have."""

_WIDTH, _LEFT, _RIGHT, _TOP, _BASE, _HEIGHT = 720, 12, 12, 34, 74, 112


def so_far(request: Mapping[str, Any], start_ns: int, reads: Sequence[Read]) -> RequestResult:
    """What a stream said up to now; `start_ns` is when it was sent, on the clock of the reads (monotonic)."""
    end_ns = reads[-1].at_ns if reads else start_ns
    return read_stream(Exchange(request, start_ns, "left", end_ns, tuple(reads), 200))


def axis_end_ms(now_ms: float) -> float:
    """The first of 1, 2, 5, 10, 20, 50 … seconds, in milliseconds, that is not before `now_ms`."""
    end_ms = 1000.0
    for factor in (2, 2.5, 2) * 8:
        if end_ms >= now_ms:
            break
        end_ms *= factor
    return end_ms


def timeline_svg(arrivals_ms: Sequence[float], now_ms: float) -> str:
    """A time axis from the send on, as SVG: the wait for the first event as a bar, and one stroke for every event.

    `arrivals_ms`: milliseconds after the send, in order; `now_ms` ends what is drawn. Raises InputError where they are
    not in order.
    """
    if any(later < earlier for earlier, later in zip([0.0, *arrivals_ms], arrivals_ms, strict=False)):
        raise InputError("arrivals_ms must be in order and not before the send")
    now_ms = max([now_ms, *arrivals_ms])
    end_ms = axis_end_ms(now_ms)

    def x(ms: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * ms / end_ms, 1)

    first_ms = arrivals_ms[0] if arrivals_ms else now_ms
    label = f"TTFT {first_ms:.0f} ms" if arrivals_ms else "waiting for the first token"
    parts = [
        f'<rect x="{x(0)}" y="{_TOP + 8}" width="{max(x(first_ms) - x(0), 1)}" height="24" fill="{COLOURS[0]}"/>',
        f'<text x="{x(0)}" y="{_TOP - 8}" font-size="14">{label}, then one stroke for each event</text>',
        f'<line x1="{x(0)}" y1="{_BASE}" x2="{x(end_ms)}" y2="{_BASE}" stroke="currentColor"/>',
    ]
    parts += [
        f'<line class="event" x1="{x(ms)}" y1="{_TOP + 2}" x2="{x(ms)}" y2="{_BASE}" stroke="{COLOURS[1]}" '
        'stroke-width="2"/>'
        for ms in arrivals_ms
    ]
    for part in range(5):
        at_ms = end_ms * part / 4
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        parts.append(f'<line x1="{x(at_ms)}" y1="{_BASE}" x2="{x(at_ms)}" y2="{_BASE + 5}" stroke="currentColor"/>')
        parts.append(
            f'<text x="{x(at_ms)}" y="{_BASE + 20}" font-size="13" text-anchor="{anchor}">{at_ms / 1e3:g} s</text>'
        )
    alt = f"Time axis: {label}; {len(arrivals_ms)} events with output until {now_ms:.0f} ms after the send."
    return (
        f'<svg role="img" aria-label="{alt}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'style="max-width:100%" fill="currentColor">{"".join(parts)}</svg>'
    )


def conditions_text(result: RequestResult) -> str:
    """The line under the picture: no number without concurrency, input length and output length.

    Where a length is unknown no number is given, and the line says which.
    """
    if result.error is not None:
        return f"failed: {result.error} {result.detail}".strip()
    lengths = {"input length": result.prompt_tokens, "output length": result.output_tokens}
    unknown = [name for name, tokens in lengths.items() if tokens is None]
    if unknown:
        return f"no numbers: the server does not tell the {' and the '.join(unknown)}"
    tpot = f"{result.tpot_ms:.1f} ms" if result.tpot_ms is not None else f"none ({result.tpot_note.replace('_', ' ')})"
    return (
        f"TTFT {result.ttft_ms:.0f} ms, TPOT {tpot} at concurrency 1 (this client's), "
        f"{result.prompt_tokens} prompt tokens, {result.output_tokens} output tokens"
    )


class LiveAnswer(ipywidgets.VBox):
    """The picture, the text and the line of conditions of one answer; `show` puts a state of it on the screen."""

    def __init__(self) -> None:
        self.picture, self.words, self.numbers = ipywidgets.HTML(), ipywidgets.HTML(), ipywidgets.HTML()
        super().__init__([self.picture, self.words, self.numbers])

    def __repr__(self) -> str:
        # What a stored notebook shows in the place of the picture.
        return "[live figure: run this cell to see the tokens arrive]"

    def show(self, result: RequestResult, now_ms: float, ended: bool = False) -> None:
        """Draw `result` as it is `now_ms` after the send; with `ended` also its numbers, under their conditions."""
        arrivals_ms = [] if result.ttft_ms is None else list(accumulate([result.ttft_ms, *result.event_gaps_ms]))
        self.picture.value = timeline_svg(arrivals_ms, now_ms)
        said = html.escape(result.reasoning_text + result.text)
        self.words.value = f'<div style="white-space:pre-wrap" aria-live="off">{said}</div>'
        if ended:
            self.numbers.value = f"<strong>{html.escape(conditions_text(result))}</strong>"


def watch(
    base_url: str,
    request: Mapping[str, Any],
    answer: LiveAnswer | None = None,
    *,
    redraw_s: float = REDRAW_S,
    **how: Any,
) -> RequestResult:
    """Send one streaming request, show its tokens as they arrive, and return its result.

    `request` and `how` (`path`, `key_variable`, `timeout_s`, `ca_file`) are those of `helpers.measure.measure_request`;
    its errors are these. The picture is drawn at most every `redraw_s` seconds, in times since this call; the last one
    is made of the result. `answer` is a widget that is on the screen already.
    """
    if answer is None:
        answer = LiveAnswer()
        if InteractiveShell.initialized():  # outside a notebook there is nothing to show it in
            display(answer)
    reads: list[Read] = []
    start_ns, drawn_ns = time.monotonic_ns(), 0

    def draw(read: Read) -> None:
        nonlocal drawn_ns
        reads.append(read)
        if time.monotonic_ns() - drawn_ns >= redraw_s * 1e9:
            answer.show(so_far(request, start_ns, reads), (read.at_ns - start_ns) / 1e6)
            drawn_ns = time.monotonic_ns()

    exchange = exchange_once(base_url, request, on_read=draw, **how)
    result = read_stream(exchange)
    answer.show(result, (exchange.end_ns - exchange.start_ns) / 1e6, ended=True)
    return result
