"""The answers of lab 05 are right: against the measuring client, the streams of public bug reports, and brute force."""

import base64
import itertools
import json
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import measure
from helpers.lab import check
from helpers.lab.exercises import find, lab05


def cuts(stream):
    return st.lists(st.integers(0, len(stream)), max_size=8).map(
        lambda places: [stream[a:b] for a, b in itertools.pairwise([0, *sorted(places), len(stream)])]
    )


LINES = st.lists(
    st.sampled_from(
        ("data: a", "data:b", "data:  c ", "data", "data:", ": ping", "id: 1", "event: x", "", "", "data: 猫\u2028")
    ),
    max_size=12,
)


@given(st.data(), LINES, st.sampled_from(("\n", "\r\n")))
def test_the_parser_finds_the_events_of_the_clients_parser_however_the_bytes_are_cut(data, lines, end):
    stream = "".join(line + end for line in lines if line != "data").encode()
    reads = data.draw(cuts(stream))
    parser = measure.SSEParser()
    theirs = [event.data for read in reads for event in parser.feed(read)]
    # An event of empty data lines alone is one that the standard does not dispatch.
    assert [text for text in lab05.sse_data(reads) if text] == theirs


def as_bytes(write):
    return base64.b64decode(write["data"]) if write.get("encoding") == "base64" else write["data"].encode()


PLAIN_CASES = (
    "baseline_one_token_per_event",
    "role_chunk_empty_string_early",
    "speculative_three_tokens_per_event",
    "whole_answer_in_one_burst",
    "bursts_through_buffering_proxy",
    "reasoning_content_then_answer",
    "reasoning_alias_only_no_answer",
    "utf8_split_inside_characters",
    "crlf_two_events_per_read",
    "no_space_after_data_colon",
    "keepalive_comments_during_prefill",
    "single_output_token",
    "no_usage_at_all",
)


@pytest.mark.parametrize("name", PLAIN_CASES)
def test_the_answers_put_together_measure_the_streams_of_public_bug_reports(shared, name):
    cases = {case["name"]: case for case in json.loads((shared / "facts/stream-cases.json").read_text())}
    events, so_far = [], []
    for write in cases[name]["writes"]:
        so_far.append(as_bytes(write))
        data = [text for text in lab05.sse_data(so_far) if text != "[DONE]"]
        events += [[write["at_ms"], {"choices": [], **json.loads(text)}] for text in data[len(events) :]]
    arrivals = [at for at, chunk in events if lab05.ttft_ms(0, [[at, chunk]]) is not None]
    usage = [chunk["usage"]["completion_tokens"] for _, chunk in events if chunk.get("usage")]
    expected = cases[name]["expected"]
    assert lab05.ttft_ms(0, events) == pytest.approx(expected["ttft_ms"])
    tpot = lab05.tpot_ms(0, arrivals, usage[-1] if usage else None)
    assert tpot == (None if expected["tpot_ms"] is None else pytest.approx(expected["tpot_ms"], rel=1e-4))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=80), st.integers(1, 100), st.integers(0, 5))
def test_the_percentile_is_the_clients_and_enough_samples_lie_at_or_below_it(samples, p, failures):
    everything = samples + [math.inf] * failures
    found = lab05.percentile(samples, p, failures)
    assert found == measure.nearest_rank(everything, p / 100)
    assert sum(sample <= found for sample in everything) >= p * len(everything) / 100
    assert sum(sample < found for sample in everything) < p * len(everything) / 100


def test_a_load_without_overlap_or_pause_has_the_throughput_of_its_equal_requests():
    requests = [{"start_s": 5.0 + 2 * i, "end_s": 7.0 + 2 * i, "output_tokens": 50, "failed": False} for i in range(4)]
    assert lab05.throughput(requests) == [25.0, 25.0]
    at_once = [{**request, "start_s": 5.0, "end_s": 7.0} for request in requests]
    assert lab05.throughput(at_once) == [100.0, 25.0]


def test_four_of_the_five_measurements_are_wrong_each_in_its_own_way():
    words = [lab05.diagnose(*measurement) for measurement in lab05.FIVE_MEASUREMENTS]
    assert words == [
        ["headers", "right"],
        ["right", "characters"],
        ["role event", "TTFT included"],
        ["whole answer", "events"],
        ["right", "right"],
    ]


