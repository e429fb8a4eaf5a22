"""Models with multi-head latent attention (MLA): DeepSeek and those built like it."""

from collections.abc import Mapping
from dataclasses import replace

from helpers.accounts.architectures.reading import (
    SIGMOID_ROUTER_KEYS,
    SILU,
    Architecture,
    depth_of,
    experts_per_token,
    multi_token_prediction,
    sparse_layers,
)
from helpers.accounts.keys import Keys
from helpers.accounts.model import DenseFFN, Indexer, LatentAttention, Layer, MoEFFN


def _deepseek_v2(keys: Keys) -> tuple[Layer, ...]:
    return _deepseek(keys, mlp_bias=keys.flag("mlp_bias"), expert_keys=("n_routed_experts", "num_experts"))


def _deepseek_v3(keys: Keys) -> tuple[Layer, ...]:
    keys.one_of("mlp_bias", [False], "but deepseek_v3 has no feed-forward bias")
    return _deepseek(keys, mlp_bias=False, expert_keys=("n_routed_experts", "num_local_experts", "num_experts"))


def _glm4_moe_lite(keys: Keys) -> tuple[Layer, ...]:
    # transformers takes the first layer alone to be dense unless mlp_layer_types says otherwise.
    has_experts = sparse_layers(keys, 1)
    keys.same_as("first_k_dense_replace", "the dense layers of mlp_layer_types", has_experts.count(False))
    keys.values = {**keys.values, "first_k_dense_replace": has_experts.count(False)}
    if has_experts != sorted(has_experts):
        raise keys.refuse("mlp_layer_types", "has dense layers after sparse ones, which is not known here")
    return _deepseek(keys, mlp_bias=False, expert_keys=("n_routed_experts", "num_local_experts"))


def _mistral4(keys: Keys) -> tuple[Layer, ...]:
    return _deepseek(keys, mlp_bias=False, expert_keys=("n_routed_experts", "num_local_experts"))


def _deepseek_v32(keys: Keys) -> tuple[Layer, ...]:
    return _sparse(keys, [True] * depth_of(keys))


def _glm_moe_dsa(keys: Keys) -> tuple[Layer, ...]:
    return _sparse(keys, _own_indexers(keys, depth_of(keys)))


def _sparse(keys: Keys, own_indexer: list[bool]) -> tuple[Layer, ...]:
    """MLA whose queries read only the tokens an indexer picks; without an own one, those of an earlier layer."""
    model_type = keys.values["model_type"]
    keys.one_of("mlp_bias", [False], f"but {model_type} has no feed-forward bias")
    keys.size("q_lora_rank")
    kinds = ["indexed_attention"] * len(own_indexer)
    keys.one_of("layer_types", [None, kinds], f"but every layer of {model_type} is indexed_attention")
    layers = _deepseek(
        keys, mlp_bias=False, expert_keys=("n_routed_experts", "num_local_experts", "num_experts"), sparse=True
    )
    indexer = Indexer(keys.size("index_n_heads"), keys.size("index_head_dim"), keys.size("index_topk"))
    if indexer.head_dim < layers[0].attention.qk_rope_head_dim:
        raise keys.refuse("index_head_dim", "is smaller than qk_rope_head_dim, which is a part of it")
    return tuple(
        replace(layer, attention=replace(layer.attention, top_k=indexer.top_k, indexer=indexer if own else None))
        for layer, own in zip(layers, own_indexer, strict=True)
    )


def _own_indexers(keys: Keys, depth: int) -> list[bool]:
    """Which layers have an indexer of their own: all, unless indexer_types, a pattern or a frequency says otherwise."""
    stated = ("indexer_types", "index_topk_pattern", "index_topk_freq", "index_skip_topk_offset")
    keys.ignore(stated)
    kinds = keys.values.get("indexer_types")
    if kinds is None and (pattern := keys.values.get("index_topk_pattern")) is not None:
        names = {"F": "full", "S": "shared"}
        kinds = [names.get(letter, letter) for letter in pattern] if isinstance(pattern, str) else pattern
    if kinds is None:
        every = keys.size("index_topk_freq") if "index_topk_freq" in keys.values else 1
        offset = keys.size("index_skip_topk_offset") if "index_skip_topk_offset" in keys.values else 2
        return [max(index - offset + 1, 0) % every == 0 for index in range(depth)]
    if not isinstance(kinds, list) or len(kinds) != depth or not all(kind in ("full", "shared") for kind in kinds):
        raise keys.refuse("indexer_types", f"must name full or shared for each of the {depth} layers")
    if kinds[0] != "full":
        raise keys.refuse("indexer_types", "shares an indexer in the first layer, where there is none to share")
    return [kind == "full" for kind in kinds]


def _deepseek(keys: Keys, *, mlp_bias: bool, expert_keys: tuple[str, ...], sparse: bool = False) -> tuple[Layer, ...]:
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
        experts_per_token(keys, experts),
        width,
        shared_experts=shared,
        shared_width=shared * width,
        shared_bias=mlp_bias,
    )
    keys.one_of("moe_layer_freq", [1], "but only 1 is known (transformers does not read it, the vendor's code does)")
    dense = DenseFFN(keys.size("intermediate_size"), bias=mlp_bias)
    first_moe, depth = keys.size("first_k_dense_replace", smallest=0), depth_of(keys)
    has_experts = [index >= first_moe for index in range(depth)]
    if sparse:
        spelled_out = ["sparse" if moe_layer else "dense" for moe_layer in has_experts]
        keys.one_of("mlp_layer_types", [None, spelled_out], "which contradicts first_k_dense_replace")
    else:
        keys.one_of("layer_types", [None], "which is not known for this model_type")
    return tuple(Layer(attention, moe if moe_layer else dense) for moe_layer in has_experts)


_DSA = {
    **SILU,
    "attention_bias": False,
    "index_head_dim": 128,
    "index_topk": 2048,
    "first_k_dense_replace": 3,
}

_DEEPSEEK_V3 = Architecture(
    _deepseek_v3,
    {**SILU, "attention_bias": False, "num_key_value_heads": 128},
    SIGMOID_ROUTER_KEYS,
    notes=multi_token_prediction,
)

ENTRIES: Mapping[str, Architecture] = {
    "deepseek_v2": Architecture(
        _deepseek_v2,
        {**SILU, "attention_bias": False, "mlp_bias": False, "num_key_value_heads": None},
        SIGMOID_ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "deepseek_v32": Architecture(
        _deepseek_v32,
        {**_DSA, "num_key_value_heads": 128, "index_n_heads": 64},
        SIGMOID_ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "glm_moe_dsa": Architecture(
        _glm_moe_dsa,
        {**_DSA, "num_key_value_heads": 64, "index_n_heads": 32, "rms_norm_eps": 1e-5},
        SIGMOID_ROUTER_KEYS | {"indexer_rope_interleave"},
        notes=multi_token_prediction,
    ),
    "glm4_moe_lite": Architecture(
        _glm4_moe_lite,
        {
            **SILU,
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "num_key_value_heads": 20,
            "q_lora_rank": 768,
        },
        SIGMOID_ROUTER_KEYS,
        notes=multi_token_prediction,
    ),
    "mistral4": Architecture(
        _mistral4,
        {**SILU, "attention_bias": False, "num_key_value_heads": 32, "first_k_dense_replace": 0},
        SIGMOID_ROUTER_KEYS,
    ),
    # Kimi-K2's own name for the same classes (its `architectures` says DeepseekV3ForCausalLM).
    "kimi_k2": _DEEPSEEK_V3,
}
