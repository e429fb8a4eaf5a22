"""Length distributions of real services: quantiles of prompt and output tokens, and requests drawn from them."""

import json
import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from helpers.accounts.trace import TraceRequest
from helpers.accounts.units import count
from helpers.errors import InputError

_TABLE = Path(__file__).resolve().parents[1] / "data" / "request_lengths.json"


@dataclass(frozen=True)
class LengthDistribution:
    """Prompt and output tokens of one service at `probabilities`, 0 to 1, of `requests` requests.

    Between two quantiles a length is as likely as any other; prompt and output are drawn independently: in the three
    traces shipped their rank correlation is below 0.1.
    """

    name: str
    what: str
    requests: int
    probabilities: tuple[float, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    source: str
    licence: str

    def sample(self, requests: int, seed: int = 0) -> tuple[TraceRequest, ...]:
        """`requests` requests drawn at random, the same for the same seed; arrivals are all 0."""
        draw = random.Random(seed).random
        return tuple(
            TraceRequest(self._at(self.prompt_tokens, draw()), self._at(self.output_tokens, draw()))
            for _ in range(count(requests, "requests"))
        )

    def prompt_quantile(self, probability: float) -> int:
        """The prompt length that a share `probability` of the requests does not exceed."""
        return self._at(self.prompt_tokens, probability)

    def output_quantile(self, probability: float) -> int:
        """The output length that a share `probability` of the requests does not exceed."""
        return self._at(self.output_tokens, probability)

    def _at(self, quantiles: Sequence[int], probability: float) -> int:
        if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability <= 1:
            raise InputError(f"a probability must lie between 0 and 1, not {probability!r}")
        above = min(bisect_right(self.probabilities, probability), len(self.probabilities) - 1)
        low, high = self.probabilities[above - 1], self.probabilities[above]
        share = (probability - low) / (high - low)
        return round(quantiles[above - 1] + share * (quantiles[above] - quantiles[above - 1]))


def length_distribution(name: str) -> LengthDistribution:
    """The distribution called `name` in the table that travels with the course. Raises InputError for any other."""
    table = _table()
    if name not in table:
        raise InputError(f"length distribution {str(name)[:60]!r} is not known: choose one of {', '.join(table)}")
    return table[name]


def length_distribution_names() -> tuple[str, ...]:
    """The names `length_distribution` knows."""
    return tuple(_table())


def quantiles(values: Iterable[int], probabilities: Sequence[float]) -> tuple[int, ...]:
    """The smallest of `values` that a share of each of `probabilities` does not exceed, as the table was made.

    Raises InputError where there is no value.
    """
    ordered = sorted(values)
    if not ordered:
        raise InputError("quantiles of no values are not defined")
    return tuple(ordered[min(int(probability * len(ordered)), len(ordered) - 1)] for probability in probabilities)


@cache
def _table() -> dict[str, LengthDistribution]:
    table = json.loads(_TABLE.read_text(encoding="utf-8"))
    probabilities = tuple(table["probabilities"])
    return {
        name: LengthDistribution(
            name=name,
            what=row["what"],
            requests=row["requests"],
            probabilities=probabilities,
            prompt_tokens=tuple(row["prompt_tokens"]),
            output_tokens=tuple(row["output_tokens"]),
            source=row["source"],
            licence=row["licence"],
        )
        for name, row in table["distributions"].items()
    }
