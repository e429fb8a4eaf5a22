"""Capacity: an upper bound, with its terms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import GIB, InputError, device, kv_bytes, max_concurrency, read_config, weight_bytes

H100 = device("H100 SXM")


def test_the_terms_make_the_result():
    model = read_config("llama-3.1-8b")
    capacity = max_concurrency(model, 8192, H100)
    assert capacity.visible_bytes == int(79.1 * GIB)
    assert capacity.free_bytes == capacity.visible_bytes - weight_bytes(model).total
    assert capacity.max_concurrency == capacity.free_bytes // kv_bytes(model, 8192) == 64


def test_claim_c9_eight_h100_hold_deepseek_v3_on_paper_and_almost_nothing_beside_it():
    model = read_config("deepseek-v3")
    eight = max_concurrency(model, 4096, H100, gpus=8)
    assert eight.weights_fit
    assert 0.7 < eight.free_bytes / 8 / GIB < 0.8
    assert not max_concurrency(model, 4096, H100, gpus=7).weights_fit
    assert max_concurrency(model, 4096, H100, gpus=7).max_concurrency == 0
    assert max_concurrency(model, 4096, H100, gpus=16).max_concurrency > 1000


def test_claim_c23_more_cards_do_not_split_a_latent_cache_under_tensor_parallelism():
    model = read_config("deepseek-v3")
    ranks = max_concurrency(model, 4096, H100, gpus=16, tp=16)
    shared = max_concurrency(model, 4096, H100, gpus=16)
    assert ranks.bytes_per_request == 16 * shared.bytes_per_request
    assert ranks.max_concurrency < shared.max_concurrency // 10


@given(context=st.integers(1, 200_000), gpus=st.integers(1, 16))
def test_longer_requests_fit_fewer_times_and_more_cards_hold_more(context, gpus):
    model = read_config("llama-3.1-70b")
    here = max_concurrency(model, context, H100, gpus=gpus).max_concurrency
    assert max_concurrency(model, context + 100, H100, gpus=gpus).max_concurrency <= here
    assert max_concurrency(model, context, H100, gpus=gpus + 1).max_concurrency >= here


def test_what_cannot_be_known_is_refused():
    model = read_config("llama-3.1-8b")
    with pytest.raises(InputError, match="H20"):
        max_concurrency(model, 100, device("H20"))
    with pytest.raises(InputError, match="multiple of tp"):
        max_concurrency(model, 100, H100, gpus=3, tp=2)
    with pytest.raises(InputError, match="gpus"):
        max_concurrency(model, 100, H100, gpus=0)
    with pytest.raises(InputError, match="context"):
        max_concurrency(model, 0, H100)
