"""The emulated 8-bit float against torch's own cast, code by code."""

import pytest
import torch

from helpers.engine.fp8 import E4M3_LARGEST, casts_e4m3, from_e4m3, to_e4m3

needs_cast = pytest.mark.skipif(not casts_e4m3("cpu"), reason="this torch has no cast to float8_e4m3fn on the CPU")


@needs_cast
def test_all_256_codes_mean_what_torch_says():
    codes = torch.arange(256).to(torch.uint8)
    torch.testing.assert_close(from_e4m3(codes, emulate=True), from_e4m3(codes), rtol=0, atol=0, equal_nan=True)


@needs_cast
def test_numbers_get_the_codes_that_torch_gives_them():
    values = from_e4m3(torch.arange(127).to(torch.uint8))
    # Every value, every tie between neighbours and the numbers beside them, and numbers of all sizes.
    ties = (values[1:] + values[:-1]) / 2
    x = torch.cat([values, ties, ties * (1 + 1e-6), ties * (1 - 1e-6), torch.logspace(-8, 2.6, 5000)])
    x = torch.cat([x, -x]).clamp(-E4M3_LARGEST, E4M3_LARGEST)
    assert torch.equal(to_e4m3(x, emulate=True), to_e4m3(x))


def test_a_device_without_the_cast_gets_the_emulation(monkeypatch):
    monkeypatch.setattr("helpers.engine.fp8.casts_e4m3", lambda device_type: False)
    x = torch.tensor([0.0, 1.0, -1.0625, 1.0626, 448.0, 2.0**-9, 2.0**-10])
    assert from_e4m3(to_e4m3(x)).tolist() == [0.0, 1.0, -1.0, 1.125, 448.0, 2.0**-9, 0.0]
