"""What the tests of this room share: `transformers` on the meta device as the oracle, and small drawn configs."""

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
        if device == "meta":
            with torch.device("meta"), no_init_weights():
                model = transformers.AutoModelForCausalLM.from_config(hf_config, **settings)
        else:
            # The loop over experts: the grouped product wants widths a tiny model does not have.
            settings = {"experts_implementation": "eager", **settings}
            model = transformers.AutoModelForCausalLM.from_config(hf_config, **settings).eval()
        model.tie_weights()
        return model

    return build_model


@pytest.fixture(scope="session")
def components():
    """Sum a transformers model's parameters by component, from their names alone."""

    def component_of(name: str) -> str:
        if "norm" in name:
            return "norms"
        if "embed_tokens" in name:
            return "embedding"
        if "lm_head" in name:
            return "head"
        if ".shared_experts." in name:
            return "shared_experts"
        if ".experts." in name:
            return "routed_experts"
        if ".mlp.gate." in name or ".mlp.router." in name:
            return "router"
        return "attention" if ".self_attn." in name else "dense_ffn"

    def sums(model) -> dict[str, int]:
        from helpers.accounts import COMPONENTS

        result = dict.fromkeys(COMPONENTS, 0)
        # named_parameters gives a shared (tied) tensor once.
        for name, parameter in model.named_parameters():
            result[component_of(name)] += parameter.numel()
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
}


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
    if model_type != "phi3":
        config["head_dim"] = draw(st.sampled_from([2, 4, 10]))
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


def _deepseek_v2(depth: int, heads: int):
    bias = st.fixed_dictionaries({"mlp_bias": st.booleans()})
    return st.tuples(_deepseek(depth, heads), bias).map(lambda pair: pair[0] | pair[1])


_OWN_KEYS = {
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
}
