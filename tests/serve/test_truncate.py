"""Taking tokens back from a paged sequence: what is left is as if they had never been, shared blocks included."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine import PagedKVCache
from helpers.errors import InputError


def fill(decoder, cache, tokens):
    sequence = cache.new_sequence(tokens)
    rest = tokens[sequence.length :]
    if rest:
        decoder(torch.tensor([rest]), cache.view([sequence]))
    return sequence


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    cut=st.floats(0, 1),
    new=st.lists(st.integers(0, 1), min_size=1, max_size=6),
    forked=st.booleans(),
)
def test_a_truncated_sequence_goes_on_as_a_fresh_one(tiny, tokens, cut, new, forked):
    cache = PagedKVCache(tiny.model, 32, 4)
    sequence = fill(tiny, cache, tokens)
    twin = cache.fork(sequence) if forked else None
    kept = round(cut * len(tokens))
    cache.truncate(sequence, kept)
    assert sequence.tokens == tokens[:kept] and len(sequence.blocks) == -(-kept // 4)
    logits = tiny(torch.tensor([new]), cache.view([sequence]), logits="all")
    whole = tiny(torch.tensor([tokens[:kept] + new]), logits="all")
    torch.testing.assert_close(logits, whole[:, kept:], atol=1e-5, rtol=1e-5)
    # Nobody else is harmed: neither a fork, nor whoever finds these blocks by their content later.
    for text in (tokens, tokens[:kept] + new):
        later = cache.new_sequence([*text, 1])
        rest = [*text, 1][later.length :]
        found = tiny(torch.tensor([rest]), cache.view([later]))
        torch.testing.assert_close(found, tiny(torch.tensor([[*text, 1]])), atol=1e-5, rtol=1e-5)
        cache.free(later)
    if twin is not None:
        logits = tiny(torch.tensor([[1]]), cache.view([twin]))
        torch.testing.assert_close(logits, tiny(torch.tensor([[*tokens, 1]])), atol=1e-5, rtol=1e-5)
        cache.free(twin)
    cache.free(sequence)
    assert cache.free_blocks == 32


def test_a_sequence_cannot_be_cut_to_more_than_it_holds(tiny):
    cache = PagedKVCache(tiny.model, 4, 4)
    sequence = fill(tiny, cache, [1, 2])
    for length in (3, -1):
        with pytest.raises(InputError, match=f"a sequence of 2 tokens cannot be cut to {length}"):
            cache.truncate(sequence, length)
