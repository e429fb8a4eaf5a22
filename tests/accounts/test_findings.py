"""Detectors: each sees its fault in the numbers, says them, and sees nothing in a healthy service."""

from dataclasses import replace

import pytest

from helpers.accounts import device, read_config
from helpers.accounts.evidence import EVIDENCE
from helpers.accounts.findings import findings, prompt_line
from helpers.accounts.observation import Observation
from helpers.accounts.service_floors import Subject
from helpers.errors import InputError
from tests.accounts.seen import ALONE, AROUND, BUFFERED, CAPPED, FAULTS, HEALTHY, later, run, spread


def trouble(*runs, **more):
    return [finding for finding in findings(Observation(runs, **more)) if finding.trouble]


@pytest.mark.parametrize("mechanism", FAULTS)
def test_each_fault_is_seen_by_its_mechanism(mechanism):
    cause, runs, more = FAULTS[mechanism]
    shown = [finding for finding in trouble(*runs, **more) if finding.mechanism == mechanism]
    # Where each request opens a connection, that is seen twice: by the client, and as a wait at every prompt length.
    assert len(shown) == (2 if mechanism == "connection_per_request" else 1)
    assert all(EVIDENCE[finding.item].bits[cause] >= 3 for finding in shown)


def test_a_healthy_service_shows_no_trouble():
    open_loop = run(concurrency=None, rate_per_s=2.0, ttft=70, tpot=12)
    for runs in ((*AROUND, HEALTHY), (*AROUND, HEALTHY, replace(HEALTHY, role="direct")), (*ALONE, open_loop)):
        assert trouble(*runs) == []


def test_words_hold_the_numbers():
    words = " ".join(finding.words for finding in trouble(*AROUND, CAPPED))
    assert "running 2 in the median while 6 wait, in 40 samples" in words


def test_early_headers_alone_are_a_note():
    notes = [finding for finding in findings(Observation((*AROUND, HEALTHY))) if "headers" in finding.words]
    assert notes and not notes[0].trouble and notes[0].item is None


def test_a_claim_that_is_the_first_token_is_no_trouble():
    assert trouble(*AROUND, HEALTHY, claimed_ttft_ms=118.0) == []


def test_cheap_new_connections_are_a_note():
    assert trouble(*AROUND, replace(HEALTHY, sent_on_new_connection=1.0)) == []


def test_a_queue_is_no_cap_where_the_cache_is_full():
    full = replace(CAPPED, server=replace(CAPPED.server, kv_share_max=0.97))
    assert "running_eq_cap" not in {finding.item for finding in trouble(*AROUND, full)}


def test_the_engines_own_port_places_a_wait_on_the_way():
    slow = later([*ALONE, HEALTHY], 50)
    fast = trouble(*slow, replace(HEALTHY, role="direct"))
    assert "direct_fast_path_slow" in {finding.item for finding in fast}
    same = findings(Observation((*slow, replace(slow[-1], role="direct"))))
    assert "direct_as_slow" in {finding.item for finding in same}


@pytest.mark.parametrize("role", ["direct", "second_client"])
@pytest.mark.parametrize("other", [{"concurrency": 2}, {"prompt_tokens": 64}, {"output_tokens": 8}])
def test_another_load_is_not_compared(role, other):
    slow = later([*ALONE, HEALTHY], 200)
    assert len(trouble(*slow, replace(HEALTHY, role=role))) > len(trouble(*slow))
    elsewhere = (*slow, replace(HEALTHY, role=role, **other))
    assert trouble(*elsewhere) == trouble(*slow)
    assert any("another load" in one.words for one in findings(Observation(elsewhere)))


def test_a_server_that_was_slower_itself_does_not_accuse_the_path():
    slow = run(ttft=240, tpot=18)
    assert trouble(*AROUND, slow, replace(HEALTHY, role="direct")) == []


