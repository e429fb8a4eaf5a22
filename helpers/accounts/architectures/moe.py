"""Mixture-of-experts models with full, grouped or windowed attention."""

from collections.abc import Mapping

from helpers.accounts.architectures.reading import (
    HEAD_OUTSIDE,
    ROUTER_KEYS,
    SIGMOID_ROUTER_KEYS,
    SILU,
    Architecture,
    depth_of,
    exaone_windows,
    experts_per_token,
    grouped_heads,
    head_dim_of,
    layer_numbers,
    multi_token_prediction,
    one_window,
    sparse_layers,
    switched_window,
    windows_by_layer,
)
from helpers.accounts.keys import Keys
from helpers.accounts.model import DenseFFN, FullAttention, Layer, MoEFFN


def _mixtral(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    head_dim = head_dim_of(keys, heads, null_is_absent=True)
    experts = keys.size(keys.alias("num_local_experts", "num_experts"))
    ffn = MoEFFN(experts, experts_per_token(keys, experts), keys.size("intermediate_size"), normalize_gates=True)
    windows = one_window(keys, keys.size_or_none("sliding_window"))
    return tuple(Layer(FullAttention(heads, kv_heads, head_dim, window), ffn) for window in windows)


def _qwen3_moe(keys: Keys) -> tuple[Layer, ...]:
    # transformers gives the window to every layer here: max_window_layers is not looked at.
    keys.ignore(["max_window_layers"])
    return _qwen3_moe_layers(keys, one_window(keys, switched_window(keys)))


def _qwen3_vl_moe(keys: Keys) -> tuple[Layer, ...]:
    return _qwen3_moe_layers(keys, one_window(keys, None))


def _qwen3_moe_layers(keys: Keys, windows: list[int | None]) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys, null_means_heads=False)
    head_dim, bias = head_dim_of(keys, heads), keys.flag("attention_bias")
    keys.one_of("use_qk_norm", [True], "but qwen3_moe always normalises queries and keys")
    keys.one_of("qkv_bias", [bias], "which contradicts attention_bias")
    keys.one_of("shared_expert_intermediate_size", [None, 0], "but qwen3_moe has no shared expert")
    experts = keys.size(keys.alias("num_experts", "num_local_experts"))
    normalized = keys.values.get("norm_topk_prob", False)
    moe = MoEFFN(
        experts,
        experts_per_token(keys, experts),
        keys.size("moe_intermediate_size"),
        normalize_gates=normalized if isinstance(normalized, bool) else None,
    )
    step = keys.size("decoder_sparse_step")
    dense_layers = layer_numbers(keys, "mlp_only_layers", len(windows))
    sparse = [index not in dense_layers and (index + 1) % step == 0 for index in range(len(windows))]
    width = keys.size("intermediate_size")
    return tuple(
        Layer(
            FullAttention(heads, kv_heads, head_dim, window, bias, bias, qk_norm=True),
            moe if is_sparse else DenseFFN(width),
        )
        for window, is_sparse in zip(windows, sparse, strict=True)
    )


