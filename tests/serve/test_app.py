"""The server as clients see it: the official openai client, plain HTTP, and sockets that leave."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from helpers.engine import generate

GREEDY = {"temperature": 0, "max_tokens": 12}
LONG = {"prompt": "x", "temperature": 0, "max_tokens": 4000, "stream": True}
"""Twenty seconds on the slow decoder; no test waits for its end."""


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def wanted(tiny, bytes_tokenizer):
    """The greedy text of the engine itself."""
    return lambda prompt, count=12: bytes_tokenizer.decode(generate(tiny, [bytes_tokenizer.encode(prompt)], count)[0])


def chat(text):
    return {"model": "tiny", "messages": [{"role": "user", "content": text}]} | GREEDY


def test_the_openai_client_gets_the_engines_text(client, wanted):
    answer = client.chat.completions.create(**chat("Hi"))
    prompt = "user: Hi\nassistant:"
    assert answer.choices[0].message.content == wanted(prompt)
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 12)
    assert answer.usage.total_tokens == len(prompt) + 12
    completion = client.completions.create(model="tiny", prompt="Hi", **GREEDY)
    assert completion.choices[0].text == wanted("Hi")


def test_the_openai_client_streams_the_same_text(client, wanted):
    stream = client.chat.completions.create(**chat("Hi"), stream=True, stream_options={"include_usage": True})
    *chunks, usage = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == wanted("user: Hi\nassistant:")
    assert [c.choices[0].finish_reason for c in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert usage.choices == [] and usage.usage.completion_tokens == 12
    assert len({c.id for c in chunks}) == 1
    text = client.completions.create(model="tiny", prompt="Hi", **GREEDY, stream=True)
    assert "".join(c.choices[0].text for c in text) == wanted("Hi")


def test_the_openai_client_sees_errors_as_what_they_are(client):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(**chat("Hi") | {"model": "gpt-9"})
    with pytest.raises(openai.BadRequestError, match="are 512") as caught:
        client.chat.completions.create(**chat("x" * 600))
    assert caught.value.code == "context_length_exceeded"
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("org/other")


def test_many_ragged_requests_at_once_each_get_their_own_text(url, serve, wanted, plain):
    prompts = ["a", "bb " * 9, "a" * 40, "Zug um Zug", "四字熟語", "a" * 39 + "b"]
    for base in (url, serve(prefill_chunk=7, kv_blocks=24, block_tokens=4, speculate=3, max_batch=3)):
        server = plain(base)
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda p, s=server: s.json("/v1/completions", {"prompt": p} | GREEDY), prompts))
        assert [answer["choices"][0]["text"] for answer in answers] == [wanted(prompt) for prompt in prompts]


def test_continuous_usage_counts_every_token(url, plain):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = plain(url).events("/v1/completions", {"prompt": "Hi", "stream_options": options} | GREEDY)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 12
    assert counts[:-1] == sorted(set(counts[:-1]))


def test_other_events_have_null_usage_where_usage_is_asked_for_once(url, plain):
    events = plain(url).events("/v1/completions", {"prompt": "Hi", "stream_options": {"include_usage": True}} | GREEDY)
    assert all(event["usage"] is None for event in events[:-1]) and events[-1]["usage"]["completion_tokens"] == 12
    assert all("usage" not in e for e in plain(url).events("/v1/completions", {"prompt": "Hi"} | GREEDY))


@pytest.mark.parametrize("usage", [False, True])
def test_the_parts_of_ttft_add_up(url, plain, usage):
    body = {"prompt": "Hello", "return_timings": True, "stream_options": {"include_usage": usage}} | GREEDY
    before = time.perf_counter()
    *others, last = plain(url).events("/v1/completions", body)
    after = time.perf_counter()
    assert not any("timings" in event for event in others)
    timings = last["timings"]
    stamps = [timings[f"{name}_at_s"] for name in ("received", "queued", "prefill_start", "prefill_end")]
    stamps.append(timings["first_event_sent_at_s"])
    # One machine, one monotonic clock: the client's stamps enclose the server's.
    assert [before, *stamps, after] == sorted({before, *stamps, after})
    spans = [timings[name] for name in ("parse_s", "queue_s", "prefill_s", "send_s")]
    assert sum(spans) == pytest.approx(stamps[-1] - stamps[0], abs=1e-9)
    assert len(timings["token_at_s"]) == 12


def test_the_parts_of_ttft_are_all_there_in_an_answer_of_one_token(url, plain):
    *_, last = plain(url).events(
        "/v1/completions", {"prompt": "Hello", "return_timings": True} | GREEDY | {"max_tokens": 1}
    )
    assert last["timings"]["send_s"] >= 0 and last["timings"]["decode_s"] == 0


def test_a_whole_answer_brings_its_timings_too_when_asked(url, plain):
    answer = plain(url).json("/v1/completions", {"prompt": "Hi", "return_timings": True} | GREEDY)
    assert answer["timings"]["first_event_sent_at_s"] is None and len(answer["timings"]["token_at_s"]) == 12
    assert "timings" not in plain(url).json("/v1/completions", {"prompt": "Hi"} | GREEDY)


def read_until(connection, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        piece = connection.recv(65536)
        assert piece, data
        data += piece
    return data


def opened(url: str, path: str, body: dict, receive_bytes: int | None = None) -> socket.socket:
    """A connection over which a request was sent; `receive_bytes`: what its system takes in before it is read."""
    host, port = url.removeprefix("http://").removesuffix("/v1").split(":")
    connection = socket.socket()
    connection.settimeout(60)
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect((host, int(port)))
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.mark.parametrize("policy", ["early", "first-token"])
def test_headers_come_early_or_with_the_first_token(serve, slow, policy):
    base = serve(slow, headers=policy, max_batch=1)
    waits = chat("Hi") | {"stream": True}
    with opened(base, "/v1/completions", LONG) as first, opened(base, "/v1/chat/completions", waits) as second:
        # The first holds the only place, so the second waits in the queue.
        read_until(first, b"data:")
        second.settimeout(60 if policy == "early" else 0.1)
        if policy == "early":
            assert b"200 OK" in read_until(second, b'"role":"assistant"')
            with opened(base, "/v1/completions", LONG) as third:
                assert b"200 OK" in read_until(third, b"\r\n\r\n")
        else:
            with pytest.raises(TimeoutError):
                second.recv(1)
        first.close()
        second.settimeout(60)
        assert b"[DONE]" in read_until(second, b"[DONE]")


def until(holds, seconds: float = 60) -> None:
    """Wait until `holds()`; fails where that takes suspiciously long."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def present(server) -> float:
    """Requests that run or wait."""
    return sum(server.metric(f"vllm:num_requests_{state}") for state in ("running", "waiting"))


