"""Tiny MoE training: the text, the gates, and the order that the regimes must keep."""

import statistics

import pytest
import torch

from helpers.accounts import effective_experts, max_over_mean, quality_gain_kept
from helpers.engine import moe_training
from helpers.engine.moe_training import REGIMES, TRAFFICS, Shape, TinyModel, auxiliary_loss, train, training_text
from helpers.errors import InputError


@pytest.fixture(scope="module")
def texts():
    return training_text()


def test_the_text_is_three_kinds_of_equal_length_and_no_two_alike(texts):
    assert tuple(texts) == TRAFFICS
    assert len({len(text) for text in texts.values()}) == 1
    assert b"def " in texts["code"] and b" = " in texts["sums"] and texts["prose"].count(b" ") > 20_000
    first, *_ = texts["sums"].decode().splitlines()
    left, right = first.split(" = ")
    a, sign, b = left.split()
    assert int(right) == (int(a) + int(b) if sign == "+" else int(a) - int(b))


@pytest.fixture
def little_held_out(monkeypatch):
    """Measuring the whole held-out text takes as long as 30 steps."""
    monkeypatch.setattr(moe_training, "_HELD_OUT", 2_600)


@pytest.mark.parametrize("regime", REGIMES)
def test_a_model_reads_no_byte_ahead(regime):
    model = TinyModel(Shape(), regime, seed=0)
    tokens = torch.randint(0, 256, (2, 20), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[:, 12:] = 7
    with torch.no_grad():
        torch.testing.assert_close(model(tokens)[:, :12], model(changed)[:, :12], atol=1e-5, rtol=1e-4)
        assert (model(tokens)[:, 12] - model(changed)[:, 12]).abs().max() > 1e-3


def test_the_dense_model_multiplies_as_many_parameters_as_a_token_of_the_others():
    dense, moe = TinyModel(Shape(), "dense", 0), TinyModel(Shape(), "none", 0)
    assert sum(w.numel() for w in dense.gate_up) == sum(w.numel() for w in moe.gate_up) * 2 / 16
    assert sum(w.numel() for w in dense.down) == sum(w.numel() for w in moe.down) * 2 / 16


def test_the_auxiliary_loss_is_one_where_even_and_grows_with_skew():
    even = torch.full((8, 4), 0.25)
    assert auxiliary_loss(even, torch.arange(8)[:, None] % 4) == pytest.approx(1)
    skewed = torch.tensor([[0.7, 0.1, 0.1, 0.1]]).repeat(8, 1)
    assert auxiliary_loss(skewed, torch.zeros(8, 1, dtype=torch.long)) == pytest.approx(4 * 0.7)


def test_a_run_is_the_same_for_the_same_seed_and_learns(texts, little_held_out):
    first, second = (train("aux", seed=3, steps=6, texts=texts) for _ in range(2))
    assert first == second
    assert first.validation_loss < first.loss_curve[0][1]
    assert train("aux", seed=4, steps=6, texts=texts).validation_loss != first.validation_loss


def test_counts_are_those_of_all_held_out_tokens(texts, little_held_out):
    run = train("none", steps=2, texts=texts)
    windows = moe_training._HELD_OUT // 65
    for traffic in TRAFFICS:
        assert [sum(layer) for layer in run.counts[traffic]] == [windows * 64 * 2] * 2
    assert run.counts["mix"][1][5] == sum(run.counts[traffic][1][5] for traffic in TRAFFICS)
    assert train("dense", steps=1, texts=texts).counts == {}


def hottest(run) -> float:
    return statistics.fmean(max_over_mean(layer) for layer in run.counts["mix"])


def test_the_order_of_skew_holds_on_a_short_run(texts, little_held_out):
    none, bias = (train(regime, steps=30, texts=texts) for regime in ("none", "bias"))
    assert hottest(none) > 1.2 * hottest(bias)


def test_a_fixed_gate_uses_two_experts_whatever_it_reads(texts, little_held_out):
    for layers in train("fixed", steps=1, texts=texts).counts.values():
        assert [effective_experts(layer) for layer in layers] == pytest.approx([2, 2])


@pytest.mark.slow
def test_the_order_of_skew_holds_over_three_seeds(texts):
    for seed in range(3):
        runs = {regime: train(regime, seed, steps=100, texts=texts) for regime in ("none", "aux", "bias")}
        assert hottest(runs["none"]) > hottest(runs["aux"]) and hottest(runs["none"]) > hottest(runs["bias"])


def test_in_every_recorded_seed_a_collapsed_gate_loses_most_of_the_gain_and_a_trained_one_does_not():
    if not moe_training.RECORD.is_file():
        pytest.skip("no trained runs are recorded yet")
    runs, about = moe_training.recorded_runs()
    by = {(run.regime, run.seed): run for run in runs}
    seeds = sorted({run.seed for run in runs})
    assert len(seeds) >= 3 and len(by) == len(seeds) * len(REGIMES) and about["python"]
    for seed in seeds:
        loss = {regime: by[regime, seed].validation_loss for regime in REGIMES}
        kept = {
            regime: quality_gain_kept(loss["dense"], min(loss["aux"], loss["bias"]), loss[regime]) for regime in REGIMES
        }
        assert kept["fixed"] < 0.5 < kept["none"] < min(kept["aux"], kept["bias"])
        assert hottest(by["fixed", seed]) == 8 > hottest(by["none", seed])
        assert hottest(by["none", seed]) > max(hottest(by["aux", seed]), hottest(by["bias", seed]))


def test_what_cannot_be_trained_is_refused(monkeypatch):
    with pytest.raises(InputError, match="regime 'random'"):
        train("random")
    monkeypatch.setattr(moe_training, "_MODULES", ("no_such_module",))
    with pytest.raises(InputError, match="no_such_module"):
        training_text()


def test_the_record_is_written_and_read_back(tmp_path, monkeypatch, texts, little_held_out):
    out = tmp_path / "record.json"
    moe_training.main(["--seeds", "0", "--steps", "2", "--regimes", "dense,none", "--out", str(out)])
    monkeypatch.setattr(moe_training, "RECORD", out)
    runs, about = moe_training.recorded_runs()
    assert [run.regime for run in runs] == ["dense", "none"] and about["shape"]["experts"] == 16
    assert runs[1] == train("none", steps=2, texts=texts)
    monkeypatch.setattr(moe_training, "RECORD", tmp_path / "none.json")
    with pytest.raises(InputError, match="train live"):
        moe_training.recorded_runs()
