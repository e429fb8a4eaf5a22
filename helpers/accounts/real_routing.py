"""Routing that others recorded on a real model, re-tabulated: two halves of each kind of text, and D(B) as counted.

What counts alone cannot show: how well a placement made from one half of a text does on the other half, and how many
distinct experts real batches touch. The table is helpers/data/real_routing.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from helpers.errors import InputError

MIX = "mix"
"""The traffic of all texts together."""


@dataclass(frozen=True)
class RealRouting:
    """One kind of text on one model.

    `first` and `second` are assignments over the two halves of its sequences, [layers][experts], `tokens` of each half;
    both empty for `MIX`. `independent` and `consecutive` map a batch B to the distinct experts it touched, mean over
    the layers: B tokens at random, and B neighbours of one sequence.
    """

    model: str
    traffic: str
    layers: tuple[int, ...]
    experts: int
    experts_per_token: int
    tokens: tuple[int, ...]
    first: tuple[tuple[int, ...], ...]
    second: tuple[tuple[int, ...], ...]
    independent: Mapping[int, float]
    consecutive: Mapping[int, float]
    source: str

    @property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Both halves together, [layers][experts]."""
        layers = zip(self.first, self.second, strict=True)
        return tuple(tuple(a + b for a, b in zip(*halves, strict=True)) for halves in layers)


def recorded_routing(traffic: str) -> RealRouting:
    """The routing recorded under one kind of text: one of `recorded_traffics`, or `MIX`.

    Raises InputError, listing what there is, for another.
    """
    record = _record()
    halves = {half["traffic"]: half for half in record["halves"]}
    if traffic not in (*halves, MIX):
        raise InputError(f"no real routing under {str(traffic)[:40]!r}; there is {', '.join((*halves, MIX))}")
    half = halves.get(traffic, {"tokens": (), "first": (), "second": ()})
    touched = [row for row in record["distinct"] if row["traffic"] == traffic]
    return RealRouting(
        model=record["model"],
        traffic=traffic,
        layers=tuple(record["layers"]),
        experts=record["experts"],
        experts_per_token=record["experts_per_token"],
        tokens=tuple(half["tokens"]),
        first=tuple(map(tuple, half["first"])),
        second=tuple(map(tuple, half["second"])),
        independent=MappingProxyType({row["batch"]: row["independent"] for row in touched}),
        consecutive=MappingProxyType({row["batch"]: row["consecutive"] for row in touched}),
        source=record["source"],
    )


def recorded_traffics() -> tuple[str, ...]:
    """The kinds of text there are, `MIX` left out."""
    return tuple(half["traffic"] for half in _record()["halves"])


def _record() -> dict:
    return json.loads((Path(__file__).parents[1] / "data" / "real_routing.json").read_text(encoding="utf-8"))