def _gpt_oss(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    head_dim, bias = head_dim_of(keys, heads, null_is_absent=True), keys.flag("attention_bias")
    experts = keys.size(keys.alias("num_local_experts", "num_experts"))
    per_token = experts_per_token(keys, experts)
    keys.same_as("experts_per_token", "num_experts_per_tok", per_token)
    moe = MoEFFN(experts, per_token, keys.size("intermediate_size"), expert_bias=True, router_bias=True)
    windows = windows_by_layer(keys, keys.size_or_none("sliding_window"), lambda index: index % 2 == 0)
    return tuple(
        Layer(FullAttention(heads, kv_heads, head_dim, window, bias, bias, sinks=True), moe) for window in windows
    )


def _after_dense(
    keys: Keys,
    *,
    expert_keys: tuple[str, ...] = ("n_routed_experts", "num_local_experts"),
    shared_key: str = "n_shared_experts",
    has_experts: list[bool],
    windows: list[int | None],
    qkv_bias: bool = False,
    output_bias: bool = False,
    ffn_bias: bool = False,
    qk_norm: bool = False,
) -> tuple[Layer, ...]:
    """Dense layers, then mixtures of experts with shared ones, in the manner of DeepSeek-V3 but without its latent."""
    heads, kv_heads = grouped_heads(keys)
    head_dim = head_dim_of(keys, heads)
    experts, width = keys.size(keys.alias(*expert_keys)), keys.size("moe_intermediate_size")
    shared = keys.size(shared_key, smallest=0)
    moe = MoEFFN(
        experts,
        experts_per_token(keys, experts),
        width,
        shared_experts=shared,
        shared_width=shared * width,
        shared_bias=ffn_bias,
    )
    if all(has_experts):
        keys.ignore(["intermediate_size"])
        dense = None
    else:
        dense = DenseFFN(keys.size("intermediate_size"), bias=ffn_bias)
    return tuple(
        Layer(
            FullAttention(heads, kv_heads, head_dim, window, qkv_bias, output_bias, qk_norm=qk_norm),
            moe if sparse else dense,
        )
        for window, sparse in zip(windows, has_experts, strict=True)
    )


def _first_dense(keys: Keys) -> list[bool]:
    return [index >= keys.size("first_k_dense_replace", smallest=0) for index in range(depth_of(keys))]


def _glm4_moe(keys: Keys) -> tuple[Layer, ...]:
    return _after_dense(
        keys,
        has_experts=_first_dense(keys),
        windows=one_window(keys, None),
        qkv_bias=keys.flag("attention_bias"),
        qk_norm=keys.flag("use_qk_norm"),
    )


def _dots1(keys: Keys) -> tuple[Layer, ...]:
    window, first_sliding = keys.size_or_none("sliding_window"), keys.size("max_window_layers", smallest=0)
    bias = keys.flag("attention_bias")
    return _after_dense(
        keys,
        has_experts=_first_dense(keys),
        windows=windows_by_layer(keys, window, lambda index: window is not None and index >= first_sliding),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )


def _solar_open(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("first_k_dense_replace", [0], "but every layer of solar_open has experts")
    keys.one_of("use_qk_norm", [None, False], "but solar_open does not normalise queries and keys")
    return _after_dense(
        keys,
        has_experts=[True] * depth_of(keys),
        windows=one_window(keys, None),
        qkv_bias=keys.flag("attention_bias"),
    )


def _exaone_moe(keys: Keys) -> tuple[Layer, ...]:
    return _after_dense(
        keys,
        expert_keys=("num_experts",),
        shared_key="num_shared_experts",
        has_experts=sparse_layers(keys, keys.size("first_k_dense_replace", smallest=0)),
        windows=exaone_windows(keys),
        qk_norm=True,
    )


def _hy_v3(keys: Keys) -> tuple[Layer, ...]:
    bias = keys.flag("attention_bias")
    has_experts = sparse_layers(keys, 1)
    keys.same_as("first_k_dense_replace", "the dense layers of mlp_layer_types", has_experts.count(False))
    return _after_dense(
        keys,
        expert_keys=("num_experts", "num_local_experts"),
        shared_key="num_shared_experts",
        has_experts=has_experts,
        windows=one_window(keys, None),
        qkv_bias=bias,
        output_bias=bias,
        ffn_bias=keys.flag("mlp_bias"),
        qk_norm=True,
    )


def _minimax_m2(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys, null_means_heads=False)
    head_dim = head_dim_of(keys, heads)
    attention = FullAttention(heads, kv_heads, head_dim, qk_norm=True, norm_across_heads=True)
    experts = keys.size(keys.alias("num_local_experts", "num_experts"))
    moe = MoEFFN(experts, experts_per_token(keys, experts), keys.size("intermediate_size"))
    keys.one_of("use_qk_norm", [True], "but minimax_m2 always normalises queries and keys")
    keys.one_of("qk_norm_type", ["per_layer"], "but only per_layer is known: one norm over all heads")
    keys.one_of("shared_intermediate_size", [None, 0], "but minimax_m2 has no shared expert")
    # Some files spell out, layer by layer, that every layer has full attention.
    keys.one_of("attn_type_list", [None, [1] * depth_of(keys)], "but only full attention in every layer is known")
    return tuple(Layer(attention, moe) for _ in one_window(keys, None))


def _minimax_prediction_layers(keys: Keys) -> tuple[str, ...]:
    if not (keys.values.get("use_mtp") and keys.values.get("num_mtp_modules")):
        return ()
    return (f"{keys.size('num_mtp_modules')} multi-token-prediction modules (num_mtp_modules) not counted",)


def _llama4(keys: Keys) -> tuple[Layer, ...]:
    depth = depth_of(keys)
    heads, kv_heads = grouped_heads(keys)
    head_dim, bias = head_dim_of(keys, heads, null_is_absent=True), keys.flag("attention_bias")
    chunk = keys.size_or_none("attention_chunk_size")
    full, chunked = (
        FullAttention(heads, kv_heads, head_dim, chunk=size, qkv_bias=bias, output_bias=bias) for size in (None, chunk)
    )
    experts, width = keys.size("num_local_experts"), keys.size("intermediate_size")
    moe = MoEFFN(experts, experts_per_token(keys, experts), width, shared_experts=1, shared_width=width)
    dense = DenseFFN(keys.size("intermediate_size_mlp"))
    sparse = layer_numbers(keys, "moe_layers", depth)
    step = keys.size("interleave_moe_layer_step")
    if keys.values.get("moe_layers") is None:
        sparse = frozenset(range(step - 1, depth, step))
    return tuple(
        Layer(chunked if is_chunked else full, moe if index in sparse else dense)
        for index, is_chunked in enumerate(_llama4_chunked(keys, depth, chunk))
    )


def _llama4_chunked(keys: Keys, depth: int, chunk: int | None) -> list[bool]:
    """Which layers attend in chunks: those with rotary positions, unless layer_types says otherwise."""
    every, rotary = keys.size("no_rope_layer_interval"), keys.raw("no_rope_layers")
    if not rotary:
        rotary = [int((index + 1) % every != 0) for index in range(depth)]
    if not isinstance(rotary, list) or len(rotary) != depth or not all(type(r) is int and r in (0, 1) for r in rotary):
        raise keys.refuse("no_rope_layers", f"must be a list of {depth} ones and zeros, one for each layer")
    kinds = keys.raw("layer_types")
    if kinds is None:
        return [bool(r) and chunk is not None for r in rotary]
    known = ("full_attention", "chunked_attention")
    if not isinstance(kinds, list) or len(kinds) != depth or not all(kind in known for kind in kinds):
        raise keys.refuse("layer_types", f"must be a list of {depth} entries, each of {', '.join(known)}")
    if chunk is None and "chunked_attention" in kinds:
        raise keys.refuse("attention_chunk_size", "is null, but some layers are chunked_attention")
    return [kind == "chunked_attention" for kind in kinds]


def _alike(keys: Keys, *, norm_across_heads: bool = False) -> tuple[Layer, ...]:
    """Every layer a mixture of experts of intermediate_size (OLMoE, Granite)."""
    heads, kv_heads = grouped_heads(keys)
    head_dim, bias = head_dim_of(keys, heads, null_is_absent=True), keys.flag("attention_bias")
    attention = FullAttention(
        heads,
        kv_heads,
        head_dim,
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=norm_across_heads,
        norm_across_heads=norm_across_heads,
    )
    experts = keys.size(keys.alias("num_experts" if norm_across_heads else "num_local_experts"))
    moe = MoEFFN(experts, experts_per_token(keys, experts), keys.size("intermediate_size"))
    return tuple(Layer(attention, moe) for _ in one_window(keys, None))


def _olmoe(keys: Keys) -> tuple[Layer, ...]:
    # The norms take hidden_size for the width of all heads.
    if keys.values.get("head_dim") is not None:
        heads = keys.size("num_attention_heads")
        keys.same_as("hidden_size", "num_attention_heads · head_dim", heads * keys.size("head_dim"))
    return _alike(keys, norm_across_heads=True)


def _qwen2_moe(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    head_dim, bias = head_dim_of(keys, heads), keys.flag("qkv_bias")
    window, until = switched_window(keys), keys.size("max_window_layers", smallest=0)
    windows = windows_by_layer(keys, window, lambda index: window is not None and index % 2 == 0 and index < until)
    experts = keys.size("num_experts")
    moe = MoEFFN(
        experts,
        experts_per_token(keys, experts),
        keys.size("moe_intermediate_size"),
        shared_experts=1,
        shared_width=keys.size("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    step = keys.size("decoder_sparse_step")
    dense, dense_layers = DenseFFN(keys.size("intermediate_size")), layer_numbers(keys, "mlp_only_layers", len(windows))
    return tuple(
        Layer(
            FullAttention(heads, kv_heads, head_dim, window, qkv_bias=bias),
            dense if index in dense_layers or (index + 1) % step else moe,
        )
        for index, window in enumerate(windows)
    )


def _ernie4_5_moe(keys: Keys) -> tuple[Layer, ...]:
    heads, kv_heads = grouped_heads(keys)
    attention = FullAttention(heads, kv_heads, head_dim_of(keys, heads))
    keys.one_of("use_bias", [None, False], "but biases in every layer and in the head are not known here")
    experts = keys.size(keys.alias("moe_num_experts", "num_experts"))
    per_token = keys.size(keys.alias("moe_k", "num_experts_per_tok"))
    if per_token > experts:
        raise keys.refuse("moe_k", f"({per_token}) is more than the {experts} experts")
    width, shared = keys.size("moe_intermediate_size"), keys.size("moe_num_shared_experts", smallest=0)
    # The router's bias corrects what is picked; here, unlike in DeepSeek-V3, transformers counts it a parameter.
    moe = MoEFFN(experts, per_token, width, shared_experts=shared, shared_width=shared * width, router_bias=True)
    depth = len(one_window(keys, None))
    first, step = keys.size("moe_layer_start_index", smallest=0), keys.size("moe_layer_interval")
    last = keys.size("moe_layer_end_index", smallest=-1)
    last = depth - 1 if last == -1 else last
    dense = DenseFFN(keys.size("intermediate_size"))
    sparse = [first <= index <= last and (index + 1) % step == 0 for index in range(depth)]
    return tuple(Layer(attention, moe if is_sparse else dense) for is_sparse in sparse)


ENTRIES: Mapping[str, Architecture] = {
    "mixtral": Architecture(
        _mixtral,
        {**SILU, "rms_norm_eps": 1e-5, "head_dim": None, "sliding_window": None},
        ROUTER_KEYS,
    ),
    "qwen3_moe": Architecture(
        _qwen3_moe,
        {
            **SILU,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "head_dim": None,
            "attention_bias": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        ROUTER_KEYS,
    ),
    "gpt_oss": Architecture(
        _gpt_oss,
        {**SILU, "rms_norm_eps": 1e-5, "head_dim": 64, "sliding_window": 128, "attention_bias": True},
        ROUTER_KEYS | {"swiglu_limit", "swiglu_alpha", "initial_context_length"},
    ),
    "glm4_moe": Architecture(
        _glm4_moe,
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "head_dim": None,
            "attention_bias": False,
            "use_qk_norm": False,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
        SIGMOID_ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "minimax_m2": Architecture(
        _minimax_m2,
        {**SILU, "head_dim": 128},
        ROUTER_KEYS
        | {"rotary_dim", "use_routing_bias", "scoring_func", "use_mtp", "num_mtp_modules", "mtp_transformer_layers"},
        notes=_minimax_prediction_layers,
    ),
    "llama4_text": Architecture(
        _llama4,
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "head_dim": 128,
            "attention_bias": False,
            "attention_chunk_size": 8192,
            "num_experts_per_tok": 1,
            "moe_layers": None,
            "interleave_moe_layer_step": 1,
            "no_rope_layers": None,
            "no_rope_layer_interval": 4,
            "layer_types": None,
        },
        ROUTER_KEYS | {"use_qk_norm", "attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor"},
    ),
    "olmoe": Architecture(
        _olmoe,
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "head_dim": None,
            "num_key_value_heads": None,
            "attention_bias": False,
        },
        ROUTER_KEYS | {"clip_qkv"},
    ),
    "qwen2_moe": Architecture(
        _qwen2_moe,
        {
            **SILU,
            "head_dim": None,
            "qkv_bias": True,
            "use_sliding_window": False,
            "sliding_window": 4096,
            "max_window_layers": 28,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
        },
        ROUTER_KEYS,
    ),
    "granitemoe": Architecture(
        _alike,
        {**SILU, "head_dim": None, "num_key_value_heads": None, "attention_bias": False},
        ROUTER_KEYS | {"attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"},
    ),
    "dots1": Architecture(
        _dots1,
        {
            **SILU,
            "head_dim": None,
            "attention_bias": False,
            "first_k_dense_replace": 0,
            "sliding_window": 4096,
            "max_window_layers": 62,
        },
        SIGMOID_ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "ernie4_5_moe": Architecture(
        _ernie4_5_moe,
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "head_dim": None,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
        },
        ROUTER_KEYS | {"moe_capacity", "moe_gate", "moe_norm_min", "moe_use_aux_free"},
        notes=multi_token_prediction,
    ),
    "solar_open": Architecture(
        _solar_open,
        {**SILU, "rms_norm_eps": 1e-5, "head_dim": 128, "attention_bias": False, "n_shared_experts": 1},
        SIGMOID_ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "exaone_moe": Architecture(
        _exaone_moe,
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "head_dim": None,
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "sliding_window": 4096,
        },
        SIGMOID_ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "hy_v3": Architecture(
        _hy_v3,
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "head_dim": 128,
            "attention_bias": False,
            "mlp_bias": False,
            "num_shared_experts": 1,
        },
        SIGMOID_ROUTER_KEYS | {"router_scaling_factor", "enable_moe_fp32_combine"},
        notes=multi_token_prediction,
    ),
    "qwen3_vl_moe_text": Architecture(
        _qwen3_vl_moe,
        {**HEAD_OUTSIDE, "head_dim": None, "attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": None},
        ROUTER_KEYS,
    ),
}
