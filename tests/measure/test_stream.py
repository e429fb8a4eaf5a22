"""Every timed stream on a simulated clock, exactly, and the habits of the servers one by one."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.measure.exchange import Exchange, Read
from helpers.measure.stream import read_stream
from tests.measure.stream_cases import simulated


def test_every_timed_stream_is_read_exactly(facts):
    cases = facts("stream-cases.json")
    assert cases
    wrong = []
    for case in cases:
        result = read_stream(simulated(case))
        for key, expected in case["expected"].items():
            got = getattr(result, key)
            # The file rounds to four digits.
            same = round(got, 4) == round(expected, 4) if isinstance(expected, float) and got else got == expected
            if not same:
                wrong.append((case["name"], key, expected, got))
    assert wrong == []


def test_a_timed_stream_cut_anywhere_says_the_same_but_for_the_times(facts):
    for case in facts("stream-cases.json"):
        whole = simulated(case)
        bytewise = Exchange(
            **{
                **vars(whole),
                "reads": tuple(Read(r.user_ns, r.data[i : i + 1]) for r in whole.reads for i in range(len(r.data))),
            }
        )
        a, b = read_stream(whole), read_stream(bytewise)
        for key in ("ttft_ms", "output_tokens", "finish_reason", "error", "error_code", "text", "events"):
            assert getattr(a, key) == getattr(b, key), (case["name"], key)


def event(**body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def delta(finish_reason: str | None = None, usage: dict | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return event(choices=[choice], **({"usage": usage} if usage else {}))


def usage(completion: int, prompt: int = 9, **more: object) -> dict:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        **more,
    }


def counted(completion: int) -> bytes:
    return event(choices=[], usage=usage(completion))


DONE = b"data: [DONE]\n\n"


def stream(*writes: tuple[float, bytes], cap: int | None = 16, end: str = "complete", **fields: object) -> Exchange:
    reads = tuple(Read(round(at_ms * 1e6), data) for at_ms, data in writes)
    return Exchange(
        request={"max_tokens": cap},
        start_ns=0,
        end=end,
        end_ns=reads[-1].user_ns if reads else 0,
        **{"reads": reads, "status": 200, "head_ns": 0, **fields},
    )


def test_a_tool_call_is_output():
    call = [{"index": 0, "id": "x", "type": "function", "function": {"name": "f", "arguments": ""}}]
    more = [{"index": 0, "function": {"arguments": "{}"}}]
    result = read_stream(
        stream(
            (5, delta(role="assistant", content=None)),
            (80, delta(tool_calls=call)),
            (100, delta(tool_calls=more)),
            (101, delta("tool_calls") + counted(5) + DONE),
        )
    )
    assert (result.ttft_ms, result.tpot_ms, result.error, result.events) == (80, 5, None, 2)
    assert result.finish_reason == "tool_calls"


def test_an_empty_text_token_opens_the_window_of_tpot_but_is_no_first_output():
    result = read_stream(
        stream(
            (10, delta(role="assistant", content="")),
            (100, delta(content="")),
            (120, delta(content="a")),
            (140, delta(content="b")),
            (141, delta("stop") + counted(3) + DONE),
        )
    )
    assert (result.ttft_ms, result.tpot_ms) == (120, 20)


def test_an_opening_delta_with_empty_content_is_no_token_whatever_it_carries():
    for opening in (
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": None},
        {},
        {"content": None},
    ):
        result = read_stream(
            stream((1, delta(**opening)), (50, delta(content="a")), (70, delta(content="b")), (71, counted(2) + DONE))
        )
        assert (result.ttft_ms, result.tpot_ms) == (50, 20), opening


def test_a_first_event_of_several_tokens_gives_a_second_figure_where_the_server_counts_per_event():
    result = read_stream(
        stream(
            (0, delta(role="assistant", content="", usage=usage(0))),
            (100, delta(content="a b c", usage=usage(3))),
            (120, delta(content=" d", usage=usage(4))),
            (140, delta(content=" e", usage=usage(5))),
            (141, delta("length", usage=usage(5)) + counted(5) + DONE),
        )
    )
    assert (result.tpot_ms, result.tpot_after_first_event_ms) == (10, 20)


def test_an_answer_held_back_and_sent_in_two_reads_at_once_shows_no_pace():
    result = read_stream(
        stream((100, delta(content="a") * 50), (100.2, delta(content="b") * 50 + counted(100) + DONE), cap=100)
    )
    assert (result.error, result.tpot_ms, result.tpot_note) == (None, None, "unobservable_single_burst")


def test_without_a_count_per_event_there_is_no_second_figure():
    result = read_stream(
        stream((100, delta(content="a b c")), (140, delta(content="d")), (141, delta("stop") + counted(4) + DONE))
    )
    assert result.tpot_ms == 40 / 3
    assert result.tpot_after_first_event_ms is None


@pytest.mark.parametrize(
    "failure",
    [
        event(error={"message": "engine failure", "code": 500}),
        b'event: error\ndata: {"message": "engine failure", "code": 500}\n\n',
        event(object="error", message="engine failure", code=500),
        event(
            choices=[
                {"index": 0, "delta": {}, "finish_reason": "error", "error": {"message": "engine failure", "code": 500}}
            ]
        ),
        event(error="engine failure", code=500),
    ],
)
def test_an_error_in_the_stream_fails_the_request_in_every_dialect(failure):
    after_tokens = read_stream(
        stream((100, delta(content="a")), (120, failure), (121, delta("stop") + counted(1) + DONE))
    )
    assert (after_tokens.error, after_tokens.output_tokens, after_tokens.ttft_ms) == ("stream_error", None, 100)
    assert (after_tokens.detail, after_tokens.error_code) == ("engine failure", 500)
    before = read_stream(stream((100, failure), (101, DONE)))
    assert (before.error, before.ttft_ms, before.tpot_ms, before.output_tokens) == ("stream_error", None, None, None)


def test_an_event_that_is_no_json_is_an_error_and_a_named_ping_is_not():
    assert read_stream(stream((1, b"data: {broken\n\n"), (2, DONE))).error == "stream_error"
    result = read_stream(
        stream((1, b"event: ping\ndata: 12:00\n\n"), (50, delta(content="a")), (51, delta("stop") + counted(1) + DONE))
    )
    assert (result.error, result.ttft_ms) == (None, 50)


def test_a_whole_answer_as_json_is_not_streaming():
    body = json.dumps(
        {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": usage(5)}
    ).encode()
    result = read_stream(stream((300, body), headers={"content-type": "application/json"}))
    assert (result.error, result.ttft_ms, result.tpot_ms, result.output_tokens) == ("not_streaming", None, None, None)


def test_an_error_object_with_status_200_is_an_error_and_shows_its_message():
    result = read_stream(stream((3, b'{"error": {"message": "no such model", "code": 404}}')))
    assert (result.error, result.detail, result.error_code) == ("stream_error", "no such model", 404)


def test_an_empty_body_is_truncated():
    assert read_stream(stream()).error == "truncated"


def test_done_without_a_finish_reason_is_complete():
    result = read_stream(stream((10, delta(content="a")), (30, delta(content="b")), (31, counted(2) + DONE)))
    assert (result.error, result.tpot_ms, result.finish_reason) == (None, 20, None)


def test_a_done_without_its_blank_line_at_a_clean_end_is_complete_and_at_a_cut_one_is_not():
    writes = ((10, delta(content="a")), (30, delta(content="b")), (31, counted(2) + b"data: [DONE]"))
    assert read_stream(stream(*writes)).error is None
    assert read_stream(stream(*writes, end="cut")).error == "connection"


@pytest.mark.parametrize(("end", "error"), [("cut", "connection"), ("timeout", "timeout"), ("left", "left")])
def test_a_stream_that_did_not_end_keeps_what_it_had_and_credits_nothing(end, error):
    result = read_stream(
        stream((10, delta(content="a", usage=usage(1))), (30, delta(content="b", usage=usage(2))), end=end)
    )
    assert (result.error, result.text, result.ttft_ms, result.events) == (error, "ab", 10, 2)
    assert (result.output_tokens, result.tpot_ms, result.e2e_ms, result.tpot_note) == (None, None, None, "failed")


@pytest.mark.parametrize("end", ["cut", "timeout", "done"])
def test_what_comes_after_the_finish_reason_does_not_matter(end):
    result = read_stream(
        stream((10, delta(content="a")), (30, delta(content="b")), (31, delta("stop") + counted(2)), end=end)
    )
    assert (result.error, result.tpot_ms) == (None, 20)


def test_completions_events_have_their_text_in_the_choice():
    def text(value: str, finish: str | None = None) -> bytes:
        return event(choices=[{"index": 0, "text": value, "finish_reason": finish}])

    result = read_stream(
        stream((40, text("")), (60, text("a")), (80, text("b")), (81, text("", "length") + counted(3) + DONE))
    )
    assert (result.ttft_ms, result.tpot_ms, result.text, result.finish_reason) == (60, 20, "ab", "length")


def test_content_as_a_list_of_parts_tells_thinking_from_the_answer():
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    result = read_stream(
        stream(
            (10, delta(content=thinking)),
            (30, delta(content=[{"type": "text", "text": "yes"}])),
            (31, delta("stop") + counted(2) + DONE),
        )
    )
    assert (result.ttft_ms, result.ttfa_ms, result.reasoning_text, result.text) == (10, 30, "hm", "yes")


@pytest.mark.parametrize(
    "last",
    [
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage(2)}]),
        event(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], x_groq={"usage": usage(2)}),
        delta("stop", usage=usage(2)),
        delta("stop") + event(choices=[], usage=usage(2)),
        delta("stop") + event(usage=usage(2)),
    ],
)
def test_usage_is_found_wherever_a_server_puts_it(last):
    result = read_stream(stream((10, delta(content="a")), (30, delta(content="b")), (31, last + DONE)))
    assert (result.output_tokens, result.tpot_ms, result.prompt_tokens) == (2, 20, 9)


def test_usage_on_the_event_of_the_last_token_counts_both():
    result = read_stream(
        stream((10, delta(content="a")), (30, delta("length", usage=usage(2), content="b")), (31, DONE))
    )
    assert (result.output_tokens, result.tpot_ms, result.text) == (2, 20, "ab")


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (usage(17), "cap"),
        (usage(0), "0 tokens"),
        ({"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 40}, "add up"),
    ],
)
def test_a_count_that_cannot_be_right_gives_no_tokens_and_no_tpot(said, why):
    result = read_stream(
        stream(
            (10, delta(content="a")),
            (30, delta(content="b")),
            (31, delta("stop") + event(choices=[], usage=said) + DONE),
        )
    )
    assert (result.error, result.output_tokens, result.tpot_ms, result.tpot_note) == (
        None,
        None,
        None,
        "token_count_suspect",
    )
    assert result.token_count_suspect and why in result.detail


@pytest.mark.parametrize("said", [True, -1, 2.5, "2", None])
def test_a_count_that_is_no_count_is_no_count(said):
    result = read_stream(
        stream(
            (10, delta(content="a")),
            (30, delta(content="b")),
            (31, delta("stop", usage={"completion_tokens": said}) + DONE),
        )
    )
    assert (result.output_tokens, result.token_count_source, result.tpot_note) == (None, "none", "token_count_unknown")


def test_two_choices_share_one_count_so_neither_has_a_tpot():
    other = event(choices=[{"index": 1, "delta": {"content": "z"}, "finish_reason": None}])
    result = read_stream(
        stream((10, delta(content="a")), (20, other), (30, delta(content="b")), (31, counted(3) + DONE))
    )
    assert (result.tpot_ms, result.tpot_note) == (None, "token_count_suspect")


def test_an_early_end_keeps_asked_and_actual_length_apart():
    result = read_stream(
        stream((10, delta(content="a")), (30, delta(content="b")), (31, delta("stop") + counted(2) + DONE))
    )
    assert (result.requested_output_tokens, result.output_tokens, result.length_mismatch) == (16, 2, True)


def test_ttft_from_the_intended_start_holds_the_delay_of_the_client():
    result = read_stream(
        stream((10, delta(content="a")), (30, delta("stop") + counted(1) + DONE), intended_ns=-5_000_000)
    )
    assert (result.ttft_ms, result.ttft_from_intended_ms, result.start_lag_ms) == (10, 15, 5)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "usage",
                    "completion_tokens",
                    "error",
                    "finish_reason",
                    "index",
                    "text",
                    "role",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=4), st.sampled_from(["complete", "cut", "done", "timeout"]))
def test_no_server_can_make_the_reader_raise_or_invent(bodies, end):
    result = read_stream(
        stream(*((i, b"data: " + json.dumps(b).encode() + b"\n\n") for i, b in enumerate(bodies)), end=end)
    )
    assert result.error is not None or result.ttft_ms is not None
    if result.tpot_ms is not None:
        assert result.error is None and result.output_tokens >= 2 and result.reads_with_output >= 1
