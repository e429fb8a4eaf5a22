"""The measuring client on the server in a process of its own: both must tell the same story, from their own clocks."""

import itertools
import json
import random
import time

import pytest

from helpers.measure import ClosedLoop, OpenLoop, Plan, exchange_once, measure_load, read_stream, summarize
from helpers.serve import Options, spawned

pytestmark = pytest.mark.slow

STAMP_MS = 1.0
"""How far the kernel's stamp, moved from the wall clock to the monotonic one, may lie from that clock."""


@pytest.fixture(scope="module")
def spawn(tiny_config, tmp_path_factory):
    """``with spawn(max_batch=2, …) as url``: a server of the tiny model with these options."""
    file = tmp_path_factory.mktemp("tiny") / "config.json"
    file.write_text(json.dumps(tiny_config))
    return lambda **options: spawned(f"random:{file}", Options(**options), "--name=tiny", "--threads=1")


def last_event(exchange) -> dict:
    *_, last, done, _ = exchange.body.split(b"\n\n")
    assert done == b"data: [DONE]"
    return json.loads(last.removeprefix(b"data: "))


@pytest.mark.parametrize("options", [{}, {"headers": "first-token", "prefill_chunk": 16, "speculate": 3}])
def test_ttft_is_upload_and_parse_and_queue_and_prefill_and_delivery_in_this_order(spawn, options):
    rng = random.Random(1)
    with spawn(**options) as url:
        for number in range(20):
            text = f"{number} " + " ".join(rng.choices(("sea", "land", "sky"), k=rng.randint(1, 90)))
            request = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
            exchange = exchange_once(url, request | {"temperature": 0, "return_timings": True})
            result, timings = read_stream(exchange), last_event(exchange)["timings"]
            assert result.error is None
            names = ("received", "queued", "prefill_start", "prefill_end", "first_event_sent")
            seen_ms = [(timings[f"{name}_at_s"] - exchange.start_ns / 1e9) * 1e3 for name in names]
            # Two processes, one monotonic clock: the server's stamps lie between the client's.
            spans = [b - a for a, b in itertools.pairwise([0.0, *seen_ms, result.ttft_ms])]
            assert min(spans[:-1]) >= 0 and spans[-1] >= -STAMP_MS, spans
            assert len(timings["token_at_s"]) == result.output_tokens == 8


@pytest.mark.parametrize("arrivals", [ClosedLoop(4), OpenLoop(40.0, seed=2)])
def test_a_load_is_what_the_server_counts_and_leaves_nothing_behind(spawn, plain, arrivals):
    with spawn(max_batch=3, kv_blocks=40, speculate=2) as url:
        server = plain(url)
        run = measure_load(Plan(url, "tiny", arrivals, requests=24, prompt_tokens=90, output_tokens=12))
        summary = summarize(run)
        assert summary.errors["total"] == 0 and run.prompts_counted_by == "tokenize" and run.prompts_exact
        lengths = (summary.conditions.prompt_tokens, summary.conditions.output_tokens)
        assert [(known.low, known.high) for known in lengths] == [(90, 90), (12, 12)]
        ended = [read_stream(sent.exchange) for sent in run.sent if sent.exchange.end != "left"]
        # One more request found out how the server wants to be asked: one token of output.
        tokens, prompts = sum(r.output_tokens for r in ended) + 1, sum(r.prompt_tokens for r in ended)
        wait_until_idle(server)
        assert server.metric("vllm:kv_cache_usage_perc") == 0
        assert server.metric("vllm:generation_tokens_total") >= tokens
        assert server.metric("vllm:prompt_tokens_total") > prompts
        # A filler that the client left may have ended all the same.
        assert len(ended) + 1 <= server.metric("vllm:request_generation_tokens_count") <= len(run.sent) + 1


def wait_until_idle(server, seconds: float = 60) -> None:
    """Wait until nothing runs or waits; fails where that takes suspiciously long."""
    end = time.monotonic() + seconds
    while sum(server.metric(f"vllm:num_requests_{state}") for state in ("running", "waiting")):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)
