"""Floors of a service: those of the accounts under the run's conditions, and what counts as impossible."""

import pytest

from helpers.accounts import Device, decode_floor, device, prefill_floor, read_config
from helpers.accounts.observation import Run
from helpers.accounts.service_floors import Subject, decode_batch, service_floors
from helpers.errors import InputError
from tests.accounts.seen import run, spread, timed

LLAMA, H100 = read_config("llama-3.1-8b"), device("H100 SXM")


def test_floors_are_those_of_the_accounts_at_the_batch_that_ran():
    floors = service_floors(Subject(LLAMA, H100), run(prompt=1000, output=200, server={"running_p50": 3.0}))
    assert floors.batch == 3
    assert floors.ttft_ms == 1e3 * prefill_floor(LLAMA, 1000, H100).seconds
    assert floors.tpot_ms == 1e3 * decode_floor(LLAMA, 1100, 3, H100).seconds
    assert floors.e2e_ms == floors.ttft_ms + 199 * floors.tpot_ms


def test_several_devices_are_one_with_their_sum():
    one, four = (service_floors(Subject(LLAMA, H100, n), run(prompt=1000)) for n in (1, 4))
    assert four.ttft_ms == pytest.approx(one.ttft_ms / 4) and four.tpot_ms == pytest.approx(one.tpot_ms / 4)


def test_cached_tokens_lower_the_floor_of_ttft_only():
    fresh, cached = (
        service_floors(Subject(LLAMA, H100), run(prompt=1000, cached_tokens_mean=share)) for share in (0.0, 900.0)
    )
    assert cached.ttft_ms < fresh.ttft_ms == cached.ttft_uncached.seconds * 1e3 and cached.tpot_ms == fresh.tpot_ms


def test_weights_that_fit_a_cache_have_no_memory_floor_to_beat():
    mine = Device("mine", {"fp32": 1e11}, 1e10, None, "measured")
    small = service_floors(Subject(read_config("smollm2-135m"), mine, weights_dtype="int4"), run())
    assert small.least_tpot_ms == pytest.approx(1e3 * small.tpot_alone.compute_s, rel=0.05)
    assert small.least_tpot_ms < small.tpot_alone_ms and small.tolerance == 2
    large = service_floors(Subject(LLAMA, H100), run())
    assert large.least_tpot_ms > 0.9 * large.tpot_alone_ms and large.tolerance == 1.1


def test_without_a_gauge_littles_law_gives_the_batch():
    closed = timed(Run("load", 256, 64, concurrency=8, ttft=spread(630), tpot=spread(10)))
    assert decode_batch(closed) == 4
    opened = timed(Run("load", 256, 64, rate_per_s=5.0, ttft=spread(630), tpot=spread(10)))
    assert decode_batch(opened) == 3


@pytest.mark.parametrize("wrong", [{"devices": 0}, {"usd_per_device_hour": -1}, {"tpot_target_ms": float("nan")}])
def test_a_subject_that_cannot_be_is_refused_by_field(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Subject(LLAMA, H100, **wrong)
