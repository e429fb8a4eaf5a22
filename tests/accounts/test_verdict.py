"""The whole judgement: planted faults named, healthy services not, impossible numbers void; public timings too."""

import json
import math
import re
from dataclasses import replace

import pytest

from helpers.accounts import decode_floor, device, prefill_floor, published_load, read_config
from helpers.accounts.judgement import Verdict
from helpers.accounts.observation import Observation, Run, Spread
from helpers.accounts.service_floors import Subject
from helpers.accounts.verdict import verdict
from helpers.errors import InputError
from tests.accounts.seen import ALONE, AROUND, BUFFERED, CAPPED, FAULTS, HEALTHY, later, run, spread

LLAMA = Subject(read_config("llama-3.1-8b"), device("H100 SXM"))


def judged(*runs, subject=None, **more) -> Verdict:
    return verdict(Observation(runs, **more), subject)


def alone(tpot: float, ttft: float | None = None, prompt=1000, output=100, **more) -> Run:
    """One request alone, nothing known but the client's numbers."""
    known = {"ttft": Spread(p50=ttft, n=20) if ttft else Spread(), "tpot": Spread(p50=tpot, n=20), **more}
    return Run("alone", prompt, output, concurrency=1, **known)


@pytest.mark.parametrize("mechanism", FAULTS)
def test_a_planted_fault_is_named_with_how_it_happens(mechanism):
    cause, runs, more = FAULTS[mechanism]
    answer = judged(*runs, **more)
    assert (answer.says, answer.cause, answer.mechanism) == ("named", cause, mechanism)
    assert answer.second is None and answer.next_measurement is not None
    assert answer.ranked[0].speaks_for and re.search(r"\d", answer.sentence)


def test_healthy_services_have_no_fault_found():
    open_loop = run(concurrency=None, rate_per_s=2.0, ttft=70, tpot=12)
    direct = replace(HEALTHY, role="direct")
    for runs in ((*AROUND, HEALTHY), (*AROUND, HEALTHY, direct), (*ALONE, open_loop), ALONE):
        answer = judged(*runs)
        assert (answer.says, answer.cause, answer.ranked) == ("no fault found", None, ())


@pytest.mark.parametrize(("claim", "second"), [(None, "network_proxy"), (2.2, "measurement_artefact")])
def test_a_second_fault_is_told_too(claim, second):
    load = CAPPED if claim else later([CAPPED], 50, **BUFFERED)[0]
    answer = judged(*AROUND, load, claimed_ttft_ms=claim)
    assert (answer.says, answer.cause) == ("named", "admission_cap")
    assert answer.second.cause == second and answer.second.sentence


def test_with_nothing_to_compare_there_is_no_answer():
    bare = Run("load", 256, 64, concurrency=4, ttft=spread(100), tpot=spread(10))
    answer = judged(bare)
    assert answer.says == "cannot tell" and "nothing to compare" in answer.sentence and answer.next_measurement


def test_a_slow_step_alone_is_not_explained_without_more():
    answer = judged(alone(26.5, 45), subject=LLAMA)
    assert answer.says == "cannot tell" and "5.9 times its floor" in answer.sentence
    assert answer.next_measurement.decides == "cuda_graph_off"
    told = judged(alone(26.5, 45), subject=LLAMA, clues={"log_eager_or_cap_lt_batch": "enforce_eager=True"})
    assert told.cause == "cuda_graph_off"


def test_decode_at_the_hardware_is_no_fault():
    answer = judged(alone(6.5, 45), subject=LLAMA)
    assert answer.says == "no fault found" and "nothing to mend" in answer.sentence
    assert answer.binds == {"prefill": "compute", "decode": "bandwidth"}


def test_a_number_faster_than_physics_is_void_with_the_broken_line():
    answer = judged(alone(1.5, 45), subject=LLAMA)
    assert answer.says == "void" and answer.cause == "measurement_artefact" and answer.cost is None
    assert "3.0 times faster" in answer.sentence and answer.broken


def test_a_number_faster_than_a_rough_floor_is_noted_and_not_called_well():
    here = replace(LLAMA, device=replace(LLAMA.device, name="this CPU"))
    answer = judged(alone(3.0, 45), subject=here)
    assert answer.says == "no fault found" and "nothing to mend" not in answer.sentence
    assert "TPOT (0.6" in answer.notes[-1] and "measured in seconds" in answer.notes[-1]
    assert judged(alone(6.5, 45), subject=here).notes == ()
    assert "speculation" in judged(alone(3.0, 45), subject=LLAMA, traits=frozenset({"cfg_spec_on"})).notes[-1]


def test_without_the_servers_numbers_nothing_is_said_of_its_queue():
    blind = [replace(one, server=None) for one in (*AROUND, HEALTHY)]
    assert "no /metrics" in judged(*blind).sentence and "waits, fails" in judged(*AROUND, HEALTHY).sentence


def test_only_a_service_that_lets_nobody_wait_is_called_idle():
    priced = replace(LLAMA, usd_per_device_hour=2.69)
    fields = {"prompt": 1000, "output": 100, "concurrency": 2, "tpot": 7.0}
    assert judged(run(ttft=30.0, server=False, **fields), subject=priced).cost.says == "dear because idle"
    assert judged(run(ttft=1000.0, server=False, **fields), subject=priced).cost.says == "cannot tell"