def test_speculation_excuses_groups_of_events():
    grouped = timed_groups = later([HEALTHY], 110, **BUFFERED)
    assert trouble(*AROUND, *grouped)
    several = findings(Observation((*AROUND, *timed_groups), traits=frozenset({"cfg_spec_on"})))
    assert "buffering" not in {finding.mechanism for finding in several}


def test_a_line_through_three_lengths():
    a, b = prompt_line(ALONE)
    assert b == pytest.approx(0.229, abs=0.005) and abs(a) < 10
    assert prompt_line(ALONE[:1]) is None


def test_clues_come_last_and_unknown_ones_are_refused():
    seen = findings(Observation((*AROUND, HEALTHY), clues={"log_eager_or_cap_lt_batch": "enforce_eager=True"}))
    assert (seen[-1].item, seen[-1].words, seen[-1].source) == (
        "log_eager_or_cap_lt_batch",
        "enforce_eager=True",
        "clue",
    )
    with pytest.raises(InputError, match="gremlins"):
        findings(Observation((HEALTHY,), clues={"gremlins": ""}))


def test_nothing_to_judge_is_refused():
    with pytest.raises(InputError, match="nothing to judge"):
        findings(Observation(()))


def test_short_gaps_rule_interference_out():
    names = {finding.item for finding in findings(Observation((*AROUND, HEALTHY)))}
    assert {"no_gap_tail", "no_prefill_stall", "server_agrees", "client_idle", "waiting_0", "preempt_0"} <= names
    tail = replace(HEALTHY, gap=spread(18, p99=100, n=2000))
    assert "itl_p99_gg_p50" in {finding.item for finding in findings(Observation((*AROUND, tail)))}


def test_a_client_kept_busy_by_refusals_is_not_blamed():
    _, runs, more = FAULTS["queue_limit"]
    busy = tuple(replace(one, client_cpu_share=0.97, client_lag=spread(15.0)) for one in runs)
    shown = {one.mechanism for one in trouble(*busy, **more)}
    assert "queue_limit" in shown and "client_lag" not in shown
    not_refused = replace(HEALTHY, client_cpu_share=0.97, client_lag=spread(15.0))
    assert [one.mechanism for one in trouble(*AROUND, not_refused)] == ["client_lag"]


def test_refusals_are_not_told_as_failures_too():
    load = replace(FAULTS["queue_limit"][1][-1], errors={"http_429": 20, "timeout": 2})
    words = [one.words for one in trouble(*ALONE, load)]
    assert "2 of 32 measured requests failed: 2 × timeout" in words


def test_refusals_are_told_by_who_counted_them():
    _, runs, more = FAULTS["queue_limit"]
    assert any("refused, counted by the server" in one.words for one in trouble(*runs, **more))
    unseen = tuple(replace(one, server=None, errors={"http_429": 3}) for one in runs if one.role == "load")
    requests = unseen[-1].requests
    assert any(f"3 requests refused of {requests} measured" in one.words for one in trouble(*ALONE, *unseen))


def test_only_a_claim_as_early_as_the_headers_is_taken_for_theirs():
    between = trouble(*AROUND, HEALTHY, claimed_ttft_ms=20.0)
    assert [one.mechanism for one in between] == [None] and "was not found" in between[0].words


def test_repeated_prompts_are_blamed_from_a_smaller_cached_share_than_new_ones():
    third = replace(HEALTHY, cached_tokens_mean=HEALTHY.prompt_tokens / 3)
    assert trouble(*AROUND, third) == []
    (repeated,) = trouble(*AROUND, replace(third, prompts_repeat=True))
    assert repeated.mechanism == "repeated_prompts"


def test_refusals_with_a_full_cache_are_no_short_queue():
    _, runs, more = FAULTS["queue_limit"]
    full = (*runs[:-1], replace(runs[-1], server=replace(runs[-1].server, kv_share_max=0.97)))
    shown = trouble(*full, **more)
    assert any("KV cache 97 % full" in one.words for one in shown)
    assert "queue_limit" not in {one.mechanism for one in shown}


