"""What the tests of this room share: `transformers` on the meta device as the oracle, and small drawn configs."""

import re
from typing import Any

import pytest
from hypothesis import strategies as st


@pytest.fixture(scope="session")
def build():
    """Build the transformers model of a config dict: ``build(config, device="meta", **settings)``."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.initialization import no_init_weights

    def build_model(config: dict, device: str = "meta", **settings):
        # A quantised checkpoint has the same parameters; the quantiser itself wants a GPU.
        plain = {key: value for key, value in config.items() if key != "quantization_config"}
        settings = {"attn_implementation": "eager", **settings}
        hf_config = transformers.AutoConfig.for_model(**plain)
        from_config = transformers.AutoModelForCausalLM.from_config
        if type(hf_config) not in transformers.AutoModelForCausalLM._model_mapping:
            # A language model that is only ever built inside a multimodal one, which adds the head.
            from_config = _text_model_with_head
        if device == "meta":
            with torch.device("meta"), no_init_weights():
                model = from_config(hf_config, **settings)
        else:
            # The loop over experts: the grouped product wants widths a tiny model does not have.
            settings = {"experts_implementation": "eager", **settings}
            model = from_config(hf_config, **settings).eval()
        model.tie_weights()
        return model

    return build_model


def _text_model_with_head(hf_config, **settings):
    import torch
    import transformers

    model = transformers.AutoModel.from_config(hf_config, **settings)
    model.lm_head = torch.nn.Linear(hf_config.hidden_size, hf_config.vocab_size, bias=False)
    if hf_config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    return model


# How the classes of transformers that keep a state of fixed size are called.
STATE_CLASSES = ("Mixer", "MambaLayer", "GatedDeltaNet", "DeltaAttention", "LightningAttention", "ShortConv")


@pytest.fixture(scope="session")
def components():
    """Sum a transformers model's parameters by component, from their names alone."""

    def component_of(name: str) -> str:
        if any(part in name for part in ("norm", ".ln_", "_hc.", ".hc_head.")):
            return "norms"
        if ".compressor." in name:
            return "attention"
        if "embed_tokens" in name or "embeddings" in name:
            return "embedding"
        if "lm_head" in name:
            return "head"
        if ".shared_expert" in name or "_latent_proj" in name:
            return "shared_experts"
        if ".experts." in name:
            return "routed_experts"
        if any(f".{block}.gate." in name for block in ("mlp", "mixer", "feed_forward")) or ".router." in name:
            return "router"
        own = ".self_att" in name or re.search(r"\.mixer\.[qkvo]_proj\.", name)
        return "attention" if own else "dense_ffn"

    def sums(model) -> dict[str, int]:
        from helpers.accounts import COMPONENTS

        result = dict.fromkeys(COMPONENTS, 0)
        mixers = [f"{name}." for name, module in model.named_modules() if type(module).__name__.endswith(STATE_CLASSES)]
        mixture = any(".experts." in name for name, _ in model.named_parameters())
        # named_parameters gives a shared (tied) tensor once.
        for name, parameter in model.named_parameters():
            component = component_of(name)
            if component != "norms" and name.startswith(tuple(mixers)):
                component = "state_mixers"
            elif mixture and ".shared_mlp." in name:
                component = "shared_experts"
            result[component] += parameter.numel()
        return result

    return sums


