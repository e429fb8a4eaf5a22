"""Lab 02, prefill against decode: floors, utilisations, honest statistics, and a benchmark that lies."""

import itertools
import math
import random
import statistics

from helpers.lab.exercise import Exercise, Mistake


def prefill_floor_s(
    active_params: float, prompt_tokens: int, bytes_per_param: float, flops_per_s: float, bytes_per_s: float
) -> float:
    """Least seconds of a prefill: max(2 · P · N / FLOP/s, P · bytes per parameter / bytes/s)."""
    compute_s = 2 * active_params * prompt_tokens / flops_per_s
    memory_s = active_params * bytes_per_param / bytes_per_s
    return max(compute_s, memory_s)


def mfu(active_params: float, tokens: int, seconds: float, peak_flops_per_s: float) -> float:
    """Model FLOPs utilisation: 2 · P · tokens / seconds / peak, a share; above 1 the peak or the timing is wrong."""
    return 2 * active_params * tokens / seconds / peak_flops_per_s


def mbu(
    weight_bytes: int, kv_bytes_per_token: int, context: int, batch: int, step_seconds: float, peak_bytes_per_s: float
) -> float:
    """Model bandwidth utilisation of a decode step: (weights + batch · context · KV per token) / seconds / peak."""
    moved = weight_bytes + batch * context * kv_bytes_per_token
    return moved / step_seconds / peak_bytes_per_s


def median_and_iqr(samples_ms: list[float], warmup: int) -> list[float]:
    """[median, IQR] in ms of the samples without the first `warmup` of them."""
    q1, median, q3 = statistics.quantiles(samples_ms[warmup:], n=4, method="inclusive")
    return [median, q3 - q1]


def batch_where_compute_binds(
    active_params: float, weight_bytes: int, kv_bytes_per_sequence: int, flops_per_s: float, bytes_per_s: float
) -> float:
    """Smallest whole batch whose decode step computes at least as long as it reads; math.inf where none does."""
    compute_s_per_row = 2 * active_params / flops_per_s
    kv_s_per_row = kv_bytes_per_sequence / bytes_per_s
    if compute_s_per_row <= kv_s_per_row:
        return math.inf
    return math.ceil(weight_bytes / bytes_per_s / (compute_s_per_row - kv_s_per_row))


def quadratic_share(active_params: float, layers: int, heads: int, head_dim: int, prompt_tokens: int) -> float:
    """Attention FLOPs of a causal prefill over its linear ones: 4·L·H·D·N(N+1)/2 / (2·P·N)."""
    pairs = prompt_tokens * (prompt_tokens + 1) / 2
    return 4 * layers * heads * head_dim * pairs / (2 * active_params * prompt_tokens)


def score_matrix_bytes(batch: int, heads: int, kv_heads: int, layers: int, tokens: int, bytes_per_score: int) -> int:
    """Bytes of the score matrices naive attention holds at once: one layer, batch · heads · N · N numbers."""
    return batch * heads * tokens * tokens * bytes_per_score


def tpot_ms(runs: list[dict]) -> float:
    """Median over the runs but the first of (last − first token done) / (tokens − 1), in ms."""
    per_run = [(run["done_s"][-1] - run["done_s"][0]) / (len(run["done_s"]) - 1) for run in runs[1:]]
    return statistics.median(per_run) * 1e3


# Wrong answers that take more than an expression.


def _prefill_sum(active_params, prompt_tokens, bytes_per_param, flops_per_s, bytes_per_s):
    return 2 * active_params * prompt_tokens / flops_per_s + active_params * bytes_per_param / bytes_per_s


def _prefill_without_2(active_params, prompt_tokens, bytes_per_param, flops_per_s, bytes_per_s):
    return max(active_params * prompt_tokens / flops_per_s, active_params * bytes_per_param / bytes_per_s)


def _prefill_weights_per_token(active_params, prompt_tokens, bytes_per_param, flops_per_s, bytes_per_s):
    memory_s = prompt_tokens * active_params * bytes_per_param / bytes_per_s
    return max(2 * active_params * prompt_tokens / flops_per_s, memory_s)


def _median_and(spread):
    def wrong(samples_ms, warmup):
        kept = samples_ms[warmup:]
        return [statistics.median(kept), spread(kept)]

    return wrong


