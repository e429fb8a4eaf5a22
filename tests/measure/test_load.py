"""Loads against a planted model: phases, dialects, failures, and the numbers that come out."""

import math
from collections import Counter

import pytest

from helpers.errors import InputError
from helpers.measure import ClosedLoop, OpenLoop, Plan, load_log, measure_load, read_stream, save_log, summarize, table
from helpers.measure.arrivals import Arrival, Trace
from tests.measure.replay_server import PlantedModel, ReplayServer


def load(model: PlantedModel, arrivals, **options):
    """The run, and the requests for tokens that the server saw (not those for counts)."""
    with ReplayServer({}, answer=model) as server:
        defaults = {"requests": 8, "prompt_tokens": 40, "output_tokens": 4, "warmup": 2}
        plan = Plan(server.base_url, "m", arrivals, **(defaults | options))
        run = measure_load(plan)
        return run, [served for served in server.served if "stream" in served.request]


def test_a_closed_loop_measures_between_burst_and_drain_with_every_slot_busy():
    run, _ = load(PlantedModel(), ClosedLoop(3))
    phases = Counter(sent.phase for sent in run.sent)
    assert (phases["warmup"], phases["burst"], phases["measured"]) == (2, 3, 8) and 1 <= phases["filler"] <= 6
    measured = [s.exchange for s in run.sent if s.phase == "measured"]
    burst = [s.exchange for s in run.sent if s.phase == "burst"]
    assert min(e.start_ns for e in measured) > max(e.start_ns for e in burst)
    changes = sorted([(s.exchange.start_ns, 1) for s in run.sent] + [(s.exchange.end_ns, -1) for s in run.sent])
    running = [sum(change for _, change in changes[: i + 1]) for i in range(len(changes))]
    assert max(running) == 3
    summary = summarize(run)
    assert summary.conditions.full_load_share > 0.5
    assert (summary.conditions.concurrency, summary.conditions.rate_per_s) == (3, None)
    # A TPOT is missing where this process came so late that a stream was there in one read.
    tpot = summary.latencies["tpot_ms"]
    assert summary.errors["total"] == 0 and len(tpot.samples) + tpot.missing == 8


def test_every_prompt_has_the_length_asked_for_and_none_comes_twice():
    run, served = load(PlantedModel(), ClosedLoop(2))
    conditions = summarize(run).conditions
    assert (conditions.prompt_tokens.low, conditions.prompt_tokens.high) == (40, 40)
    assert (conditions.output_tokens.low, conditions.output_tokens.high) == (4, 4)
    prompts = [one.request["messages"][0]["content"] for one in served]
    assert len(set(prompts)) == len(prompts)
    assert run.prompts_counted_by == "tokenize" and run.notes == ()


def test_without_tokenize_the_length_is_set_by_usage_and_said_so():
    run, _ = load(PlantedModel(tokenizes=False), ClosedLoop(1))
    assert summarize(run).conditions.prompt_tokens.low == 40
    assert run.prompts_counted_by == "usage" and any("no /tokenize" in note for note in run.notes)


def test_without_any_count_the_lengths_are_unknown_and_there_is_no_tpot():
    summary = summarize(load(PlantedModel(tokenizes=False, counts=False), ClosedLoop(1))[0])
    assert summary.conditions.prompt_tokens.low is None and "actual unknown" in summary.conditions.to_text()
    assert summary.latencies["tpot_ms"].samples == () and summary.tpot_missing == {"token_count_unknown": 8}
    assert summary.latencies["event_gap_ms"].samples and summary.throughput["output_tokens_per_s"] is None


def test_the_open_loop_sends_at_its_times_and_counts_from_them():
    arrivals = OpenLoop(100.0, seed=5)
    run, _ = load(PlantedModel(), arrivals, requests=20)
    after_warmup = sorted((s.exchange for s in run.sent if s.phase != "warmup"), key=lambda e: e.intended_ns)
    gaps = [(e.intended_ns - after_warmup[0].intended_ns) / 1e9 for e in after_warmup]
    times = arrivals.times_s(len(gaps))
    assert gaps == pytest.approx([t - times[0] for t in times], abs=1e-6)
    assert all(e.start_ns >= e.intended_ns for e in after_warmup)
    assert Counter(s.phase for s in run.sent)["burst"] == 2
    latencies = summarize(run).latencies
    pairs = zip(latencies["ttft_ms"].samples, latencies["ttft_from_send_ms"].samples, strict=True)
    assert all(intended >= sent for intended, sent in pairs)


def test_a_trace_is_sent_as_it_is_with_its_own_lengths():
    trace = Trace((Arrival(0.0, 30, 2), Arrival(0.02, 35, 3), Arrival(0.03)), "t.csv")
    run, _ = load(PlantedModel(), trace, requests=3, warmup=0)
    assert [s.phase for s in run.sent] == ["measured"] * 3
    results = sorted((s.exchange.intended_ns, read_stream(s.exchange)) for s in run.sent)
    assert [(r.prompt_tokens, r.output_tokens) for _, r in results] == [(30, 2), (35, 3), (40, 4)]
    conditions = summarize(run).conditions
    assert (conditions.trace, conditions.prompt_tokens.asked) == ("t.csv", None)


