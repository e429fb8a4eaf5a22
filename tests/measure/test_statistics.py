"""Quartiles against numpy, intervals against simulation, verdicts by construction."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import InputError
from helpers.measure.statistics import Interval, median_interval, quartiles, verdict

samples = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=60)


@given(samples)
def test_quartiles_equal_numpy(values):
    assert quartiles(values) == pytest.approx(np.quantile(values, [0.25, 0.5, 0.75]))


@pytest.mark.parametrize("bad", [[], [1.0, math.nan], [math.inf]])
def test_quartiles_of_nothing_or_of_no_number_are_refused(bad):
    with pytest.raises(InputError):
        quartiles(bad)


@given(samples, st.sampled_from([0.5, 0.9, 0.95, 0.975]))
def test_an_interval_holds_its_median_and_says_when_samples_are_too_few(values, confidence):
    interval = median_interval(values, confidence)
    assert min(values) <= interval.low <= interval.median <= interval.high <= max(values)
    reachable = 1 - 2 * 0.5 ** len(values)
    assert (interval.coverage >= confidence) == (reachable >= confidence)


def test_the_interval_of_ten_samples_is_the_textbook_one():
    # n = 10: second to ninth order statistic, coverage 0.9785 (Conover, Practical Nonparametric Statistics, table A3).
    interval = median_interval(list(range(1, 11)))
    assert (interval.low, interval.high) == (2, 9)
    assert interval.coverage == pytest.approx(0.978515625)


def test_the_interval_covers_the_true_median_as_often_as_it_says():
    rng = random.Random(1)
    hits = 0
    for _ in range(2000):
        interval = median_interval([rng.lognormvariate(0, 1) for _ in range(15)])
        hits += interval.low <= 1.0 <= interval.high
    assert hits / 2000 == pytest.approx(median_interval(list(range(15))).coverage, abs=0.02)


@pytest.mark.parametrize(
    ("low", "high", "claim", "answer"),
    [
        (1.6, 2.0, {"at_least": 1.5}, "yes"),
        (1.5, 2.0, {"at_least": 1.5}, "yes"),
        (1.0, 1.4, {"at_least": 1.5}, "no"),
        (1.4, 1.6, {"at_least": 1.5}, "too noisy to say"),
        (1.0, 1.4, {"at_most": 1.5}, "yes"),
        (1.6, 2.0, {"at_most": 1.5}, "no"),
        (0.9, 1.1, {"at_least": 0.8, "at_most": 1.2}, "yes"),
        (1.3, 1.4, {"at_least": 0.8, "at_most": 1.2}, "no"),
        (1.1, 1.4, {"at_least": 0.8, "at_most": 1.2}, "too noisy to say"),
    ],
)
def test_a_verdict_follows_where_the_interval_lies(low, high, claim, answer):
    assert verdict(Interval(low, (low + high) / 2, high, 0.97, 20), **claim) == answer


def test_too_few_samples_are_too_noisy_however_clear_they_look():
    assert verdict(median_interval([9.0, 9.0, 9.0]), at_least=1.5) == "too noisy to say"


@pytest.mark.parametrize("claim", [{}, {"at_least": 2.0, "at_most": 1.0}, {"at_least": math.nan}])
def test_a_claim_that_says_nothing_or_cannot_hold_is_refused(claim):
    with pytest.raises(InputError):
        verdict(median_interval([1.0] * 9), **claim)
