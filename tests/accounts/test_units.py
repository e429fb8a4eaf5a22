"""Units: bytes per element, and GB beside GiB."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import DTYPES, InputError, bytes_of, dtype_bytes, format_bytes, format_count
from helpers.accounts.units import format_flops, format_seconds


def test_the_command_line_dtypes_are_exactly_the_ones_of_the_design():
    assert list(DTYPES) == ["fp32", "fp16", "bf16", "fp8", "int8", "q8_0", "q4_0", "int4"]


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_llamacpp_block_formats_have_the_sizes_the_gguf_library_states(dtype):
    constants = pytest.importorskip("gguf.constants")
    block, size = constants.GGML_QUANT_SIZES[constants.GGMLQuantizationType[dtype.upper()]]
    assert dtype_bytes(dtype) == size / block


@pytest.mark.parametrize("dtype", ["FP16", "fp4", "", None, 16, "bf16 "])
def test_an_unknown_dtype_is_refused_by_name(dtype):
    with pytest.raises(InputError, match="dtype"):
        dtype_bytes(dtype)


@given(a=st.integers(0, 10**30), b=st.integers(0, 10**30), dtype=st.sampled_from(list(DTYPES)))
def test_bytes_are_exact_whole_and_never_less_than_the_elements_need(a, b, dtype):
    assert bytes_of(32 * a, dtype) + bytes_of(32 * b, dtype) == bytes_of(32 * (a + b), dtype)
    assert bytes_of(a, dtype) * 32 >= bytes_of(32 * a, dtype)


def test_bytes_are_written_in_decimal_and_binary_units():
    assert format_bytes(2_621_440) == "2.62 MB (2.50 MiB)"
    assert format_bytes(80 * 2**30) == "85.90 GB (80.00 GiB)"
    assert format_bytes(999) == "999 B"
    assert format_bytes(-2_000_000) == "-2.00 MB (-1.91 MiB)"


def test_counts_flops_and_seconds_carry_their_prefix():
    assert format_count(8_030_261_248) == "8.03 B"
    assert format_count(576) == "576"
    assert format_flops(1.5e10) == "15.00 GFLOP"
    assert format_seconds(0.00479) == "4.79 ms"
    assert format_seconds(2.5) == "2.50 s"
