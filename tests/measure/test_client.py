"""The client against real sockets: every framing, every way to fail, and what it must never say."""

import gzip
import json
import shlex
import shutil
import socket
import ssl
import subprocess
import threading
import time

import pytest

from helpers.errors import InputError
from helpers.measure import exchange_once, http, measure_request, read_stream
from helpers.measure.driver import Driver, Job
from helpers.measure.endpoint import parse_endpoint
from helpers.measure.http import KERNEL_STAMPS
from tests.measure.replay_server import PlantedModel, ReplayServer, Script, chunk, refusal

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
ROLE = chunk(delta={"role": "assistant", "content": ""})
END = chunk(finish_reason="stop") + chunk(choices=[], usage=USAGE) + b"data: [DONE]\n\n"
SOUND = [(0.0, ROLE), (0.02, chunk(delta={"content": "a"})), (0.04, chunk(delta={"content": "b"})), (0.041, END)]


def ask(server: ReplayServer, script: str = "it", **options):
    return measure_request(server.base_url, {"model": "m", "script": script, "max_tokens": 2}, **options)


@pytest.mark.parametrize("framing", ["chunked", "length", "close"])
def test_every_framing_of_http_1_1_gives_the_same_result(framing):
    with ReplayServer({"it": Script(SOUND, framing=framing)}) as server:
        result = ask(server)
    assert (result.error, result.output_tokens, result.text, result.events) == (None, 2, "ab", 2)
    assert result.connect_ms > 0 and result.headers_ms < result.ttft_ms < result.e2e_ms <= result.stream_closed_ms


def test_the_request_asks_for_a_stream_with_usage_and_sends_the_rest_as_it_is():
    with ReplayServer({"it": Script(SOUND)}) as server:
        measure_request(server.base_url, {"script": "it", "messages": [{"role": "user", "content": "猫"}]})
        measure_request(server.base_url + "/", {"script": "it", "stream_options": {"continuous_usage_stats": True}})
    first, second = (served.request for served in server.served)
    assert first["stream"] is True and first["stream_options"] == {"include_usage": True}
    assert first["messages"][0]["content"] == "猫"
    assert second["stream_options"] == {"continuous_usage_stats": True}


@pytest.mark.skipif(not KERNEL_STAMPS, reason="kernel receive stamps are Linux's")
def test_the_kernel_stamps_every_read_after_the_send_and_before_this_process_had_it():
    with ReplayServer({"it": Script(SOUND)}) as server:
        ask(server)  # The first request of a process switches the kernel's stamps on.
        exchange = exchange_once(server.base_url, {"script": "it"})
    assert exchange.stamps == "kernel"
    before_ns = [before for before, _ in server.served[1].sent_ns]
    for read, sent_ns in zip(exchange.reads, before_ns, strict=False):
        # The two clocks are brought together to within a few microseconds.
        assert sent_ns - 50_000 <= read.kernel_ns <= read.user_ns + 50_000


@pytest.mark.skipif(not KERNEL_STAMPS, reason="kernel receive stamps are Linux's")
def test_a_client_that_comes_late_keeps_the_time_of_arrival():
    steps = [(i / 50, chunk(delta={"content": "a"})) for i in range(5)]
    with ReplayServer({"it": Script([*steps, (0.1, END)])}) as server:
        ask(server)
        # Half the events arrive while this client sleeps.
        exchange = exchange_once(server.base_url, {"script": "it"}, on_read=lambda read: time.sleep(0.03))
    late_ms = [(read.user_ns - read.kernel_ns) / 1e6 for read in exchange.reads]
    assert max(late_ms) > 5
    result = read_stream(exchange)
    user = [read.user_ns for read in exchange.reads]
    assert result.events == 5 and result.output_events[-1].at_ns < user[result.output_events[-1].read]


@pytest.mark.parametrize("cut", [1, 5, 9, 14])
def test_reading_ends_at_done_wherever_it_is_cut_and_does_not_wait_for_a_connection_held_open(cut):
    *writes, (at_s, last) = SOUND
    assert last.endswith(b"data: [DONE]\n\n")
    halves = [*writes, (at_s, last[:-cut]), (at_s + 0.02, last[-cut:])]
    with ReplayServer({"it": Script(halves, end="hold", hold_s=30.0)}) as server:
        exchange = exchange_once(server.base_url, {"script": "it", "max_tokens": 2}, timeout_s=20)
    assert exchange.end == "done"
    result = read_stream(exchange)
    assert (result.error, result.output_tokens) == (None, 2)


