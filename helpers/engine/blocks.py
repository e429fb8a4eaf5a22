"""Which block of a paged KV cache belongs to how many sequences: a free list, reference counts, and content."""


class OutOfBlocks(Exception):
    """A paged cache has too few free blocks; nothing was changed, so a scheduler may free a sequence and try again."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(f"{needed} blocks of KV cache are needed, {free} are free")
        self.needed, self.free = needed, free


class BlockManager:
    """The book-keeping of `blocks` blocks, numbered from 0; it holds no keys or values.

    A block is free or has one reference for each sequence that reads it. A full block may be registered under a digest
    of its content. It stays findable when freed, until it is handed out again: the longest free goes first.
    """

    def __init__(self, blocks: int) -> None:
        self._references = [0] * blocks
        self._free = dict.fromkeys(range(blocks))  # In the order in which they became free.
        self._digest_of: dict[int, bytes] = {}
        self._block_with: dict[bytes, int] = {}

    @property
    def free_blocks(self) -> int:
        """Blocks without a reference."""
        return len(self._free)

    def references(self, block: int) -> int:
        """How many sequences read `block`."""
        return self._references[block]

    def allocate(self) -> int:
        """A free block, now with one reference. Raises OutOfBlocks where there is none."""
        if not self._free:
            raise OutOfBlocks(1, 0)
        block = next(iter(self._free))
        del self._free[block]
        if (digest := self._digest_of.pop(block, None)) is not None:
            del self._block_with[digest]
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference to a block that is in use, or that was freed and not yet handed out again."""
        self._free.pop(block, None)
        self._references[block] += 1

    def release(self, block: int) -> None:
        """One reference less; the last one frees the block. Raises ValueError where it is free already."""
        if self._references[block] == 0:
            raise ValueError(f"block {block} is free already")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._free[block] = None

    def register(self, block: int, digest: bytes) -> None:
        """Make a full block findable by `digest`; where another block holds the same content, that one stays."""
        if digest not in self._block_with and block not in self._digest_of:
            self._digest_of[block], self._block_with[digest] = digest, block

    def unregister(self, block: int) -> None:
        """Make a block that is about to be written over findable no more."""
        if (digest := self._digest_of.pop(block, None)) is not None:
            del self._block_with[digest]

    def find(self, digest: bytes) -> int | None:
        """The block registered under `digest`, or None."""
        return self._block_with.get(digest)
