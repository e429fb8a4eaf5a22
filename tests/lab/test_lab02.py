"""The answers of lab 02 are right: against helpers.accounts, brute force and each other."""

import itertools
import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import accounts
from helpers.lab import check
from helpers.lab.exercises import find, lab02

LLAMA, H100 = accounts.read_config("llama-3.1-8b"), accounts.device("H100 SXM")
PARAMS = accounts.count_parameters(LLAMA).active
PEAK, BANDWIDTH = H100.peak("bf16"), H100.bandwidth_bytes_per_s


@pytest.mark.parametrize("tokens", [1, 16, 512, 4096])
def test_the_prefill_floor_is_that_of_the_accounts_without_attention_cache_and_head(tokens):
    full = accounts.prefill_floor(LLAMA, tokens, H100)
    flops = accounts.prefill_flops(LLAMA, tokens, logits="all")
    simple = lab02.prefill_floor_s(PARAMS, tokens, 2, PEAK, BANDWIDTH)
    assert simple == pytest.approx(max(flops.weights / PEAK, full.memory_s), rel=0.04)


@pytest.mark.parametrize("tokens", [1, 8192, 131072])
def test_the_quadratic_share_is_that_of_the_accounts(tokens):
    attention = LLAMA.layers[0].attention
    mine = lab02.quadratic_share(PARAMS, len(LLAMA.layers), attention.heads, attention.head_dim, tokens)
    assert mine == pytest.approx(accounts.quadratic_share(LLAMA, tokens), rel=1e-4)


def test_a_step_at_its_floor_has_an_mbu_of_one():
    floor = accounts.decode_floor(LLAMA, 8192, 16, H100)
    weights, kv = accounts.weights_read_bytes(LLAMA, 16), accounts.kv_bytes_per_token(LLAMA, 8192)
    assert lab02.mbu(int(weights), kv, 8192, 16, floor.memory_s, BANDWIDTH) == pytest.approx(1)


@given(
    params=st.floats(1e8, 1e11),
    weights=st.integers(10**8, 10**11),
    kv=st.integers(0, 10**9),
    flops=st.floats(1e12, 1e15),
    bandwidth=st.floats(1e10, 5e12),
)
def test_the_batch_is_the_first_at_which_computing_lasts_as_long_as_reading(params, weights, kv, flops, bandwidth):
    def slack_s(batch):
        return batch * 2 * params / flops - (weights + batch * kv) / bandwidth

    batch = lab02.batch_where_compute_binds(params, weights, kv, flops, bandwidth)
    rounding_s = 1e-9 * weights / bandwidth
    if batch == math.inf:
        assert slack_s(10**6) < 0
    elif batch < 10**6:
        assert slack_s(batch) >= -batch * rounding_s
        assert slack_s(batch - 1) <= batch * rounding_s


def test_the_function_shown_as_the_colleagues_is_rejected():
    def tpot_ms(runs):
        times = [run["returned_s"][-1] - run["sent_s"] for run in runs]
        tokens = [len(run["returned_s"]) for run in runs]
        return sum(t / n for t, n in zip(times, tokens, strict=True)) / len(runs)

    assert check.evaluate(find("2.8"), tpot_ms).state == check.NOT_YET


def test_an_answer_that_sorts_the_learners_samples_in_place_is_told_so():
    def median_and_iqr(samples_ms, warmup):
        samples_ms.sort()
        return lab02.median_and_iqr(samples_ms, warmup)

    assert "changed its own arguments" in check.evaluate(find("2.4"), median_and_iqr).text


def _batch_by_counting(params, weights, kv, flops, bandwidth, limit=10**6):
    if 2 * params / flops <= kv / bandwidth:
        return math.inf
    fits = (b for b in range(1, limit) if b * 2 * params / flops >= (weights + b * kv) / bandwidth)
    return next(fits, math.inf)


def _batch_multiplied_out(params, weights, kv, flops, bandwidth):
    net = 2 * params * bandwidth - kv * flops
    return math.ceil(weights * flops / net) if net > 0 else float("inf")


def _tpot_by_gaps(runs):
    def gaps(times):
        return [b - a for a, b in itertools.pairwise(times)]

    return 1000 * statistics.median(statistics.mean(gaps(run["done_s"])) for run in runs[1:])