_LLAMA = {
    "model_type": "llama",
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "vocab_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "dtype": "float32",
}
_FIXED = {
    "llama": _LLAMA,
    "llama tied with biases": {**_LLAMA, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "qwen3_moe": {
        **_LLAMA,
        "model_type": "qwen3_moe",
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "decoder_sparse_step": 2,
    },
    "gemma2": {**_LLAMA, "model_type": "gemma2", "sliding_window": 4},
    "gpt_oss": {
        **_LLAMA,
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 4,
    },
    "deepseek_v3": {
        **_LLAMA,
        "model_type": "deepseek_v3",
        "head_dim": 4,
        "num_key_value_heads": 6,
        "kv_lora_rank": 16,
        "q_lora_rank": 20,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "first_k_dense_replace": 1,
        "n_group": 1,
        "topk_group": 1,
    },
    "falcon": {
        key: value
        for key, value in {**_LLAMA, "model_type": "falcon", "bias": True}.items()
        if key not in ("head_dim", "intermediate_size", "num_key_value_heads")
    },
    "minimax_m2": {**_LLAMA, "model_type": "minimax_m2", "num_local_experts": 4, "num_experts_per_tok": 2},
    "glm4_moe": {
        **_LLAMA,
        "model_type": "glm4_moe",
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
    },
    # transformers runs every expert on every token here; with all of them picked nothing is computed in vain.
    "llama4_text": {
        **_LLAMA,
        "model_type": "llama4_text",
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "intermediate_size_mlp": 24,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 4,
    },
    "gemma4_text": {
        **_LLAMA,
        "model_type": "gemma4_text",
        "global_head_dim": 12,
        "sliding_window": 4,
        "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        "num_kv_shared_layers": 1,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 64,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 12,
    },
    "deepseek_v4": {
        **_LLAMA,
        "model_type": "deepseek_v4",
        "intermediate_size": 12,
        "moe_intermediate_size": 12,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "qk_rope_head_dim": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "q_lora_rank": 20,
        "o_lora_rank": 5,
        "o_groups": 2,
        "sliding_window": 4,
        "hc_mult": 3,
        "index_n_heads": 2,
        "index_head_dim": 6,
        "index_topk": 2,
        "compress_ratios": [0, 4, 128],
        "compress_rate_hca": 3,
    },
}
_FIXED["deepseek_v32"] = {
    **_FIXED["deepseek_v3"],
    "model_type": "deepseek_v32",
    "index_n_heads": 2,
    "index_head_dim": 6,
    "index_topk": 3,
}
_FIXED["glm_moe_dsa"] = {**_FIXED["deepseek_v32"], "model_type": "glm_moe_dsa", "index_topk_freq": 2}


@pytest.fixture(scope="session")
def fixed_configs():
    """A few tiny configs that real (CPU) models are built from, by name."""
    return _FIXED


@pytest.fixture(scope="session")
def small_configs():
    """A hypothesis strategy of small, valid configs: ``data.draw(small_configs())``, of all model_types or some."""
    return lambda *model_types: _small_configs(model_types or tuple(_OWN_KEYS))


@st.composite
def _small_configs(draw, model_types: tuple[str, ...]) -> dict[str, Any]:
    """A config.json object of one of `model_types`, with sizes a meta-device model builds in milliseconds."""
    model_type = draw(st.sampled_from(model_types))
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    depth = draw(st.integers(1, 5))
    config = {
        "model_type": model_type,
        "hidden_size": heads * draw(st.sampled_from([4, 6, 8])),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
        "vocab_size": draw(st.integers(8, 50)),
        "max_position_embeddings": 64,
        "tie_word_embeddings": draw(st.booleans()),
        "pad_token_id": None,
        "dtype": "bfloat16",
    }
    if model_type not in _NO_HEAD_DIM:
        config["head_dim"] = draw(st.sampled_from([2, 4, 10]))
    if model_type == "falcon":
        del config["intermediate_size"], config["num_key_value_heads"]
    config |= draw(_OWN_KEYS[model_type](depth, heads))
    return config


def _llama(depth: int, heads: int):
    return st.fixed_dictionaries({}, optional={"attention_bias": st.booleans(), "mlp_bias": st.booleans()})


def _window(depth: int, heads: int):
    return st.fixed_dictionaries({"sliding_window": st.none() | st.integers(1, 30)})


def _experts(key: str, **more):
    counts = st.integers(1, 6).flatmap(
        lambda n: st.fixed_dictionaries({key: st.just(n), "num_experts_per_tok": st.integers(1, n)})
    )
    return st.tuples(counts, st.fixed_dictionaries(more)).map(lambda pair: pair[0] | pair[1])


def _qwen(depth: int, heads: int):
    return st.fixed_dictionaries(
        {
            "use_sliding_window": st.booleans(),
            "sliding_window": st.integers(1, 30),
            "max_window_layers": st.integers(0, depth),
        }
    )


def _qwen3(depth: int, heads: int):
    bias = st.fixed_dictionaries({}, optional={"attention_bias": st.booleans()})
    return st.tuples(_qwen(depth, heads), bias).map(lambda pair: pair[0] | pair[1])


def _qwen3_moe(depth: int, heads: int):
    return _experts(
        "num_experts",
        moe_intermediate_size=st.integers(1, 20),
        decoder_sparse_step=st.integers(1, 3),
        use_sliding_window=st.booleans(),
        sliding_window=st.integers(1, 30),
        mlp_only_layers=st.lists(st.integers(0, depth - 1), unique=True),
        attention_bias=st.booleans(),
    )


def _gemma(depth: int, heads: int):
    kinds = st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=depth, max_size=depth)
    return st.fixed_dictionaries({"sliding_window": st.integers(1, 30)}, optional={"layer_types": kinds})


