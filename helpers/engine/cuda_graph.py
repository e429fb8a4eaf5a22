"""The decode step as a CUDA graph: hundreds of kernel launches replayed as one, so the host is not the limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from helpers.engine.decoder import Decoder
    from helpers.engine.kv_cache import KVCache

READ_STEP = 512
"""A graph reads a fixed number of cache slots, a multiple of this: at most so many more than are filled."""


class GraphedStep:
    """The decode step of one decoder on one cache, recorded once for each multiple of `READ_STEP` slots read.

    Called with tokens [B, 1] and the cache, both on the GPU, it returns the logits [B, vocab] and writes the slot
    ``cache.length``; the caller advances the length. A graph works on fixed memory: tokens and slot are copied to
    where it reads them, the logits away from where it writes them. So it serves the one cache that it recorded.
    """

    def __init__(self, decoder: Decoder, batch: int) -> None:
        self.decoder = decoder
        self.tokens = torch.zeros(batch, 1, dtype=torch.long, device=decoder.device)
        self.slot = torch.zeros(1, dtype=torch.long, device=decoder.device)
        self.recorded: dict[tuple[int, str], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def __call__(self, tokens: torch.Tensor, cache: KVCache) -> torch.Tensor:
        self.tokens.copy_(tokens)
        self.slot.fill_(cache.length)
        key = (slots_read(cache.length + 1, cache.max_tokens), self.decoder.attention)
        if key not in self.recorded:
            self.recorded[key] = self._record(cache, key[0])
        graph, logits = self.recorded[key]
        graph.replay()
        return logits.clone()

    def step(self, cache: KVCache, end: int) -> torch.Tensor:
        """The computation that is recorded, reading `end` slots; any device can run it."""
        return self.decoder.forward(self.tokens, cache.fixed_span(self.slot, end), cache, last_only=True)

    def _record(self, cache: KVCache, end: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        # Warm-up on a side stream, as torch asks: libraries allocate their workspaces outside the recording. It
        # writes the slot that the replay writes again.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self.step(cache, end)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self.step(cache, end)
        return graph, logits


def slots_read(needed: int, max_tokens: int) -> int:
    """`needed` rounded up to a multiple of `READ_STEP`, at most the cache's `max_tokens`."""
    return min(max_tokens, -(-needed // READ_STEP) * READ_STEP)
