"""Ceilings: arithmetic on planted timings exactly, and on the real machine only relations that must hold."""

import pytest
import torch

from helpers import accounts
from helpers.errors import InputError
from helpers.measure import Ceilings, Machine, Rate, Timing, as_device, check_device, measure_ceilings, set_threads
from helpers.measure.ceilings import gemm_kernels, read_buffer_bytes, read_kernels
from helpers.measure.machine import last_level_cache_bytes, usable_cores

MACHINE = Machine("Some CPU", 4, 8 * 2**30, 2**25, "cpu", "Some CPU", 8 * 2**30, "Linux", 4, {"python": "3.11"})


def planted(seconds: float, work: int, kernel: str = "k", n: int = 9) -> Rate:
    return Rate(kernel, work, Timing((seconds,) * n, threads=4))


@pytest.fixture(scope="module")
def real() -> Ceilings:
    return measure_ceilings("cpu", "fp32", quick=True)


def test_the_best_median_of_each_kind_is_the_ceiling():
    ceilings = Ceilings(
        "cpu",
        "fp32",
        True,
        (planted(0.5, 10**9, "small"), planted(0.25, 10**9, "large")),
        (planted(0.1, 10**9, "sum"), planted(0.2, 10**9, "dot")),
        MACHINE,
    )
    assert (ceilings.flops_per_s, ceilings.best_gemm.kernel) == (4e9, "large")
    assert (ceilings.bytes_per_s, ceilings.best_read.kernel) == (1e10, "sum")
    assert ceilings.ridge_flops_per_byte == 0.4
    assert not ceilings.noisy


def test_ceilings_are_noisy_where_the_best_kernel_is():
    noisy = planted(0.1, 10**9, n=3)
    assert Ceilings("cpu", "fp32", True, (noisy,), (planted(0.1, 10**9),), MACHINE).noisy
    assert Ceilings("cpu", "fp32", True, (planted(0.1, 10**9),), (noisy,), MACHINE).noisy


def test_the_text_for_people_has_both_ceilings_and_says_what_is_noisy():
    gemm, read = (planted(0.25, 10**12),), (planted(0.1, 10**10, n=3),)
    text = Ceilings("cpu", "fp32", True, gemm, read, MACHINE).to_text()
    assert "Some CPU, 4 cores, 4 threads; python 3.11; fp32" in text
    assert "4.000 TFLOP/s" in text and "100.000 GB/s" in text and "40.00 FLOP per byte" in text
    assert "NOISY: only 3 samples" in text.splitlines()[2] and "NOISY" not in text.splitlines()[1]


def test_slow_quartiles_of_seconds_are_low_quartiles_of_rates():
    rate = Rate("k", 100, Timing((1.0, 2.0, 4.0)))
    assert (rate.q1_per_s, rate.per_s, rate.q3_per_s) == (100 / 3, 50, 100 / 1.5)


@pytest.mark.parametrize(("work", "seconds"), [(0, 1.0), (1, 0.0)])
def test_a_rate_without_work_or_time_is_refused(work, seconds):
    with pytest.raises(InputError):
        planted(seconds, work)


def test_measured_ceilings_become_a_device_whose_floors_follow_them():
    gemm, read = (planted(0.25, 10**12),), (planted(0.1, 10**10),)
    device = as_device(Ceilings("cpu", "fp32", True, gemm, read, MACHINE))
    assert device.flops_per_s == {"fp32": 4e12}
    assert device.bandwidth_bytes_per_s == 1e11
    assert device.visible_memory_bytes == 8 * 2**30
    assert accounts.ridge_point(device, "fp32") == 40
    model = accounts.read_config("llama-3.2-1b")
    floor = accounts.decode_floor(model, 100, 1, device, weights_dtype="fp32", kv_dtype="fp32", compute_dtype="fp32")
    assert floor.binds == "bandwidth"
    assert floor.seconds == floor.bytes / 1e11


def test_one_process_has_one_answer_until_a_fresh_one_is_asked_for(real, monkeypatch):
    assert measure_ceilings("cpu", "fp32", quick=True) is real
    monkeypatch.setattr("helpers.measure.ceilings._measured", {})
    again = measure_ceilings("cpu", "fp32", quick=True)
    assert again is not real
    # The same machine twice: a wide band, since other work may hold the cores during one of them.
    assert 0.01 < again.flops_per_s / real.flops_per_s < 100
    assert 0.01 < again.bytes_per_s / real.bytes_per_s < 100


def test_the_ceiling_is_no_lower_than_what_a_tiny_product_reaches(real):
    from helpers.measure import time_call

    tiny = torch.ones(16, 16)
    with torch.inference_mode():
        timing = time_call(lambda: tiny @ tiny, max_repeats=20)
    assert real.flops_per_s > 2 * 16**3 / timing.min_s


def test_every_kernel_tried_is_kept_and_carries_its_conditions(real):
    assert {"read sum", "read dot", "read 2 matvecs", "read 16 matvecs"} == {rate.kernel for rate in real.read}
    assert len(real.gemm) >= 3
    for rate in (*real.gemm, *real.read):
        assert rate.timing.threads == torch.get_num_threads()
        assert rate.timing.versions["torch"] == torch.__version__
    assert real.machine.threads == torch.get_num_threads()


def test_the_kernels_do_the_work_they_claim():
    from torch.utils.flop_counter import FlopCounterMode

    with torch.inference_mode():
        for kernel in gemm_kernels():
            with FlopCounterMode(display=False) as counter:
                kernel.call()
            assert counter.get_total_flops() == kernel.work
        buffer = read_buffer_bytes("cpu", quick=True)
        # Every number of the buffer is one: a kernel that left some out would not sum up to their count.
        for kernel in read_kernels():
            read = kernel.call().double().sum().item()
            assert kernel.work == buffer
            assert read == pytest.approx(buffer / 8 if kernel.name == "read dot" else buffer / 4, rel=1e-3)


def test_the_buffer_read_is_far_larger_than_the_cache():
    assert read_buffer_bytes("cpu", quick=True) >= 4 * (last_level_cache_bytes() or 0)
    assert read_buffer_bytes("cpu", quick=False) >= read_buffer_bytes("cpu", quick=True)


def test_a_small_memory_bounds_the_buffer(monkeypatch):
    monkeypatch.setattr("helpers.measure.ceilings.usable_memory_bytes", lambda: 400 * 2**20)
    assert read_buffer_bytes("cpu", quick=True) == 100 * 2**20


@pytest.mark.parametrize("device", ["tpu", "", "cpu:0", "cuda:x", "mps:1", "cuda:99"])
def test_a_device_that_is_unknown_or_absent_is_refused(device):
    with pytest.raises(InputError, match="device"):
        check_device(device)


def test_a_dtype_without_a_gemm_here_is_refused():
    with pytest.raises(InputError, match="fp8"):
        measure_ceilings("cpu", "fp8")


def test_threads_beyond_the_cores_are_refused_and_legal_ones_are_set():
    before = torch.get_num_threads()
    for bad in (0, -1, usable_cores() + 1):
        with pytest.raises(InputError, match="threads"):
            set_threads(bad)
    assert torch.get_num_threads() == before
    try:
        set_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