def _gpt_oss(depth: int, heads: int):
    both = st.tuples(_gemma(depth, heads), _experts("num_local_experts", attention_bias=st.booleans()))
    return both.map(lambda pair: pair[0] | pair[1])


def _deepseek(depth: int, heads: int):
    return _experts(
        "n_routed_experts",
        num_key_value_heads=st.just(heads),
        head_dim=st.just(4),
        qk_rope_head_dim=st.just(4),
        qk_nope_head_dim=st.integers(1, 8),
        v_head_dim=st.integers(1, 8),
        kv_lora_rank=st.integers(1, 12),
        q_lora_rank=st.none() | st.integers(1, 12),
        moe_intermediate_size=st.integers(1, 20),
        n_shared_experts=st.integers(1, 3),
        first_k_dense_replace=st.integers(0, depth),
        attention_bias=st.booleans(),
        n_group=st.just(1),
        topk_group=st.just(1),
    )


def _falcon(depth: int, heads: int):
    return st.fixed_dictionaries(
        {
            "new_decoder_architecture": st.booleans(),
            "multi_query": st.booleans(),
            "parallel_attn": st.booleans(),
            "bias": st.booleans(),
            "num_ln_in_parallel_attn": st.sampled_from([None, 1, 2]),
            "ffn_hidden_size": st.none() | st.integers(1, 40),
        }
    )


def _glm4_moe(depth: int, heads: int):
    return _experts(
        "n_routed_experts",
        moe_intermediate_size=st.integers(1, 20),
        n_shared_experts=st.integers(1, 3),
        first_k_dense_replace=st.integers(0, depth),
        attention_bias=st.booleans(),
        use_qk_norm=st.booleans(),
    )


def _llama4(depth: int, heads: int):
    return _experts(
        "num_local_experts",
        intermediate_size_mlp=st.integers(1, 40),
        interleave_moe_layer_step=st.integers(1, 3),
        no_rope_layer_interval=st.integers(1, 4),
        attention_chunk_size=st.none() | st.integers(1, 30),
        attention_bias=st.booleans(),
    )


def _gemma4(depth: int, heads: int):
    kinds = st.lists(st.sampled_from(["sliding_attention", "full_attention"]), min_size=depth - 1, max_size=depth - 1)
    keys = st.fixed_dictionaries(
        {
            "sliding_window": st.integers(1, 30),
            "layer_types": kinds.map(lambda some: [*some, "full_attention"]),
            "global_head_dim": st.sampled_from([4, 8]),
            "num_global_key_value_heads": st.sampled_from([None, 1, heads]),
            "attention_k_eq_v": st.booleans(),
            "attention_bias": st.booleans(),
            "use_double_wide_mlp": st.booleans(),
            "num_kv_shared_layers": st.integers(0, depth - 1),
            "hidden_size_per_layer_input": st.integers(0, 6),
            "vocab_size_per_layer_input": st.integers(8, 50),
            "enable_moe_block": st.booleans(),
            "moe_intermediate_size": st.integers(1, 20),
        }
    )
    experts = st.integers(1, 6).flatmap(
        lambda n: st.fixed_dictionaries({"num_experts": st.just(n), "top_k_experts": st.integers(1, n)})
    )
    return st.tuples(keys, experts).map(lambda pair: pair[0] | pair[1]).filter(_can_share)


def _can_share(config: dict[str, Any]) -> bool:
    kinds = config["layer_types"]
    return set(kinds[: len(kinds) - config["num_kv_shared_layers"]]) == set(kinds)


