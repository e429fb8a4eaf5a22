"""The registry of devices: dense peak FLOP/s, memory bandwidth, and the memory a program really sees."""

import difflib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from helpers.accounts.units import GIB
from helpers.errors import InputError


@dataclass(frozen=True)
class Device:
    """One accelerator, or a machine with its own measured ceilings.

    `flops_per_s` maps a number format to dense FLOP/s (never the sparse figure of a datasheet);
    `visible_memory_bytes` is what a program can allocate from, below the label; None where unknown.
    """

    name: str
    flops_per_s: Mapping[str, float] = field(hash=False)
    bandwidth_bytes_per_s: float
    visible_memory_bytes: int | None
    source: str

    def __post_init__(self) -> None:
        for rate in (*self.flops_per_s.values(), self.bandwidth_bytes_per_s):
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < math.inf:
                raise InputError(f"device {self.name}: a rate must be a number above zero, not {rate!r}")
        if not self.flops_per_s:
            raise InputError(f"device {self.name}: no FLOP/s given for any dtype")

    def peak(self, dtype: str) -> float:
        """Dense FLOP/s at `dtype`; InputError where the device has no such figure."""
        if dtype not in self.flops_per_s:
            known = ", ".join(self.flops_per_s)
            raise InputError(f"device {self.name} has no FLOP/s figure for {dtype} (known: {known})")
        return float(self.flops_per_s[dtype])


def device(name: str) -> Device:
    """The device called `name` in the registry, or as nvidia-smi and PyTorch report it ("NVIDIA H100 80GB HBM3").

    Case and separators do not matter. Raises InputError for any other name, with close ones: "H100" alone is two
    cards with different figures.
    """
    registry = _registry()
    by_key = {_key(called): known for known, row in registry.items() for called in (known, *row.get("reported_as", ()))}
    known = by_key.get(_key(name)) if isinstance(name, str) else None
    if known is None:
        close = _close(str(name), registry, by_key)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(registry)}"
        raise InputError(f"device {str(name)[:60]!r} is not in the registry; {hint}")
    row = registry[known]
    visible = row["visible_memory_GiB"]
    return Device(
        name=known,
        flops_per_s={dtype: tflops * 1e12 for dtype, tflops in row["dense_tflops"].items()},
        bandwidth_bytes_per_s=row["bandwidth_GB_per_s"] * 1e9,
        visible_memory_bytes=None if visible is None else int(visible * GIB),
        source=row["source"],
    )


def device_names() -> tuple[str, ...]:
    """Names of the registry."""
    return tuple(_registry())


def _registry() -> dict[str, dict]:
    text = (Path(__file__).parents[1] / "data" / "devices.json").read_text(encoding="utf-8")
    return json.loads(text)["devices"]


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


def _close(name: str, registry: Iterable[str], by_key: Mapping[str, str]) -> list[str]:
    """The devices that share most numbers with `name` ("4090", "A100 80GB"), else those spelt almost the same."""
    wanted = _numbers(name)
    shared = {known: sum(any(_same(want, has) for has in _numbers(known)) for want in wanted) for known in registry}
    most = max(shared.values())
    if most:
        return [known for known, count in shared.items() if count == most]
    spelt = difflib.get_close_matches(_key(name), by_key, n=2, cutoff=0.75)
    return list(dict.fromkeys(by_key[key] for key in spelt))


def _numbers(name: str) -> set[str]:
    """The words with a digit, a memory size without its unit."""
    words = re.findall(r"[a-z0-9]*[0-9][a-z0-9]*", name.lower())
    return {re.sub(r"^(\d+)gb?$", r"\1", word) for word in words}


def _same(want: str, has: str) -> bool:
    """Whether a word is the same but for letters at its end: "mi300" and "mi300x"; "a10" and "a10g", not "a100"."""
    return re.fullmatch(re.escape(want) + "[a-z]*", has) is not None
