"""What was measured on: processor, cores this process may use, memory, accelerator, versions.

Nothing here identifies the host: no host name, user, address or path.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from helpers.errors import InputError

PACKAGES = ("torch", "numpy")


@dataclass(frozen=True)
class Machine:
    """Provenance of a measurement. None stands for "could not be told", never for zero."""

    cpu: str
    cores: int
    memory_bytes: int | None
    cache_bytes: int | None
    device: str
    device_name: str
    device_memory_bytes: int | None
    system: str
    threads: int | None
    versions: Mapping[str, str]

    def to_text(self) -> str:
        """One line for people: device, cores and threads, versions."""
        device = self.cpu if self.device == "cpu" else f"{self.device_name} ({self.device}), {self.cpu}"
        threads = "" if self.threads is None else f", {self.threads} threads"
        found = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        return f"{device}, {self.cores} cores{threads}; {found}"


def machine(device: str = "cpu") -> Machine:
    """Describe this machine and one of its devices ("cpu", "cuda", "cuda:1", "mps")."""
    name, memory = _accelerator(device)
    return Machine(
        cpu=cpu_name(),
        cores=usable_cores(),
        memory_bytes=usable_memory_bytes(),
        cache_bytes=last_level_cache_bytes(),
        device=device,
        device_name=name,
        device_memory_bytes=memory,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        threads=threads_in_use(),
        versions=versions(),
    )


def versions() -> dict[str, str]:
    """Versions of Python, of the packages the arithmetic runs in, and of CUDA where torch was built for it."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    torch = sys.modules.get("torch")
    if torch is not None:
        # The module knows its build ("+cpu", "+cu126"); package metadata may not.
        found["torch"] = str(torch.__version__)
        if torch.version.cuda:
            found["cuda"] = str(torch.version.cuda)
    return found


def threads_in_use() -> int | None:
    """Threads that torch computes with, None where torch is not loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.get_num_threads()


def cpu_name(root: Path = Path("/")) -> str:
    """The processor's model name, as the system gives it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    if match:
        return match.group(1).strip()
    return _sysctl("machdep.cpu.brand_string") or platform.processor() or platform.machine() or "unknown"


def usable_cores(root: Path = Path("/")) -> int:
    """Cores this process may use: the smaller of its affinity and its container's quota (rounded up)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_cores(root)
    return cores if quota is None else max(1, min(cores, quota))


def usable_memory_bytes(root: Path = Path("/")) -> int | None:
    """Memory this process may use, in bytes: the smaller of the machine's and its container's limit."""
    match = re.search(r"^MemTotal:\s*(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    limits = [int(match.group(1)) * 1024] if match else []
    if not match and (total := _sysctl("hw.memsize")):
        limits.append(int(total))
    for file in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = _read(root / file).strip()
        if text.isdigit():
            limits.append(int(text))
    return min(limits) if limits else None


def last_level_cache_bytes(root: Path = Path("/")) -> int | None:
    """Bytes of the largest cache the first core sees, None where the system does not tell."""
    sizes = []
    for file in (root / "sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)([KMG]?)", _read(file).strip())
        if match:
            sizes.append(int(match.group(1)) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[match.group(2)])
    if not sizes:
        sizes = [int(size) for key in ("hw.l3cachesize", "hw.l2cachesize") if (size := _sysctl(key))]
    return max(sizes, default=None)


def _cgroup_cores(root: Path) -> int | None:
    fields = _read(root / "sys/fs/cgroup/cpu.max").split()
    if not fields:
        fields = [_read(root / f"sys/fs/cgroup/cpu/cpu.cfs_{key}_us").strip() for key in ("quota", "period")]
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        return -(-int(fields[0]) // int(fields[1]))
    return None


def _accelerator(device: str) -> tuple[str, int | None]:
    kind = device.partition(":")[0]
    if kind == "cpu":
        return cpu_name(), usable_memory_bytes()
    if kind == "cuda":
        import torch

        properties = torch.cuda.get_device_properties(device)
        return properties.name, properties.total_memory
    if kind == "mps":
        return cpu_name(), usable_memory_bytes()
    raise InputError(f"device {device!r} is not known; known are cpu, cuda and mps")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _sysctl(key: str) -> str:
    if sys.platform != "darwin":
        return ""
    done = subprocess.run(["sysctl", "-n", key], capture_output=True, text=True, check=False)
    return done.stdout.strip()