def test_numbers_that_contradict_each_other_are_void():
    load = replace(HEALTHY, e2e=spread(60.0))
    assert judged(*AROUND, load).says == "void"
    too_many = replace(HEALTHY, requests_per_s=100.0, output_tokens_per_s=6400.0)
    assert "X · E2E" in judged(*AROUND, too_many).sentence
    inner = replace(HEALTHY, server=replace(HEALTHY.server, ttft_mean=400.0, prefill_mean=390.0))
    assert "server" in judged(*AROUND, inner).sentence
    parts = replace(HEALTHY, server=replace(HEALTHY.server, queue_mean=500.0))
    assert "queue + prefill" in judged(*AROUND, parts).sentence
    full = replace(HEALTHY, server=replace(HEALTHY.server, kv_share_max=1.2))
    assert "the KV share" in judged(*AROUND, full).sentence
    cached = replace(HEALTHY, cached_tokens_mean=2 * HEALTHY.prompt_tokens)
    assert "cached tokens" in judged(*AROUND, cached).sentence
    order = replace(HEALTHY, ttft=spread(120.0, max=60.0))
    assert "TTFT p99 (load run) is 180 ms, and its max is 60 ms" in judged(*AROUND, order).sentence


def test_failures_alone_speak_for_no_cause():
    gone = replace(HEALTHY, errors={"connection": 30}, server=None)
    for runs in ((gone,), (*AROUND, gone)):
        answer = judged(*runs)
        assert (answer.says, answer.cause, answer.ranked) == ("cannot tell", None, ())
        assert "30 of 32 measured requests failed: 30 × connection" in answer.sentence
        assert "log" in answer.next_measurement.says
    nobody = replace(gone, errors={"connection": 32}, ttft=Spread(), tpot=Spread(), e2e=Spread(), gap=Spread())
    assert "others" in judged(gone).sentence and "others" not in judged(nobody).sentence
    _, runs, more = FAULTS["running_cap"]
    capped = judged(*runs[:-1], replace(runs[-1], errors={"timeout": 3}), **more)
    assert (capped.says, capped.cause) == ("named", "admission_cap")


def test_the_part_of_ttft_is_not_told_as_the_place_of_slow_tokens():
    slow = run(tpot=100, concurrency=4, server={"queue_mean": 80.0, "prefill_mean": 37.0})
    sentence = judged(alone(20.0, ttft=100.0, prompt=256, output=64), slow, subject=LLAMA).sentence
    assert sentence.startswith("Cannot tell why: under load a token takes 100 ms")
    assert "decides it. Of the 120 ms to the first token (means) the largest part is the queue, 80 ms." in sentence


def test_clues_against_what_was_seen_are_refused_where_nothing_is_wrong_too():
    with pytest.raises(InputError, match="contradict"):
        judged(*AROUND, HEALTHY, clues={"kv_ge95": "a dashboard"})
    with pytest.raises(InputError, match="zzz"):
        judged(*AROUND, HEALTHY, traits=frozenset({"zzz"}))


def test_a_kernel_stamp_a_hair_late_is_no_impossible_number():
    assert judged(*AROUND, replace(HEALTHY, client_lag=spread(-0.001))).says == "no fault found"


def test_waiting_that_the_server_counted_is_not_denied():
    burst = replace(HEALTHY, server=replace(HEALTHY.server, queue_mean=60.0, prefill_mean=56.0))
    sentence = judged(*AROUND, burst).sentence
    assert "nothing waits" not in sentence and "60 ms of 117 ms" in sentence
    assert "nothing waits" in judged(*AROUND, HEALTHY).sentence


def test_a_broken_run_beside_the_judged_one_is_left_out_and_said_so():
    broken = replace(HEALTHY, role="direct", e2e=spread(60.0))
    answer = judged(*AROUND, HEALTHY, broken)
    assert answer.says == "no fault found" and "left out" in answer.notes[0]


def test_an_answer_held_back_whole_is_buffering_and_not_void():
    held = {"events_per_read": 60.0, "gap": spread(0.01, n=2000), "tpot": spread(0.02), "ttft": spread(900.0)}
    held_back = replace(HEALTHY, **held, e2e=spread(901.0), requests_per_s=None)
    answer = judged(*ALONE, held_back, subject=LLAMA)
    assert (answer.says, answer.mechanism) == ("named", "buffering")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_numbers_that_are_none_are_refused(value):
    with pytest.raises(InputError, match=r"ttft\.p50"):
        judged(replace(HEALTHY, ttft=spread(value)))


def test_the_json_has_its_keys_and_every_number_is_finite():
    for more in ({}, {"subject": replace(LLAMA, usd_per_device_hour=2.69, price_source="a list of today")}):
        result = judged(*AROUND, CAPPED, **more).as_json()
        assert {"verdict", "evidence", "next_measurement", "metrics", "ttft_split", "kv", "cost", "missing"} <= set(
            result
        )
        assert result["evidence"]["ranked"][0]["for"][0]["item"] == "running_eq_cap"
        json.dumps(result, allow_nan=False)


