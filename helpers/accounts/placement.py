"""Where the experts of a layer live under expert parallelism, and what that makes of the load of each rank."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from helpers.accounts.units import count, positive_int
from helpers.errors import InputError


@dataclass(frozen=True)
class Placement:
    """The experts each rank holds, [ranks][slots]; an expert held more than once shares its tokens evenly.

    Raises InputError where an expert below the largest is held nowhere, or twice by one rank.
    """

    ranks: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        held = {expert for slots in self.ranks for expert in slots}
        if missing := sorted(set(range(max(held, default=0) + 1)) - held):
            raise InputError(f"placement: expert {missing[0]} is held by no rank")
        for rank, slots in enumerate(self.ranks):
            if len(set(slots)) < len(slots):
                raise InputError(f"placement: rank {rank} holds an expert twice, which spreads nothing")

    @cached_property
    def experts(self) -> int:
        """Number of experts."""
        return 1 + max(expert for slots in self.ranks for expert in slots)

    @cached_property
    def copies(self) -> tuple[int, ...]:
        """How many ranks hold each expert, [experts]."""
        copies = [0] * self.experts
        for slots in self.ranks:
            for expert in slots:
                copies[expert] += 1
        return tuple(copies)


def contiguous(experts: int, ranks: int) -> Placement:
    """Expert e on rank e // (E/R): the default of vLLM, SGLang and DeepEP. InputError where R does not divide E."""
    size = _experts_per_rank(experts, ranks)
    return Placement(tuple(tuple(range(rank * size, (rank + 1) * size)) for rank in range(ranks)))


def strided(experts: int, ranks: int) -> Placement:
    """Expert e on rank e mod R ("round robin"): parts neighbours. InputError where R does not divide E."""
    _experts_per_rank(experts, ranks)
    return Placement(tuple(tuple(range(rank, experts, ranks)) for rank in range(ranks)))


PLACEMENTS: Mapping[str, Callable[[int, int], Placement]] = MappingProxyType(
    {"contiguous": contiguous, "strided": strided}
)
"""The placements that need no counts, by name."""


def packed(counts: Sequence[float], ranks: int, replicas: int = 0) -> Placement:
    """A placement computed from measured `counts`: first replicate the hottest, then pack the heaviest first.

    Each of `replicas` extra slots goes to the expert with the highest load a copy; then every copy, heaviest first,
    goes to the least loaded rank that has a slot free and not this expert. The two greedy steps of DeepSeek's EPLB
    (github.com/deepseek-ai/EPLB, its global policy). Right for the traffic of `counts`, not for another.

    Raises InputError where the E + replicas slots do not divide by the ranks, or an expert would need two on one rank.
    """
    experts = len(counts)
    slots = _experts_per_rank(experts + count(replicas, "replicas"), ranks)
    copies = [1] * experts
    for _ in range(replicas):
        candidates = [expert for expert in range(experts) if copies[expert] < ranks]
        if not candidates:
            raise InputError(f"{replicas} replicas of {experts} experts do not fit {ranks} ranks without repeats")
        copies[max(candidates, key=lambda expert: counts[expert] / copies[expert])] += 1
    held: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    # Copies of one expert follow one another, and ties take the emptier rank, so that a free rank without it remains.
    order = sorted(range(experts), key=lambda expert: (-counts[expert] / copies[expert], expert))
    for expert in order:
        for _ in range(copies[expert]):
            free = [rank for rank in range(ranks) if len(held[rank]) < slots and expert not in held[rank]]
            if not free:
                raise InputError(f"{replicas} replicas of {experts} experts do not fit {ranks} ranks without repeats")
            rank = min(free, key=lambda rank: (loads[rank], len(held[rank]), rank))
            held[rank].append(expert)
            loads[rank] += counts[expert] / copies[expert]
    return Placement(tuple(tuple(sorted(experts_held)) for experts_held in held))


def rank_loads(counts: Sequence[float], placement: Placement) -> list[float]:
    """Assignments each rank gets, [ranks]: Σ over its experts of count / copies.

    Raises InputError where the placement is for another number of experts.
    """
    copies = _copies_for(counts, placement)
    return [sum(counts[expert] / copies[expert] for expert in slots) for slots in placement.ranks]


def rank_distinct_experts(
    counts: Sequence[float], experts_per_token: int, tokens: int, placement: Placement
) -> list[float]:
    """Experts each rank touches in a step of `tokens` tokens, [ranks]: Σ over its experts of 1 − (1 − p/copies)^tokens.

    In the memory-bound regime this load sets a decode step, not the tokens (METRO, arXiv:2512.09277). p = k · share.
    """
    copies, total = _copies_for(counts, placement), sum(counts)
    if not total:
        raise InputError("the counts are all zero: no expert is touched")
    chances = [min(experts_per_token * load / total, 1.0) for load in counts]
    return [sum(1 - (1 - chances[e] / copies[e]) ** tokens for e in slots) for slots in placement.ranks]


def rank_seconds(
    counts: Sequence[float], placement: Placement, expert_seconds: Callable[[float], float]
) -> list[float]:
    """Time of each rank's experts in one step, [ranks]: Σ over its experts of t(count / copies).

    `expert_seconds` is t(M), the time one expert takes for M tokens, M above 0: an expert without tokens costs nothing.
    The layer is done when the slowest rank is: max of the result. One rank with all experts is one device.
    """
    copies = _copies_for(counts, placement)
    return [
        sum(expert_seconds(counts[expert] / copies[expert]) for expert in slots if counts[expert])
        for slots in placement.ranks
    ]


def _copies_for(counts: Sequence[float], placement: Placement) -> tuple[int, ...]:
    if len(counts) != placement.experts:
        raise InputError(f"the placement is for {placement.experts} experts, the counts are of {len(counts)}")
    return placement.copies


def _experts_per_rank(slots: int, ranks: int) -> int:
    positive_int(slots, "experts")
    if slots % positive_int(ranks, "ranks"):
        raise InputError(f"{slots} experts do not divide evenly by {ranks} ranks")
    return slots // ranks
