"""The re-tabulated real routing is the recorded one, and agrees with the loads that are shipped beside it."""

import statistics

import pytest

from helpers.accounts import InputError, distinct_experts, published_load
from helpers.accounts.real_routing import MIX, recorded_routing, recorded_traffics


@pytest.mark.parametrize("traffic", recorded_traffics())
def test_both_halves_add_up_to_the_published_load(traffic):
    routing, load = recorded_routing(traffic), published_load("DeepSeek-V2-Lite", traffic)
    assert (routing.layers, routing.counts) == (load.layers, load.counts)
    assert (sum(routing.tokens), routing.experts_per_token) == (load.tokens, load.experts_per_token)
    for half, tokens in zip((routing.first, routing.second), routing.tokens, strict=True):
        assert all(sum(row) == tokens * routing.experts_per_token for row in half)


@pytest.mark.parametrize("traffic", recorded_traffics())
def test_popularity_tells_what_independent_tokens_touch_and_neighbours_touch_fewer(traffic):
    routing = recorded_routing(traffic)
    for batch, counted in routing.independent.items():
        by_formula = statistics.fmean(distinct_experts(row, 6, batch) for row in routing.counts)
        assert by_formula == pytest.approx(counted, rel=0.012)
        assert routing.consecutive[batch] < counted or batch == 1


def test_the_mix_has_no_halves_and_another_text_is_refused():
    assert recorded_routing(MIX).counts == () and recorded_routing(MIX).independent[1] == 6
    with pytest.raises(InputError, match="poetry"):
        recorded_routing("poetry")


def test_the_table_is_what_the_recorded_ids_say(shared):
    np, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    from helpers.engine.moe_skew import distinct_in_batches

    recorded = np.load(shared / "facts/moe-data/esft_deepseek_v2_lite_topk_ids.npz")
    everything = []
    for traffic in recorded_traffics():
        routing, lengths = recorded_routing(traffic), recorded[f"{traffic}_seqlens"]
        # Layer 0 is dense: row r of the recording is layer r + 1.
        ids = recorded[traffic][[layer - 1 for layer in routing.layers]]
        everything.append(ids)
        cut = int(lengths[: len(lengths) // 2].sum())
        for half, part in ((routing.first, ids[:, :cut]), (routing.second, ids[:, cut:])):
            assert half == tuple(tuple(np.bincount(layer.ravel(), minlength=64).tolist()) for layer in part)
        sequence = np.repeat(np.arange(len(lengths)), lengths)
        for batch, stated in routing.consecutive.items():
            starts = np.flatnonzero(sequence[: len(sequence) - batch + 1] == sequence[batch - 1 :])
            chosen = np.random.default_rng(1).choice(starts, 300)
            counted = np.mean([[len(np.unique(layer[at : at + batch])) for at in chosen] for layer in ids])
            assert counted == pytest.approx(stated, rel=0.05)
    for traffic, ids in zip((*recorded_traffics(), MIX), [*everything, np.concatenate(everything, 1)], strict=True):
        for batch, stated in recorded_routing(traffic).independent.items():
            counted = statistics.fmean(distinct_in_batches(torch.from_numpy(ids), batch, 50, seed=1))
            assert counted == pytest.approx(stated, rel=0.03)