def test_the_split_of_ttft_adds_up_where_the_server_tells():
    split = judged(*AROUND, CAPPED).ttft_split
    assert (split.queue_ms, split.prefill_ms, split.first_decode_ms) == (2500, 90, None)
    assert split.adds_up and split.sum_ms == pytest.approx(split.total_ms, rel=0.01)
    unknown = judged(*ALONE[:2], run(server=False)).ttft_split
    assert unknown.queue_ms is None and unknown.adds_up is None


def test_what_was_not_given_is_listed():
    missing = " ".join(judged(alone(10.0, 50), ALONE[0]).missing)
    for words in ("model and device", "server's own numbers", "second client", "engine's own port"):
        assert words in missing


def test_skew_of_given_expert_counts_is_told():
    load = published_load("Mixtral-8x7B-v0.1", "github")
    subject = Subject(read_config("mixtral-8x7b"), device("H100 SXM"), 4, expert_load=load, ranks=4)
    skew = judged(alone(20.0, 60), subject=subject).skew
    assert skew.ranks == 4 and skew.step_time_factor > 1
    unknown = judged(alone(20.0, 60), subject=replace(subject, ranks=None)).skew
    assert unknown.step_time_factor is None and "was not given" in unknown.note
    for other, said in (
        ("llama-3.1-8b", "has none"),
        ("qwen3-30b-a3b", "of 8 experts a layer, and qwen3-30b-a3b has 128"),
    ):
        with pytest.raises(InputError, match=said):
            replace(subject, model=read_config(other))
    with pytest.raises(InputError, match="ranks"):
        replace(subject, ranks=0)


# Published timings. Model and device as the table of ground truth names them → our registry, and the precision.
_MODELS = (
    ("Llama-2-7B", "llama-2-7b"),
    ("LLaMA-7B", "llama-2-7b"),
    ("Llama-2-70B", "llama-2-70b"),
    ("Llama-3.1-8B", "llama-3.1-8b"),
    ("Llama-3.1-405B", "llama-3.1-405b"),
    ("Mixtral-8x7B", "mixtral-8x7b"),
    ("Qwen3-8B", "qwen3-8b"),
    ("Qwen3-30B-A3B", "qwen3-30b-a3b"),
)
_DTYPES = (("int8", "int8"), ("int4", "int4"), ("Q8_0", "q8_0"), ("Q4_K_M", "q4_0"), ("FP8", "fp8"))
_DEVICES = (("Apple M2 Ultra", "Apple M2 Ultra"), ("MI250X, one GCD", "MI250X one GCD"))
TOLERANCE = 1.02
"""A floor may lie above what was measured by the rounding of published figures, no more."""


def published(case: dict) -> tuple[Subject, float, float] | None:
    """Subject, measured ms and floor ms of a published timing; None where it does not name model, device and batch."""
    name = next((ours for theirs, ours in _MODELS if case["model"].startswith(theirs)), None)
    card = next((ours for theirs, ours in _DEVICES if case["hw"].startswith(theirs)), case["hw"])
    key = "tpot_ms" if case["phase"] == "decode" else "ttft_ms"
    if name is None or key not in case["measured"] or not isinstance(case.get("batch", 1), int):
        return None
    dtype = next((ours for mark, ours in _DTYPES if mark in case["model"]), "fp16")
    try:
        subject = Subject(read_config(name), device(card), case["n_gpu"], weights_dtype=dtype)
    except InputError:
        return None
    options = {"weights_dtype": dtype, "kv_dtype": "fp16"}
    if case["phase"] == "decode":
        floor = decode_floor(subject.model, case["context"], case["batch"], subject.together, **options)
    else:
        floor = prefill_floor(subject.model, case["tokens"], subject.together, **options)
    return subject, case["measured"][key], 1e3 * floor.seconds


def test_no_published_timing_beats_our_floor_and_good_ones_have_no_fault(facts, told):
    cases = facts("roofline-cases.json")["cases"]
    known = {case["id"]: (case, *found) for case in cases if (found := published(case)) is not None}
    ratios = sorted(measured / floor for _, _, measured, floor in known.values())
    told(f"{len(known)} of {len(cases)} published timings can be computed; measured ÷ our floor:")
    for name, (_, _, measured, floor) in known.items():
        told(f"  {name:28} {measured:8.2f} ms ÷ {floor:7.2f} ms = {measured / floor:.2f}")
    low, middle, high = ratios[0], ratios[len(ratios) // 2], ratios[-1]
    told(f"  median {middle:.2f}, from {low:.2f} to {high:.2f}; tolerance below 1: {TOLERANCE}")
    assert len(known) >= 18 and ratios[0] * TOLERANCE >= 1
    good = [row for row in known.values() if row[0]["roofline"].get("mbu", 0) >= 0.6]
    assert len(good) >= 6
    for case, subject, measured, _ in good:
        answer = judged(alone(measured, prompt=case["context"], output=2), subject=subject)
        assert answer.says == "no fault found", (case["id"], answer.sentence)
