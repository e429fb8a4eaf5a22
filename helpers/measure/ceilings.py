"""The two ceilings of this machine, measured: GEMM FLOP/s (compute account) and read bytes/s (bandwidth account).

Prefill is judged against the first, decode against the second. Decode *reads* weights and KV cache and
writes next to nothing, so its ceiling is the read bandwidth. A copy is no substitute: it moves every byte
twice, and a write may first read the line it overwrites.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from helpers import accounts
from helpers.errors import InputError
from helpers.measure.clock import Timing, time_call
from helpers.measure.machine import Machine, last_level_cache_bytes, machine, usable_cores, usable_memory_bytes

TORCH_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class Kernel:
    """A plain kernel whose speed is a ceiling: one `call` does `work` FLOPs or reads `work` bytes."""

    name: str
    work: int
    call: Callable[[], object]


@dataclass(frozen=True)
class Rate:
    """Work per second of one kernel: `work` (FLOPs or bytes of one call) ÷ the median seconds of a call."""

    kernel: str
    work: int
    timing: Timing

    def __post_init__(self) -> None:
        if self.work <= 0 or self.timing.min_s <= 0:
            raise InputError(f"{self.kernel}: a rate needs work and every sample of seconds above zero")

    @property
    def per_s(self) -> float:
        return self.work / self.timing.median_s

    @property
    def q1_per_s(self) -> float:
        return self.work / self.timing.q3_s

    @property
    def q3_per_s(self) -> float:
        return self.work / self.timing.q1_s

    @property
    def n(self) -> int:
        return self.timing.n

    @property
    def noisy(self) -> bool:
        return self.timing.noisy


@dataclass(frozen=True)
class Ceilings:
    """What this machine can do at most: every kernel tried, the best median of each kind is the ceiling.

    `gemm`: FLOP/s of matrix products in `dtype`; `read`: bytes/s of reads from main (device) memory.
    """

    device: str
    dtype: str
    quick: bool
    gemm: tuple[Rate, ...]
    read: tuple[Rate, ...]
    machine: Machine

    def __post_init__(self) -> None:
        if not self.gemm or not self.read:
            raise InputError("ceilings need at least one gemm and one read kernel")

    @property
    def best_gemm(self) -> Rate:
        return max(self.gemm, key=lambda rate: rate.per_s)

    @property
    def best_read(self) -> Rate:
        return max(self.read, key=lambda rate: rate.per_s)

    @property
    def flops_per_s(self) -> float:
        return self.best_gemm.per_s

    @property
    def bytes_per_s(self) -> float:
        return self.best_read.per_s

    @property
    def ridge_flops_per_byte(self) -> float:
        """Arithmetic intensity at which the two accounts bind alike: flops_per_s ÷ bytes_per_s."""
        return self.flops_per_s / self.bytes_per_s

    @property
    def noisy(self) -> bool:
        return self.best_gemm.noisy or self.best_read.noisy

    def to_text(self) -> str:
        """Machine, both ceilings with their middle halves, and the ridge point, for people."""
        lines = [f"{self.machine.to_text()}; {self.dtype}"]
        for label, rate, unit, size in (
            ("compute", self.best_gemm, "TFLOP/s", 1e12),
            ("bandwidth", self.best_read, "GB/s", 1e9),
        ):
            lines.append(
                rate_line(label, unit, size, rate.per_s, rate.q1_per_s, rate.q3_per_s, rate.n, rate.kernel)
                + (f"  NOISY: {rate.timing.noisy_because}" if rate.noisy else "")
            )
        lines.append(f"ridge      {self.ridge_flops_per_byte:9.2f} FLOP per byte")
        return "\n".join(lines)


def rate_line(
    label: str, unit: str, size: float, per_s: float, q1_per_s: float, q3_per_s: float, n: int, kernel: str
) -> str:
    """One ceiling in one line: its median, the middle half of its samples, their number and the kernel."""
    return (
        f"{label:9}  {per_s / size:9.3f} {unit:7}  "
        f"(middle half {q1_per_s / size:.3f} to {q3_per_s / size:.3f}, n = {n}, {kernel})"
    )


def as_device(ceilings: Ceilings) -> "accounts.Device":
    """The measured ceilings as a device of the accounts, so that floors are predicted for this machine."""
    about = ceilings.machine
    return accounts.Device(
        name=f"this {about.device_name}",
        flops_per_s={ceilings.dtype: ceilings.flops_per_s},
        bandwidth_bytes_per_s=ceilings.bytes_per_s,
        visible_memory_bytes=about.device_memory_bytes,
        source=f"measured here, {about.threads} threads" if ceilings.device == "cpu" else "measured here",
    )


_measured: dict[tuple, Ceilings] = {}


def measure_ceilings(device: str = "cpu", dtype: str = "fp32", *, quick: bool = True, fresh: bool = False) -> Ceilings:
    """Measure GEMM FLOP/s in `dtype` and read bytes/s of `device`, with torch's current number of threads.

    `quick` takes a few seconds; without it every kernel is timed longer and more shapes are tried.
    The answer is kept for the process, so that cells of a notebook agree; `fresh` measures anew.
    Raises InputError on a device or dtype that is unknown or absent.
    """
    import torch

    check_device(device)
    check_dtype(dtype)
    key = (device, dtype, quick, torch.get_num_threads())
    if fresh or key not in _measured:
        with torch.inference_mode():
            gemm = tuple(_rate(kernel, device, dtype, quick) for kernel in gemm_kernels(device, dtype, quick))
            read = tuple(_rate(kernel, device, "fp32", quick) for kernel in read_kernels(device, quick))
        if device.startswith("cuda"):
            # Else torch keeps the buffers, and a model that is sized to the free memory comes out too small.
            torch.cuda.empty_cache()
        _measured[key] = Ceilings(device, dtype, quick, gemm, read, machine(device))
    return _measured[key]


def check_device(device: str) -> None:
    """Raise InputError unless torch can compute on `device` ("cpu", "cuda", "cuda:1", "mps") here."""
    import torch

    kind, _, index = device.partition(":")
    if kind == "cpu" and not index:
        return
    if kind == "mps" and not index:
        if torch.backends.mps.is_available():
            return
        raise InputError("device 'mps' is not available here")
    if kind == "cuda" and (not index or index.isdigit()):
        if torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count():
            return
        raise InputError(f"device {device!r} is not available here")
    raise InputError(f"device {device!r} is not known; known are cpu, cuda and mps")


def check_dtype(dtype: str) -> None:
    """Raise InputError unless a GEMM ceiling of `dtype` can be measured."""
    if dtype not in TORCH_DTYPES:
        raise InputError(f"dtype {dtype!r} has no GEMM ceiling here; known are {', '.join(TORCH_DTYPES)}")


def default_device() -> str:
    """The best device of this machine: "cuda", else "mps", else "cpu"."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def set_threads(threads: int) -> None:
    """Let torch compute with so many CPU threads. Raises InputError below 1 and above the cores there are."""
    import torch

    if not 1 <= threads <= usable_cores():
        raise InputError(
            f"threads must lie between 1 and the {usable_cores()} cores this process may use, not {threads}"
        )
    torch.set_num_threads(threads)


