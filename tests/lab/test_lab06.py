"""The answers of lab 06 are right: against the accounts, brute force, and answers found another way."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import accounts
from helpers.lab import check, services
from helpers.lab.exercises import find, lab06


@pytest.mark.parametrize("batch", [1, 64, 2048])
def test_the_ratio_is_measured_over_the_floor_of_the_accounts(batch):
    device = accounts.device("H100 SXM")
    floor = accounts.decode_floor(accounts.read_config("qwen3-8b"), 1024, batch, device)
    limits = (device.peak("bf16"), device.bandwidth_bytes_per_s)
    ratio, binds = lab06.against_floor(2e3 * floor.seconds, floor.flops, floor.bytes, *limits)
    assert ratio == pytest.approx(2)
    assert binds == floor.binds


def test_a_report_breaks_exactly_what_was_changed_in_it():
    assert lab06.broken_identities(lab06._report()) == []
    assert lab06.broken_identities(lab06._report(requests_per_s=14.0)) == ["little"]
    assert lab06.broken_identities(lab06._report(tpot_floor_ms=26.0)) == ["floor"]
    assert lab06.broken_identities(lab06._report(server_ttft_ms=301.0)) == ["server"]


@given(
    st.integers(1, 100),
    st.integers(2, 500),
    st.floats(10, 5000),
    st.floats(5, 200),
    st.sampled_from([0.0, 0.05, -0.05]),
)
def test_a_steady_closed_loop_breaks_nothing(concurrency, tokens, ttft, tpot, noise):
    report = lab06._report(
        concurrency=concurrency,
        output_tokens=tokens,
        ttft_ms=ttft,
        tpot_ms=tpot,
        tpot_floor_ms=tpot / 2,
        server_ttft_ms=ttft,
    )
    report["requests_per_s"] *= 1 + noise
    assert lab06.broken_identities(report) == []


def test_a_queue_is_explained_by_one_resource_in_the_order_of_the_table():
    full = lab06._seen(running=64, kv_share=1.0, prompt_tokens_per_s=20_000.0, tpot_ms=99.0)
    steps = ({"waiting": 0}, {}, {"running": 63}, {"kv_share": 0.1}, {"prompt_tokens_per_s": 0.0}, {"tpot_ms": 20.0})
    said, seen = [lab06.queue_waits_for(full | steps[0])], full
    for step in steps[1:]:
        seen = seen | step
        said.append(lab06.queue_waits_for(seen))
    assert tuple(said) == lab06.RESOURCES


def test_the_price_of_a_million_tokens_is_the_accounts_own():
    for usd, gpus, rate, busy in find("6.4").all_cases():
        expected = accounts.usd_per_million(usd * gpus, rate, busy)
        assert lab06.usd_per_million(usd, gpus, rate, busy) == pytest.approx(expected)


SHARES = st.lists(st.floats(0.01, 1), min_size=2, max_size=5)


@given(SHARES, st.data())
def test_no_test_gains_more_than_there_is_and_one_that_tells_all_gains_it(shares, data):
    beliefs = {str(i): share / sum(shares) for i, share in enumerate(shares)}
    outcomes = {cause: data.draw(st.sampled_from("abc")) for cause in beliefs}
    gain = lab06._gain(beliefs, {"outcomes": outcomes})
    before = lab06._entropy(list(beliefs.values()))
    assert -1e-9 <= gain <= before + 1e-9
    assert lab06._gain(beliefs, {"outcomes": {cause: cause for cause in beliefs}}) == pytest.approx(before)
    # Of certain outcomes a test tells exactly its outcome: the drop is the entropy of the outcomes.
    totals = [sum(b for c, b in beliefs.items() if outcomes[c] == o) for o in set(outcomes.values())]
    assert gain == pytest.approx(lab06._entropy(totals), abs=1e-9)


@pytest.mark.parametrize("case", find("6.5").all_cases())
def test_the_best_test_leads_clearly_so_rounding_decides_nothing(case):
    beliefs, tests = case
    values = sorted((lab06._gain(beliefs, test) / test["cost"] for test in tests.values()), reverse=True)
    assert values[0] > values[1] * (1 + 1e-9) or values[0] == values[1]


def _next_by_outcome_entropy(beliefs, tests):
    best, most = None, -1.0
    for name, test in tests.items():
        totals = [
            sum(b for c, b in beliefs.items() if test["outcomes"][c] == o) for o in set(test["outcomes"].values())
        ]
        gain = -sum(t * math.log2(t) for t in totals if t) / test["cost"]
        if gain > most + 1e-9:
            best, most = name, gain
    return best


def _broken_by_ratio(r):
    found = []
    if not 0.9 <= (r["ttft_ms"] + r["tpot_ms"] * (r["output_tokens"] - 1)) / r["e2e_ms"] <= 1.1:
        found.append("e2e")
    if not 0.9 <= r["requests_per_s"] * r["e2e_ms"] / (1000 * r["concurrency"]) <= 1.1:
        found.append("little")
    found += ["floor"] * (r["tpot_floor_ms"] > r["tpot_ms"]) + ["server"] * (r["ttft_ms"] < r["server_ttft_ms"])
    return found


RIGHT_ANOTHER_WAY = (
    ("6.2", _broken_by_ratio),
    ("6.5", _next_by_outcome_entropy),
    ("6.6", lambda: ("path", "connection per request")),
    ("6.7", lambda: ["nowhere", "nothing wrong"]),
)


@pytest.mark.parametrize(("exercise_id", "answer"), RIGHT_ANOTHER_WAY)
def test_a_right_answer_by_another_way_is_accepted(exercise_id, answer):
    result = check.evaluate(find(exercise_id), answer)
    assert result.state == check.CORRECT, result.text


def _step_time_before_prefill_compute(seen):
    if seen["waiting"] == 0:
        return "no queue"
    if seen["running"] == seen["cap"]:
        return "the cap"
    if seen["kv_share"] >= 0.95:
        return "KV memory"
    if seen["tpot_ms"] > 2.5 * seen["tpot_floor_ms"]:
        return "step time"
    return "prefill compute" if seen["prompt_tokens_per_s"] >= 0.9 * seen["prefill_capacity"] else "cannot tell"


def _late_only(r):
    late = r["ttft_ms"] + (r["output_tokens"] - 1) * r["tpot_ms"] - r["e2e_ms"] > 0.1 * r["e2e_ms"]
    return ["e2e"] * late + [name for name in lab06.broken_identities(r) if name != "e2e"]


WRONG_BUT_CLOSE = (
    ("6.1", lambda ms, f, b, p, w: [ms / 1e3 / max(f / p, b / w), "memory"], "expected"),
    ("6.2", lambda r: "e2e", "expected a list of names"),
    ("6.2", _late_only, "e2e that comes out too small is not found"),
    ("6.3", lambda seen: "the cap", "expected 'no queue'"),
    ("6.3", _step_time_before_prefill_compute, "prefill compute comes before step time"),
    (
        "6.5",
        lambda beliefs, tests: lab06.next_measurement(beliefs, dict(reversed(tests.items()))),
        "of equals the first",
    ),
    ("6.4", lambda usd, gpus, rate, busy: usd / (3600 * rate * busy) * 1e6, "only one card is paid for"),
    ("6.6", lambda: ["path", "slow first event"], "each request opens a new one"),
    ("6.6", lambda: ["engine", "connection per request"], "belongs to 'path'"),
    ("6.6", lambda: "connection per request", "expected a list [place, cause]"),
    ("6.7", lambda: ["engine", "running cap"], "And the place: "),
    ("6.8", lambda: ["engine", "running cap"], "the cache is full and running requests are preempted"),
    ("6.8", lambda: ["engine", "kv cache"], "'kv cache' is no answer: choose one of"),
)


@pytest.mark.parametrize(("exercise_id", "answer", "said"), WRONG_BUT_CLOSE)
def test_an_answer_that_is_nearly_right_is_rejected_and_told_why(exercise_id, answer, said):
    result = check.evaluate(find(exercise_id), answer)
    assert result.state == check.NOT_YET
    assert said in result.text


def test_a_finding_that_is_right_is_not_said_to_have_passed_many_cases():
    assert check.evaluate(find("6.7"), lambda: ["nowhere", "nothing wrong"]).text == "Exercise 6.7: correct."


def test_no_wrong_finding_is_told_the_right_cause():
    for letter, exercise_id in zip(services.LETTERS, ("6.6", "6.7", "6.8"), strict=True):
        truth = services.cause_of(letter)
        for place, cause in itertools.product(services.PLACES, services.CAUSES):
            if cause != truth:
                text = check.evaluate(find(exercise_id), lambda answer=(place, cause): list(answer)).text
                assert truth not in text