@pytest.mark.parametrize("case", find("5.6").all_cases())
def test_a_reported_number_fits_one_word_alone_so_the_order_of_the_words_decides_nothing(case):
    stream, reported = case
    for candidates, key in zip(lab05._candidates(stream), ("ttft_ms", "tpot_ms"), strict=True):
        assert sum(abs(reported[key] - ms) <= 0.02 * ms for ms in candidates.values()) <= 1


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=20))
def test_latencies_follow_lindleys_recursion(pairs):
    gaps, service = zip(*pairs, strict=True)
    arrivals, wait, expected = list(itertools.accumulate(gaps)), 0.0, []
    for i, seconds in enumerate(service):
        wait = max(0.0, wait + service[i - 1] - gaps[i]) if i else 0.0
        expected.append(wait + seconds)
    assert lab05.latencies_s(arrivals, service) == pytest.approx(expected, abs=1e-9)


def test_the_parts_of_a_ttft_add_up_to_it_and_only_the_rest_may_be_below_0():
    below_0 = []
    for timings, ttft in find("5.8").all_cases():
        parts = lab05.ttft_parts_ms(timings, ttft)
        assert sum(parts.values()) == pytest.approx(ttft)
        delivery = parts.pop("delivery")
        assert min(parts.values()) > 0
        below_0 += [delivery] if delivery <= 0 else []
    # One planted case: the client's TTFT is shorter than what the server says it took.
    assert below_0 == [pytest.approx(-12.0)]


@pytest.mark.parametrize("name", lab05.NEEDED)
def test_without_one_of_its_conditions_a_latency_is_refused(name):
    run = {"concurrency": 8, "input_tokens": 512, "output_tokens": 128, "ttft_ms": 790.0, "e2e_ms": 4000.0}
    assert lab05.what_is_it(800, run) == "TTFT"
    for broken in ({**run, name: None}, {key: value for key, value in run.items() if key != name}):
        with pytest.raises(ValueError, match="missing"):
            lab05.what_is_it(800, broken)


def _sse_by_blocks(reads):
    text = b"".join(reads).decode("utf-8", errors="ignore").replace("\r\n", "\n")
    *blocks, _ = text.split("\n\n")
    events = []
    for block in blocks:
        lines = [line[5:] for line in block.split("\n") if line.startswith("data:")]
        if lines:
            events.append("\n".join(line[1:] if line[:1] == " " else line for line in lines))
    return events


def _ttft_by_filter(sent_ms, events):
    def usable(chunk):
        deltas = [choice["delta"] for choice in chunk["choices"]]
        names = {"content", "reasoning", "reasoning_content", "tool_calls"}
        return [value for delta in deltas for key, value in delta.items() if key in names and value]

    return next((at - sent_ms for at, chunk in events if usable(chunk)), None)


def _tpot_by_mean_gap(sent_ms, arrivals_ms, tokens):
    if not tokens or tokens == 1 or len(set(arrivals_ms)) == 1:
        return None
    gaps = [b - a for a, b in itertools.pairwise(arrivals_ms)]
    return statistics.mean(gaps) * len(gaps) / (tokens - 1)


def _percentile_by_counting(samples, p, failures):
    everything = sorted([*samples, *[float("inf")] * failures])
    return next(x for i, x in enumerate(everything, 1) if 100 * i >= p * len(everything))


def _what_by_ratio(reported, run):
    if not all(run.get(key) is not None for key in lab05.NEEDED):
        raise ValueError
    near = [key for key in ("ttft_ms", "e2e_ms") if 0.9 <= reported / run[key] <= 1.1]
    return {0: "neither", 2: "either"}.get(len(near)) or {"ttft_ms": "TTFT", "e2e_ms": "end to end"}[near[0]]


RIGHT_ANOTHER_WAY = (
    ("5.1", _sse_by_blocks),
    ("5.2", _ttft_by_filter),
    ("5.3", _tpot_by_mean_gap),
    ("5.4", _percentile_by_counting),
    ("5.4", lambda samples, p, failures: measure.nearest_rank([*samples, *[math.inf] * failures], p / 100)),
    ("5.9", _what_by_ratio),
)