def _sparse(depth: int, heads: int):
    indexer = st.fixed_dictionaries(
        {
            "index_n_heads": st.integers(1, 4),
            "index_head_dim": st.integers(4, 9),
            "index_topk": st.integers(1, 9),
            "q_lora_rank": st.integers(1, 12),
        }
    )
    return st.tuples(_deepseek(depth, heads), indexer).map(lambda pair: pair[0] | pair[1])


def _glm_moe_dsa(depth: int, heads: int):
    shared = st.fixed_dictionaries(
        {}, optional={"index_topk_freq": st.integers(1, 3), "index_skip_topk_offset": st.integers(1, 3)}
    )
    return st.tuples(_sparse(depth, heads), shared).map(lambda pair: pair[0] | pair[1])


def _deepseek_v4(depth: int, heads: int):
    return _experts(
        "n_routed_experts",
        num_key_value_heads=st.just(1),
        head_dim=st.just(8),
        qk_rope_head_dim=st.just(4),
        q_lora_rank=st.integers(1, 12),
        o_lora_rank=st.integers(1, 6),
        o_groups=st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]),
        moe_intermediate_size=st.integers(1, 20),
        sliding_window=st.integers(2, 30),
        hc_mult=st.integers(2, 4),
        index_n_heads=st.integers(1, 4),
        index_head_dim=st.just(4),
        index_topk=st.integers(1, 9),
        compress_ratios=st.lists(st.sampled_from([0, 4, 128]), min_size=depth, max_size=depth + 1),
        mlp_bias=st.booleans(),
    ).map(lambda config: config | {"intermediate_size": config["moe_intermediate_size"]})


def _deepseek_v2(depth: int, heads: int):
    bias = st.fixed_dictionaries({"mlp_bias": st.booleans()})
    return st.tuples(_deepseek(depth, heads), bias).map(lambda pair: pair[0] | pair[1])


def _layer_types(depth: int, state: str = "linear_attention"):
    return st.lists(st.sampled_from([state, "full_attention"]), min_size=depth, max_size=depth)


def _jamba(depth: int, heads: int):
    every = st.integers(1, 3).flatmap(lambda period: st.tuples(st.just(period), st.integers(0, period - 1)))
    layers = st.tuples(every, every).map(
        lambda pair: dict(
            zip(
                ("attn_layer_period", "attn_layer_offset", "expert_layer_period", "expert_layer_offset"),
                pair[0] + pair[1],
                strict=True,
            )
        )
    )
    mamba = _experts(
        "num_experts",
        mamba_d_state=st.integers(1, 6),
        mamba_d_conv=st.integers(1, 4),
        mamba_expand=st.integers(1, 2),
        mamba_dt_rank=st.just("auto") | st.integers(1, 6),
        mamba_conv_bias=st.booleans(),
        mamba_proj_bias=st.booleans(),
    )
    return st.tuples(layers, mamba).map(lambda pair: pair[0] | pair[1])


def _nemotron_h(depth: int, heads: int):
    pattern = st.text("M*-E", min_size=depth, max_size=depth)
    return _experts(
        "n_routed_experts",
        hybrid_override_pattern=pattern,
        tie_word_embeddings=st.just(False),
        mamba_num_heads=st.sampled_from([4, 8]),
        mamba_head_dim=st.integers(1, 6),
        n_groups=st.sampled_from([1, 2, 4]),
        ssm_state_size=st.integers(1, 6),
        conv_kernel=st.integers(1, 4),
        use_conv_bias=st.booleans(),
        use_bias=st.booleans(),
        mlp_bias=st.booleans(),
        moe_intermediate_size=st.integers(1, 20),
        moe_shared_expert_intermediate_size=st.integers(1, 20),
        moe_latent_size=st.none() | st.integers(1, 10),
        n_group=st.just(1),
        topk_group=st.just(1),
    )


def _delta_net(depth: int):
    sizes = {f"linear_{part}_head_dim": st.integers(1, 6) for part in ("key", "value")}
    heads = st.tuples(st.integers(1, 3), st.integers(1, 3)).map(
        lambda n: {"linear_num_key_heads": n[0], "linear_num_value_heads": n[0] * n[1]}
    )
    more = {"linear_conv_kernel_dim": st.integers(1, 4), "attention_bias": st.booleans()}
    layers = st.fixed_dictionaries(sizes | more, optional={"layer_types": _layer_types(depth)})
    return st.tuples(heads, layers).map(lambda pair: pair[0] | pair[1])


