"""From observations to ranked causes: bits added up, a softmax, and rules that keep a wrong cause from being named.

The weights were set by hand and checked on the threads they were set with: the scheme holds on them, and nothing is
known of how often it is right elsewhere. So the output that matters is the next measurement.
"""

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from helpers.accounts.causes import CAUSES, OTHER, OTHER_PRIOR_BITS, TRAITS
from helpers.accounts.evidence import CONTRADICTIONS, Item, item
from helpers.errors import InputError

NAMED_SHARE, NAMED_LEAD, DECISIVE_BITS = 0.60, 3.0, 3.0
LEADING_SHARE, LEADING_LEAD = 0.30, 2.0
WORTH_TESTING = 0.05
TEST_IS_RIGHT = 0.9
"""How often a deciding measurement answers rightly, for a cause that is it and for one that is not."""

_CHEAPEST = 0.5  # Reading a log costs a little too.
_STEP = "tpot_step_at_batch"


@dataclass(frozen=True)
class Ranked:
    """One cause, its share of belief, and the items that speak for it and against it, each with its bits."""

    cause: str
    posterior: float
    bits: float
    speaks_for: tuple[tuple[str, float], ...]
    speaks_against: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class NextTest:
    """The measurement that tells most for its cost: expected drop of entropy, in bits, and that over the cost."""

    cause: str
    says: str
    cost: float
    entropy_drop: float

    @property
    def worth(self) -> float:
        """Bits per unit of cost."""
        return self.entropy_drop / max(self.cost, _CHEAPEST)


@dataclass(frozen=True)
class Scoring:
    """`says`: "named", "leading" or "cannot tell"; `cause`: which one, None where it cannot be told.

    `ranked` holds every applicable cause, the likeliest first; `other` the share of "none of these". `rules` are the
    rules that changed the outcome, in words.
    """

    says: str
    cause: str | None
    ranked: tuple[Ranked, ...]
    other: float
    items: tuple[str, ...]
    rules: tuple[str, ...]
    next_test: NextTest | None

    def posterior(self, cause: str) -> float:
        """Share of belief of one cause; 0 where it is not applicable."""
        return next((row.posterior for row in self.ranked if row.cause == cause), 0.0)


def score(
    items: Iterable[str], traits: Iterable[str] = (), ratio: float | None = None, leave_out: Iterable[str] = ()
) -> Scoring:
    """Rank the causes that `items` (ids of `EVIDENCE`, or ``ab:CAUSE``) speak for.

    bits(cause) = prior + Σ over counters of the strongest item of that counter; posterior = 2^bits / Σ 2^bits, with
    "other" at 3 bits. A cause that needs a trait is left out without it (a toggle of the cause proves the trait).

    * named: posterior ≥ 0.60, at least 3 times the second hypothesis ("other" too), and one item of ≥ 3 bits or a
      toggle speaks for it; leading: ≥ 0.30, at least 2 times the second cause, above "other"; else cannot tell;
    * size: with `ratio` (measured ÷ floor) above twice the largest effect seen of a cause, it is not named, and leads
      only where a toggle shows that it acts;
    * confounded step: a TPOT step at a batch size speaks more for preemption than for graphs, unless the KV cache is
      known to be under 70 % or the preemption counter not to move.

    `leave_out`: causes known from elsewhere, not to be ranked. Order and repetition of items do not matter. Raises
    InputError for an unknown item, trait or cause, for two items that contradict each other, and for a ratio that is
    not a finite number above zero.
    """
    found = {name: item(name) for name in sorted(set(items))}
    traits, leave_out = set(traits), set(leave_out)
    _check(found, traits, leave_out, ratio)
    traits |= {CAUSES[name[3:]].needs for name in found if name.startswith("ab:") and CAUSES[name[3:]].needs}
    rules: list[str] = []
    weights = {name: dict(one.bits) for name, one in found.items()}
    if _STEP in found and not {"kv_lt70", "preempt_0"} & set(found):
        weights[_STEP] |= {"cuda_graph_off": 1.5, "kv_preemption": 2.5}
        rules.append("a TPOT step at a batch size may be preemption too: KV cache and preemptions were not given")
    causes = [name for name, cause in CAUSES.items() if cause.needs in (None, *traits) and name not in leave_out]
    rows = {name: _strongest(name, found, weights) for name in causes}
    bits = {name: CAUSES[name].prior_bits + sum(rows[name].values()) for name in causes}
    posterior = _softmax(bits | {OTHER: OTHER_PRIOR_BITS})
    ranked = tuple(
        Ranked(
            name,
            posterior[name],
            bits[name],
            tuple(pair for pair in rows[name].items() if pair[1] > 0),
            tuple(pair for pair in rows[name].items() if pair[1] < 0),
        )
        for name in sorted(causes, key=lambda name: -posterior[name])
    )
    says, rule = _say(ranked, posterior[OTHER], ratio)
    return Scoring(
        says=says,
        cause=None if says == "cannot tell" else ranked[0].cause,
        ranked=ranked,
        other=posterior[OTHER],
        items=tuple(found),
        rules=tuple(rules + rule),
        next_test=next_test(ranked),
    )


