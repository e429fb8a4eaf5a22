"""Two clocks on one call: waiting counts for the wall clock alone, and what disturbs a timing is said."""

import dataclasses
import os
import time

import pytest

from helpers.measure.cpu_time import doubts, time_wall_and_cpu
from helpers.measure.machine import machine


def test_waiting_counts_for_the_wall_clock_alone():
    both = time_wall_and_cpu(lambda: time.sleep(0.01), warmup=1, min_repeats=3, max_repeats=3)
    assert both.wall.n == both.cpu.n == 3
    assert both.wall.min_s >= 0.01 > 2 * both.cpu.median_s
    assert "wall" in both.to_text() and "CPU" in both.to_text()


def test_of_computing_both_clocks_tell_and_short_calls_are_repeated_in_a_sample():
    both = time_wall_and_cpu(lambda: sum(range(100)), max_seconds=0.2)
    assert both.wall.calls_per_sample == both.cpu.calls_per_sample > 1
    # A sample's CPU time never exceeds its wall time by more than the clocks' resolution.
    assert 0 < both.cpu.min_s <= both.wall.median_s * 1.5


def test_cpu_time_judges_for_one_thread_only():
    both = time_wall_and_cpu(lambda: time.sleep(0.001), max_seconds=0.1)
    one, two = (dataclasses.replace(both, cpu=dataclasses.replace(both.cpu, threads=n)) for n in (1, 2))
    assert one.own is one.cpu and two.own is two.wall
    assert dataclasses.replace(both, cpu=None).own is both.wall


@pytest.mark.parametrize(
    ("load", "working_set", "said"),
    [(0.5, 10**9, ()), (9.0, 10**9, ("load average 9.0",)), (0.5, 10**6, ("fit at least half",))],
)
def test_a_crowded_machine_and_a_small_layer_are_doubted(monkeypatch, load, working_set, said):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load), raising=False)
    here = dataclasses.replace(machine(), device="cpu", cores=2, cache_bytes=32 * 2**20)
    found = doubts(here, working_set)
    assert len(found) == len(said)
    assert all(words in sentence for words, sentence in zip(said, found, strict=True))
    assert doubts(dataclasses.replace(here, device="cuda"), working_set) == ()
