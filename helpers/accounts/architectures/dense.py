"""Dense models: every layer attention and one feed-forward."""

from collections.abc import Mapping

from helpers.accounts.architectures.reading import (
    HEAD_OUTSIDE,
    SILU,
    Architecture,
    depth_of,
    grouped_heads,
    head_dim_of,
    layer_norm_at_the_end,
    one_window,
    switched_window,
    windows_by_layer,
)
from helpers.accounts.keys import Keys
from helpers.accounts.model import DenseFFN, FullAttention, Layer


def _llama(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    bias = keys.flag("attention_bias")
    attention = FullAttention(
        heads, kv_heads, head_dim_of(keys, heads, null_is_absent=True), qkv_bias=bias, output_bias=bias
    )
    ffn = DenseFFN(keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))
    keys.one_of("sliding_window", [None], "but llama has no sliding window")
    return tuple(Layer(attention, ffn) for _ in one_window(keys, None))


def _mistral(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    head_dim, ffn = head_dim_of(keys, heads, null_is_absent=True), DenseFFN(keys.size("intermediate_size"))
    windows = one_window(keys, keys.size_or_none("sliding_window"))
    return tuple(Layer(FullAttention(heads, kv_heads, head_dim, window), ffn) for window in windows)


def _phi3(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("full_attn_mod", [1], "but only 1 is known: every layer alike")
    return _mistral(keys)


def _qwen2(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    head_dim, ffn = head_dim_of(keys, heads), DenseFFN(keys.size("intermediate_size"))
    for key in ("attention_bias", "qkv_bias"):
        keys.one_of(key, [True], "but qwen2 always has a bias on queries, keys and values")
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, qkv_bias=True), ffn) for window in _qwen_windows(keys)
    )


def _qwen3(keys: Keys) -> tuple[Layer, ...]:
    return _qwen3_layers(keys, _qwen_windows(keys))


def _qwen3_vl(keys: Keys) -> tuple[Layer, ...]:
    return _qwen3_layers(keys, one_window(keys, None))


def _qwen3_layers(keys: Keys, windows: list[int | None]) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    head_dim, bias = head_dim_of(keys, heads), keys.flag("attention_bias")
    ffn = DenseFFN(keys.size("intermediate_size"))
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, bias, bias, qk_norm=True), ffn) for window in windows
    )


def _qwen_windows(keys: Keys) -> list[int | None]:
    window = switched_window(keys)
    first_sliding = keys.size("max_window_layers", smallest=0)
    return windows_by_layer(keys, window, lambda index: window is not None and index >= first_sliding)


def _falcon(keys: Keys) -> tuple[Layer, ...]:
    heads = keys.size("num_attention_heads")
    grouped, multi_query = keys.flag("new_decoder_architecture"), keys.flag("multi_query")
    bias = keys.flag("bias")
    kv_heads = keys.size_or_none("num_kv_heads") or heads
    if grouped and heads % kv_heads:
        raise keys.refuse("num_kv_heads", f"({kv_heads}) does not divide num_attention_heads ({heads})")
    if not grouped and multi_query:
        kv_heads = 1
    elif not grouped and kv_heads != heads:
        raise keys.refuse("num_kv_heads", f"is {kv_heads}, which only new_decoder_architecture reads")
    head_dim = head_dim_of(keys, heads, null_is_absent=True)
    keys.same_as("hidden_size", "num_attention_heads · head_dim", heads * head_dim)
    attention = FullAttention(
        heads,
        kv_heads,
        head_dim,
        qkv_bias=bias,
        output_bias=bias,
        transformers_repeats_kv=grouped,
    )
    width = keys.size_or_none("ffn_hidden_size") or 4 * keys.size("hidden_size")
    keys.one_of("apply_residual_connection_post_layernorm", [False], "which is not known")
    in_parallel = keys.raw("num_ln_in_parallel_attn")
    if in_parallel not in (None, 1, 2) or isinstance(in_parallel, bool):
        raise keys.refuse("num_ln_in_parallel_attn", "must be null, 1 or 2")
    one_norm = keys.flag("parallel_attn") and (in_parallel == 1 or (in_parallel is None and not grouped))
    # LayerNorm: a weight and a bias each.
    layer = Layer(attention, DenseFFN(width, bias=bias, gated=False), norms=2 if one_norm else 4)
    return (layer,) * depth_of(keys)


_QWEN_WINDOW = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}

_QWEN_VL = {**HEAD_OUTSIDE, **_QWEN_WINDOW, "max_window_layers": 80, "rms_norm_eps": 1e-5, "head_dim": None}

ENTRIES: Mapping[str, Architecture] = {
    "llama": Architecture(
        _llama,
        {**SILU, "num_key_value_heads": None, "head_dim": None, "attention_bias": False, "mlp_bias": False},
    ),
    "mistral": Architecture(_mistral, {**SILU, "head_dim": None, "sliding_window": 4096}),
    "qwen2": Architecture(_qwen2, {**SILU, **_QWEN_WINDOW, "head_dim": None}),
    "qwen3": Architecture(_qwen3, {**SILU, **_QWEN_WINDOW, "head_dim": 128, "attention_bias": False}),
    "phi3": Architecture(
        _phi3,
        {**SILU, "rms_norm_eps": 1e-5, "num_key_value_heads": None, "head_dim": None, "sliding_window": None},
        frozenset({"embd_pdrop", "resid_pdrop", "original_max_position_embeddings", "interpolate_factor"}),
    ),
    "falcon": Architecture(
        _falcon,
        {
            "tie_word_embeddings": True,
            "layer_norm_epsilon": 1e-5,
            "activation": "gelu",
            "num_kv_heads": None,
            "head_dim": None,
            "new_decoder_architecture": False,
            "multi_query": True,
            "parallel_attn": True,
            "bias": False,
            "ffn_hidden_size": None,
            "num_ln_in_parallel_attn": None,
            "max_position_embeddings": 2048,
        },
        frozenset({"alibi", "hidden_dropout"}),
        activation_key="activation",
        norm_key="layer_norm_epsilon",
        extras=layer_norm_at_the_end,
    ),
    # The language models of vision models; whether the head is tied stands outside the text_config, and must.
    "qwen2_vl_text": Architecture(_qwen2, _QWEN_VL),
    "qwen2_5_vl_text": Architecture(_qwen2, _QWEN_VL),
    "qwen3_vl_text": Architecture(_qwen3_vl, {**HEAD_OUTSIDE, "head_dim": 128, "attention_bias": False}),
}
