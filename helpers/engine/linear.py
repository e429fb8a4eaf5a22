"""One weight matrix, and three ways to read it of which the fastest on this machine is chosen by measurement.

At batch 1 a decode step multiplies one row by every matrix of the model, so its speed is the speed of reading
weights from memory. The BLAS under torch reads the same bytes at very different speeds:

``output-major``  W stored [outputs, inputs], as checkpoints hold it: one dot product per output
``input-major``   W stored [inputs, outputs]: a weighted sum of rows, long contiguous reads
``input-split``   stored as input-major; up to `SPLIT_ROWS` rows are multiplied as a batch of partial products, one
                  per share of the inputs, which MKL hands to its threads whole, then added up

On two AVX2 cores with MKL, fp32, a 3072 × 576 matrix was read at 13, 22 and 39 GB/s in this order. Prefill, with many
rows, is a plain matrix product in every layout.
"""

import time
from functools import cache

import torch
import torch.nn.functional as F

from helpers.errors import InputError

LAYOUTS = ("output-major", "input-major", "input-split")
"""The ways a matrix can be stored and multiplied; ``measured`` chooses among them."""

SPLIT_ROWS = 8
"""Up to this many rows `input-split` is the faster product; above it the plain one is, which fills the cores anyway."""

MANY_ROWS = 64
"""From so many rows a product may be written output by output; MKL is up to ten times slower so below 16."""

SMALLEST_MEASURED = 2**18
"""Matrices of fewer elements are stored output-major without measuring: they stay in cache, layout hardly matters."""

ROW_GAP = 32
"""Elements left unused after each row by `rows_apart`."""

_MEASURED_BYTES = 48 * 2**20
_ROUNDS = 15
_BUDGET_S = 0.25


