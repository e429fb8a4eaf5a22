"""Dense models that are Llama but for a switch: where biases stand, how many norms, which layers slide."""

from collections.abc import Callable, Mapping

from helpers.accounts.architectures.reading import (
    SILU,
    Architecture,
    depth_of,
    every_full,
    exaone_windows,
    grouped_heads,
    head_dim_of,
    layer_norm_at_the_end,
    one_window,
    switched_window,
    windows_by_layer,
)
from helpers.accounts.keys import Keys
from helpers.accounts.model import DenseFFN, FullAttention, Layer


def _dense(
    keys: Keys,
    *,
    qkv_bias: str | None = "attention_bias",
    output_bias: str | None = "attention_bias",
    ffn_bias: str | None = None,
    gated: bool = True,
    activation_parameters: int = 0,
    norms: int = 2,
    windows: Callable[[Keys], list[int | None]] = lambda keys: one_window(keys, None),
    qk_norm: bool = False,
    norm_across_heads: bool = False,
) -> tuple[Layer, ...]:
    """Layers all alike but for the window; a bias is named by the key that switches it, None where there is none."""
    heads, kv_heads = grouped_heads(keys)
    head_dim = head_dim_of(keys, heads, null_is_absent=True)
    qkv, output, ffn = (key is not None and keys.flag(key) for key in (qkv_bias, output_bias, ffn_bias))
    feed_forward = DenseFFN(
        keys.size("intermediate_size"), bias=ffn, gated=gated, activation_parameters=activation_parameters
    )
    return tuple(
        Layer(
            FullAttention(
                heads, kv_heads, head_dim, window, qkv, output, qk_norm=qk_norm, norm_across_heads=norm_across_heads
            ),
            feed_forward,
            norms,
        )
        for window in windows(keys)
    )


