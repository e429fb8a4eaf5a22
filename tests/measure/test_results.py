"""No number without its conditions, and throughput, shares and text from planted runs."""

import dataclasses

import pytest

from helpers.errors import InputError
from helpers.measure import (
    ClosedLoop,
    Conditions,
    Exchange,
    Lengths,
    LoadRun,
    OpenLoop,
    Plan,
    Read,
    Sent,
    summarize,
    table,
)
from helpers.measure.results import report
from tests.measure.replay_server import chunk

LENGTHS = Lengths(40, 40, 40, 40, "usage")


def conditions(**changes) -> Conditions:
    fields = {
        "base_url": "http://127.0.0.1/v1",
        "model": "m",
        "path": "/chat/completions",
        "concurrency": 2,
        "rate_per_s": None,
        "trace": None,
        "seed": None,
        "requests": 4,
        "warmup": 0,
        "burst": 2,
        "fillers": 0,
        "prompt_tokens": LENGTHS,
        "output_tokens": LENGTHS,
        "ignore_eos": True,
        "temperature": 0.0,
        "full_load_share": 1.0,
    }
    return Conditions(**(fields | changes))


@pytest.mark.parametrize(
    "changes", [{"concurrency": None}, {"rate_per_s": 1.0}, {"prompt_tokens": None}, {"output_tokens": 40}]
)
def test_conditions_without_load_or_length_do_not_exist(changes):
    with pytest.raises(InputError):
        conditions(**changes)


def test_a_summary_and_a_table_without_conditions_do_not_exist():
    with pytest.raises(InputError, match="conditions"):
        dataclasses.replace(summarize(planted()), conditions=None)
    for rows in ([], [{"ttft_ms": 5}], [summarize(planted()).as_json()]):
        with pytest.raises(InputError, match="conditions"):
            table(rows)


def exchange(start_ms: float, tokens: int, tpot_ms: float = 10.0, **fields) -> Exchange:
    """First token 100 ms after the start, the others `tpot_ms` apart."""
    times = [start_ms + 100 + i * tpot_ms for i in range(tokens)]
    usage = {"prompt_tokens": 40, "completion_tokens": tokens, "total_tokens": 40 + tokens}
    reads = [Read(round(at * 1e6), chunk(delta={"content": "x"})) for at in times]
    end = chunk(finish_reason="length") + chunk(choices=[], usage=usage) + b"data: [DONE]\n\n"
    reads.append(Read(round(times[-1] * 1e6), end))
    defaults = {"end": "complete", "end_ns": round(times[-1] * 1e6), "status": 200, "head_ns": reads[0].user_ns}
    return Exchange({"max_tokens": tokens}, round(start_ms * 1e6), **({"reads": tuple(reads)} | defaults | fields))


def planted(sent: tuple[Sent, ...] | None = None, concurrency: int = 1) -> LoadRun:
    sent = sent or tuple(Sent("measured", exchange(i * 200.0, 11)) for i in range(4))
    plan = Plan("http://127.0.0.1/v1", "m", ClosedLoop(concurrency), len(sent), 40, 11)
    return LoadRun(plan, sent, "tokenize", True, True, 0.1, 1.0)


def test_throughput_is_of_the_system_and_not_the_sum_of_what_a_request_gets():
    # Each request: 100 ms to the first token, then 100 a second; 11 tokens in 200 ms.
    throughput = summarize(planted()).throughput
    assert throughput["output_tokens_per_s"] == pytest.approx(44 / 0.8)
    assert throughput["output_tokens_per_s_of_one_request"] == pytest.approx(100)
    assert throughput["requests_per_s"] == pytest.approx(4 / 0.8)


def test_output_of_other_phases_counts_where_it_falls_into_the_measured_time():
    sent = (
        Sent("burst", exchange(-150.0, 11)),
        Sent("measured", exchange(0.0, 11)),
        Sent("filler", dataclasses.replace(exchange(50.0, 11), end="left", end_ns=200_000_000)),
    )
    # Window 0 to 200 ms: of the burst's events at -50 … 50 those from 0 on (6), 11, of the filler's those to 200 (6).
    assert summarize(planted(sent, 2)).throughput["output_tokens_per_s"] == pytest.approx((6 + 11 + 6) / 0.2)


def test_the_share_of_full_load_is_the_time_with_every_slot_busy():
    sent = (Sent("measured", exchange(0.0, 11)), Sent("measured", exchange(100.0, 11)))
    # Both run from 100 to 200 of 0 to 300 ms.
    assert summarize(planted(sent, 2)).conditions.full_load_share == pytest.approx(1 / 3)
    assert any("all slots were busy only 33%" in note for note in summarize(planted(sent, 2)).notes)


def test_percentiles_are_over_requests_and_event_gaps_over_events():
    latencies = summarize(planted()).latencies
    assert latencies["ttft_ms"].samples == (100.0,) * 4 and latencies["tpot_ms"].samples == (10.0,) * 4
    assert len(latencies["event_gap_ms"].samples) == 40
    result = summarize(planted()).as_json()
    # Gaps of one request hang together: no interval as of 40 independent samples.
    assert result["ttft_ms"]["p50_interval"] is not None and result["event_gap_ms"]["p50_interval"] is None


def test_in_an_open_loop_latencies_count_from_the_intended_start_and_in_a_closed_one_from_the_send():
    sent = tuple(Sent("measured", exchange(at, 11, intended_ns=round((at - 30) * 1e6))) for at in (0.0, 200.0))
    open_loop = dataclasses.replace(planted(sent).plan, arrivals=OpenLoop(5.0))
    closed, opened = summarize(planted(sent)), summarize(dataclasses.replace(planted(sent), plan=open_loop))
    for key, from_send in (("ttft_ms", 100.0), ("e2e_ms", 200.0)):
        assert closed.latencies[key].samples == (from_send,) * 2
        assert opened.latencies[key].samples == (from_send + 30,) * 2
    assert opened.latencies["ttft_from_send_ms"].samples == (100.0,) * 2
    assert opened.client_lag_ms["start_max"] == 30


def test_lag_of_the_client_is_the_time_between_the_kernel_and_this_process():
    reads = (Read(105_000_000, chunk(delta={"content": "x"}), 103_000_000), Read(120_000_000, b"", 119_000_000))
    lag = summarize(planted((Sent("measured", exchange(0.0, 1, reads=reads)),))).client_lag_ms
    assert (lag["receive_p50"], lag["receive_max"], lag["kernel_stamped_share"]) == (1.0, 2.0, 1.0)
    assert (lag["cpu_s"], lag["cpu_share"]) == (0.1, 0.1)
    assert summarize(planted()).client_lag_ms["receive_p50"] is None


def test_the_text_puts_the_conditions_first_and_says_what_few_samples_are_worth():
    text = report(summarize(planted()).as_json())
    first = text.splitlines()[0]
    assert "concurrency 1" in first and "40 prompt tokens" in first and "11 output tokens" in first
    assert "to ∞)" in text and "that takes 72" in text and "errors: 0 of 4" in text


def test_a_prefix_cache_that_answers_is_told():
    usage = {
        "prompt_tokens": 40,
        "completion_tokens": 1,
        "total_tokens": 41,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    data = chunk(delta={"content": "x"}) + chunk(finish_reason="length") + chunk(choices=[], usage=usage)
    run = planted((Sent("measured", exchange(0.0, 1, reads=(Read(100_000_000, data),))),))
    assert any("80% of the prompt tokens" in note for note in summarize(run).notes)
