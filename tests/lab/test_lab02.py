"""The answers of lab 02 are right: against helpers.accounts, brute force and each other."""

import math

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