def _exclusive_iqr(samples):
    q1, _, q3 = statistics.quantiles(samples, n=4)
    return q3 - q1


def _iqr(samples):
    q1, _, q3 = statistics.quantiles(samples, n=4, method="inclusive")
    return q3 - q1


def _batch(active_params, weight_bytes, kv_bytes_per_sequence, flops_per_s, bytes_per_s, rounding=math.ceil, factor=2):
    net_s = factor * active_params / flops_per_s - kv_bytes_per_sequence / bytes_per_s
    return math.inf if net_s <= 0 else rounding(weight_bytes / bytes_per_s / net_s)


def _batch_else(instead):
    """Right where a batch exists, `instead(...)` where there is none."""

    def wrong(*case):
        batch = batch_where_compute_binds(*case)
        return instead(*case) if batch == math.inf else batch

    return wrong


def _batch_solved_anyway(active_params, weight_bytes, kv_bytes_per_sequence, flops_per_s, bytes_per_s):
    return math.ceil(
        weight_bytes / bytes_per_s / (2 * active_params / flops_per_s - kv_bytes_per_sequence / bytes_per_s)
    )


def _batch_plus(active_params, weight_bytes, kv_bytes_per_sequence, flops_per_s, bytes_per_s):
    return math.ceil(
        weight_bytes / bytes_per_s / (2 * active_params / flops_per_s + kv_bytes_per_sequence / bytes_per_s)
    )


def _batch_kv_once(active_params, weight_bytes, kv_bytes_per_sequence, flops_per_s, bytes_per_s):
    return math.ceil((weight_bytes + kv_bytes_per_sequence) / bytes_per_s / (2 * active_params / flops_per_s))


def _tpot(per_run, *, skip=1, clock="done_s", middle=statistics.median, unit=1e3):
    def wrong(runs):
        return middle([per_run(run["sent_s"], run[clock]) for run in runs[skip:]]) * unit

    return wrong


def _tpot_pooled(runs):
    return statistics.median(b - a for run in runs[1:] for a, b in itertools.pairwise(run["done_s"])) * 1e3


def _tpot_slowest_dropped(runs):
    return statistics.median(sorted(_gap(None, run["done_s"]) for run in runs)[:-1]) * 1e3


def _tpot_of_the_colleague(runs):
    return sum((run["returned_s"][-1] - run["sent_s"]) / len(run["returned_s"]) for run in runs) / len(runs)


