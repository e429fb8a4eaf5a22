"""The 8-bit float e4m3 (1 sign, 4 exponent, 3 mantissa bits, no infinity), on machines with the cast and without.

Every value is a multiple of 2^(e − 3) with e its power of two, at least −6; the largest is 448 (Micikevicius et al.
2022, "FP8 formats for deep learning", as ``float8_e4m3fn``). CPUs and GPUs cast in torch; Apple's MPS does not.
"""

from functools import cache

import torch

E4M3_LARGEST = 448.0
_LOWEST_EXPONENT = -6


@cache
def casts_e4m3(device_type: str) -> bool:
    """Whether torch casts to ``float8_e4m3fn`` and back on this kind of device; where not, it is emulated here."""
    try:
        sample = torch.ones(1, device=device_type)
        return sample.to(torch.float8_e4m3fn).to(torch.float32).item() == 1.0
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return False


def to_e4m3(x: torch.Tensor, emulate: bool = False) -> torch.Tensor:
    """The nearest e4m3 code of each number of `x` (ties to even), as uint8; `x` within ± `E4M3_LARGEST`."""
    if not emulate and casts_e4m3(x.device.type):
        return x.to(torch.float8_e4m3fn).view(torch.uint8)
    x = x.float()
    # The exponent field of an fp32 number, so that no device needs more than shifts; 0 for zero.
    exponent = ((x.abs().view(torch.int32) >> 23) - 127).clamp(min=_LOWEST_EXPONENT)
    eighths = (x.abs() * _power_of_two(3 - exponent)).round().int()
    # A normal number has 8 to 16 eighths and exponent field e + 7, a subnormal below 8 and field 0: one formula, since
    # the eighths beyond the mantissa carry into the field.
    code = (exponent - _LOWEST_EXPONENT) * 8 + eighths
    return (code + 128 * torch.signbit(x).int()).to(torch.uint8)


def from_e4m3(codes: torch.Tensor, emulate: bool = False) -> torch.Tensor:
    """The numbers behind e4m3 codes (uint8), fp32."""
    if not emulate and casts_e4m3(codes.device.type):
        return codes.view(torch.float8_e4m3fn).float()
    return _values(codes.device)[codes.int()]


@cache
def _values(device: torch.device) -> torch.Tensor:
    codes = torch.arange(256, device=device)
    field, mantissa = codes % 128 // 8, codes % 8
    eighths = torch.where(field > 0, 8 + mantissa, mantissa).float()
    values = eighths * _power_of_two(field.clamp(min=1) - 7 - 3)
    values = torch.where(codes % 128 == 127, torch.nan, values)
    return torch.where(codes < 128, values, -values)


def _power_of_two(exponent: torch.Tensor) -> torch.Tensor:
    """2^exponent in fp32, exactly: the exponent field written, the mantissa zero."""
    return ((exponent.int() + 127) << 23).view(torch.float32)
