"""Peak memory: exact on calls whose allocations are known, and blind to what was held before."""

import sys

import pytest
import torch

from helpers.errors import InputError
from helpers.measure import peak_memory_bytes

MB = 10**6  # a tensor of 250,000 fp32 numbers
SLACK = 1000  # Python scalars become tensors of a few bytes


def tensor() -> torch.Tensor:
    return torch.empty(250_000)


def together():
    a = tensor()
    b = tensor()
    return a, b


def one_after_the_other():
    a = tensor()
    del a
    return tensor()


@pytest.mark.parametrize(
    ("call", "expected"),
    [(tensor, MB), (together, 2 * MB), (one_after_the_other, MB), (lambda: None, 0)],
    ids=["one", "together", "one after the other", "nothing"],
)
def test_the_peak_is_what_was_held_at_once(call, expected):
    assert expected <= peak_memory_bytes(call) <= expected + SLACK


def test_what_was_held_before_the_call_is_not_counted():
    held = tensor()
    assert MB <= peak_memory_bytes(lambda: held + 1) <= MB + SLACK


def test_naive_attention_holds_the_score_matrix_and_fused_attention_does_not():
    heads, tokens = 4, 512
    q, k, v = (torch.randn(1, heads, tokens, 32) for _ in range(3))
    scores = heads * tokens * tokens * 4
    assert peak_memory_bytes(lambda: (q @ k.mT).softmax(-1) @ v) >= scores
    assert peak_memory_bytes(lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)) < scores


def test_the_call_is_left_with_its_stderr(capfd):
    peak_memory_bytes(lambda: torch.ones(10))
    print("still there", file=sys.stderr)
    assert capfd.readouterr().err == "still there\n"


@pytest.mark.parametrize("device", ["mps", "tpu"])
def test_a_device_without_a_count_is_refused(device):
    with pytest.raises(InputError, match=device):
        peak_memory_bytes(tensor, device)