def _qwen_hybrid(*, moe: bool, steps: bool = False):
    def own(depth: int, heads: int):
        if not moe:
            return _delta_net(depth)
        more = {"moe_intermediate_size": st.integers(1, 20), "shared_expert_intermediate_size": st.integers(1, 20)}
        if steps:
            more["decoder_sparse_step"] = st.integers(1, 3)
            more["mlp_only_layers"] = st.lists(st.integers(0, depth - 1), unique=True)
        return st.tuples(_delta_net(depth), _experts("num_experts", **more)).map(lambda pair: pair[0] | pair[1])

    return own


def _mamba2(**more):
    sizes = {
        "mamba_n_heads": st.sampled_from([2, 4]),
        "mamba_n_groups": st.sampled_from([1, 2]),
        "mamba_d_head": st.just("auto"),
        "mamba_d_state": st.integers(1, 6),
        "mamba_d_conv": st.integers(1, 4),
        "mamba_expand": st.just(2),
        "mamba_conv_bias": st.booleans(),
        "mamba_proj_bias": st.booleans(),
        "attention_bias": st.booleans(),
    }
    return st.fixed_dictionaries(sizes | more)


def _bamba(depth: int, heads: int):
    full = st.none() | st.lists(st.integers(0, depth - 1), unique=True)
    return _mamba2(attn_layer_indices=full, mlp_bias=st.booleans())


def _granitemoehybrid(depth: int, heads: int):
    listed = st.lists(st.sampled_from(["mamba", "attention"]), min_size=depth, max_size=depth)
    mamba = _mamba2(layer_types=listed, shared_intermediate_size=st.integers(1, 20))
    experts = st.just({"num_local_experts": 0, "num_experts_per_tok": 0}) | _experts("num_local_experts")
    return st.tuples(mamba, experts).map(lambda pair: pair[0] | pair[1])


def _falcon_h1(depth: int, heads: int):
    flags = {key: st.booleans() for key in ("mlp_bias", "projectors_bias", "mamba_rms_norm")}
    return _mamba2(mamba_d_ssm=st.none() | st.sampled_from([8, 16]), **flags)


def _lfm2(depth: int, heads: int):
    return st.fixed_dictionaries(
        {
            "layer_types": _layer_types(depth, "conv"),
            "conv_L_cache": st.integers(1, 4),
            "conv_bias": st.booleans(),
            "block_auto_adjust_ff_dim": st.booleans(),
            "block_multiple_of": st.integers(1, 16),
            "block_ffn_dim_multiplier": st.sampled_from([1.0, 1.3]),
            "intermediate_size": st.integers(2, 40),
        }
    )


def _lfm2_moe(depth: int, heads: int):
    return _experts(
        "num_experts",
        layer_types=_layer_types(depth, "conv"),
        conv_L_cache=st.integers(1, 4),
        conv_bias=st.booleans(),
        moe_intermediate_size=st.integers(1, 20),
        num_dense_layers=st.integers(0, depth),
    )


def _minimax(depth: int, heads: int):
    return _experts("num_local_experts", layer_types=_layer_types(depth))


def _kimi_linear(depth: int, heads: int):
    linear = st.lists(st.booleans(), min_size=depth, max_size=depth).flatmap(
        lambda full: st.fixed_dictionaries(
            {
                "full_attn_layers": st.just([index + 1 for index in range(depth) if full[index]]),
                "kda_layers": st.just([index + 1 for index in range(depth) if not full[index]]),
                "num_heads": st.integers(1, 4),
                "head_dim": st.integers(1, 6),
                "short_conv_kernel_size": st.integers(1, 4),
            }
        )
    )
    return _experts(
        "num_experts",
        linear_attn_config=linear,
        tie_word_embeddings=st.just(False),
        num_key_value_heads=st.just(heads),
        head_dim=st.just(4),
        qk_rope_head_dim=st.just(4),
        qk_nope_head_dim=st.integers(1, 8),
        v_head_dim=st.integers(1, 8),
        kv_lora_rank=st.integers(1, 12),
        q_lora_rank=st.none() | st.integers(1, 12),
        moe_intermediate_size=st.integers(1, 20),
        num_shared_experts=st.integers(1, 3),
        first_k_dense_replace=st.integers(0, depth),
        attention_bias=st.booleans(),
        bos_token_id=st.just(1),
        eos_token_id=st.just(2),
    )


