"""The caches of real `transformers` models: their bytes, layer by layer, are what the engine ``hf`` says.

Head counts, head sizes and ranks are those of the published config.json files named here; what the cache does not
depend on (hidden size, feed-forward, vocabulary, experts) is shrunk, and windows too where a test must pass them.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.accounts import FullAttention, bytes_of, kv_bytes, parse_config, state_bytes
from helpers.accounts.kv import held_elements, kv_width_elements

pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "tie_word_embeddings": True,
    "dtype": "float32",
}
_MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "q_lora_rank": 32}
_EXPERTS = {
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_GEMMA_4 = {
    "model_type": "gemma4_text",
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 24,
    "vocab_size_per_layer_input": 32,
}

MODELS = {
    "multi-head: Llama-2-7B": {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "head_dim": 128,
    },
    "grouped: Llama-3.1-70B": {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "multi-query: Falcon-7B": {
        "model_type": "falcon",
        "hidden_size": 71 * 64,
        "ffn_hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 71,
    },
    "repeated for every head: Falcon-40B": {
        "model_type": "falcon",
        "hidden_size": 128 * 16,  # a quarter of the real head size: it makes the hidden size here
        "ffn_hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "new_decoder_architecture": True,
    },
    "sliding: Mistral-7B-v0.1": {
        "model_type": "mistral",
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "sliding_window": 24,
    },
    "mixed: Gemma-3-27B": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 6,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 24,
    },
    "mixed: gpt-oss-120b, its own window": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 2,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "chunked: Llama-4-Scout": {
        "model_type": "llama4_text",
        "num_hidden_layers": 4,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attention_chunk_size": 24,
        "intermediate_size_mlp": 16,
        "num_local_experts": 4,
    },
    "shared by later layers: Gemma-4-E4B": {
        **_GEMMA_4,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_kv_shared_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size_per_layer_input": 4,
    },
    "mixed widths, one projection for K and V: Gemma-4-26B-A4B": {
        **_GEMMA_4,
        "num_hidden_layers": 6,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 4,
        "top_k_experts": 2,
        "moe_intermediate_size": 8,
    },
    "latent: DeepSeek-V3": {
        **_MLA,
        **_EXPERTS,
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
    },
    "latent: GLM-4.7-Flash": {
        **_MLA,
        **{key: value for key, value in _EXPERTS.items() if key != "first_k_dense_replace"},
        "model_type": "glm4_moe_lite",
        "num_hidden_layers": 2,
        "num_attention_heads": 20,
        "num_key_value_heads": 20,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
    },
    "latent with an indexer: DeepSeek-V3.2": {
        **_MLA,
        **_EXPERTS,
        "model_type": "deepseek_v32",
        "num_hidden_layers": 2,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 16,
    },
    "latent, some layers without an indexer: GLM-5": {
        **_MLA,
        **_EXPERTS,
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 4,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 16,
        "index_topk_freq": 2,
    },
    "compressed: DeepSeek-V4-Flash": {
        **{
            key: value
            for key, value in _EXPERTS.items()
            if key not in ("n_group", "topk_group", "first_k_dense_replace")
        },
        "intermediate_size": 8,
        "model_type": "deepseek_v4",
        "num_hidden_layers": 3,
        "num_attention_heads": 64,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "sliding_window": 24,
        "q_lora_rank": 32,
        "o_lora_rank": 8,
        "o_groups": 8,
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "hc_mult": 4,
        "compress_ratios": [0, 4, 128],
    },
}


@pytest.fixture(scope="module")
def built(build):
    """Each model once: the `Model` read from its config, and the transformers model that runs."""
    made = {}

    def get(name: str):
        if name not in made:
            config = _SMALL | MODELS[name]
            if config["model_type"] == "falcon":
                del config["intermediate_size"]
            made[name] = parse_config(config, name), build(config, device="cpu")
        return made[name]

    return get


def _run(reference, prompt: int, steps: int):
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=reference.config)
    with torch.no_grad():
        for tokens in (prompt, *[1] * steps):
            reference(torch.ones(1, tokens, dtype=torch.long), past_key_values=cache)
    return cache


def _lengths(config: dict) -> list[tuple[int, int]]:
    """Tokens of prompt and decode steps: below, at and above a window or chunk; whole and unfinished blocks."""
    limit = config.get("sliding_window") or config.get("attention_chunk_size")
    if "compress_ratios" in config:
        return [(5, 0), (25, 2), (126, 3), (257, 1)]
    return [(20, 2)] if limit is None else [(limit - 2, 3), (limit, 0), (limit + 5, 1)]


def _nbytes(*tensors) -> int:
    # A tensor that stands for keys and values at once is stored, and counted, once.
    return sum({id(t): t.numel() * t.element_size() for t in tensors if t is not None}.values())


def _layer_bytes(layer) -> int:
    compressed = getattr(layer, "compressed_kv", {}).values()
    return _nbytes(
        getattr(layer, "keys", None), getattr(layer, "values", None), getattr(layer, "indexer_keys", None), *compressed
    )


# One of each kind of cache runs with the unit tests, the rest with the slow ones.
_QUICK = {"grouped: Llama-3.1-70B", "sliding: Mistral-7B-v0.1", "mixed: Gemma-3-27B", "latent: DeepSeek-V3"}
_NAMES = [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.mark.parametrize("name", _NAMES)
def test_each_layer_holds_the_bytes_that_engine_hf_says(name, built):
    model, reference = built(name)
    for prompt, steps in _lengths(MODELS[name]):
        cache, tokens = _run(reference, prompt, steps), prompt + steps
        expected = [bytes_of(held_elements(layer.attention, tokens, engine="hf"), "fp32") for layer in model.layers]
        assert [_layer_bytes(layer) for layer in cache.layers] == expected, tokens
        assert kv_bytes(model, tokens, "fp32", engine="hf") == sum(expected) > 0


@pytest.mark.slow
def test_a_compressor_keeps_its_unfinished_block_in_the_state(built):
    model, reference = built("compressed: DeepSeek-V4-Flash")
    for tokens in (3, 127, 130, 255):
        pending = 0
        for layer in _run(reference, tokens, 0).layers:
            for kind in ("buffer_kv", "buffer_gate", "overlap_kv", "overlap_gate"):
                pending += _nbytes(*getattr(layer, kind, {}).values())
        # Fullest one token before both kinds of block close.
        assert pending <= state_bytes(model, "fp32")
        assert (pending == state_bytes(model, "fp32")) == (tokens in (127, 255))


def test_the_ideal_cache_of_a_compressor_is_its_window_and_its_blocks(built):
    model, _ = built("compressed: DeepSeek-V4-Flash")
    window, sparse, heavy = (layer.attention for layer in model.layers)
    assert held_elements(window, 1000) == 24 * 512
    assert held_elements(sparse, 1003) == 24 * 512 + 250 * (512 + 128)
    assert held_elements(heavy, 1003) == 24 * 512 + 7 * 512


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_small_config_has_the_layers_of_a_transformers_cache(data, small_configs, attention_types):
    transformers = pytest.importorskip("transformers")
    config = data.draw(small_configs(*attention_types))
    cache = transformers.DynamicCache(config=transformers.AutoConfig.for_model(**config))
    windows = [getattr(layer, "sliding_window", None) for layer in cache.layers]
    attentions = [layer.attention for layer in parse_config(config, "small").layers]
    for attention, window, layer in zip(attentions, windows, cache.layers, strict=True):
        if isinstance(attention, FullAttention) and attention.shares_kv:
            assert type(layer).__name__ == "DummyLayer" and kv_width_elements(attention) == 0
        else:
            assert (getattr(attention, "window", None) or getattr(attention, "chunk", None)) == window


def test_a_window_of_one_token_is_kept_whole_by_transformers(build):
    config = _SMALL | MODELS["sliding: Mistral-7B-v0.1"] | {"sliding_window": 1}
    cache = _run(build(config, device="cpu"), 7, 0)
    assert sum(map(_layer_bytes, cache.layers)) == kv_bytes(parse_config(config, "one"), 7, "fp32", engine="hf")