def test_a_server_killed_in_mid_stream_leaves_a_failure_that_keeps_what_came():
    with ReplayServer({"it": Script([*SOUND[:3], (0.05, b'data: {"choi')], end="abort")}) as server:
        result = ask(server)
    assert (result.error, result.text, result.events, result.output_tokens) == ("connection", "ab", 2, None)
    assert result.ttft_ms > 0 and result.e2e_ms is None and "closed before" in result.detail


def test_a_body_shorter_than_its_length_is_a_failure():
    short = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 9999\r\n\r\n" + SOUND[1][1]
    with ReplayServer({"it": Script([(0.0, short)], raw=True)}) as server:
        assert ask(server).error == "connection"


def test_a_clean_end_without_an_end_mark_is_truncated():
    with ReplayServer({"it": Script(SOUND[:3])}) as server:
        result = ask(server)
    assert (result.error, result.text) == ("truncated", "ab")


def test_a_refused_connection_is_a_result_and_no_exception():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    result = measure_request(f"http://127.0.0.1:{port}/v1", {})
    assert (result.error, result.ttft_ms) == ("connection", None)
    assert "refused" in result.detail


def test_a_name_with_several_addresses_is_tried_until_one_answers():
    with ReplayServer({"it": Script(SOUND)}) as server:
        endpoint = parse_endpoint(server.base_url)
        with Driver(endpoint) as driver:
            with socket.create_server(("127.0.0.1", 0)) as closed:
                nobody = closed.getsockname()
            driver._addresses = [(socket.AF_INET, nobody), *driver._addresses]
            driver.start(Job(b'{"script": "it"}', {}, "/v1/chat/completions"))
            exchange = _one(driver)
    assert read_stream(exchange).error is None


def _one(driver: Driver):
    for _ in range(50):
        for _, exchange in driver.poll(time.monotonic_ns() + 200_000_000):
            return exchange
    raise AssertionError("nothing came back")


