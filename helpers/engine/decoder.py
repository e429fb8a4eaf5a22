"""A Llama-family decoder to read in one sitting: RMSNorm, RoPE, grouped-query attention, SwiGLU.

Shapes: B batch, T new tokens, S tokens the cache holds with the new ones, H query heads, K kv heads, G = H / K query
heads to one kv head, D head size. Inference only; every product of the accounts is one line here.
"""

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F

from helpers.accounts import DenseFFN, FullAttention, Layer, Model, MoEFFN
from helpers.engine.causal_attention import attend_causal, in_blocks
from helpers.engine.cuda_graph import GraphedStep
from helpers.engine.dtypes import dtype_name, torch_dtype
from helpers.engine.kv_cache import KVCache, Span
from helpers.engine.linear import Linear
from helpers.engine.moe_weights import check_experts, load_experts
from helpers.errors import InputError

MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")
"""The `model_type`s that this decoder computes as their reference implementations do."""

WeightSource = Callable[[str], torch.Tensor]
"""From a checkpoint's tensor name, e.g. ``"model.layers.0.mlp.up_proj.weight"``, to the tensor."""


class Decoder:
    """A decoder in the shape of `model`, its weights taken from `tensor(name)`, computing in `dtype` on `device`.

    ``decoder(tokens, cache)`` appends tokens [B, T] to the cache and returns the logits that follow the last one,
    [B, vocab], or with ``logits="all"`` those that follow each, [B, T, vocab]. Prefill is a call with the prompts,
    decode a call with T = 1. The cache is a `KVCache`, one that stores fewer bits, or a view of a `PagedKVCache`;
    without one nothing is kept.

    `attention`: ``fused`` (torch's kernel, or `helpers.engine.causal_attention` where that is faster) or ``naive`` (all
    scores held in memory); may be changed between calls. `layout`: how matrices are stored, see
    `helpers.engine.linear`. `cuda_graph`: on a GPU, replay the decode step as a CUDA graph.

    Raises InputError for a model it does not compute (MLA, MoE, another activation or rotary embedding).
    """

    def __init__(
        self,
        model: Model,
        tensor: WeightSource,
        dtype: torch.dtype | str = torch.float32,
        device: torch.device | str = "cpu",
        attention: str = "fused",
        layout: str = "measured",
        cuda_graph: bool = True,
    ) -> None:
        check_supported(model)
        self.model, self.dtype, self.device = model, torch_dtype(dtype), torch.device(device)
        self.attention = attention
        self.cuda_graph = cuda_graph and self.device.type == "cuda"

        def load(name: str) -> torch.Tensor:
            return tensor(name).to(device=self.device, dtype=self.dtype)

        def linear(*names: str, bias: bool = False) -> Linear:
            # Matrices with the same input are stacked: one product in place of two or three.
            weight = torch.cat([load(f"{name}.weight") for name in names])
            return Linear(weight, torch.cat([load(f"{name}.bias") for name in names]) if bias else None, layout)

        with torch.inference_mode():
            self.frequencies = rope_frequencies(model).to(self.device)
            self.layers = [
                Block(f"model.layers.{index}", model, layer, load, linear) for index, layer in enumerate(model.layers)
            ]
            self.norm = load("model.norm.weight")
            # A tied embedding is the head's matrix, held once; alone, it is only ever read by row.
            tied = model.tied_embeddings
            self.embedding = Linear(load("model.embed_tokens.weight"), layout=layout if tied else "output-major")
            self.head = self.embedding if tied else linear("lm_head")

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor, cache: KVCache | None = None, logits: str = "last") -> torch.Tensor:
        if tokens.dim() != 2 or tokens.numel() == 0:
            raise InputError(f"tokens must be [batch, count] with at least one token, not {list(tokens.shape)}")
        batch, count = tokens.shape
        if cache is None:
            cache = KVCache(self.model, batch, count, self.dtype, self.device)
        check_call(self, batch, count, cache, logits)
        if count == 1 and self.cuda_graph and cache.fixed_memory:
            if cache.graphed_step is None or cache.graphed_step.decoder is not self:
                cache.graphed_step = GraphedStep(self, batch)
            out = cache.graphed_step(tokens, cache)
        else:
            out = self.forward(tokens, cache.span(tokens), cache, logits == "last")
        cache.advance(count)
        return out if logits == "last" else out.view(batch, count, -1)

    def forward(self, tokens: torch.Tensor, span: Span, cache: KVCache, last_only: bool) -> torch.Tensor:
        """The computation alone: tokens [B, T] into the `span` of a cache; logits of the last token, or of all."""
        rotation = rope_rotation(span.positions, self.frequencies, self.dtype)
        x = self.embedding.rows(tokens)
        for index, block in enumerate(self.layers):
            x = block(x, rotation, cache, index, span, self.attention)
        x = rms_norm(x[:, -1] if last_only else x, self.norm, self.model.decoder.rms_norm_eps)
        return self.head(x)

    @property
    def weight_nbytes(self) -> int:
        """Bytes of all weights held, a tied embedding once."""
        ends = self.head.nbytes + self.norm.nbytes + (0 if self.head is self.embedding else self.embedding.nbytes)
        return ends + sum(block.nbytes for block in self.layers)


