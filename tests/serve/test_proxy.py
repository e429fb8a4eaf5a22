"""The proxy: without a fault no byte changes, and each fault is the one that was asked for."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import InputError
from helpers.measure import ClosedLoop, Plan, exchange_once, measure_load, read_stream, summarize
from helpers.serve.proxy import Framing, proxy
from tests.measure.replay_server import PlantedModel, ReplayServer, Script, chunk

REQUEST = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}


@pytest.fixture(scope="module")
def upstream():
    with ReplayServer({}, answer=PlantedModel(ttft_s=0.05, tpot_s=0.01)) as server:
        yield server


def test_without_a_fault_no_byte_changes_and_events_are_not_gathered(upstream):
    with proxy(upstream.base_url) as url:
        assert url.endswith("/v1") and url != upstream.base_url
        through, straight = exchange_once(url, REQUEST), exchange_once(upstream.base_url, REQUEST)
        assert (through.body, through.headers, through.status) == (straight.body, straight.headers, 200)
        result = read_stream(through)
        assert result.error is None and result.events == 6 and result.reads_with_output > 1
        load = measure_load(Plan(url, "m", ClosedLoop(3), requests=6, prompt_tokens=40, output_tokens=4))
        summary = summarize(load)
        # Connections are kept: only the first requests opened one.
        assert summary.errors["total"] == 0 and summary.latencies["connect_ms"].samples == ()


def test_a_buffer_makes_groups_of_events_and_loses_none(upstream):
    with proxy(upstream.base_url, buffer_bytes=600) as url:
        exchange = exchange_once(url, REQUEST)
    result = read_stream(exchange)
    assert exchange.body == exchange_once(upstream.base_url, REQUEST).body
    assert result.error is None and result.reads_with_output <= result.events / 2


@pytest.mark.slow
def test_a_large_buffer_gives_the_whole_stream_at_its_end(upstream):
    with proxy(upstream.base_url, buffer_bytes=10**6) as url:
        load = measure_load(Plan(url, "m", ClosedLoop(1), requests=2, prompt_tokens=40, output_tokens=4))
    assert summarize(load).tpot_missing == {"unobservable_single_read": 2}


def test_the_timer_holds_the_first_output_and_not_the_role_event(upstream):
    with proxy(upstream.base_url, first_event_delay_s=0.2) as url:
        exchange = exchange_once(url, REQUEST)
    result = read_stream(exchange)
    before = exchange_once(upstream.base_url, REQUEST)
    # The model's own 50 ms and the timer's 200; the role event did not wait for them.
    assert result.ttft_ms >= 250 and result.output_events[0].read > 0
    assert exchange.body == before.body


@pytest.mark.slow
def test_every_response_on_a_connection_of_its_own_and_the_client_is_told(upstream):
    with proxy(upstream.base_url, close_each=True, accept_delay_s=0.03) as url:
        load = measure_load(Plan(url, "m", ClosedLoop(2), requests=5, prompt_tokens=40, output_tokens=3))
    measured = [read_stream(sent.exchange) for sent in load.sent if sent.phase == "measured"]
    assert all(r.error is None and r.connect_ms is not None and r.ttft_ms >= 30 for r in measured)


def test_a_client_that_leaves_is_seen_leaving_by_the_server():
    long = Script(
        [(0.0, chunk(delta={"content": "a"})), *[(0.05 * i, chunk(delta={"content": "b"})) for i in range(99)]]
    )
    with ReplayServer({}, answer=lambda path, body: long) as server, proxy(server.base_url) as url:
        exchange = exchange_once(url, REQUEST, timeout_s=0.2)
        assert exchange.end == "timeout"
        end = time.monotonic() + 20
        while not server.served[0].left:
            assert time.monotonic() < end, "the server still sends"
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("url", "fault", "named"),
    [
        ("https://x/v1", {}, "upstream_url"),
        ("nothing", {}, "upstream_url"),
        ("http://127.0.0.1:1/v1", {"buffer_bytes": -1}, "buffer_bytes"),
        ("http://127.0.0.1:1/v1", {"accept_delay_s": float("nan")}, "accept_delay_s"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(url, fault, named):
    with pytest.raises(InputError, match=named), proxy(url, **fault):
        pass


RESPONSES = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\nTrailer: 1\r\n\r\n",
    b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
)


@given(st.lists(st.sampled_from(RESPONSES), min_size=1, max_size=4), st.lists(st.integers(1, 40), max_size=30))
def test_responses_are_told_apart_however_the_bytes_come(responses, cuts):
    data, framing, pieces, at = b"".join(responses), Framing(), [], 0
    for cut in [*cuts, len(data)]:
        pieces += framing.feed(data[at : at + cut])
        at += cut
    assert b"".join(piece for _, piece in pieces) == data
    kinds = [kind for kind, _ in pieces]
    assert kinds.count("end") == len(responses) and kinds[-1] == "end"
    assert kinds.count("head") == len(responses) + sum(b" 100 " in response for response in responses)


def test_the_json_of_another_route_passes_whole(upstream):
    import http.client

    with proxy(upstream.base_url, buffer_bytes=10**6) as url:
        connection = http.client.HTTPConnection(url.split("/")[2], timeout=10)
        connection.request("POST", "/tokenize", json.dumps(REQUEST))
        assert json.loads(connection.getresponse().read()) == {"count": 12}
        connection.close()
