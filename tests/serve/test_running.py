"""Starting, stopping and killing the server; in a thread, and as the process that ``python -m helpers serve`` is."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from helpers import cli
from helpers.engine import generate, load_smollm2
from helpers.engine.tokenizer import SMOLLM2_SYSTEM
from helpers.errors import InputError
from helpers.measure import measure_request
from helpers.serve import Options, running, spawned
from helpers.serve.options import HEADER_POLICIES
from helpers.serve.running import READY, bound


@pytest.fixture(scope="module")
def config_file(tiny_config, tmp_path_factory):
    file = tmp_path_factory.mktemp("tiny") / "config.json"
    file.write_text(json.dumps(tiny_config))
    return file


def test_it_starts_again_on_its_port_and_leaves_no_thread(tiny, bytes_tokenizer, plain):
    before = set(threading.enumerate())
    with running(tiny, bytes_tokenizer) as url:
        port = int(url.split(":")[2].removesuffix("/v1"))
        assert plain(url).ask("GET", "/health")[0] == 200
        with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1 port {port}"):
            bound("127.0.0.1", port)
    assert set(threading.enumerate()) == before
    with running(tiny, bytes_tokenizer, port=port) as again:
        assert again == url
        assert plain(url).ask("GET", "/v1/models")[0] == 200


def test_its_connections_do_not_wait_for_acknowledgements_between_writes():
    no_delay = []

    async def serve_one():
        done = asyncio.Event()

        async def answer(_, writer):
            no_delay.append(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()
            done.set()

        async with await asyncio.start_server(answer, sock=bound("127.0.0.1", 0)) as server:
            host, port = server.sockets[0].getsockname()
            with socket.create_connection((host, port)):
                await done.wait()

    asyncio.run(serve_one())
    assert no_delay and no_delay[0] != 0


def test_an_exception_in_the_block_stops_the_server(tiny, bytes_tokenizer):
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), running(tiny, bytes_tokenizer):
        _ = 1 / 0
    assert set(threading.enumerate()) == before


def test_stopping_ends_a_stream_with_an_error_event(slow, bytes_tokenizer):
    result = []
    request = {"model": "fake", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "temperature": 0}
    with running(slow, bytes_tokenizer) as url:
        first = threading.Event()
        client = threading.Thread(
            target=lambda: result.append(measure_request(url, request, on_read=lambda read: first.set()))
        )
        client.start()
        assert first.wait(30)
    client.join(30)
    assert result[0].error == "stream_error"


def test_our_own_client_measures_what_the_server_says(url):
    request = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "temperature": 0}
    result = measure_request(url, request)
    assert (result.error, result.output_tokens, result.finish_reason) == (None, 20, "length")
    assert result.ttft_ms > 0 and result.tpot_ms > 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"max_batch": 0}, "max_batch must be a whole number of at least 1"),
        ({"prefill_chunk": -1}, "prefill_chunk"),
        ({"kv_blocks": 1.5}, "kv_blocks"),
        ({"max_queue": True}, "max_queue"),
        ({"headers": "late"}, "headers must be one of early, first-token"),
        ({"prefix_caching": 1}, "prefix_caching"),
    ],
)
def test_bad_options_are_refused_by_name(options, reason):
    with pytest.raises(InputError, match=reason):
        Options(**options)


@pytest.mark.parametrize(
    "options",
    [
        Options(),
        Options(max_batch=3, headers=HEADER_POLICIES[1], prefix_caching=False, kv_dtype="int8", speculate=2),
        Options(system_prompt="--be 'kind'", prefill_chunk=0),
    ],
)
def test_options_survive_the_command_line(options):
    args = cli.build_parser(["serve"]).parse_args(["serve", "--model=random:x", *options.as_arguments()])
    assert args.module.options_of(args) == options


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--model", "no-such-thing"], "no-such-thing is neither smollm2, nor a folder"),
        (["--model", "random:no-such-shape"], "no-such-shape"),
        (["--headers", "late"], "headers must be one of"),
        (["--max-batch", "0"], "max_batch"),
        (["--port", "99999", "--model", "random:{config}"], "port must be"),
        (["--host", "no.such.host.invalid", "--model", "random:{config}"], "cannot listen on no.such.host.invalid"),
        (["--device", "abacus", "--model", "random:{config}"], "abacus"),
        (["--dtype", "int3", "--model", "random:{config}"], "int3"),
    ],
)
def test_a_server_that_cannot_start_says_why_in_one_line(config_file, capsys, arguments, reason):
    assert cli.main(["serve", *(word.format(config=config_file) for word in arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and reason in err


def started(config_file, *arguments: str) -> tuple[subprocess.Popen, str]:
    words = [sys.executable, "-m", "helpers", "serve", "--model", f"random:{config_file}", "--port", "0", *arguments]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stderr.readline()
    assert line.startswith(READY), line + process.stderr.read()
    return process, line.removeprefix(READY).strip()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_a_signal_and_reports(config_file, plain, number):
    process, url = started(config_file, "--json", "--name", "mine")
    try:
        assert plain(url).json("/v1/completions", {"model": "mine", "prompt": "x", "max_tokens": 3})["model"] == "mine"
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert json.loads(out) == {"base_url": url, "model": "mine", "stopped": True}
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_server_killed_in_mid_stream_is_a_truncation_and_what_came_is_kept(config_file):
    process, url = started(config_file, "--name", "tiny")
    request = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "max_tokens": 480, "temperature": 0}
    reads = []

    def kill(read):
        reads.append(read)
        if len(reads) == 20:
            os.kill(process.pid, signal.SIGKILL)

    try:
        result = measure_request(url, request, on_read=kill)
    finally:
        process.kill()
        process.communicate()
    assert result.error in ("truncated", "connection")
    assert result.ttft_ms is not None and result.finish_reason is None


@pytest.mark.slow
def test_a_server_in_its_own_process_stops_with_the_block(config_file, plain):
    with spawned(f"random:{config_file}", Options(max_batch=2), "--name=tiny") as url:
        assert plain(url).ask("GET", "/health")[0] == 200
    with pytest.raises(OSError):
        plain(url).ask("GET", "/health")
    with pytest.raises(InputError, match="the server did not start: error: nonsense is neither"):
        spawned("nonsense").__enter__()


@pytest.mark.slow
def test_the_real_model_answers_over_http_as_it_does_alone(smollm2_path, smollm2_tokenizer, plain):
    decoder = load_smollm2(layout="input-split")
    end = [smollm2_tokenizer.token("<|im_end|>")]
    questions = ["What is the capital of France?", "Say hello in French.", "你好，请介绍一下你自己。"]
    prompts = [smollm2_tokenizer.chat(question) for question in questions]
    wanted = [smollm2_tokenizer.decode(generate(decoder, [p], 12, stop_tokens=end)[0]) for p in prompts]
    options = Options(speculate=3, prefill_chunk=16, system_prompt=SMOLLM2_SYSTEM)
    with running(decoder, smollm2_tokenizer, options) as url:
        server, answers = plain(url), {}

        def ask(question):
            messages = [{"role": "user", "content": question}]
            body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            events = server.events("/v1/chat/completions", body)
            answers[question] = "".join(e["choices"][0]["delta"].get("content", "") for e in events)

        threads = [threading.Thread(target=ask, args=(question,)) for question in questions]
        for thread in threads:
            thread.start()
            time.sleep(0.05)
        for thread in threads:
            thread.join()
    assert [answers[question] for question in questions] == wanted
    assert "Paris" in wanted[0]
