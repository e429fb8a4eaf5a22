"""Drawn routings have the skew they were asked for; what is timed computes the layer; D(B) holds on real routing."""

import math

import pytest
import torch

from helpers.accounts import distinct_experts, expected_distinct_experts, max_over_mean, null_max_over_mean
from helpers.engine.moe import DISPATCHES, Routing, run_experts
from helpers.engine.moe_skew import (
    distinct_in_batches,
    draw_routing,
    expert_runner,
    layer_runner,
    lognormal_popularity,
    random_experts,
    zipf_popularity,
)
from helpers.errors import InputError


def skew_of(popularity, tokens=2000, k=8):
    return max_over_mean(draw_routing(popularity, tokens, k).counts(64).tolist())


def test_an_even_popularity_shows_the_null_and_no_more():
    ratios = [max_over_mean(draw_routing([1.0] * 64, 64, 6, seed).counts(64).tolist()) for seed in range(60)]
    assert sum(ratios) / 60 == pytest.approx(null_max_over_mean(64, 6, 64), rel=0.05)


def test_skew_grows_with_alpha_and_sigma_up_to_all_tokens_on_the_same_experts():
    zipf = [skew_of(zipf_popularity(64, alpha)) for alpha in (0, 0.5, 1, 2, math.inf)]
    assert zipf == sorted(zipf) and zipf[0] < 1.3 and zipf[-1] == 8
    assert draw_routing(zipf_popularity(64, math.inf), 50, 8).counts(64).tolist() == [50] * 8 + [0] * 56
    lognormal = [skew_of(lognormal_popularity(64, sigma)) for sigma in (0, 0.5, 1.5)]
    assert lognormal == sorted(lognormal) and lognormal[0] < 1.3 < lognormal[1]


def test_a_token_never_draws_an_expert_twice_and_shares_follow_the_popularity():
    experts = draw_routing(zipf_popularity(16, 1.0), 500, 4).experts
    assert all(len(set(row)) == 4 for row in experts.tolist())
    counts = draw_routing([8.0, 4.0, 2.0, 1.0, 1.0], 4000, 1).counts(5)
    assert (counts / 4000).tolist() == pytest.approx([0.5, 0.25, 0.125, 0.0625, 0.0625], abs=0.03)


@pytest.mark.parametrize("popularity", [[], [0.0, 0.0], [1.0, -1.0], [1.0], [math.nan, 1.0], [[1.0, 2.0]]])
def test_popularities_that_cannot_be_drawn_from_are_refused(popularity):
    with pytest.raises(InputError):
        draw_routing(popularity, 4, 2)
    with pytest.raises(InputError):
        zipf_popularity(4, -1.0)
    with pytest.raises(InputError):
        lognormal_popularity(4, math.nan)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_what_is_timed_is_the_whole_layer(dispatch):
    gate_up, down = random_experts(8, 16, 8)
    routing = draw_routing(zipf_popularity(8, 1.0), 10, 2)
    torch.manual_seed(5)
    got = layer_runner(gate_up, down, routing, dispatch)()
    torch.manual_seed(5)
    x = torch.randn(10, 16)
    torch.testing.assert_close(got, run_experts(x, routing, gate_up, down, "loop"))


def test_one_expert_is_run_at_a_time_and_each_in_turn():
    gate_up, down = random_experts(3, 16, 8)
    call = expert_runner(gate_up, down, 5)
    outputs = [call() for _ in range(6)]
    assert outputs[0].shape == (5, 16)
    assert all(torch.equal(outputs[at], outputs[at + 3]) for at in range(3))
    assert not torch.equal(outputs[0], outputs[1])


def test_drawn_tokens_touch_as_many_experts_as_the_formula_says():
    experts = draw_routing([1.0] * 64, 4000, 6).experts[None]
    for batch in (1, 8, 64):
        (got,) = distinct_in_batches(experts, batch)
        assert got == pytest.approx(expected_distinct_experts(64, 6, batch), rel=0.02)
    with pytest.raises(InputError, match="9000 cannot be drawn from 4000 tokens"):
        distinct_in_batches(experts, 9000)
    with pytest.raises(InputError, match=r"\[layers, tokens, k\]"):
        distinct_in_batches(experts[0], 2)


# One token of each of B sequences, mean of 26 layers: DeepSeek-V2-Lite, deepseek-ai/ESFT.
@pytest.mark.parametrize(("task", "measured"), [("intent", {8: 30.5, 32: 53.2}), ("translation", {8: 26.8, 32: 46.5})])
def test_distinct_experts_of_real_routing_follow_the_popularity_not_the_even_formula(shared, task, measured):
    np = pytest.importorskip("numpy")
    with np.load(shared / "facts" / "moe-data" / "esft_deepseek_v2_lite_topk_ids.npz", allow_pickle=False) as file:
        experts = torch.from_numpy(file[task].astype(np.int64))
        sequence_of = torch.repeat_interleave(torch.from_numpy(file[f"{task}_seqlens"].astype(np.int64)))
    counts = [Routing(layer, layer).counts(64).tolist() for layer in experts]
    for batch, wanted in measured.items():
        got = sum(distinct_in_batches(experts, batch, draws=60, sequence_of=sequence_of)) / 26
        predicted = sum(distinct_experts(row, 6, batch) for row in counts) / 26
        assert got == pytest.approx(wanted, rel=0.04)
        assert predicted == pytest.approx(got, rel=0.05)
        assert expected_distinct_experts(64, 6, batch) > 1.1 * got
