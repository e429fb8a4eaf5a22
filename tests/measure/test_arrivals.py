"""When requests are sent: Poisson by its statistics, traces by the files as they are published."""

import itertools
import statistics

import pytest

from helpers.errors import InputError
from helpers.measure import ClosedLoop, OpenLoop, Trace, read_trace


def test_poisson_arrivals_have_the_rate_and_the_spread_of_poisson():
    times = OpenLoop(4.0, seed=3).times_s(20_000)
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    assert statistics.mean(gaps) == pytest.approx(0.25, rel=0.03)
    # An exponential distribution has its mean as standard deviation.
    assert statistics.stdev(gaps) == pytest.approx(0.25, rel=0.05)


def test_a_seed_gives_the_same_arrivals_again_and_another_gives_others():
    assert OpenLoop(2.0, 1).times_s(5) == OpenLoop(2.0, 1).times_s(9)[:5] != OpenLoop(2.0, 2).times_s(5)


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate):
    with pytest.raises(InputError, match="rate"):
        OpenLoop(rate)


@pytest.mark.parametrize("concurrency", [0, -1, 1.5])
def test_a_concurrency_that_is_none_is_refused(concurrency):
    with pytest.raises(InputError, match="concurrency"):
        ClosedLoop(concurrency)


@pytest.mark.parametrize("name", ["AzureLLMInferenceTrace_conv.csv", "mooncake_conversation_trace.jsonl"])
def test_published_traces_are_read_as_they_are(shared, name):
    trace = read_trace(shared / "facts" / "traces" / name, limit=200)
    assert len(trace.arrivals) == 200 and trace.arrivals[0].at_s == 0
    assert all(a.prompt_tokens >= 1 and a.output_tokens >= 1 for a in trace.arrivals)
    assert all(a.at_s <= b.at_s for a, b in itertools.pairwise(trace.arrivals))


def test_the_azure_times_are_read_to_the_last_digit(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    trace = read_trace(file)
    assert trace.arrivals[1].at_s == pytest.approx(4.314579, abs=1e-6)
    assert (trace.arrivals[1].prompt_tokens, trace.arrivals[1].output_tokens) == (396, 109)


def test_a_trace_of_ones_own_needs_times_only(tmp_path):
    file = tmp_path / "t.jsonl"
    file.write_text('{"at_s": 5}\n\n{"at_s": 5.5, "output_tokens": 3}\n')
    assert [(a.at_s, a.prompt_tokens, a.output_tokens) for a in read_trace(file).arrivals] == [
        (0, None, None),
        (0.5, None, 3),
    ]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is empty"),
        ("at_s\n", "no arrivals"),
        ('{"x": 1}\n', "line 1"),
        ('{"at_s": 1}\n{"at_s": 0}\n', "line 2"),
        ('{"at_s": 1}\n{broken\n', "line 2"),
        ("at_s,prompt_tokens\n0,5\n\n1,0\n", "line 4"),
        ("at_s\nnever\n", "line 2"),
        ("at_s\nnan\n", "line 2: at_s"),
        ("TIMESTAMP\n2023-99-99 00:00:00\n", "line 2: TIMESTAMP"),
        # Milliseconds in one family of files and seconds in the other: not guessed.
        ("timestamp\n5\n", "line 1: column 'TIMESTAMP'"),
        ("at_s,note\n0," + "x" * 200_000 + "\n", "line 2"),
    ],
)
def test_a_broken_trace_is_refused_by_file_and_line(tmp_path, text, named):
    file = tmp_path / "t.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=named) as error:
        read_trace(file)
    assert "t.txt" in str(error.value)


def test_a_trace_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="nowhere"):
        read_trace(tmp_path / "nowhere")
    with pytest.raises(InputError, match="empty"):
        Trace((), "empty")
