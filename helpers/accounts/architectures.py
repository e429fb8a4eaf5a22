"""One entry per model_type: its defaults, and how its keys become layers.

Everything here mirrors the configuration and modelling classes of `transformers` 5 (huggingface/transformers,
src/transformers/models/<model_type>); the tests compare both. Keys decide, never names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.accounts.keys import Keys
from helpers.accounts.model import DenseFFN, FullAttention, LatentAttention, Layer, MoEFFN

LARGEST_DEPTH = 10_000


@dataclass(frozen=True)
class Architecture:
    """How to read one model_type.

    `layers` turns keys into layers; `defaults` are the values the transformers configuration class gives to keys a
    file may leave out; `harmless` are further keys, known to change neither parameters, cache nor FLOPs; `notes`
    reads what is left out of the accounts and says so.
    """

    layers: Callable[[Keys], tuple[Layer, ...]]
    defaults: Mapping[str, Any]
    harmless: frozenset[str] = frozenset()
    activation_key: str = "hidden_act"
    notes: Callable[[Keys], tuple[str, ...]] = field(default=lambda keys: ())


def _grouped_heads(keys: Keys, *, null_means_heads: bool = True) -> tuple[int, int]:
    heads = keys.size("num_attention_heads")
    if null_means_heads and keys.raw("num_key_value_heads") is None:
        return heads, heads
    kv_heads = keys.size("num_key_value_heads")
    if heads % kv_heads:
        raise keys.refuse("num_key_value_heads", f"({kv_heads}) does not divide num_attention_heads ({heads})")
    return heads, kv_heads


def _head_dim(keys: Keys, heads: int, *, null_is_absent: bool = False) -> int:
    """head_dim where given, else hidden_size / num_attention_heads where that is a whole number."""
    if keys.raw("head_dim") is not None or ("head_dim" in keys.values and not null_is_absent):
        return keys.size("head_dim")
    hidden = keys.size("hidden_size")
    if hidden % heads:
        raise keys.refuse(
            "num_attention_heads", f"({heads}) does not divide hidden_size ({hidden}) and no head_dim is given"
        )
    return hidden // heads


def _depth(keys: Keys) -> int:
    return keys.size("num_hidden_layers", largest=LARGEST_DEPTH)


def _layer_kinds(keys: Keys, window: int | None, pattern: Callable[[int], bool]) -> list[int | None]:
    """The window of each layer: from layer_types where given, else sliding where `pattern(index)` says so."""
    depth = _depth(keys)
    keys.ignore(["layer_types"])
    kinds = keys.values.get("layer_types")
    if kinds is None:
        sliding = [pattern(index) for index in range(depth)]
    else:
        if not isinstance(kinds, list) or len(kinds) != depth:
            raise keys.refuse("layer_types", f"must be a list of {depth} entries, one for each of num_hidden_layers")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise keys.refuse("layer_types", f"holds {str(kind)[:40]!r}, which is not known for this model_type")
        sliding = [kind == "sliding_attention" for kind in kinds]
    if window is None and any(sliding):
        raise keys.refuse("sliding_window", "is absent, null or switched off, but some layers are sliding_attention")
    return [window if is_sliding else None for is_sliding in sliding]


def _one_window(keys: Keys, window: int | None) -> list[int | None]:
    """Every layer alike; a layer_types that says otherwise is refused."""
    expected = "full_attention" if window is None else "sliding_attention"
    depth = _depth(keys)
    keys.one_of("layer_types", [None, [expected] * depth], f"but every layer of this model_type is {expected}")
    return [window] * depth


def _switched_window(keys: Keys) -> int | None:
    """sliding_window counts only where use_sliding_window is true (Qwen)."""
    window = keys.size_or_none("sliding_window")
    return window if keys.flag("use_sliding_window") else None


def _llama(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys)
    bias = keys.flag("attention_bias")
    attention = FullAttention(
        heads, kv_heads, _head_dim(keys, heads, null_is_absent=True), qkv_bias=bias, output_bias=bias
    )
    ffn = DenseFFN(keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))
    keys.one_of("sliding_window", [None], "but llama has no sliding window")
    return tuple(Layer(attention, ffn) for _ in _one_window(keys, None))


def _mistral(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys)
    head_dim, ffn = _head_dim(keys, heads, null_is_absent=True), DenseFFN(keys.size("intermediate_size"))
    windows = _one_window(keys, keys.size_or_none("sliding_window"))
    return tuple(Layer(FullAttention(heads, kv_heads, head_dim, window), ffn) for window in windows)


def _phi3(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("full_attn_mod", [1], "but only 1 is known: every layer alike")
    return _mistral(keys)


def _mixtral(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys)
    head_dim = _head_dim(keys, heads, null_is_absent=True)
    experts = keys.size(keys.alias("num_local_experts", "num_experts"))
    ffn = MoEFFN(experts, _experts_per_token(keys, experts), keys.size("intermediate_size"))
    windows = _one_window(keys, keys.size_or_none("sliding_window"))
    return tuple(Layer(FullAttention(heads, kv_heads, head_dim, window), ffn) for window in windows)


def _qwen2(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys)
    head_dim, ffn = _head_dim(keys, heads), DenseFFN(keys.size("intermediate_size"))
    for key in ("attention_bias", "qkv_bias"):
        keys.one_of(key, [True], "but qwen2 always has a bias on queries, keys and values")
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, qkv_bias=True), ffn) for window in _qwen_windows(keys)
    )


def _qwen3(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys)
    head_dim, ffn, bias = _head_dim(keys, heads), DenseFFN(keys.size("intermediate_size")), keys.flag("attention_bias")
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, bias, bias, qk_norm=True), ffn)
        for window in _qwen_windows(keys)
    )


def _qwen_windows(keys: Keys) -> list[int | None]:
    window = _switched_window(keys)
    first_sliding = keys.size("max_window_layers", smallest=0)
    return _layer_kinds(keys, window, lambda index: window is not None and index >= first_sliding)


def _qwen3_moe(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys, null_means_heads=False)
    head_dim, bias = _head_dim(keys, heads), keys.flag("attention_bias")
    keys.one_of("use_qk_norm", [True], "but qwen3_moe always normalises queries and keys")
    keys.one_of("qkv_bias", [bias], "which contradicts attention_bias")
    keys.one_of("shared_expert_intermediate_size", [None, 0], "but qwen3_moe has no shared expert")
    # transformers gives the window to every layer here: max_window_layers is not looked at.
    keys.ignore(["max_window_layers"])
    windows = _one_window(keys, _switched_window(keys))
    experts = keys.size(keys.alias("num_experts", "num_local_experts"))
    moe = MoEFFN(experts, _experts_per_token(keys, experts), keys.size("moe_intermediate_size"))
    step = keys.size("decoder_sparse_step")
    dense_layers = _indices(keys, "mlp_only_layers", len(windows))
    sparse = [index not in dense_layers and (index + 1) % step == 0 for index in range(len(windows))]
    width = keys.size("intermediate_size")
    return tuple(
        Layer(
            FullAttention(heads, kv_heads, head_dim, window, bias, bias, qk_norm=True),
            moe if is_sparse else DenseFFN(width),
        )
        for window, is_sparse in zip(windows, sparse, strict=True)
    )


def _gemma2(keys: Keys) -> tuple[Layer, ...]:
    return _gemma(keys, lambda index: index % 2 == 0, qk_norm=False)


def _gemma3(keys: Keys) -> tuple[Layer, ...]:
    stated = [key for key in ("sliding_window_pattern", "_sliding_window_pattern") if key in keys.values]
    every = keys.size(keys.alias(*stated)) if stated else 6

    def slides(index: int) -> bool:
        return (index + 1) % every != 0

    if stated and keys.values.get("layer_types") is not None:
        expected = ["sliding_attention" if slides(index) else "full_attention" for index in range(_depth(keys))]
        keys.same_as("layer_types", stated[0], expected)
    # transformers reads the key without the underscore alone; the other stands beside a layer_types.
    elif stated == ["_sliding_window_pattern"] and every != 6:
        raise keys.refuse("_sliding_window_pattern", f"is {every}, but no layer_types says which layers slide")
    return _gemma(keys, slides, qk_norm=True)


def _gemma(keys: Keys, pattern: Callable[[int], bool], *, qk_norm: bool) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys, null_means_heads=False)
    head_dim, bias = keys.size("head_dim"), keys.flag("attention_bias")
    keys.one_of("use_bidirectional_attention", [None, False], "but only causal attention is counted here")
    ffn = DenseFFN(keys.size("intermediate_size"))
    window = keys.size_or_none("sliding_window")
    keys.same_as("sliding_window_size", "sliding_window", window)
    windows = _layer_kinds(keys, window, pattern)
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, bias, bias, qk_norm), ffn, norms=4) for window in windows
    )


def _gpt_oss(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = _grouped_heads(keys)
    head_dim, bias = _head_dim(keys, heads, null_is_absent=True), keys.flag("attention_bias")
    experts = keys.size(keys.alias("num_local_experts", "num_experts"))
    per_token = _experts_per_token(keys, experts)
    keys.same_as("experts_per_token", "num_experts_per_tok", per_token)
    moe = MoEFFN(experts, per_token, keys.size("intermediate_size"), expert_bias=True, router_bias=True)
    windows = _layer_kinds(keys, keys.size_or_none("sliding_window"), lambda index: index % 2 == 0)
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, bias, bias, sinks=True), moe) for window in windows
    )


def _deepseek_v2(keys: Keys) -> tuple[Layer, ...]:
    return _deepseek(keys, mlp_bias=keys.flag("mlp_bias"), expert_keys=("n_routed_experts", "num_experts"))


def _deepseek_v3(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("mlp_bias", [False], "but deepseek_v3 has no feed-forward bias")
    return _deepseek(keys, mlp_bias=False, expert_keys=("n_routed_experts", "num_local_experts", "num_experts"))


def _deepseek(keys: Keys, *, mlp_bias: bool, expert_keys: tuple[str, ...]) -> tuple[Layer, ...]:
    heads = keys.size("num_attention_heads")
    if keys.raw("num_key_value_heads") is not None:
        keys.same_as("num_key_value_heads", "num_attention_heads (latent attention has no groups)", heads)
    attention = LatentAttention(
        heads,
        kv_lora_rank=keys.size("kv_lora_rank"),
        q_lora_rank=keys.size_or_none("q_lora_rank"),
        qk_nope_head_dim=keys.size("qk_nope_head_dim"),
        qk_rope_head_dim=keys.size("qk_rope_head_dim"),
        v_head_dim=keys.size("v_head_dim"),
        bias=keys.flag("attention_bias"),
    )
    # Derived, and rewritten by transformers: head_dim here is the rotary part, not the width of a head.
    keys.one_of(
        "head_dim", [None, attention.qk_rope_head_dim, attention.qk_head_dim], "which contradicts qk_rope_head_dim"
    )
    keys.same_as("qk_head_dim", "qk_nope_head_dim + qk_rope_head_dim", attention.qk_head_dim)
    experts = keys.size(keys.alias(*expert_keys))
    width = keys.size("moe_intermediate_size")
    shared = keys.size("n_shared_experts", smallest=0)
    moe = MoEFFN(
        experts,
        _experts_per_token(keys, experts),
        width,
        shared_experts=shared,
        shared_width=shared * width,
        shared_bias=mlp_bias,
    )
    keys.one_of("moe_layer_freq", [1], "but only 1 is known (transformers does not read it, the vendor's code does)")
    keys.one_of("layer_types", [None], "which is not known for this model_type")
    dense = DenseFFN(keys.size("intermediate_size"), bias=mlp_bias)
    first_sparse, depth = keys.size("first_k_dense_replace", smallest=0), _depth(keys)
    return tuple(Layer(attention, dense if index < first_sparse else moe) for index in range(depth))


def _experts_per_token(keys: Keys, experts: int) -> int:
    per_token = keys.size("num_experts_per_tok")
    if per_token > experts:
        raise keys.refuse("num_experts_per_tok", f"({per_token}) is more than the {experts} experts")
    return per_token


def _indices(keys: Keys, key: str, depth: int) -> frozenset[int]:
    value = keys.raw(key)
    if value is None:
        return frozenset()
    valid = isinstance(value, list) and all(type(item) is int and 0 <= item < depth for item in value)
    if not valid:
        raise keys.refuse(key, f"must be a list of layer numbers below {depth}")
    return frozenset(value)


def _multi_token_prediction(keys: Keys) -> tuple[str, ...]:
    key = keys.alias("num_nextn_predict_layers", "num_mtp_layers")
    if key not in keys.values:
        return ()
    extra = keys.size(key, smallest=0)
    if not extra:
        return ()
    return (f"{extra} multi-token-prediction layer{'s' if extra > 1 else ''} ({key}) not counted",)


# Of the configuration classes' defaults only those a real file leaves out; the sizes that make the model
# (hidden_size, num_hidden_layers, …) must be written down.
_COMMON = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6}
_ROUTER_KEYS = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "norm_topk_prob"})
_GEMMA_KEYS = frozenset({"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"})
_DEEPSEEK_KEYS = _ROUTER_KEYS | {
    "aux_loss_alpha",
    "ep_size",
    "n_group",
    "rope_interleave",
    "routed_scaling_factor",
    "scoring_func",
    "seq_aux",
    "topk_group",
    "topk_method",
}
_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_GEMMA_DEFAULTS = {
    **_COMMON,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 4096,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}
_SILU = {**_COMMON, "hidden_act": "silu"}

_DEEPSEEK_V3 = Architecture(
    _deepseek_v3,
    {**_SILU, "attention_bias": False, "num_key_value_heads": 128},
    _DEEPSEEK_KEYS,
    notes=_multi_token_prediction,
)

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        _llama,
        {**_SILU, "num_key_value_heads": None, "head_dim": None, "attention_bias": False, "mlp_bias": False},
    ),
    "mistral": Architecture(_mistral, {**_SILU, "head_dim": None, "sliding_window": 4096}),
    "mixtral": Architecture(
        _mixtral,
        {**_SILU, "rms_norm_eps": 1e-5, "head_dim": None, "sliding_window": None},
        _ROUTER_KEYS,
    ),
    "qwen2": Architecture(_qwen2, {**_SILU, **_QWEN_WINDOW, "head_dim": None}),
    "qwen3": Architecture(_qwen3, {**_SILU, **_QWEN_WINDOW, "head_dim": 128, "attention_bias": False}),
    "qwen3_moe": Architecture(
        _qwen3_moe,
        {
            **_SILU,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "head_dim": None,
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        _ROUTER_KEYS,
    ),
    "phi3": Architecture(
        _phi3,
        {**_SILU, "rms_norm_eps": 1e-5, "num_key_value_heads": None, "head_dim": None, "sliding_window": None},
        frozenset({"embd_pdrop", "resid_pdrop", "original_max_position_embeddings", "interpolate_factor"}),
    ),
    "gemma2": Architecture(_gemma2, _GEMMA_DEFAULTS, _GEMMA_KEYS, "hidden_activation"),
    "gemma3_text": Architecture(
        _gemma3,
        {
            **_GEMMA_DEFAULTS,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
        },
        _GEMMA_KEYS,
        "hidden_activation",
    ),
    "gpt_oss": Architecture(
        _gpt_oss,
        {**_SILU, "rms_norm_eps": 1e-5, "head_dim": 64, "sliding_window": 128, "attention_bias": True},
        _ROUTER_KEYS | {"swiglu_limit", "swiglu_alpha", "initial_context_length"},
    ),
    "deepseek_v2": Architecture(
        _deepseek_v2,
        {**_SILU, "attention_bias": False, "mlp_bias": False, "num_key_value_heads": None},
        _DEEPSEEK_KEYS,
        notes=_multi_token_prediction,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    # Kimi-K2's own name for the same classes (its `architectures` says DeepseekV3ForCausalLM).
    "kimi_k2": _DEEPSEEK_V3,
}
