"""Observations: the numbers of a run, live or stored, and JSON that comes back equal or is refused."""

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts.observation import Observation, Run, ServerWindow, Spread
from helpers.errors import InputError
from helpers.measure import LoadRun, OpenLoop, Plan, Sent, Trace, save_log, summarize
from helpers.measure.arrivals import Arrival
from helpers.measure.observe import (
    observation_json,
    parse_observation,
    read_observation,
    run_of,
    run_of_summary,
    spread,
)
from tests.measure.test_results import exchange, planted


def with_prompt(one, prompt: str):
    return dataclasses.replace(one, request={**one.request, "messages": [{"role": "user", "content": prompt}]})


def as_json(load: LoadRun) -> dict:
    return json.loads(json.dumps(summarize(load).as_json()))


def test_a_run_holds_what_the_client_saw():
    run = run_of(planted(), "alone", server=ServerWindow("vllm", 1.0), client_cpu_share=0.4)
    assert (run.role, run.concurrency, run.requests, run.output_tokens) == ("alone", 1, 4, 11)
    assert (run.ttft.p50, run.tpot.p50, run.e2e.p50, run.gap.n) == (100.0, 10.0, 200.0, 40)
    assert run.requests_per_s == pytest.approx(5.0) and run.output_tokens_per_s == pytest.approx(55.0)
    assert run.ttft_of_window_mean == run.ttft.mean == pytest.approx(100.0)
    # The thread took 0.1 of 1 s, the process more: the process counts.
    assert run.client_cpu_share == 0.4 and run.server.names == "vllm"
    assert run.errors == {} and run.prompts_repeat is False
    assert run_of(planted()).client_cpu_share == pytest.approx(0.1)


def test_events_per_read_count_only_reads_with_output_and_new_connections_are_a_share():
    events = exchange(0.0, 11)
    merged = dataclasses.replace(
        events,
        reads=(dataclasses.replace(events.reads[0], data=b"".join(r.data for r in events.reads)),),
        connect_ns=2_000_000,
    )
    run = run_of(planted((Sent("measured", events), Sent("measured", dataclasses.replace(merged, start_ns=10**9)))))
    assert run.events_per_read == pytest.approx(22 / 12)
    assert (run.sent_on_new_connection, run.connect.p50, run.connect.n) == (0.5, 2.0, 1)


def test_ttft_of_the_window_counts_burst_and_fillers_and_not_the_warm_up():
    sent = [
        Sent("warmup", exchange(0.0, 11)),
        Sent("burst", exchange(300.0, 11)),
        Sent("measured", exchange(600.0, 11)),
    ]
    late = dataclasses.replace(sent[1].exchange, start_ns=sent[1].exchange.start_ns - 50_000_000)
    sent[1] = Sent("burst", late)
    run = run_of(planted(tuple(sent)))
    assert run.ttft.mean == pytest.approx(100.0) and run.ttft_of_window_mean == pytest.approx(125.0)


def test_errors_are_counted_by_kind_and_have_no_latency():
    refused = dataclasses.replace(exchange(0.0, 11), status=429, reads=())
    run = run_of(planted((Sent("measured", refused), Sent("measured", exchange(300.0, 11)))))
    assert run.errors == {"http_429": 1} and run.ttft.n == 1 and run.requests == 2


def test_prompts_that_were_sent_before_are_seen_whatever_their_phase():
    one, again = with_prompt(exchange(0.0, 11), "a"), with_prompt(exchange(300.0, 11), "a")
    new = with_prompt(exchange(600.0, 11), "b")
    assert run_of(planted((Sent("warmup", one), Sent("measured", again)))).prompts_repeat
    assert not run_of(planted((Sent("warmup", one), Sent("measured", new)))).prompts_repeat


def test_an_open_loop_counts_from_the_intended_start_and_a_trace_has_its_mean_rate():
    late = dataclasses.replace(exchange(100.0, 11), intended_ns=60_000_000)
    plan = Plan("http://127.0.0.1/v1", "m", OpenLoop(3.0), 1, 40, 11)
    load = LoadRun(plan, (Sent("measured", late),), "usage", True, True, 0.1, 1.0)
    run = run_of(load)
    assert (run.rate_per_s, run.concurrency, run.ttft.p50) == (3.0, None, 140.0)
    assert run.ttft_of_window_mean == pytest.approx(100.0)
    trace = Trace((Arrival(0.0, 40, 11), Arrival(2.0, 40, 11), Arrival(4.0, 40, 11)), "t.csv")
    sent = tuple(Sent("measured", exchange(i * 2000.0, 11)) for i in range(3))
    assert (
        run_of(
            dataclasses.replace(load, plan=dataclasses.replace(plan, arrivals=trace, requests=3), sent=sent)
        ).rate_per_s
        == 0.5
    )


def test_percentiles_of_few_samples_are_left_out():
    assert spread([]) == Spread()
    few, some, many = spread([1.0, 3.0, None]), spread(range(20)), spread(range(100))
    assert (few.p50, few.p95, few.p99, few.mean, few.max, few.n) == (1.0, None, None, 2.0, 3.0, 2)
    assert (some.p95, some.p99) == (18, None) and many.p99 == 98


