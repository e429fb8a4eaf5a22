"""Nearest-rank percentiles and their intervals, against definition and simulation."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.errors import InputError
from helpers.measure import nearest_rank, percentile

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)


@pytest.mark.parametrize(
    ("n", "p", "rank"), [(1, 0.5, 1), (2, 0.5, 1), (3, 0.99, 3), (10, 0.95, 10), (20, 0.95, 19), (100, 0.07, 7)]
)
def test_the_rank_is_the_ceiling_of_p_n(n, p, rank):
    assert nearest_rank([float(i) for i in range(1, n + 1)], p) == rank


@settings(max_examples=50)
@given(SAMPLES, st.floats(0.01, 1))
def test_a_percentile_is_a_sample_and_p_of_the_samples_are_not_above_it(samples, p):
    value = nearest_rank(samples, p)
    assert value in samples
    assert sum(s <= value for s in samples) >= p * len(samples) - 1e-6
    assert sum(s < value for s in samples) < p * len(samples) + 1e-6


@settings(max_examples=50)
@given(SAMPLES, st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_the_interval_holds_the_value_and_says_what_it_is_worth(samples, p):
    found = percentile(samples, p)
    assert (found.low is None or found.low <= found.value) and (found.high is None or found.value <= found.high)
    assert 0.95 - 1e-9 <= found.coverage <= 1


@pytest.mark.parametrize(("n", "bounded"), [(58, False), (71, False), (72, True), (73, True)])
def test_the_95th_percentile_has_an_upper_bound_only_where_there_are_samples_enough(n, bounded):
    # Two-sided at 95 %: the largest sample must exceed it with 97.5 %, and 0.95^n <= 2.5 % from n = 72 on.
    assert (0.95**n <= 0.025) is bounded
    assert (percentile([float(i) for i in range(n)], 0.95).high is not None) is bounded


@pytest.mark.parametrize(("n", "p"), [(20, 0.5), (100, 0.95), (400, 0.99)])
def test_the_interval_covers_the_true_percentile_as_often_as_it_says(n, p):
    rng, hits, rounds = random.Random(1), 0, 300
    for _ in range(rounds):
        found = percentile([rng.random() for _ in range(n)], p)
        hits += (found.low is None or found.low <= p) and (found.high is None or p <= found.high)
    # Four standard errors of a share of 300.
    assert hits / rounds >= found.coverage - 4 * math.sqrt(found.coverage * (1 - found.coverage) / rounds)
    assert found.coverage >= 0.95


def test_thousands_of_samples_do_not_underflow():
    found = percentile([float(i) for i in range(20_000)], 0.5)
    assert 9_800 < found.low < found.value < found.high < 10_200


def test_failures_as_infinity_keep_their_rank():
    assert nearest_rank([1.0, 2.0, 3.0, math.inf], 0.75) == 3.0
    assert nearest_rank([1.0, math.inf, math.inf], 0.5) == math.inf


@pytest.mark.parametrize(("samples", "p"), [([], 0.5), ([1.0], 0), ([1.0], 1.1), ([math.nan], 0.5)])
def test_nonsense_is_refused(samples, p):
    with pytest.raises(InputError):
        percentile(samples, p)
