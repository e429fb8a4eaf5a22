"""The live figure: what it draws follows from the reads, it grows while they come, and it ends with the true result."""

import json
import re
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import InputError
from helpers.lab import live
from helpers.measure import Read

REQUEST = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


def event(text="", finish=None, **more):
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice]} | more).encode() + b"\n\n"


USAGE = event(choices=[], usage={"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8})
PIECES = [event("<b>one"), event(" two"), event(" three", "stop"), USAGE, b"data: [DONE]\n\n"]


class Server:
    """Answers one request with `pieces`, each as one chunk, `gap_s` apart; `sent` counts them."""

    def __init__(self, pieces, gap_s=0.02, status="200 OK"):
        self.pieces, self.gap_s, self.status, self.sent = pieces, gap_s, status, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join(10)
        self.listener.close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}/v1"

    def _serve(self):
        connection, _ = self.listener.accept()
        with connection:
            connection.recv(65536)
            head = f"HTTP/1.1 {self.status}\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head.encode())
            for piece in self.pieces:
                time.sleep(self.gap_s)
                connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                self.sent += 1
            connection.sendall(b"0\r\n\r\n")


class Recorder(live.LiveAnswer):
    """A live answer that keeps how many events it had drawn each time, and how many pieces were sent by then."""

    def __init__(self, server):
        super().__init__()
        self.server, self.drawn = server, []

    def show(self, result, now_ms, ended=False):
        super().show(result, now_ms, ended)
        self.drawn.append((strokes(self.picture.value), self.server.sent, ended))


def strokes(svg):
    return svg.count('class="event"')


def test_the_picture_grows_while_the_stream_is_under_way_and_ends_with_the_result():
    with Server(PIECES) as server:
        answer = Recorder(server)
        result = live.watch(server.url, REQUEST, answer, redraw_s=0)
    assert (result.text, result.output_tokens, result.error) == ("<b>one two three", 3, None)
    counts = [count for count, _, _ in answer.drawn]
    assert counts == sorted(counts)
    assert counts[-1] == 3
    assert [ended for _, _, ended in answer.drawn] == [False] * (len(counts) - 1) + [True]
    assert any(count >= 1 and sent < len(PIECES) for count, sent, _ in answer.drawn), "it was drawn too late"
    assert answer.words.value.count("&lt;b&gt;one two three") == 1, "text of a model is no markup"
    assert f"TTFT {result.ttft_ms:.0f} ms" in answer.picture.value
    for condition in ("concurrency 1", "5 prompt tokens", "3 output tokens"):
        assert condition in answer.numbers.value


def test_a_failure_is_said_and_shows_no_number():
    with Server([b'{"error": {"message": "no such model <x>"}}'], status="404 Not Found") as server:
        answer = Recorder(server)
        result = live.watch(server.url, REQUEST, answer)
    assert result.error == "http_404"
    assert "failed: http_404 no such model &lt;x&gt;" in answer.numbers.value
    assert strokes(answer.picture.value) == 0
    assert not re.search(r"\d ms,", answer.numbers.value)


def test_without_the_lengths_no_number_is_shown():
    with Server([event("one"), event(" two", "stop"), b"data: [DONE]\n\n"], gap_s=0) as server:
        result = live.watch(server.url, REQUEST, Recorder(server))
    assert result.ttft_ms is not None
    assert live.conditions_text(result) == (
        "no numbers: the server does not tell the input length and the output length"
    )


def test_a_request_that_cannot_be_sent_is_refused():
    with pytest.raises(InputError, match="stream"):
        live.watch("http://127.0.0.1:9/v1", REQUEST | {"stream": False})


def test_a_stream_under_way_gives_what_came_so_far():
    reads = [Read(1_000_000 * (10 + i), piece) for i, piece in enumerate(PIECES[:2])]
    result = live.so_far(REQUEST, 5_000_000, reads)
    assert (result.ttft_ms, result.event_gaps_ms, result.text) == (5.0, (1.0,), "<b>one two")
    assert live.so_far(REQUEST, 5_000_000, []).ttft_ms is None


@given(st.lists(st.floats(0, 1e7), max_size=30), st.floats(0, 1e7))
def test_every_event_is_drawn_inside_the_picture(gaps_ms, now_ms):
    arrivals_ms = [sum(gaps_ms[: i + 1]) for i in range(len(gaps_ms))]
    svg = live.timeline_svg(arrivals_ms, now_ms)
    assert strokes(svg) == len(arrivals_ms)
    places = [float(x) for x in re.findall(r'x[12]="([\d.]+)"', svg)]
    assert all(12 <= x <= 708 for x in places)
    assert re.search(r'aria-label="Time axis: .+ after the send\."', svg)


@given(st.floats(0, 1e9))
def test_the_axis_ends_at_a_round_number_not_before_now_and_not_far_after(now_ms):
    end_ms = live.axis_end_ms(now_ms)
    assert end_ms >= now_ms
    assert end_ms == 1000 or end_ms <= 2.5 * now_ms
    assert f"{end_ms:g}"[0] in "125"


def test_arrivals_out_of_order_are_refused():
    with pytest.raises(InputError, match="in order"):
        live.timeline_svg([5.0, 4.0], 10)
    with pytest.raises(InputError, match="in order"):
        live.timeline_svg([-1.0], 10)
