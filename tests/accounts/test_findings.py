"""Detectors: each sees its fault in the numbers, says them, and sees nothing in a healthy service."""

from dataclasses import replace

import pytest

from helpers.accounts.evidence import EVIDENCE
from helpers.accounts.findings import findings, prompt_line
from helpers.accounts.observation import Observation
from helpers.errors import InputError
from tests.accounts.seen import ALONE, AROUND, BUFFERED, CAPPED, FAULTS, HEALTHY, later, run, spread


def trouble(*runs, **more):
    return [finding for finding in findings(Observation(runs, **more)) if finding.trouble]


@pytest.mark.parametrize("mechanism", FAULTS)
def test_each_fault_is_seen_by_its_mechanism(mechanism):
    cause, runs, more = FAULTS[mechanism]
    shown = [finding for finding in trouble(*runs, **more) if finding.mechanism == mechanism]
    assert shown and all(EVIDENCE[finding.item].bits[cause] >= 3 for finding in shown)


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


def test_refusals_are_told_by_who_counted_them():
    _, runs, more = FAULTS["queue_limit"]
    assert any("refused, counted by the server" in one.words for one in trouble(*runs, **more))
    unseen = tuple(replace(one, server=None, errors={"http_429": 3}) for one in runs if one.role == "load")
    requests = unseen[-1].requests
    assert any(f"3 requests refused of {requests} measured" in one.words for one in trouble(*ALONE, *unseen))
