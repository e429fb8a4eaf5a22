"""The two things the course times: one whole prefill, and one decode step at a fixed context."""

from collections.abc import Callable

import torch

from helpers.engine.decoder import Decoder
from helpers.engine.kv_cache import KVCache


def prefill_runner(decoder: Decoder) -> Callable[..., Callable[[], object]]:
    """For `prefill_sweep`: from a prompt length (and a batch) to one whole prefill of that many random tokens."""

    def prepare(prompt_tokens: int, batch: int = 1) -> Callable[[], object]:
        cache = KVCache(decoder.model, batch, prompt_tokens, decoder.dtype, decoder.device)
        tokens = torch.randint(decoder.model.vocab_size, (batch, prompt_tokens), device=decoder.device)

        def prefill():
            cache.length = 0
            return decoder(tokens, cache)

        return prefill

    return prepare


def decode_runner(decoder: Decoder) -> Callable[[int, int], Callable[[], object]]:
    """For `decode_sweep`: from context and batch to one decode step at that context, the same at every call."""

    def prepare(context: int, batch: int) -> Callable[[], object]:
        cache = KVCache(decoder.model, batch, context, decoder.dtype, decoder.device)
        for tensor in (*cache.keys, *cache.values):
            # Written: memory that was only asked for is one page of zeros, read from the processor's cache.
            tensor.normal_()
        tokens = torch.randint(decoder.model.vocab_size, (batch, 1), device=decoder.device)

        def step():
            cache.length = context - 1
            return decoder(tokens, cache)

        # The first step records the CUDA graph; that is no part of a decode step.
        step()
        return step

    return prepare
