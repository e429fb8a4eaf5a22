"""What a request may say, and that everything else is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.serve import ByteTokenizer
from helpers.serve.protocol import (
    ApiError,
    ServedModel,
    parse_chat,
    parse_completion,
    parse_json,
    parse_tokenize,
    server_sent_event,
)

MODEL = ServedModel("tiny", ByteTokenizer(300), 300, 64)
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "tiny", "prompt": "Hi"}


def test_what_clients_send_is_understood():
    call = parse_chat(
        CHAT
        | {
            "max_completion_tokens": 5,
            "temperature": 0,
            "top_p": 0.5,
            "seed": 3,
            "stop": None,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "ignore_eos": True,
            "n": 1,
            "logprobs": False,
            "presence_penalty": 0.0,
            "user": "somebody",
            "a_field_of_tomorrow": {"x": 1},
            "return_timings": True,
        },
        MODEL,
    )
    assert bytes(call.prompt).decode() == "user: Hi\nassistant:"
    sampling = call.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (5, 0.0, 0.5, 3)
    assert (sampling.stop, sampling.ignore_eos) == ((), True)
    assert call.stream and call.include_usage and call.continuous_usage and call.return_timings


@pytest.mark.parametrize(("stop", "wanted"), [("x", ("x",)), (["x", "yz"], ("x", "yz")), ([], ()), (None, ())])
def test_stop_is_a_text_or_a_list(stop, wanted):
    assert parse_completion(TEXT | {"stop": stop}, MODEL).sampling.stop == wanted


@pytest.mark.parametrize("prompt", ["Hi", ["Hi"], [72, 105], [[72, 105]]])
def test_a_prompt_is_a_text_or_token_ids(prompt):
    assert parse_completion({"prompt": prompt}, MODEL).prompt == (72, 105)


def test_defaults_are_those_of_the_api():
    assert parse_completion(TEXT, MODEL).sampling.max_tokens == 16
    assert parse_chat(CHAT, MODEL).sampling.max_tokens == 64 - len("user: Hi\nassistant:")
    assert parse_chat(CHAT, MODEL).sampling.temperature == 1.0
    assert parse_chat(CHAT | {"max_tokens": 7}, MODEL).sampling.max_tokens == 7


def test_a_chat_may_come_in_parts_and_speak_as_developer():
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    body = {"messages": [{"role": "developer", "content": "Be kind."}, {"role": "user", "content": parts}]}
    assert bytes(parse_chat(body, MODEL).prompt).decode() == "system: Be kind.\nuser: Hi\nassistant:"


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ({"model": "other"}, 404, "'other' does not exist"),
        ({"model": 3}, 400, "model must be a text"),
        ({"messages": []}, 400, "at least one message"),
        ({"messages": "Hi"}, 400, "messages must be a list"),
        ({"messages": ["Hi"]}, 400, r"messages\[0\] must be an object"),
        ({"messages": [{"role": "robot", "content": "x"}]}, 400, r"messages\[0\].role"),
        ({"messages": [{"role": "user"}]}, 400, r"messages\[0\].content must be a text, not null"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "part that is not text"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, 400, "surrogate"),
        ({"messages": [{"role": "user", "content": "x" * 100}]}, 400, "are 64; the prompt has 117 tokens"),
        ({"max_tokens": 46}, 400, "19 prompt tokens and 46 to generate"),
        ({"max_tokens": 0}, 400, "max_tokens must be a whole number from 1"),
        ({"max_tokens": "9"}, 400, 'not "9"'),
        ({"max_tokens": True}, 400, "max_tokens"),
        ({"max_tokens": 2.5}, 400, "max_tokens"),
        ({"max_tokens": 4, "max_completion_tokens": 5}, 400, "contradict"),
        ({"temperature": -0.1}, 400, "temperature must be a number from 0 to 2"),
        ({"temperature": 1e-9}, 400, "temperature"),
        ({"temperature": "hot"}, 400, "temperature"),
        ({"top_p": 0}, 400, "top_p must be above 0"),
        ({"top_p": 1.1}, 400, "top_p"),
        ({"seed": 2**64}, 400, "seed"),
        ({"stop": ["a", ""]}, 400, "stop"),
        ({"stop": [1]}, 400, "stop"),
        ({"stop": ["a"] * 17}, 400, "stop"),
        ({"min_tokens": 3, "stop": "a"}, 400, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, 400, "min_tokens"),
        ({"stream": "yes"}, 400, "stream must be true or false"),
        ({"stream_options": {"include_usage": True}}, 400, "only for stream"),
        ({"stream": True, "stream_options": 3}, 400, "stream_options must be an object"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options.include_usage"),
        ({"n": 2}, 400, "n 2 is not supported"),
        ({"n": True}, 400, "n true is not supported"),
        ({"logprobs": True}, 400, "logprobs true"),
        ({"logprobs": 0}, 400, "logprobs 0"),
        ({"tools": [{"type": "function"}]}, 400, "tools"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty"),
        ({"logit_bias": {"5": 1}}, 400, "logit_bias"),
    ],
)
def test_a_bad_field_is_refused_by_name(change, status, reason):
    with pytest.raises(ApiError, match=reason) as caught:
        parse_chat(CHAT | change, MODEL)
    assert caught.value.status == status
    assert "\n" not in str(caught.value)
    json.dumps(caught.value.as_json())


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ("", "empty"),
        ([], "empty"),
        (None, "one text or one list"),
        (["a", "b"], "one text or one list"),
        ([1, "a"], "one text or one list"),
        ([True], "one text or one list"),
        ([300], "token id 300, the vocabulary has 300"),
        ([-1], "token id -1"),
    ],
)
def test_a_bad_prompt_is_refused(prompt, reason):
    with pytest.raises(ApiError, match=reason):
        parse_completion({"prompt": prompt}, MODEL)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b'"x"', b"null", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(body):
    with pytest.raises(ApiError, match="the request body") as caught:
        parse_json(body)
    assert caught.value.status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    *CHAT,
    "prompt",
    "max_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "n",
    "tools",
]


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), st.sampled_from([parse_chat, parse_completion]))
def test_any_value_in_any_field_is_understood_or_refused(change, parse):
    base = CHAT if parse is parse_chat else TEXT
    try:
        call = parse(base | change, MODEL)
    except ApiError as error:
        assert error.status in (400, 404)
    else:
        assert len(call.prompt) + call.sampling.max_tokens <= 64


def test_tokenize_takes_a_text_or_a_chat():
    assert parse_tokenize({"prompt": "Hi"}, MODEL) == [72, 105]
    assert bytes(parse_tokenize(CHAT, MODEL)).decode() == "user: Hi\nassistant:"
    with pytest.raises(ApiError, match="prompt must be a text"):
        parse_tokenize({}, MODEL)


@given(st.text())
def test_an_event_is_two_lines_whatever_it_says(text):
    event = server_sent_event({"text": text.encode("utf-8", "replace").decode()}).decode()
    assert event.endswith("\n\n") and len(event[:-1].splitlines()) == 1
    assert json.loads(event.removeprefix("data: "))["text"] == text.encode("utf-8", "replace").decode()
