"""The SSE grammar, and that no place where a stream is cut changes what it says."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.measure.sse import ServerSentEvent, SSEParser

STREAM = (
    b'\xef\xbb\xbfdata: {"a": "\xe7\x8c\xab\xf0\x9f\x98\xba \xe2\x80\xa8 x"}\r\n\r\n'
    b": keep-alive\n\n"
    b"event: token\rid: 7\rretry: 10\rdata:no space\rdata:  two spaces\r\r"
    b"data\n\n"
    b"event: lost\n\n"
    b"data: one\r\ndata: event\r\n\r\n"
    b": comment\nunknown: field\ndata: a\n\n"
    b"data: [DONE]\n\n"
)
EVENTS = [
    ("message", '{"a": "猫😺 \u2028 x"}'),
    ("token", "no space\n two spaces"),
    ("message", "one\nevent"),
    ("message", "a"),
    ("message", "[DONE]"),
]


def events_of(reads: list[bytes]) -> list[ServerSentEvent]:
    parser = SSEParser()
    return [event for read in reads for event in parser.feed(read)]


def said(events: list[ServerSentEvent]) -> list[tuple[str, str]]:
    return [(event.type, event.data) for event in events]


def test_the_whole_grammar_in_one_read():
    assert said(events_of([STREAM])) == EVENTS


@pytest.mark.parametrize("cut", range(1, len(STREAM)))
def test_one_cut_anywhere_changes_nothing_but_the_read(cut):
    assert said(events_of([STREAM[:cut], STREAM[cut:]])) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_many_cuts_change_nothing_and_an_event_belongs_to_the_read_that_completes_it(cuts):
    places = [0, *sorted(cuts), len(STREAM)]
    reads = [STREAM[a:b] for a, b in pairwise(places)]
    events = events_of(reads)
    assert said(events) == EVENTS
    for event in events:
        # Fed only up to the read before, the stream has not said it yet.
        before, upto = events_of(reads[: event.read]), events_of(reads[: event.read + 1])
        assert event not in before and event in upto


@given(
    st.lists(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n"), min_size=1)), st.data()
)
def test_any_text_comes_back_as_it_was_sent_with_any_line_end(texts, data):
    stream = b""
    for text in texts:
        end = data.draw(st.sampled_from([b"\n", b"\r", b"\r\n"]))
        stream += b"data: " + text.encode() + end + end
    size = data.draw(st.integers(1, 7))
    # A stream may begin with a byte order mark, which is not part of the text.
    assert [e.data for e in events_of([stream[i : i + size] for i in range(0, len(stream), size)])] == texts


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_no_bytes_at_all_raise(reads):
    parser = SSEParser()
    events = [event for read in reads for event in parser.feed(read)] + parser.close()
    assert all(0 <= event.read < max(len(reads), 1) for event in events)


def test_a_carriage_return_ends_its_line_at_once_and_the_line_feed_of_a_cut_pair_ends_nothing():
    events = events_of([b"data: a\r\n\r", b"\n", b"data: b\r", b"\ndata: c\r", b"\n", b"\r\n"])
    assert [(e.data, e.read) for e in events] == [("a", 0), ("b\nc", 5)]


def test_an_event_left_open_is_handed_out_only_at_a_clean_end():
    parser = SSEParser()
    assert parser.feed(b"data: [DONE]") == []
    assert said(parser.close()) == [("message", "[DONE]")]


def test_a_huge_event_in_small_reads_takes_linear_time_and_comes_whole():
    text = b"x" * 2_000_000
    stream = b"data: " + text + b"\n\n"
    parser = SSEParser()
    events = [e for i in range(0, len(stream), 1000) for e in parser.feed(stream[i : i + 1000])]
    assert [len(e.data) for e in events] == [len(text)]


def test_bytes_that_are_no_text_become_the_replacement_character_and_lose_no_event():
    assert [e.data for e in events_of([b"data: \xff\n\ndata: b\n\n"])] == ["\ufffd", "b"]