def _upper_median(values):
    return sorted(values)[len(values) // 2]


def _gap(sent, times):
    return (times[-1] - times[0]) / (len(times) - 1)


# Random cases.


def _prefill_case(rng: random.Random) -> tuple:
    return (
        rng.uniform(1e8, 1e11),
        rng.choice((1, 4, 30, 500, 8000)),
        rng.choice((1, 2, 4)),
        rng.uniform(1e11, 1e15),
        rng.uniform(1e10, 5e12),
    )


def _mfu_case(rng: random.Random) -> tuple:
    params, tokens, peak = rng.uniform(1e8, 1e11), rng.randrange(100, 10**5), rng.uniform(1e14, 2e15)
    # Never faster than the peak, as on a real machine: a share above 1 has a written case of its own.
    return params, tokens, 2 * params * tokens / peak / rng.uniform(0.1, 0.9), peak


def _mbu_case(rng: random.Random) -> tuple:
    batch, context, kv = rng.randrange(2, 100), rng.randrange(100, 10**4), rng.choice((46_080, 131_072, 327_680))
    weights, peak = rng.randrange(10**9, 10**11), rng.uniform(1e12, 5e12)
    floor_s = (weights + batch * context * kv) / peak
    return weights, kv, context, batch, floor_s / rng.uniform(0.1, 0.9), peak


def _samples_case(rng: random.Random) -> tuple:
    warmup = rng.randrange(1, 4)
    slow = [round(rng.uniform(200, 900), 1) for _ in range(warmup)]
    steady = [round(rng.uniform(38, 45), 2) for _ in range(rng.randrange(7, 15))]
    # Sometimes slower than every warm-up call: what is dropped is the first, not the slowest.
    steady[rng.randrange(1, len(steady) - 1)] = round(rng.uniform(90, 1500), 1)
    return slow + steady, warmup


def _batch_case(rng: random.Random) -> tuple:
    params = rng.uniform(1e9, 1e11)
    return params, int(params * rng.choice((1, 2))), rng.randrange(10**6, 10**8), rng.uniform(1e14, 1e15), 3.35e12


def _quadratic_case(rng: random.Random) -> tuple:
    heads, head_dim, layers = rng.choice((9, 32, 64)), rng.choice((64, 128)), rng.randrange(16, 90)
    return rng.uniform(1e8, 1e11), layers, heads, head_dim, rng.randrange(100, 10**5)


def _score_case(rng: random.Random) -> tuple:
    kv_heads = rng.choice((2, 3, 8))
    heads = kv_heads * rng.choice((2, 4, 8))
    return rng.randrange(2, 9), heads, kv_heads, rng.randrange(10, 90), rng.randrange(100, 10**5), rng.choice((2, 4))


def _run(rng: random.Random, slow: float) -> dict:
    sent, first, gap = rng.uniform(0, 100), rng.uniform(0.2, 0.9) * slow, rng.uniform(0.02, 0.05) * slow
    count = rng.randrange(5, 12)
    done = [sent + first + i * gap + rng.uniform(0, gap / 4) for i in range(count)]
    returned = [sent + 0.001 + i * gap / 10 + rng.uniform(0, gap / 50) for i in range(count)]
    return {
        "sent_s": round(sent, 4),
        "returned_s": [round(t, 4) for t in returned],
        "done_s": [round(t, 4) for t in done],
    }


def _runs_case(rng: random.Random) -> tuple:
    # An even number is left after the warm-up run, so that a median taken by index shows.
    return ([_run(rng, 4.0), *(_run(rng, 1.0) for _ in range(rng.choice((4, 6))))],)


_WARM = {"sent_s": 1.0, "returned_s": [1.01, 1.02, 1.03], "done_s": [1.4, 1.44, 1.48]}
_COLD = {"sent_s": 0.0, "returned_s": [0.01, 0.02, 0.03], "done_s": [0.9, 1.3, 1.5]}
_LATE = {"sent_s": 2.0, "returned_s": [2.01, 2.02, 2.03, 2.04], "done_s": [2.4, 2.45, 2.5, 2.55]}
_SLOW = {"sent_s": 3.0, "returned_s": [3.01, 3.02, 3.03], "done_s": [3.4, 3.5, 3.6]}

# Slower than the first run: the slowest run and the one to leave out are not the same.
_STUCK = {"sent_s": 4.0, "returned_s": [4.01, 4.02, 4.03], "done_s": [4.4, 5.0, 5.7]}


EXERCISES = (
    Exercise(
        id="2.1",
        title="The floor under a TTFT",
        minutes=5,
        difficulty=2,
        why="a TTFT can only be called slow next to the least time that the machine needs for that prompt.",
        hints=(
            "Compute two times: how long the FLOPs take at the peak, how long reading the weights once takes.",
            "One token costs 2 FLOPs per active parameter. With perfect overlap the longer of the two times remains.",
        ),
        reference=prefill_floor_s,
        cases=(
            (7.5e9, 2048, 2, 989e12, 3.35e12),
            (7.5e9, 16, 2, 989e12, 3.35e12),
            (7.5e9, 200, 2, 989e12, 3.35e12),
            (106e6, 512, 4, 100e9, 20e9),
        ),
        random_case=_prefill_case,
        mistakes=(
            Mistake(
                "factor 2", _prefill_without_2, "one parameter costs 2 FLOPs a token, a multiplication and an addition"
            ),
            Mistake(
                "sum", _prefill_sum, "computing and reading overlap: the floor is the longer of the two, not their sum"
            ),
            Mistake(
                "compute alone",
                lambda params, tokens, size, flops, bandwidth: 2 * params * tokens / flops,
                "a short prompt still has to read all the weights: compare with the reading time",
            ),
            Mistake(
                "reading alone",
                lambda params, tokens, size, flops, bandwidth: params * size / bandwidth,
                "a long prompt computes for longer than it reads: compare with the computing time",
            ),
            Mistake(
                "the shorter",
                lambda params, tokens, size, flops, bandwidth: min(
                    2 * params * tokens / flops, params * size / bandwidth
                ),
                "this is the shorter of the two times: the pass ends when the longer one does",
            ),
            Mistake(
                "parameters for bytes",
                lambda params, tokens, size, flops, bandwidth: max(2 * params * tokens / flops, params / bandwidth),
                "parameters are no bytes: each takes `bytes_per_param` of them",
            ),
            Mistake(
                "bytes for FLOPs",
                lambda params, tokens, size, flops, bandwidth: max(
                    size * params * tokens / flops, params * size / bandwidth
                ),
                "the FLOPs do not depend on the bytes of a parameter: 2 a token, a multiplication and an addition",
            ),
            Mistake(
                "weights per token",
                _prefill_weights_per_token,
                "the weights are read once for the whole prompt, not once per token: that is what prefill gains",
            ),
            Mistake(
                "milliseconds",
                lambda *case: prefill_floor_s(*case) * 1e3,
                "these are milliseconds: the exercise asks for seconds",
            ),
        ),
        unit="seconds",
    ),
    Exercise(
        id="2.2",
        title="MFU from a timing",
        minutes=4,
        difficulty=1,
        why="it says how much of the compute you pay for does work: the number to ask for when a prefill is slow.",
        hints=(
            "First the FLOP/s that were achieved, then their share of the peak.",
            "The work is the model's (2 · P · tokens), not what some kernel happened to compute.",
        ),
        reference=mfu,
        # The last one is faster than its peak: such a number is to be seen, not cut off.
        cases=((7.5e9, 2048, 0.055, 989e12), (106e6, 512, 1.3, 100e9), (106e6, 512, 0.8, 100e9)),
        random_case=_mfu_case,
        mistakes=(
            Mistake(
                "factor 2",
                lambda params, tokens, seconds, peak: params * tokens / seconds / peak,
                "half of the FLOPs are missing: a multiplication and an addition for each parameter and token",
            ),
            Mistake(
                "per cent",
                lambda *case: 100 * mfu(*case),
                "these are per cent: 45 % is a share of 0.45",
            ),
            Mistake(
                "inverted",
                lambda *case: 1 / mfu(*case),
                "this is the peak over what was achieved, upside down",
            ),
            Mistake(
                "one token",
                lambda params, tokens, seconds, peak: 2 * params / seconds / peak,
                "this is the work of one token: the pass computed all of them",
            ),
            Mistake(
                "cut off at 1",
                lambda *case: min(1, mfu(*case)),
                "do not cut it off at 1: more than 1 says that the peak or the timing is wrong, and that must be seen",
            ),
            Mistake(
                "no peak",
                lambda params, tokens, seconds, peak: 2 * params * tokens / seconds,
                "these are the FLOP/s achieved: the MFU is their share of the peak",
            ),
            Mistake(
                "no seconds",
                lambda params, tokens, seconds, peak: 2 * params * tokens / peak,
                "these are the seconds it takes at the peak: the MFU is their share of the measured seconds",
            ),
            Mistake(
                "times seconds",
                lambda params, tokens, seconds, peak: 2 * params * tokens * seconds / peak,
                "work is divided by the seconds, not multiplied by them",
            ),
            Mistake(
                "milliseconds",
                lambda *case: 1000 * mfu(*case),
                "`seconds` are seconds already: no factor of 1000",
            ),
        ),
    ),
    Exercise(
        id="2.3",
        title="MBU, KV cache included",
        minutes=5,
        difficulty=2,
        why="decode is judged by the bytes it moves; with many users the KV cache is the larger part of them.",
        hints=(
            "What is read once per step, and what is read once per sequence?",
            "Weights once; the KV cache of every sequence, over its whole context.",
        ),
        reference=mbu,
        cases=(
            (16_060_522_496, 131_072, 8192, 16, 0.0146, 3.35e12),
            (16_060_522_496, 131_072, 1024, 1, 0.0069, 3.35e12),
            (538_060_032, 46_080, 512, 4, 0.06, 20e9),
        ),
        random_case=_mbu_case,
        mistakes=(
            Mistake(
                "KV forgotten",
                lambda weights, kv, context, batch, seconds, peak: weights / seconds / peak,
                "the KV cache is read too, at every step",
            ),
            Mistake(
                "one sequence",
                lambda weights, kv, context, batch, seconds, peak: (weights + context * kv) / seconds / peak,
                "this reads the KV cache of one sequence: every sequence of the batch has its own",
            ),
            Mistake(
                "weights per sequence",
                lambda weights, kv, context, batch, seconds, peak: batch * (weights + context * kv) / seconds / peak,
                "the weights are read once per step and shared by the batch: do not multiply them",
            ),
            Mistake(
                "context forgotten",
                lambda weights, kv, context, batch, seconds, peak: (weights + batch * kv) / seconds / peak,
                "this is the KV cache of one token: a new token reads those of the whole context",
            ),
            Mistake("per cent", lambda *case: 100 * mbu(*case), "these are per cent: as a share 45 % is 0.45"),
            Mistake("inverted", lambda *case: 1 / mbu(*case), "this is the peak over what was achieved, upside down"),
            Mistake(
                "keys and values twice",
                lambda weights, kv, *rest: mbu(weights, 2 * kv, *rest),
                "`kv_bytes_per_token` holds keys and values already: no further factor of 2",
            ),
            Mistake(
                "weights forgotten",
                lambda weights, *rest: mbu(0, *rest),
                "the weights are read too, once at every step",
            ),
            Mistake(
                "no peak",
                lambda *case: mbu(*case) * case[-1],
                "these are the bytes/s achieved: the MBU is their share of the peak",
            ),
            Mistake(
                "one token short",
                lambda weights, kv, context, *rest: mbu(weights, kv, context - 1, *rest),
                "`context` tokens are in the cache, and the step reads all of them",
            ),
        ),
    ),
    Exercise(
        id="2.4",
        title="Median and IQR, warm-up dropped",
        minutes=5,
        difficulty=2,
        why="one first call and one neighbour on the machine are enough to make a mean useless.",
        hints=(
            "Drop the first `warmup` samples with a slice; leave the list itself as it is.",
            '`statistics.quantiles(samples, n=4, method="inclusive")` returns the three quartiles.',
        ),
        reference=median_and_iqr,
        cases=(
            ([812.0, 44.1, 41.9, 42.3, 97.0, 42.0, 41.8, 42.6, 42.2], 1),
            ([250.0, 90.0, 40.0, 41.0, 42.0, 43.0, 44.0, 160.0], 2),
            ([58.0, 44.0, 97.0, 42.0, 41.0, 99.0, 43.0], 1),
        ),
        random_case=_samples_case,
        mistakes=(
            Mistake(
                "warm-up kept",
                lambda samples, warmup: median_and_iqr(samples, 0),
                "the warm-up calls are still in it: drop the first ones",
            ),
            Mistake(
                "dropped at the end",
                lambda samples, warmup: median_and_iqr(samples[:-warmup], 0),
                "you dropped the last samples: the warm-up comes first",
            ),
            Mistake(
                "mean",
                lambda samples, warmup: [statistics.mean(samples[warmup:]), _iqr(samples[warmup:])],
                "the first number is the mean: one disturbed sample moves it, the median stays",
            ),
            Mistake(
                "range",
                _median_and(lambda kept: max(kept) - min(kept)),
                "the second number is the whole range: the IQR leaves out the lowest and the highest quarter",
            ),
            Mistake(
                "standard deviation",
                _median_and(statistics.stdev),
                "the second number is the standard deviation: the IQR is the third quartile minus the first",
            ),
            Mistake(
                "slowest dropped",
                lambda samples, warmup: median_and_iqr(sorted(samples)[:-warmup], 0),
                "you dropped the slowest samples: the warm-up is what came first, and no other sample may go",
            ),
            Mistake(
                "sorted first",
                lambda samples, warmup: median_and_iqr(sorted(samples), warmup),
                "you sorted before you dropped, so the fastest samples went: drop the warm-up first",
            ),
            Mistake(
                "exclusive",
                _median_and(_exclusive_iqr),
                'the quartiles are those of method="exclusive", the default: the exercise asks for "inclusive"',
            ),
            Mistake(
                "swapped",
                lambda *case: median_and_iqr(*case)[::-1],
                "the order is the other way round: the median first",
            ),
            Mistake(
                "median by index",
                lambda samples, warmup: [_upper_median(samples[warmup:]), _iqr(samples[warmup:])],
                "with an even number of samples the median lies halfway between the two in the middle",
            ),
            Mistake(
                "spread of all",
                lambda samples, warmup: [statistics.median(samples[warmup:]), _iqr(samples)],
                "the median is right, the IQR still has the warm-up in it",
            ),
            Mistake(
                "median of all",
                lambda samples, warmup: [statistics.median(samples), _iqr(samples[warmup:])],
                "the IQR is right, the median still has the warm-up in it",
            ),
        ),
        unit="ms",
        result="a list [median, IQR]",
    ),
    Exercise(
        id="2.5",
        title="The batch where compute binds",
        minutes=10,
        difficulty=4,
        why="up to this batch a further user adds only the reading of a KV cache; with long contexts none is enough.",
        hints=(
            "Write both times as functions of the batch B: compute B · 2P / FLOP/s, reading (W + B · KV) / bytes/s.",
            "Set them equal and solve for B. A batch is a whole number, and compute must last at least as long.",
            "Where reading one KV cache lasts as long as computing one token, or longer, no batch will do.",
        ),
        reference=batch_where_compute_binds,
        cases=(
            (7.5e9, 16_060_522_496, 0, 989e12, 3.35e12),
            (7.5e9, 16_060_522_496, 33_554_432, 989e12, 3.35e12),
            (7.5e9, 16_060_522_496, 1_073_741_824, 989e12, 3.35e12),
            (7.5e9, 16_060_522_496, 50_400_000, 989e12, 3.35e12),
            # Powers of two, exact in floating point whatever the order: computing lasts exactly as long as reading at
            # batch 1024; and one token computes exactly as long as its KV cache is read, so at no batch.
            (2**30, 2**31, 2**21, 2**50, 2**41),
            (2**30, 2**31, 2**22, 2**50, 2**41),
        ),
        random_case=_batch_case,
        mistakes=(
            Mistake(
                "KV forgotten",
                lambda params, weights, kv, flops, bandwidth: _batch(params, weights, 0, flops, bandwidth),
                "every further sequence brings its own KV cache to read: reading grows with the batch too",
            ),
            Mistake(
                "one KV cache",
                _batch_kv_once,
                "this reads one KV cache in all: there is one for each sequence of the batch",
            ),
            Mistake(
                "rounded down",
                lambda *case: _batch(*case, rounding=lambda x: x if x == math.inf else math.floor(x)),
                "rounded down, reading still lasts longer: the first whole batch is the next one up",
            ),
            Mistake(
                "factor 2",
                lambda *case: _batch(*case, factor=1),
                "one token costs 2 FLOPs per parameter: with half of them the batch comes out too large",
            ),
            Mistake(
                "not whole",
                lambda *case: _batch(*case, rounding=lambda x: x),
                "a batch is a whole number: take the next one up",
            ),
            Mistake(
                "one more",
                lambda *case: _batch(*case, rounding=lambda x: math.floor(x) + 1),
                "where both times are equal at a whole batch, that batch is the answer: compute lasts as long there",
            ),
            Mistake(
                "rounded to the nearest",
                lambda *case: _batch(*case, rounding=round),
                "rounded to the nearest, reading may still last longer: take the next whole batch up",
            ),
            Mistake(
                "zero for none",
                _batch_else(lambda *case: 0),
                "where no batch will do, return math.inf, not 0",
            ),
            Mistake(
                "minus one for none",
                _batch_else(lambda *case: -1),
                "where no batch will do, return math.inf, not -1",
            ),
            Mistake(
                "solved anyway",
                _batch_solved_anyway,
                "where a KV cache takes longer to read than a token to compute, the equation has no positive batch: "
                "return math.inf",
            ),
            Mistake(
                "plus",
                _batch_plus,
                "the KV cache adds to the reading, so on the side of computing it is subtracted",
            ),
            Mistake(
                "ridge point",
                lambda params, weights, kv, flops, bandwidth: math.ceil(flops / bandwidth),
                "this is the ridge point, FLOPs per byte: the bytes of the weights and the KV cache are missing",
            ),
        ),
        unit="sequences",
    ),
    Exercise(
        id="2.6",
        title="The quadratic share of a prefill",
        minutes=6,
        difficulty=3,
        why="it tells from which prompt length on a TTFT grows faster than the prompt.",
        hints=(
            "Token i attends to i tokens, itself included: sum that up over the prompt.",
            "One query and one key cost 4 · heads · head_dim FLOPs a layer: half for the score, half for the value.",
        ),
        reference=quadratic_share,
        cases=((7.5e9, 32, 32, 128, 8192), (7.5e9, 32, 32, 128, 131_072), (106e6, 30, 9, 64, 4096)),
        random_case=_quadratic_case,
        mistakes=(
            Mistake(
                "not causal",
                lambda params, layers, heads, dim, n: 4 * layers * heads * dim * n * n / (2 * params * n),
                "this lets every token attend to all N: a causal prompt has N(N+1)/2 pairs",
            ),
            Mistake(
                "scores alone",
                lambda *case: quadratic_share(*case) / 2,
                "half is missing: the scores are one product, weighing the values is the other",
            ),
            Mistake(
                "one layer",
                lambda params, layers, heads, dim, n: quadratic_share(params, 1, heads, dim, n),
                "this is the attention of one layer: there are `layers` of them",
            ),
            Mistake(
                "share of all",
                lambda *case: quadratic_share(*case) / (1 + quadratic_share(*case)),
                "this is the share of the whole: asked for is attention over the linear term",
            ),
            Mistake(
                "one decode step",
                lambda params, layers, heads, dim, n: 4 * layers * heads * dim * n / (2 * params * n),
                "this is the attention of the last token alone: sum it up over the prompt",
            ),
            Mistake(
                "N²/2",
                lambda params, layers, heads, dim, n: layers * heads * dim * n / params,
                "N²/2 is close for long prompts, but exactly it is N(N+1)/2 pairs: a token attends to itself too",
            ),
            Mistake(
                "not to itself",
                lambda params, layers, heads, dim, n: layers * heads * dim * (n - 1) / params,
                "N(N-1)/2 leaves out that a token attends to itself: it is N(N+1)/2 pairs",
            ),
            Mistake(
                "linear term without 2",
                lambda *case: 2 * quadratic_share(*case),
                "the linear term is 2 · P · N FLOPs, with the 2",
            ),
            Mistake(
                "per cent",
                lambda *case: 100 * quadratic_share(*case),
                "these are per cent: the exercise asks for a ratio",
            ),
            Mistake(
                "inverted",
                lambda *case: 1 / quadratic_share(*case),
                "this is the linear term over attention, upside down",
            ),
            Mistake(
                "not over the linear term",
                lambda params, layers, heads, dim, n: 2 * layers * heads * dim * n * (n + 1),
                "these are the FLOPs of attention: divide them by those of the linear term",
            ),
            Mistake(
                "linear term of one token",
                lambda params, layers, heads, dim, n: n * quadratic_share(params, layers, heads, dim, n),
                "the linear term is that of all N tokens, not of one",
            ),
        ),
    ),
    Exercise(
        id="2.7",
        title="What naive attention holds",
        minutes=4,
        difficulty=2,
        why="it is why long prompts ran out of memory before fused kernels, and still do where those are off.",
        hints=(
            "Each query head of each sequence holds one number for every pair of tokens.",
            "Layers run one after the other: the scores of a layer are gone before the next one begins.",
        ),
        reference=score_matrix_bytes,
        cases=((1, 32, 8, 32, 8192, 2), (4, 9, 3, 30, 2048, 4)),
        random_case=_score_case,
        mistakes=(
            Mistake(
                "kv heads",
                lambda batch, heads, kv, layers, n, size: batch * kv * n * n * size,
                "grouped-query attention shares keys, not scores: every query head has its own",
            ),
            Mistake(
                "all layers",
                lambda batch, heads, kv, layers, n, size: batch * heads * layers * n * n * size,
                "layers run one after the other: only one layer's scores are held at a time",
            ),
            Mistake(
                "linear",
                lambda batch, heads, kv, layers, n, size: batch * heads * n * size,
                "this is one row of scores: there is one for each of the N queries",
            ),
            Mistake(
                "one sequence",
                lambda batch, heads, kv, layers, n, size: heads * n * n * size,
                "every sequence of the batch has its own scores",
            ),
            Mistake(
                "half",
                lambda batch, heads, kv, layers, n, size: batch * heads * n * (n + 1) // 2 * size,
                "the mask hides the upper half, but naive attention computes and keeps it all the same",
            ),
            Mistake(
                "half of N²",
                lambda batch, heads, kv, layers, n, size: batch * heads * n * n * size / 2,
                "naive attention computes the half under the mask too, and keeps it",
            ),
            Mistake(
                "numbers",
                lambda batch, heads, kv, layers, n, size: batch * heads * n * n,
                "this counts the scores: each takes `bytes_per_score` bytes",
            ),
            Mistake(
                "one head",
                lambda batch, heads, kv, layers, n, size: batch * n * n * size,
                "this is one head: every query head has its own scores",
            ),
            Mistake(
                "queries per KV head",
                lambda batch, heads, kv, layers, n, size: batch * heads // kv * n * n * size,
                "the number of KV heads plays no part: every query head has its own scores",
            ),
            Mistake(
                "batch as tokens",
                lambda batch, heads, kv, layers, n, size: heads * (batch * n) ** 2 * size,
                "a token attends to its own sequence only: the batch is a factor and not squared",
            ),
        ),
        unit="bytes",
    ),
    Exercise(
        id="2.8",
        title="Find the bugs in a benchmark",
        minutes=12,
        difficulty=4,
        why="each of these bugs has been published with a bar chart on top.",
        hints=(
            "Which of the two clocks tells when a token existed? A call may return before the device is done.",
            "The first token is the prefill's. n tokens have n − 1 gaps between them.",
            "The first run pays for start-up once: leave it out. Then the median over the runs, and the unit.",
        ),
        reference=tpot_ms,
        cases=(([_COLD, _WARM, _LATE, _SLOW],), ([_COLD, _SLOW, _WARM],), ([_COLD, _WARM, _STUCK],)),
        random_case=_runs_case,
        mistakes=(
            Mistake(
                "not synchronised",
                _tpot(_gap, clock="returned_s"),
                "`returned_s` is when the call came back: the device was still computing, use `done_s`",
            ),
            Mistake(
                "first run counted",
                _tpot(_gap, skip=0),
                "the first run is still in it: it paid for start-up",
            ),
            Mistake(
                "prefill counted",
                _tpot(lambda sent, times: (times[-1] - sent) / len(times)),
                "the time until the first token is the prefill: start the clock at the first token",
            ),
            Mistake(
                "tokens for gaps",
                _tpot(lambda sent, times: (times[-1] - times[0]) / len(times)),
                "between n tokens there are n − 1 gaps",
            ),
            Mistake(
                "mean",
                _tpot(_gap, middle=statistics.mean),
                "this is the mean over the runs: one disturbed run moves it",
            ),
            Mistake(
                "pooled gaps",
                _tpot_pooled,
                "this is the median of all gaps together: take one TPOT for each run, then the median of those",
            ),
            Mistake("seconds", _tpot(_gap, unit=1), "these are seconds: the exercise asks for milliseconds"),
            Mistake(
                "slowest run dropped",
                _tpot_slowest_dropped,
                "you dropped the slowest run: the one that does not count is the first, whatever it took",
            ),
            Mistake(
                "median by index",
                _tpot(_gap, middle=_upper_median),
                "with an even number of runs the median lies halfway between the two in the middle",
            ),
            Mistake(
                "prefill counted, gaps right",
                _tpot(lambda sent, times: (times[-1] - sent) / (len(times) - 1)),
                "n − 1 is right, but the clock still starts at `sent_s`: start it at the first token",
            ),
            Mistake(
                "one gap too few",
                _tpot(lambda sent, times: (times[-1] - times[1]) / (len(times) - 2)),
                "the first gap belongs to decode: leave out the first token's wait, not the gap after it",
            ),
            Mistake(
                "median of each run's gaps",
                _tpot(lambda sent, times: statistics.median(b - a for a, b in itertools.pairwise(times))),
                "this takes the median of a run's gaps: a run's TPOT is (last − first token) ÷ (tokens − 1)",
            ),
            Mistake(
                "the colleague's",
                _tpot_of_the_colleague,
                "these are the colleague's numbers: nothing is mended yet",
            ),
            Mistake(
                "the colleague's in ms",
                lambda runs: 1e3 * _tpot_of_the_colleague(runs),
                "the unit is mended, the other bugs are not",
            ),
        ),
        unit="ms",
    ),
)
