"""DeepSeek-V4: attention to a short window and to compressed blocks of everything before it."""

from collections.abc import Mapping
from typing import Any

from helpers.accounts.architectures.reading import (
    SIGMOID_ROUTER_KEYS,
    SILU,
    Architecture,
    depth_of,
    experts_per_token,
    multi_token_prediction,
)
from helpers.accounts.keys import Keys
from helpers.accounts.model import CompressedAttention, Indexer, Layer, MoEFFN

_WINDOW, _SPARSE, _HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
_KIND_OF_RATIO = {0: _WINDOW, 4: _SPARSE, 128: _HEAVY}


def _deepseek_v4(keys: Keys) -> tuple[Layer, ...]:
    heads, head_dim = keys.size("num_attention_heads"), keys.size("head_dim")
    keys.one_of("num_key_value_heads", [1], "but deepseek_v4 has one key for all heads")
    groups = keys.size("o_groups")
    if heads * head_dim % groups or heads % groups:
        raise keys.refuse("o_groups", f"({groups}) does not divide num_attention_heads ({heads})")
    indexer = Indexer(keys.size("index_n_heads"), keys.size("index_head_dim"), keys.size("index_topk"))
    kinds, rates = _kinds(keys), _rates(keys)
    by_kind = {
        kind: CompressedAttention(
            heads,
            head_dim,
            window=keys.size("sliding_window"),
            q_lora_rank=keys.size("q_lora_rank"),
            output_groups=groups,
            output_rank=keys.size("o_lora_rank"),
            rate=rates.get(kind),
            overlap=kind == _SPARSE,
            indexer=indexer if kind == _SPARSE else None,
        )
        for kind in (_WINDOW, _SPARSE, _HEAVY)
    }
    keys.one_of("attention_bias", [False], "but deepseek_v4 has no attention bias")
    keys.one_of("n_shared_experts", [1], "but deepseek_v4 has one shared expert")
    experts = keys.size(keys.alias("n_routed_experts", "num_local_experts"))
    width = keys.size(keys.alias("moe_intermediate_size", "intermediate_size"))
    moe = MoEFFN(
        experts,
        experts_per_token(keys, experts),
        width,
        shared_experts=1,
        shared_width=width,
        shared_bias=keys.flag("mlp_bias"),
    )
    return tuple(Layer(by_kind[kind], moe) for kind in kinds)


def _kinds(keys: Keys) -> list[str]:
    depth = depth_of(keys)
    keys.ignore(["layer_types", "compress_ratios"])
    kinds, ratios = keys.values.get("layer_types"), keys.values.get("compress_ratios")
    if kinds is None and ratios is not None:
        # One entry more for each multi-token-prediction layer.
        if not isinstance(ratios, list) or len(ratios) < depth or not all(type(r) is int for r in ratios):
            raise keys.refuse("compress_ratios", f"must be a list of at least {depth} whole numbers")
        if unknown := set(ratios) - set(_KIND_OF_RATIO):
            raise keys.refuse("compress_ratios", f"holds {str(min(unknown))[:20]}; known are 0, 4 and 128")
        return [_KIND_OF_RATIO[ratio] for ratio in ratios[:depth]]
    if kinds is None:
        return [_HEAVY if index < 2 or index % 2 == 0 else _SPARSE for index in range(depth)]
    known = (_WINDOW, _SPARSE, _HEAVY)
    if not isinstance(kinds, list) or len(kinds) != depth or not all(kind in known for kind in kinds):
        raise keys.refuse("layer_types", f"must be a list of {depth} entries, each of {', '.join(known)}")
    return kinds


def _rates(keys: Keys) -> dict[str, int]:
    rates = {_SPARSE: 4, _HEAVY: 128}
    keys.read.add("compress_rates")
    if keys.values.get("compress_rates") is not None:
        nested = Keys(keys.object("compress_rates"), f"{keys.where}: compress_rates")
        rates = {kind: nested.size(kind) for kind in rates}
        nested.refuse_unread()
    for key, kind in (("compress_rate_csa", _SPARSE), ("compress_rate_hca", _HEAVY)):
        if keys.values.get(key) is not None:
            rates[kind] = keys.size(key)
        keys.read.add(key)
    return rates


def _streams(keys: Keys) -> dict[str, Any]:
    return {"streams": keys.size("hc_mult", smallest=2)}


ENTRIES: Mapping[str, Architecture] = {
    "deepseek_v4": Architecture(
        _deepseek_v4,
        {
            **SILU,
            "head_dim": 512,
            "q_lora_rank": 1024,
            "sliding_window": 128,
            "o_groups": 8,
            "o_lora_rank": 1024,
            "index_n_heads": 64,
            "index_head_dim": 128,
            "index_topk": 512,
            "hc_mult": 4,
            "mlp_bias": False,
        },
        SIGMOID_ROUTER_KEYS
        | {
            "compress_rope_theta",
            "hc_eps",
            "hc_sinkhorn_iters",
            "mlp_layer_types",
            "num_hash_layers",
            "qk_rope_head_dim",
            "swiglu_limit",
        },
        notes=multi_token_prediction,
        extras=_streams,
        quantization_keys=frozenset({"expert_dtype"}),
    ),
}
