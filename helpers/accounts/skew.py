"""Gating skew: how unevenly the tokens of an MoE layer fall on its experts, and on the ranks that hold them.

Throughout, `counts` are the assignments (token, expert) each expert of one layer got, `rank_loads` the same summed
over the experts of each rank. Several tools call different things "balancedness": the functions here say which axis
they reduce. Compare any of them with `helpers.accounts.skew_null`: a perfect gate looks skewed too over few tokens.
"""

import math
from collections.abc import Sequence

from helpers.accounts.units import count, positive_int
from helpers.errors import InputError

DEAD_BELOW = 0.1
"""An expert is called dead below this share of the mean load."""


def max_over_mean(counts: Sequence[float]) -> float:
    """Load of the hottest expert (or rank) over the mean load: E · max f. 1 is even, E is all on one.

    The factor by which it is late where time is linear in tokens. MaxVio = max/mean − 1 (arXiv:2408.15664), called
    "imbalance ratio" by TensorRT-LLM where it is taken over ranks. Raises InputError where nothing was counted.
    """
    loads, total = _checked(counts)
    return len(loads) * max(loads) / total


def balancedness(rank_loads: Sequence[float]) -> float:
    """Mean over maximum of the loads of the ranks, of ONE layer: 1 even, 1/R all on one rank of R.

    SGLang's "utilization rate" (srt/eplb/expert_distribution.py, compute_utilization_rate), which it then averages over
    layers. vLLM's of the same name is Σ mean / Σ max over layers: see `step_time_factor`. Others mean min/max by it.
    """
    return 1 / max_over_mean(rank_loads)


def mean_balancedness(rank_loads_of_layers: Sequence[Sequence[float]]) -> float:
    """The average of `balancedness` over layers, [layers][ranks]: what SGLang logs as ``current_pass_balancedness``.

    An average of ratios: 1 / mean_balancedness is not the slow-down of a step, which is `step_time_factor`.
    """
    _several(rank_loads_of_layers, "layers")
    return sum(map(balancedness, rank_loads_of_layers)) / len(rank_loads_of_layers)


def step_time_factor(rank_loads_of_layers: Sequence[Sequence[float]]) -> float:
    """How many times longer the experts of a step take than with even ranks: Σ_layers max / Σ_layers mean.

    `rank_loads_of_layers`, [layers][ranks], of one step, or the layers of several steps one after another: layers wait
    for their hottest rank one by one. Holds where the time of a rank is linear in its tokens and nothing overlaps; its
    inverse is what vLLM logs as balancedness. Layers that counted nothing add nothing. InputError where all are such.
    """
    _several(rank_loads_of_layers, "layers")
    hottest = sum(max(_loads(loads)) for loads in rank_loads_of_layers)
    mean = sum(sum(loads) / len(loads) for loads in rank_loads_of_layers)
    if not mean:
        raise InputError("the counts are all zero: skew is not defined where no token was routed")
    return hottest / mean


def coefficient_of_variation(counts: Sequence[float]) -> float:
    """Standard deviation over mean of the loads (population form). Its square is the loss of arXiv:1701.06538."""
    loads, total = _checked(counts)
    mean = total / len(loads)
    return math.sqrt(sum((load - mean) ** 2 for load in loads) / len(loads)) / mean


def effective_experts(counts: Sequence[float]) -> float:
    """exp(entropy) of the load shares: how many equally used experts would be as spread. 1 to E.

    effective / E is the part of the expert memory that is paid for and used.
    """
    return math.exp(_entropy(counts))


def normalized_entropy(counts: Sequence[float]) -> float:
    """Entropy of the load shares over its largest value, H / ln E: 0 all on one expert, 1 even; 1 where E is 1."""
    return _entropy(counts) / math.log(len(counts)) if len(counts) > 1 else 1.0


