"""Provenance: right on planted system files, and silent about who and where the host is."""

import dataclasses
import getpass
import json
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.errors import InputError
from helpers.measure.machine import (
    cpu_name,
    last_level_cache_bytes,
    machine,
    usable_cores,
    usable_memory_bytes,
    versions,
)


def write(root: Path, path: str, text: str) -> Path:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return root


def test_a_container_quota_below_the_affinity_is_the_number_of_cores(tmp_path):
    assert usable_cores(write(tmp_path, "sys/fs/cgroup/cpu.max", "100000 100000\n")) == 1


def test_an_unlimited_quota_leaves_the_affinity(tmp_path):
    everything = usable_cores(tmp_path)
    assert everything == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert usable_cores(write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")) == everything


def test_the_quota_of_an_older_kernel_counts_as_well(tmp_path):
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(tmp_path) == 1


def test_memory_is_the_smaller_of_machine_and_container(tmp_path):
    write(tmp_path, "proc/meminfo", "MemTotal:       16000000 kB\nMemFree: 1 kB\n")
    assert usable_memory_bytes(tmp_path) == 16_384_000_000
    write(tmp_path, "sys/fs/cgroup/memory.max", "max\n")
    assert usable_memory_bytes(tmp_path) == 16_384_000_000
    write(tmp_path, "sys/fs/cgroup/memory.max", "4294967296\n")
    assert usable_memory_bytes(tmp_path) == 4 * 2**30


def test_the_largest_cache_is_the_last_level(tmp_path):
    for index, size in enumerate(("32K", "512K", "32M")):
        write(tmp_path, f"sys/devices/system/cpu/cpu0/cache/index{index}/size", f"{size}\n")
    assert last_level_cache_bytes(tmp_path) == 32 * 2**20


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS answers through sysctl, not through files")
def test_what_the_system_does_not_tell_is_none_and_not_zero(tmp_path):
    assert usable_memory_bytes(tmp_path) is None
    assert last_level_cache_bytes(tmp_path) is None


def test_the_processor_is_named(tmp_path):
    write(tmp_path, "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU 9000 @ 1 GHz\nflags\t: x\n")
    assert cpu_name(tmp_path) == "Some CPU 9000 @ 1 GHz"


def test_a_machine_has_no_name_no_user_and_no_path():
    text = json.dumps(dataclasses.asdict(machine()))
    for secret in {socket.gethostname(), platform.node(), getpass.getuser(), str(Path.home()), os.getcwd(), sys.prefix}:
        # Names of one or two letters ("vm") occur inside other words; they tell nothing.
        if len(secret) > 3 and secret != "root":
            assert secret not in text
    assert "/" not in text.replace("GNU/Linux", "")


def test_versions_are_those_that_compute():
    import numpy
    import torch

    found = versions()
    assert (found["torch"], found["numpy"]) == (str(torch.__version__), numpy.__version__)
    assert found["python"] == platform.python_version()


def test_an_unknown_device_is_refused():
    with pytest.raises(InputError, match="tpu"):
        machine("tpu")


def test_importing_measure_loads_no_torch_and_no_numpy():
    code = "import sys, helpers.measure; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
