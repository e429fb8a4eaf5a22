"""The clock's logic on simulated time, and its real timers on what must hold on any machine."""

import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
from simulated import SimulatedTimer, nothing, scripted, steady

from helpers.errors import InputError
from helpers.measure import Paired, Timing, clock, paired, says, time_call, timer_for
from helpers.measure.clock import FEWEST_SAMPLES, INTERRUPTION_LIMIT


def test_a_steady_call_stops_at_the_fewest_repeats_and_is_not_noisy():
    timing = time_call(nothing, timer=steady(0.01), min_repeats=9)
    assert (timing.n, timing.noisy, timing.noisy_because) == (9, False, "")
    assert timing.median_s == pytest.approx(0.01)
    assert timing.iqr_s == pytest.approx(0.0)


def test_warm_up_calls_are_not_among_the_samples():
    timing = time_call(nothing, timer=scripted([9.0, 9.0] + [0.01] * 50), warmup=2, max_seconds=100)
    assert set(timing.samples) == {0.01}


def test_planted_noise_raises_the_flag_and_uses_every_repeat():
    timing = time_call(nothing, timer=steady(0.01, noise=0.4), max_repeats=40, max_seconds=100)
    assert timing.n == 40
    assert timing.noisy
    assert "of the median" in timing.noisy_because


def test_a_limit_in_seconds_cuts_short_and_too_few_samples_are_noisy():
    timing = time_call(nothing, timer=steady(1.0), warmup=1, max_seconds=3.5)
    assert timing.n == 3
    assert timing.noisy_because == "only 3 samples"


def test_a_call_longer_than_the_limit_is_still_measured_once():
    timing = time_call(nothing, timer=steady(60.0), warmup=0, max_seconds=1.0)
    assert timing.samples == (60.0,)
    assert timing.noisy


@given(st.floats(1e-6, 1e-3), st.floats(1e-5, 1e-3))
@settings(max_examples=30, deadline=None)
def test_a_short_call_is_repeated_within_a_sample_until_the_clock_can_see_it(seconds, least):
    timing = time_call(nothing, timer=steady(seconds), min_sample_s=least, max_repeats=7)
    assert timing.calls_per_sample * seconds >= least * (1 - 1e-9)
    assert timing.calls_per_sample == 1 or (timing.calls_per_sample - 1) * seconds < least
    assert timing.median_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    "limits", [{"warmup": -1}, {"min_repeats": 0}, {"min_repeats": 9, "max_repeats": 8}, {"max_seconds": 0}]
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(InputError):
        time_call(nothing, timer=steady(0.01), **limits)


def test_a_function_that_raises_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        time_call(lambda: 1 / 0)


def test_pairs_alternate_their_order_and_stay_balanced():
    def a():
        pass

    def b():
        pass

    timer = steady(0.01)
    result = paired(a, b, timer=timer, warmup=1, min_pairs=6)
    assert timer.order[2:] == [a, b, b, a] * 3
    assert (result.n, result.ratio) == (6, pytest.approx(1.0))


def drifting(costs: dict, drift_per_call: float) -> SimulatedTimer:
    """A machine that slows by a share of itself at every call, as one that heats up does."""
    slowness = [1.0]

    def cost(fn):
        slowness[0] *= 1 + drift_per_call
        return costs[fn] * slowness[0]

    return SimulatedTimer(cost)


def test_pairs_find_the_true_ratio_on_a_drifting_machine_where_two_separate_timings_do_not():
    def a():
        pass

    def b():
        pass

    costs = {a: 0.012, b: 0.010}
    limits = {"warmup": 1, "max_seconds": 1e9, "target_spread": 0.0}
    result = paired(a, b, timer=drifting(costs, 0.01), max_pairs=30, **limits)
    assert result.ratio == pytest.approx(1.2, rel=0.011)
    assert result.says(at_least=1.1, at_most=1.3) == "yes"
    assert result.says(at_least=1.5) == "no"
    assert result.to_text().startswith("1.2") and "n = 30" in result.to_text()
    timer = drifting(costs, 0.01)
    alone = [time_call(fn, timer=timer, max_repeats=30, **limits) for fn in (a, b)]
    assert alone[0].median_s / alone[1].median_s < 1.0


def test_a_planted_slow_function_is_called_slow_and_an_equal_one_is_not():
    slow = time_call(nothing, timer=steady(0.020, noise=0.02, seed=1))
    fast = time_call(nothing, timer=steady(0.010, noise=0.02, seed=2))
    assert says(slow, fast, at_least=1.5) == "yes"
    assert says(fast, slow, at_least=1.5) == "no"
    assert says(slow, fast, at_least=3.0) == "no"
    assert says(slow, fast, at_least=2.0) == "too noisy to say"
    assert says(slow, fast, at_least=1.8, at_most=2.2) == "yes"


def test_too_few_samples_say_nothing():
    assert says(Timing((2.0,) * 5), Timing((1.0,) * 50), at_least=1.5) == "too noisy to say"
    assert says(Timing((2.0,) * 50), Timing((1.0,) * 50), at_least=1.5) == "yes"


def test_the_spread_of_either_call_widens_what_can_be_said():
    sharp, wide = Timing((2.0,) * 20), Timing((1.0,) * 10 + (1.9,) * 10)
    # Ratios between 2 ÷ 1.9 and 2 ÷ 1, and the other way round.
    assert says(sharp, wide, at_least=1.5) == "too noisy to say"
    assert says(sharp, wide, at_least=1.05) == "yes"
    assert says(sharp, wide, at_least=2.1) == "no"
    assert says(wide, sharp, at_most=0.6) == "too noisy to say"
    assert says(wide, sharp, at_most=0.96) == "yes"


