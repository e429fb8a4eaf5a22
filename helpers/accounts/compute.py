"""The compute account: FLOPs of prefill and decode, the attention term apart.

One multiply-add is 2 FLOPs. Counted are the matrix products; norms, activations, rotary embedding, softmax, biases
and the look-up of the input embedding are left out (well under 1 % in real models).
"""

import math
from dataclasses import dataclass

from helpers.accounts.inventory import inventory
from helpers.accounts.kv import attended_tokens, indexed_keys
from helpers.accounts.model import Attention, CompressedAttention, FullAttention, LatentAttention, Layer, Model
from helpers.accounts.units import count, positive_int
from helpers.errors import InputError


@dataclass(frozen=True)
class Flops:
    """FLOPs of one sequence: `layers` (products with weights), `head` (the output matrix), `attention` (QKᵀ and PV).

    `state`: updating and reading the recurrent state of Mamba and linear attention, the same for every token.
    """

    layers: int
    head: int
    attention: int
    state: int = 0

    @property
    def weights(self) -> int:
        """Products with weights, head included: about 2 · active parameters per token."""
        return self.layers + self.head

    @property
    def total(self) -> int:
        """Weights, attention and state together."""
        return self.weights + self.attention + self.state


def decode_flops(model: Model, context: int, latent: str = "absorbed") -> Flops:
    """FLOPs of one decode step of one sequence whose new token attends to `context` tokens, itself included.

    weights = 2 · (active parameters in matrices); attention = Σ layers 4 · heads · head_dim · min(context, window)
    (or the tokens of the running chunk, or the `top_k` of an indexer, which itself scores every token);
    state = Σ layers 4 (delta rule: 6) · elements of the recurrent state, see `state_mixers`, whatever the context.
    MLA, `latent`: ``absorbed`` works on the cached latent, 2 · heads · (2 · kv_lora_rank + qk_rope_head_dim) per
    context token, as engines do in decode; ``expanded`` as if per-head keys and values were cached,
    2 · heads · (qk_head_dim + v_head_dim). The weight term is the same for both.

    Raises InputError for a context that is not a positive whole number. Source: arXiv:2405.04434, section 2.1.
    """
    positive_int(context, "context")
    layers, head = _weight_flops_per_token(model)
    attention = sum(
        _flops_per_pair(layer, latent) * attended_tokens(layer.attention, context)
        + _indexer_flops_per_pair(layer.attention) * indexed_keys(layer.attention, context)
        for layer in model.layers
    )
    return Flops(layers, head, attention, _state_flops_per_token(model))


def prefill_flops(
    model: Model,
    prompt_tokens: int,
    past_tokens: int = 0,
    logits: str = "last",
    causal: bool = True,
    latent: str = "expanded",
) -> Flops:
    """FLOPs of a prefill of `prompt_tokens` after `past_tokens` cached ones, one sequence.

    layers = N · 2 · matrices; head = 2 · hidden · vocab once (`logits` ``last``) or N times (``all``);
    attention = Σ layers 4 · heads · head_dim · pairs, where pairs = N(N+1)/2 + N · past: a query attends to itself
    and what lies before it, no further back than the window. `causal` False counts what a kernel without skipping
    computes, N · (N + past) pairs in every layer, no window, chunk or choice of an indexer: this is what
    ``torch.utils.flop_counter.FlopCounterMode`` counts on a `transformers` model.
    state = N · that of one token: the recurrent form; the chunked form of engines adds a little within each chunk.
    MLA, `latent`: as in `decode_flops`; ``expanded`` is the default here, and expands the latents of the past again.

    Raises InputError for counts that are not whole numbers or an unknown `logits` or `latent`.
    """
    positive_int(prompt_tokens, "prompt_tokens")
    count(past_tokens, "past_tokens")
    if logits not in ("last", "all"):
        raise InputError(f"logits must be 'last' or 'all', not {logits!r}")
    layers, head = _weight_flops_per_token(model)
    attention = 0
    for layer in model.layers:
        pairs, scored = _pairs(layer.attention, prompt_tokens, past_tokens, causal)
        attention += _flops_per_pair(layer, latent) * pairs + _indexer_flops_per_pair(layer.attention) * scored
        if latent == "expanded":
            attention += past_tokens * _expansion_flops(layer)
    heads, state = prompt_tokens if logits == "all" else 1, prompt_tokens * _state_flops_per_token(model)
    return Flops(layers * prompt_tokens, head * heads, attention, state)


def attended_pairs(tokens: int, past_tokens: int = 0, window: int | None = None) -> int:
    """Query–key pairs of `tokens` causal queries after `past_tokens`: Σ min(past + i, window) for i = 1..tokens."""
    if window is None:
        window = past_tokens + tokens
    growing = min(max(window - past_tokens, 0), tokens)
    return growing * past_tokens + growing * (growing + 1) // 2 + (tokens - growing) * window


