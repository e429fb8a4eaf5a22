"""Why an inference service is slow or dear: every cause this project knows, its prior, and what would decide it.

The table is helpers/data/causes.json. The weights are this project's own, set by hand and checked on public threads: no
accuracy is claimed for services outside them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

OTHER = "other"
"""The hypothesis that none of the causes is it."""


@dataclass(frozen=True)
class Cause:
    """One cause. `says`: what happens; `place`: where; `needs`: the trait without which it cannot be, or None.

    `prior_bits`: its weight before any evidence, log2. `largest_effect`: the largest slow-down seen of it, a ratio;
    None where none was seen. `test`: the next deciding measurement; `test_cost`: 0 reading a log, 1 a counter or one
    request, 2 a second client or three requests, 5 a short sweep, 10 a restart or a trace, 20 another machine.
    """

    id: str
    says: str
    place: str
    needs: str | None
    prior_bits: float
    largest_effect: float | None
    ruled_out_by: str
    test: str
    test_cost: float


_TABLE = json.loads((Path(__file__).parents[1] / "data" / "causes.json").read_text(encoding="utf-8"))

CAUSES: Mapping[str, Cause] = MappingProxyType({name: Cause(name, **row) for name, row in _TABLE["causes"].items()})
"""Every cause by its id."""

OTHER_PRIOR_BITS: float = _TABLE["other_prior_bits"]

TRAITS = frozenset(cause.needs for cause in CAUSES.values() if cause.needs)
"""Traits of a service that make a cause possible: ``cfg_tp_gt1`` more than one device per replica, ``cfg_moe``, …"""
