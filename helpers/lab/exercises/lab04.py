"""Lab 04, gating skew: its measures and their null, distinct experts, step times on ranks, and a placement to beat."""

import math
import random
import statistics

from helpers.accounts import recorded_routing, recorded_traffics
from helpers.lab.exercise import Exercise, Mistake


def skew_of(counts: list[int]) -> list[float]:
    """[max/mean, effective experts]: E · max f and exp(−Σ f ln f) of the load shares f."""
    shares = [count / sum(counts) for count in counts]
    entropy = -sum(share * math.log(share) for share in shares if share)
    return [len(counts) * max(shares), math.exp(entropy)]


def null_estimate(experts: int, experts_per_token: int, tokens: int) -> float:
    """Rule of thumb for max/mean of a perfect gate: 1 + √(2 ln E · (1 − k/E) / m), m = tokens · k / E."""
    mean = tokens * experts_per_token / experts
    return 1 + math.sqrt(2 * math.log(experts) * (1 - experts_per_token / experts) / mean)


def balancedness_of(layers: list[list[int]], ranks: int) -> float:
    """Mean over the layers of (mean ÷ maximum over the ranks), contiguous blocks of experts."""
    return statistics.fmean(statistics.fmean(loads) / max(loads) for loads in (_blocks(row, ranks) for row in layers))


def distinct(counts: list[int], experts_per_token: int, tokens: int) -> float:
    """Experts that `tokens` independent tokens touch: Σ 1 − (1 − p)^tokens, p = k · share."""
    chances = [experts_per_token * count / sum(counts) for count in counts]
    return sum(1 - (1 - chance) ** tokens for chance in chances)


def layer_ms(counts: list[int], read_ms: float, token_ms: float) -> float:
    """Time of a layer on one device: Σ over the experts with tokens of max(read_ms, count · token_ms)."""
    return sum(max(read_ms, count * token_ms) for count in counts if count)


def parallel_step_ms(layers: list[list[int]], ranks: int, read_ms: float, token_ms: float) -> float:
    """Time of a step on ranks, contiguous: Σ over layers of the slowest rank's `layer_ms`."""
    size = len(layers[0]) // ranks
    return sum(
        max(layer_ms(row[rank * size : (rank + 1) * size], read_ms, token_ms) for rank in range(ranks))
        for row in layers
    )


