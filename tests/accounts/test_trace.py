"""Reading traces: the public files as they are, and anything else refused with its line."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import InputError
from helpers.accounts.trace import TraceRequest, read_trace, trace_rows

CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9305900,396,109"
JSONL = (
    '{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}\n'
    '\n{"timestamp": 4000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}\n'
)


@pytest.fixture
def written(tmp_path):
    """Write a trace file and give its path."""

    def write(content, name="trace"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.mark.parametrize("text", [CSV, CSV.replace("\n", "\r\n"), "\ufeff" + CSV + "\n\n"])
def test_azures_csv_is_read_with_any_line_end(written, text):
    first, second = read_trace(written(text))
    assert first == TraceRequest(374, 44, 0.0)
    assert (second.prompt_tokens, second.output_tokens, second.cache_tokens) == (396, 109, 504)
    assert second.arrival_s == pytest.approx(4.25, abs=1e-4)


def test_mooncakes_jsonl_is_read_with_times_in_seconds(written):
    assert read_trace(written(JSONL)) == (TraceRequest(6758, 500, 0.0), TraceRequest(7322, 490, 3.0))


def test_columns_may_stand_in_another_order_and_times_may_be_seconds(written):
    text = "GeneratedTokens,Model,ContextTokens,TIMESTAMP\n5,a,7,12.5\n6,b,8,10\n"
    assert read_trace(written(text)) == (TraceRequest(7, 5, 2.5), TraceRequest(8, 6, 0.0))


@pytest.mark.parametrize(
    "text",
    [
        "prompt_tokens,at_s,output_tokens\n7,12.5,5\n8,10,6\n",
        '{"at_s": 12.5, "prompt_tokens": 7, "output_tokens": 5}\n{"at_s": 10, "input_length": 8, "output_tokens": 6}',
    ],
)
def test_a_trace_of_ones_own_has_seconds(written, text):
    assert read_trace(written(text)) == (TraceRequest(7, 5, 2.5), TraceRequest(8, 6, 0.0))


@pytest.mark.parametrize(
    "text",
    ["at_s,prompt_tokens\n3,7\n4,\n", '{"at_s": 3, "prompt_tokens": 7, "output_tokens": null}\n{"at_s": 4}\n'],
)
def test_lengths_may_be_missing_only_where_they_are_not_asked_for(written, text):
    rows = trace_rows(written(text), lengths_required=False)
    assert [(row.arrival_s, row.prompt_tokens, row.output_tokens) for row in rows] == [(3, 7, None), (4, None, None)]
    with pytest.raises(InputError, match=r"line [12]: .*(output_tokens|output_length|GeneratedTokens)"):
        read_trace(written(text))


@pytest.mark.parametrize(
    ("name", "requests", "prompt_mean", "output_mean"),
    # Counted with another tool (awk): rows, mean prompt, mean output.
    [
        ("AzureLLMInferenceTrace_conv.csv", 19366, 1154.7, 211.1),
        ("AzureLLMInferenceTrace_code.csv", 8819, 2047.8, 27.9),
        ("mooncake_conversation_trace.jsonl", 12031, 12035.1, 342.6),
        ("mooncake_synthetic_trace.jsonl", 3993, 15325.5, 149.1),
    ],
)
def test_the_public_traces_are_read_whole(shared, name, requests, prompt_mean, output_mean):
    trace = read_trace(shared / "facts" / "traces" / name)
    assert len(trace) == requests
    assert sum(r.prompt_tokens for r in trace) / requests == pytest.approx(prompt_mean, abs=0.05)
    assert sum(r.output_tokens for r in trace) / requests == pytest.approx(output_mean, abs=0.05)
    assert min(r.arrival_s for r in trace) == 0
    assert max(r.arrival_s for r in trace) < 3600


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MALFORMED = {
    "an empty file": ("", "is empty"),
    "a header alone": (HEADER, "holds no request"),
    "another csv": ("time,prompt,output\n1,2,3\n", "line 1: column 'TIMESTAMP' is missing"),
    "a csv with a missing field": (CSV + "\n2023-11-16 18:15:51,3\n", "line 4: 2 fields in place of 3"),
    "a csv with a float": (HEADER + "1,2.5,3\n", "line 2: ContextTokens must be a whole number, not '2.5'"),
    "a csv with an empty field": (HEADER + "1,2,\n", "line 2: GeneratedTokens must be a whole number"),
    "a csv with no output": (HEADER + "1,2,3\n2,2,0\n", "line 3: GeneratedTokens must lie between 1 and"),
    "a csv with an absurd length": (HEADER + "1,999999999999,1\n", "line 2: ContextTokens must lie between 1 and"),
    "a csv with a bad time": (HEADER + "noon,2,3\n", "line 2: TIMESTAMP 'noon'"),
    "a csv with an endless time": (HEADER + "1e400,2,3\n", "line 2"),
    "a csv with an open quote": (HEADER + '1,2,"3\n', "line 2"),
    "a broken line of json": (JSONL + '{"timestamp": 1, "input', "line 4: not one JSON object a line"),
    "json without a key": (JSONL + '{"timestamp": 1, "input_length": 2}', "line 4: key 'output_length' is missing"),
    "json with a negative": ('{"timestamp": 1, "input_length": -2, "output_length": 1}', "line 1: input_length"),
    "json with true": ('{"timestamp": 1, "input_length": true, "output_length": 1}', "line 1: input_length"),
    "json with a list": ('{"timestamp": 1, "input_length": 2, "output_length": [1]}', "line 1: output_length"),
    "json with NaN": ('{"timestamp": NaN, "input_length": 2, "output_length": 1}', "line 1: timestamp"),
    "a json array": ('[{"timestamp": 1}]', "line 1: list in place of a JSON object"),
    "bytes": (b"\xff\xfe\x00", "is not UTF-8 text"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_refused_with_the_line(written, case):
    content, reason = MALFORMED[case]
    with pytest.raises(InputError) as refusal:
        read_trace(written(content))
    assert reason in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read the trace"):
        read_trace(tmp_path / "none.csv")


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=100).map(lambda text: (HEADER + text).encode("utf-8", "replace")),
        st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5), st.lists).map(
            lambda value: f'{{"timestamp": 1, "input_length": {value!r}, "output_length": 3}}'.encode(
                "utf-8", "replace"
            )
        ),
    )
)
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    try:
        trace = read_trace(path)
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert all(request.prompt_tokens >= 1 and request.output_tokens >= 1 for request in trace)