def test_the_json_of_measure_gives_the_same_run_as_far_as_it_tells():
    load = planted()
    full, told = run_of(load), run_of_summary(as_json(load))
    for name in (
        "ttft",
        "tpot",
        "gap",
        "e2e",
        "connect",
        "requests_per_s",
        "output_tokens_per_s",
        "concurrency",
        "errors",
    ):
        assert getattr(told, name) == getattr(full, name), name
    assert told.sent_on_new_connection == full.sent_on_new_connection
    assert told.headers == Spread() and told.events_per_read is None


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("conditions", None, "conditions"),
        ("ttft_ms", 3, "ttft_ms"),
        ("throughput", {"requests_per_s": "fast"}, "throughput.requests_per_s"),
        ("errors", {"by_kind": {"http_429": "many"}}, "errors.by_kind"),
        ("client_lag_ms", {"receive_p50": True}, "client_lag_ms.receive_p50"),
    ],
)
def test_a_summary_that_is_none_is_refused_by_its_key(key, value, named):
    with pytest.raises(InputError, match=named):
        run_of_summary(as_json(planted()) | {key: value})


numbers = st.floats(0, 1e6)
spreads = st.builds(Spread, p50=st.none() | numbers, max=st.none() | numbers, n=st.integers(0, 99))
windows = st.builds(ServerWindow, st.sampled_from(["vllm", "lab"]), numbers, running_p50=st.none() | numbers)
runs = st.builds(
    Run,
    st.sampled_from(["load", "alone", "direct"]),
    st.floats(1, 1e6),
    numbers,
    concurrency=st.integers(1, 64),
    ttft=spreads,
    gap=spreads,
    errors=st.dictionaries(st.sampled_from(["http_429", "timeout"]), st.integers(0, 9)),
    prompts_repeat=st.booleans(),
    base_url=st.none() | st.just("http://h/v1"),
    server=st.none() | windows,
)
observations = st.builds(
    Observation,
    st.lists(runs, max_size=3).map(tuple),
    clues=st.dictionaries(st.sampled_from(["ab:kv_preemption"]), st.text(max_size=5)),
    traits=st.frozensets(st.sampled_from(["cfg_moe", "cfg_tp_gt1"])),
    claimed_ttft_ms=st.none() | numbers,
    claimed_by=st.none() | st.text(max_size=5),
    notes=st.lists(st.text(max_size=5), max_size=2).map(tuple),
)


@settings(max_examples=30)
@given(observations)
def test_an_observation_comes_back_equal_from_its_json(observation):
    assert parse_observation(json.loads(json.dumps(observation_json(observation)))) == observation


RUN = observation_json(Observation((run_of(planted(), server=ServerWindow("vllm", 1.0)),)))


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("schema",), "other", "schema"),
        (("runs",), {}, "runs"),
        (("surprise",), 1, "surprise"),
        (("traits",), "cfg_moe", "traits"),
        (("clues",), {"a": 1}, "clues"),
        (("claimed_ttft_ms",), "soon", "claimed_ttft_ms"),
        (("runs", 0), 7, r"runs\[0\]"),
        (("runs", 0, "role"), "boss", r"runs\[0\]"),
        (("runs", 0, "rate_per_s"), 2.0, r"runs\[0\]"),
        (("runs", 0, "requests"), 1.5, r"runs\[0\].requests"),
        (("runs", 0, "requests"), 10**400, r"runs\[0\].requests"),
        (("runs", 0, "concurrency"), 0, r"runs\[0\]': concurrency"),
        (("runs", 0, "prompt_tokens"), 0, r"runs\[0\]': prompt_tokens"),
        (("runs", 0, "prompts_repeat"), 1, r"runs\[0\].prompts_repeat"),
        (("runs", 0, "ttft"), None, r"runs\[0\].ttft"),
        (("runs", 0, "ttft", "p50"), "fast", r"runs\[0\].ttft.p50"),
        (("runs", 0, "ttft", "p42"), 1.0, r"runs\[0\].ttft.p42"),
        (("runs", 0, "server", "names"), None, r"runs\[0\].server.names"),
        (("runs", 0, "server", "preemptions"), -1, r"runs\[0\].server.preemptions"),
        (("runs", 0, "errors"), {"http_429": "x"}, r"runs\[0\].errors"),
    ],
)
def test_a_malformed_observation_is_refused_by_its_key(path, value, named):
    raw = json.loads(json.dumps(RUN))
    holder = raw
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    with pytest.raises(InputError, match=named):
        parse_observation(raw)


def test_a_missing_key_is_named():
    raw = json.loads(json.dumps(RUN))
    del raw["runs"][0]["prompt_tokens"]
    with pytest.raises(InputError, match=r"runs\[0\].prompt_tokens' is missing"):
        parse_observation(raw)


def test_log_summary_and_observation_are_told_apart(tmp_path):
    load = planted()
    save_log(load, tmp_path / "log")
    (tmp_path / "summary").write_text(json.dumps(as_json(load)))
    (tmp_path / "observation").write_text(json.dumps(RUN))
    (tmp_path / "judgement").write_text(json.dumps({"verdict": {}, "observation": RUN}))
    assert read_observation(tmp_path / "log").runs == (run_of(load),)
    assert read_observation(tmp_path / "summary").runs == (run_of_summary(as_json(load)),)
    assert (
        read_observation(tmp_path / "observation") == read_observation(tmp_path / "judgement") == parse_observation(RUN)
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "no json", '{"schema": "x"}', '{"conditions": NaN}', "\x00", "{" * 9999]
)
def test_any_other_file_is_refused_by_its_name(tmp_path, text):
    (tmp_path / "some.json").write_text(text)
    with pytest.raises(InputError, match=r"some\.json"):
        read_observation(tmp_path / "some.json")
    with pytest.raises(InputError, match="nowhere"):
        read_observation(tmp_path / "nowhere")
