"""Lab 06, the self-test: ratio to the floor, broken identities, what a queue waits for, price, the deciding test, and
three anonymous services to diagnose."""

import math
import random
from collections.abc import Callable, Mapping, Sequence

from helpers.lab import services
from helpers.lab.exercise import Exercise, Mistake

# 6.1: a measurement beside its floor.


def against_floor(measured_ms: float, flops: float, size_bytes: float, peak: float, bandwidth: float) -> list:
    """Measured time over the roofline's floor, and the account that sets the floor."""
    compute_s, memory_s = flops / peak, size_bytes / bandwidth
    ratio = measured_ms / 1e3 / max(compute_s, memory_s)
    return [ratio, "compute" if compute_s >= memory_s else "bandwidth"]


def _floor(seconds: Callable[[float, float], float], scale: float = 1e-3) -> Callable:
    """`against_floor` with another floor, made of compute and memory seconds."""

    def wrong(measured_ms, flops, size_bytes, peak, bandwidth):
        binds = against_floor(measured_ms, flops, size_bytes, peak, bandwidth)[1]
        return [measured_ms * scale / seconds(flops / peak, size_bytes / bandwidth), binds]

    return wrong


def _inverted(measured_ms, flops, size_bytes, peak, bandwidth):
    ratio, binds = against_floor(measured_ms, flops, size_bytes, peak, bandwidth)
    return [1 / ratio, binds]


def _binds_swapped(measured_ms, flops, size_bytes, peak, bandwidth):
    ratio, binds = against_floor(measured_ms, flops, size_bytes, peak, bandwidth)
    return [ratio, "bandwidth" if binds == "compute" else "compute"]


def _always(word: str) -> Callable:
    return lambda *arguments: [against_floor(*arguments)[0], word]


def _floor_case(rng: random.Random) -> tuple:
    peak, bandwidth = rng.choice(((989e12, 3.35e12), (362e12, 0.864e12), (0.4e12, 20e9)))
    flops, size_bytes = rng.uniform(0.01, 2) * peak, rng.uniform(0.01, 2) * bandwidth
    floor_s = max(flops / peak, size_bytes / bandwidth)
    return (1e3 * floor_s * rng.uniform(1.1, 9), flops, size_bytes, peak, bandwidth)


# 6.2: numbers that cannot all be right.


def broken_identities(report: Mapping) -> list[str]:
    """Names of the identities that a report breaks, in the order e2e, little, floor, server."""
    tokens, e2e_ms = report["output_tokens"], report["e2e_ms"]
    built_ms = report["ttft_ms"] + (tokens - 1) * report["tpot_ms"]
    under_way = report["requests_per_s"] * e2e_ms / 1e3
    checks = {
        "e2e": abs(built_ms - e2e_ms) > 0.1 * e2e_ms,
        "little": abs(under_way - report["concurrency"]) > 0.1 * report["concurrency"],
        "floor": report["tpot_ms"] < report["tpot_floor_ms"],
        "server": report["server_ttft_ms"] > report["ttft_ms"],
    }
    return [name for name, broken in checks.items() if broken]


def _identities(**parts: Callable[[Mapping], bool]) -> Callable:
    """`broken_identities` with other rules for some of the four."""

    def wrong(report):
        right = broken_identities(report)
        names = ("e2e", "little", "floor", "server")
        return [n for n in names if (parts[n](report) if n in parts else n in right)]

    return wrong


def _off(value: float, wanted: float, tolerance: float = 0.1) -> bool:
    return abs(value - wanted) > tolerance * wanted


def _built(r: Mapping, gaps: int = 1) -> float:
    return r["ttft_ms"] + (r["output_tokens"] - gaps) * r["tpot_ms"]


def _under_way(r: Mapping) -> float:
    return r["requests_per_s"] * r["e2e_ms"] / 1e3