def _pairs(attention: Attention | None, tokens: int, past_tokens: int, causal: bool) -> tuple[int, int]:
    """Query–key pairs that one layer's attention computes, and those that its indexer scores."""
    end = past_tokens + tokens
    if isinstance(attention, CompressedAttention):
        if not causal:
            entries = 0 if attention.rate is None else tokens * (end // attention.rate)
            return tokens * end + entries, entries
        entries, scored = (
            _entries_up_to(attention, end, limit) - _entries_up_to(attention, past_tokens, limit)
            for limit in (attention.indexer.top_k if attention.indexer else None, None)
        )
        return attended_pairs(tokens, past_tokens, attention.window) + entries, scored
    if not causal:
        return tokens * end, tokens * end
    scored = attended_pairs(tokens, past_tokens)
    if isinstance(attention, FullAttention) and attention.chunk is not None:
        return _chunk_pairs_up_to(end, attention.chunk) - _chunk_pairs_up_to(past_tokens, attention.chunk), scored
    return attended_pairs(tokens, past_tokens, _reach(attention)), scored


def _chunk_pairs_up_to(end: int, chunk: int) -> int:
    whole, rest = divmod(end, chunk)
    return whole * (chunk * (chunk + 1) // 2) + rest * (rest + 1) // 2


def _entries_up_to(attention: CompressedAttention, end: int, limit: int | None) -> int:
    """Σ min(⌊i / rate⌋, limit) for i = 1..end: the compressed blocks that the first `end` tokens read."""
    if attention.rate is None:
        return 0
    # The tokens before the first one that sees `limit` blocks; the rest see that many.
    growing = end if limit is None else min(end, limit * attention.rate - 1)
    whole, rest = divmod(growing, attention.rate)
    seen = attention.rate * (whole * (whole - 1) // 2) + whole * (rest + 1)
    return seen + (0 if limit is None else limit * (end - growing))


def attention_equals_weights_context(model: Model, latent: str = "absorbed") -> float:
    """Context at which one decode step spends as many FLOPs on attention as on weights.

    Solves Σ layers f · min(n, window) = weights; without windows n = weights / Σ f: about 28.6 k for Llama-3.1-8B.
    Returns ``math.inf`` where windows keep attention below the weights at any length. A chunk counts as a window.
    """
    weights = sum(_weight_flops_per_token(model))
    slopes = [slope for layer in model.layers for slope in _slopes(layer, latent)]
    at, reached = 0, 0
    for edge in sorted({window for window, _ in slopes}):
        slope = sum(flops for window, flops in slopes if window > at)
        if reached + slope * (edge - at) >= weights:
            return at + (weights - reached) / slope
        reached, at = reached + slope * (edge - at), edge
    return math.inf


def _slopes(layer: Layer, latent: str) -> list[tuple[float, float]]:
    """What attention costs more for each token of context, and up to which context it does."""
    a, per_pair, per_score = layer.attention, _flops_per_pair(layer, latent), _indexer_flops_per_pair(layer.attention)
    if not isinstance(a, CompressedAttention):
        return [(_reach(a) or math.inf, per_pair), (math.inf, per_score)]
    slopes = [(a.window, per_pair)]
    if a.rate is not None:
        slopes.append((a.indexer.top_k * a.rate if a.indexer else math.inf, per_pair / a.rate))
        slopes.append((math.inf, per_score / a.rate))
    return slopes


def quadratic_share(model: Model, prompt_tokens: int, latent: str = "expanded") -> float:
    """The quadratic term of a prefill over its linear one: attention FLOPs / (2 · P · N), causal.

    P are the active parameters in matrices, head included (every token's logits): 0.14 for Llama-3.1-8B at 8 k,
    0.57 at 32 k. In a serving engine, which computes one row of logits, the share is a little higher.
    """
    flops = prefill_flops(model, prompt_tokens, logits="all", latent=latent)
    return flops.attention / (flops.weights + flops.state)


def _weight_flops_per_token(model: Model) -> tuple[int, int]:
    layers = head = 0
    for weight in inventory(model):
        if weight.component == "head":
            head += weight.flops_per_token
        else:
            layers += weight.flops_per_token
    if model.streams > 1:
        # Hyper-connections multiply the streams with a matrix made for each token, before attention and feed-forward.
        layers += len(model.layers) * 2 * 2 * model.streams**2 * model.hidden_size
    return layers, head


def _state_flops_per_token(model: Model) -> int:
    return sum(layer.state.flops_per_token for layer in model.layers if layer.state is not None)


def _flops_per_pair(layer: Layer, latent: str) -> int:
    attention = layer.attention
    if latent not in ("absorbed", "expanded"):
        raise InputError(f"latent must be 'absorbed' or 'expanded', not {latent!r}")
    if isinstance(attention, FullAttention | CompressedAttention):
        return 4 * attention.heads * attention.head_dim
    if not isinstance(attention, LatentAttention):
        return 0
    if latent == "absorbed":
        return 2 * attention.heads * (2 * attention.kv_lora_rank + attention.qk_rope_head_dim)
    return 2 * attention.heads * (attention.qk_head_dim + attention.v_head_dim)


def _expansion_flops(layer: Layer) -> int:
    a = layer.attention
    if not isinstance(a, LatentAttention):
        return 0
    return 2 * a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)


def _indexer_flops_per_pair(attention: Attention | None) -> int:
    """The indexer scores every key: heads · head_dim products; in DeepSeek-V3.2 another per head to weigh them."""
    indexer = getattr(attention, "indexer", None)
    if indexer is None:
        return 0
    return 2 * indexer.heads * (indexer.head_dim + isinstance(attention, LatentAttention))


def _reach(attention: Attention | None) -> int | None:
    """The most tokens a query attends to, None where there is no limit."""
    if isinstance(attention, FullAttention):
        return attention.window or attention.chunk
    return attention.top_k if isinstance(attention, LatentAttention) else None
