"""Units: bytes per element of each number format, and GB beside GiB so that neither is taken for the other."""

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType

from helpers.errors import InputError

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

# No count of tokens, requests or devices is larger: beyond it a value is a slip.
_LARGEST_COUNT = 10**12

# q8_0 and q4_0 are llama.cpp's: blocks of 32 numbers with one fp16 scale, so 34/32 and 18/32 bytes a number
# (ggml-common.h, block_q8_0 and block_q4_0). int4 is bare; its group scales come from a quantization_config.
_BYTES_PER_ELEMENT = {
    "fp32": Fraction(4),
    "fp16": Fraction(2),
    "bf16": Fraction(2),
    "fp8": Fraction(1),
    "int8": Fraction(1),
    "q8_0": Fraction(34, 32),
    "q4_0": Fraction(18, 32),
    "int4": Fraction(1, 2),
}

DTYPES: Mapping[str, float] = MappingProxyType({name: float(size) for name, size in _BYTES_PER_ELEMENT.items()})
"""Bytes per element of every number format the accounts know."""


def dtype_bytes(dtype: str) -> float:
    """Bytes one element of `dtype` takes, e.g. 2.0 for ``bf16`` and 1.0625 for ``q8_0``.

    Raises InputError for a name that is not in `DTYPES`.
    """
    return float(_bytes_per_element(dtype))


def bytes_of(elements: int, dtype: str) -> int:
    """Bytes that `elements` numbers of `dtype` take: ceil(elements · bytes per element), exact for any size."""
    size = _bytes_per_element(dtype)
    return -(-elements * size.numerator // size.denominator)


def _bytes_per_element(dtype: str) -> Fraction:
    if not isinstance(dtype, str) or dtype not in _BYTES_PER_ELEMENT:
        raise InputError(f"dtype {dtype!r} is not known; choose one of {', '.join(_BYTES_PER_ELEMENT)}")
    return _BYTES_PER_ELEMENT[dtype]


def format_bytes(count: float) -> str:
    """Bytes for people, decimal and binary: ``2621440`` → ``"2.62 MB (2.50 MiB)"``."""
    if abs(count) < KB:
        return f"{count:,.0f} B"
    power = 1
    while power < 4 and abs(count) >= 1000 ** (power + 1):
        power += 1
    decimal, binary = ("KB", "MB", "GB", "TB")[power - 1], ("KiB", "MiB", "GiB", "TiB")[power - 1]
    return f"{count / 1000**power:,.2f} {decimal} ({count / 1024**power:,.2f} {binary})"


def format_count(count: float) -> str:
    """A count for people, decimal prefixes: ``8030261248`` → ``"8.03 B"`` (K, M, B, T: thousand to trillion)."""
    for size, suffix in ((10**12, " T"), (10**9, " B"), (10**6, " M"), (10**3, " K")):
        if abs(count) >= size:
            return f"{count / size:,.2f}{suffix}"
    return f"{count:,.0f}"


def format_flops(flops: float) -> str:
    """FLOPs for people: ``1.5e10`` → ``"15.00 GFLOP"``."""
    for size, prefix in ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "K")):
        if abs(flops) >= size:
            return f"{flops / size:,.2f} {prefix}FLOP"
    return f"{flops:,.0f} FLOP"


def format_seconds(seconds: float) -> str:
    """A time for people: ``0.00479`` → ``"4.79 ms"``."""
    for size, suffix in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(seconds) >= size:
            return f"{seconds / size:,.2f} {suffix}"
    return f"{seconds / 1e-9:,.2f} ns"


def positive_int(value: object, name: str) -> int:
    """`value` where it is a whole number above zero, else InputError naming `name`."""
    return _whole(value, name, 1, "above zero")


def count(value: object, name: str) -> int:
    """`value` where it is a whole number, zero or more, else InputError naming `name`."""
    return _whole(value, name, 0, "zero or more")


def _whole(value: object, name: str, smallest: int, description: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} must be a whole number, {description}, not {str(value)[:40]!r}")
    if value > _LARGEST_COUNT:
        raise InputError(f"{name} is larger than 10^12, which is no real size")
    if value < smallest:
        raise InputError(f"{name} must be a whole number, {description}, not {max(value, -_LARGEST_COUNT)}")
    return value