@pytest.mark.parametrize("policy", ["early", "first-token"])
def test_a_hundred_clients_that_leave_leave_nothing_behind(serve, slow, plain, policy):
    base = serve(slow, headers=policy, max_queue=200, max_batch=4)
    server = plain(base)
    whole, talking = LONG | {"stream": False}, chat("x") | {"max_tokens": 2000, "stream": True}
    kinds = [("/v1/completions", LONG), ("/v1/completions", whole), ("/v1/chat/completions", talking)]
    connections = [opened(base, *kinds[n % 3]) for n in range(100)]
    until(lambda: present(server) == 100)
    assert server.metric("vllm:kv_cache_usage_perc") > 0
    for connection in connections:
        connection.close()
    until(lambda: present(server) == 0)
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert b'finished_reason="abort"} 100\n' in server.ask("GET", "/metrics")[2]
    assert server.json("/v1/completions", {"prompt": "Hi"} | GREEDY)["usage"]["completion_tokens"] == 12


def test_more_than_the_queue_holds_is_429_at_once(serve, slow, plain):
    base = serve(slow, max_batch=1, max_queue=1)
    server = plain(base)
    with opened(base, "/v1/completions", LONG), opened(base, "/v1/completions", LONG):
        until(lambda: present(server) == 2)
        status, headers, data = server.post("/v1/completions", {"prompt": "Hi"})
        assert status == 429 and headers["retry-after"] == "1"
        assert json.loads(data)["error"]["code"] == "queue_full"
        assert server.metric("lab:requests_rejected_total") == 1
    until(lambda: present(server) == 0)
    server.json("/v1/completions", {"prompt": "Hi"} | GREEDY)


