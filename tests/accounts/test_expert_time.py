"""t(M) from measured points, and the layer time it predicts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import (
    InputError,
    contiguous,
    device,
    expert_floor_seconds,
    expert_seconds,
    rank_seconds,
    ridge_point,
)


def test_lines_between_the_points_and_beyond_the_last():
    t = expert_seconds({4: 2.0, 1: 1.0, 8: 4.0})
    assert [t(tokens) for tokens in (0.5, 1, 2.5, 4, 6, 8, 10)] == pytest.approx([1, 1, 1.5, 2, 3, 4, 5])


@given(st.dictionaries(st.integers(1, 1000), st.floats(1e-6, 1.0), min_size=2, max_size=8), st.floats(0.1, 1e5))
def test_a_predicted_time_is_never_below_the_least_measured(points, tokens):
    assert expert_seconds(points)(tokens) >= min(points.values()) * (1 - 1e-9)


@pytest.mark.parametrize("points", [{}, {1: 1.0}, {1: 1.0, 2: 0.0}, {0: 1.0, 2: 1.0}, {1: 1.0, 2: float("nan")}])
def test_points_that_give_no_curve_are_refused(points):
    with pytest.raises(InputError):
        expert_seconds(points)


def test_published_points_predict_published_layer_times():
    # One expert of 1024 × 512 in fp32 on two AVX2 cores, ms: 16 tokens take 3 times as long as 1.
    t = expert_seconds({1: 0.43, 2: 0.61, 4: 0.96, 8: 1.05, 16: 1.33, 32: 1.97, 64: 3.0, 128: 5.2, 1024: 37})
    collapsed = [16] * 8 + [0] * 56
    assert sum(rank_seconds(collapsed, contiguous(64, 1), t)) == pytest.approx(10.6, abs=0.1)
    spread = [2] * 64
    assert sum(rank_seconds(spread, contiguous(64, 1), t)) > 3 * sum(rank_seconds(collapsed, contiguous(64, 1), t))


def test_the_floor_of_an_expert_is_reading_up_to_the_ridge_point_and_compute_beyond():
    gpu = device("H100 SXM")
    at = expert_floor_seconds(1024, 512, gpu)
    params = 3 * 1024 * 512
    ridge_tokens = ridge_point(gpu, "bf16")  # 2 FLOPs and 2 bytes a parameter
    assert at(1) == at(0.9 * ridge_tokens) == params * 2 / gpu.bandwidth_bytes_per_s
    assert at(2 * ridge_tokens) == pytest.approx(2 * at(1))
    with pytest.raises(InputError):
        expert_floor_seconds(0, 512, gpu)
