"""The layouts compute one product; the choice is measured once and falls back where nothing can be gained."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine import linear
from helpers.engine.linear import LAYOUTS, MANY_ROWS, SMALLEST_MEASURED, SPLIT_ROWS, Linear, fastest_layout


@settings(max_examples=60, deadline=None)
@given(
    outputs=st.integers(1, 33),
    inputs=st.integers(1, 33),
    rows=st.sampled_from([1, 2, SPLIT_ROWS, SPLIT_ROWS + 1]),
    layout=st.sampled_from(LAYOUTS),
    bias=st.booleans(),
)
def test_every_layout_is_the_product_of_the_definition(outputs, inputs, rows, layout, bias):
    generator = torch.Generator().manual_seed(outputs * 100 + inputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    offset = torch.randn(outputs, generator=generator) if bias else None
    x = torch.randn(1, rows, inputs, generator=generator)
    wanted = torch.einsum("btn,mn->btm", x.double(), weight.double()) + (offset.double() if bias else 0)
    got = Linear(weight, offset, layout)(x)
    torch.testing.assert_close(got.double(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, SPLIT_ROWS + 1])
def test_rows_kept_apart_change_no_product_and_no_size(layout, rows):
    weight, x = torch.randn(2048, 64), torch.randn(2, rows, 64)
    product = Linear(weight, layout=layout)
    assert product.nbytes == weight.nbytes
    assert layout == "output-major" or product.stored.stride(0) * 4 % 4096
    torch.testing.assert_close(product(x), x @ weight.t(), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, SPLIT_ROWS + 1, MANY_ROWS])
@pytest.mark.parametrize("outputs", [12, 1024])
def test_a_product_written_output_by_output_is_the_same_product(layout, rows, outputs):
    product, x = Linear(torch.randn(outputs, 6), torch.randn(outputs), layout), torch.randn(2, rows, 6)
    got = product(x, by_output=True)
    torch.testing.assert_close(got, product(x), atol=1e-5, rtol=1e-5)
    assert got.shape == (2, rows, outputs)


def test_only_a_product_of_many_rows_is_written_output_by_output():
    product = Linear(torch.randn(12, 6), layout="input-split")
    assert product(torch.randn(1, MANY_ROWS, 6), by_output=True).stride(1) == 1
    assert product(torch.randn(1, MANY_ROWS - 1, 6), by_output=True).stride(2) == 1
    assert product(torch.randn(1, MANY_ROWS, 6)).stride(2) == 1


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, SPLIT_ROWS + 1])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_is_added_to_a_total_in_place(layout, rows, bias):
    product, x = Linear(torch.randn(12, 6), torch.randn(12) if bias else None, layout), torch.randn(2, rows, 6)
    total = torch.randn(2, rows, 12)
    wanted = total + product(x)
    product.add_to(total, x)
    torch.testing.assert_close(total, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_are_those_of_the_checkpoint(layout):
    weight = torch.randn(11, 6)
    indices = torch.tensor([[3, 0], [10, 3]])
    rows = Linear(weight, layout=layout).rows(indices)
    assert torch.equal(rows, weight[indices])
    assert rows.is_contiguous()


def test_small_matrices_and_other_devices_keep_the_checkpoint_layout_unmeasured(monkeypatch):
    monkeypatch.setattr(linear, "multiply", None)
    assert fastest_layout(8, SMALLEST_MEASURED // 8 - 1, torch.float32, "cpu") == "output-major"
    assert fastest_layout(4096, 4096, torch.bfloat16, "cuda") == "output-major"


@pytest.mark.parametrize("winner", LAYOUTS)
def test_the_fastest_layout_is_taken_and_measured_once(monkeypatch, winner):
    clock = {"now": 0.0}
    calls = []

    def multiply(x, stored, layout, parts):
        calls.append(layout)
        clock["now"] += 1.0 if layout == winner else 2.0

    monkeypatch.setattr(linear, "multiply", multiply)
    monkeypatch.setattr(linear.time, "perf_counter", lambda: clock["now"])
    fastest_layout.cache_clear()
    try:
        assert fastest_layout(2048, 1024, torch.float32, "cpu") == winner
        counted = len(calls)
        assert fastest_layout(2048, 1024, torch.float32, "cpu") == winner
        assert len(calls) == counted > 0
    finally:
        fastest_layout.cache_clear()


def test_a_gain_within_the_noise_does_not_change_the_layout(monkeypatch):
    clock = {"now": 0.0}

    def multiply(x, stored, layout, parts):
        clock["now"] += 1.0 if layout == "output-major" else 0.97

    monkeypatch.setattr(linear, "multiply", multiply)
    monkeypatch.setattr(linear.time, "perf_counter", lambda: clock["now"])
    fastest_layout.cache_clear()
    try:
        assert fastest_layout(2048, 1024, torch.float32, "cpu") == "output-major"
    finally:
        fastest_layout.cache_clear()


def test_a_measured_layout_is_one_of_them():
    assert fastest_layout(1024, 512, torch.float32, "cpu") in LAYOUTS


def test_looking_up_one_row_does_not_touch_the_whole_matrix():
    from torch.profiler import ProfilerActivity, profile

    table = Linear(torch.randn(4096, 64), layout="input-split")
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        table.rows(torch.tensor([[7]]))
    allocated = sum(event.self_cpu_memory_usage for event in seen.key_averages() if event.self_cpu_memory_usage > 0)
    assert 64 * 4 <= allocated < table.nbytes / 10