def _one_sided(sign: int, *names: str) -> Callable:
    """`broken_identities` in which some differences are compared without `abs`."""
    differences = {
        "e2e": lambda r: (_built(r) - r["e2e_ms"], r["e2e_ms"]),
        "little": lambda r: (_under_way(r) - r["concurrency"], r["concurrency"]),
    }

    def part(name):
        def broken(report):
            difference, wanted = differences[name](report)
            return sign * difference > 0.1 * wanted

        return broken

    return _identities(**{name: part(name) for name in names})


def _only(name: str) -> Callable:
    return lambda report: [n for n in broken_identities(report) if n == name]


def _report(**changes) -> dict:
    """A report in which all holds, of an answer of 21 tokens at concurrency 8, with some numbers changed after that."""
    report = {"concurrency": 8, "output_tokens": 21, "ttft_ms": 300.0, "tpot_ms": 25.0, "tpot_floor_ms": 12.0}
    report["server_ttft_ms"] = 280.0
    report |= {name: value for name, value in changes.items() if name in report}
    report["e2e_ms"] = report["ttft_ms"] + (report["output_tokens"] - 1) * report["tpot_ms"]
    report["requests_per_s"] = report["concurrency"] / report["e2e_ms"] * 1e3
    return report | changes


def _report_case(rng: random.Random) -> tuple:
    ttft, tpot = rng.uniform(50, 900), rng.uniform(10, 60)
    report = _report(
        concurrency=rng.randrange(1, 64),
        output_tokens=rng.randrange(8, 300),
        ttft_ms=ttft,
        tpot_ms=tpot,
        tpot_floor_ms=tpot * rng.choice((0.3, 0.9, 1.2)),
        server_ttft_ms=ttft * rng.choice((0.4, 0.95, 1.1)),
    )
    report["requests_per_s"] *= rng.choice((1.0, 1.05, 0.8, 1.4))
    if rng.random() < 0.4:
        report["ttft_ms"] = report["ttft_ms"] + report["e2e_ms"] * rng.choice((0.04, 0.2))
        report["server_ttft_ms"] = min(report["server_ttft_ms"], report["ttft_ms"])
    return (report,)


# 6.3: what a queue waits for.

RESOURCES = ("no queue", "the cap", "KV memory", "prefill compute", "step time", "cannot tell")


def queue_waits_for(seen: Mapping) -> str:
    """The resource that a queue waits for, by the tests of `RESOURCES` in order."""
    if seen["waiting"] == 0:
        return "no queue"
    if seen["running"] == seen["cap"]:
        return "the cap"
    if seen["kv_share"] >= 0.95:
        return "KV memory"
    if seen["prompt_tokens_per_s"] >= 0.9 * seen["prefill_capacity"]:
        return "prefill compute"
    if seen["tpot_ms"] > 2.5 * seen["tpot_floor_ms"]:
        return "step time"
    return "cannot tell"


def _queue(**instead: str) -> Callable:
    """`queue_waits_for` that says one word in place of another."""
    words = {name.replace("_", " "): word for name, word in instead.items()}
    return lambda seen: words.get(queue_waits_for(seen), queue_waits_for(seen))


def _kv_first(seen):
    return "KV memory" if seen["waiting"] and seen["kv_share"] >= 0.95 else queue_waits_for(seen)


def _ignores_waiting(seen):
    return queue_waits_for({**seen, "waiting": max(seen["waiting"], 1)})


def _near_cap(seen):
    near = seen["waiting"] and seen["running"] >= 0.8 * seen["cap"]
    return "the cap" if near else queue_waits_for(seen)


def _slow_step_first(seen):
    slow = seen["waiting"] and seen["tpot_ms"] > 2.5 * seen["tpot_floor_ms"]
    return "step time" if slow else queue_waits_for(seen)


def _step_before_compute(seen):
    word = queue_waits_for(seen)
    return _slow_step_first(seen) if word == "prefill compute" else word


