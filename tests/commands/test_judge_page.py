"""The page of a judgement: whole for every kind of answer, escaped throughout, and asking the network for nothing."""

import dataclasses
import re
from html.parser import HTMLParser

import pytest

from helpers.accounts import device, read_config
from helpers.accounts.observation import Observation, Run, ServerWindow, Spread
from helpers.accounts.service_floors import Subject
from helpers.accounts.verdict import verdict
from helpers.commands.judge_page import page
from helpers.measure.machine import machine
from helpers.measure.observe import observation_json

HOSTILE = "<script>alert('x')</script>\"&<img src=http://example.org/x>"


def spread(p50, **more):
    return Spread(p50=p50, p95=1.2 * p50, p99=1.4 * p50, mean=1.05 * p50, max=2 * p50, n=64, **more)


def run(role="load", ttft=400.0, tpot=12.0, concurrency=16, **more):
    e2e = ttft + 127 * tpot
    return Run(
        *(role, 1024, 128),
        concurrency=concurrency,
        requests=64,
        ttft=spread(ttft),
        tpot=spread(tpot),
        gap=spread(tpot),
        e2e=spread(e2e),
        requests_per_s=1e3 * concurrency / e2e,
        output_tokens_per_s=128e3 * concurrency / e2e,
        **more,
    )


def window(**more):
    return ServerWindow("vllm", 30.0, 300, running_p50=4, running_max=4, waiting_p50=12, waiting_max=12, **more)


def judgement(observation, subject=None):
    """As the command `judge` puts it together."""
    return verdict(observation, subject).as_json() | {
        "subject": None,
        "observation": observation_json(observation),
        "provenance": {
            "made": "2026-11-30T12:00:00+00:00",
            "lab_version": "0.1.0",
            "source": "probe",
            "machine": dataclasses.asdict(machine()),
        },
    }


def stranger() -> Subject:
    """A model with a hostile name on a known card, with a price from a hostile source."""
    model = dataclasses.replace(read_config("llama-3.1-8b"), name=HOSTILE)
    return Subject(model, device("H100 SXM"), usd_per_device_hour=2.5, price_source=f"a list of 2026-11 {HOSTILE}")


def capped_judgement(subject):
    """A running cap, with the server's own numbers, a hostile address and clue, and a price."""
    server = window(
        ttft_mean=2900.0, queue_mean=2700.0, prefill_mean=180.0, kv_share_max=0.1, preemptions=0, rejected=0
    )
    alone = [
        dataclasses.replace(run("alone", ttft, 7.0, 1), prompt_tokens=n)
        for n, ttft in ((256, 30), (512, 45), (1024, 75))
    ]
    load = run(ttft=3000.0, tpot=8.0, server=server, base_url=f"http://127.0.0.1:8000/{HOSTILE}")
    observation = Observation((load, *alone), clues={"clock_or_power_differs": HOSTILE}, notes=(HOSTILE,))
    return judgement(observation, subject)


@pytest.fixture(scope="module")
def subject():
    return stranger()


@pytest.fixture(scope="module")
def capped(subject):
    return capped_judgement(subject)


@pytest.fixture(scope="module")
def answers(capped, subject):
    """One JSON object for each way to answer."""
    alone = run("alone", 75.0, 7.0, 1)
    found = {
        "fault": capped,
        "bare": judgement(Observation((run(),))),
        "fine": judgement(Observation((run(ttft=45.0, tpot=7.5, concurrency=2), run("alone", 35.0, 7.0, 1))), subject),
        "void": judgement(Observation((run(ttft=0.5, tpot=0.01),)), subject),
        "rate": judgement(Observation((dataclasses.replace(run(), concurrency=None, rate_per_s=3.0), alone)), subject),
    }
    said = {name: one["verdict"]["says"] for name, one in found.items()}
    assert said | {"rate": "any"} == {
        "fault": "named",
        "bare": "cannot tell",
        "fine": "no fault found",
        "void": "void",
        "rate": "any",
    }
    return found


