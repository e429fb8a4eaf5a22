"""The paged cache in fewer bits gives what the contiguous one in as many bits gives, and takes the bytes predicted."""

import pytest
import torch

from helpers.engine.paged_quantized import QuantizedPagedKVCache
from helpers.engine.quantized_cache import STORES, QuantizedKVCache, predicted_nbytes
from helpers.errors import InputError
from helpers.serve import Engine, Options


def contiguous_answer(decoder, prompt, count, store):
    cache = QuantizedKVCache(decoder.model, 1, len(prompt) + count, store=store)
    tokens = [int(decoder(torch.tensor([prompt]), cache).argmax())]
    while len(tokens) < count:
        tokens.append(int(decoder(torch.tensor([tokens[-1:]]), cache).argmax()))
    return tokens


@pytest.mark.parametrize("store", STORES)
def test_batched_answers_equal_the_contiguous_caches(tiny, bytes_tokenizer, collected, until_idle, store):
    prompts = [[1, 2, 3], [7] * 30, list(range(50, 80)), [7] * 33]
    options = Options(kv_dtype=store, kv_blocks=26, block_tokens=4, prefill_chunk=8, speculate=2)
    engine = Engine(tiny, bytes_tokenizer, options)
    requests = [collected(prompt, max_tokens=10) for prompt in prompts]
    for request in requests:
        engine.submit(request)
    until_idle(engine)
    assert [request.answer for request in requests] == [contiguous_answer(tiny, p, 10, store) for p in prompts]


@pytest.mark.parametrize("store", STORES)
def test_bytes_are_those_predicted(tiny, store):
    cache = QuantizedPagedKVCache(tiny.model, 5, 8, store=store)
    assert cache.nbytes == predicted_nbytes(tiny.model, 40, store)


def test_a_fork_keeps_its_scales_when_it_is_written_to(tiny):
    cache = QuantizedPagedKVCache(tiny.model, 8, 4, store="int8")
    sequence = cache.new_sequence()
    tiny(torch.tensor([[1, 2]]), cache.view([sequence]))
    twin = cache.fork(sequence)
    for one, token in ((twin, 9), (sequence, 5)):
        got = tiny(torch.tensor([[token]]), cache.view([one]))
        alone = QuantizedKVCache(tiny.model, 1, 3, store="int8")
        tiny(torch.tensor([[1, 2]]), alone)
        torch.testing.assert_close(got, tiny(torch.tensor([[token]]), alone), atol=1e-5, rtol=1e-5)


def test_another_format_is_refused(tiny, bytes_tokenizer):
    with pytest.raises(InputError, match="'int3' is not known"):
        Engine(tiny, bytes_tokenizer, Options(kv_dtype="int3"))
    assert not isinstance(Engine(tiny, bytes_tokenizer, Options(kv_dtype="fp32")).cache, QuantizedPagedKVCache)
