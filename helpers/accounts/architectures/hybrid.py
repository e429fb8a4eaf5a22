"""Hybrid models: layers with a state of fixed size among layers with attention."""

from collections.abc import Mapping, Sequence

from helpers.accounts.architectures.reading import (
    COMMON,
    LARGEST_DEPTH,
    ROUTER_KEYS,
    SILU,
    Architecture,
    depth_of,
    experts_per_token,
    grouped_heads,
    head_dim_of,
    layer_numbers,
    multi_token_prediction,
)
from helpers.accounts.keys import LARGEST_SIZE, Keys
from helpers.accounts.model import DenseFFN, FullAttention, LatentAttention, Layer, MoEFFN
from helpers.accounts.state_mixers import (
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    ShortConvolution,
)

_FULL, _STATE = "full_attention", "linear_attention"
# Names of layer kinds; the second of each pair is the older one (transformers, configuration_utils.py).
_KINDS = {_FULL: _FULL, "attention": _FULL, _STATE: _STATE, "mamba": _STATE}
_DTYPES = {None: None, "auto": None, "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _kinds(keys: Keys, key: str, kinds: object, depth: int, names: Mapping[str, str] = _KINDS) -> list[str]:
    if not isinstance(kinds, list) or len(kinds) != depth:
        raise keys.refuse(key, f"must be a list of {depth} entries, one for each layer")
    for kind in kinds:
        if not isinstance(kind, str) or kind not in names:
            raise keys.refuse(key, f"holds {str(kind)[:40]!r}, which is not known for this model_type")
    return [names[kind] for kind in kinds]


def _state_dtype(keys: Keys, key: str) -> str | None:
    keys.read.add(key)
    value = keys.values.get(key)
    if value is not None and (not isinstance(value, str) or value not in _DTYPES):
        raise keys.refuse(key, f"is {str(value)[:40]!r}; known are auto, float32, bfloat16 and float16")
    return _DTYPES[value]


def _jamba(keys: Keys) -> tuple[Layer, ...]:
    hidden, depth = keys.size("hidden_size"), depth_of(keys)
    heads, kv_heads = grouped_heads(keys)
    attention = FullAttention(heads, kv_heads, head_dim_of(keys, heads))
    keys.one_of("sliding_window", [None], "but jamba has no sliding window")
    keys.one_of("mamba_inner_layernorms", [True], "but jamba always normalises step size, B and C")
    mamba = Mamba(
        width=keys.size("mamba_expand") * hidden,
        state_size=keys.size("mamba_d_state"),
        conv_kernel=keys.size("mamba_d_conv"),
        time_step_rank=-(-hidden // 16) if keys.raw("mamba_dt_rank") == "auto" else keys.size("mamba_dt_rank"),
        conv_bias=keys.flag("mamba_conv_bias"),
        bias=keys.flag("mamba_proj_bias"),
        inner_norms=True,
    )
    experts, width = keys.size(keys.alias("num_experts", "num_local_experts")), keys.size("intermediate_size")
    moe = MoEFFN(experts, experts_per_token(keys, experts), width)
    full = _every(keys, "attn_layer_period", "attn_layer_offset", depth)
    sparse = _every(keys, "expert_layer_period", "expert_layer_offset", depth)
    return tuple(
        Layer(
            attention if index in full else None,
            moe if index in sparse and experts > 1 else DenseFFN(width),
            state=None if index in full else mamba,
        )
        for index in range(depth)
    )


def _every(keys: Keys, period_key: str, offset_key: str, depth: int) -> frozenset[int]:
    period, offset = keys.size(period_key), keys.size(offset_key, smallest=0)
    if offset >= period:
        raise keys.refuse(offset_key, f"({offset}) must be smaller than {period_key} ({period})")
    return frozenset(range(offset, depth, period))


_NEMOTRON_PATTERN = {"M": _STATE, "*": _FULL, "-": "mlp", "E": "moe"}


def _nemotron_h(keys: Keys) -> tuple[Layer, ...]:
    kinds = _nemotron_kinds(keys)
    keys.one_of("sliding_window", [None], "but nemotron_h has no sliding window")
    keys.one_of("mamba_proj_bias", [False], "which transformers does not read (use_bias is)")
    keys.one_of("tie_word_embeddings", [False], "but nemotron_h never ties its head")
    layers = {
        _STATE: lambda: Layer(None, None, norms=1, state=_nemotron_mamba(keys)),
        _FULL: lambda: Layer(_nemotron_attention(keys), None, norms=1),
        "mlp": lambda: Layer(None, DenseFFN(keys.size("intermediate_size"), keys.flag("mlp_bias"), False), norms=1),
        "moe": lambda: Layer(None, _nemotron_moe(keys), norms=1),
    }
    built = {kind: layers[kind]() for kind in dict.fromkeys(kinds)}
    # Sizes of kinds of layers that this model has none of.
    keys.ignore(_NEMOTRON_SIZES)
    return tuple(built[kind] for kind in kinds)


def _nemotron_kinds(keys: Keys) -> list[str]:
    pattern_key, listed_key = "hybrid_override_pattern", keys.alias("layers_block_type", "layer_types")
    pattern, listed = keys.values.get(pattern_key), keys.values.get(listed_key)
    keys.ignore([pattern_key, listed_key, "layers_block_type", "layer_types"])
    kinds = None
    if listed is not None:
        names = {**_KINDS, "mlp": "mlp", "moe": "moe"}
        kinds = _kinds(keys, listed_key, listed, len(listed) if isinstance(listed, list) else 0, names)
    if pattern is not None:
        if not isinstance(pattern, str) or not set(pattern) <= set(_NEMOTRON_PATTERN):
            raise keys.refuse(pattern_key, f"must be a string of {', '.join(_NEMOTRON_PATTERN)} alone")
        spelled = [_NEMOTRON_PATTERN[letter] for letter in pattern]
        if kinds not in (None, spelled):
            raise keys.refuse(pattern_key, f"contradicts {listed_key}")
        kinds = spelled
    if not kinds or len(kinds) > LARGEST_DEPTH:
        raise keys.refuse(pattern_key, f"or {listed_key} must name 1 to {LARGEST_DEPTH:,} layers")
    keys.same_as("num_hidden_layers", "the number of layers named", len(kinds))
    return kinds


def _nemotron_attention(keys: Keys) -> FullAttention:
    heads, kv_heads = grouped_heads(keys)
    head_dim = keys.size("head_dim")
    keys.same_as("attention_head_dim", "head_dim", head_dim)
    keys.one_of("attention_bias", [False], "but nemotron_h has no bias in its attention")
    return FullAttention(heads, kv_heads, head_dim)


def _nemotron_mamba(keys: Keys) -> Mamba2:
    heads, bias = keys.size("mamba_num_heads"), keys.flag("use_bias")
    return Mamba2(
        heads=heads,
        head_dim=keys.size("mamba_head_dim"),
        groups=_groups(keys, "n_groups", heads),
        state_size=keys.size("ssm_state_size"),
        conv_kernel=keys.size("conv_kernel"),
        conv_bias=keys.flag("use_conv_bias"),
        bias=bias,
        output_bias=bias,
        state_dtype=_state_dtype(keys, "mamba_ssm_cache_dtype"),
    )


def _nemotron_moe(keys: Keys) -> MoEFFN:
    experts = keys.size("n_routed_experts")
    keys.one_of("n_shared_experts", [1], "but nemotron_h has one shared expert")
    return MoEFFN(
        experts,
        experts_per_token(keys, experts),
        keys.size("moe_intermediate_size"),
        shared_experts=1,
        shared_width=keys.size("moe_shared_expert_intermediate_size"),
        shared_bias=keys.flag("mlp_bias"),
        gated=False,
        latent_width=keys.size_or_none("moe_latent_size"),
    )


def _groups(keys: Keys, key: str, heads: int) -> int:
    groups = keys.size(key)
    if heads % groups:
        raise keys.refuse(key, f"({groups}) does not divide the {heads} Mamba heads")
    return groups


def _mamba2(keys: Keys, width: int, output_bias_key: str, norm: bool = True) -> Mamba2:
    """The Mamba-2 mixer as Bamba, Granite 4 and Falcon-H1 spell it."""
    heads = keys.size("mamba_n_heads")
    if width % heads:
        raise keys.refuse("mamba_n_heads", f"({heads}) does not divide the {width} Mamba channels")
    head_dim = width // heads if keys.raw("mamba_d_head") == "auto" else keys.size("mamba_d_head")
    if head_dim * heads != width:
        raise keys.refuse("mamba_d_head", f"({head_dim}) times mamba_n_heads ({heads}) is not the width {width}")
    return Mamba2(
        heads=heads,
        head_dim=head_dim,
        groups=_groups(keys, "mamba_n_groups", heads),
        state_size=keys.size("mamba_d_state"),
        conv_kernel=keys.size("mamba_d_conv"),
        conv_bias=keys.flag("mamba_conv_bias"),
        bias=keys.flag("mamba_proj_bias"),
        output_bias=keys.flag(output_bias_key),
        norm=norm,
        state_dtype=_state_dtype(keys, "mamba_ssm_cache_dtype"),
    )


def _biased_attention(keys: Keys) -> FullAttention:
    heads, kv_heads = grouped_heads(keys)
    bias = keys.flag("attention_bias")
    return FullAttention(heads, kv_heads, head_dim_of(keys, heads), qkv_bias=bias, output_bias=bias)


def _bamba(keys: Keys) -> tuple[Layer, ...]:
    depth, full = depth_of(keys), layer_numbers(keys, "attn_layer_indices", depth_of(keys))
    mamba = _mamba2(keys, keys.size("mamba_expand") * keys.size("hidden_size"), "mamba_proj_bias")
    attention = _biased_attention(keys)
    ffn = DenseFFN(keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))
    return tuple(Layer(attention, ffn) if index in full else Layer(None, ffn, state=mamba) for index in range(depth))


def _granitemoehybrid(keys: Keys) -> tuple[Layer, ...]:
    depth, listed_key = depth_of(keys), keys.alias("layer_types", "layers_block_type")
    kinds = _kinds(keys, listed_key, keys.raw(listed_key), depth)
    mamba = _mamba2(keys, keys.size("mamba_expand") * keys.size("hidden_size"), "mamba_proj_bias")
    attention, shared_width = _biased_attention(keys), keys.size("shared_intermediate_size")
    experts = keys.size(keys.alias("num_local_experts", "num_experts"), smallest=0)
    width = keys.size("intermediate_size")
    if experts:
        per_token = experts_per_token(keys, experts)
        ffn = MoEFFN(experts, per_token, width, shared_experts=1, shared_width=shared_width)
    else:
        keys.ignore(["num_experts_per_tok"])
        ffn = DenseFFN(shared_width)
    return tuple(Layer(attention, ffn) if kind == _FULL else Layer(None, ffn, state=mamba) for kind in kinds)


def _falcon_h1(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("attn_layer_indices", [None], "but every layer of falcon_h1 has attention")
    keys.one_of("mamba_use_mlp", [True], "but every layer of falcon_h1 has a feed-forward block")
    expand, ssm_width = keys.size("mamba_expand"), keys.size_or_none("mamba_d_ssm")
    width = expand * keys.size("hidden_size") if ssm_width is None else ssm_width
    mamba = _mamba2(keys, width, "projectors_bias", norm=keys.flag("mamba_rms_norm"))
    ffn = DenseFFN(keys.size("intermediate_size"), bias=keys.flag("mlp_bias"))
    return (Layer(_biased_attention(keys), ffn, state=mamba),) * depth_of(keys)


def _qwen3_next(keys: Keys) -> tuple[Layer, ...]:
    kinds, moe = _qwen_kinds(keys), _qwen_moe(keys)
    keys.one_of("use_sliding_window", [False], "but qwen3_next has no sliding window")
    dense_layers, step = layer_numbers(keys, "mlp_only_layers", len(kinds)), keys.size("decoder_sparse_step")
    dense = DenseFFN(keys.size("intermediate_size"))
    sparse = [index not in dense_layers and (index + 1) % step == 0 for index in range(len(kinds))]
    return _qwen_layers(keys, kinds, [moe if is_sparse else dense for is_sparse in sparse], fused=True)


def _qwen3_5(keys: Keys) -> tuple[Layer, ...]:
    kinds = _qwen_kinds(keys)
    keys.one_of("mlp_only_layers", [None, []], "which qwen3_5 does not read")
    return _qwen_layers(keys, kinds, [DenseFFN(keys.size("intermediate_size"))] * len(kinds))


def _qwen3_5_moe(keys: Keys) -> tuple[Layer, ...]:
    kinds = _qwen_kinds(keys)
    keys.one_of("mlp_only_layers", [None, []], "which qwen3_5_moe does not read")
    keys.one_of("decoder_sparse_step", [1], "but every layer of qwen3_5_moe is a mixture")
    # Without dense layers their width is written in some files, and read by nobody.
    keys.ignore(["intermediate_size"])
    return _qwen_layers(keys, kinds, [_qwen_moe(keys)] * len(kinds))


def _qwen_kinds(keys: Keys) -> list[str]:
    depth = depth_of(keys)
    listed, interval_key = keys.values.get("layer_types"), "full_attention_interval"
    keys.ignore(["layer_types"])
    every = None
    if interval_key in keys.values:
        every = keys.size(interval_key)
    elif listed is None:
        keys.read.add(interval_key)
        every = keys.defaulted[interval_key] = 4
    spelled = None if every is None else [_STATE if (i + 1) % every else _FULL for i in range(depth)]
    if listed is None:
        return spelled
    kinds = _kinds(keys, "layer_types", listed, depth)
    if spelled not in (None, kinds):
        raise keys.refuse(interval_key, "contradicts layer_types")
    return kinds


def _qwen_moe(keys: Keys) -> MoEFFN:
    experts = keys.size(keys.alias("num_experts", "num_local_experts"))
    return MoEFFN(
        experts,
        experts_per_token(keys, experts),
        keys.size("moe_intermediate_size"),
        shared_experts=1,
        shared_width=keys.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )


def _qwen_layers(
    keys: Keys, kinds: list[str], ffns: Sequence[DenseFFN | MoEFFN], fused: bool = False
) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys, null_means_heads=False)
    bias = keys.flag("attention_bias")
    keys.one_of("attn_output_gate", [True], "but the attention of this model_type always has an output gate")
    attention = FullAttention(heads, kv_heads, keys.size("head_dim"), None, bias, bias, qk_norm=True, output_gate=True)
    key_heads, value_heads = keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
    if value_heads % key_heads:
        raise keys.refuse("linear_num_key_heads", f"({key_heads}) does not divide the {value_heads} value heads")
    delta = GatedDeltaNet(
        key_heads,
        value_heads,
        keys.size("linear_key_head_dim"),
        keys.size("linear_value_head_dim"),
        keys.size("linear_conv_kernel_dim"),
        fused=fused,
        state_dtype=_state_dtype(keys, "mamba_ssm_dtype"),
    )
    return tuple(
        Layer(attention, ffn) if kind == _FULL else Layer(None, ffn, state=delta)
        for kind, ffn in zip(kinds, ffns, strict=True)
    )


def _lfm2(keys: Keys) -> tuple[Layer, ...]:
    width = keys.size(keys.alias("block_ff_dim", "intermediate_size"))
    keys.ignore(["intermediate_size"])
    if keys.flag("block_auto_adjust_ff_dim"):
        width, multiple = int(2 * width / 3), keys.size("block_multiple_of")
        width = int(keys.positive_number("block_ffn_dim_multiplier") * width)
        width = multiple * -(-width // multiple)
    if not 1 <= width <= LARGEST_SIZE:
        raise keys.refuse("block_ffn_dim_multiplier", f"gives a feed-forward width of {width}, which is no size")
    keys.ignore(["block_ffn_dim_multiplier", "block_multiple_of"])
    return _lfm2_layers(keys, [DenseFFN(width)] * depth_of(keys))


def _lfm2_moe(keys: Keys) -> tuple[Layer, ...]:
    depth, experts = depth_of(keys), keys.size("num_experts")
    moe = MoEFFN(experts, experts_per_token(keys, experts), keys.size("moe_intermediate_size"))
    dense, first_sparse = DenseFFN(keys.size("intermediate_size")), keys.size("num_dense_layers", smallest=0)
    return _lfm2_layers(keys, [dense if index < first_sparse else moe for index in range(depth)])


def _lfm2_layers(keys: Keys, ffns: Sequence[DenseFFN | MoEFFN]) -> tuple[Layer, ...]:
    hidden, names = keys.size("hidden_size"), {"conv": "conv", _FULL: _FULL}
    listed = keys.values.get("layer_types")
    keys.ignore(["layer_types"])
    if listed is None:
        full = layer_numbers(keys, "full_attn_idxs", len(ffns))
        if keys.raw("full_attn_idxs") is None:
            raise keys.refuse("layer_types", "is missing, and so is full_attn_idxs")
        kinds = [_FULL if index in full else "conv" for index in range(len(ffns))]
    else:
        kinds = _kinds(keys, "layer_types", listed, len(ffns), names)
        positions = [index for index, kind in enumerate(kinds) if kind == _FULL]
        keys.one_of("full_attn_idxs", [None, positions], "which contradicts layer_types")
    heads, kv_heads = grouped_heads(keys, null_means_heads=False)
    attention = FullAttention(heads, kv_heads, head_dim_of(keys, heads), qk_norm=True)
    keys.same_as("conv_dim", "hidden_size", hidden)
    keys.same_as("conv_dim_out", "hidden_size", hidden)
    keys.same_as("block_dim", "hidden_size", hidden)
    keys.same_as("num_heads", "num_attention_heads", heads)
    keys.one_of("block_use_swiglu", [True], "but lfm2 always has a gated feed-forward block")
    convolution = ShortConvolution(hidden, keys.size("conv_L_cache"), keys.flag("conv_bias"))
    # The class knows silu alone, and no key for it; some files spell the tie in their own way.
    keys.values = {"hidden_act": "silu", **keys.values}
    if "tie_embedding" in keys.values:
        keys.values["tie_word_embeddings"] = keys.values.pop("tie_embedding")
    return tuple(
        Layer(attention, ffn) if kind == _FULL else Layer(None, ffn, state=convolution)
        for kind, ffn in zip(kinds, ffns, strict=True)
    )


def _minimax(keys: Keys) -> tuple[Layer, ...]:
    depth = depth_of(keys)
    kinds = _kinds(keys, "layer_types", keys.raw("layer_types"), depth)
    heads, kv_heads = grouped_heads(keys)
    head_dim = head_dim_of(keys, heads, null_is_absent=True)
    keys.one_of("sliding_window", [None], "but minimax has no sliding window")
    experts = keys.size(keys.alias("num_local_experts", "num_experts"))
    moe = MoEFFN(experts, experts_per_token(keys, experts), keys.size("intermediate_size"))
    attention, lightning = FullAttention(heads, kv_heads, head_dim), LightningAttention(heads, head_dim)
    return tuple(Layer(attention, moe) if kind == _FULL else Layer(None, moe, state=lightning) for kind in kinds)


def _kimi_linear(keys: Keys) -> tuple[Layer, ...]:
    depth, linear = depth_of(keys), Keys(keys.object("linear_attn_config"), f"{keys.where}: linear_attn_config")
    keys.one_of("layer_types", [None], "but this model_type is read from linear_attn_config")
    keys.one_of("mlp_layer_types", [None], "but this model_type is read from first_k_dense_replace")
    full, state = (_one_based(linear, key, depth) for key in ("full_attn_layers", "kda_layers"))
    if full & state or len(full | state) != depth:
        raise linear.refuse("kda_layers", f"and full_attn_layers must share out the layers 1 to {depth}")
    delta = KimiDeltaAttention(linear.size("num_heads"), linear.size("head_dim"), linear.size("short_conv_kernel_size"))
    linear.refuse_unread()
    heads = keys.size("num_attention_heads")
    keys.one_of("num_key_value_heads", [None, heads], "but latent attention has as many KV heads as heads")
    keys.one_of("tie_word_embeddings", [False], "but kimi_linear never ties its head")
    keys.one_of("mla_use_nope", [True], "but the attention of kimi_linear has no rotary embedding")
    keys.one_of("moe_layer_freq", [1], "but only 1 is known")
    latent = LatentAttention(
        heads,
        keys.size("kv_lora_rank"),
        keys.size_or_none("q_lora_rank"),
        keys.size("qk_nope_head_dim"),
        keys.size("qk_rope_head_dim"),
        keys.size("v_head_dim"),
        bias=keys.flag("attention_bias"),
    )
    _rename(keys, "num_experts_per_tok", "num_experts_per_token")
    _rename(keys, "max_position_embeddings", "model_max_length")
    experts = keys.size(keys.alias("num_experts", "num_local_experts"))
    shared = keys.size(keys.alias("num_shared_experts", "n_shared_experts"))
    width = keys.size("moe_intermediate_size")
    moe = MoEFFN(experts, experts_per_token(keys, experts), width, shared_experts=shared, shared_width=shared * width)
    dense, first_sparse = DenseFFN(keys.size("intermediate_size")), keys.size("first_k_dense_replace", smallest=0)
    ffns = [dense if index < first_sparse else moe for index in range(depth)]
    return tuple(
        Layer(latent, ffn) if index in full else Layer(None, ffn, state=delta)
        for index, ffn in enumerate(ffns, start=1)
    )


def _rename(keys: Keys, ours: str, theirs: str) -> None:
    """Reads the vendor's name of a key in the place of ours; both must agree."""
    if theirs in keys.values:
        if ours in keys.values:
            keys.same_as(ours, theirs, keys.values[theirs])
        keys.read.add(theirs)
        keys.values = {**keys.values, ours: keys.values[theirs]}


def _one_based(keys: Keys, key: str, depth: int) -> frozenset[int]:
    value = keys.raw(key)
    if not isinstance(value, list) or not all(type(item) is int and 1 <= item <= depth for item in value):
        raise keys.refuse(key, f"must be a list of layer numbers from 1 to {depth}")
    return frozenset(value)


_TIME_STEP = frozenset(
    {"time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "time_step_rank", "residual_in_fp32"}
)
_MAMBA_KERNELS = frozenset({"use_mamba_kernels", "use_mambapy", "use_associative_scan", "num_logits_to_keep"})
_NEMOTRON_SIZES = frozenset(
    {
        "attention_bias",
        "attention_head_dim",
        "conv_kernel",
        "head_dim",
        "intermediate_size",
        "mamba_head_dim",
        "mamba_num_heads",
        "mamba_ssm_cache_dtype",
        "mlp_bias",
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "n_groups",
        "n_routed_experts",
        "n_shared_experts",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_key_value_heads",
        "ssm_state_size",
        "use_bias",
        "use_conv_bias",
    }
)
_MULTIPLIERS = frozenset(
    {
        "attention_in_multiplier",
        "attention_multiplier",
        "attention_out_multiplier",
        "embedding_multiplier",
        "key_multiplier",
        "lm_head_multiplier",
        "logits_scaling",
        "mlp_multipliers",
        "residual_multiplier",
        "ssm_in_multiplier",
        "ssm_multipliers",
        "ssm_out_multiplier",
    }
)
_MAMBA2_DEFAULTS = {
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
    "mamba_d_head": "auto",
    "attention_bias": False,
    "num_key_value_heads": 8,
    "head_dim": None,
}
_QWEN_DEFAULTS = {**SILU, "head_dim": 256, "attention_bias": False}
_LFM2_DEFAULTS = {
    "tie_word_embeddings": True,
    "norm_eps": 1e-5,
    "head_dim": None,
    "conv_bias": False,
    "max_position_embeddings": 128_000,
}
_LFM2_KEYS = frozenset(
    {
        "block_mlp_init_scale",
        "block_norm_eps",
        "block_out_init_scale",
        "block_use_xavier_init",
        "conv_use_xavier_init",
        "theta",
        "use_pos_enc",
    }
)

ENTRIES: Mapping[str, Architecture] = {
    "jamba": Architecture(
        _jamba,
        {
            **SILU,
            "head_dim": None,
            "mamba_dt_rank": "auto",
            "mamba_conv_bias": True,
            "mamba_proj_bias": False,
            "max_position_embeddings": 262_144,
        },
        ROUTER_KEYS | _MAMBA_KERNELS | {"calc_logits_for_entire_prompt", "n_ctx"},
    ),
    "nemotron_h": Architecture(
        _nemotron_h,
        {
            "tie_word_embeddings": False,
            "layer_norm_epsilon": 1e-5,
            "mlp_hidden_act": "relu2",
            "head_dim": 128,
            "mlp_bias": False,
            "use_bias": False,
            "use_conv_bias": True,
            "moe_latent_size": None,
        },
        ROUTER_KEYS
        | _TIME_STEP
        | _MAMBA_KERNELS
        | {
            "chunk_size",
            "expand",
            "hidden_dropout",
            "mamba_hidden_act",
            "moe_shared_expert_overlap",
            "mtp_hybrid_override_pattern",
            "mtp_layers_block_type",
            "n_group",
            "norm_eps",
            "rescale_prenorm_residual",
            "rms_norm_eps",
            "routed_scaling_factor",
            "topk_group",
        },
        activation_key="mlp_hidden_act",
        norm_key="layer_norm_epsilon",
        notes=multi_token_prediction,
    ),
    "qwen3_next": Architecture(
        _qwen3_next,
        {**_QWEN_DEFAULTS, "decoder_sparse_step": 1, "mlp_only_layers": None},
        ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "qwen3_5_text": Architecture(
        _qwen3_5, _QWEN_DEFAULTS, frozenset({"mtp_use_dedicated_embeddings"}), notes=multi_token_prediction
    ),
    "qwen3_5_moe_text": Architecture(
        _qwen3_5_moe, _QWEN_DEFAULTS, ROUTER_KEYS | {"mtp_use_dedicated_embeddings"}, notes=multi_token_prediction
    ),
    "bamba": Architecture(
        _bamba,
        {**SILU, **_MAMBA2_DEFAULTS, "rms_norm_eps": 1e-5, "mlp_bias": False, "attn_layer_indices": None},
        _MAMBA_KERNELS | _TIME_STEP | {"attn_rotary_emb", "mamba_chunk_size", "z_loss_coefficient"},
    ),
    "granitemoehybrid": Architecture(
        _granitemoehybrid,
        {**SILU, **_MAMBA2_DEFAULTS, "num_key_value_heads": None},
        ROUTER_KEYS
        | _MAMBA_KERNELS
        | _MULTIPLIERS
        | _TIME_STEP
        | {"init_method", "mamba_chunk_size", "normalization_function", "position_embedding_type"},
    ),
    "falcon_h1": Architecture(
        _falcon_h1,
        {
            **SILU,
            **_MAMBA2_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "mlp_bias": False,
            "projectors_bias": False,
            "mamba_rms_norm": False,
            "mamba_expand": 2,
        },
        _MAMBA_KERNELS | _MULTIPLIERS | _TIME_STEP | {"mamba_chunk_size", "mamba_norm_before_gate"},
    ),
    "lfm2": Architecture(
        _lfm2,
        {
            **_LFM2_DEFAULTS,
            "conv_L_cache": 3,
            "block_auto_adjust_ff_dim": True,
            "block_multiple_of": 256,
            "block_ffn_dim_multiplier": 1.0,
            "full_attn_idxs": None,
        },
        _LFM2_KEYS,
        norm_key="norm_eps",
    ),
    "lfm2_moe": Architecture(
        _lfm2_moe,
        {**_LFM2_DEFAULTS, "conv_L_cache": 3},
        ROUTER_KEYS | _LFM2_KEYS | {"routed_scaling_factor", "use_expert_bias"},
        norm_key="norm_eps",
    ),
    "minimax": Architecture(
        _minimax,
        {**SILU, "rms_norm_eps": 1e-5, "head_dim": None},
        ROUTER_KEYS
        | {
            "block_size",
            "full_attn_alpha_factor",
            "full_attn_beta_factor",
            "linear_attn_alpha_factor",
            "linear_attn_beta_factor",
            "mlp_alpha_factor",
            "mlp_beta_factor",
        },
    ),
    "kimi_linear": Architecture(
        _kimi_linear,
        {**COMMON, "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "q_lora_rank": None},
        ROUTER_KEYS
        | {
            "head_dim",
            "moe_renormalize",
            "moe_router_activation_func",
            "n_group",
            "num_expert_group",
            "rope_theta",
            "routed_scaling_factor",
            "topk_group",
            "topk_method",
            "use_grouped_topk",
        },
        notes=multi_token_prediction,
    ),
}

_VISION_KEYS = frozenset(
    {
        "image_token_id",
        "language_model_only",
        "video_token_id",
        "vision_config",
        "vision_end_token_id",
        "vision_start_token_id",
    }
)

# Multimodal wrappers whose text_config is one of these, with their keys that concern only the rest.
WRAPPERS: Mapping[str, frozenset[str]] = {"qwen3_5": _VISION_KEYS, "qwen3_5_moe": _VISION_KEYS}
