"""Attention in blocks is the attention of the definition, and the decoder takes it where it says so."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import parse_config
from helpers.engine import KVCache, causal_attention, decoder, random_decoder
from helpers.engine.causal_attention import BLOCK, LONGEST, MOST_THREADS, SHORTEST, attend_causal, in_blocks
from tests.engine.conftest import tiny_config


@pytest.fixture
def threads():
    """Sets torch's number of threads, and puts it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def by_definition(queries, keys, values):
    """softmax(Q Kᵀ / √D) V, a query and a head at a time, in fp64."""
    batch, count, heads, head_dim = queries.shape
    groups = heads // keys.shape[1]
    out = torch.empty(batch, count, heads, head_dim, dtype=torch.float64)
    for head in range(heads):
        k, v = keys[:, head // groups].double(), values[:, head // groups].double()
        for t in range(count):
            scores = torch.einsum("bd,bsd->bs", queries[:, t, head].double(), k[:, : t + 1]) / head_dim**0.5
            out[:, t, head] = torch.einsum("bs,bsd->bd", scores.softmax(-1), v[:, : t + 1])
    return out.reshape(batch, count, -1)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 3),
    count=st.sampled_from([1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5]),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    head_dim=st.sampled_from([2, 5]),
    number=st.integers(1, MOST_THREADS),
)
def test_attention_in_blocks_is_that_of_the_definition(batch, count, kv_heads, groups, head_dim, number):
    generator = torch.Generator().manual_seed(count)
    queries = 3 * torch.randn(batch, count, kv_heads * groups, head_dim, generator=generator)
    # Views of a longer cache, of which the later slots must not be read.
    cache = torch.full((2, batch, kv_heads, count + 3, head_dim), torch.nan)
    cache[..., :count, :] = torch.randn(2, batch, kv_heads, count, head_dim, generator=generator)
    keys, values = cache[..., :count, :]
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        got = attend_causal(queries, keys, values)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(got.double(), by_definition(queries, keys, values), atol=1e-4, rtol=1e-4)


def test_it_is_taken_for_fp32_prompts_of_middle_length_on_few_threads(threads):
    def taken(count, dtype=torch.float32):
        return in_blocks(torch.empty(1, count, 2, 4, dtype=dtype))

    threads(MOST_THREADS)
    assert taken(SHORTEST) and taken(LONGEST)
    assert not taken(SHORTEST - 1) and not taken(LONGEST + 1) and not taken(SHORTEST, torch.bfloat16)
    threads(MOST_THREADS + 1)
    assert not taken(SHORTEST)


@pytest.mark.parametrize("kind", ["llama-untied", "qwen3"])
def test_a_decoder_computes_the_same_with_it_and_without(kind, monkeypatch, threads):
    threads(2)
    model = parse_config({**tiny_config(kind), "max_position_embeddings": 512}, kind)
    engine = random_decoder(model)
    tokens = torch.randint(0, 97, (2, SHORTEST + 9), generator=torch.Generator().manual_seed(1))
    calls = []

    def counted(*args):
        calls.append(1)
        return attend_causal(*args)

    monkeypatch.setattr(decoder, "attend_causal", counted)
    cache = KVCache(model, 2, 512)
    got = engine(tokens, cache, "all")
    assert len(calls) == len(model.layers)
    engine.attention = "naive"
    torch.testing.assert_close(got, engine(tokens, logits="all"), atol=1e-5, rtol=1e-4)
    # A second chunk has keys before it: no plain causal attention, and not this kernel.
    engine.attention = "fused"
    engine(tokens[:, : SHORTEST - 20], cache)
    assert len(calls) == len(model.layers)


def test_a_left_padded_batch_does_not_take_it(monkeypatch, threads):
    threads(2)
    monkeypatch.setattr(causal_attention, "SHORTEST", 4)
    model = parse_config(tiny_config("llama-untied"), "llama")
    engine, cache = random_decoder(model), KVCache(model, 2, 20)
    cache.reset([0, 3])
    tokens = torch.randint(0, 97, (2, 12), generator=torch.Generator().manual_seed(2))
    padded = engine(tokens, cache)
    torch.testing.assert_close(padded[1], engine(tokens[1:, 3:])[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(padded[0], engine(tokens[:1])[0], atol=1e-5, rtol=1e-4)
