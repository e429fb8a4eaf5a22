"""The answers of lab 04 are right: against helpers.accounts and the engine; and its judge grades on unseen traffic."""

import random
import statistics

import pytest

from helpers import accounts
from helpers.lab import check
from helpers.lab.exercises import find, lab04

LAYERS = {text: accounts.recorded_routing(text) for text in accounts.recorded_traffics()}


@pytest.mark.parametrize("text", LAYERS)
def test_the_measures_are_those_of_the_accounts_on_real_counts(text):
    real = LAYERS[text]
    for row in real.counts:
        assert lab04.skew_of(list(row)) == pytest.approx([accounts.max_over_mean(row), accounts.effective_experts(row)])
        assert lab04.distinct(list(row), 6, 16) == pytest.approx(accounts.distinct_experts(row, 6, 16))
    loads = [accounts.rank_loads(row, accounts.contiguous(64, 8)) for row in real.counts]
    assert lab04.balancedness_of(real.counts, 8) == pytest.approx(accounts.mean_balancedness(loads))
    flops, reads, step = lab04.what_skew_does(real.counts, 6, 16, 8)
    even = accounts.expected_distinct_experts(64, 6, 16)
    assert (flops, step) == (1.0, pytest.approx(accounts.step_time_factor(loads)))
    assert reads == pytest.approx(statistics.fmean(accounts.distinct_experts(r, 6, 16) for r in real.counts) / even)


@pytest.mark.parametrize(("read_ms", "token_ms"), [(1.0, 0.001), (0.5, 0.1), (0.001, 1.0)])
def test_layer_and_step_times_are_those_of_the_accounts(read_ms, token_ms):
    def seconds(tokens):
        return max(read_ms, tokens * token_ms)

    counts = LAYERS["law"].counts
    (alone,) = accounts.rank_seconds(counts[0], accounts.contiguous(64, 1), seconds)
    assert lab04.layer_ms(counts[0], read_ms, token_ms) == pytest.approx(alone)
    step = sum(max(accounts.rank_seconds(row, accounts.contiguous(64, 4), seconds)) for row in counts)
    assert lab04.parallel_step_ms(counts, 4, read_ms, token_ms) == pytest.approx(step)


@pytest.mark.parametrize(("experts", "k", "tokens"), [(64, 6, 64), (64, 8, 512), (256, 8, 4096), (8, 2, 64)])
def test_the_rule_of_thumb_is_near_the_null(experts, k, tokens):
    exact = accounts.null_max_over_mean(experts, k, tokens)
    assert lab04.null_estimate(experts, k, tokens) == pytest.approx(exact, rel=0.08)


def test_every_drawn_case_could_be_a_real_one():
    for exercise_id in ("4.1", "4.3", "4.4", "4.6", "4.8"):
        for first, *_ in find(exercise_id).all_cases()[len(find(exercise_id).cases) :]:
            rows = first if isinstance(first[0], list) else [first]
            assert len({sum(row) for row in rows}) == 1, "all layers route the same tokens"
    for counts, k, _ in find("4.4").all_cases():
        assert k * max(counts) <= sum(counts), "a token takes an expert at most once"


@pytest.mark.parametrize("text", LAYERS)
def test_the_greedy_placement_passes_on_every_recorded_layer_and_contiguous_on_none(text):
    for row in LAYERS[text].first:
        greedy = lab04.place_experts(list(row), 8)
        assert lab04.placement_problem(greedy, list(row), 8) == ""
        assert {tuple(sorted(held)) for held in greedy} == set(accounts.packed(row, 8).ranks)
        contiguous = [list(held) for held in accounts.contiguous(64, 8).ranks]
        assert "contiguous blocks give" in lab04.placement_problem(contiguous, list(row), 8)


def test_a_placement_is_graded_on_the_half_that_it_was_not_made_from():
    real = LAYERS["law"]
    row, served = list(real.first[3]), list(real.second[3])
    by_hindsight = [list(held) for held in accounts.packed(served, 8).ranks]
    assert lab04.placement_problem(by_hindsight, row, 8) == ""
    swapped = accounts.packed(LAYERS["translation"].first[3], 8).ranks
    said = lab04.placement_problem([list(held) for held in swapped], row, 8)
    loads = [sum(served[expert] for expert in held) for held in swapped]
    assert f"{max(loads) / statistics.fmean(loads):.2f} times the mean" in said


def test_many_placements_pass_whatever_their_order_or_kind():
    def reversed_ranks(counts, ranks):
        return [held[::-1] for held in lab04.place_experts(counts, ranks)][::-1]

    def with_swaps_of_cold_experts(counts, ranks):
        held = lab04.place_experts(counts, ranks)
        held[0][-1], held[1][-1] = held[1][-1], held[0][-1]
        return tuple(map(tuple, held))

    for answer in (reversed_ranks, with_swaps_of_cold_experts):
        assert check.evaluate(find("4.7"), answer).state == check.CORRECT


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda counts, ranks: [[0] * 8] * 8, "exactly one rank"),
        (lambda counts, ranks: [["0"]] * 8, "each a list of expert numbers"),
        (lambda counts, ranks: list(range(8)), "each a list of expert numbers"),
        (lambda counts, ranks: [list(range(57)), *([e] for e in range(57, 64))], "memory for exactly 8"),
        (lambda counts, ranks: {rank: [] for rank in range(8)}, "expected a list of ranks"),
        (lambda counts, ranks: random.Random(5).sample(range(64), 64), "returned 64 of them"),
    ],
)
def test_a_placement_that_is_none_is_told_why(answer, said):
    result = check.evaluate(find("4.7"), answer)
    assert result.state == check.NOT_YET
    assert said in result.text


WRONG_BUT_CLOSE = (
    # Right where no expert is idle, right where all layers are alike, right where reading never binds.
    ("4.5", lambda counts, read, token: sum(max(read, c * token) for c in counts), "are not read"),
    ("4.6", lambda layers, *rest: len(layers) * lab04.parallel_step_ms(layers[:1], *rest), "gave"),
    (
        "4.8",
        lambda *case: [lab04.what_skew_does(*case)[2], *lab04.what_skew_does(*case)[1:]],
        "FLOPs of a token",
    ),
    ("4.3", lambda layers, ranks: lab04.balancedness_of(layers[:1], ranks), "gave"),
)


@pytest.mark.parametrize(("exercise_id", "answer", "said"), WRONG_BUT_CLOSE)
def test_an_answer_that_is_right_on_easy_cases_alone_is_rejected(exercise_id, answer, said):
    result = check.evaluate(find(exercise_id), answer)
    assert result.state == check.NOT_YET
    assert said in result.text
