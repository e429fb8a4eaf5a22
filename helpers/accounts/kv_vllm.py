"""The KV cache as vLLM lays it out: blocks of equal bytes, groups of layers that share them, and what it prints.

Source: vllm/v1/core/kv_cache_utils.py, vllm/v1/kv_cache_interface.py and vllm/model_executor/models/config.py of
the vLLM project, as they stood in 2025 and 2026; start-up logs of real servers are reproduced in the tests.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from helpers.accounts.devices import Device
from helpers.accounts.inventory import check_tp
from helpers.accounts.kv import kv_width_elements
from helpers.accounts.model import Attention, FullAttention, Indexer, LatentAttention, Model
from helpers.accounts.state import window_elements
from helpers.accounts.state_mixers import StateMixer
from helpers.accounts.units import GIB, bytes_of, count, positive_int
from helpers.errors import InputError

PACKED_MLA = "fp8_ds_mla"
"""vLLM's name for the packed FP8 latent: 1 B per latent number, one fp32 scale per 128 of them, the rotary part bf16.

656 B per layer and token for DeepSeek's 512 + 64, where plain fp8 takes 576 B. Which one a server uses depends on its
attention backend (FlashMLA's sparse kernels take the packed one; SGLang stores it too), so it is asked for by name.
"""

_DTYPES = ("fp32", "fp16", "bf16", "fp8", "int8", PACKED_MLA)
_PACKED_GROUP = 128


@dataclass(frozen=True)
class VllmSettings:
    """Settings of a vLLM server that change its cache.

    `block_size`: tokens per block (16 by default; FlashMLA takes 64). `max_batched_tokens`: what a windowed layer
    holds beside its window while a prompt is read; the default depends on the card (`default_batched_tokens`), 8192 is
    that of an H100. `hybrid_manager` False is --disable-hybrid-kv-cache-manager, and how V0 did it:
    windowed layers are kept whole, and V0 kept state outside the pool. `state_blocks`: blocks of state a request
    holds in each group of state layers: 1, or 2 with prefix caching (mamba_cache_mode ``align``).
    """

    block_size: int = 16
    max_batched_tokens: int = 8192
    hybrid_manager: bool = True
    state_blocks: int = 1

    def __post_init__(self) -> None:
        for name in ("block_size", "max_batched_tokens", "state_blocks"):
            positive_int(getattr(self, name), name)


def default_batched_tokens(device: Device) -> int:
    """The --max-num-batched-tokens that `vllm serve` takes on `device`: 8192 from 70 GiB up, but 2048 on any A100.

    Below 70 GiB 2048. A card without a visible-memory figure here counts as large. Source:
    EngineArgs.get_batch_defaults in vllm/engine/arg_utils.py, and vllm-project/vllm pull request 17885 for the A100;
    offline use of the LLM class takes other ones.
    """
    small = device.visible_memory_bytes is not None and device.visible_memory_bytes < 70 * GIB
    return 2048 if small or "a100" in device.name.lower() else 8192


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share one block table: `layers` real ones and `padding` that only take memory.

    `kind` is ``full``, ``sliding``, ``chunked`` or ``state``; `block_tokens` the tokens of a block (of a state: 0).
    """

    kind: str
    layers: int
    padding: int
    block_tokens: int
    window: int | None = None


@dataclass(frozen=True)
class VllmLayout:
    """How one rank's cache is cut up: every block takes `block_bytes`, whichever group it serves."""

    groups: tuple[CacheGroup, ...]
    block_bytes: int
    settings: VllmSettings

    @property
    def padding_layers(self) -> int:
        """Layers allocated only to make the groups equal."""
        return sum(group.padding for group in self.groups)

    @property
    def smallest_block_tokens(self) -> int:
        """Tokens of the smallest block, by which vLLM counts the tokens it prints."""
        return min(group.block_tokens for group in self.groups if group.kind != "state")

    def attention_blocks(self, tokens: int) -> int:
        """Blocks that keys and values of one request of `tokens` tokens take at most, over all groups."""
        return sum(self._blocks(group, tokens) for group in self.groups if group.kind != "state")

    def state_blocks(self) -> int:
        """Blocks of state that one request takes, over all groups."""
        return sum(self.settings.state_blocks for group in self.groups if group.kind == "state")

    def request_blocks(self, tokens: int) -> int:
        """Blocks of one request: keys, values and state."""
        return self.attention_blocks(tokens) + self.state_blocks()

    def num_blocks(self, pool_bytes: float) -> int:
        """Blocks that fit in `pool_bytes`: floor(pool / block)."""
        return max(int(pool_bytes // self.block_bytes), 0)

    def max_concurrency(self, blocks: int, tokens: int) -> float:
        """The "Maximum concurrency for … tokens per request" that vLLM prints: blocks / blocks of a request."""
        return blocks / self.request_blocks(tokens)

    def printed_tokens(self, blocks: int, max_model_len: int | None = None) -> int:
        """The "GPU KV cache size: … tokens" that vLLM prints for `blocks` blocks.

        blocks // groups · smallest block, as V1 of 2025 printed it; with `max_model_len`
        int(max_concurrency · max_model_len), as later versions do. With one group of full attention both are
        blocks · block size, a real capacity; with more groups the first is none (see `is_capacity`).
        """
        if max_model_len is not None:
            return int(self.max_concurrency(blocks, max_model_len) * max_model_len)
        return blocks // len(self.groups) * self.smallest_block_tokens

    @property
    def is_capacity(self) -> bool:
        """Whether the printed tokens are tokens that fit: only where every layer keeps every token."""
        return len(self.groups) == 1 and self.groups[0].kind == "full"

    def longest_request(self, blocks: int, limit: int = 10**9) -> int:
        """The longest request, up to `limit` tokens, that `blocks` blocks hold; 0 where not even one token fits."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.request_blocks(middle) <= blocks else (low, middle - 1)
        return low

    def _blocks(self, group: CacheGroup, tokens: int) -> int:
        if tokens == 0:
            return 0
        batched = self.settings.max_batched_tokens
        if group.kind == "sliding":
            # One more: a window need not begin where a block does.
            return _ceil(min(group.window - 1 + batched, tokens), group.block_tokens) + 1
        if group.kind == "chunked":
            return _ceil(min(group.window + batched, tokens), group.block_tokens)
        return _ceil(tokens, group.block_tokens)


def vllm_layout(
    model: Model,
    dtype: str = "bf16",
    tp: int = 1,
    settings: VllmSettings | None = None,
    draft: Model | None = None,
) -> VllmLayout:
    """The cache of `model` on one of `tp` ranks as vLLM lays it out; the layers of a `draft` model share the pool.

    Layers alike in kind, window and width form groups of equal size: the smallest count of a kind, or the largest
    where that is below 1.5 times the smallest; the last group of a kind is padded. A block of one group takes
    group size · page bytes. Where pages differ, smaller ones hold more tokens; where there is state, the attention
    block grows, in steps of 16 tokens, until its page holds the state of one layer.

    Raises InputError for a dtype vLLM does not store, heads that do not divide, or a layout vLLM refuses.
    """
    settings = settings or VllmSettings()
    if dtype not in _DTYPES:
        raise InputError(f"kv dtype {str(dtype)[:40]!r} is not one vLLM stores; choose one of {', '.join(_DTYPES)}")
    pages = [page for one in (model, draft) if one is not None for page in _pages(one, dtype, tp, settings)]
    if not any(page.kind != "state" for page in pages):
        raise InputError(f"{model.name}: no layer keeps keys and values, so engine vllm has no blocks to count")
    pages = _grown_for_state(pages, model.name)
    if len({(page.kind, page.window) for page in pages}) == 1:
        # One kind of layer: one block table, whatever the widths.
        first = pages[0]
        group = CacheGroup(first.kind, len(pages), 0, first.tokens, first.window)
        return VllmLayout((group,), sum(page.bytes for page in pages), settings)
    return _grouped(_equal_pages(pages, model.name), settings)


def vllm_kv_bytes(model: Model, tokens: int, dtype: str, tp: int, settings: VllmSettings | None = None) -> int:
    """Bytes of the blocks that hold keys and values of one request of `tokens` tokens, on one of `tp` ranks."""
    layout = vllm_layout(model, dtype, tp, settings)
    return layout.attention_blocks(count(tokens, "tokens")) * layout.block_bytes


def vllm_bytes_per_token(attention: Attention, dtype: str, tp: int = 1) -> int:
    """Bytes that one token takes in one layer of vLLM's cache, on one of `tp` ranks.

    width · bytes per element; ``int8`` carries an fp32 scale for the key and for the value of every token and head;
    the packed latent is `PACKED_MLA`. Raises InputError where `dtype` does not fit the kind of attention.
    """
    if isinstance(attention, LatentAttention):
        return _latent_bytes(attention, dtype)
    if dtype == PACKED_MLA:
        raise InputError(f"kv dtype {PACKED_MLA} is for latent attention (MLA) alone")
    width = kv_width_elements(attention, tp)
    scales = 2 * _ceil(attention.kv_heads, tp) * 4 if dtype == "int8" else 0
    return bytes_of(width, dtype) + scales


def _latent_bytes(attention: LatentAttention, dtype: str) -> int:
    if dtype == "int8":
        raise InputError("kv dtype int8 is not known for latent attention (MLA) under vllm")
    if dtype != PACKED_MLA:
        return bytes_of(kv_width_elements(attention), dtype)
    if attention.kv_lora_rank % _PACKED_GROUP:
        raise InputError(f"kv dtype {PACKED_MLA} needs a kv_lora_rank divisible by {_PACKED_GROUP}")
    return attention.kv_lora_rank + attention.kv_lora_rank // _PACKED_GROUP * 4 + attention.qk_rope_head_dim * 2


def _state_page_bytes(mixer: StateMixer, model: Model, tp: int) -> int:
    # As STATE_RULES["vllm"] says, for one layer: formats of the model unless the config names one for the state.
    window = bytes_of(window_elements(mixer, tp), model.weights_dtype)
    return window + bytes_of(mixer.shard(tp).recurrent_elements, mixer.state_dtype or model.weights_dtype)


@dataclass(frozen=True)
class _Page:
    """One layer's part of a block: `tokens` tokens (a state: 0) in `bytes` bytes."""

    kind: str
    window: int | None
    tokens: int
    bytes: int


def _pages(model: Model, dtype: str, tp: int, settings: VllmSettings) -> Iterable[_Page]:
    check_tp(model, tp)
    tokens = settings.block_size
    for layer in model.layers:
        attention = layer.attention
        state = 0 if layer.state is None else _state_page_bytes(layer.state, model, tp)
        if state and settings.hybrid_manager:
            yield _Page("state", None, 0, state)
        if attention is None:
            continue
        if not isinstance(attention, FullAttention | LatentAttention):
            raise InputError(f"{model.name}: engine vllm is not known for {type(attention).__name__} layers")
        if isinstance(attention, LatentAttention):
            yield _Page("full", None, tokens, tokens * vllm_bytes_per_token(attention, dtype, tp))
            if attention.indexer is not None:
                yield _Page("full", None, tokens, tokens * _indexer_bytes(attention.indexer, model.name))
        elif not attention.shares_kv:
            kind, window = _kind(attention) if settings.hybrid_manager else ("full", None)
            yield _Page(kind, window, tokens, tokens * vllm_bytes_per_token(attention, dtype, tp))


def _kind(attention: FullAttention) -> tuple[str, int | None]:
    if attention.window is not None:
        return "sliding", attention.window
    return ("full", None) if attention.chunk is None else ("chunked", attention.chunk)


def _indexer_bytes(indexer: Indexer, name: str) -> int:
    """One token's key of the sparse-attention indexer: fp8, an fp32 scale per 128, in every kv dtype."""
    if indexer.head_dim % _PACKED_GROUP:
        raise InputError(f"{name}: engine vllm is not known for an indexer whose head_dim 128 does not divide")
    return indexer.head_dim + indexer.head_dim // _PACKED_GROUP * 4


def _grown_for_state(pages: list[_Page], name: str) -> list[_Page]:
    """Attention blocks grown until one holds a layer's state, and state padded to the page they then have."""
    state = max((page.bytes for page in pages if page.kind == "state"), default=0)
    if not state:
        return pages
    attention = [page for page in pages if page.kind != "state"]
    if len({page.bytes for page in attention}) > 1:
        raise InputError(f"{name}: engine vllm is not known for state beside attention layers of different widths")
    per_token = attention[0].bytes // attention[0].tokens
    tokens = max(attention[0].tokens, 16 * _ceil(state, 16 * per_token))
    return [_Page(page.kind, page.window, 0 if page.kind == "state" else tokens, tokens * per_token) for page in pages]


def _equal_pages(pages: list[_Page], name: str) -> list[_Page]:
    largest = max(page.bytes for page in pages)
    for page in pages:
        if largest % page.bytes:
            raise InputError(
                f"{name}: vLLM cannot lay out layers whose pages of {page.bytes:,} and {largest:,} bytes do not divide"
            )
    return [_Page(page.kind, page.window, page.tokens * (largest // page.bytes), largest) for page in pages]


def _grouped(pages: list[_Page], settings: VllmSettings) -> VllmLayout:
    kinds = Counter(pages)
    smallest, largest = min(kinds.values()), max(kinds.values())
    size = largest if largest < 1.5 * smallest else smallest
    groups = []
    for page, layers in kinds.items():
        number = _ceil(layers, size)
        for index in range(number):
            # Layers are dealt out in turn, so that pipeline stages get even groups.
            real = len(range(index, layers, number))
            groups.append(CacheGroup(page.kind, real, size - real, page.tokens, page.window))
    return VllmLayout(tuple(groups), size * pages[0].bytes, settings)


def growth_step(layout: VllmLayout) -> int:
    """Tokens after which every group has taken a whole number of blocks more: the least common block size."""
    return math.lcm(*(group.block_tokens for group in layout.groups if group.block_tokens))


def _ceil(value: int, by: int) -> int:
    return -(-value // by)
