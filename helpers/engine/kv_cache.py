"""The KV cache: keys and values of every token so far, allocated once for the longest request."""

import torch

from helpers.accounts import Model
from helpers.engine.dtypes import torch_dtype
from helpers.errors import InputError


class KVCache:
    """Keys and values of `batch` sequences of up to `max_tokens` tokens, [B, kv heads, max_tokens, head_dim] a layer.

    All rows share one length: slot j holds the j-th token of every row. Shorter prompts are padded on the *left*, by
    `padding` [B] slots which no real token attends to; so a decode step writes one slot, the same in each row.

    Raises InputError where `batch` or `max_tokens` is not above zero, or `max_tokens` is beyond the model's positions.
    """

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
        shapes = [(batch, layer.attention.kv_heads, max_tokens, layer.attention.head_dim) for layer in model.layers]
        # Zeros, not empty: a slot that is masked out still enters a product, and 0 × NaN is NaN.
        self.keys = [torch.zeros(shape, dtype=torch_dtype(dtype), device=device) for shape in shapes]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.padding = torch.zeros(batch, dtype=torch.long, device=device)
        self.graphed_step = None  # The decode step recorded on this memory, where a GPU replays it.
        self.reset()

    def reset(self, padding: list[int] | None = None) -> None:
        """Forget all tokens; `padding`: how many left slots of each row the next prompts leave unused."""
        self.length = 0
        self.padded = padding is not None and any(padding)
        self.padding.copy_(torch.tensor(padding if padding is not None else [0] * self.batch))

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store keys and values [B, T, kv heads, head_dim] of one layer in `slots` [T]."""
        self.keys[layer].index_copy_(2, slots, keys.transpose(1, 2))
        self.values[layer].index_copy_(2, slots, values.transpose(1, 2))

    @property
    def nbytes(self) -> int:
        """Bytes allocated: 2 · Σ layers B · kv heads · max_tokens · head_dim · bytes per element."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))