def _check(found: Mapping[str, Item], traits: set[str], leave_out: set[str], ratio: float | None) -> None:
    for name in sorted(traits - TRAITS):
        raise InputError(f"trait {str(name)[:40]!r} is not known; choose of {', '.join(sorted(TRAITS))}")
    for name in sorted(leave_out - set(CAUSES)):
        raise InputError(f"cause {str(name)[:40]!r} is not known")
    for one, other in CONTRADICTIONS:
        if one in found and other in found:
            raise InputError(f"evidence items {one} and {other} contradict each other")
    if ratio is not None and (isinstance(ratio, bool) or not 0 < ratio < math.inf):
        raise InputError(f"ratio of measured to floor must be a finite number above zero, not {ratio!r}")


def _strongest(cause: str, found: Mapping[str, Item], weights: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Items that bear on a cause with their bits, of each counter the strongest only."""
    best: dict[str, str] = {}
    for name, one in found.items():
        value = weights[name].get(cause, 0)
        if value and abs(value) > abs(weights[best[one.counter]][cause] if one.counter in best else 0):
            best[one.counter] = name
    return {name: weights[name][cause] for name in best.values()}


def _softmax(bits: Mapping[str, float]) -> dict[str, float]:
    highest = max(bits.values())
    total = math.fsum(2 ** (value - highest) for value in bits.values())
    return {name: 2 ** (value - highest) / total for name, value in bits.items()}


def _say(ranked: tuple[Ranked, ...], other: float, ratio: float | None) -> tuple[str, list[str]]:
    top = ranked[0]
    second = ranked[1].posterior if len(ranked) > 1 else 0.0
    decisive = any(bits >= DECISIVE_BITS for _, bits in top.speaks_for)
    leading = top.posterior >= LEADING_SHARE and top.posterior >= LEADING_LEAD * second and top.posterior > other
    named = top.posterior >= NAMED_SHARE and top.posterior >= NAMED_LEAD * max(second, other) and decisive
    effect = CAUSES[top.cause].largest_effect
    if (named or leading) and ratio is not None and effect is not None and 2 * effect < ratio:
        toggled = any(name.startswith("ab:") for name, _ in top.speaks_for)
        rule = f"{top.cause} has been seen to cost at most {effect:g}x, and {ratio:.1f}x is missing: not named alone"
        return ("leading" if leading and toggled else "cannot tell"), [rule]
    return ("named" if named else "leading" if leading else "cannot tell"), []


def next_test(ranked: Iterable[Ranked], made: Container[str] = ()) -> NextTest | None:
    """The test worth most for its cost among causes with a posterior of at least 0.05; None where none is left.

    The test of a cause is taken to split it from all others and to be right 9 times in 10, whatever it says: expected
    drop of entropy I = h(q) − h(0.9), q = 0.9 p + 0.1 (1 − p), h the binary entropy. Real tests also tell something of
    other causes, which this leaves out. `made`: causes whose test is made already.
    """
    tests = [
        NextTest(row.cause, CAUSES[row.cause].test, CAUSES[row.cause].test_cost, _entropy_drop(row.posterior))
        for row in ranked
        if row.posterior >= WORTH_TESTING and row.cause not in made
    ]
    return max(tests, key=lambda test: test.worth, default=None)


def _entropy_drop(posterior: float) -> float:
    yes = TEST_IS_RIGHT * posterior + (1 - TEST_IS_RIGHT) * (1 - posterior)
    return max(_binary_entropy(yes) - _binary_entropy(TEST_IS_RIGHT), 0.0)


def _binary_entropy(chance: float) -> float:
    return -sum(share * math.log2(share) for share in (chance, 1 - chance) if share > 0)