def _median_and_iqr_by_numpy(samples_ms, warmup):
    q1, median, q3 = np.percentile(samples_ms[warmup:], [25, 50, 75])
    return np.array([median, q3 - q1])


RIGHT_ANOTHER_WAY = (
    ("2.1", lambda params, tokens, size, flops, bandwidth: params * max(2 * tokens / flops, size / bandwidth)),
    ("2.2", lambda params, tokens, seconds, peak: np.float64(2 * params * tokens / peak) / seconds),
    ("2.3", lambda weights, kv, context, batch, s, peak: (weights + sum([kv * context] * batch)) / (s * peak)),
    ("2.4", _median_and_iqr_by_numpy),
    ("2.5", _batch_by_counting),
    ("2.5", _batch_multiplied_out),
    ("2.6", lambda params, layers, heads, dim, n: layers * heads * dim * (n + 1) / params),
    ("2.6", lambda params, layers, heads, dim, n: 2 * layers * heads * dim * sum(range(n + 1)) / (params * n)),
    ("2.7", lambda batch, heads, kv_heads, layers, n, size: float(batch * heads * n**2 * size)),
    ("2.8", _tpot_by_gaps),
)


@pytest.mark.parametrize(("exercise_id", "answer"), RIGHT_ANOTHER_WAY)
def test_a_right_answer_by_another_formula_is_accepted(exercise_id, answer):
    assert check.evaluate(find(exercise_id), answer).state == check.CORRECT


def _batch_beyond_the_tie(params, weights, kv, flops, bandwidth):
    net_s = 2 * params / flops - kv / bandwidth
    return int(weights / bandwidth / net_s) + 1 if net_s > 0 else math.inf


WRONG_BUT_CLOSE = (
    # Right where the warm-up is also the slowest.
    ("2.4", lambda samples, warmup: lab02.median_and_iqr(sorted(samples)[:-warmup], 0), "slowest samples"),
    ("2.8", lambda runs: lab02.tpot_ms(sorted(runs, key=lambda run: -lab02.tpot_ms([run, run]))), "slowest run"),
    # Right up to the largest batch somebody thought of, and right where no whole batch balances both times.
    ("2.5", lambda *case: _batch_by_counting(*case, limit=1025), "gave inf sequences"),
    ("2.5", _batch_beyond_the_tie, "that batch is the answer"),
    # The estimate in every text book.
    ("2.6", lambda params, layers, heads, dim, n: layers * heads * dim * n / params, "a token attends to itself"),
    ("2.2", lambda *case: min(1.0, lab02.mfu(*case)), "cut it off"),
)


@pytest.mark.parametrize(("exercise_id", "answer", "said"), WRONG_BUT_CLOSE)
def test_an_answer_that_is_right_on_easy_cases_alone_is_rejected_and_told_why(exercise_id, answer, said):
    result = check.evaluate(find(exercise_id), answer)
    assert result.state == check.NOT_YET
    assert said in result.text


def test_where_both_times_are_equal_the_batch_counts_and_a_row_that_only_balances_its_cache_never_does():
    case = (2**30, 2**31, 2**21, 2**50, 2**41)
    assert lab02.batch_where_compute_binds(*case) == 1024
    assert lab02.batch_where_compute_binds(2**30, 2**31, 2**22, 2**50, 2**41) == math.inf


@pytest.mark.parametrize("exercise_id", ["2.2", "2.3"])
def test_only_the_case_that_is_there_for_it_is_faster_than_the_peak(exercise_id):
    exercise = find(exercise_id)
    above = [case for case in exercise.all_cases() if not 0 < exercise.reference(*case) <= 1]
    assert above == ([exercise.cases[-1]] if exercise_id == "2.2" else [])


@pytest.mark.parametrize("tokens", [1, 2, 7])
def test_the_quadratic_share_counts_every_pair_once(tokens):
    pairs = sum(1 for query in range(tokens) for key in range(tokens) if key <= query)
    assert lab02.quadratic_share(1000, 3, 2, 5, tokens) == pytest.approx(4 * 3 * 2 * 5 * pairs / (2 * 1000 * tokens))