@pytest.mark.parametrize(("exercise_id", "answer"), RIGHT_ANOTHER_WAY)
def test_a_right_answer_by_another_way_is_accepted(exercise_id, answer):
    result = check.evaluate(find(exercise_id), answer)
    assert result.state == check.CORRECT, result.text


def _first_choice(chunk):
    return any(chunk["choices"][0]["delta"].get(key) for key in lab05.OUTPUT_KEYS) if chunk["choices"] else False


def _ranked(samples, failures):
    return sorted([*samples, *[math.inf] * failures])


def _rank_up(samples, p, failures):
    return math.ceil(p * (len(samples) + failures) / 100)


def _one_character_more(stream):
    return {**stream, "characters": stream["characters"] + 1}


WRONG_BUT_CLOSE = (
    ("5.1", lambda reads: b"".join(reads).decode().replace("data: ", "").split("\n\n")[:-1], "returned 0 of them"),
    ("5.1", lambda reads: lab05.sse_data([r.decode(errors="replace").encode() for r in reads]), "cut in two is lost"),
    ("5.2", lambda sent, events: events[0][0] - sent, "nothing that anyone can use"),
    ("5.2", lambda sent, events: next((at - sent for at, c in events if _first_choice(c)), None), "look at each"),
    (
        "5.3",
        lambda sent, at, n: None if n is None or n == 1 or at[0] == at[-1] else (at[-1] - at[0]) / (n - 1),
        "N = 0",
    ),
    ("5.3", lambda sent, at, n: (at[-1] - at[0]) / (n - 1) if n and n > 1 else None, "its pace was not seen"),
    ("5.3", lambda sent, at, n: lab05.tpot_ms(sent, at, n) or 0.0, "return None"),
    ("5.4", lambda samples, p, failures: lab05.percentile(samples, p, 0), "the failures are missing"),
    ("5.4", lambda samples, p, failures: _ranked(samples, failures)[_rank_up(samples, p, failures)], "index r − 1"),
    ("5.6", lambda stream, reported: lab05._diagnosis(stream, reported, tolerance=0.05), "expected ['unexplained'"),
    (
        "5.6",
        lambda stream, reported: lab05._diagnosis(stream, reported, tolerance=0.003),
        "expected ['right', 'events']",
    ),
    ("5.6", lambda stream, reported: lab05.diagnose(_one_character_more(stream), reported), "expected ['right', 'char"),
    ("5.7", lambda arrivals, service: list(service), "the wait for a busy server is missing"),
    ("5.9", lambda reported, run: "TTFT", "expected 'end to end'"),
    (
        "5.9",
        lambda reported, run: _what_by_ratio(reported, {"output_tokens": 9, **run}),
        "must raise",
    ),
    ("5.9", lambda reported, run: _what_by_ratio(reported, {**run, "input_tokens": 9}), "must raise"),
    ("5.9", lambda reported, run: _what_by_ratio(reported, {**run, "ttft_ms": run["ttft_ms"] or 1.0}), "must raise"),
    ("5.9", lambda reported, run: _what_by_ratio(reported, {**run, "e2e_ms": run["e2e_ms"] or 1.0}), "must raise"),
)


@pytest.mark.parametrize(("exercise_id", "answer", "said"), WRONG_BUT_CLOSE)
def test_an_answer_that_is_nearly_right_is_rejected_and_told_why(exercise_id, answer, said):
    result = check.evaluate(find(exercise_id), answer)
    assert result.state == check.NOT_YET
    assert said in result.text


def test_a_wrong_number_of_events_and_a_none_are_explained_by_the_mistake_that_made_them():
    def only_content(sent_ms, events):
        found = [at for at, chunk in events for c in chunk["choices"] if c["delta"].get("content")]
        return found[0] - sent_ms if found else None

    assert "has output before its first `content`" in check.evaluate(find("5.2"), only_content).text
    lines = check.evaluate(find("5.1"), lab05._sse(each_line=True)).text
    assert "returned 2 of them" in lines
    assert "several `data:` lines before it are one event" in lines
