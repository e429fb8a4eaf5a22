"""The KV cache against the caches transformers allocates, and against the ground truth of real configs."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import (
    DTYPES,
    CompressedAttention,
    FullAttention,
    InputError,
    kv_bytes,
    kv_bytes_per_token,
    kv_read_bytes,
    model_names,
    model_registry,
    parse_config,
    read_config,
    state_bytes,
)
from helpers.accounts.kv import attended_tokens, held_tokens, kv_width_elements


@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gemma2", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_bytes_equal_those_of_a_transformers_dynamic_cache(name, kv_heads, build, fixed_configs):
    import torch
    from transformers import DynamicCache

    config = dict(fixed_configs[name])
    if name == "deepseek_v3":
        config["kv_lora_rank"] *= kv_heads
    else:
        config["num_key_value_heads"] = kv_heads
    if "sliding_window" in config:
        # transformers keeps window − 1 past tokens in a windowed layer: a window no token reaches yet.
        config["sliding_window"] = 10
    cache = DynamicCache()
    with torch.no_grad():
        build(config, device="cpu")(torch.ones(1, 7, dtype=torch.long), past_key_values=cache)
    held = sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))
    assert held == kv_bytes(parse_config(config, name), 7, "fp32")


@pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")
def test_a_full_window_of_the_cache_transformers_keeps_is_ours_less_the_newest_token(build, fixed_configs):
    import torch
    from transformers import DynamicCache

    config = {**fixed_configs["gemma2"], "sliding_window": 4}
    reference = build(config, device="cpu")
    cache = DynamicCache(config=reference.config)
    with torch.no_grad():
        reference(torch.ones(1, 9, dtype=torch.long), past_key_values=cache)
    held = sum(part.numel() * part.element_size() for layer in cache.layers for part in (layer.keys, layer.values))
    model = parse_config(config, "gemma2")
    windowed = sum(layer.attention.window is not None for layer in model.layers)
    newest = windowed * kv_bytes_per_token(model, 0, "fp32") // len(model.layers)
    assert held == kv_bytes(model, 9, "fp32") - newest


def test_growth_per_token_of_the_ground_truth_is_reproduced(facts, shared):
    checked = 0
    for name, row in facts("parameter-counts.json").items():
        kv = row.get("kv", {})
        model = read_config(shared / "facts" / "configs" / f"{name}.json")
        if "bytes_per_token_bf16_growing" in kv:
            # Past every window only the full layers grow; inside, all do.
            assert kv_bytes_per_token(model, 10**6) == kv["bytes_per_token_bf16_growing"], name
            assert kv_bytes_per_token(model, 1) == kv["bytes_per_token_bf16_within_window"], name
            checked += 1
        # Falsely windowless in that file: Mistral-7B-v0.1 slides over 4,096 tokens in every layer.
        elif "bytes_per_token_bf16" in kv:
            assert kv_bytes_per_token(model, 1) == kv["bytes_per_token_bf16"], name
            checked += 1
    assert checked >= 24


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-2-7b", 524_288),
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
        ("qwen3-32b", 262_144),
        ("qwen3-235b-a22b", 192_512),
        ("gpt-oss-120b", 36_864),
        ("gemma-3-27b", 81_920),
        ("deepseek-v3", 70_272),
    ],
)
def test_published_bytes_per_token(name, per_token):
    assert kv_bytes_per_token(read_config(name), 100_000) == per_token


def test_claim_c13_the_hidden_size_formula_holds_for_multi_head_attention_only():
    multi_head = model_registry()["llama-3.1-70b"]["config"] | {"num_key_value_heads": 64}
    article = 2 * 80 * 8192 * 2
    assert kv_bytes_per_token(parse_config(multi_head, "70B, multi-head")) == article == 2_621_440
    assert kv_bytes(parse_config(multi_head, "70B, multi-head"), 4096) == 10_737_418_240
    assert kv_bytes_per_token(read_config("llama-3.1-70b")) * 8 == article
    gemma = read_config("gemma-3-27b")
    hidden_formula = 2 * len(gemma.layers) * gemma.hidden_size * 2
    assert round(hidden_formula / kv_bytes_per_token(gemma, 100_000), 1) == 16.3


@given(
    name=st.sampled_from(model_names()),
    tokens=st.integers(0, 200_000),
    more=st.integers(0, 5000),
    dtype=st.sampled_from(list(DTYPES)),
)
def test_bytes_grow_with_length_and_each_token_adds_its_growth(name, tokens, more, dtype):
    model = read_config(name)
    assert 0 <= kv_bytes(model, tokens, dtype) <= kv_bytes(model, tokens + more, dtype)
    grown = kv_bytes(model, tokens + 1, dtype) - kv_bytes(model, tokens, dtype)
    assert grown == kv_bytes_per_token(model, tokens, dtype)


# Each with the per-token growth once its windows and chunks are full: 2 · KV heads · head_dim · 2 B · full layers and
# the like; see kv-cases.json for logs of Gemma 4 and DeepSeek-V3.2.
GROWING = {
    "google--gemma-4-26B-A4B": 5 * 2 * 2 * 512 * 2,
    "meta-llama--Llama-4-Scout-17B-16E-Instruct": 12 * 2 * 8 * 128 * 2,
    "deepseek-ai--DeepSeek-V3.2": 61 * (512 + 64 + 128) * 2,
    "zai-org--GLM-5": 78 * (512 + 64 + 128) * 2,
    "deepseek-ai--DeepSeek-V4-Flash": 21 * (512 + 128) * 2 // 4 + 20 * 512 * 2 // 128,
    "MiniMaxAI--MiniMax-M2.5": 62 * 2 * 8 * 128 * 2,
}


@pytest.mark.parametrize("name", GROWING)
def test_growth_past_every_window_is_that_of_what_is_kept_for_ever(name, shared):
    model = read_config(shared / "facts" / "configs" / f"{name}.json")
    # 2^20 tokens: whole blocks of every size, the last chunk just closed.
    for context in (2**20, 2**20 + 1):
        assert kv_bytes_per_token(model, context) == GROWING[name]
    assert kv_bytes(model, 2**21) - kv_bytes(model, 2**20) == 2**20 * GROWING[name]


GEMMA_4_E4B = {
    "model_type": "gemma4_text",
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "num_hidden_layers": 42,
    "num_kv_shared_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "global_head_dim": 512,
}


def test_layers_that_share_keys_and_values_hold_none_as_llama_cpp_logged_for_gemma_4_e4b():
    # 4 full layers, 512 MiB for 32,768 cells; 20 sliding ones, 40 MiB for 1,024; the last 18 share (kv-cases.json).
    model = parse_config(GEMMA_4_E4B, "Gemma-4-E4B")
    held = [kv_width_elements(layer.attention) for layer in model.layers]
    assert [held.count(width) for width in (2 * 2 * 512, 2 * 2 * 256, 0)] == [4, 20, 18]
    assert kv_bytes_per_token(model, 32_768, "fp16") * 32_768 == 512 * 2**20
    assert (kv_bytes(model, 512, "fp16") - 512 * 16_384) * 2 == 40 * 2**20


def test_a_decode_step_reads_what_it_attends_to_not_what_is_held():
    shared_layers = parse_config(GEMMA_4_E4B, "Gemma-4-E4B")
    full = sum(layer.attention.window is None for layer in shared_layers.layers)
    # Layers that hold nothing read an earlier one's cache.
    assert full == 7
    read = full * 2 * 2 * 512 * 10_000 + 35 * 2 * 2 * 256 * 512
    assert kv_read_bytes(shared_layers, 10_000, "int8") == read > kv_bytes(shared_layers, 10_000, "int8")
    dense = model_registry()["deepseek-v3"]["config"] | {"quantization_config": None}
    indexed = {"model_type": "deepseek_v32", "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048}
    sparse = parse_config(dense | indexed, "DeepSeek-V3.2")
    assert kv_read_bytes(sparse, 100_000, "int8") == 61 * (2048 * 576 + 100_000 * 128)
    assert kv_bytes(sparse, 100_000, "int8") == 61 * 100_000 * (576 + 128)
    plain = read_config("llama-3.1-8b")
    assert kv_read_bytes(plain, 777) == kv_bytes(plain, 777)


@given(context=st.integers(1, 500), chunk=st.integers(1, 60))
def test_a_chunk_is_attended_to_from_its_own_start(context, chunk):
    attention = FullAttention(1, 1, 1, chunk=chunk)
    own = [token for token in range(context) if token // chunk == (context - 1) // chunk]
    assert attended_tokens(attention, context) == len(own) <= held_tokens(attention, context)


def test_a_window_stops_growing_when_it_is_full():
    model = read_config("mistral-7b-v0.1")
    assert kv_bytes_per_token(model, 4095) == 131_072
    assert kv_bytes_per_token(model, 4096) == 0
    assert kv_bytes(model, 32_768) == kv_bytes(model, 4096) == 4096 * 131_072


def test_tensor_parallel_ranks_share_kv_heads_down_to_one_each_and_replicate_the_latent():
    grouped, latent = read_config("llama-3.1-70b"), read_config("deepseek-v3")
    whole = kv_bytes_per_token(grouped)
    assert [kv_bytes_per_token(grouped, tp=tp) for tp in (2, 8, 16)] == [whole // 2, whole // 8, whole // 8]
    assert kv_bytes_per_token(latent, tp=8) == kv_bytes_per_token(latent) == 70_272
    with pytest.raises(InputError, match="tp 7"):
        kv_bytes(grouped, 1, tp=7)


def test_element_formats_scale_the_bytes():
    model = read_config("llama-3.1-8b")
    assert kv_bytes(model, 100, "fp8") * 2 == kv_bytes(model, 100)
    assert kv_bytes(model, 100, "q8_0") == kv_bytes(model, 100, "int8") * 17 // 16


def test_another_engine_or_a_bad_count_is_refused():
    model = read_config("llama-3.1-8b")
    with pytest.raises(InputError, match=r"'tgi'.*ideal, hf, vllm, llamacpp"):
        kv_bytes(model, 1, engine="tgi")
    with pytest.raises(InputError, match="tokens"):
        kv_bytes(model, -1)
    assert kv_bytes(model, 0) == 0
    assert state_bytes(model) == 0


def test_kv_heads_that_ranks_cannot_share_evenly_are_counted_for_the_fullest_rank():
    model = read_config("llama-3.1-8b")
    three = replace(model, layers=tuple(replace(la, attention=FullAttention(24, 3, 128)) for la in model.layers))
    assert kv_bytes(three, 100, tp=2) == kv_bytes(three, 100) * 2 // 3
    assert kv_bytes(three, 100, tp=4) == kv_bytes(three, 100, tp=8) == kv_bytes(three, 100) // 3


def test_every_compressed_layer_keeps_an_unfinished_block_of_its_own():
    attention = CompressedAttention(4, 8, 16, q_lora_rank=4, output_groups=2, output_rank=2, rate=4, overlap=True)
    model = read_config("llama-3.1-8b")
    one, three = (replace(model, layers=(replace(model.layers[0], attention=attention),) * n) for n in (1, 3))
    assert state_bytes(three) == 3 * state_bytes(one) == 3 * 2 * (2 * 2 * 8 * 3 + 2 * 4 * 8)
