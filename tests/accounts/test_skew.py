"""The measures of gating skew: extremes, published figures, and the traps each of them lays."""

import csv
import math
import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import (
    InputError,
    balancedness,
    coefficient_of_variation,
    dead_experts,
    distinct_experts,
    effective_experts,
    expected_distinct_experts,
    gini,
    max_over_mean,
    mean_balancedness,
    memory_ratio,
    normalized_entropy,
    quality_gain_kept,
    read_ratio,
    step_time_factor,
)

COUNTS = st.lists(st.integers(0, 10**6), min_size=1, max_size=80).filter(any)


@given(st.integers(1, 300), st.integers(1, 10**9))
def test_an_even_load_is_the_best_of_every_measure(experts, load):
    counts = [load] * experts
    assert max_over_mean(counts) == balancedness(counts) == 1
    assert effective_experts(counts) == pytest.approx(experts)
    assert normalized_entropy(counts) == pytest.approx(1)
    assert (coefficient_of_variation(counts), gini(counts), dead_experts(counts)) == (0, 0, ())


@given(st.integers(2, 300), st.integers(1, 10**9))
def test_all_on_one_expert_is_the_worst_of_every_measure(experts, load):
    counts = [0] * (experts - 1) + [load]
    assert max_over_mean(counts) == experts
    assert balancedness(counts) == pytest.approx(1 / experts)
    assert effective_experts(counts) == pytest.approx(1)
    assert normalized_entropy(counts) == 0
    assert coefficient_of_variation(counts) == pytest.approx(math.sqrt(experts - 1))
    assert gini(counts) == pytest.approx(1 - 1 / experts)
    assert dead_experts(counts) == tuple(range(experts - 1))


@given(COUNTS, st.integers(1, 1000), st.randoms())
def test_neither_the_order_of_experts_nor_the_number_of_passes_changes_a_measure(counts, passes, generator):
    changed = [passes * load for load in counts]
    generator.shuffle(changed)
    for measure in (max_over_mean, coefficient_of_variation, effective_experts, gini):
        assert measure(changed) == pytest.approx(measure(counts), abs=1e-9)


@given(COUNTS)
def test_measures_stay_in_their_range(counts):
    experts = len(counts)
    assert 1 <= max_over_mean(counts) <= experts
    assert 1 - 1e-9 <= effective_experts(counts) <= experts + 1e-9
    assert -1e-9 <= gini(counts) < 1
    assert effective_experts(counts) <= sum(map(bool, counts)) + 1e-9


def test_one_imbalance_has_three_names():
    # TensorRT-LLM's wide-EP README: DeepSeek-R1 over 32 ranks has (max − mean)/mean 1.56, as an average of layers.
    loads = [2.56, *[(32 - 2.56) / 31] * 31]
    assert max_over_mean(loads) - 1 == pytest.approx(1.56)
    assert balancedness(loads) == pytest.approx(0.39, abs=0.001)


def test_an_average_of_ratios_is_not_the_ratio_of_sums():
    # Layer 0 routes a hundred times the tokens of layer 1 and is even; layer 1 is all on one of two ranks.
    layers = [[500, 500], [0, 10]]
    assert mean_balancedness(layers) == pytest.approx(0.75)
    assert step_time_factor(layers) == pytest.approx(510 / 505)
    assert 1 / mean_balancedness(layers) == pytest.approx(4 / 3)


def test_layers_wait_one_by_one_so_that_opposite_skews_do_not_cancel():
    layers = [[9, 1], [1, 9]]
    assert step_time_factor(layers) == pytest.approx(1.8)
    assert max_over_mean([sum(loads) for loads in zip(*layers, strict=True)]) == 1


def test_the_wrong_axis_gives_another_number():
    # The mistake of vllm-project/vllm#51784: reduced over layers in place of ranks. Every rank is equally loaded here.
    layers = [[100, 100, 100, 100], [10, 10, 10, 10]]
    wrong = list(zip(*layers, strict=True))
    assert step_time_factor(layers) == mean_balancedness(layers) == 1
    assert 1 / step_time_factor(wrong) == pytest.approx(0.55)


def test_a_table_in_place_of_one_layer_is_refused():
    for measure in (max_over_mean, balancedness, effective_experts, gini):
        with pytest.raises(InputError, match="of one layer, but entry 0 is a list"):
            measure([[1, 2], [3, 4]])


def test_an_expert_is_dead_below_a_tenth_of_the_mean():
    assert dead_experts([10, 9, 100, 281]) == (1,)
    assert dead_experts([10, 9, 100, 281], below=0.5) == (0, 1)


def test_min_over_max_is_not_balancedness():
    assert balancedness([10, 10, 10, 0]) == 0.75