def gini(counts: Sequence[float]) -> float:
    """Gini coefficient of the loads: Σ (2i − E − 1) f_(i) / E over ascending shares. 0 even, 1 − 1/E all on one."""
    loads, total = _checked(counts)
    experts = len(loads)
    return sum((2 * i - experts - 1) * load for i, load in enumerate(sorted(loads), 1)) / (experts * total)


def dead_experts(counts: Sequence[float], below: float = DEAD_BELOW) -> tuple[int, ...]:
    """Experts whose load is under `below` times the mean, by index.

    Over few tokens a good expert may look dead: say the token count beside it.
    """
    loads, total = _checked(counts)
    return tuple(expert for expert, load in enumerate(loads) if load * len(loads) < below * total)


def distinct_experts(counts: Sequence[float], experts_per_token: int, tokens: int) -> float:
    """Experts of one layer that `tokens` independent tokens touch: D = Σ_i 1 − (1 − p_i)^tokens.

    p_i = k · f_i, the chance that one token uses expert i, from the load shares of `counts`. Even counts give
    `expected_distinct_experts`; skewed ones fewer. Tokens of one sequence are alike and touch fewer still.

    Raises InputError where an expert has more than one assignment a token (p_i > 1): `experts_per_token` is wrong.
    """
    loads, total = _checked(counts)
    positive_int(experts_per_token, "experts_per_token")
    count(tokens, "tokens")
    chances = [experts_per_token * load / total for load in loads]
    if max(chances) > 1 + 1e-9:
        raise InputError(
            f"experts_per_token {experts_per_token} does not fit the counts: expert {chances.index(max(chances))} "
            f"would be chosen {max(chances):.2f} times by each token"
        )
    return sum(1 - (1 - min(chance, 1.0)) ** tokens for chance in chances)


def memory_ratio(experts: int, experts_per_token: int) -> float:
    """Expert bytes resident over those of a dense block of the active size: E / k, whatever the gate does."""
    if positive_int(experts_per_token, "experts_per_token") > positive_int(experts, "experts"):
        raise InputError(f"experts_per_token ({experts_per_token}) is more than experts ({experts})")
    return experts / experts_per_token


def read_ratio(counts: Sequence[float], experts_per_token: int, tokens: int) -> float:
    """Expert bytes one step reads over those of a dense block of the active size: D / k. FLOPs are equal, ratio 1."""
    return distinct_experts(counts, experts_per_token, tokens) / experts_per_token


def quality_gain_kept(dense_loss: float, balanced_loss: float, loss: float) -> float:
    """The part of the balanced MoE's gain over a dense model that a gate keeps: (dense − loss) / (dense − balanced).

    1 as good as balanced, 0 no better than dense. Raises InputError where balanced gains nothing over dense.
    """
    if not balanced_loss < dense_loss:
        raise InputError(f"balanced_loss ({balanced_loss}) is not below dense_loss ({dense_loss}): no gain to keep")
    return (dense_loss - loss) / (dense_loss - balanced_loss)


def _entropy(counts: Sequence[float]) -> float:
    loads, total = _checked(counts)
    return -sum(load / total * math.log(load / total) for load in loads if load)


def _several(values: Sequence, name: str) -> None:
    if not len(values):
        raise InputError(f"there are no {name} to average over")


def _loads(counts: Sequence[float]) -> Sequence[float]:
    """`counts` where they are numbers, none negative, at least one."""
    _several(counts, "experts")
    for index, load in enumerate(counts):
        # A table [layers][experts] in place of one layer would silently be reduced over the wrong axis.
        if not isinstance(load, int | float):
            raise InputError(f"counts must be the numbers of one layer, but entry {index} is a {type(load).__name__}")
        if not 0 <= load < math.inf:
            raise InputError(f"counts must be zero or more, but entry {index} is {load}")
    return counts


def _checked(counts: Sequence[float]) -> tuple[Sequence[float], float]:
    total = sum(_loads(counts))
    if not total:
        raise InputError("the counts are all zero: skew is not defined where no token was routed")
    return counts, total