@pytest.mark.parametrize(
    "writes",
    [
        [],
        [(0.0, b"HTTP/1.1 200 OK\r\nX: ")],
        [(i / 50, bytes([byte])) for i, byte in enumerate(b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n" * 4)],
        [(0.0, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n")],
    ],
    ids=["silent", "half a head", "a head byte by byte", "half a body"],
)
def test_a_server_that_trickles_or_falls_silent_runs_into_the_time_limit(writes):
    with ReplayServer({"it": Script([*writes, (5.0, b"")], raw=True)}) as server:
        begun = time.monotonic()
        result = ask(server, timeout_s=0.3)
        assert time.monotonic() - begun < 3
    assert result.error == "timeout" and "0.3 s" in result.detail


def test_what_is_no_http_is_said_to_be_none():
    with ReplayServer({"it": Script([(0.0, b"SSH-2.0-OpenSSH_9.2\r\n\r\n")], raw=True)}) as server:
        assert ask(server).error == "protocol"


def test_an_interim_response_is_not_the_response():
    interim = (
        b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    )
    writes = [(0.0, interim), *SOUND[1:]]
    with ReplayServer({"it": Script(writes, raw=True)}) as server:
        assert ask(server).error is None


def test_a_compressed_body_that_nobody_asked_for_is_refused():
    body = gzip.compress(b"".join(data for _, data in SOUND))
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    with ReplayServer({"it": Script([(0.0, head + body)], raw=True)}) as server:
        result = ask(server)
    assert result.error == "protocol" and "gzip" in result.detail


def test_events_of_megabytes_come_whole():
    text = "x" * 3_000_000
    writes = [SOUND[0], (0.01, chunk(delta={"content": text})), *SOUND[2:]]
    with ReplayServer({"it": Script(writes)}) as server:
        result = ask(server)
    assert (result.error, len(result.text)) == (None, 3_000_001)


def test_a_prompt_of_megabytes_is_sent_whole():
    with ReplayServer({"it": Script(SOUND)}) as server:
        result = measure_request(server.base_url, {"script": "it", "prompt": "y" * 5_000_000}, path="/completions")
    assert result.error is None
    assert len(server.served[0].request["prompt"]) == 5_000_000


def test_an_http_error_carries_its_status_and_the_servers_words():
    with ReplayServer({"it": refusal(429, "slow down")}) as server:
        result = ask(server)
    assert (result.error, result.error_code, result.detail, result.ttft_ms) == ("http_429", 429, "slow down", None)


def test_a_kept_connection_is_used_again_and_one_that_the_server_closed_is_replaced():
    with ReplayServer({"it": Script(SOUND), "bye": Script(SOUND, framing="close")}) as server:
        with Driver(parse_endpoint(server.base_url)) as driver:
            for script in ("it", "it", "bye", "it"):
                driver.start(Job(json.dumps({"script": script}).encode(), {}, "/v1/chat/completions"))
                exchange = _one(driver)
                assert read_stream(exchange).error is None
        assert server.connections == 2


def test_a_kept_connection_that_dies_as_it_is_used_is_asked_again_once():
    """A server with a keep-alive limit may close in the very moment the next request is sent."""
    listener = socket.create_server(("127.0.0.1", 0))
    answers = [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
    ]

    def serve() -> None:
        first, _ = listener.accept()
        first.recv(65536)
        first.sendall(answers[0])
        first.recv(65536)
        first.close()
        second, _ = listener.accept()
        second.recv(65536)
        second.sendall(answers[2])
        second.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with Driver(parse_endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}/v1")) as driver:
        for expected in (b"{}", b"[]"):
            driver.start(Job(b"{}", {}, "/v1/chat/completions"))
            assert _one(driver).body == expected
    thread.join(5)
    listener.close()


def test_leaving_closes_the_connection_and_is_no_success():
    with ReplayServer({"it": Script([SOUND[0], SOUND[1], (0.3, SOUND[2][1]), (0.35, SOUND[2][1])])}) as server:
        with Driver(parse_endpoint(server.base_url)) as driver:
            driver.start(Job(b'{"script": "it"}', {}, "/v1/chat/completions"))
            assert driver.poll(time.monotonic_ns() + 100_000_000) == []
            ((_, exchange),) = driver.leave()
        result = read_stream(exchange)
        assert (result.error, result.text) == ("left", "a")
        deadline = time.monotonic() + 3
        while not server.served[0].left and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.served[0].left


KEY = "sk-planted-0123456789"


def test_the_key_comes_from_the_environment_and_is_never_told(monkeypatch):
    monkeypatch.setenv("PLANTED_KEY", KEY)
    echo = json.dumps({"error": {"message": f"Incorrect API key provided: {KEY}", "code": 401}}).encode()
    scripts = {
        "it": Script(SOUND),
        # The server repeats the key, cut between two reads.
        "echo": Script([(0.0, echo[:60]), (0.03, echo[60:])], status=401, content_type=f"text/{KEY}", framing="length"),
    }
    with ReplayServer(scripts) as server:
        assert ask(server, key_variable="PLANTED_KEY").error is None
        assert server.served[0].headers["authorization"] == f"Bearer {KEY}"
        exchange = exchange_once(server.base_url, {"script": "echo"}, key_variable="PLANTED_KEY")
        result = read_stream(exchange)
    assert (result.error, result.error_code) == ("http_401", 401)
    assert "Incorrect API key" in result.detail
    assert KEY not in repr(exchange) and KEY not in repr(result)
    assert b"".join(read.data for read in exchange.reads).count(b"*" * len(KEY)) == 1


def test_without_a_variable_no_key_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ReplayServer({"it": Script(SOUND)}) as server:
        ask(server)
    assert "authorization" not in server.served[0].headers


@pytest.mark.parametrize("value", [None, "", "with space", "line\nbreak"])
def test_a_key_variable_without_a_usable_key_is_refused_by_its_name_alone(monkeypatch, value):
    if value is None:
        monkeypatch.delenv("PLANTED_KEY", raising=False)
    else:
        monkeypatch.setenv("PLANTED_KEY", value)
    with pytest.raises(InputError, match="PLANTED_KEY") as error:
        measure_request("http://127.0.0.1:1/v1", {}, key_variable="PLANTED_KEY")
    assert not value or value not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000/v1",
        "ftp://host/v1",
        "http://",
        "http://host:99999/v1",
        "http://user:secret@host/v1",
        "http://host/v1?api-key=secret",
        "http://host/v1#secret",
        "http://host/a b",
        None,
        7,
    ],
)
def test_a_base_url_that_is_none_is_refused_and_no_secret_of_it_repeated(url):
    with pytest.raises(InputError) as error:
        parse_endpoint(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://localhost/v1", True),
        ("https://api.example.com/v1", False),
        ("http://127.0.0.1.example.com/v1", False),
        ("http://10.0.0.1/v1", False),
        ("http://0.0.0.0/v1", False),
    ],
)
def test_only_this_machine_is_loopback(url, loopback):
    assert parse_endpoint(url).loopback is loopback


def test_the_host_header_has_brackets_and_a_port_where_they_belong():
    assert parse_endpoint("http://[::1]:8000/v1").host_header == "[::1]:8000"
    assert parse_endpoint("https://example.com/v1/").host_header == "example.com"
    assert parse_endpoint("https://example.com/v1/").path == "/v1"


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"stream": False}, "stream"),
        ({"n": 2}, "'n'"),
        ({"x": float("nan")}, "JSON"),
        ({"x": object()}, "JSON"),
        ("text", "dict"),
    ],
)
def test_a_request_that_one_stream_cannot_answer_is_refused(request_, named):
    with pytest.raises(InputError, match=named):
        measure_request("http://127.0.0.1:1/v1", request_)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for localhost, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so no certificate can be made")
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
            "-addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout key.pem -out cert.pem"
        ),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def tls_server(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    big = [SOUND[0], (0.01, chunk(delta={"content": "x" * 200_000})), *SOUND[2:]]
    scripts = {"it": Script(SOUND), "big": Script(big), "cut": Script(SOUND[:3], framing="close", end="abort")}
    with ReplayServer(scripts, tls=context) as server:
        yield server


def test_https_gives_the_same_result_with_the_kernels_stamps(tls_server, certificate):
    result = ask(tls_server, ca_file=str(certificate / "cert.pem"))
    assert (result.error, result.text, result.output_tokens) == (None, "ab", 2)
    assert result.stamps in (("kernel", "mixed") if KERNEL_STAMPS else ("user",))
    assert len(ask(tls_server, "big", ca_file=str(certificate / "cert.pem")).text) == 200_001


def test_https_cut_without_a_good_bye_is_a_cut_connection(tls_server, certificate):
    assert ask(tls_server, "cut", ca_file=str(certificate / "cert.pem")).error == "connection"


def test_a_certificate_nobody_vouches_for_is_a_failed_connection(tls_server):
    result = ask(tls_server)
    assert result.error == "connection" and "TLS" in result.detail
    assert tls_server.served == []


def test_plain_http_to_a_tls_port_and_tls_to_a_plain_one_are_failures(tls_server):
    assert measure_request(tls_server.base_url.replace("https", "http"), {"script": "it"}).error in (
        "connection",
        "protocol",
    )
    with ReplayServer({"it": Script(SOUND)}) as plain:
        result = measure_request(plain.base_url.replace("http", "https"), {"script": "it"}, timeout_s=0.5)
    assert result.error == "connection"


def test_a_certificate_file_that_is_not_there_is_refused_by_name():
    with pytest.raises(InputError, match=r"no-such\.pem"):
        measure_request("https://127.0.0.1:1/v1", {}, ca_file="no-such.pem")


def test_many_streams_at_once_are_kept_apart():
    with (
        ReplayServer({}, answer=PlantedModel(ttft_s=0.05, tpot_s=0.003)) as server,
        Driver(parse_endpoint(server.base_url)) as driver,
    ):
        for i in range(16):
            body = {"messages": [{"content": "w " * i}], "max_tokens": 5 + i, "stream_options": {"include_usage": True}}
            driver.start(Job(json.dumps(body).encode(), body, "/v1/chat/completions", label=i))
        ended = []
        while driver.running:
            ended += driver.poll(time.monotonic_ns() + 500_000_000)
    results = {job.label: read_stream(exchange) for job, exchange in ended}
    assert {i: (r.error, r.output_tokens, r.prompt_tokens) for i, r in results.items()} == {
        i: (None, 5 + i, 11 + i) for i in range(16)
    }


def test_where_the_system_has_no_kernel_stamps_this_process_stamps_and_says_so(monkeypatch):
    monkeypatch.setattr(http, "HAS_ANCILLARY", False)
    with ReplayServer({"it": Script(SOUND)}) as server:
        result = ask(server)
    assert (result.error, result.stamps, result.text) == (None, "user", "ab")


@pytest.mark.skipif(not KERNEL_STAMPS, reason="kernel receive stamps are Linux's")
def test_a_wall_clock_set_in_mid_stream_takes_the_kernels_stamps_with_it(monkeypatch):
    differences = iter([0, 5_000_000])
    real = http.wall_minus_monotonic_ns
    monkeypatch.setattr(http, "wall_minus_monotonic_ns", lambda: real() + next(differences))
    with ReplayServer({"it": Script(SOUND)}) as server:
        assert ask(server).stamps == "user"