@pytest.mark.parametrize(
    ("unknown", "note"),
    [
        (("ignore_eos",), "ignore_eos"),
        (("temperature",), "temperature"),
        (("ignore_eos", "stream_options"), "stream_options"),
    ],
)
def test_a_server_that_refuses_a_field_is_asked_without_it_and_that_is_said(unknown, note):
    run, _ = load(PlantedModel(unknown=unknown), ClosedLoop(1), requests=3)
    measured = [s.exchange.request for s in run.sent if s.phase == "measured"]
    assert not any(name in request for request in measured for name in unknown)
    assert any(note in said for said in run.notes)
    assert run.ignore_eos_taken is ("ignore_eos" not in unknown)


class WantsTheNewName(PlantedModel):
    def __call__(self, path, body):
        if "max_tokens" in body:
            from tests.measure.replay_server import refusal

            return refusal(400, "Unsupported parameter: use 'max_completion_tokens' instead.")
        return super().__call__(path, body)


def test_a_server_that_wants_the_newer_name_of_the_cap_gets_it():
    run, _ = load(WantsTheNewName(), ClosedLoop(1), requests=2, warmup=0)
    assert all(s.exchange.request["max_completion_tokens"] == 4 for s in run.sent)
    assert summarize(run).errors["total"] == 0


def every_third(i: int) -> bool:
    # The first request finds out how the server wants to be asked.
    return i > 1 and i % 3 == 0


def test_failures_are_no_latencies_and_count_as_infinite_beside_them():
    run, _ = load(PlantedModel(fails=every_third), ClosedLoop(1), requests=30)
    summary = summarize(run)
    assert summary.errors["total"] == 10 and summary.errors["by_kind"] == {"http_503": 10}
    ttft = summary.latencies["ttft_ms"]
    assert len(ttft.samples) == 20 and min(ttft.samples) > 5
    assert ttft.with_failures(0.5) in ttft.samples and ttft.with_failures(0.95) == math.inf
    as_json = summary.as_json()
    assert as_json["ttft_ms"]["p95_with_failures"] == "inf" and as_json["ttft_ms"]["p95"] < 1e4


def test_where_everything_fails_there_are_no_latencies():
    run, _ = load(PlantedModel(fails=lambda i: i > 1, tokenizes=True), ClosedLoop(2), requests=4)
    summary = summarize(run)
    assert summary.errors == {
        "total": 4,
        "of": 4,
        "by_kind": {"http_503": 4},
        "examples": {"http_503": "overloaded"},
    }
    result = summary.as_json()
    assert result["ttft_ms"]["n"] == 0 and result["ttft_ms"]["p50"] is None
    assert result["throughput"]["output_tokens_per_s"] is None


def test_outputs_that_end_early_are_not_filed_under_the_length_asked_for():
    run, _ = load(PlantedModel(unknown=("ignore_eos",), stops_after=3), ClosedLoop(1), output_tokens=9)
    summary = summarize(run)
    assert (summary.conditions.output_tokens.asked, summary.conditions.output_tokens.high) == (9, 3)
    assert "9 asked, 3 to 3 actual" in summary.conditions.to_text()
    assert any("not of the length" in note for note in summary.notes)


def test_an_endpoint_that_cannot_be_used_at_all_is_refused_before_any_load():
    with pytest.raises(InputError, match="connection"):
        measure_load(Plan("http://127.0.0.1:9/v1", "m", ClosedLoop(1), 2, 40, 4))
    with pytest.raises(InputError, match=r"http_503 \(overloaded\)"):
        load(PlantedModel(fails=lambda i: True), ClosedLoop(1))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("requests", 0),
        ("prompt_tokens", 0),
        ("output_tokens", 0),
        ("warmup", -1),
        ("path", "/x"),
        ("temperature", math.nan),
        ("temperature", -1.0),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(field, value):
    fields = {"requests": 2, "prompt_tokens": 40, "output_tokens": 4} | {field: value}
    with pytest.raises(InputError, match=field):
        Plan("http://127.0.0.1/v1", "m", ClosedLoop(1), **fields)


@pytest.mark.parametrize("arrivals", [ClosedLoop(1), ClosedLoop(4), OpenLoop(300.0)])
def test_no_more_is_sent_than_was_announced(arrivals):
    with ReplayServer({}, answer=PlantedModel(tokenizes=False)) as server:
        plan = Plan(server.base_url, "m", arrivals, 10, 40, 4)
        measure_load(plan)
        requests, prompt_tokens, output_tokens = plan.most_sent()
        asked = [served.request for served in server.served if "stream" in served.request]
        assert len(asked) <= requests
        assert sum(request["max_tokens"] for request in asked) <= output_tokens
        model = PlantedModel()
        assert sum(model.prompt_tokens(request) for request in asked) <= prompt_tokens


@pytest.mark.parametrize("arrivals", [ClosedLoop(2), OpenLoop(100.0, 4), Trace((Arrival(0.0), Arrival(0.01, 30)), "t")])
def test_a_log_gives_every_number_again(tmp_path, arrivals):
    run, _ = load(PlantedModel(unknown=("ignore_eos",), fails=every_third), arrivals, requests=2, output_tokens=6)
    save_log(run, tmp_path / "run.jsonl")
    again = load_log(tmp_path / "run.jsonl")
    assert again == run
    assert summarize(again).as_json() == summarize(run).as_json()


def test_a_sweep_has_one_line_for_each_run_with_load_and_lengths():
    runs = [load(PlantedModel(), ClosedLoop(c), requests=4)[0] for c in (1, 2)]
    lines = table([summarize(run) for run in runs]).splitlines()
    assert len(lines) == 3
    for line, concurrency in zip(lines[1:], (1, 2), strict=True):
        assert line.startswith(f"concurrency {concurrency} ") and " 40 " in line and " 4 " in line