def test_a_failing_engine_is_an_error_event_or_an_error_status(serve, plain, fake_decoder):
    decoder = fake_decoder(300)
    decoder.fails = True
    server = plain(serve(decoder))
    status, _, data = server.post("/v1/completions", {"prompt": "Hi"})
    assert status == 500 and "planted" in json.loads(data)["error"]["message"]
    status, _, data = server.post("/v1/completions", {"prompt": "Hi", "stream": True})
    assert status == 200
    event, done = data.split(b"\n\n")[:2]
    assert "planted" in json.loads(event.removeprefix(b"data: "))["error"]["message"] and done == b"data: [DONE]"
    status, _, data = plain(serve(decoder, headers="first-token")).post(
        "/v1/completions", {"prompt": "Hi", "stream": True}
    )
    assert status == 500 and "planted" in json.loads(data)["error"]["message"]
    decoder.fails = False
    assert server.json("/v1/completions", {"prompt": "Hi"} | GREEDY)["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/completions", b"{", 400),
        ("POST", "/v1/completions", b"", 400),
        ("POST", "/v1/chat/completions", b'{"messages": 3}', 400),
        ("POST", "/v1/completions", b'{"prompt": "x", "n": 2}', 400),
        ("POST", "/v1/completions", b" " * 8_000_001, 413),
        ("GET", "/v1/completions", None, 405),
        ("GET", "/v2", None, 404),
        ("POST", "/tokenize", b"[]", 400),
    ],
)
def test_a_bad_request_is_a_json_error_with_the_right_status(url, plain, method, path, body, status):
    got, headers, data = plain(url).ask(method, path, body)
    assert got == status and headers["content-type"] == "application/json"
    error = json.loads(data)["error"]
    assert error["message"] and error["type"] == "invalid_request_error"


def test_tokenize_counts_as_usage_does(url, plain):
    server, text = plain(url), "Grüße, 世界"
    found = server.json("/tokenize", {"model": "tiny", "prompt": text})
    assert found["count"] == len(found["tokens"]) == len(text.encode()) and found["max_model_len"] == 512
    assert server.json("/detokenize", {"tokens": found["tokens"]})["prompt"] == text
    messages = {"messages": [{"role": "user", "content": text}]}
    asked = server.json("/v1/chat/completions", messages | GREEDY)["usage"]["prompt_tokens"]
    assert server.json("/tokenize", messages)["count"] == asked


def test_a_long_prompt_is_tokenised_beside_the_loop_and_refused_by_its_length(url, plain):
    status, _, data = plain(url).post("/v1/completions", {"prompt": "x" * 50_000})
    assert status == 400 and "the prompt has 50000 tokens" in json.loads(data)["error"]["message"]


def test_health_and_models_answer(url, plain):
    assert plain(url).ask("GET", "/health")[0] == 200
    status, _, data = plain(url).ask("GET", "/v1/models")
    assert status == 200 and json.loads(data)["data"][0]["max_model_len"] == 512
    assert plain(url).ask("GET", "/metrics")[1]["content-type"].startswith("text/plain; version=0.0.4")


def test_no_event_holds_half_a_character(serve, plain, fake_decoder):
    class Speaks(fake_decoder):
        """Says a text of two- to four-byte characters, byte by byte."""

        says = "é中🙂".encode() * 4

        def next_token(self, history):
            return self.says[(len(history) - 1) % len(self.says)]

    events = plain(serve(Speaks(300))).events("/v1/completions", {"prompt": "x", "temperature": 0, "max_tokens": 27})
    texts = [event["choices"][0]["text"] for event in events]
    assert texts == ["é", "中", "🙂"] * 3


def test_a_client_that_does_not_read_does_not_hold_up_the_others(serve, plain, fake_decoder):
    base = serve(fake_decoder(256))
    server = plain(base)
    long = LONG | {"max_tokens": 1500}
    with opened(base, "/v1/completions", long, receive_bytes=4096) as idle:
        # Its events pile up in the server, some 300 kB that no socket takes, until it reads.
        until(lambda: server.metric("vllm:generation_tokens_total") >= 1500)
        server.json("/v1/completions", {"prompt": "Hi"} | GREEDY)
        assert read_until(idle, b"[DONE]").count(b"data: ") > 500