class Linear:
    """y = x Wᵀ + b for W [outputs, inputs], held in one of the `LAYOUTS`.

    `weight` [outputs, inputs] as a checkpoint stores it and an optional `bias` [outputs]; called with x [..., inputs]
    it returns [..., outputs]. `by_output` is a wish about its memory: see `multiply`. Raises InputError for an unknown
    layout.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, layout: str = "measured") -> None:
        self.outputs, self.inputs = weight.shape
        self.bias = bias
        if layout == "measured":
            layout = fastest_layout(self.outputs, self.inputs, weight.dtype, weight.device.type)
        if layout not in LAYOUTS:
            raise InputError(f"layout {layout!r} is not known; choose 'measured' or one of {', '.join(LAYOUTS)}")
        self.layout = layout
        if layout == "output-major":
            self.stored = weight.contiguous()
        else:
            self.stored = rows_apart(self.inputs, self.outputs, like=weight).copy_(weight.t())
        self.parts = _parts(self.inputs)

    def __call__(self, x: torch.Tensor, by_output: bool = False) -> torch.Tensor:
        y = multiply(x, self.stored, self.layout, self.parts, by_output)
        return y if self.bias is None else y + self.bias

    def add_to(self, total: torch.Tensor, x: torch.Tensor) -> None:
        """total += x Wᵀ + b, in place; total [..., outputs] contiguous, x [..., inputs]."""
        rows = total.numel() // self.outputs
        if self.bias is None and is_plain(self.layout, rows):
            # The product adds each block it finishes: else it writes the whole, which is then read again and added.
            flat = total.view(rows, self.outputs)
            torch.addmm(flat, x.reshape(rows, self.inputs), self.stored, out=flat)
        else:
            total += self(x)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """W[indices], [..., inputs]: the embedding of token ids, where embedding and head are one matrix."""
        # By rows of the transposed view: a gather of columns would copy the whole matrix first.
        return F.embedding(indices, self.stored if self.layout == "output-major" else self.stored.t())

    @property
    def nbytes(self) -> int:
        """Bytes of weight and bias."""
        return self.stored.nbytes + (0 if self.bias is None else self.bias.nbytes)


def multiply(x: torch.Tensor, stored: torch.Tensor, layout: str, parts: int, by_output: bool = False) -> torch.Tensor:
    """x Wᵀ: x [..., inputs] times a matrix stored in `layout`, [..., outputs]; `parts` shares where it is split.

    With `by_output` a product of `MANY_ROWS` lies in memory as [outputs, rows], its shape unchanged: for a reader that
    goes through it output by output.
    """
    if layout == "output-major":
        return F.linear(x, stored)
    inputs, outputs = stored.shape
    rows = x.numel() // inputs
    if is_plain(layout, rows):
        turned = by_output and rows >= MANY_ROWS
        out = rows_apart(outputs, rows, like=x).t() if turned else rows_apart(rows, outputs, like=x)
        return torch.mm(x.reshape(rows, inputs), stored, out=out).view(*x.shape[:-1], outputs)
    shares = x.reshape(rows, parts, inputs // parts).transpose(0, 1)
    return torch.bmm(shares, stored.view(parts, inputs // parts, outputs)).sum(0).view(*x.shape[:-1], outputs)


def is_plain(layout: str, rows: int) -> bool:
    """Is a product of so many rows one plain product with the matrix as stored in `layout`, input-major?"""
    return layout == "input-major" or (layout == "input-split" and rows > SPLIT_ROWS)


def rows_apart(rows: int, columns: int, like: torch.Tensor) -> torch.Tensor:
    """An unwritten matrix [rows, columns] whose rows do not start a multiple of 2 KiB apart in fp32.

    Rows that far apart share the same few places of the cache, and a large product that walks down them waits:
    512 × 2048 times 2048 × 16384 ran at 144 GFLOP/s so, at 164 with a gap between rows, where the machine does 180.
    """
    gap = ROW_GAP if columns % 512 == 0 else 0
    return torch.empty(rows, columns + gap, dtype=like.dtype, device=like.device)[:, :columns]


def _parts(inputs: int) -> int:
    """Shares of the inputs, two per thread and at least four; fewer where the inputs cannot be divided so."""
    # Two, so that a thread that comes late is not all the others wait for: 2 to 13 % faster than one on two threads.
    wanted = max(4, 2 * torch.get_num_threads())
    return next(parts for parts in range(wanted, 0, -1) if inputs % parts == 0)


@cache
def fastest_layout(outputs: int, inputs: int, dtype: torch.dtype, device_type: str) -> str:
    """The layout in which one row is multiplied fastest by a matrix [outputs, inputs]; measured once per process.

    Some 48 MiB of such matrices are walked through, more than most caches hold, so that memory is timed and not
    the cache. Another layout than output-major must be 5 % faster to be taken. Not measured, and output-major: devices
    other than the CPU, matrices of fewer than `SMALLEST_MEASURED` elements, and dtypes other than fp32, whose
    input-major products take a path tens of times slower on CPUs without instructions for them.
    """
    if device_type != "cpu" or dtype != torch.float32 or outputs * inputs < SMALLEST_MEASURED:
        return "output-major"
    # A head of 128,256 outputs behaves as one of 16,384 and is measured as that: one matrix need not exceed the budget.
    outputs = min(outputs, max(1024, _MEASURED_BYTES // (inputs * dtype.itemsize)))
    count = max(1, _MEASURED_BYTES // (outputs * inputs * dtype.itemsize))
    matrices = torch.ones(count, outputs, inputs, dtype=dtype)
    row = torch.ones(1, 1, inputs, dtype=dtype)
    parts = _parts(inputs)
    # Interleaved rounds: a disturbance hits every layout alike. The minimum is the undisturbed speed.
    seconds = {layout: float("inf") for layout in LAYOUTS}
    begin = time.perf_counter()
    for _ in range(_ROUNDS):
        if time.perf_counter() - begin > _BUDGET_S:
            break
        for layout in LAYOUTS:
            # The same memory read as if stored in this layout: the values do not matter here.
            stored = matrices if layout == "output-major" else matrices.view(count, inputs, outputs)
            start = time.perf_counter()
            for matrix in stored:
                multiply(row, matrix, layout, parts)
            seconds[layout] = min(seconds[layout], time.perf_counter() - start)
    best = min(LAYOUTS, key=seconds.__getitem__)
    return best if seconds[best] < 0.95 * seconds["output-major"] else "output-major"
