"""The compute account: FLOPs of prefill and decode, the attention term apart.

One multiply-add is 2 FLOPs. Counted are the matrix products; norms, activations, rotary embedding, softmax, biases
and the look-up of the input embedding are left out (well under 1 % in real models).
"""

import math
from dataclasses import dataclass

from helpers.accounts.inventory import inventory
from helpers.accounts.model import FullAttention, LatentAttention, Layer, Model
from helpers.accounts.units import count, positive_int
from helpers.errors import InputError


@dataclass(frozen=True)
class Flops:
    """FLOPs of one sequence: `layers` (products with weights), `head` (the output matrix), `attention` (QKᵀ and PV)."""

    layers: int
    head: int
    attention: int

    @property
    def weights(self) -> int:
        """Products with weights, head included: about 2 · active parameters per token."""
        return self.layers + self.head

    @property
    def total(self) -> int:
        """Weights and attention together."""
        return self.weights + self.attention


def decode_flops(model: Model, context: int, latent: str = "absorbed") -> Flops:
    """FLOPs of one decode step of one sequence whose new token attends to `context` tokens, itself included.

    weights = 2 · (active parameters in matrices); attention = Σ layers 4 · heads · head_dim · min(context, window).
    MLA, `latent`: ``absorbed`` works on the cached latent, 2 · heads · (2 · kv_lora_rank + qk_rope_head_dim) per
    context token, as engines do in decode; ``expanded`` as if per-head keys and values were cached,
    2 · heads · (qk_head_dim + v_head_dim). The weight term is the same for both.

    Raises InputError for a context that is not a positive whole number. Source: arXiv:2405.04434, section 2.1.
    """
    positive_int(context, "context")
    layers, head = _weight_flops_per_token(model)
    attention = sum(_flops_per_pair(layer, latent) * min(context, _window(layer, context)) for layer in model.layers)
    return Flops(layers, head, attention)


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
    computes, N · (N + past) pairs in every layer and no window: this is what
    ``torch.utils.flop_counter.FlopCounterMode`` counts on a `transformers` model.
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
        if causal:
            pairs = attended_pairs(prompt_tokens, past_tokens, _window(layer, prompt_tokens + past_tokens))
        else:
            pairs = prompt_tokens * (prompt_tokens + past_tokens)
        attention += _flops_per_pair(layer, latent) * pairs
        if latent == "expanded":
            attention += past_tokens * _expansion_flops(layer)
    return Flops(layers * prompt_tokens, head * (prompt_tokens if logits == "all" else 1), attention)


def attended_pairs(tokens: int, past_tokens: int = 0, window: int | None = None) -> int:
    """Query–key pairs of `tokens` causal queries after `past_tokens`: Σ min(past + i, window) for i = 1..tokens."""
    if window is None:
        window = past_tokens + tokens
    growing = min(max(window - past_tokens, 0), tokens)
    return growing * past_tokens + growing * (growing + 1) // 2 + (tokens - growing) * window


def attention_equals_weights_context(model: Model, latent: str = "absorbed") -> float:
    """Context at which one decode step spends as many FLOPs on attention as on weights.

    Solves Σ layers f · min(n, window) = weights; without windows n = weights / Σ f: about 28.6 k for Llama-3.1-8B.
    Returns ``math.inf`` where windows keep attention below the weights at any length.
    """
    weights = sum(_weight_flops_per_token(model))
    slopes = [(_window(layer, math.inf), _flops_per_pair(layer, latent)) for layer in model.layers]
    at, reached = 0, 0
    for edge in sorted({window for window, _ in slopes}):
        slope = sum(flops for window, flops in slopes if window > at)
        if reached + slope * (edge - at) >= weights:
            return at + (weights - reached) / slope
        reached, at = reached + slope * (edge - at), edge
    return math.inf


def quadratic_share(model: Model, prompt_tokens: int, latent: str = "expanded") -> float:
    """The quadratic term of a prefill over its linear one: attention FLOPs / (2 · P · N), causal.

    P are the active parameters in matrices, head included (every token's logits): 0.14 for Llama-3.1-8B at 8 k,
    0.57 at 32 k. In a serving engine, which computes one row of logits, the share is a little higher.
    """
    flops = prefill_flops(model, prompt_tokens, logits="all", latent=latent)
    return flops.attention / flops.weights


def _weight_flops_per_token(model: Model) -> tuple[int, int]:
    layers = head = 0
    for weight in inventory(model):
        if weight.component == "head":
            head += weight.flops_per_token
        else:
            layers += weight.flops_per_token
    return layers, head


def _flops_per_pair(layer: Layer, latent: str) -> int:
    attention = layer.attention
    if latent not in ("absorbed", "expanded"):
        raise InputError(f"latent must be 'absorbed' or 'expanded', not {latent!r}")
    if isinstance(attention, FullAttention):
        return 4 * attention.heads * attention.head_dim
    if latent == "absorbed":
        return 2 * attention.heads * (2 * attention.kv_lora_rank + attention.qk_rope_head_dim)
    return 2 * attention.heads * (attention.qk_head_dim + attention.v_head_dim)


def _expansion_flops(layer: Layer) -> int:
    a = layer.attention
    if not isinstance(a, LatentAttention):
        return 0
    return 2 * a.kv_lora_rank * a.heads * (a.qk_nope_head_dim + a.v_head_dim)


def _window(layer: Layer, unlimited: float) -> float:
    window = layer.attention.window if isinstance(layer.attention, FullAttention) else None
    return unlimited if window is None else window
