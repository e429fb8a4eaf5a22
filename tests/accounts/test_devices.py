"""The registry of devices against the ground truth: dense peaks, bandwidth, visible memory."""

import re

import pytest

from helpers.accounts import GIB, Device, InputError, device, device_names, ridge_point


def test_every_device_agrees_with_the_ground_truth(facts):
    truth = facts("hardware.json")["devices"]
    assert set(device_names()) == set(truth)
    for name, row in truth.items():
        got = device(name)
        peak = got.flops_per_s.get("bf16", got.flops_per_s["fp16"])
        assert peak == pytest.approx(row["dense_bf16_tflops"] * 1e12)
        assert got.bandwidth_bytes_per_s == row["mem_bw_GBs"] * 1e9
        assert got.flops_per_s.get("fp8") == (row["dense_fp8_tflops"] and row["dense_fp8_tflops"] * 1e12)
        assert peak / got.bandwidth_bytes_per_s == pytest.approx(row["ridge_flop_per_byte_bf16"], rel=2e-3)
        visible = row["visible_memory_GiB"]
        if visible is None:
            assert got.visible_memory_bytes is None
        else:
            low_end = float(re.search(r"[\d.]+", str(visible)).group())
            assert got.visible_memory_bytes == int(low_end * GIB)


def test_every_row_names_its_source():
    assert all(len(device(name).source) > 10 for name in device_names())


def test_no_peak_is_a_sparse_one():
    assert device("H100 SXM").peak("bf16") == 989e12
    assert device("L40S").peak("bf16") == 362e12
    assert device("B200 SXM").peak("bf16") == 2250e12


def test_names_ignore_case_and_separators_but_are_never_guessed():
    assert device("h100-sxm") == device("H100 SXM")
    assert device("rtx4090") == device("RTX 4090")
    for bad in ("", "TPU v9", "V100", "GB", None, 100):
        with pytest.raises(InputError, match="not in the registry; known: "):
            device(bad)


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("H100", "H100 SXM or H100 PCIe?"),
        ("A100 80GB", "A100-80 SXM or A100-80 PCIe?"),
        ("4090", "RTX 4090?"),
        ("MI300", "MI300X?"),
        ("A10", "A10G?"),
        ("NVIDIA H200 NVL", "H200 SXM?"),
        ("H10O SXM", "H100 SXM?"),
    ],
)
def test_a_name_that_is_not_exact_is_asked_back(given, asked):
    with pytest.raises(InputError) as refusal:
        device(given)
    assert str(refusal.value).endswith(f"did you mean {asked}")


def test_what_nvidia_smi_and_pytorch_print_names_one_device():
    assert device("NVIDIA H100 80GB HBM3").name == "H100 SXM"
    assert device("NVIDIA H100 PCIe").name == "H100 PCIe"
    assert device("NVIDIA A100-SXM4-80GB").name == "A100-80 SXM"
    assert device("NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert device("Tesla T4").name == "T4"


def test_the_ridge_point_is_peak_over_bandwidth():
    assert round(ridge_point(device("H100 SXM"), "bf16")) == 295
    assert round(ridge_point(device("H20"), "bf16")) == 37
    with pytest.raises(InputError, match="fp8"):
        ridge_point(device("A100-80 SXM"), "fp8")
    with pytest.raises(InputError, match="bf16"):
        ridge_point(device("T4"), "bf16")


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "fast"])
def test_a_measured_device_with_an_impossible_rate_is_refused(rate):
    with pytest.raises(InputError, match="rate"):
        Device("mine", {"fp32": rate}, 1e9, None, "measured")
    with pytest.raises(InputError, match="rate"):
        Device("mine", {"fp32": 1e9}, rate, None, "measured")
