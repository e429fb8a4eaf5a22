"""What the families share: how to read one model_type, and readers of the keys that many of them have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.accounts.keys import Keys
from helpers.accounts.model import Layer

LARGEST_DEPTH = 10_000

# Of the configuration classes' defaults only those a real file leaves out; the sizes that make the model
# (hidden_size, num_hidden_layers, …) must be written down.
COMMON = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6}
SILU = {**COMMON, "hidden_act": "silu"}
ROUTER_KEYS = frozenset({"output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "norm_topk_prob"})
# For language models inside a vision model: whether the head is tied stands outside the text_config, and must.
HEAD_OUTSIDE = {key: value for key, value in SILU.items() if key != "tie_word_embeddings"}
# Keys of routers in the manner of DeepSeek-V3, which change what is picked but not how much.
SIGMOID_ROUTER_KEYS = ROUTER_KEYS | {
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


@dataclass(frozen=True)
class Architecture:
    """How to read one model_type.

    `layers` turns keys into layers; `defaults` are the values the transformers configuration class gives to keys a
    file may leave out; `harmless` are further keys, known to change neither parameters, cache nor FLOPs;
    `activation_key` and `norm_key` name the activation and the epsilon of the norms; `notes` reads what is left out
    of the accounts and says so; `extras` reads what a `Model` has beside its layers, by field name.
    `quantization_keys` stand beside the quantization_config and belong to it.
    """

    layers: Callable[[Keys], tuple[Layer, ...]]
    defaults: Mapping[str, Any]
    harmless: frozenset[str] = frozenset()
    activation_key: str = "hidden_act"
    norm_key: str = "rms_norm_eps"
    notes: Callable[[Keys], tuple[str, ...]] = field(default=lambda keys: ())
    extras: Callable[[Keys], Mapping[str, Any]] = field(default=lambda keys: {})
    quantization_keys: frozenset[str] = frozenset()


def grouped_heads(keys: Keys, *, null_means_heads: bool = True) -> tuple[int, int]:
    heads = keys.size("num_attention_heads")
    if null_means_heads and keys.raw("num_key_value_heads") is None:
        return heads, heads
    kv_heads = keys.size("num_key_value_heads")
    if heads % kv_heads:
        raise keys.refuse("num_key_value_heads", f"({kv_heads}) does not divide num_attention_heads ({heads})")
    return heads, kv_heads


def head_dim_of(keys: Keys, heads: int, *, null_is_absent: bool = False) -> int:
    """head_dim where given, else hidden_size / num_attention_heads where that is a whole number."""
    if keys.raw("head_dim") is not None or ("head_dim" in keys.values and not null_is_absent):
        return keys.size("head_dim")
    hidden = keys.size("hidden_size")
    if hidden % heads:
        raise keys.refuse(
            "num_attention_heads", f"({heads}) does not divide hidden_size ({hidden}) and no head_dim is given"
        )
    return hidden // heads


def depth_of(keys: Keys) -> int:
    return keys.size("num_hidden_layers", largest=LARGEST_DEPTH)


def windows_by_layer(keys: Keys, window: int | None, pattern: Callable[[int], bool]) -> list[int | None]:
    """The window of each layer: from layer_types where given, else sliding where `pattern(index)` says so."""
    depth = depth_of(keys)
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


def one_window(keys: Keys, window: int | None) -> list[int | None]:
    """Every layer alike; a layer_types that says otherwise is refused."""
    expected = "full_attention" if window is None else "sliding_attention"
    depth = depth_of(keys)
    keys.one_of("layer_types", [None, [expected] * depth], f"but every layer of this model_type is {expected}")
    return [window] * depth


def switched_window(keys: Keys) -> int | None:
    """sliding_window counts only where use_sliding_window is true (Qwen)."""
    window = keys.size_or_none("sliding_window")
    return window if keys.flag("use_sliding_window") else None


def experts_per_token(keys: Keys, experts: int) -> int:
    per_token = keys.size("num_experts_per_tok")
    if per_token > experts:
        raise keys.refuse("num_experts_per_tok", f"({per_token}) is more than the {experts} experts")
    return per_token


def layer_numbers(keys: Keys, key: str, depth: int) -> frozenset[int]:
    value = keys.raw(key)
    if value is None:
        return frozenset()
    valid = isinstance(value, list) and all(type(item) is int and 0 <= item < depth for item in value)
    if not valid:
        raise keys.refuse(key, f"must be a list of layer numbers below {depth}")
    return frozenset(value)


def multi_token_prediction(keys: Keys) -> tuple[str, ...]:
    key = keys.alias("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
    if key not in keys.values:
        return ()
    extra = keys.size(key, smallest=0)
    if not extra:
        return ()
    return (f"{extra} multi-token-prediction layer{'s' if extra > 1 else ''} ({key}) not counted",)


def layer_norm_at_the_end(keys: Keys) -> dict[str, int]:
    """The last norm is a LayerNorm: a weight and a bias."""
    return {"final_norms": 2}


def sparse_layers(keys: Keys, dense_layers: int) -> list[bool]:
    """Which layers have experts: as mlp_layer_types says, else all but the first `dense_layers`."""
    depth = depth_of(keys)
    keys.read.add("mlp_layer_types")
    kinds = keys.values.get("mlp_layer_types")
    if kinds is None:
        return [index >= dense_layers for index in range(depth)]
    if not isinstance(kinds, list) or len(kinds) != depth or not all(kind in ("dense", "sparse") for kind in kinds):
        raise keys.refuse("mlp_layer_types", f"must name dense or sparse for each of the {depth} layers")
    return [kind == "sparse" for kind in kinds]


def every_full(default: int, key: str | None = None) -> Callable[[Keys], list[int | None]]:
    """A reader of windows: all layers slide but every so-and-so-many-th, as `key` says where there is one."""

    def windows(keys: Keys) -> list[int | None]:
        every = keys.size(key) if key is not None and key in keys.values else default
        return windows_by_layer(keys, keys.size_or_none("sliding_window"), lambda index: (index + 1) % every != 0)

    return windows


def exaone_windows(keys: Keys) -> list[int | None]:
    """Every fourth layer full, or as sliding_window_pattern says; in letters it stands beside a layer_types."""
    letters = isinstance(keys.values.get("sliding_window_pattern"), str) and keys.values.get("layer_types") is not None
    if letters or keys.values.get("sliding_window", 0) is None:
        keys.read.add("sliding_window_pattern")
        return every_full(1)(keys)
    return every_full(4, "sliding_window_pattern")(keys)