def _biased(*keys: str):
    return lambda depth, heads: st.fixed_dictionaries({}, optional={key: st.booleans() for key in keys})


def _sliding(*keys: str):
    """A window, a layer_types at times, and booleans."""

    def draw(depth: int, heads: int):
        return st.tuples(_gemma(depth, heads), _biased(*keys)(depth, heads)).map(lambda pair: pair[0] | pair[1])

    return draw


def _smollm3(depth: int, heads: int):
    return st.fixed_dictionaries(
        {
            "use_sliding_window": st.booleans(),
            "sliding_window": st.none() | st.integers(1, 30),
            "no_rope_layer_interval": st.integers(1, 4),
            "attention_bias": st.booleans(),
            "mlp_bias": st.booleans(),
        },
        optional={"no_rope_layers": st.lists(st.sampled_from([0, 1]), min_size=depth, max_size=depth)},
    )


def _qwen2_moe(depth: int, heads: int):
    return _experts(
        "num_experts",
        moe_intermediate_size=st.integers(1, 20),
        shared_expert_intermediate_size=st.integers(1, 20),
        decoder_sparse_step=st.integers(1, 3),
        use_sliding_window=st.booleans(),
        sliding_window=st.integers(1, 30),
        max_window_layers=st.integers(0, depth),
        mlp_only_layers=st.lists(st.integers(0, depth - 1), unique=True),
        qkv_bias=st.booleans(),
    )


def _dots1(depth: int, heads: int):
    return _experts(
        "n_routed_experts",
        moe_intermediate_size=st.integers(1, 20),
        n_shared_experts=st.integers(1, 3),
        first_k_dense_replace=st.integers(0, depth),
        attention_bias=st.booleans(),
        sliding_window=st.none() | st.integers(1, 30),
        max_window_layers=st.integers(0, depth),
    )


def _ernie4_5_moe(depth: int, heads: int):
    experts = st.integers(1, 6).flatmap(
        lambda n: st.fixed_dictionaries({"moe_num_experts": st.just(n), "moe_k": st.integers(1, n)})
    )
    more = st.fixed_dictionaries(
        {
            "moe_intermediate_size": st.integers(1, 20),
            "moe_num_shared_experts": st.integers(0, 3),
            "moe_layer_start_index": st.integers(0, depth),
            "moe_layer_interval": st.integers(1, 3),
        }
    )
    return st.tuples(experts, more).map(lambda pair: pair[0] | pair[1])


def _olmoe(depth: int, heads: int):
    return _experts("num_experts", attention_bias=st.booleans())


def _latent_variant(depth: int, heads: int):
    def without_dense(config):
        return {key: value for key, value in config.items() if key not in ("first_k_dense_replace", "head_dim")}

    return _deepseek(depth, heads).map(without_dense)


def _mistral4(depth: int, heads: int):
    return _deepseek(depth, heads).map(lambda config: {key: config[key] for key in config if key != "head_dim"})


_DENSE_VARIANTS = {
    "gemma": _biased("attention_bias"),
    "smollm3": _smollm3,
    "olmo2": _biased("attention_bias"),
    "olmo3": _sliding("attention_bias"),
    "granite": _biased("attention_bias", "mlp_bias"),
    "cohere": _biased("attention_bias", "use_qk_norm"),
    "cohere2": _sliding("attention_bias"),
    "starcoder2": lambda depth, heads: st.fixed_dictionaries(
        {"use_bias": st.booleans(), "sliding_window": st.none() | st.integers(1, 30)}
    ),
    "glm": _biased("attention_bias"),
    "glm4": _biased("attention_bias"),
    "ernie4_5": _biased("use_bias"),
    "hunyuan_v1_dense": _biased("attention_bias"),
    "exaone4": _sliding(),
    "seed_oss": _biased("attention_bias", "attention_out_bias", "mlp_bias"),
    "apertus": _biased("attention_bias"),
    "arcee": _biased("attention_bias", "mlp_bias"),
    "ministral": _sliding(),
    "ministral3": _window,
}


