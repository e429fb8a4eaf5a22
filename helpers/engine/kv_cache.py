"""The KV cache: keys and values of every token so far, allocated once for the longest request.

What the decoder asks of any cache: `span(tokens)`, where the new tokens go and what each may read; for every layer
`append(layer, span, keys, values)`, which stores the new and returns all that are read; `advance(count)` at the end.
"""

from dataclasses import dataclass

import torch

from helpers.accounts import Model
from helpers.engine.dtypes import torch_dtype
from helpers.errors import InputError


@dataclass(frozen=True)
class Span:
    """Where the T new tokens of one call go in a cache, and which of its first `end` tokens S they may read.

    `slots` index the stored tokens. `positions` [B or 1, T] are those of the new tokens in their sequences. `mask`
    bool [B, 1, T, S], True where readable; None where a new token reads all before it: then `causal` says whether
    the T new tokens are all there is, so that plain causal attention serves.
    """

    slots: torch.Tensor
    end: int
    positions: torch.Tensor
    mask: torch.Tensor | None
    causal: bool


class KVCache:
    """Keys and values of `batch` sequences of up to `max_tokens` tokens, [B, kv heads, max_tokens, head_dim] a layer.

    All rows share one length: slot j holds the j-th token of every row. Shorter prompts are padded on the *left*, by
    `padding` [B] slots which no real token attends to; so a decode step writes one slot, the same in each row.

    The decoder writes and reads it in place: what `append` returns are views, nothing is copied.

    Raises InputError where `batch` or `max_tokens` is not above zero, or `max_tokens` is beyond the model's positions.
    """

    fixed_memory = True
    """Its memory never moves, so a decode step on it can be recorded as a CUDA graph."""

    def __init__(
        self,
        model: Model,
        batch: int,
        max_tokens: int,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        for value, name in ((batch, "batch"), (max_tokens, "max_tokens")):
            if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
                raise InputError(f"{name} must be a whole number above zero, not {value!r}")
        if max_tokens > model.max_position_embeddings:
            raise InputError(
                f"{max_tokens} tokens do not fit: {model.name} has max_position_embeddings "
                f"{model.max_position_embeddings}"
            )
        self.model, self.batch, self.max_tokens = model, batch, max_tokens
        self.dtype, self.device = torch_dtype(dtype), torch.device(device)
        self._allocate(
            [(batch, layer.attention.kv_heads, max_tokens, layer.attention.head_dim) for layer in model.layers]
        )
        self.padding = torch.zeros(batch, dtype=torch.long, device=device)
        self.graphed_step = None  # The decode step recorded on this memory, where a GPU replays it.
        self.reset()

    def reset(self, padding: list[int] | None = None) -> None:
        """Forget all tokens; `padding`: how many left slots of each row the next prompts leave unused."""
        self.length = 0
        self.padded = padding is not None and any(padding)
        self.padding.copy_(torch.tensor(padding if padding is not None else [0] * self.batch))

    def _allocate(self, shapes: list[tuple[int, ...]]) -> None:
        # Zeros, not empty: a slot that is masked out still enters a product, and 0 × NaN is NaN.
        self.keys = [torch.zeros(shape, dtype=self.dtype, device=self.device) for shape in shapes]
        self.values = [torch.zeros_like(keys) for keys in self.keys]

    def span(self, tokens: torch.Tensor) -> Span:
        """Where tokens [B, T] go: the next T slots, the same in each row."""
        count = tokens.shape[1]
        slots = torch.arange(self.length, self.length + count, device=self.device)
        if self.padded:
            return self.fixed_span(slots, self.length + count)
        # One token sees the whole cache, a fresh prompt is plain causal; anything else needs its mask spelled out.
        mask = visible(slots, self.length + count, self.padding) if self.length > 0 and count > 1 else None
        return Span(slots, self.length + count, slots[None], mask, causal=self.length == 0)

    def fixed_span(self, slots: torch.Tensor, end: int) -> Span:
        """The span of `slots` [T] that reads the first `end` slots, right for any slots below `end` and any padding.

        Nothing is concluded from Python numbers, which a recorded CUDA graph needs.
        """
        positions = (slots - self.padding[:, None]).clamp(min=0)
        return Span(slots, end, positions, visible(slots, end, self.padding), causal=False)

    def append(
        self, layer: int, span: Span, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store new keys and values [B, T, K, D] of one layer; returns all that are read, [B, K, S, D] each."""
        self.keys[layer].index_copy_(2, span.slots, keys.transpose(1, 2))
        self.values[layer].index_copy_(2, span.slots, values.transpose(1, 2))
        return self.keys[layer][:, :, : span.end], self.values[layer][:, :, : span.end]

    def advance(self, count: int) -> None:
        """Count `count` more tokens as held, once every layer has appended them."""
        self.length += count

    @property
    def nbytes(self) -> int:
        """Bytes allocated: 2 · Σ layers B · kv heads · max_tokens · head_dim · bytes per element."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))

    @property
    def held_nbytes(self) -> int:
        """Bytes of the slots filled so far, padding included: nbytes · length / max_tokens."""
        return self.nbytes // self.max_tokens * self.length


def visible(slots: torch.Tensor, end: int, padding: torch.Tensor) -> torch.Tensor:
    """Which of the first `end` slots each query at `slots` [T] of each row may read: bool [B, 1, T, end].

    Those up to its own that are not left padding. A padding query reads itself: something, so that no softmax is empty.
    """
    keys, queries = torch.arange(end, device=slots.device), slots[:, None]
    return ((keys <= queries) & ((keys >= padding[:, None, None]) | (keys == queries)))[:, None]
