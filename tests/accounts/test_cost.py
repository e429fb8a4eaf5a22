"""Cost: the formula, the phase split, the references with their dates, and the verdict words."""

from dataclasses import replace

import pytest

from helpers.accounts import device, read_config
from helpers.accounts.cost import cost, references, usd_per_million
from helpers.accounts.observation import Run
from helpers.accounts.service_floors import Subject, service_floors
from helpers.errors import InputError
from tests.accounts.seen import spread, timed

H100 = Subject(read_config("llama-3.1-8b"), device("H100 SXM"), usd_per_device_hour=2.69, price_source="test, 2026-11")


def load(concurrency: int, ttft: float, tpot: float, prompt=1000, output=200) -> Run:
    return timed(
        Run("load", prompt, output, concurrency=concurrency, requests=64, ttft=spread(ttft), tpot=spread(tpot))
    )


def test_the_formula_gives_the_worked_examples(facts):
    for row in facts("pricing.json")["worked"]:
        if row["name"].startswith("one user, 8B"):
            assert usd_per_million(2.69, 223) == pytest.approx(row["usd_per_M_output"], rel=0.01)
        if row["name"] == "utilisation effect":
            for used, usd in row["usd_per_M"].items():
                assert usd_per_million(2.69, 3000, float(used)) == pytest.approx(usd, rel=0.01)
        if row["name"] == "its decode node":
            assert usd_per_million(16, 14_800) == pytest.approx(row["usd_per_M_output"], rel=0.01)


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (float("nan"), 1), (1, 1, 1.5), (1, 1, 0), (True, 1)])
def test_impossible_prices_are_refused(arguments):
    with pytest.raises(InputError, match="must be"):
        usd_per_million(*arguments)


def test_reference_prices_are_dated_and_marked_and_lie_in_the_ground_truth(facts):
    listed = facts("pricing.json")
    for known in ("H100 SXM", "H100 PCIe", "A100-80 SXM", "RTX 4090", "L40S"):
        rows = [row["usd_per_gpu_hour"] for row in listed["gpu_hour"] if row["gpu"] == known]
        prices = [price for row in rows for price in (row if isinstance(row, list) else [row])]
        (ours,) = references(known)
        assert (ours.low, ours.high) == pytest.approx((min(prices), max(prices)), abs=0.01)
        assert ours.third_party and "20" in ours.as_of and ours.source
    api = listed["api_ranges"]["Llama-3.1-8B"]
    into, out = references(None, "llama-3.1-8b")
    assert [into.low, into.high] == api["in"] and [out.low, out.high] == api["out"]


def test_without_a_price_it_cannot_tell_and_gives_the_dated_range():
    answer = cost(replace(H100, usd_per_device_hour=None), load(8, 60, 6))
    assert answer.says == "cannot tell" and answer.usd_per_million_output is None
    assert "2.11 to 12.29" in answer.sentence and "2026" in answer.sentence


def test_input_and_output_share_the_whole_price():
    seen = load(16, 90, 7)
    answer = cost(H100, seen, 400)
    per_hour = 3600 * seen.requests_per_s
    paid = answer.usd_per_million_input * seen.prompt_tokens + answer.usd_per_million_output * seen.output_tokens
    assert paid * per_hour / 1e6 == pytest.approx(2.69)
    assert 0 < answer.prefill_share < 1


def test_at_the_floor_a_token_costs_what_its_share_of_the_step_costs():
    seen = load(16, 90, 7)
    floors = service_floors(H100, seen)
    answer = cost(H100, seen, 400)
    expected = 2.69 * 1e6 / 3600 * floors.tpot.seconds / floors.batch
    assert answer.floor_usd_per_million_output == pytest.approx(expected)
    expected = 2.69 * 1e6 / 3600 * floors.ttft.seconds / seen.prompt_tokens
    assert answer.floor_usd_per_million_input == pytest.approx(expected)


def test_the_words_of_the_verdict():
    quiet, slow = load(1, 30, 5.0), load(8, 300, 40.0)
    assert cost(H100, quiet, 400, idle=True).says == "dear because idle"
    assert cost(H100, slow, 400).says == "dear because slow"
    full = load(200, 1500, 14.0)
    assert cost(H100, full, 400).says == "not dear"
    unlisted = replace(H100, model=read_config("llama-3.2-3b"), tpot_target_ms=3.0)
    assert cost(unlisted, load(8, 30, 2.6), 2000).says == "dear because of the SLO"
    dear = replace(H100, usd_per_device_hour=98.0)
    assert cost(dear, load(300, 3000, 18.0), 400).says == "dear because of the GPU"


def test_all_devices_are_paid():
    seen = load(16, 90, 7)
    two = cost(replace(H100, devices=2), seen, 400)
    paid = two.usd_per_million_input * seen.prompt_tokens + two.usd_per_million_output * seen.output_tokens
    assert (two.usd_per_hour, paid * seen.requests_per_s * 3600 / 1e6) == pytest.approx((2 * 2.69, 2 * 2.69))


def test_a_target_is_kept_at_what_an_engine_reaches_not_at_the_floor():
    target = replace(H100, tpot_target_ms=10.0)
    seen = load(8, 60, 6)
    batch = cost(target, seen, 100_000).attainable_batch
    context = round(seen.prompt_tokens + seen.output_tokens / 2)
    steps = [1e3 * target.decode(context, size).seconds / 0.6 for size in (batch, batch + 1)]
    assert steps[0] <= 10.0 < steps[1]


def test_a_price_within_the_api_range_is_dear_where_a_fault_makes_it_slow():
    (_, out) = references(None, "llama-3.1-8b")
    seen = load(8, 60, 6)
    once = cost(H100, seen, 400).usd_per_million_output
    within = replace(H100, usd_per_device_hour=2.69 * (out.low + 0.9 * (out.high - out.low)) / once)
    assert cost(within, seen, 400).says == "not dear"
    assert cost(within, seen, 400, slow=True).says == "dear because slow"


def test_a_batch_near_what_memory_holds_is_not_idle():
    quiet = load(1, 30, 2.4 * service_floors(H100, load(1, 30, 5.0)).tpot_ms)
    assert cost(H100, quiet, 4, idle=True).says == "dear because idle"
    assert cost(H100, quiet, 3, idle=True).says != "dear because idle"
