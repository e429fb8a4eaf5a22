"""The null of gating skew against drawn routings and published simulations."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import InputError, coefficient_of_variation, null_coefficient_of_variation, null_max_over_mean


# Simulated: experts, k, tokens, ranks, max/mean.
@pytest.mark.parametrize(
    ("experts", "k", "ranks", "simulated"),
    [
        (64, 6, None, {1: 10.67, 8: 4.24, 64: 1.99, 512: 1.34, 8192: 1.09}),
        (64, 6, 8, {1: 2.71, 8: 1.59, 64: 1.20, 512: 1.07, 8192: 1.02}),
        (256, 8, None, {64: 3.39, 256: 2.10, 4096: 1.25}),
        (256, 8, 32, {64: 1.57, 256: 1.26, 4096: 1.06}),
    ],
)
def test_the_null_is_that_of_an_independent_simulation(experts, k, ranks, simulated):
    got = {tokens: null_max_over_mean(experts, k, tokens, ranks) for tokens in simulated}
    assert got == pytest.approx(simulated, rel=0.04)


@pytest.mark.parametrize(("experts", "k"), [(64, 6), (8, 2), (16, 1), (4, 3)])
@pytest.mark.parametrize("ranks", [None, 2, 4])
@pytest.mark.parametrize("tokens", [1, 3, 20, 300])
def test_the_null_is_within_three_percent_of_drawn_routings(experts, k, ranks, tokens):
    np = pytest.importorskip("numpy")
    generator = np.random.default_rng(1)
    ratios = []
    for _ in range(1500 if tokens < 100 else 200):
        ids = np.argsort(generator.random((tokens, experts)), axis=1)[:, :k]
        loads = np.bincount(ids.ravel(), minlength=experts).reshape(ranks or experts, -1).sum(1)
        ratios.append(loads.max() / loads.mean())
    # The draws' own error comes on top of the 3 %.
    error = 3 * np.std(ratios) / math.sqrt(len(ratios))
    assert null_max_over_mean(experts, k, tokens, ranks) == pytest.approx(np.mean(ratios), rel=0.03, abs=error)


@given(st.sampled_from([(8, 2), (64, 6), (64, 8), (128, 8), (256, 8)]), st.integers(16, 10**7))
def test_the_null_falls_towards_one_with_tokens_and_keeps_its_bounds(shape, tokens):
    experts, k = shape
    null = null_max_over_mean(experts, k, tokens)
    assert 1 <= null <= experts / k
    assert null_max_over_mean(experts, k, 4 * tokens) < null
    assert 1 <= null_max_over_mean(experts, k, tokens, experts // 4) <= null


@pytest.mark.parametrize("tokens", [64, 1024, 8192, 10**6])
def test_the_rule_of_thumb_holds_to_seven_percent(tokens):
    experts, k = 64, 6
    thumb = 1 + math.sqrt(2 * math.log(experts) * (1 - k / experts) / (tokens * k / experts))
    assert null_max_over_mean(experts, k, tokens) == pytest.approx(thumb, rel=0.07)


def test_the_null_is_smooth_where_its_method_changes():
    # 16 tokens leave the draws; a deviation of 300 assignments leaves the binomial.
    for low, high in ((15, 16), (1_050_000, 1_070_000)):
        below, above = null_max_over_mean(64, 6, low) - 1, null_max_over_mean(64, 6, high) - 1
        assert above == pytest.approx(below * math.sqrt(low / high), rel=0.03)


def test_max_over_mean_of_two_at_64_tokens_is_no_finding():
    assert null_max_over_mean(64, 6, 64) == pytest.approx(2.0, abs=0.03)
    # Assignments drawn one by one, where k is not known: a little above.
    assert 1.0 < null_max_over_mean(64, 1, 64 * 6) / null_max_over_mean(64, 6, 64) < 1.05


def test_a_gate_without_choice_has_no_null():
    assert null_max_over_mean(8, 8, 5) == null_max_over_mean(8, 2, 5, ranks=1) == null_max_over_mean(1, 1, 5) == 1
    # Whole loads: where the mean is 29.03, some expert has 30 at least.
    assert null_max_over_mean(31, 30, 30) >= 31 / 30


def test_the_null_of_the_coefficient_of_variation_is_that_of_drawn_routings():
    np = pytest.importorskip("numpy")
    generator = np.random.default_rng(0)
    drawn = []
    for _ in range(100):
        ids = np.argsort(generator.random((200, 64)), axis=1)[:, :6]
        drawn.append(coefficient_of_variation(np.bincount(ids.ravel(), minlength=64).tolist()))
    assert null_coefficient_of_variation(64, 6, 200) == pytest.approx(np.mean(np.square(drawn)) ** 0.5, rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((4, 5, 10), "experts_per_token"), ((0, 1, 1), "experts"), ((8, 2, 0), "tokens"), ((8, 2, 9, 3), "3 ranks")],
)
def test_impossible_routings_are_refused(arguments, named):
    with pytest.raises(InputError, match=named):
        null_max_over_mean(*arguments)