def _exaone_moe(depth: int, heads: int):
    experts = _experts(
        "num_experts",
        moe_intermediate_size=st.integers(1, 20),
        num_shared_experts=st.integers(1, 3),
        first_k_dense_replace=st.integers(0, depth),
    )
    return st.tuples(experts, _gemma(depth, heads)).map(lambda pair: pair[0] | pair[1])


def _hy_v3(depth: int, heads: int):
    return _experts(
        "num_experts",
        moe_intermediate_size=st.integers(1, 20),
        num_shared_experts=st.integers(1, 3),
        attention_bias=st.booleans(),
        mlp_bias=st.booleans(),
        mlp_layer_types=st.none() | st.lists(st.sampled_from(["dense", "sparse"]), min_size=depth, max_size=depth),
    )


def _solar_open(depth: int, heads: int):
    return _experts(
        "n_routed_experts",
        moe_intermediate_size=st.integers(1, 20),
        n_shared_experts=st.integers(1, 3),
        attention_bias=st.booleans(),
    )


def _qwen3_vl_moe(depth: int, heads: int):
    return _experts(
        "num_experts",
        moe_intermediate_size=st.integers(1, 20),
        decoder_sparse_step=st.integers(1, 3),
        mlp_only_layers=st.lists(st.integers(0, depth - 1), unique=True),
        attention_bias=st.booleans(),
    )


_VISION_TEXT = {
    "qwen2_vl_text": lambda depth, heads: _qwen(depth, heads),
    "qwen2_5_vl_text": lambda depth, heads: _qwen(depth, heads),
    "qwen3_vl_text": _biased("attention_bias"),
    "qwen3_vl_moe_text": _qwen3_vl_moe,
}
_MOE_VARIANTS = {
    **_VISION_TEXT,
    "exaone_moe": _exaone_moe,
    "hy_v3": _hy_v3,
    "solar_open": _solar_open,
    "olmoe": _olmoe,
    "qwen2_moe": _qwen2_moe,
    "granitemoe": lambda depth, heads: _experts("num_local_experts", attention_bias=st.booleans()),
    "dots1": _dots1,
    "ernie4_5_moe": _ernie4_5_moe,
    "glm4_moe_lite": _latent_variant,
    "mistral4": _mistral4,
}


_HYBRID_KEYS = {
    "jamba": _jamba,
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen_hybrid(moe=True, steps=True),
    "qwen3_5_text": _qwen_hybrid(moe=False),
    "qwen3_5_moe_text": _qwen_hybrid(moe=True),
    "bamba": _bamba,
    "granitemoehybrid": _granitemoehybrid,
    "falcon_h1": _falcon_h1,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2_moe,
    "minimax": _minimax,
    "kimi_linear": _kimi_linear,
}


@pytest.fixture(scope="session")
def hybrid_types():
    """The model_types with a state of fixed size that `small_configs` draws."""
    return tuple(_HYBRID_KEYS)


@pytest.fixture(scope="session")
def attention_types():
    """The model_types whose layers all keep a cache per token, none a state."""
    return tuple(sorted(set(_OWN_KEYS) - set(_HYBRID_KEYS)))


_NO_HEAD_DIM = {"phi3", "falcon", "qwen2_vl_text", "qwen2_5_vl_text", "olmoe", "glm4_moe_lite", "mistral4"}

_OWN_KEYS = {
    **_HYBRID_KEYS,
    **_DENSE_VARIANTS,
    **_MOE_VARIANTS,
    "llama": _llama,
    "mistral": _window,
    "mixtral": lambda depth, heads: _experts("num_local_experts"),
    "qwen2": _qwen,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "phi3": _window,
    "gemma2": _gemma,
    "gemma3_text": _gemma,
    "gpt_oss": _gpt_oss,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek,
    "deepseek_v32": _sparse,
    "glm_moe_dsa": _glm_moe_dsa,
    "deepseek_v4": _deepseek_v4,
    "falcon": _falcon,
    "gemma4_text": _gemma4,
    "glm4_moe": _glm4_moe,
    "minimax_m2": lambda depth, heads: _experts("num_local_experts"),
    "llama4_text": _llama4,
}