class Block:
    """One layer: x += attention(norm(x)); x += SwiGLU(norm(x)), or the experts that a router picks."""

    def __init__(self, prefix: str, model: Model, layer: Layer, load: WeightSource, linear: Callable) -> None:
        shape, self.eps = layer.attention, model.decoder.rms_norm_eps
        self.heads, self.kv_heads, self.head_dim = shape.heads, shape.kv_heads, shape.head_dim
        self.attention_norm = load(f"{prefix}.input_layernorm.weight")
        self.qkv = linear(*(f"{prefix}.self_attn.{name}_proj" for name in "qkv"), bias=shape.qkv_bias)
        self.q_norm = load(f"{prefix}.self_attn.q_norm.weight") if shape.qk_norm else None
        self.k_norm = load(f"{prefix}.self_attn.k_norm.weight") if shape.qk_norm else None
        self.output = linear(f"{prefix}.self_attn.o_proj", bias=shape.output_bias)
        self.ffn_norm = load(f"{prefix}.post_attention_layernorm.weight")
        self.moe = self.gate_up = self.down = None
        if isinstance(layer.feed_forward, MoEFFN):
            self.moe = load_experts(model, layer.feed_forward, prefix, load)
        else:
            self.gate_up = linear(f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj")
            self.down = linear(f"{prefix}.mlp.down_proj")

    def __call__(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        cache: KVCache,
        index: int,
        span: Span,
        attention: str,
    ) -> torch.Tensor:
        batch, count, _ = x.shape
        qkv = self.qkv(rms_norm(x, self.attention_norm, self.eps)).view(batch, count, -1, self.head_dim)
        heads, values = qkv.split((self.heads + self.kv_heads, self.kv_heads), dim=2)
        if self.q_norm is not None:
            queries, keys = heads.split((self.heads, self.kv_heads), dim=2)
            heads = torch.cat((rms_norm(queries, self.q_norm, self.eps), rms_norm(keys, self.k_norm, self.eps)), 2)
        queries, keys = rotate(heads, *rotation).split((self.heads, self.kv_heads), dim=2)
        seen_keys, seen_values = cache.append(index, span, keys, values)
        # In place: the intermediates of a long prompt are megabytes, and what was just written is still in cache.
        self.output.add_to(x, attend(queries, seen_keys, seen_values, span.mask, span.causal, attention))
        if self.moe is not None:
            x += self.moe(rms_norm(x, self.ffn_norm, self.eps))
            return x
        # Output by output: gate and up are then each one piece of memory, which is faster to write and to go through
        # (SmolLM2, 512 tokens, 2 cores: the product reached 1.00 of the GEMM ceiling so, 0.92 token by token).
        gate, up = self.gate_up(rms_norm(x, self.ffn_norm, self.eps), by_output=True).chunk(2, dim=-1)
        self.down.add_to(x, F.silu(gate, inplace=True).mul_(up))
        return x

    @property
    def nbytes(self) -> int:
        norms = (self.attention_norm, self.ffn_norm, self.q_norm, self.k_norm)
        matrices = (self.qkv, self.output, self.gate_up, self.down, self.moe)
        return sum(weight.nbytes for weight in (*norms, *matrices) if weight is not None)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / √(mean(x²) + eps) · weight over the last dimension (Zhang and Sennrich 2019); summed in fp32."""
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    # torch's own takes nine small steps here: 26 µs where these take 10 for one token of SmolLM2, twice in each layer.
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    mean_square = torch.addcmul(_scalar(eps), length, length, value=1 / x.shape[-1])
    return torch.mul(x, weight).mul_(mean_square.rsqrt_())


@cache
def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)


def rope_frequencies(model: Model) -> torch.Tensor:
    """Radians per position of each pair of a head's numbers: theta^(−2i/D) for i < D/2, [D/2], fp32.

    With ``llama3`` scaling, wavelengths above the original context are stretched by `factor`, short ones kept, those
    between blended (Llama 3.1; transformers, modeling_rope_utils.py). Raises InputError for any other scaling.
    """
    head_dim, details = model.layers[0].attention.head_dim, model.decoder
    frequencies = 1.0 / details.rope_theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    scaling = dict(details.rope_scaling or {})
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind != "llama3":
        raise InputError(
            f"{model.name}: rope_scaling {kind!r} is not computed by this decoder (default and llama3 are)"
        )
    needed = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    if missing := [key for key in needed if key not in scaling]:
        raise InputError(f"{model.name}: rope_scaling lacks {missing[0]!r}")
    factor, low, high, original_context = (scaling[key] for key in needed)
    turns = original_context * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / factor


def rope_rotation(
    positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and signed sin of the angles at `positions` [B, T], each [B, T, 1, D]; the signs save `rotate` a negation."""
    angles = positions[..., None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1)[:, :, None].to(dtype), torch.cat((-sin, sin), -1)[:, :, None].to(dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    """RoPE (Su et al. 2021) on x [B, T, heads, D]: turn the pair (x[i], x[i + D/2]) by its angle, for every i < D/2."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)


def attend(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    attention: str,
) -> torch.Tensor:
    """softmax(Q Kᵀ / √D) V with grouped queries: [B, T, H, D] on keys and values [B, K, S, D] gives [B, T, H·D].

    A kv head is read once for its G query heads. `mask` bool, [B, 1, T, S], True where readable; `causal` where query t
    reads keys up to t. ``naive`` holds B · H · T · S scores, ``fused`` does not.
    """
    batch, count, heads, head_dim = queries.shape
    kv_heads, groups = keys.shape[1], heads // keys.shape[1]
    if count == 1:
        # The G heads of a group take the place of the T queries: they read the same keys.
        queries = queries.reshape(batch, kv_heads, groups, head_dim)
        kernel = _attend_naive if attention == "naive" else F.scaled_dot_product_attention
        mixed = kernel(queries, keys, values, mask)
        return mixed.reshape(batch, 1, heads * head_dim)
    if attention == "fused" and causal and in_blocks(queries):
        return attend_causal(queries, keys, values)
    queries = queries.transpose(1, 2)
    if attention == "fused":
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, mask, is_causal=causal, enable_gqa=heads > kv_heads
        )
        return mixed.transpose(1, 2).reshape(batch, count, heads * head_dim)
    if causal:
        mask = torch.ones(count, count, dtype=torch.bool, device=queries.device).tril()[None, None]
    grouped = queries.reshape(batch, kv_heads, groups * count, head_dim)
    mixed = _attend_naive(grouped, keys, values, mask.repeat(1, 1, groups, 1))
    return mixed.view(batch, heads, count, head_dim).transpose(1, 2).reshape(batch, count, heads * head_dim)


def _attend_naive(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


def check_supported(model: Model) -> None:
    """Raises InputError, naming what it is, where `model` needs something that this decoder does not compute."""
    refuse = f"{model.name} is not computed by this decoder: "
    if model.model_type not in MODEL_TYPES:
        raise InputError(f"{refuse}model_type {model.model_type!r} is none of {', '.join(MODEL_TYPES)}")
    for layer in model.layers:
        if not isinstance(layer.attention, FullAttention):
            raise InputError(f"{refuse}its attention is {type(layer.attention).__name__}")
        ffn = layer.feed_forward
        if isinstance(ffn, MoEFFN):
            check_experts(model, ffn, refuse)
        elif not isinstance(ffn, DenseFFN):
            raise InputError(f"{refuse}its feed-forward is {type(ffn).__name__}")
        if layer.norms != 2 or layer.attention.sinks or (isinstance(ffn, DenseFFN) and ffn.bias):
            raise InputError(f"{refuse}its layers have extra norms, attention sinks or feed-forward biases")
        if layer.attention.head_dim != model.layers[0].attention.head_dim:
            raise InputError(f"{refuse}head_dim differs between layers")
    if model.decoder.hidden_act != "silu":
        raise InputError(f"{refuse}hidden_act {model.decoder.hidden_act!r} is not silu")
    if model.decoder.rope_theta is None or model.decoder.partial_rotary_factor != 1.0:
        raise InputError(f"{refuse}its rotary embedding is absent or partial")


def check_call(decoder: Decoder, batch: int, count: int, cache: KVCache, logits: str) -> None:
    """Raises InputError where tokens [batch, count] cannot follow what `cache` holds, or an option is unknown."""
    if decoder.attention not in ("fused", "naive"):
        raise InputError(f"attention {decoder.attention!r} is not known: choose 'fused' or 'naive'")
    if logits not in ("last", "all"):
        raise InputError(f"logits {logits!r} is not known: choose 'last' or 'all'")
    if batch != cache.batch:
        raise InputError(f"tokens of shape [{batch}, {count}] do not fit a cache of batch {cache.batch}")
    if cache.dtype != decoder.dtype or (cache.model is not decoder.model and cache.model != decoder.model):
        raise InputError(
            f"the KV cache is for {cache.model.name} in {dtype_name(cache.dtype)}, the decoder is "
            f"{decoder.model.name} in {dtype_name(decoder.dtype)}"
        )
    asked = cache.length + count
    if asked > cache.max_tokens:
        raise InputError(f"the KV cache holds {cache.max_tokens} tokens, {asked} were asked for")
    for layer in decoder.model.layers:
        if layer.attention.window is not None and asked > layer.attention.window:
            raise InputError(
                f"{decoder.model.name}: {asked} tokens are more than its sliding window of {layer.attention.window}, "
                "which this decoder does not cut"
            )