def gemm_kernels(device: str = "cpu", dtype: str = "fp32", quick: bool = True) -> Iterator[Kernel]:
    """Matrix products of several large shapes, made one at a time; `work` in FLOPs."""
    import torch

    kind = getattr(torch, TORCH_DTYPES[dtype])

    def kernel(m: int, k: int, n: int) -> Kernel:
        x = torch.randn(m, k, device=device).to(kind)
        # Output-major weights, transposed: what F.linear multiplies by.
        weight = torch.randn(n, k, device=device).to(kind)
        out = torch.empty(m, n, device=device, dtype=kind)
        return Kernel(f"gemm {m}x{k}x{n}", 2 * m * k * n, lambda: torch.mm(x, weight.T, out=out))

    # Sizes that last tens of milliseconds here: long against starting threads, short enough to repeat. The fastest
    # trial sizes them, for other work slows the median of so short a call many times over.
    trial = kernel(384, 384, 384)
    timing = time_call(trial.call, device=device, dtype=dtype, max_seconds=0.3, target_spread=0.02)
    flops = trial.work / timing.min_s * (0.03 if quick else 0.1)
    side = _round_down((flops / 2) ** (1 / 3), 256, least=512, most=8192)
    shapes = [(side, side, side), (side // 2, side, 4 * side), (side // 2, 4 * side, side)]
    if not quick:
        shapes += [(2 * side, 2 * side, 2 * side), (side, side, 2 * side), (512, side, 4 * side)]
    for shape in shapes:
        yield kernel(*shape)


def read_kernels(device: str = "cpu", quick: bool = True) -> Iterator[Kernel]:
    """Ways to read a buffer far larger than the last-level cache once, fp32; `work` in bytes.

    The vectors of a product are left out of the bytes: about one part in a thousand.
    """
    import torch

    numbers = read_buffer_bytes(device, quick) // 4
    # Written, not torch.zeros: untouched pages would all be one zero page, read from the cache.
    buffer = torch.ones(numbers, device=device)
    half = numbers // 2
    calls: dict[str, Callable[[], object]] = {
        "sum": buffer.sum,
        "dot": lambda: torch.dot(buffer[:half], buffer[half:]),
        # A BLAS may run a plain matrix-vector product on one thread; several of them at once use every core.
        "2 matvecs": _matvecs(buffer.view(2, -1, 4096)),
        "16 matvecs": _matvecs(buffer.view(16, -1, 4096)),
    }
    if not quick:
        calls["max"] = buffer.amax
        for columns in (4096, 16384):
            matrix = buffer.view(-1, columns)
            calls[f"matvec {columns} wide"] = _matvec(matrix)
            calls[f"matvec {columns} wide, input-major"] = _matvec(matrix.T)
    for name, call in calls.items():
        yield Kernel(f"read {name}", numbers * 4, call)


def _rate(kernel: Kernel, device: str, dtype: str, quick: bool) -> Rate:
    seconds = 1.0 if quick else 5.0
    timing = time_call(kernel.call, device=device, dtype=dtype, max_seconds=seconds, target_spread=0.02)
    return Rate(kernel.name, kernel.work, timing)


def _matvec(matrix) -> Callable[[], object]:
    import torch

    vector, out = (torch.ones(size, device=matrix.device) for size in reversed(matrix.shape))
    return lambda: torch.mv(matrix, vector, out=out)


def _matvecs(matrices) -> Callable[[], object]:
    import torch

    count, rows, columns = matrices.shape
    vectors = torch.ones(count, 1, rows, device=matrices.device)
    out = torch.empty(count, 1, columns, device=matrices.device)
    return lambda: torch.bmm(vectors, matrices, out=out)


def read_buffer_bytes(device: str, quick: bool) -> int:
    """Bytes to read for a bandwidth: eight (quick) or sixteen last-level caches, at most a quarter of memory.

    On a CPU at least 256 MiB (quick) or 512 MiB: a virtual machine may see less cache than its host has.
    On a GPU at least 2 GiB or 4 GiB: below that the launch of the kernel shows.
    """
    import torch

    if device.startswith("cuda"):
        cache, least = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 64 << 20), 2 << 30
        free = torch.cuda.mem_get_info(device)[0]
    else:
        cache, least = last_level_cache_bytes() or 32 << 20, 256 << 20
        free = usable_memory_bytes() or 4 << 30
    wanted = max(8 * cache, least) * (1 if quick else 2)
    # Whole rows of the widest matrix, in sixteen equal parts.
    return _round_down(min(wanted, free // 4), 1 << 20, least=64 << 20, most=8 << 30)


def _round_down(value: float, step: int, *, least: int, most: int) -> int:
    if not math.isfinite(value):
        return least
    return int(min(max(value // step * step, least), most))