def test_a_window_averages_the_skew_of_its_passes_away():
    passes = [[8, 0, 0, 0], [0, 8, 0, 0], [0, 0, 8, 0], [0, 0, 0, 8]]
    assert max_over_mean([sum(loads) for loads in zip(*passes, strict=True)]) == 1
    assert step_time_factor(passes) == 4


@pytest.mark.parametrize("measure", [max_over_mean, balancedness, coefficient_of_variation, effective_experts, gini])
@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1], [1.0, math.nan], [1.0, math.inf], ["1", "2"]])
def test_counts_that_define_no_skew_are_refused(measure, counts):
    with pytest.raises(InputError):
        measure(counts)


def test_a_step_without_layers_or_tokens_is_refused():
    for layers in ([], [[0, 0], [0, 0]]):
        with pytest.raises(InputError):
            step_time_factor(layers)


@given(st.integers(1, 256), st.data(), st.integers(0, 2000))
def test_distinct_experts_of_even_counts_are_the_even_formula(experts, data, tokens):
    k = data.draw(st.integers(1, experts))
    got = distinct_experts([7] * experts, k, tokens)
    assert got == pytest.approx(expected_distinct_experts(experts, k, tokens))


@given(st.lists(st.integers(1, 50), min_size=2, max_size=40), st.integers(1, 500))
def test_skew_never_touches_more_experts_than_even_routing(counts, tokens):
    assert distinct_experts(counts, 1, tokens) <= expected_distinct_experts(len(counts), 1, tokens) + 1e-9


# Notes of the even formula: E, k, and D at 1, 4, 8, 16, 32, 64 tokens.
@pytest.mark.parametrize(
    ("experts", "k", "wanted"),
    [
        (8, 2, (2, 5.5, 7.2, 7.9, 8, 8)),
        (64, 8, (8, 26.5, 42, 56, 63, 64)),
        (128, 8, (8, 29, 52, 82, 112, 126)),
        (256, 8, (8, 30.5, 57, 102, 163, 222)),
    ],
)
def test_distinct_experts_of_known_models(experts, k, wanted):
    got = [distinct_experts([1] * experts, k, tokens) for tokens in (1, 4, 8, 16, 32, 64)]
    assert got == pytest.approx(wanted, abs=0.5)


def test_distinct_experts_follow_drawn_tokens():
    generator, counts = random.Random(0), [40, 30, 20, 5, 3, 2]
    drawn = [len(set(generator.choices(range(6), counts, k=10))) for _ in range(4000)]
    assert distinct_experts(counts, 1, 10) == pytest.approx(sum(drawn) / 4000, rel=0.02)


def test_experts_per_token_that_contradict_the_counts_are_refused():
    with pytest.raises(InputError, match=r"expert 0 would be chosen 1\.80 times"):
        distinct_experts([9, 1], 2, 4)


def test_the_cost_line_of_a_collapsed_gate():
    even, collapsed = [1] * 16, [1, 1] + [0] * 14
    assert memory_ratio(16, 2) == 8
    assert read_ratio(even, 2, 1) == read_ratio(collapsed, 2, 1) == pytest.approx(1)
    assert read_ratio(collapsed, 2, 64) == pytest.approx(1)
    assert 7.9 < read_ratio(even, 2, 64) <= 8
    with pytest.raises(InputError, match="more than experts"):
        memory_ratio(2, 3)


def test_the_gain_kept_lies_between_dense_and_balanced():
    assert quality_gain_kept(2.3, 2.2, 2.3) == 0
    assert quality_gain_kept(2.3, 2.2, 2.2) == pytest.approx(1)
    assert quality_gain_kept(2.3, 2.2, 2.25) == pytest.approx(0.5)
    with pytest.raises(InputError, match="no gain"):
        quality_gain_kept(2.2, 2.2, 2.1)


# Skew of real models, max/mean (effective experts) at layers 0, 7, 15: counted by allenai/OLMoE.
@pytest.mark.parametrize(
    ("domain", "hottest", "effective"),
    [
        ("arxiv", (7.8, 6.3, 7.5), (50, 37, 36)),
        ("github", (5.0, 6.2, 4.5), (54, 34, 35)),
        ("c4", (3.0, 2.7, 2.5), (61, 59, 56)),
    ],
)
def test_real_skew_of_olmoe(shared, domain, hottest, effective):
    layers = defaultdict(list)
    with (shared / "facts" / "moe-data" / "olmoe_mixtral_expert_counts.csv").open() as file:
        for row in csv.DictReader(file):
            if (row["model"], row["domain"], row["counting"]) == ("olmoe", domain, "topk"):
                layers[int(row["layer"])].append(int(row["count"]))
    assert [max_over_mean(layers[layer]) for layer in (0, 7, 15)] == pytest.approx(hottest, abs=0.06)
    assert [effective_experts(layers[layer]) for layer in (0, 7, 15)] == pytest.approx(effective, abs=0.6)