@pytest.mark.skipif(not clock.COUNTS_INTERRUPTIONS, reason="this system does not count context switches")
def test_the_real_clock_counts_interruptions_while_sampling_only(monkeypatch):
    counts = iter((1000, 1500))
    monkeypatch.setattr(clock, "_interruptions", lambda: next(counts))
    timing = time_call(lambda: time.sleep(0.002), warmup=1, min_repeats=5, max_repeats=5)
    assert timing.interruptions_per_s == pytest.approx(500 / sum(timing.samples))
    assert timing.interrupted == (timing.interruptions_per_s > INTERRUPTION_LIMIT * timing.threads)


def test_interrupted_timings_are_noisy_and_say_nothing_however_small_their_spread():
    rate = 2 * INTERRUPTION_LIMIT + 1
    disturbed = Timing((2.0,) * 20, threads=2, interruptions_per_s=rate)
    assert disturbed.spread == 0
    assert disturbed.noisy_because == "other work took the cores 101 times a second"
    assert says(disturbed, Timing((1.0,) * 20), at_least=1.5) == "too noisy to say"
    assert not Timing((2.0,) * 20, threads=3, interruptions_per_s=rate).noisy


def test_a_timing_answers_about_seconds_and_shows_itself():
    timing = Timing((0.010,) * 5 + (0.0101,) * 5)
    assert timing.says(at_most=0.011) == "yes"
    assert timing.says(at_least=0.011) == "no"
    assert timing.says(at_least=0.01005) == "too noisy to say"
    assert timing.to_text() == "10.050 ms (IQR 0.100 ms, n = 10)"
    disturbed = Timing(timing.samples, threads=1, interruptions_per_s=1e6)
    assert disturbed.says(at_most=0.011) == "too noisy to say"
    assert "NOISY: other work" in disturbed.to_text()


@pytest.mark.parametrize(
    "wrong", [{"threads": 0}, {"threads": -1}, {"calls_per_sample": 0}, {"interruptions_per_s": -1.0}]
)
def test_conditions_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError):
        Timing((1.0,), **wrong)


@pytest.mark.parametrize("samples", [(), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_samples_that_are_no_seconds_are_refused(samples):
    with pytest.raises(InputError):
        Timing(samples)


def test_pairs_of_unequal_length_or_of_zero_seconds_are_refused():
    with pytest.raises(InputError):
        Paired(Timing((1.0,)), Timing((1.0, 1.0)))
    with pytest.raises(InputError):
        Paired(Timing((1.0,)), Timing((0.0,)))


def test_one_pair_alone_gets_no_interval():
    text = Paired(Timing((3.0,)), Timing((2.0,))).to_text()
    assert text == "1.50 times as long (one pair alone: no interval)"
    with pytest.raises(InputError):
        says(Timing((1.0,) * 9), Timing((0.0,) * 9), at_least=1)


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=40))
def test_the_summary_is_ordered(samples):
    timing = Timing(tuple(samples))
    assert timing.min_s <= timing.q1_s <= timing.median_s <= timing.q3_s <= max(samples)
    assert timing.iqr_s == pytest.approx(timing.q3_s - timing.q1_s)
    assert timing.noisy or (timing.n >= FEWEST_SAMPLES and timing.spread <= 0.10)


def test_the_real_clock_spans_the_whole_call_and_carries_where_it_was_measured():
    inside = []

    def call():
        start = time.perf_counter()
        time.sleep(0.005)
        inside.append(time.perf_counter() - start)

    timing = time_call(call, warmup=1, min_repeats=5, max_repeats=5, dtype="fp32")
    assert len(inside) == 6
    assert all(outer >= inner for outer, inner in zip(timing.samples, inside[1:], strict=True))
    assert (timing.device, timing.dtype, timing.threads) == ("cpu", "fp32", torch.get_num_threads())
    assert timing.versions["torch"] == torch.__version__


def test_the_longer_of_two_sleeps_is_found_in_pairs():
    result = paired(lambda: time.sleep(0.03), lambda: time.sleep(0.002), min_pairs=8, max_pairs=8, warmup=0)
    assert result.a.min_s > result.b.min_s
    assert result.ratio > 1


def test_an_unknown_device_has_no_clock():
    with pytest.raises(InputError, match="tpu"):
        timer_for("tpu")


class FakeCuda:
    """torch.cuda as far as the clock uses it: a log of calls, events that are one second apart."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def device(self, name):
        import contextlib

        self.log.append(f"device {name}")
        return contextlib.nullcontext()

    def synchronize(self):
        self.log.append("synchronize")

    def Event(self, enable_timing):
        cuda = self

        class Event:
            def record(self):
                cuda.log.append("record")

            def synchronize(self):
                cuda.log.append("wait")

            def elapsed_time(self, end):
                return 1000.0

        return Event()


def test_the_cuda_clock_drains_the_device_first_and_reads_events_around_the_calls(monkeypatch):
    cuda = FakeCuda()
    for name in ("device", "synchronize", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    seconds = timer_for("cuda:1")(lambda: cuda.log.append("call"), 2)
    assert cuda.log == ["device cuda:1", "synchronize", "record", "call", "call", "record", "wait"]
    assert seconds == 1.0


def test_the_mps_clock_waits_before_both_reads(monkeypatch):
    log = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: log.append("synchronize"))
    timer_for("mps")(lambda: log.append("call"), 2)
    assert log == ["synchronize", "call", "call", "synchronize"]
