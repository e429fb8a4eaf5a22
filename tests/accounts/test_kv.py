"""The KV cache against the caches transformers allocates, and against the ground truth of real configs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import (
    DTYPES,
    InputError,
    kv_bytes,
    kv_bytes_per_token,
    model_names,
    model_registry,
    parse_config,
    read_config,
    state_bytes,
)


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
        try:
            model = read_config(shared / "facts" / "configs" / f"{name}.json")
        except InputError:
            continue
        if "bytes_per_token_bf16_growing" in kv:
            # Past every window only the full layers grow; inside, all do.
            assert kv_bytes_per_token(model, 10**6) == kv["bytes_per_token_bf16_growing"], name
            assert kv_bytes_per_token(model, 1) == kv["bytes_per_token_bf16_within_window"], name
            checked += 1
        # Falsely windowless in that file: Mistral-7B-v0.1 slides over 4,096 tokens in every layer.
        elif "bytes_per_token_bf16" in kv:
            assert kv_bytes_per_token(model, 1) == kv["bytes_per_token_bf16"], name
            checked += 1
    assert checked >= 15


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
    with pytest.raises(InputError, match=r"'vllm'.*'ideal'"):
        kv_bytes(model, 1, engine="vllm")
    with pytest.raises(InputError, match="tokens"):
        kv_bytes(model, -1)
    assert kv_bytes(model, 0) == 0
    assert state_bytes(model) == 0
