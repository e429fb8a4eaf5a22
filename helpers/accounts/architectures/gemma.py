"""The Gemma family: sliding and full attention in turn, four norms a layer, tied embeddings."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from helpers.accounts.architectures.reading import (
    COMMON,
    Architecture,
    depth_of,
    grouped_heads,
    windows_by_layer,
)
from helpers.accounts.keys import Keys
from helpers.accounts.model import DenseFFN, FullAttention, Layer, MoEFFN, PerLayerInput


def _gemma2(keys: Keys) -> tuple[Layer, ...]:
    return _gemma(keys, lambda index: index % 2 == 0, qk_norm=False)


def _gemma3(keys: Keys) -> tuple[Layer, ...]:
    stated = [key for key in ("sliding_window_pattern", "_sliding_window_pattern") if key in keys.values]
    every = keys.size(keys.alias(*stated)) if stated else 6

    def slides(index: int) -> bool:
        return (index + 1) % every != 0

    if stated and keys.values.get("layer_types") is not None:
        expected = ["sliding_attention" if slides(index) else "full_attention" for index in range(depth_of(keys))]
        keys.same_as("layer_types", stated[0], expected)
    # transformers reads the key without the underscore alone; the other stands beside a layer_types.
    elif stated == ["_sliding_window_pattern"] and every != 6:
        raise keys.refuse("_sliding_window_pattern", f"is {every}, but no layer_types says which layers slide")
    return _gemma(keys, slides, qk_norm=True)


def _gemma(keys: Keys, pattern: Callable[[int], bool], *, qk_norm: bool) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys, null_means_heads=False)
    head_dim, bias = keys.size("head_dim"), keys.flag("attention_bias")
    keys.one_of("use_bidirectional_attention", [None, False], "but only causal attention is counted here")
    ffn = DenseFFN(keys.size("intermediate_size"))
    window = keys.size_or_none("sliding_window")
    keys.same_as("sliding_window_size", "sliding_window", window)
    windows = windows_by_layer(keys, window, pattern)
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, bias, bias, qk_norm), ffn, norms=4) for window in windows
    )


def _gemma4(keys: Keys) -> tuple[Layer, ...]:
    depth = depth_of(keys)
    heads, kv_heads = grouped_heads(keys, null_means_heads=False)
    bias, one_projection = keys.flag("attention_bias"), keys.flag("attention_k_eq_v")
    keys.one_of("use_bidirectional_attention", [None, "vision"], "but only causal attention is counted here")
    window = keys.size("sliding_window")
    sliding = [w is not None for w in windows_by_layer(keys, window, lambda index: (index + 1) % 6 != 0)]
    if keys.values.get("layer_types") is None:
        sliding[-1] = False
    elif sliding[-1]:
        raise keys.refuse("layer_types", "ends with sliding_attention, but the last layer has full attention")
    shared = keys.size("num_kv_shared_layers", smallest=0)
    first_shared = depth - shared
    if first_shared < 1 or set(sliding[:first_shared]) != set(sliding):
        raise keys.refuse("num_kv_shared_layers", f"({shared}) leaves no layer of each kind to share from")
    full_kv_heads = kv_heads
    keys.read.add("num_global_key_value_heads")
    if one_projection and keys.values.get("num_global_key_value_heads") is not None:
        full_kv_heads = keys.size("num_global_key_value_heads")
        if heads % full_kv_heads:
            raise keys.refuse("num_global_key_value_heads", f"does not divide num_attention_heads ({heads})")
    common = {"qkv_bias": bias, "output_bias": bias, "qk_norm": True}
    head_dim, full_head_dim = keys.size("head_dim"), keys.size("global_head_dim")
    double, extra_norms = keys.flag("use_double_wide_mlp"), 0
    width, experts = keys.size("intermediate_size"), None
    if keys.flag("enable_moe_block"):
        experts, extra_norms = _gemma4_experts(keys), 3
    else:
        keys.ignore(["num_experts", "top_k_experts", "moe_intermediate_size"])
    layers = []
    for index in range(depth):
        shares = index >= first_shared
        if sliding[index]:
            attention = FullAttention(heads, kv_heads, head_dim, window, shares_kv=shares, **common)
        else:
            attention = FullAttention(
                heads, full_kv_heads, full_head_dim, shares_kv=shares, values_are_keys=one_projection, **common
            )
        dense = DenseFFN(2 * width if double and shares else width)
        feed_forward = dense if experts is None else replace(experts, beside=dense)
        layers.append(Layer(attention, feed_forward, norms=4 + extra_norms))
    return tuple(layers)


def _gemma4_experts(keys: Keys) -> MoEFFN:
    experts = keys.size("num_experts")
    per_token = keys.size("top_k_experts")
    if per_token > experts:
        raise keys.refuse("top_k_experts", f"({per_token}) is more than the {experts} experts")
    return MoEFFN(experts, per_token, keys.size("moe_intermediate_size"), router_scales=True)


def _gemma4_per_layer_input(keys: Keys) -> dict[str, PerLayerInput | None]:
    width = keys.size("hidden_size_per_layer_input", smallest=0)
    vocab = keys.size("vocab_size_per_layer_input")
    return {"per_layer_input": PerLayerInput(vocab, width) if width else None}


_GEMMA_KEYS = frozenset({"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping"})
_GEMMA_DEFAULTS = {
    **COMMON,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 4096,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
}

ENTRIES: Mapping[str, Architecture] = {
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
    "gemma4_text": Architecture(
        _gemma4,
        {
            **_GEMMA_DEFAULTS,
            "num_key_value_heads": 4,
            "vocab_size": 262_144,
            "max_position_embeddings": 131_072,
            "sliding_window": 512,
            "vocab_size_per_layer_input": 262_144,
            "hidden_size_per_layer_input": 256,
            "attention_k_eq_v": False,
            "num_kv_shared_layers": 0,
            "enable_moe_block": False,
            "use_double_wide_mlp": False,
        },
        frozenset({"final_logit_softcapping"}),
        "hidden_activation",
        extras=_gemma4_per_layer_input,
    ),
}
