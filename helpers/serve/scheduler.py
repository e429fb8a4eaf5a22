"""Which requests compute what in the next step: waiting → running → finished (continuous batching, Orca 2022).

A step is one piece of prefill work, then one decode step of every request that has its prefill behind it. Both happen
in one step but not in one product: the decoder takes rectangles, so a prefill piece is a call of its own. (vLLM puts
both into one forward pass.) With `prefill_chunk` a step prefills at most so many tokens, of as many prompts as they
reach (chunked prefill, Sarathi-Serve 2024); with 0 it prefills one whole prompt, however long the others must wait.

First come, first served, strictly: requests start in the order in which they arrived, a short one never overtakes a
long one that waits for blocks, and first tokens come in order of arrival. Where blocks run out, the request that
arrived last is preempted: its blocks are freed, it returns to the head of the queue, and what it had is computed anew
when there is room. The oldest is never preempted, so every request ends.
"""

from collections import deque
from dataclasses import dataclass

from helpers.engine.blocks import OutOfBlocks
from helpers.engine.speculative import propose
from helpers.serve.request import Request


@dataclass(frozen=True)
class Step:
    """What one step computes: tokens of some prompts, then the next token of all others."""

    prefill: tuple[tuple[Request, int], ...]
    decode: tuple[Request, ...]


class Scheduler:
    """The queue, the running batch and their blocks in `cache`; see the module for the policy.

    `cache` has the methods of `helpers.engine.PagedKVCache`. A request must fit the cache alone: whoever adds it
    checks that.
    """

    def __init__(self, cache, max_batch: int, prefill_chunk: int = 0, speculate: int = 0) -> None:
        self.cache, self.max_batch, self.prefill_chunk, self.speculate = cache, max_batch, prefill_chunk, speculate
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preemptions = 0
        self._refused: tuple[Request, int, int] | None = None  # Asking again is in vain while nothing changed.

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Put a new request at the end of the queue."""
        self.waiting.append(request)

    def remove(self, request: Request) -> None:
        """Forget a request, finished or left by its client, and free what it holds; nothing where it is gone."""
        if request in self.running:
            self.running.remove(request)
            self.cache.free(request.sequence)
            request.sequence = None
        elif request in self.waiting:
            self.waiting.remove(request)

    def next_step(self) -> Step:
        """The work of the next step, its blocks reserved."""
        # Decoding requests first: they are older than all that wait.
        for request in list(self.running):
            if request.decoding:
                self._reserve_decode(request)
        decode = tuple(request for request in self.running if request.decoding)
        return Step(tuple(self._prefill()), decode)

    def _reserve_decode(self, request: Request) -> None:
        request.draft = self._draft(request)
        while request.sequence is not None:
            try:
                self.cache.extend(request.sequence, 1 + len(request.draft))
                return
            except OutOfBlocks:
                # A guess is not worth a preemption.
                if request.draft:
                    request.draft = []
                else:
                    self._preempt(self.running[-1])

    def _draft(self, request: Request) -> list[int]:
        left = request.sampling.max_tokens - request.output_tokens
        # Drafts are checked against the largest logit; and the last token needs no draft after it.
        if request.sampling.temperature > 0 or request.sampling.min_tokens or left <= self.speculate:
            return []
        return propose(request.tokens, self.speculate)

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.cache.free(request.sequence)
        request.sequence, request.draft = None, []
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    def _prefill(self):
        """Pairs of a request and how many of its tokens to compute, the oldest request first."""
        budget = self.prefill_chunk
        for request in self._to_prefill():
            count = min(request.to_compute, budget) if self.prefill_chunk else request.to_compute
            yield request, count
            budget -= count
            if budget <= 0:
                return

    def _to_prefill(self):
        yield from [request for request in self.running if not request.decoding]
        while self.waiting and len(self.running) < self.max_batch and self._admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
            yield self.running[-1]

    def _admit(self, request: Request) -> bool:
        """Reserve blocks for all its tokens so far, sharing those in the cache; False where too few are free."""
        if self._refused == (request, self.cache.free_blocks, len(self.running)):
            return False
        sequence = self.cache.new_sequence(request.tokens)
        missing = len(request.tokens) - sequence.length
        # Each running request will want its next block soon: a newcomer that takes it is only preempted again.
        if self.cache.blocks_needed(missing, sequence) + len(self.running) > self.cache.free_blocks:
            self.cache.free(sequence)
            self._refused = (request, self.cache.free_blocks, len(self.running))
            return False
        self.cache.extend(sequence, missing)
        request.sequence = sequence
        if request.cached_tokens is None:
            request.cached_tokens = sequence.length
        return True
