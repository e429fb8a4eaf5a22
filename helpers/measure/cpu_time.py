"""Wall time and CPU time of the same calls: on a busy machine the wall clock also counts the neighbours' turns.

CPU time is what the call's own threads computed. With ONE thread it is the wall time minus the waiting, and two calls
can still be compared where wall times differ by chance; with several threads it counts all of them, their waiting for
one another too, and says little about speed.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from helpers.measure.clock import Timing, time_call
from helpers.measure.machine import Machine, threads_in_use, versions


@dataclass(frozen=True)
class WallAndCpu:
    """One call's samples by both clocks; `cpu` is None on an accelerator, whose work no CPU clock sees."""

    wall: Timing
    cpu: Timing | None

    @property
    def own(self) -> Timing:
        """The timing to judge by: CPU time where it is of one thread, else wall time."""
        return self.cpu if self.cpu is not None and self.cpu.threads == 1 else self.wall

    def to_text(self) -> str:
        """One line for people: both medians, and how far the wall clock ran ahead."""
        if self.cpu is None:
            return self.wall.to_text()
        noisy = f"  NOISY: {self.own.noisy_because}" * self.own.noisy
        return f"wall {self.wall.median_s * 1e3:8.2f} ms, CPU {self.cpu.median_s * 1e3:8.2f} ms, n {self.wall.n}{noisy}"


def time_wall_and_cpu(fn: Callable[[], object], *, device: str = "cpu", **limits: float) -> WallAndCpu:
    """Time `fn()` by both clocks, sample by sample; `limits` as those of `time_call`, in wall seconds.

    On an accelerator it is `time_call` alone.
    """
    if device != "cpu":
        return WallAndCpu(time_call(fn, device=device, **limits), None)
    cpu_s: list[float] = []

    def timer(call: Callable[[], object], calls: int) -> float:
        start, cpu_start = time.perf_counter(), time.process_time()
        for _ in range(calls):
            call()
        cpu_s.append((time.process_time() - cpu_start) / calls)
        return time.perf_counter() - start

    wall = time_call(fn, timer=timer, **limits)
    # The first entries are of the warm-up.
    about = (wall.device, wall.dtype, threads_in_use(), wall.calls_per_sample, versions())
    return WallAndCpu(wall, Timing(tuple(cpu_s[-wall.n :]), *about))


def doubts(about: Machine, working_set_bytes: int) -> tuple[str, ...]:
    """What speaks against timing now what should come from memory, one sentence each; () where nothing does.

    More runnable processes than cores (load average of the last minute), or a working set that the last-level cache
    holds half of, so that weights would not be read from memory at all.
    """
    found = []
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if about.device == "cpu" and load > about.cores:
        found.append(f"the load average {load:.1f} exceeds the {about.cores} cores: wall times will be too long")
    if about.device == "cpu" and about.cache_bytes and working_set_bytes < 2 * about.cache_bytes:
        found.append(
            f"the {working_set_bytes / 1e6:.0f} MB to be read fit at least half into the {about.cache_bytes / 1e6:.0f} "
            "MB cache: distinct experts will look cheaper than they are"
        )
    return tuple(found)