def _gemma(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("use_bidirectional_attention", [None, False], "but only causal attention is counted here")
    return _dense(keys)


def _cohere(keys: Keys) -> tuple[Layer, ...]:
    return _dense(keys, norms=1, qk_norm=keys.flag("use_qk_norm"), norm_across_heads=True)


def _cohere2(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("use_qk_norm", [None, False], "but cohere2 does not normalise queries and keys")
    keys.one_of("order_of_interleaved_layers", [None, "local_attn_first"], "which is not known")
    if "layer_switch" in keys.values:
        keys.same_as("sliding_window_pattern", "layer_switch", keys.values["layer_switch"])
    return _dense(keys, norms=1, windows=every_full(4, keys.alias("sliding_window_pattern", "layer_switch")))


def _exaone4(keys: Keys) -> tuple[Layer, ...]:
    return _dense(keys, qkv_bias=None, output_bias=None, qk_norm=True, windows=exaone_windows)


def _smollm3_windows(keys: Keys) -> list[int | None]:
    window, depth = switched_window(keys), depth_of(keys)
    every, rotary = keys.size("no_rope_layer_interval"), keys.raw("no_rope_layers")
    if rotary is None:
        rotary = [int((index + 1) % every != 0) for index in range(depth)]
    if not isinstance(rotary, list) or len(rotary) != depth or not all(type(r) is int and r in (0, 1) for r in rotary):
        raise keys.refuse("no_rope_layers", f"must be a list of {depth} ones and zeros, one for each layer")
    return windows_by_layer(keys, window, lambda index: window is not None and not rotary[index])


def _starcoder2(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("mlp_type", [None, "default"], "which is not known")
    keys.one_of("norm_type", [None, "layer_norm"], "which is not known")
    return _dense(
        keys,
        qkv_bias="use_bias",
        output_bias="use_bias",
        ffn_bias="use_bias",
        gated=False,
        norms=4,  # two LayerNorms, a weight and a bias each
        windows=lambda keys: one_window(keys, keys.size_or_none("sliding_window")),
    )


def _apertus(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("qk_norm", [None, True], "but apertus always normalises queries and keys")
    keys.one_of("post_norm", [None, False], "which is not known")
    keys.one_of("mlp_bias", [None, False], "but apertus has no feed-forward bias")
    learned = 2 if keys.raw("hidden_act") == "xielu" else 0
    return _dense(keys, gated=False, qk_norm=True, activation_parameters=learned)


def _ministral(keys: Keys) -> tuple[Layer, ...]:
    return _dense(
        keys,
        qkv_bias=None,
        output_bias=None,
        windows=lambda keys: windows_by_layer(
            keys, keys.size_or_none("sliding_window"), lambda index: keys.values.get("sliding_window", 0) is not None
        ),
    )


def _ministral3(keys: Keys) -> tuple[Layer, ...]:
    return _dense(
        keys,
        qkv_bias=None,
        output_bias=None,
        windows=lambda keys: one_window(keys, keys.size_or_none("sliding_window")),
    )


def _hunyuan(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("use_qk_norm", [None, True], "but hunyuan_v1_dense always normalises queries and keys")
    keys.one_of("use_cla", [None, False], "but sharing keys and values across layers is not known here")
    return _dense(keys, qk_norm=True)


_NO_HEAD_DIM = {**SILU, "num_key_value_heads": None, "head_dim": None, "attention_bias": False}
_EPS_5 = {**_NO_HEAD_DIM, "rms_norm_eps": 1e-5}
_NO_RMS = {key: value for key, value in _NO_HEAD_DIM.items() if key != "rms_norm_eps"}
_COHERE = {**_NO_RMS, "layer_norm_eps": 1e-5, "tie_word_embeddings": True}
_COHERE_KEYS = frozenset(
    {
        "logit_scale",
        "position_embedding_type",
        "rotary_pct",
        "use_embedding_sharing",
        "use_gated_activation",
        "use_parallel_block",
        "use_parallel_embedding",
    }
)
_GLM = {**SILU, "rms_norm_eps": 1.5625e-07, "head_dim": 128, "attention_bias": True}
_MULTIPLIERS = frozenset({"attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"})

ENTRIES: Mapping[str, Architecture] = {
    "gemma": Architecture(
        _gemma,
        {
            **SILU,
            "hidden_act": "gelu_pytorch_tanh",
            "head_dim": 256,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ),
    "smollm3": Architecture(
        lambda keys: _dense(keys, ffn_bias="mlp_bias", windows=_smollm3_windows),
        {
            **SILU,
            "head_dim": None,
            "num_key_value_heads": 4,
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "sliding_window": None,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
        },
        frozenset({"max_window_layers"}),
    ),
    "olmo2": Architecture(lambda keys: _dense(keys, qk_norm=True, norm_across_heads=True), _EPS_5),
    "olmo3": Architecture(
        lambda keys: _dense(keys, qk_norm=True, norm_across_heads=True, windows=every_full(4)),
        {**_EPS_5, "sliding_window": 4096},
    ),
    "granite": Architecture(
        lambda keys: _dense(keys, ffn_bias="mlp_bias"), {**_NO_HEAD_DIM, "mlp_bias": False}, _MULTIPLIERS
    ),
    "cohere": Architecture(_cohere, {**_COHERE, "use_qk_norm": False}, _COHERE_KEYS, norm_key="layer_norm_eps"),
    "cohere2": Architecture(_cohere2, {**_COHERE, "sliding_window": 4096}, _COHERE_KEYS, norm_key="layer_norm_eps"),
    "starcoder2": Architecture(
        _starcoder2,
        {
            "tie_word_embeddings": True,
            "norm_epsilon": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            "head_dim": None,
            "num_key_value_heads": 2,
            "use_bias": True,
            "sliding_window": None,
        },
        frozenset({"residual_dropout", "embedding_dropout", "activation_function"}),
        norm_key="norm_epsilon",
        extras=layer_norm_at_the_end,
    ),
    "glm": Architecture(lambda keys: _dense(keys, output_bias=None), _GLM),
    "glm4": Architecture(lambda keys: _dense(keys, output_bias=None, norms=4), _GLM),
    "ernie4_5": Architecture(
        lambda keys: _dense(keys, qkv_bias="use_bias", output_bias="use_bias", ffn_bias="use_bias"),
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "use_bias": False,
            "head_dim": 128,
            "num_key_value_heads": 2,
        },
    ),
    "hunyuan_v1_dense": Architecture(_hunyuan, _EPS_5),
    "exaone4": Architecture(_exaone4, {**SILU, "rms_norm_eps": 1e-5, "head_dim": None, "sliding_window": 4096}),
    "seed_oss": Architecture(
        lambda keys: _dense(keys, output_bias="attention_out_bias", ffn_bias="mlp_bias"),
        {
            **SILU,
            "head_dim": 128,
            "num_key_value_heads": 8,
            "attention_bias": True,
            "attention_out_bias": False,
            "mlp_bias": False,
        },
        frozenset({"residual_dropout"}),
    ),
    "apertus": Architecture(_apertus, {**_EPS_5, "hidden_act": "xielu"}),
    "arcee": Architecture(
        lambda keys: _dense(keys, ffn_bias="mlp_bias", gated=False),
        {**_EPS_5, "hidden_act": "relu2", "mlp_bias": False},
    ),
    "ministral": Architecture(_ministral, {**SILU, "head_dim": None, "sliding_window": 4096}),
    "ministral3": Architecture(_ministral3, {**SILU, "rms_norm_eps": 1e-5, "head_dim": 128, "sliding_window": None}),
}
