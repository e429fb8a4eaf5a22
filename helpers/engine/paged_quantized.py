"""A paged KV cache that stores fewer bits: `QuantizedKVCache`'s formats in `PagedKVCache`'s blocks."""

from collections.abc import Sequence

import torch

from helpers.accounts import Model
from helpers.engine.paged import PagedKVCache, PagedSequence, PagedSpan, PagedView
from helpers.engine.quantized_cache import STORES, scaled
from helpers.errors import InputError


class QuantizedPagedKVCache(PagedKVCache):
    """A `PagedKVCache` whose keys and values lie in memory as `store` says, one of `STORES`; the decoder sees `dtype`.

    A call reads back what it has stored, its own tokens included: so a prompt prefilled in pieces, or found in the
    cache, gives what it gives in one piece. Raises InputError for another store, and as `PagedKVCache` does.
    """

    def __init__(
        self,
        model: Model,
        blocks: int,
        block_tokens: int = 16,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        prefix_caching: bool = True,
        store: str = "int8",
    ) -> None:
        if store not in STORES:
            raise InputError(f"store {store!r} is not known: choose one of {', '.join(STORES)}")
        self.store = store
        super().__init__(model, blocks, block_tokens, dtype, device, prefix_caching)

    def _allocate(self, shapes: list[tuple[int, ...]]) -> None:
        stored = STORES[self.store]
        self.pool = [torch.zeros(shape, dtype=stored.dtype, device=self.device) for shape in shapes]
        scaled_shapes = shapes if stored.largest is not None else []
        self.scales = [torch.zeros((*shape[:-1], 1), device=self.device) for shape in scaled_shapes]

    def _tensors(self) -> list[torch.Tensor]:
        return [*self.pool, *self.scales]

    def view(self, sequences: Sequence[PagedSequence]) -> PagedView:
        """As `PagedKVCache.view`."""
        return QuantizedPagedView(self, super().view(sequences).sequences)


class QuantizedPagedView(PagedView):
    """Some sequences of a `QuantizedPagedKVCache` as the cache of a decoder call."""

    def append(
        self, layer: int, span: PagedSpan, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values [B, T, K, D] of one layer; returns all that are read back, [B, K, S, D] each."""
        stored, pool = STORES[self.cache.store], self.cache.pool[layer]
        if stored.largest is None:
            self._write(pool, span, stored.encode(keys), stored.encode(values))
            read = stored.decode(self._read(pool, span))
        else:
            (keys, key_scales), (values, value_scales) = (scaled(x, stored.largest) for x in (keys, values))
            self._write(pool, span, stored.encode(keys), stored.encode(values))
            self._write(self.cache.scales[layer], span, key_scales, value_scales)
            read = stored.decode(self._read(pool, span)) * self._read(self.cache.scales[layer], span)
        read = read.to(self.dtype)
        return read[0], read[1]
