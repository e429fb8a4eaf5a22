"""Prompt look-up drafts what followed the same words before, and counts what was right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.engine.speculative import accepted, propose


@pytest.mark.parametrize(
    ("tokens", "count", "draft"),
    [
        ([1, 2, 3, 9, 1, 2, 3], 2, [9, 1]),
        ([1, 2, 3, 4], 2, []),
        ([5], 3, []),
        ([], 3, []),
        ([7, 7], 3, [7, 7, 7]),
        ([1, 2, 1, 2], 5, [1, 2, 1, 2, 1]),
        ([1, 2, 3, 8, 2, 3, 9, 1, 2, 3], 1, [8]),  # The trigram, although the bigram occurred later.
        ([2, 3, 8, 2, 3, 9, 2, 3], 1, [9]),  # Of two occurrences the later.
        ([1, 2, 1], 0, []),
    ],
)
def test_a_draft_follows_the_last_longest_match(tokens, count, draft):
    assert propose(tokens, count) == draft


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 8))
def test_a_draft_has_the_length_asked_for_and_goes_on_as_the_text_did(tokens, count):
    draft = propose(tokens, count)
    repeats = len(tokens) > 0 and tokens[-1] in tokens[:-1]
    assert len(draft) == (count if repeats else 0)
    if draft:
        before = [i for i in range(len(tokens) - 1) if tokens[i] == tokens[-1]]
        assert draft[0] in {tokens[i + 1] for i in before}


@pytest.mark.parametrize(
    ("draft", "chosen", "right"), [([1, 2], [1, 2, 3], 2), ([1, 2], [1, 5, 3], 1), ([1, 2], [4, 2, 3], 0), ([], [4], 0)]
)
def test_accepted_counts_the_leading_right_guesses(draft, chosen, right):
    assert accepted(draft, chosen) == right
