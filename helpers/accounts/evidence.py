"""What can be observed of a slow service, and how many bits each observation speaks for or against each cause.

The table is helpers/data/evidence.json: weights set by hand and checked on public threads, and a few more (`added`) for
what this project's own probe sees, tried on planted faults only.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from helpers.accounts.causes import CAUSES
from helpers.errors import InputError

TOGGLE_BITS = 6.0
"""Bits of a controlled toggle, ``ab:CAUSE``: the same load, only that one thing changed."""


@dataclass(frozen=True)
class Item:
    """One observation. `bits`: weight per cause, log2; `counter`: items of one counter count once.

    `added`: not in the vocabulary of the public threads.
    """

    id: str
    says: str
    bits: Mapping[str, float]
    counter: str
    added: bool = False


_TABLE = json.loads((Path(__file__).parents[1] / "data" / "evidence.json").read_text(encoding="utf-8"))

EVIDENCE: Mapping[str, Item] = MappingProxyType(
    {
        name: Item(name, row["says"], MappingProxyType(row["bits"]), row["counter"], added)
        for table, added in (("items", False), ("added", True))
        for name, row in _TABLE[table].items()
    }
)
"""Every observation by its id, toggles left out."""

CONTRADICTIONS: tuple[tuple[str, str], ...] = tuple((one, other) for one, other in _TABLE["contradictions"])
"""Pairs that cannot both be seen in one load."""


def item(name: str) -> Item:
    """The observation called `name`, or the controlled toggle ``ab:CAUSE``.

    Raises InputError for a name that is neither.
    """
    if name in EVIDENCE:
        return EVIDENCE[name]
    toggled = name.removeprefix("ab:") if isinstance(name, str) else ""
    if toggled != name and toggled in CAUSES:
        says = f"Changing this alone, under the same load, changed the numbers: {CAUSES[toggled].says}"
        return Item(name, says, MappingProxyType({toggled: TOGGLE_BITS}), name)
    raise InputError(f"evidence item {str(name)[:60]!r} is not known; see helpers/data/evidence.json, or ab:CAUSE")
