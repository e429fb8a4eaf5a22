"""Sweeps on simulated time: ratios, MFU and MBU exactly, budgets kept, nothing dropped silently."""

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from planted import MODEL, ceilings
from simulated import SimulatedTimer, nothing, steady

from helpers import accounts
from helpers.errors import InputError
from helpers.measure import Point, Timing, as_device, decode_sweep, prefill_sweep


def point(**changes) -> Point:
    fields = {
        "phase": "decode",
        "tokens": 100,
        "batch": 2,
        "flops": 4e9,
        "bytes": 2e9,
        "predicted_s": 0.2,
        "binds": "bandwidth",
        "peak_flops_per_s": 1e11,
        "peak_bytes_per_s": 1e10,
        "timing": Timing((0.4,) * 9),
    }
    return Point(**(fields | changes))


def test_utilisations_are_exact_on_planted_timings():
    p = point()
    assert p.ratio == 2.0
    assert p.achieved_flops_per_s == 1e10
    assert p.achieved_bytes_per_s == 5e9
    assert p.mfu == 0.1
    assert p.mbu == 0.5
    assert p.intensity_flops_per_byte == 2.0


def test_a_utilisation_above_one_is_shown_and_not_clipped():
    assert point(timing=Timing((0.1,) * 9)).mbu == 2.0


def test_a_point_answers_about_its_utilisation():
    p = point(timing=Timing((0.38,) * 5 + (0.4,) * 5 + (0.42,) * 5))
    assert p.mbu == 0.5
    assert p.says("mbu", at_least=0.45) == "yes"
    assert p.says("mbu", at_least=0.55) == "no"
    assert p.says("mbu", at_least=0.5) == "too noisy to say"
    assert p.says("mfu", at_most=0.11) == "yes"
    assert p.says("ratio", at_least=1.8, at_most=2.2) == "yes"
    assert point(timing=Timing((0.4,) * 9, threads=1, interruptions_per_s=1e6)).says("mbu", at_least=0.1) == (
        "too noisy to say"
    )
    with pytest.raises(InputError, match="beauty"):
        p.says("beauty", at_least=1)


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "train"},
        {"binds": "luck"},
        {"tokens": 0},
        {"batch": -1},
        {"flops": -1.0},
        {"predicted_s": 0.0},
        {"peak_bytes_per_s": 0.0},
        {"timing": Timing((0.0,) * 9)},
    ],
)
def test_a_point_that_cannot_be_is_refused(change):
    with pytest.raises(InputError):
        point(**change)


def exactly_as_predicted(slowness: float, times: dict) -> SimulatedTimer:
    return SimulatedTimer(lambda fn: times[fn] * slowness)


@given(st.floats(0.5, 20.0))
@settings(max_examples=20, deadline=None)
def test_a_sweep_finds_the_planted_slowness_at_every_point(slowness):
    device, times = as_device(ceilings()), {}

    def run(length):
        def prefill():
            pass

        times[prefill] = accounts.prefill_floor(MODEL, length, device, 1, 0, "fp32", "fp32", "fp32").seconds
        return prefill

    timer = exactly_as_predicted(slowness, times)
    limits = {"budget_s": 1e6, "timer": timer, "now": timer.now}
    sweep = prefill_sweep(run, [16, 64, 256], model=MODEL, ceilings=ceilings(), **limits)
    assert [p.tokens for p in sweep.points] == [16, 64, 256]
    assert [p.ratio for p in sweep.points] == pytest.approx([slowness] * 3)
    for p in sweep.points:
        assert max(p.mfu, p.mbu) == pytest.approx(1 / slowness)
        assert p.binds == ("compute" if p.mfu > p.mbu else "bandwidth")


def test_decode_covers_every_context_and_batch_and_takes_its_work_from_the_accounts():
    timer = steady(0.1)
    sweep = decode_sweep(
        lambda c, b: nothing, [128, 512], [1, 8], model=MODEL, ceilings=ceilings(), timer=timer, now=timer.now
    )
    assert [(p.tokens, p.batch) for p in sweep.points] == [(128, 1), (512, 1), (128, 8), (512, 8)]
    floor = accounts.decode_floor(MODEL, 512, 8, as_device(ceilings()), "fp32", "fp32", "fp32")
    at = sweep.at(512, 8)
    assert (at.flops, at.bytes, at.predicted_s) == (floor.flops, floor.bytes, floor.seconds)
    # Batch shares the weights: eight sequences read far less than eight times the bytes of one.
    assert at.bytes < 2 * sweep.at(512).bytes


def test_points_beyond_the_budget_are_dropped_with_a_reason_and_the_budget_is_kept():
    timer = SimulatedTimer(lambda fn: fn.seconds)

    def run(length):
        def prefill():
            pass

        prefill.seconds = length / 100
        return prefill

    sweep = prefill_sweep(
        run, [16, 64, 256, 1024, 4096], model=MODEL, ceilings=ceilings(), budget_s=20, timer=timer, now=timer.now
    )
    measured, gone = [p.tokens for p in sweep.points], [d.tokens for d in sweep.dropped]
    assert sorted(measured + gone) == [16, 64, 256, 1024, 4096]
    assert 4096 in gone
    assert all("s of 20 s are left" in d.reason for d in sweep.dropped)
    assert timer.now() <= 20 * 1.2
    assert all(str(tokens) in sweep.to_text() for tokens in gone)
    with pytest.raises(InputError, match="dropped"):
        sweep.at(4096)


def test_a_point_that_does_not_fit_into_memory_is_dropped_and_the_rest_is_measured():
    def run(length):
        if length > 100:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")
        return nothing

    timer = steady(0.01)
    sweep = prefill_sweep(run, [16, 128, 32], model=MODEL, ceilings=ceilings(), timer=timer, now=timer.now)
    assert [p.tokens for p in sweep.points] == [16, 32]
    assert [(d.tokens, d.reason) for d in sweep.dropped] == [(128, "out of memory")]


def test_any_other_error_of_the_engine_is_not_swallowed():
    def run(length):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        prefill_sweep(run, [16], model=MODEL, ceilings=ceilings(), timer=steady(0.01))


@pytest.mark.parametrize("lengths", [[], [0], [-5], [1.5], [True], ["16"]])
def test_lengths_that_are_no_positive_whole_numbers_are_refused(lengths):
    with pytest.raises(InputError, match="prompt_lengths"):
        prefill_sweep(lambda n: nothing, lengths, model=MODEL, ceilings=ceilings(), timer=steady(0.01))


def test_a_point_never_asked_for_is_said_to_be_so():
    timer = steady(0.01)
    sweep = prefill_sweep(lambda n: nothing, [16], model=MODEL, ceilings=ceilings(), timer=timer, now=timer.now)
    with pytest.raises(InputError, match="not asked for"):
        sweep.at(17)


def test_noisy_points_are_marked_in_the_table():
    timer = steady(0.01, noise=0.5)
    sweep = prefill_sweep(lambda n: nothing, [16], model=MODEL, ceilings=ceilings(), timer=timer, now=timer.now)
    assert sweep.points[0].noisy
    assert "NOISY" in sweep.to_text()