class Tags(HTMLParser):
    """Every tag and attribute of a page; a tag that is not closed in its place is a fault."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        self.texts.append(text)


@pytest.mark.parametrize("name", ["fault", "bare", "fine", "void", "rate"])
def test_the_page_is_well_formed_says_the_sentence_and_asks_for_nothing(answers, name):
    text = page(answers[name])
    tags = Tags(text)
    kinds = {tag for tag, _ in tags.found}
    assert not kinds & {"script", "img", "iframe", "link"}
    assert [attributes["href"] for tag, attributes in tags.found if tag == "a"] == ["#content"]
    assert not any(key.startswith("on") or key in ("src", "action") for _, found in tags.found for key in found)
    said = "".join(tags.texts)
    assert answers[name]["verdict"]["sentence"] in said
    assert "None" not in said.replace("None of these", "")
    assert "nan" not in re.findall(r"\w+", said)
    assert "default-src 'none'" in text


def test_every_text_of_a_stranger_is_shown_as_text(capped):
    text = page(capped)
    assert "<script" not in text
    assert "<img" not in text
    said = "".join(Tags(text).texts)
    assert f"Judgement of {HOSTILE}" in said
    assert f"http://127.0.0.1:8000/{HOSTILE}" in said
    assert f"a list of 2026-11 {HOSTILE}" in said


def test_the_page_shows_numbers_evidence_next_measurement_cost_and_provenance(capped):
    said = "".join(Tags(page(capped)).texts)
    for row in capped["metrics"]:
        assert row["name"] in said
        if row["ratio"] is not None:
            assert f"{row['ratio']:.2f}" in said
    assert capped["evidence"]["findings"]
    for finding in capped["evidence"]["findings"]:
        assert finding["words"] in said
    assert capped["evidence"]["ranked"]
    for cause in capped["evidence"]["ranked"]:
        assert f"{cause['cause']}: {100 * cause['posterior']:.0f} %" in said
        assert cause["next_test"] in said
        for one in (*cause["for"], *cause["against"]):
            assert one["words"] in said
    assert capped["next_measurement"]["says"] in said
    assert capped["cost"]["sentence"] in said
    assert capped["cost"]["references"]
    for listed in capped["cost"]["references"]:
        assert listed["source"] in said
        assert listed["as_of"] in said
    for missing in capped["missing"]:
        assert missing in said
    assert machine().cpu in said


def test_drawings_have_a_text_alternative_with_the_same_numbers_and_bars_in_proportion(capped):
    text = page(capped)
    drawings = [attributes for tag, attributes in Tags(text).found if tag == "svg"]
    assert len(drawings) == 5  # four quantities, and TTFT by parts
    assert all(one["role"] == "img" and re.search(r"\d", one["aria-label"]) for one in drawings)
    ttft = next(one for one in drawings if one["aria-label"].startswith("TTFT"))
    assert ttft["aria-label"].endswith("P50 3.00 s, P95 3.60 s")
    first = re.search(r'aria-label="TTFT: .*?</svg>', text, re.DOTALL)[0]
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([\d.]+)"', first)]
    assert widths[2] / widths[1] == pytest.approx(1.2, abs=0.01)


def test_parts_of_ttft_are_told_apart_and_one_below_zero_is_said_not_drawn(capped):
    split = capped["ttft_split"] | {"delivery_ms": -4.0}
    text = page(capped | {"ttft_split": split})
    assert "outside the engine (network, front end, delivery) −4.0 ms" in text
    stack = re.search(r'aria-label="Mean TTFT by parts.*?</svg>', text, re.DOTALL)[0]
    assert stack.count("<rect") == 2 * sum((split[name] or 0) > 0 for name in split if name.endswith("_ms")) - 2 * 2


def test_a_judgement_without_provenance_or_price_is_still_a_page(capped):
    bare = {key: value for key, value in capped.items() if key not in ("provenance", "observation", "subject")}
    said = "".join(Tags(page(bare | {"cost": None, "kv": None, "next_measurement": None})).texts)
    assert "Cost" not in said
    assert "Memory and experts" not in said
