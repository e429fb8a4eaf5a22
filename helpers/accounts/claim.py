"""A claimed improvement ("ten times in a year") and the conditions without which its number says nothing."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from helpers.errors import InputError

CONDITIONS: Mapping[str, str] = MappingProxyType(
    {
        "benchmark": "What was measured: which benchmark, or which metric?",
        "baseline": "Against what: which model or system, of which date?",
        "parameters": "Is the parameter count the same, total and active?",
        "inference_cost": "Is the inference cost the same: FLOPs and bytes per token, or price?",
        "hardware": "On which devices, how many, in which number format?",
        "load": "At which concurrency, input length and output length?",
    }
)
"""The condition each field of an `ImprovementClaim` holds, as the question to ask for it."""


@dataclass(frozen=True)
class ImprovementClaim:
    """A statement that something became `factor` times better, with what is known of its conditions.

    Each condition is a text, or None where the source does not say it; one that does not apply is said so in words.
    """

    statement: str
    factor: float
    benchmark: str | None = None
    baseline: str | None = None
    parameters: str | None = None
    inference_cost: str | None = None
    hardware: str | None = None
    load: str | None = None


def missing_conditions(claim: ImprovementClaim) -> tuple[str, ...]:
    """Names of the conditions `claim` leaves open, in the order of `CONDITIONS`; () for a claim that can be checked.

    Raises InputError for a condition that is neither a text nor None.
    """
    for name in CONDITIONS:
        value = getattr(claim, name)
        if value is not None and not isinstance(value, str):
            raise InputError(f"condition {name} must be a text or None, not {value!r}")
    return tuple(name for name in CONDITIONS if not (getattr(claim, name) or "").strip())


def claimed_factor(claim: ImprovementClaim) -> float:
    """The factor of `claim`, given out only with all its conditions.

    Raises InputError naming the missing conditions, or for a factor that is not a finite number above zero.
    """
    missing = missing_conditions(claim)
    if missing:
        raise InputError(f"no number from {claim.statement!r}: it does not state its {', '.join(missing)}")
    number = isinstance(claim.factor, int | float) and not isinstance(claim.factor, bool)
    if not number or not 0 < claim.factor < math.inf:
        raise InputError(f"factor must be a finite number above zero, not {claim.factor!r}")
    return claim.factor
