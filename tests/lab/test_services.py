"""The anonymous services: picked by seed, silent about what they are, told apart by what `look` shows."""

import dataclasses
import itertools

import pytest

from helpers import accounts
from helpers.errors import InputError
from helpers.lab import services
from helpers.lab.recorded import recorded_observation
from helpers.lab.services import CAUSES, FAULTS, LETTERS, NOTHING, PLACES, SEED, against, cause_of


@pytest.mark.parametrize("seed", range(40))
def test_the_three_services_of_a_seed_have_three_different_causes_that_stay_the_same(seed):
    found = [cause_of(letter, seed) for letter in LETTERS]
    assert len(set(found)) == len(LETTERS)
    assert found == [cause_of(letter, seed) for letter in LETTERS]


def test_seeds_reach_every_cause_and_the_default_one_has_a_service_of_each_place():
    assert {cause_of(letter, seed) for letter in LETTERS for seed in range(60)} == set(CAUSES)
    assert {FAULTS[cause_of(letter)].place for letter in LETTERS} == set(PLACES)


@pytest.mark.parametrize(
    ("letter", "seed", "said"), [("D", 1, "no service 'D'"), ("A", "1", "seed must be"), ("A", True, "seed must be")]
)
def test_an_unknown_service_is_refused(letter, seed, said):
    with pytest.raises(InputError, match=said):
        cause_of(letter, seed)


def seed_with(cause):
    """A letter and a seed whose service has this cause."""
    return next((letter, seed) for seed in range(200) for letter in LETTERS if cause_of(letter, seed) == cause)


@pytest.mark.parametrize(("truth", "named"), [*itertools.product(CAUSES, CAUSES)])
def test_every_wrong_cause_is_told_what_speaks_against_it_and_the_right_one_is_not(truth, named):
    letter, seed = seed_with(truth)
    said = against(letter, [FAULTS[named].place, named], seed)
    assert (said == "") == (truth == named)
    if truth != named:
        # The message must not hand out the answer.
        assert truth not in said or truth == NOTHING
        assert not said.endswith(".")


def test_a_buffer_named_for_a_timer_is_not_told_that_no_events_come_together():
    """Behind a timer on the first event short answers do come in few reads: only long ones tell the two apart."""
    letter, seed = seed_with("slow first event")
    said = against(letter, ["path", "buffering proxy"], seed)
    assert "near 1 for long answers" in said
    assert "here it is not so" not in said


def test_the_messages_against_the_wrong_causes_of_a_service_are_all_different():
    for truth in CAUSES:
        letter, seed = seed_with(truth)
        said = [against(letter, [FAULTS[named].place, named], seed) for named in CAUSES if named != truth]
        assert len(set(said)) == len(said)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("running cap", "a list of two words"),
        (["engine"], "a list of two words"),
        (["server", "running cap"], "'server' is no answer"),
        (["engine", "the cap"], "'the cap' is no answer"),
        (["path", "running cap"], "belongs to 'engine'"),
    ],
)
def test_an_answer_that_is_none_is_told_how_to_answer(answer, said):
    assert said in against("A", answer)


def test_judge_prints_whether_the_answer_is_right(capsys):
    truth = cause_of("A")
    services.judge("A", FAULTS[truth].place, truth)
    services.judge("A", "engine", "running cap")
    right, wrong = capsys.readouterr().out.splitlines()
    assert right.endswith(f"correct, {truth}.")
    assert "not yet: with a cap" in wrong


def test_what_was_seen_is_printed_with_its_conditions_also_where_the_server_tells_nothing():
    recorded = recorded_observation("capped")
    assert "running 2, waiting 4" in services.seen_text(recorded)
    blind = tuple(dataclasses.replace(run, server=None) for run in recorded.runs)
    text = services.seen_text(dataclasses.replace(recorded, runs=blind))
    assert "running unknown, waiting unknown" in text
    headings = [line for line in text.splitlines() if not line.startswith(" ")]
    assert len(headings) == len(recorded.runs)
    assert all(line.startswith("concurrency ") and " in, " in line and line.endswith(" out") for line in headings)


def test_the_recorded_observation_says_where_it_is_from_and_is_judged_as_the_notebook_says():
    recorded = recorded_observation("capped")
    assert "not measured now" in " ".join(recorded.notes)
    assert all(run.base_url is None for run in recorded.runs)
    whole = accounts.verdict(recorded)
    assert (whole.says, whole.cause) == ("named", "admission_cap")
    blind = tuple(dataclasses.replace(run, server=None) for run in recorded.runs)
    assert accounts.verdict(dataclasses.replace(recorded, runs=blind)).says == "cannot tell"


def test_an_observation_that_was_not_recorded_is_refused():
    with pytest.raises(InputError, match="no observation 'other' is recorded; there are capped"):
        recorded_observation("other")


def signs(observation):
    """The causes whose sign shows in an observation, by the words of the table."""
    (load,) = observation.role("load")
    alone = observation.role("alone")
    beside = observation.role("beside_long")
    server, found = load.server, set()
    waits = server.waiting_p50 >= 1 and server.running_p50 < services.CONCURRENCY
    if waits and not server.preemptions and server.kv_share_max < 0.9:
        found.add("running cap")
    if server.preemptions and server.kv_share_max > 0.9:
        found.add("KV cache too small")
    if beside and beside[0].gap.max > 0.6 * beside[0].long_ttft and load.events_per_read < 4:
        found.add("whole prompts in one step")
    if load.events_per_read >= 4:
        found.add("buffering proxy")
    if alone[-1].sent_on_new_connection > 0.9:
        found.add("connection per request")
    outside = [run.ttft_of_window_mean - run.server.ttft_mean for run in alone]
    if min(outside) > 50 and not found:
        found.add("slow first event")
    return found or {NOTHING}


# The other four faults are planted in tests/judge in the same way; these three are what the solution diagnoses.
@pytest.mark.slow
@pytest.mark.parametrize("cause", [cause_of(letter) for letter in LETTERS])
def test_a_service_shows_its_own_sign_and_the_judge_names_no_other_cause(cause):
    letter, seed = seed_with(cause)
    judged = {
        "running cap": "admission_cap",
        "KV cache too small": "kv_preemption",
        "whole prompts in one step": "prefill_decode_interference",
        NOTHING: None,
    }.get(cause, "network_proxy")
    for last in (False, True):
        with services.service(letter, seed) as url:
            observation = services.look(url)
        verdict = accounts.verdict(observation)
        assert verdict.says != "named" or verdict.cause == judged, verdict.sentence
        # A busy machine can blur a sign once.
        if cause in signs(observation):
            return
        assert not last, signs(observation)


def test_the_default_seed_is_the_one_that_the_lab_diagnoses():
    assert [cause_of(letter, SEED) for letter in LETTERS] == ["connection per request", NOTHING, "KV cache too small"]
