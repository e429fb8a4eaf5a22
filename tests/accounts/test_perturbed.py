"""Less evidence, or another clock, may cost the judge its answer; it never makes it name a wrong cause."""

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import combinations

import pytest

from helpers.accounts.observation import Observation, Run, ServerWindow, Spread
from helpers.accounts.verdict import verdict
from helpers.errors import InputError
from tests.accounts.seen import ALONE, AROUND, FAULTS, HEALTHY, run

OPEN_LOOP = run(concurrency=None, rate_per_s=2.0, ttft=70, tpot=12)
HEALTHY_RUNS = {
    "closed loop": (*AROUND, HEALTHY),
    "open loop": (*ALONE, OPEN_LOOP),
    "engine port too": (*AROUND, HEALTHY, replace(HEALTHY, role="direct")),
}


def slower(seen: Run | ServerWindow | Spread, factor: float):
    """The same on a machine `factor` times as slow: times grow, rates fall, counts and shares stay."""
    times = {"seconds", "long_ttft", "ttft_of_window_mean"}
    times |= {f"{name}_mean" for name in ("ttft", "queue", "prefill", "decode", "tpot", "e2e")}
    times |= {"p50", "p95", "p99", "mean", "max"}
    changed = {}
    for name, value in ((field.name, getattr(seen, field.name)) for field in fields(seen)):
        if isinstance(value, Spread | ServerWindow):
            changed[name] = slower(value, factor)
        elif value is not None and name.endswith("_per_s"):
            changed[name] = value / factor
        elif value is not None and name in times:
            changed[name] = value * factor
    return replace(seen, **changed)


def views(runs: tuple[Run, ...]) -> Iterator[tuple[Run, ...]]:
    """The runs on other machines, without /metrics (everywhere or in one run), and without one or two of them."""
    yield from (tuple(slower(one, factor) for one in runs) for factor in (0.1, 0.3, 3, 10))
    blind = tuple(replace(one, server=None) for one in runs)
    yield blind
    yield tuple(one for one in blind if one.role == "load")
    for i in range(len(runs)):
        yield (*runs[:i], blind[i], *runs[i + 1 :])
        yield (*runs[:i], *runs[i + 1 :])
    for left_out in combinations(range(len(runs)), 2):
        yield tuple(one for i, one in enumerate(runs) if i not in left_out)


@pytest.mark.parametrize("mechanism", FAULTS)
def test_a_fault_seen_in_part_is_named_rightly_or_not_at_all(mechanism):
    cause, runs, more = FAULTS[mechanism]
    named = 0
    for view in views(tuple(runs)):
        answer = verdict(Observation(view, **more))
        assert answer.cause in (cause, None), (answer.says, answer.sentence)
        named += answer.says == "named"
    assert named >= 5


@pytest.mark.parametrize("name", HEALTHY_RUNS)
def test_a_healthy_service_seen_in_part_is_never_blamed(name):
    judged = 0
    for view in views(HEALTHY_RUNS[name]):
        try:
            answer = verdict(Observation(view))
        except InputError as refusal:
            assert "nothing to judge" in str(refusal)
            continue
        assert answer.cause is None, answer.sentence
        judged += 1
    assert judged >= 8


@pytest.mark.parametrize("mechanism", FAULTS)
def test_a_machine_ten_times_as_slow_changes_no_diagnosis(mechanism):
    cause, runs, more = FAULTS[mechanism]
    claimed = more.get("claimed_ttft_ms")
    more = more | ({} if claimed is None else {"claimed_ttft_ms": claimed * 10})
    answer = verdict(Observation(tuple(slower(one, 10) for one in runs), **more))
    assert (answer.says, answer.cause, answer.mechanism) == ("named", cause, mechanism)