def _compute_before_kv(seen):
    word = queue_waits_for(seen)
    without = queue_waits_for({**seen, "kv_share": 0.0})
    return without if (word, without) == ("KV memory", "prefill compute") else word


def _above_for_at_least(seen):
    """`>` where the table says `>=`."""
    below = {"kv_share": seen["kv_share"] - 1e-6, "prompt_tokens_per_s": seen["prompt_tokens_per_s"] - 1e-3}
    return queue_waits_for({**seen, **below})


def _at_least_for_above(seen):
    """`>=` where the table says `>`."""
    return queue_waits_for({**seen, "tpot_ms": seen["tpot_ms"] + 1e-6})


def _seen(**changes) -> dict:
    seen = {"waiting": 6, "running": 20, "cap": 64, "kv_share": 0.4, "prompt_tokens_per_s": 3000.0}
    return seen | {"prefill_capacity": 20_000.0, "tpot_ms": 30.0, "tpot_floor_ms": 20.0} | changes


def _seen_case(rng: random.Random) -> tuple:
    cap = rng.choice((4, 16, 64))
    return (
        _seen(
            waiting=rng.choice((0, 1, 9)),
            cap=cap,
            running=rng.choice((cap, cap - 1, cap // 2)),
            kv_share=rng.choice((0.2, 0.7, 0.97)),
            prompt_tokens_per_s=rng.choice((2000.0, 9000.0, 19_500.0)),
            tpot_ms=rng.choice((25.0, 45.0, 90.0)),
        ),
    )


# 6.4: what a million tokens cost.


def usd_per_million(usd_per_gpu_hour: float, gpus: int, tokens_per_s: float, busy_share: float) -> float:
    """USD for a million output tokens of a service that is busy `busy_share` of the time."""
    return usd_per_gpu_hour * gpus * 1e6 / (3600 * tokens_per_s * busy_share)


def _usd(factor: Callable[[float, int, float, float], float]) -> Callable:
    return lambda *arguments: usd_per_million(*arguments) * factor(*arguments)


def _usd_case(rng: random.Random) -> tuple:
    return (rng.uniform(0.5, 12), rng.choice((2, 4, 8)), rng.uniform(20, 9000), rng.uniform(0.05, 0.95))


# 6.5: the measurement that decides.


def next_measurement(beliefs: Mapping[str, float], tests: Mapping[str, Mapping]) -> str:
    """The test with the largest expected drop of entropy per cost; the first of equals."""
    return max(tests, key=lambda name: _gain(beliefs, tests[name]) / tests[name]["cost"])


def _entropy(shares: Sequence[float]) -> float:
    total = sum(shares)
    return -sum(s / total * math.log2(s / total) for s in shares if s)


def _groups(beliefs: Mapping[str, float], test: Mapping) -> list[list[float]]:
    """The beliefs of the causes that give the same outcome."""
    outcomes: dict[str, list[float]] = {}
    for cause, share in beliefs.items():
        outcomes.setdefault(test["outcomes"][cause], []).append(share)
    return list(outcomes.values())


def _gain(beliefs: Mapping[str, float], test: Mapping) -> float:
    after = sum(sum(shares) * _entropy(shares) for shares in _groups(beliefs, test))
    return _entropy(list(beliefs.values())) - after


def _most_informed(beliefs, tests):
    return max(tests, key=lambda name: _gain(beliefs, tests[name]))


def _cheapest(beliefs, tests):
    return min(tests, key=lambda name: tests[name]["cost"])


def _most_outcomes(beliefs, tests):
    return max(tests, key=lambda name: len(_groups(beliefs, tests[name])) / tests[name]["cost"])


def _unweighted(beliefs, tests):
    def gain(test):
        groups = _groups(beliefs, test)
        return _entropy(list(beliefs.values())) - sum(map(_entropy, groups)) / len(groups)

    return max(tests, key=lambda name: gain(tests[name]) / tests[name]["cost"])


def _undivided(beliefs, tests):
    """Undivided shares give the same entropy after every test: what decides is the rounding of the sums."""

    def entropy(shares):
        return -sum(s * math.log2(s) for s in shares if s)

    def gain(test):
        return entropy(beliefs.values()) - sum(entropy(shares) for shares in _groups(beliefs, test))

    return max(tests, key=lambda name: gain(tests[name]) / tests[name]["cost"])


def _last_of_equals(beliefs, tests):
    return next_measurement(beliefs, dict(reversed(tests.items())))


def _least_gain(beliefs, tests):
    return min(tests, key=lambda name: _gain(beliefs, tests[name]) / tests[name]["cost"])


def _times_cost(beliefs, tests):
    return max(tests, key=lambda name: _gain(beliefs, tests[name]) * tests[name]["cost"])


def _checks_the_likeliest(beliefs, tests):
    """The cheapest test in which the likeliest cause has an outcome of its own."""
    likeliest = max(beliefs, key=beliefs.get)
    alone = [n for n in tests if list(tests[n]["outcomes"].values()).count(tests[n]["outcomes"][likeliest]) == 1]
    return min(alone or tests, key=lambda name: tests[name]["cost"])


_CAUSES = ("running cap", "KV preemption", "long prompts", "buffering proxy")


def _test(cost: float, *outcomes: str) -> dict:
    return {"cost": cost, "outcomes": dict(zip(_CAUSES, outcomes, strict=True))}


_TESTS = {
    "read the waiting gauge": _test(1, "waits", "waits", "waits", "none"),
    "read the preemption counter": _test(1, "0", "rises", "0", "0"),
    "ask the engine's own port": _test(2, "slow", "slow", "slow", "fast"),
    "raise the cap, same load": _test(10, "faster", "worse", "same", "same again"),
}


def _beliefs(*shares: float) -> dict:
    return dict(zip(_CAUSES, shares, strict=True))


def _next_case(rng: random.Random) -> tuple:
    weights = [rng.uniform(0.02, 1) ** 3 for _ in _CAUSES]
    total = sum(weights)
    tests = {
        f"test {number}": _test(rng.choice((1, 2, 5, 10)), *(rng.choice("abc") for _ in _CAUSES))
        for number in range(1, 6)
    }
    return (_beliefs(*(w / total for w in weights)), tests)


# 6.6 to 6.8: three anonymous services.


def _finding(letter: str) -> Callable[[], list[str]]:
    def found():
        cause = services.cause_of(letter)
        return [services.FAULTS[cause].place, cause]

    found.__name__ = f"service_{letter.lower()}"
    return found


def _says(place: str, cause: str) -> Callable[[], list[str]]:
    return lambda: [place, cause]


def _wrong_causes(letter: str) -> tuple[Mistake, ...]:
    """Every other cause as a planted answer, told what speaks against it."""
    wrong = [cause for cause in services.CAUSES if cause != services.cause_of(letter)]
    answers = {cause: [services.FAULTS[cause].place, cause] for cause in wrong}
    return tuple(Mistake(c, _says(*answer), services.against(letter, answer)) for c, answer in answers.items())


def _service(number: int, letter: str, minutes: int, difficulty: int, why: str, hints: tuple[str, ...]) -> Exercise:
    return Exercise(
        id=f"6.{number}",
        title=f"Service {letter}",
        minutes=minutes,
        difficulty=difficulty,
        why=why,
        hints=hints,
        reference=_finding(letter),
        cases=((),),
        random_case=lambda rng: (),
        mistakes=_wrong_causes(letter),
        result="a list [place, cause]",
        judge=lambda answer: services.against(letter, answer),
    )


EXERCISES = (
    Exercise(
        id="6.1",
        title="A measurement beside its floor",
        minutes=6,
        difficulty=2,
        why="a time is good or bad only beside what the hardware allows; the ratio says if there is anything to find.",
        hints=(
            "Two times: FLOPs ÷ peak, and bytes ÷ bandwidth. They overlap, so the floor is the longer one.",
            "Peak and bandwidth are per second, the measurement is in milliseconds.",
        ),
        reference=against_floor,
        cases=(
            (40.0, 1.5e13, 1.6e10, 989e12, 3.35e12),
            (7.0, 1.6e10, 1.6e10, 989e12, 3.35e12),
            (900.0, 2.7e11, 5.4e8, 4e11, 2e10),
        ),
        random_case=_floor_case,
        mistakes=(
            Mistake(
                "sum",
                _floor(lambda compute, memory: compute + memory),
                "this floor adds both times; they overlap, so the floor is the longer one alone",
            ),
            Mistake(
                "shorter",
                _floor(min),
                "this floor is the shorter of both times: the longer one is what nobody can beat",
            ),
            Mistake(
                "compute only",
                _floor(lambda compute, memory: compute),
                "this floor is the compute account alone: reading the bytes may take longer",
            ),
            Mistake(
                "bandwidth only",
                _floor(lambda compute, memory: memory),
                "this floor is the bandwidth account alone: computing may take longer",
            ),
            Mistake(
                "milliseconds",
                _floor(max, scale=1.0),
                "the measurement is in milliseconds and the floor in seconds",
            ),
            Mistake(
                "inverted",
                _inverted,
                "this is floor ÷ measured, a utilisation: asked for is measured ÷ floor",
            ),
            Mistake(
                "binds swapped",
                _binds_swapped,
                "the two words are the wrong way round: the longer time binds",
            ),
            Mistake(
                "always bandwidth",
                _always("bandwidth"),
                "it is not always the bandwidth: compare the two times",
            ),
            Mistake(
                "always compute",
                _always("compute"),
                "it is not always compute: compare the two times",
            ),
        ),
        result="a list [ratio, word]",
    ),
    Exercise(
        id="6.2",
        title="Numbers that cannot all be right",
        minutes=10,
        difficulty=3,
        why="a cause found in a broken measurement is the cause of nothing; void is an answer, and the first gate.",
        hints=(
            "Compute the E2E that TTFT, TPOT and the output length give, and the number of requests under way.",
            "Little's law: requests under way = requests per second · seconds that each stays.",
            "Build a dict of name → broken or not, and return the names that are.",
        ),
        reference=broken_identities,
        cases=(
            (_report(),),
            (_report(e2e_ms=1100.0),),
            (_report(requests_per_s=14.0),),
            (_report(tpot_floor_ms=26.0),),
            (_report(server_ttft_ms=310.0),),
            (_report(tpot_ms=11.0, tpot_floor_ms=12.0, server_ttft_ms=320.0),),
            (_report(ttft_ms=900.0, e2e_ms=1352.0, requests_per_s=5.917),),
            (_report(output_tokens=2, e2e_ms=345.0, requests_per_s=23.19),),
            (_report(requests_per_s=10.5),),
            (_report(requests_per_s=9.2),),
            (_report(output_tokens=3, ttft_ms=30.0, server_ttft_ms=20.0),),
            (_report(output_tokens=2, tpot_ms=13.0),),
            (_report(e2e_ms=700.0, requests_per_s=11.4),),
            (_report(requests_per_s=8.0),),
        ),
        random_case=_report_case,
        mistakes=(
            Mistake(
                "N for N - 1",
                _identities(e2e=lambda r: _off(_built(r, gaps=0), r["e2e_ms"])),
                "E2E has N − 1 gaps after the first token, not N",
            ),
            Mistake(
                "TTFT left out",
                _identities(e2e=lambda r: _off(_built(r) - r["ttft_ms"], r["e2e_ms"])),
                "TTFT is part of E2E",
            ),
            Mistake(
                "Little in milliseconds",
                _identities(little=lambda r: _off(1e3 * _under_way(r), r["concurrency"])),
                "Little's law wants seconds: E2E is in milliseconds, requests per second are not",
            ),
            Mistake(
                "Little with TTFT",
                _identities(little=lambda r: _off(r["requests_per_s"] * r["ttft_ms"] / 1e3, r["concurrency"])),
                "a request is under way until its last token: Little's law takes E2E, not TTFT",
            ),
            Mistake(
                "Little left out",
                _identities(little=lambda r: False),
                "Little's law is never found broken here",
            ),
            Mistake(
                "floor the wrong way round",
                _identities(floor=lambda r: r["tpot_ms"] > r["tpot_floor_ms"]),
                "slower than the floor is usual, faster is impossible: the floor test is the wrong way round",
            ),
            Mistake(
                "floor within 10 %",
                _identities(floor=lambda r: _off(r["tpot_ms"], r["tpot_floor_ms"])),
                "the floor is a bound, not an equality: broken only where TPOT is below it",
            ),
            Mistake(
                "server the wrong way round",
                _identities(server=lambda r: r["server_ttft_ms"] < r["ttft_ms"]),
                "the server sees only part of what the client waits for, so less is right and more is impossible",
            ),
            *(
                Mistake(
                    f"one-sided {' and '.join(names)}, {sign:+d}",
                    _one_sided(sign, *names),
                    f"{' or '.join(names)} that comes out too {'small' if sign > 0 else 'large'} is not found: off by "
                    "more than 10 % goes both ways, so take `abs`",
                )
                for names in (("e2e",), ("little",), ("e2e", "little"))
                for sign in (1, -1)
            ),
            Mistake(
                "exact",
                _identities(
                    e2e=lambda r: _off(_built(r), r["e2e_ms"], 1e-9),
                    little=lambda r: _off(_under_way(r), r["concurrency"], 1e-9),
                ),
                "measured numbers are never exactly equal: within 10 % is asked for",
            ),
            Mistake(
                "30 %",
                _identities(
                    e2e=lambda r: _off(_built(r), r["e2e_ms"], 0.3),
                    little=lambda r: _off(_under_way(r), r["concurrency"], 0.3),
                ),
                "this tolerance lets too much pass: within 10 % is asked for",
            ),
            Mistake(
                "first only",
                lambda report: broken_identities(report)[:1],
                "only the first broken one is named: return all of them",
            ),
            Mistake(
                "holds for broken",
                lambda report: [n for n in ("e2e", "little", "floor", "server") if n not in broken_identities(report)],
                "these are the ones that hold: return the broken ones",
            ),
            Mistake(
                "only e2e",
                _only("e2e"),
                "three of the four tests are missing",
            ),
        ),
        result="a list of names",
    ),
    Exercise(
        id="6.3",
        title="What the queue waits for",
        minutes=8,
        difficulty=3,
        why='"it queues" is a place; a cap, memory, compute and a slow step are four reasons with four cures.',
        hints=(
            "A chain of `if`, in the order of the table; each returns its word.",
            "The order matters: a full cap explains a queue whatever the rest says.",
        ),
        reference=queue_waits_for,
        cases=(
            (_seen(waiting=0, kv_share=0.99),),
            (_seen(running=64),),
            (_seen(kv_share=0.98),),
            (_seen(prompt_tokens_per_s=19_000.0),),
            (_seen(tpot_ms=80.0),),
            (_seen(),),
            (_seen(running=64, kv_share=0.98),),
            (_seen(running=60),),
            (_seen(kv_share=0.98, tpot_ms=80.0),),
            (_seen(waiting=0, running=64, tpot_ms=80.0),),
            (_seen(prompt_tokens_per_s=19_000.0, tpot_ms=80.0),),
            (_seen(prompt_tokens_per_s=19_000.0, kv_share=0.98),),
            (_seen(kv_share=0.95),),
            (_seen(prompt_tokens_per_s=18_000.0),),
            (_seen(tpot_ms=50.0),),
        ),
        random_case=_seen_case,
        mistakes=(
            Mistake(
                "waiting ignored",
                _ignores_waiting,
                "where nothing waits there is no queue, however full the rest is: ask that first",
            ),
            Mistake(
                "KV before the cap",
                _kv_first,
                "the cap comes first: with as many running as are allowed, no memory would let one more in",
            ),
            Mistake(
                "near the cap",
                _near_cap,
                "a cap binds only when it is reached: running must equal it",
            ),
            Mistake(
                "slow step first",
                _slow_step_first,
                "a slow step is looked for last, when nothing that is counted is full",
            ),
            Mistake(
                "step before compute",
                _step_before_compute,
                "prefill compute comes before step time: prompts that fill the device make every step slow",
            ),
            Mistake(
                "compute before KV",
                _compute_before_kv,
                "KV memory comes before prefill compute: follow the order of the table",
            ),
            Mistake(
                "above for at least",
                _above_for_at_least,
                "exactly on the bound counts for the KV share and for prefill compute: `>=`, not `>`",
            ),
            Mistake(
                "at least for above",
                _at_least_for_above,
                "exactly on the bound a step is not slow yet: `>`, not `>=`",
            ),
            Mistake(
                "no cannot tell",
                _queue(cannot_tell="the cap"),
                "nothing is full and no step is slow: 'cannot tell' is the answer, not a guess",
            ),
            Mistake(
                "no cannot tell, step",
                _queue(cannot_tell="step time"),
                "the step is within 2.5 times its floor, so it is not shown to be slow: 'cannot tell'",
            ),
            Mistake(
                "cap and KV swapped",
                _queue(the_cap="KV memory", KV_memory="the cap"),
                "the words for the cap and for KV memory are the wrong way round",
            ),
            Mistake(
                "compute and step swapped",
                _queue(prefill_compute="step time", step_time="prefill compute"),
                "the words for prefill compute and for step time are the wrong way round",
            ),
        ),
    ),
    Exercise(
        id="6.4",
        title="What a million tokens cost",
        minutes=5,
        difficulty=2,
        why="a card costs money while it idles; the price of a token is the price of an hour, shared by what came out.",
        hints=(
            "Tokens of an hour: `3600 · tokens per second`, for the share of the hour that is busy.",
            "USD of an hour ÷ tokens of an hour · a million; every card is paid.",
        ),
        reference=usd_per_million,
        cases=((2.69, 1, 223.0, 1.0), (2.0, 8, 4000.0, 0.5), (4.0, 2, 1000.0, 0.1)),
        random_case=_usd_case,
        mistakes=(
            Mistake(
                "one card",
                _usd(lambda price, gpus, rate, busy: 1 / gpus),
                "only one card is paid for here: the others cost as much",
            ),
            Mistake(
                "always busy",
                _usd(lambda price, gpus, rate, busy: busy),
                "this service is never idle; the idle hours are paid too",
            ),
            Mistake(
                "busy share the wrong way round",
                _usd(lambda price, gpus, rate, busy: busy * busy),
                "idleness makes a token dearer, not cheaper: divide by the busy share",
            ),
            Mistake(
                "minutes",
                _usd(lambda price, gpus, rate, busy: 60.0),
                "an hour has 3600 seconds",
            ),
            Mistake(
                "seconds",
                _usd(lambda price, gpus, rate, busy: 3600.0),
                "the price is per hour and the tokens are per second: 3600 is missing",
            ),
            Mistake(
                "per thousand",
                _usd(lambda price, gpus, rate, busy: 1e-3),
                "this is the price of a thousand tokens",
            ),
            Mistake(
                "per token",
                _usd(lambda price, gpus, rate, busy: 1e-6),
                "this is the price of one token",
            ),
            Mistake(
                "upside down",
                lambda *arguments: 1e6 / usd_per_million(*arguments),
                "these are tokens per USD: asked for is USD per million tokens",
            ),
            Mistake(
                "shared by the cards",
                _usd(lambda price, gpus, rate, busy: 1 / gpus**2),
                "the price is divided by the cards here: the rate is that of all of them together, and all are paid",
            ),
        ),
        unit="USD",
    ),
    Exercise(
        id="6.5",
        title="The measurement that decides",
        minutes=12,
        difficulty=4,
        why="where several causes are left, a cheap measurement that splits them is worth more than a guess.",
        hints=(
            "Entropy of shares p: −Σ p · log2 p. Before the test: of all beliefs.",
            "After it: the causes with the same outcome stay together. Each group has its total share t, and inside it "
            "the shares p ÷ t; the entropy after is Σ t · entropy of the group.",
            "`max(tests, key=…)` gives the first of the largest.",
        ),
        reference=next_measurement,
        cases=(
            (_beliefs(0.4, 0.1, 0.1, 0.4), _TESTS),
            (_beliefs(0.45, 0.45, 0.05, 0.05), _TESTS),
            (_beliefs(0.25, 0.25, 0.25, 0.25), _TESTS),
            (
                _beliefs(0.7, 0.1, 0.1, 0.1),
                {
                    "look at all four": _test(4, "a", "b", "c", "d"),
                    "split the rare ones": _test(1, "a", "a", "a", "b"),
                    "split the likely one": _test(1, "a", "b", "b", "b"),
                },
            ),
            (
                _beliefs(0.05, 0.05, 0.45, 0.45),
                {
                    "cheap and blind": _test(1, "a", "a", "a", "a"),
                    "splits the pair": _test(2, "a", "a", "a", "b"),
                    "splits all": _test(20, "a", "b", "c", "d"),
                },
            ),
        ),
        random_case=_next_case,
        mistakes=(
            Mistake(
                "cost ignored",
                _most_informed,
                "this takes the most telling test whatever it costs: divide the gain by the cost",
            ),
            Mistake(
                "cheapest",
                _cheapest,
                "this takes the cheapest test, also where all causes give the same outcome: it must tell something",
            ),
            Mistake(
                "most outcomes",
                _most_outcomes,
                "the number of outcomes is counted, not how likely they are: splitting off what nobody believes in "
                "gains little",
            ),
            Mistake(
                "unweighted",
                _unweighted,
                "the groups are averaged as equals: weigh the entropy of each by its total share",
            ),
            Mistake(
                "undivided",
                _undivided,
                "no test gains anything here: divide the shares of a group by their total before taking its entropy",
            ),
            Mistake(
                "last of equals",
                _last_of_equals,
                "of equals the first is asked for, and this gives the last",
            ),
            Mistake(
                "smallest",
                _least_gain,
                "this takes the least telling test: `max`, not `min`",
            ),
            Mistake(
                "times the cost",
                _times_cost,
                "the gain is multiplied by the cost, which prefers dear tests: divide",
            ),
            Mistake(
                "the likeliest alone",
                _checks_the_likeliest,
                "this only asks whether the likeliest cause is the one: a test that splits the rest may tell more",
            ),
        ),
        result="the name of a test",
    ),
    _service(
        6,
        "A",
        10,
        3,
        "the first question is the place: does the server see what the client sees?",
        (
            "Set the client's TTFT beside the server's own, alone and for each prompt length.",
            "If something is lost between them, ask when: before the first byte, at the first event, or all along?",
        ),
    ),
    _service(
        7,
        "B",
        10,
        3,
        "a number looks high or low only beside what it depends on; go through the signs one by one.",
        (
            "Write down for each cause in the list what it would show, and cross out what is not there.",
            "A queue that is there for a moment, when all requests start at once, is no sign of a fault.",
        ),
    ),
    _service(
        8,
        "C",
        10,
        4,
        "a queue is a place; what it waits for is in the other counters of the same moment.",
        (
            "Compare one request alone with six at a time: what is full when they wait?",
            "`running`, `waiting`, `KV share` and `preemptions` belong together: read them as one line.",
        ),
    ),
)
