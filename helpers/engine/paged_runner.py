"""A decode step on a paged cache to be timed, beside `decode_runner`'s on a contiguous one."""

from collections.abc import Callable

import torch

from helpers.engine.decoder import Decoder
from helpers.engine.paged import PagedKVCache


def paged_decode_runner(decoder: Decoder, block_tokens: int = 16) -> Callable[[int, int], Callable[[], object]]:
    """From context and batch to one decode step at that context on a `PagedKVCache`, the same at every call.

    As `helpers.engine.decode_runner`, so it serves `decode_sweep`, and `paired` against that one.
    """

    def prepare(context: int, batch: int) -> Callable[[], object]:
        blocks_each = -(-context // block_tokens)
        cache = PagedKVCache(
            decoder.model, batch * blocks_each, block_tokens, decoder.dtype, decoder.device, prefix_caching=False
        )
        for layer in cache.pool:
            layer.normal_()
        sequences = [cache.new_sequence() for _ in range(batch)]
        # Taken in turn, as in a service: the blocks of one sequence lie apart.
        for tokens in range(block_tokens, (blocks_each + 1) * block_tokens, block_tokens):
            for sequence in sequences:
                cache.extend(sequence, min(tokens, context))
        tokens = torch.randint(decoder.model.vocab_size, (batch, 1), device=decoder.device)
        view, past = cache.view(sequences), [0] * (context - 1)

        def step():
            for sequence in sequences:
                # Back to the context of the first call; only the number of the tokens matters here.
                sequence.tokens = past.copy()
            return decoder(tokens, view)

        return step

    return prepare
