"""A paged KV cache: blocks of a few tokens in one pool, handed out as sequences grow, shared where they agree.

A contiguous cache reserves the longest request for every request. Here a sequence holds the blocks it has filled and
less than one more (Kwon et al. 2023, PagedAttention). The decoder reads through a block table. This one gathers the
blocks of all sequences into one tensor first, which is simple and reads everything twice; the paged-attention kernel
of a serving engine follows the table as it reads, and copies nothing.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from helpers.accounts import Model
from helpers.engine.blocks import BlockManager, OutOfBlocks
from helpers.engine.dtypes import torch_dtype
from helpers.engine.kv_cache import Span
from helpers.errors import InputError


class PagedSequence:
    """One sequence in a `PagedKVCache`: the `tokens` whose keys and values it holds, and the `blocks` they lie in.

    `cached_tokens`: how many of the prompt were found in the cache, so need no prefill.
    """

    def __init__(self, tokens: list[int], blocks: list[int], digests: list[bytes]) -> None:
        self.tokens, self.blocks, self.digests = tokens, blocks, digests
        self.cached_tokens = len(tokens)

    @property
    def length(self) -> int:
        """Tokens held."""
        return len(self.tokens)


class PagedKVCache:
    """Keys and values in `blocks` blocks of `block_tokens` tokens, [2, kv heads, blocks · block_tokens, D] a layer.

    ``sequence = cache.new_sequence(prompt)`` shares the full blocks that hold the start of this prompt already;
    ``decoder(tokens, cache.view([sequence]))`` with the tokens from ``prompt[sequence.length:]`` is its prefill, in as
    many pieces as wanted, and ``decoder(tokens [B, 1], cache.view(sequences))`` a decode step of B sequences of any
    lengths. Each call takes the blocks it needs, or raises OutOfBlocks and changes nothing. ``cache.free(sequence)``
    ends it. With `prefix_caching` off, new sequences share nothing.

    Raises InputError where `blocks` or `block_tokens` is not above zero.
    """

    def __init__(
        self,
        model: Model,
        blocks: int,
        block_tokens: int = 16,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        prefix_caching: bool = True,
    ) -> None:
        for value, name in ((blocks, "blocks"), (block_tokens, "block_tokens")):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise InputError(f"{name} must be a whole number above zero, not {value!r}")
        self.model, self.blocks, self.block_tokens = model, blocks, block_tokens
        self.dtype, self.device = torch_dtype(dtype), torch.device(device)
        self.prefix_caching = prefix_caching
        slots = blocks * block_tokens
        self._allocate([(2, layer.attention.kv_heads, slots, layer.attention.head_dim) for layer in model.layers])
        self.manager = BlockManager(blocks)
        self._sequences: set[PagedSequence] = set()

    def _allocate(self, shapes: list[tuple[int, ...]]) -> None:
        # Zeros for the same reason as in KVCache: what is masked out is read all the same.
        self.pool = [torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes]

    def _tensors(self) -> list[torch.Tensor]:
        """All memory of the pool, each tensor [2, kv heads, blocks · block_tokens, something]."""
        return self.pool

    @property
    def nbytes(self) -> int:
        """Bytes allocated, all blocks: 2 · Σ layers kv heads · blocks · block_tokens · D · bytes per element."""
        return sum(tensor.nbytes for tensor in self._tensors())

    @property
    def free_blocks(self) -> int:
        """Blocks that no sequence holds."""
        return self.manager.free_blocks

    @property
    def used_nbytes(self) -> int:
        """Bytes of the blocks that sequences hold, a shared block once."""
        return self.nbytes // self.blocks * (self.blocks - self.free_blocks)

    def blocks_needed(self, tokens: int, sequence: PagedSequence | None = None) -> int:
        """Free blocks that `tokens` more tokens of `sequence` take, or without one those of a new sequence.

        ceil(tokens / block_tokens), less what the sequence has room for, and one more where its last block is shared.
        """
        if sequence is None:
            return -(-tokens // self.block_tokens)
        return self._growth(sequence, tokens) + self._writes_shared(sequence, tokens)

    def new_sequence(self, prompt_tokens: Sequence[int] = ()) -> PagedSequence:
        """A sequence that holds what is cached of the start of `prompt_tokens`, in full blocks, and nothing else.

        At least the last prompt token is left to compute: its logits give the first new token.
        """
        found: list[int] = []
        digests: list[bytes] = []
        while self.prefix_caching and (len(found) + 1) * self.block_tokens < len(prompt_tokens):
            digest = self._digest(prompt_tokens, len(found), digests)
            if (block := self.manager.find(digest)) is None:
                break
            found.append(block)
            digests.append(digest)
        for block in found:
            self.manager.share(block)
        sequence = PagedSequence(list(prompt_tokens[: len(found) * self.block_tokens]), found, digests)
        self._sequences.add(sequence)
        return sequence

    def fork(self, sequence: PagedSequence) -> PagedSequence:
        """A second sequence with the same tokens so far, sharing all blocks; who writes a shared one copies it."""
        self._check(sequence)
        shared = sequence.blocks[: self.blocks_needed(sequence.length)]
        for block in shared:
            self.manager.share(block)
        twin = PagedSequence(list(sequence.tokens), list(shared), list(sequence.digests))
        self._sequences.add(twin)
        return twin

    def extend(self, sequence: PagedSequence, tokens: int) -> None:
        """Hold blocks for `tokens` more tokens of `sequence` from now on; the decoder's call does it where it is due.

        Raises OutOfBlocks, with nothing changed, where too few are free.
        """
        self._extend([sequence], tokens)

    def truncate(self, sequence: PagedSequence, length: int) -> None:
        """Forget the tokens of `sequence` from the `length`-th on, and release the blocks that held only these.

        Speculative decoding takes back what it guessed wrongly. Raises InputError for more tokens than it holds.
        """
        self._check(sequence)
        if not 0 <= length <= sequence.length:
            raise InputError(f"a sequence of {sequence.length} tokens cannot be cut to {length}")
        kept = self.blocks_needed(length)
        for block in reversed(sequence.blocks[kept:]):
            self.manager.release(block)
        full = length // self.block_tokens
        if full < kept and full < len(sequence.digests) and self.manager.references(sequence.blocks[full]) == 1:
            self.manager.unregister(sequence.blocks[full])
        del sequence.tokens[length:], sequence.blocks[kept:], sequence.digests[full:]

    def free(self, sequence: PagedSequence) -> None:
        """End `sequence` and release its blocks. Raises InputError where it has ended already."""
        self._check(sequence)
        self._sequences.remove(sequence)
        # Last block first: what is freed first is handed out first, and the start of a prompt is what others share.
        for block in reversed(sequence.blocks):
            self.manager.release(block)

    def view(self, sequences: Sequence[PagedSequence]) -> "PagedView":
        """These sequences as the cache of a decoder call, row i of its tokens for the i-th of them.

        Raises InputError where there is none, one has ended, or one is named twice.
        """
        if not sequences:
            raise InputError("a view needs at least one sequence")
        for sequence in sequences:
            self._check(sequence)
        if len(set(sequences)) < len(sequences):
            raise InputError("a view cannot hold the same sequence twice: fork it")
        return PagedView(self, list(sequences))

    def _check(self, sequence: PagedSequence) -> None:
        if sequence not in self._sequences:
            raise InputError("this sequence is not in this cache: it has been freed, or belongs to another")

    def _growth(self, sequence: PagedSequence, tokens: int) -> int:
        return max(0, -(-(sequence.length + tokens) // self.block_tokens) - len(sequence.blocks))

    def _writes_shared(self, sequence: PagedSequence, tokens: int) -> bool:
        """Whether the next `tokens` begin inside a block that others read."""
        last, offset = divmod(sequence.length, self.block_tokens)
        return tokens > 0 and offset > 0 and self.manager.references(sequence.blocks[last]) > 1

    def _extend(self, sequences: list[PagedSequence], tokens: int) -> None:
        for sequence in sequences:
            self._check(sequence)
        writers = [sequence for sequence in sequences if self._writes_shared(sequence, tokens)]
        sharers = Counter(sequence.blocks[sequence.length // self.block_tokens] for sequence in writers)
        # Of all that share a block, the last to write it may keep it.
        copies = sum(min(count, self.manager.references(block) - 1) for block, count in sharers.items())
        needed = copies + sum(self._growth(sequence, tokens) for sequence in sequences)
        if needed > self.free_blocks:
            raise OutOfBlocks(needed, self.free_blocks)
        for sequence in sequences:
            if self._writes_shared(sequence, tokens):
                self._copy_last(sequence)
            sequence.blocks += [self.manager.allocate() for _ in range(self._growth(sequence, tokens))]

    def _copy_last(self, sequence: PagedSequence) -> None:
        last = sequence.length // self.block_tokens
        shared, own = sequence.blocks[last], self.manager.allocate()
        for tensor in self._tensors():
            blocks = self._by_block(tensor)
            blocks[:, :, own] = blocks[:, :, shared]
        self.manager.release(shared)
        sequence.blocks[last] = own

    def _by_block(self, layer: torch.Tensor) -> torch.Tensor:
        """One layer's pool as [2, kv heads, blocks, block_tokens, D]."""
        return layer.view(2, layer.shape[1], self.blocks, self.block_tokens, layer.shape[3])

    def _digest(self, tokens: Sequence[int], index: int, before: list[bytes]) -> bytes:
        """Names the content of block `index`: its tokens and, by the digest of the block before, all earlier ones."""
        block = [int(token) for token in tokens[index * self.block_tokens : (index + 1) * self.block_tokens]]
        return hashlib.sha256((before[index - 1] if index else b"") + str(block).encode()).digest()

    def _append_tokens(self, sequence: PagedSequence, tokens: list[int]) -> None:
        sequence.tokens += tokens
        if not self.prefix_caching:
            return
        for index in range(len(sequence.digests), sequence.length // self.block_tokens):
            sequence.digests.append(self._digest(sequence.tokens, index, sequence.digests))
            self.manager.register(sequence.blocks[index], sequence.digests[index])


@dataclass(frozen=True)
class PagedSpan(Span):
    """A span whose tokens lie in blocks: `table` [B, blocks], the blocks of each sequence; short rows repeat one."""

    table: torch.Tensor


class PagedView:
    """Some sequences of a `PagedKVCache` as the cache of a decoder call; see `PagedKVCache.view`."""

    fixed_memory = False
    """Blocks come and go: a recorded CUDA graph would read the old ones."""

    def __init__(self, cache: PagedKVCache, sequences: list[PagedSequence]) -> None:
        self.cache, self.sequences = cache, sequences
        self.model, self.dtype, self.device = cache.model, cache.dtype, cache.device
        self.batch, self.max_tokens = len(sequences), cache.model.max_position_embeddings

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(sequence.length for sequence in self.sequences)

    def span(self, tokens: torch.Tensor) -> PagedSpan:
        """Where tokens [B, T] go: the next T of each sequence, in blocks that are taken now. May raise OutOfBlocks."""
        count = tokens.shape[1]
        self.cache._extend(self.sequences, count)
        self._new_tokens = tokens.tolist()
        lengths = [sequence.length for sequence in self.sequences]
        end = max(lengths) + count
        width = self.cache.blocks_needed(end)
        rows = [(sequence.blocks + sequence.blocks[:1] * width)[:width] for sequence in self.sequences]
        table = torch.tensor(rows, device=self.device)
        positions = torch.tensor(lengths, device=self.device)[:, None] + torch.arange(count, device=self.device)
        block_tokens = self.cache.block_tokens
        slots = table.gather(1, positions // block_tokens) * block_tokens + positions % block_tokens
        # As in KVCache: only rows of different length, or a chunk after a past, need a mask.
        causal = max(lengths) == 0
        plain = causal or (count == 1 and min(lengths) == max(lengths))
        mask = None if plain else (torch.arange(end, device=self.device) <= positions[:, :, None])[:, None]
        return PagedSpan(slots.flatten(), end, positions, mask, causal, table)

    def append(
        self, layer: int, span: PagedSpan, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values [B, T, K, D] of one layer; returns all that are read, [B, K, S, D] each."""
        pool = self.cache.pool[layer]
        self._write(pool, span, keys, values)
        if span.causal:
            return keys.transpose(1, 2), values.transpose(1, 2)
        read = self._read(pool, span)
        return read[0], read[1]

    def _write(self, pool: torch.Tensor, span: PagedSpan, keys: torch.Tensor, values: torch.Tensor) -> None:
        for part, new in zip(pool, (keys, values), strict=True):
            part.index_copy_(1, span.slots, new.flatten(0, 1).transpose(0, 1))

    def _read(self, pool: torch.Tensor, span: PagedSpan) -> torch.Tensor:
        """All tokens of the span's sequences from a pool [2, K, slots, D], as [2, B, K, S, D]."""
        # [2, K, B · blocks, block_tokens, D] is [2, K, B, S, D]: blocks of a row follow each other.
        read = self.cache._by_block(pool).index_select(2, span.table.flatten())
        return read.view(2, pool.shape[1], self.batch, -1, pool.shape[3])[:, :, :, : span.end].transpose(1, 2)

    def advance(self, count: int) -> None:
        """Count the tokens of the call as held; blocks that are full now can be shared."""
        for sequence, new in zip(self.sequences, self._new_tokens, strict=True):
            self.cache._append_tokens(sequence, new)