def test_a_connection_for_each_place_of_a_closed_loop_is_no_fault():
    slow = later([*ALONE, HEALTHY], 50, sent_on_new_connection=1.0)
    few = (*slow[:-1], replace(slow[-1], requests=2 * HEALTHY.concurrency))
    assert any(one.item == "connection_per_request" for one in trouble(*slow))
    assert not any(one.item == "connection_per_request" for one in trouble(*few))


@pytest.mark.parametrize(("count", "name"), [(1.0, "preempt_rising"), (11.0, "preempted_often")])
def test_one_preemption_is_weaker_evidence_than_many(count, name):
    _, runs, _ = FAULTS["preemption"]
    load = replace(runs[-1], server=replace(runs[-1].server, preemptions=count))
    assert name in {one.item for one in trouble(*runs[:-1], load)}


def test_a_gap_like_the_others_is_no_stall():
    beside = next(one for one in FAULTS["whole_prompt_in_one_step"][1] if one.role == "beside_long")
    assert "itl_spikes_during_prefill" in {one.item for one in trouble(*ALONE, beside, HEALTHY)}
    usual = replace(beside, gap=spread(60, max=beside.gap.max, n=120))
    assert trouble(*ALONE, usual, HEALTHY) == []


def test_a_long_prompt_that_was_faster_alone_makes_no_stall():
    beside = next(one for one in AROUND if one.role == "beside_long")
    hurried = [replace(one, ttft=spread(one.ttft.p50 / 2.5)) for one in ALONE]
    assert trouble(*hurried, beside) == []


@pytest.mark.parametrize(("requests_per_s", "near"), [(2.0, False), (15.0, True), (40.0, False)])
def test_prompts_take_at_most_all_of_the_time(requests_per_s, near):
    shown = findings(Observation((*AROUND, replace(HEALTHY, requests_per_s=requests_per_s))))
    assert ("prefill_load_near_cap" in {one.item for one in shown}) == near
    (share,) = [one for one in shown if one.words.startswith("prompts take")]
    assert ("says nothing" in share.words) == (requests_per_s == 40.0)


def test_an_offset_that_grows_with_the_load_is_not_called_a_wait():
    alone, load = later(ALONE, 50), later([HEALTHY], 200)
    items = {one.item for one in trouble(*alone, *load)}
    assert "ttft_fixed_offset" in items and "offset_is_a_wait" not in items


@pytest.mark.parametrize("preempted", [0.0, 5.0])
def test_a_batch_that_shrinks_is_told_only_where_nothing_was_preempted(preempted):
    sizes = ((2, 2.0, 0.0), (4, 4.0, 0.0), (8, 2.0, preempted))
    runs = [run(concurrency=c, server={"running_p50": r, "running_max": 4.0, "preemptions": n}) for c, r, n in sizes]
    items = {one.item for one in trouble(*runs)}
    assert ("running_drops_under_load" in items) == (not preempted)


def test_a_wait_that_the_median_of_the_samples_misses_is_told():
    burst = replace(HEALTHY, server=replace(HEALTHY.server, queue_mean=60.0, prefill_mean=56.0))
    shown = findings(Observation((*AROUND, burst)))
    assert "waiting_0" not in {one.item for one in shown}
    assert any("60 ms of 117 ms to the first token pass in the queue" in one.words for one in shown)


@pytest.mark.parametrize(("requests_per_s", "excused"), [(12.5, True), (1.0, False)])
def test_the_time_that_prompts_take_is_no_slowness_of_decode(requests_per_s, excused):
    llama = Subject(read_config("llama-3.1-8b"), device("H100 SXM"))
    alone = [run("alone", prompt, 100, 1, ttft=prompt / 25, tpot=6) for prompt in (250, 1000)]
    load = replace(run(prompt=1000, output=100, ttft=90, tpot=20), requests_per_s=requests_per_s)
    shown = findings(Observation((*alone, load)), llama)
    (decode,) = [one for one in shown if one.words.startswith("under load a token takes 20")]
    assert decode.trouble is not excused
