"""Text as it streams is the text as a whole: characters whole, stop strings cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.serve import ByteTokenizer
from helpers.serve.text import TextStream, overlap

MIXED = st.lists(st.sampled_from(["a", "b", "ab", " ", "é", "中", "🙂", "\ufffd", "\n"]), max_size=30).map("".join)


def streamed(tokenizer, tokens, stop=()):
    stream = TextStream(tokenizer, stop)
    pieces = []
    for token in tokens:
        pieces.append(stream.push(token))
        if stream.stopped:
            break
    return [*pieces, stream.finish()], stream


@given(st.lists(st.integers(0, 255), max_size=40))
def test_any_bytes_stream_to_what_they_decode_to_together(tokens):
    pieces, _ = streamed(ByteTokenizer(), tokens)
    assert "".join(pieces) == ByteTokenizer().decode(tokens)


@given(MIXED)
def test_no_piece_of_a_real_text_holds_half_a_character(text):
    pieces, _ = streamed(ByteTokenizer(), list(text.encode()))
    assert "".join(pieces) == text
    assert sum(piece.count("\ufffd") for piece in pieces) == text.count("\ufffd")


@given(MIXED, st.lists(st.sampled_from(["ab", "b ", "中🙂", "a", "aab", "\n"]), max_size=3))
def test_a_stop_string_ends_the_text_before_it(text, stop):
    pieces, stream = streamed(ByteTokenizer(), list(text.encode()), stop)
    said = "".join(pieces)
    # Read one character at a time, the first stop string to be complete is the one that counts.
    ends = [(text.find(one) + len(one), text.find(one)) for one in stop if one in text]
    assert stream.stopped == bool(ends)
    first_end = min(ends, default=(len(text), len(text)))[0]
    starts = [start for end, start in ends if end == first_end]
    assert said == text[: min(starts, default=len(text))]


@pytest.mark.parametrize(
    "text", ["Hello, world! 1234", "日本語のテキスト。", "🙂👩‍👩‍👧 naïve café", "  two  spaces\n\n\tand tabs "]
)
def test_the_real_tokenizer_streams_to_what_it_decodes(smollm2_tokenizer, text):
    tokens = smollm2_tokenizer.encode(text)
    pieces, _ = streamed(smollm2_tokenizer, tokens)
    assert "".join(pieces) == smollm2_tokenizer.decode(tokens) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_what_may_begin_a_stop_string_is_held_back_and_then_said():
    stream = TextStream(ByteTokenizer(), ["END"])
    assert [stream.push(byte) for byte in b"aENxEN"] == ["a", "", "", "ENx", "", ""]
    assert stream.finish() == "EN"


@pytest.mark.parametrize(
    ("text", "stop", "held"), [("xab", "abc", 2), ("abc", "abc", 0), ("aa", "aaa", 2), ("x", "abc", 0)]
)
def test_overlap_is_the_longest_end_that_begins_the_stop(text, stop, held):
    assert overlap(text, stop) == held


@given(MIXED)
def test_the_byte_tokenizer_gives_back_every_text(text):
    tokenizer = ByteTokenizer(300)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text.encode())


def test_ids_beyond_the_bytes_are_one_visible_character_each():
    text = ByteTokenizer(49152).decode(list(range(256, 1256)))
    assert len(text) == 1000 and set(text) <= set("abcdefghijklmnopqrstuvwxyz ")