def place_experts(counts: list[int], ranks: int) -> list[list[int]]:
    """The experts of each rank: heaviest first, each onto the least loaded rank with a free slot."""
    held, loads = [[] for _ in range(ranks)], [0] * ranks
    for expert in sorted(range(len(counts)), key=lambda expert: -counts[expert]):
        free = [rank for rank in range(ranks) if len(held[rank]) < len(counts) // ranks]
        rank = min(free, key=lambda rank: loads[rank])
        held[rank].append(expert)
        loads[rank] += counts[expert]
    return held


def what_skew_does(layers: list[list[int]], experts_per_token: int, tokens: int, ranks: int) -> list[float]:
    """[FLOPs, reads on one device, step on ranks where compute binds], each as a factor against an even gate."""
    experts = len(layers[0])
    even = experts * (1 - (1 - experts_per_token / experts) ** tokens)
    reads = statistics.fmean(distinct(row, experts_per_token, tokens) for row in layers) / even
    loads = [_blocks(row, ranks) for row in layers]
    return [1.0, reads, sum(map(max, loads)) / sum(map(statistics.fmean, loads))]


KEEPS_AT_MOST = 0.5
"""A placement passes where it leaves at most this share of contiguous blocks' excess of the hottest rank."""


def placement_problem(placement: list, counts: list[int], ranks: int) -> str:
    """What is wrong with a placement of 4.7, judged on traffic that it was not made from; "" for a good one.

    Good: every expert once, equally many a rank, and the hottest rank's excess over the mean at most `KEEPS_AT_MOST`
    of that of contiguous blocks, on the other half of the text that `counts` is the first half of.
    """
    experts, slots = list(range(len(counts))), len(counts) // ranks
    if not all(isinstance(held, list) and all(type(expert) is int for expert in held) for held in placement):
        return "return a list of ranks, each a list of expert numbers"
    if sorted(expert for held in placement for expert in held) != experts:
        return f"every expert from 0 to {len(counts) - 1} has to live on exactly one rank"
    if {len(held) for held in placement} != {slots}:
        return f"every rank has memory for exactly {slots} experts"
    served = _served(counts)
    mean = sum(served) / ranks
    hottest, before = (
        max(sum(served[expert] for expert in held) for held in ranks_of) / mean
        for ranks_of in (placement, _contiguous(counts, ranks))
    )
    wanted = 1 + KEEPS_AT_MOST * (before - 1)
    if hottest <= wanted:
        return ""
    return (
        f"on the traffic served, the hottest rank gets {hottest:.2f} times the mean; contiguous blocks give "
        f"{before:.2f}, at most {wanted:.2f} is asked for"
    )


def _served(counts: list[int]) -> tuple[int, ...]:
    """The second half of the text that `counts` is the first half of."""
    for traffic in recorded_traffics():
        routing = recorded_routing(traffic)
        if tuple(counts) in routing.first:
            return routing.second[routing.first.index(tuple(counts))]
    raise LookupError("these counts are of no recorded half")


# Wrong answers that take more than an expression.


def _blocks(row, ranks):
    size = len(row) // ranks
    return [sum(row[rank * size : (rank + 1) * size]) for rank in range(ranks)]


def _contiguous(counts, ranks):
    size = len(counts) // ranks
    return [list(range(rank * size, (rank + 1) * size)) for rank in range(ranks)]


def _by_load(counts):
    return sorted(range(len(counts)), key=lambda expert: -counts[expert])


def _skew(ratio=lambda counts: skew_of(counts)[0], spread=lambda counts: skew_of(counts)[1]):
    return lambda counts: [ratio(counts), spread(counts)]


def _entropy(counts, log=math.log):
    return -sum(count / sum(counts) * log(count / sum(counts)) for count in counts if count)


def _null(experts, k, tokens, *, mean=None, factor=2.0, log=math.log, apart=True, base=1.0, root=math.sqrt):
    mean = tokens * k / experts if mean is None else mean
    return base + root(factor * log(experts) * (1 - k / experts if apart else 1.0) / mean)


def _over_layers(layers, ranks):
    by_rank = list(zip(*(_blocks(row, ranks) for row in layers), strict=True))
    return sum(map(statistics.fmean, by_rank)) / sum(map(max, by_rank))


def _ratio_of_sums(layers, ranks):
    loads = [_blocks(row, ranks) for row in layers]
    return sum(map(statistics.fmean, loads)) / sum(map(max, loads))


def _layers_added(layers, ranks):
    loads = [sum(rank) for rank in zip(*(_blocks(row, ranks) for row in layers), strict=True)]
    return statistics.fmean(loads) / max(loads)


def _balanced(ratio):
    return lambda layers, ranks: statistics.fmean(ratio(_blocks(row, ranks)) for row in layers)


def _strided_blocks(row, ranks):
    return [sum(row[rank::ranks]) for rank in range(ranks)]


def _step(over_ranks=max, blocks=None):
    """A step whose layers are cut by `blocks` and whose ranks are combined by `over_ranks`."""

    def wrong(layers, ranks, read_ms, token_ms):
        cut = blocks or (lambda row: [row[i * len(row) // ranks : (i + 1) * len(row) // ranks] for i in range(ranks)])
        return sum(over_ranks([layer_ms(part, read_ms, token_ms) for part in cut(row)]) for row in layers)

    return wrong


def _step_strided(layers, ranks, read_ms, token_ms):
    return _step(blocks=lambda row: [row[rank::ranks] for rank in range(ranks)])(layers, ranks, read_ms, token_ms)


def _step_slowest_overall(layers, ranks, read_ms, token_ms):
    cut = [_contiguous(layers[0], ranks)[rank] for rank in range(ranks)]
    return max(sum(layer_ms([row[e] for e in held], read_ms, token_ms) for row in layers) for held in cut)


def _step_layers_added(layers, ranks, read_ms, token_ms):
    return parallel_step_ms([[sum(column) for column in zip(*layers, strict=True)]], ranks, read_ms, token_ms)


def _step_rank_read_once(layers, ranks, read_ms, token_ms):
    return sum(max(max(read_ms, load * token_ms) for load in _blocks(row, ranks) if load) for row in layers)


def _step_rank_of_most_tokens(layers, ranks, read_ms, token_ms):
    def busiest(row):
        loads, held = _blocks(row, ranks), _contiguous(row, ranks)
        return [row[expert] for expert in held[loads.index(max(loads))]]

    return sum(layer_ms(busiest(row), read_ms, token_ms) for row in layers)


def _step_tokens_only(layers, ranks, read_ms, token_ms):
    return sum(max(_blocks(row, ranks)) * token_ms for row in layers)


def _step_all_read(layers, ranks, read_ms, token_ms):
    size = len(layers[0]) // ranks
    return sum(
        max(sum(max(read_ms, c * token_ms) for c in row[r * size : (r + 1) * size]) for r in range(ranks))
        for row in layers
    )


def _placed_sorted(counts, ranks):
    order, size = _by_load(counts), len(counts) // ranks
    return [order[rank * size : (rank + 1) * size] for rank in range(ranks)]


def _placed_lightest_first(counts, ranks):
    held, loads = [[] for _ in range(ranks)], [0] * ranks
    for expert in reversed(_by_load(counts)):
        free = [rank for rank in range(ranks) if len(held[rank]) < len(counts) // ranks]
        rank = min(free, key=lambda rank: loads[rank])
        held[rank].append(expert)
        loads[rank] += counts[expert]
    return held


def _placed_without_slots(counts, ranks):
    held, loads = [[] for _ in range(ranks)], [0] * ranks
    for expert in _by_load(counts):
        rank = loads.index(min(loads))
        held[rank].append(expert)
        loads[rank] += counts[expert]
    return held


def _placed_there_and_back(counts, ranks):
    held = [[] for _ in range(ranks)]
    for place, expert in enumerate(_by_load(counts)):
        turn, rank = divmod(place, ranks)
        held[ranks - 1 - rank if turn % 2 else rank].append(expert)
    return held


def _placed_by_fewest(counts, ranks):
    held = [[] for _ in range(ranks)]
    for expert in range(len(counts)):
        min(held, key=len).append(expert)
    return held


def _effects(flops=None, reads=None, step=None):
    """`what_skew_does` with some of its three answers replaced by wrong ones."""

    def wrong(*case):
        right = what_skew_does(*case)
        return [
            value if other is None else other(*case) for value, other in zip(right, (flops, reads, step), strict=True)
        ]

    return wrong


def _reads_even(layers, k, tokens, ranks):
    return 1.0


def _reads_per_k(layers, k, tokens, ranks):
    return statistics.fmean(distinct(row, k, tokens) for row in layers) / k


def _reads_of_experts(layers, k, tokens, ranks):
    return statistics.fmean(distinct(row, k, tokens) for row in layers) / len(layers[0])


def _reads_inverted(*case):
    return 1 / what_skew_does(*case)[1]


def _step_of_experts(layers, k, tokens, ranks):
    return sum(map(max, layers)) / sum(map(statistics.fmean, layers))


def _step_from_balancedness(layers, k, tokens, ranks):
    return 1 / balancedness_of(layers, ranks)


def _step_inverted(layers, k, tokens, ranks):
    return _ratio_of_sums(layers, ranks)


def _step_of_sums(layers, k, tokens, ranks):
    return 1 / _layers_added(layers, ranks)


# Hidden cases.


def _routed(rng: random.Random, experts: int, k: int, tokens: int, alpha: float) -> list[int]:
    """Counts of `tokens` tokens that choose k different experts each, popularity falling as rank^(−alpha), shuffled."""
    popularity = [(rank + 1) ** -alpha for rank in range(experts)]
    rng.shuffle(popularity)
    counts = [0] * experts
    for _ in range(tokens):
        keys = [rng.random() ** (1 / weight) for weight in popularity]
        for expert in sorted(range(experts), key=lambda expert: -keys[expert])[:k]:
            counts[expert] += 1
    return counts


def _counts_case(rng):
    return (_routed(rng, rng.choice((4, 8, 16)), 2, rng.randint(5, 60), rng.uniform(0, 2)),)


def _null_case(rng):
    return (*rng.choice(((8, 2), (64, 6), (64, 8), (128, 8), (256, 8))), rng.choice((16, 64, 512, 8192)))


def _layers_case(rng, layers=3):
    tokens = rng.randint(10, 40)
    return [_routed(rng, 8, 2, tokens, rng.uniform(0, 2)) for _ in range(layers)], rng.choice((2, 4))


def _distinct_case(rng):
    k = rng.choice((2, 3))
    return _routed(rng, 8, k, rng.randint(10, 50), rng.uniform(0, 2)), k, rng.choice((2, 4, 8, 16))


def _layer_case(rng):
    counts = _routed(rng, 8, 2, rng.randint(3, 40), rng.uniform(0, 3))
    return counts, round(rng.uniform(0.2, 2), 2), round(rng.uniform(0.01, 0.3), 3)


def _step_case(rng):
    layers, ranks = _layers_case(rng, layers=rng.choice((2, 3)))
    return layers, ranks, round(rng.uniform(0.2, 2), 2), round(rng.uniform(0.01, 0.3), 3)


def _placement_case(rng):
    routing = recorded_routing(rng.choice(recorded_traffics()))
    return list(rng.choice(routing.first)), 8


def _effects_case(rng):
    layers, ranks = _layers_case(rng)
    return layers, 2, rng.choice((2, 4, 8, 16)), ranks


_TWO_LAYERS = [[40, 20, 10, 10], [10, 10, 20, 40]]
_UNLIKE_LAYERS = [[60, 10, 5, 5], [20, 20, 20, 20], [30, 30, 10, 10]]

EXERCISES = (
    Exercise(
        id="4.1",
        title="Two measures of skew",
        minutes=5,
        difficulty=1,
        why="every tool prints one of them, under a name of its own; max/mean looks at the hottest expert, effective "
        "experts at all.",
        hints=(
            "The share of an expert is its count over the sum of all counts.",
            "Entropy is −Σ share · ln(share); an expert without tokens adds nothing to it (and ln 0 does not exist).",
        ),
        reference=skew_of,
        cases=(([30, 10, 10, 10],), ([0, 0, 12, 4],), ([5] * 8,), ([100, 60, 30, 5, 3, 1, 1, 0],)),
        random_case=_counts_case,
        mistakes=(
            Mistake(
                "MaxVio",
                _skew(lambda counts: skew_of(counts)[0] - 1),
                "the first number is (max − mean)/mean, called MaxVio or imbalance ratio: asked for is max/mean",
            ),
            Mistake(
                "balancedness",
                _skew(lambda counts: 1 / skew_of(counts)[0]),
                "the first number is mean/max, upside down",
            ),
            Mistake(
                "share",
                _skew(lambda counts: max(counts) / sum(counts)),
                "the first number is the hottest expert's share of all: divide by the mean load, not by the sum",
            ),
            Mistake(
                "max over min",
                _skew(lambda counts: max(counts) / min((c for c in counts if c), default=1)),
                "the first number is max/min: divide by the mean load",
            ),
            Mistake(
                "median",
                _skew(lambda counts: max(counts) / (statistics.median(counts) or 1)),
                "the first number is over the median load: divide by the mean",
            ),
            Mistake(
                "mean of the used",
                _skew(lambda counts: max(counts) / statistics.fmean([c for c in counts if c])),
                "the mean is over all experts: those without tokens count as 0",
            ),
            Mistake(
                "entropy",
                _skew(spread=_entropy),
                "the second number is the entropy itself: effective experts is exp of it",
            ),
            Mistake(
                "bits",
                _skew(spread=lambda counts: math.exp(_entropy(counts, math.log2))),
                "this is exp of an entropy in bits: take the natural logarithm (or 2 to the power)",
            ),
            Mistake(
                "normalised",
                _skew(spread=lambda counts: _entropy(counts) / math.log(len(counts))),
                "this is the entropy over ln E: effective experts is exp of the entropy",
            ),
            Mistake(
                "used",
                _skew(spread=lambda counts: float(sum(map(bool, counts)))),
                "the second number counts the experts that got anything: weigh them by exp(entropy)",
            ),
            Mistake(
                "Simpson",
                _skew(spread=lambda counts: sum(counts) ** 2 / sum(c * c for c in counts)),
                "this is 1/Σ share², another measure of the same kind: asked for is exp(entropy)",
            ),
            Mistake(
                "sign",
                _skew(spread=lambda counts: math.exp(-_entropy(counts))),
                "entropy is minus Σ share · ln(share): the minus is missing",
            ),
        ),
        result="a list [max/mean, effective experts]",
    ),
    Exercise(
        id="4.2",
        title="What a perfect gate shows",
        minutes=5,
        difficulty=2,
        why="over few tokens a perfect gate looks skewed; a max/mean without its null has led to many a bug report.",
        hints=(
            "First m, the assignments an expert gets on average: tokens · k spread over E experts.",
            "The excess over 1 is one square root; in it stand 2 · ln E, (1 − k/E), and m.",
        ),
        reference=null_estimate,
        cases=((64, 6, 64), (64, 6, 8192), (8, 2, 16), (256, 8, 512), (64, 6, 100)),
        random_case=_null_case,
        mistakes=(
            Mistake("tokens", lambda *c: _null(*c, mean=c[2]), "m is what ONE expert gets: tokens · k / E"),
            Mistake(
                "all assignments",
                lambda *c: _null(*c, mean=c[1] * c[2]),
                "tokens · k are all assignments: an expert gets the E-th part of them",
            ),
            Mistake(
                "k forgotten",
                lambda *c: _null(*c, mean=c[2] / c[0]),
                "each token makes k assignments: m is tokens · k / E",
            ),
            Mistake(
                "no 1 − k/E",
                lambda *c: _null(*c, apart=False),
                "the factor (1 − k/E) is missing: a token never takes an expert twice, which evens the loads out",
            ),
            Mistake("log10", lambda *c: _null(*c, log=math.log10), "ln is the natural logarithm: math.log"),
            Mistake("log2", lambda *c: _null(*c, log=math.log2), "ln is the natural logarithm, not that to base 2"),
            Mistake("no 2", lambda *c: _null(*c, factor=1), "the 2 before ln E is missing"),
            Mistake("excess alone", lambda *c: _null(*c, base=0), "this is the excess: an even load is already 1"),
            Mistake("no root", lambda *c: _null(*c, root=float), "the square root is missing"),
            Mistake(
                "m rounded down",
                lambda *c: _null(*c, mean=max(1, c[1] * c[2] // c[0])),
                "m is an average and need not be whole: divide with /, not with //",
            ),
        ),
    ),
    Exercise(
        id="4.3",
        title="The wrong axis",
        minutes=8,
        difficulty=3,
        why="the word means four different things, and one engine logged it over the wrong axis for months.",
        hints=(
            "Cut each layer into `ranks` equal blocks of experts, and add each block up: that is what a rank gets.",
            "Layers run one after the other: take mean ÷ maximum over the ranks of ONE layer, then average the layers.",
        ),
        reference=balancedness_of,
        cases=((_TWO_LAYERS, 2), (_UNLIKE_LAYERS, 2), (_UNLIKE_LAYERS, 4)),
        random_case=_layers_case,
        mistakes=(
            Mistake(
                "over layers",
                _over_layers,
                "this takes mean and maximum of one rank over the layers: they have to be taken over the ranks of a "
                "layer",
            ),
            Mistake(
                "experts",
                lambda layers, ranks: statistics.fmean(statistics.fmean(row) / max(row) for row in layers),
                "this is over experts: add up the experts of each rank first",
            ),
            Mistake(
                "min over max",
                _balanced(lambda loads: min(loads) / max(loads)),
                "this is min/max: some runbooks use the same word for it, asked for is mean/max",
            ),
            Mistake(
                "upside down",
                _balanced(lambda loads: max(loads) / statistics.fmean(loads)),
                "this is max/mean, upside down",
            ),
            Mistake(
                "ratio of sums",
                _ratio_of_sums,
                "this is Σ mean / Σ max over the layers, the right answer to another question (how long the step "
                "takes): average the ratios of the layers",
            ),
            Mistake(
                "layers added",
                _layers_added,
                "the layers are added up before the ratio: what one layer has too much, another hides",
            ),
            Mistake(
                "strided",
                lambda layers, ranks: statistics.fmean(
                    statistics.fmean(loads) / max(loads) for loads in (_strided_blocks(row, ranks) for row in layers)
                ),
                "expert e lives on rank e // (E/ranks): contiguous blocks, not every so-many-th expert",
            ),
        ),
    ),
    Exercise(
        id="4.4",
        title="Distinct experts of a step",
        minutes=6,
        difficulty=2,
        why="it is what a decode step reads: the bandwidth account of a MoE layer.",
        hints=(
            "The chance p that ONE token uses an expert is k times the expert's share of the assignments.",
            "An expert stays untouched by B tokens with chance (1 − p)^B; add up over the experts.",
        ),
        reference=distinct,
        cases=(([30, 10, 10, 10], 2, 4), ([8, 8, 0, 0], 2, 8), ([10, 10, 10, 10], 1, 4), ([20, 12, 5, 3, 0, 0], 2, 1)),
        random_case=_distinct_case,
        mistakes=(
            Mistake(
                "even",
                lambda counts, k, tokens: len(counts) * (1 - (1 - k / len(counts)) ** tokens),
                "this is the formula of an even gate: every expert has a chance of its own",
            ),
            Mistake(
                "k forgotten",
                lambda counts, k, tokens: distinct(counts, 1, tokens),
                "a token makes k choices: its chance to use an expert is k times the share",
            ),
            Mistake(
                "k tokens for one",
                lambda counts, k, tokens: distinct(counts, 1, tokens * k),
                "this lets a token choose an expert twice: one token takes k DIFFERENT experts, so p = k · share",
            ),
            Mistake(
                "no overlap",
                lambda counts, k, tokens: min(len(counts), k * tokens),
                "tokens share experts: B tokens touch fewer than k · B",
            ),
            Mistake(
                "untouched",
                lambda counts, k, tokens: len(counts) - distinct(counts, k, tokens),
                "these are the experts that are NOT touched",
            ),
            Mistake(
                "one token",
                lambda counts, k, tokens: distinct(counts, k, 1),
                "this is one token: B of them leave an expert untouched with chance (1 − p)^B",
            ),
            Mistake(
                "share of experts",
                lambda counts, k, tokens: distinct(counts, k, tokens) / len(counts),
                "this is a share: asked for is the number of experts",
            ),
            Mistake(
                "read ratio",
                lambda counts, k, tokens: distinct(counts, k, tokens) / k,
                "this is D/k, the reads over those of the dense twin: asked for is D itself",
            ),
            Mistake(
                "Poisson",
                lambda counts, k, tokens: sum(1 - math.exp(-k * c / sum(counts) * tokens) for c in counts),
                "exp(−p · B) is (1 − p)^B for rare experts only: a hot one is chosen by nearly every token",
            ),
            Mistake(
                "ever used",
                lambda counts, k, tokens: sum(map(bool, counts)),
                "these are the experts ever used in the counts: a step of B tokens touches fewer",
            ),
        ),
        unit="experts",
    ),
    Exercise(
        id="4.5",
        title="A layer on one device",
        minutes=5,
        difficulty=2,
        why="with one expert's t(M) you can predict the layer for every skew, before you rent anything.",
        hints=(
            "Work out the time of each expert for its own tokens, then add up: on one device they share it.",
            "An expert that got no token is neither read nor run.",
        ),
        reference=layer_ms,
        cases=(([2, 2, 2, 2], 1.0, 0.1), ([8, 0, 0, 0], 1.0, 0.1), ([60, 30, 6, 0], 1.0, 0.1)),
        random_case=_layer_case,
        mistakes=(
            Mistake(
                "idle experts read",
                lambda counts, read, token: sum(max(read, c * token) for c in counts),
                "experts without tokens are not read: that is why a crowded gate is fast here",
            ),
            Mistake(
                "roofline of the whole",
                lambda counts, read, token: max(read * sum(map(bool, counts)), token * sum(counts)),
                "this takes the maximum of the sums: each expert is bound by its own reading or its own computing",
            ),
            Mistake(
                "read plus compute",
                lambda counts, read, token: sum(read + c * token for c in counts if c),
                "reading and computing overlap: take the longer of both, not their sum",
            ),
            Mistake(
                "the shorter",
                lambda counts, read, token: sum(min(read, c * token) for c in counts),
                "this takes the shorter of reading and computing: the longer one binds",
            ),
            Mistake(
                "hottest alone",
                lambda counts, read, token: max(read, max(counts) * token),
                "this is the hottest expert alone: on one device all experts take their turn",
            ),
            Mistake(
                "hottest for all",
                lambda counts, read, token: max(read, max(counts) * token) * sum(map(bool, counts)),
                "this gives every expert the time of the hottest: use its own count",
            ),
            Mistake(
                "read per token",
                lambda counts, read, token: sum(c * max(read, token) for c in counts),
                "an expert is read once for all of its tokens, not once a token",
            ),
            Mistake(
                "computing alone",
                lambda counts, read, token: sum(counts) * token,
                "this is the computing alone: an expert with few tokens is bound by its reading",
            ),
            Mistake(
                "reading alone",
                lambda counts, read, token: sum(map(bool, counts)) * read,
                "this is the reading alone: an expert with many tokens is bound by computing",
            ),
            Mistake(
                "even",
                lambda counts, read, token: len(counts) * max(read, sum(counts) / len(counts) * token),
                "this gives every expert the average load: use its own count",
            ),
        ),
        unit="ms",
    ),
    Exercise(
        id="4.6",
        title="The step on several ranks",
        minutes=8,
        difficulty=3,
        why="under expert parallelism the layer waits for its slowest rank, in every layer anew.",
        hints=(
            "Each rank has a contiguous block of experts; its time is exercise 4.5 on that block.",
            "The slowest rank ends a layer, and only then does the next layer begin: max within, sum across.",
        ),
        reference=parallel_step_ms,
        cases=(
            (_TWO_LAYERS, 2, 1.0, 0.1),
            ([[4, 0, 0, 0], [1, 1, 1, 1]], 2, 1.0, 0.1),
            (_UNLIKE_LAYERS, 4, 1.0, 0.1),
            # The rank with most tokens is not the slowest: two experts of few tokens are read, one of many is.
            ([[12, 0, 2, 2]], 2, 1.0, 0.1),
        ),
        random_case=_step_case,
        mistakes=(
            Mistake(
                "one device",
                _step(sum),
                "this adds the ranks up, as one device would: they work at the same time",
            ),
            Mistake(
                "mean rank",
                _step(statistics.fmean),
                "this is the average rank: a layer is done when the slowest is",
            ),
            Mistake(
                "slowest overall",
                _step_slowest_overall,
                "this takes the slowest rank once over all layers: each layer waits for its own slowest rank",
            ),
            Mistake(
                "layers added",
                _step_layers_added,
                "the counts of the layers are added up first: every layer reads its own experts",
            ),
            Mistake(
                "slowest layer",
                lambda layers, *rest: max(parallel_step_ms([row], *rest) for row in layers),
                "this is the slowest layer alone: a step runs all of them, one after another",
            ),
            Mistake(
                "average layer",
                lambda layers, *rest: parallel_step_ms(layers, *rest) / len(layers),
                "this is the average layer: a step runs all of them, one after another",
            ),
            Mistake(
                "hottest expert",
                lambda layers, _, read, token: sum(max(read, max(row) * token) for row in layers),
                "this is the hottest expert of each layer: its rank runs its other experts too",
            ),
            Mistake(
                "rank of most tokens",
                _step_rank_of_most_tokens,
                "the rank with most tokens is not always the slowest: compare the ranks' times, not their tokens",
            ),
            Mistake(
                "rank as one expert",
                _step_rank_read_once,
                "this reads a rank's weights as if it held one expert: each of its experts has its own time",
            ),
            Mistake(
                "tokens alone",
                _step_tokens_only,
                "this is the hottest rank by tokens: where reading binds, touched experts count",
            ),
            Mistake(
                "idle experts read",
                _step_all_read,
                "experts without tokens are not read",
            ),
            Mistake(
                "strided",
                _step_strided,
                "the ranks hold contiguous blocks of experts: expert e is on rank e // (E/ranks)",
            ),
        ),
        unit="ms",
    ),
    Exercise(
        id="4.7",
        title="A placement for unseen traffic",
        minutes=12,
        difficulty=4,
        why="placement removes most of the skew between ranks, at no cost in quality, as long as the traffic stays.",
        hints=(
            "Every rank has room for E / ranks experts. What helps is to part the hot ones.",
            "Take the experts from the hottest to the coldest.",
            "Give each to the rank that has the least load so far and still has a free place.",
        ),
        reference=place_experts,
        cases=tuple((list(recorded_routing(text).first[layer]), 8) for text, layer in (("translation", 1), ("law", 1))),
        random_case=_placement_case,
        mistakes=(
            Mistake("contiguous", _contiguous, "these are contiguous blocks, the placement to beat"),
            Mistake(
                "strided",
                lambda counts, ranks: [list(range(rank, len(counts), ranks)) for rank in range(ranks)],
                "this deals the experts out by number: it does not look at the counts",
            ),
            Mistake(
                "dealt by load",
                lambda counts, ranks: [_by_load(counts)[rank::ranks] for rank in range(ranks)],
                "dealt out by load in turn, rank 0 gets the hottest of every round: look at the loads so far",
            ),
            Mistake(
                "there and back",
                _placed_there_and_back,
                "dealing there and back is better than in turn, and still blind: look at the loads so far",
            ),
            Mistake(
                "sorted blocks",
                _placed_sorted,
                "sorted and cut into blocks, all hot experts live on one rank: part them",
            ),
            Mistake(
                "lightest first",
                _placed_lightest_first,
                "the lightest first leaves the hot ones for the end, when nothing is left to balance them with",
            ),
            Mistake(
                "no places",
                _placed_without_slots,
                "the loads are even, but not the memory: every rank has places for E / ranks experts",
            ),
        ),
        result="a list of ranks, each a list of expert numbers",
        judge=placement_problem,
    ),
    Exercise(
        id="4.8",
        title="Q3: what this skew does",
        minutes=8,
        difficulty=3,
        why="it is the article's own question, and the three answers have three different signs.",
        hints=(
            "How many experts does a token run when the gate is skewed? That settles the first.",
            "Reads: your `distinct` for each layer, averaged, over that of an even gate: E · (1 − (1 − k/E)^tokens).",
            "Step: Σ over layers of the hottest rank's load, over Σ of the mean rank's load.",
        ),
        reference=what_skew_does,
        cases=((_TWO_LAYERS, 2, 4, 2), (_UNLIKE_LAYERS, 1, 8, 4), ([[20] * 4] * 2, 2, 4, 2)),
        random_case=_effects_case,
        mistakes=(
            Mistake(
                "FLOPs by max/mean",
                _effects(flops=_step_of_experts),
                "a token runs k experts whichever they are: its FLOPs do not change with skew",
            ),
            Mistake(
                "FLOPs by the step",
                _effects(flops=lambda *case: what_skew_does(*case)[2]),
                "the first number is the step's again: the FLOPs of a token do not change, the waiting does",
            ),
            Mistake(
                "FLOPs by reads",
                _effects(flops=lambda *case: what_skew_does(*case)[1]),
                "the first number is that of the reads: FLOPs count experts run for a token, always k",
            ),
            Mistake(
                "FLOPs by the share k/E",
                _effects(flops=lambda layers, k, *_: k / len(layers[0])),
                "the first number is the share of the experts that a token runs: an even gate runs the same k",
            ),
            Mistake(
                "changes",
                lambda *case: [factor - 1 for factor in what_skew_does(*case)],
                "these are changes against an even gate: asked for are factors, 1 for no change",
            ),
            Mistake(
                "no change in FLOPs is 0",
                _effects(flops=lambda *case: 0.0),
                "asked for are factors: no change is 1, not 0",
            ),
            Mistake(
                "reads unchanged",
                _effects(reads=_reads_even),
                "the reads do change: a crowded gate touches fewer distinct experts",
            ),
            Mistake(
                "reads over the twin",
                _effects(reads=_reads_per_k),
                "the second number is over the k experts of a token: asked for is over an even gate",
            ),
            Mistake(
                "reads over all experts",
                _effects(reads=_reads_of_experts),
                "the second number is over all E experts: an even gate does not touch all of them either",
            ),
            Mistake(
                "reads inverted",
                _effects(reads=_reads_inverted),
                "the second number is upside down: skew reads less, so it lies below 1",
            ),
            Mistake(
                "step by experts",
                _effects(step=_step_of_experts),
                "the third number is over experts: ranks wait for ranks, so add up each rank's experts first",
            ),
            Mistake(
                "step from the balancedness",
                _effects(step=_step_from_balancedness),
                "the third number is one over the average of mean/max: times add up, so divide the sums",
            ),
            Mistake(
                "step inverted",
                _effects(step=_step_inverted),
                "the third number is upside down: waiting for the hottest rank makes the step longer",
            ),
            Mistake(
                "step of summed layers",
                _effects(step=_step_of_sums),
                "the third number adds the layers up first: each layer waits for its own hottest rank",
            ),
        ),
        result="a list [FLOPs, reads, step]",
    ),
)
