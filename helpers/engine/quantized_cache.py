"""A KV cache stored in fewer bits: int8 or fp8 with a scale for each key and value of each head, or a 16-bit float.

Stored: round(x / scale), with scale = max |x| / largest over the D numbers of one head of one token. What is read is
turned back into the decoder's dtype first, [B, K, S, D] at every step: simple, and more work and memory traffic than
no quantisation at all. An engine's attention kernel reads the codes and scales them in registers, so half the bytes of
bf16 are read and none written: there it saves time as well as memory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from helpers.accounts import Model, kv_bytes
from helpers.accounts.kv_scales import kv_scale_bytes
from helpers.engine.fp8 import E4M3_LARGEST, casts_e4m3, from_e4m3, to_e4m3
from helpers.engine.kv_cache import KVCache, Span
from helpers.errors import InputError


@dataclass(frozen=True)
class Store:
    """A stored number format: `largest` |number|, None where nothing is scaled; `encode` and `decode` its codes."""

    dtype: torch.dtype
    largest: float | None
    encode: Callable[[torch.Tensor], torch.Tensor]
    decode: Callable[[torch.Tensor], torch.Tensor]


STORES = {
    "bf16": Store(torch.bfloat16, None, torch.Tensor.bfloat16, torch.Tensor.float),
    "fp16": Store(torch.float16, None, torch.Tensor.half, torch.Tensor.float),
    "int8": Store(torch.int8, 127.0, lambda x: x.round().to(torch.int8), torch.Tensor.float),
    "fp8": Store(torch.uint8, E4M3_LARGEST, to_e4m3, from_e4m3),
}
"""The formats a `QuantizedKVCache` stores, by the accounts' names."""


class QuantizedKVCache(KVCache):
    """A `KVCache` whose keys and values lie in memory as `store` says, one of `STORES`; the decoder sees `dtype`.

    `emulated`: this device has no cast to fp8, so that its rounding is computed (`helpers.engine.fp8`); the numbers and
    bytes are the same, the time is not. Raises InputError for another store, and as `KVCache` does.
    """

    def __init__(
        self,
        model: Model,
        batch: int,
        max_tokens: int,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        store: str = "int8",
    ) -> None:
        if store not in STORES:
            raise InputError(f"store {store!r} is not known: choose one of {', '.join(STORES)}")
        self.store = store
        self.emulated = store == "fp8" and not casts_e4m3(torch.device(device).type)
        super().__init__(model, batch, max_tokens, dtype, device)

    def _allocate(self, shapes: list[tuple[int, ...]]) -> None:
        stored = STORES[self.store]
        self.keys = [torch.zeros(shape, dtype=stored.dtype, device=self.device) for shape in shapes]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        scaled = shapes if stored.largest is not None else []
        self.key_scales = [torch.zeros((*shape[:-1], 1), device=self.device) for shape in scaled]
        self.value_scales = [torch.zeros_like(scales) for scales in self.key_scales]

    def append(
        self, layer: int, span: Span, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values [B, T, K, D] of one layer; returns all that are read back, [B, K, S, D] each."""
        sides = ((self.keys, self.key_scales, keys), (self.values, self.value_scales, values))
        read_keys, read_values = (
            self._store_and_read(codes[layer], scales[layer] if scales else None, span, new.transpose(1, 2))
            for codes, scales, new in sides
        )
        return read_keys, read_values

    def _store_and_read(
        self, codes: torch.Tensor, scales: torch.Tensor | None, span: Span, new: torch.Tensor
    ) -> torch.Tensor:
        stored = STORES[self.store]
        if scales is None:
            codes.index_copy_(2, span.slots, stored.encode(new))
            return stored.decode(codes[:, :, : span.end]).to(self.dtype)
        numbers, scale = scaled(new, stored.largest)
        codes.index_copy_(2, span.slots, stored.encode(numbers))
        scales.index_copy_(2, span.slots, scale)
        return (stored.decode(codes[:, :, : span.end]) * scales[:, :, : span.end]).to(self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes allocated, scales included."""
        return super().nbytes + sum(scales.nbytes for scales in (*self.key_scales, *self.value_scales))


def scaled(x: torch.Tensor, largest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x / scale within ± `largest`, and scale = max |x| / largest over the last dimension, [..., 1]; both fp32."""
    x = x.float()
    # A head of zeros keeps a scale above zero, so that 0 / scale is 0.
    scale = (x.abs().amax(-1, keepdim=True) / largest).clamp(min=torch.finfo(torch.float32).tiny)
    return (x / scale).clamp(-largest, largest), scale


def predicted_nbytes(model: Model, tokens: int, store: str) -> int:
    """Bytes of one sequence of `tokens` tokens by the accounts: numbers, and one fp32 scale for each key and value.

    For any format the accounts know; int8 and fp8 are scaled, see `kv_scale_bytes`.
    """
    scales = kv_scale_bytes(model, tokens) if store in STORES and STORES[store].largest is not None else 0
    return kv_bytes(model, tokens, store) + scales
