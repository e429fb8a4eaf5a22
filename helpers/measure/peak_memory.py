"""How much memory does a call need on top of what is held already: the peak of what torch allocates."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from helpers.errors import InputError


def peak_memory_bytes(fn: Callable[[], object], device: str = "cpu") -> int:
    """Bytes of tensors that `fn()` itself allocates and holds at its peak, above what was held before the call.

    peak = max over the call of Σ (bytes allocated − bytes of those freed). `fn` must not free what it did not allocate:
    the devices count that differently. CUDA: the allocator's own counter. CPU: every
    allocation and release as torch's profiler logs them, so the number does not depend on what else runs; memory that
    libraries take past torch's allocator is not seen. Runs `fn` twice, the first time unrecorded: workspaces that are
    kept for good belong to no single call.

    Raises InputError for a device without such a count ("mps" among them).
    """
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise InputError(f"device {str(device)!r} has no count of peak memory; known are cpu and cuda")
    fn()
    return _peak_on_cuda(fn, str(device)) if kind == "cuda" else _peak_on_cpu(fn)


def _peak_on_cuda(fn: Callable[[], object], device: str) -> int:
    import torch

    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    fn()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_on_cpu(fn: Callable[[], object]) -> int:
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    with _stderr_closed(), torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        fn()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@contextmanager
def _stderr_closed() -> Iterator[None]:
    """The profiler of some torch builds writes trace lines to the process's stderr, below Python, whatever is set."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
