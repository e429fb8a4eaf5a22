"""llama.cpp's cells against lines of real logs and the oracle of its windowed cache."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    MIB,
    FullAttention,
    InputError,
    LlamaCppSettings,
    kv_bytes,
    kv_bytes_per_token,
    llamacpp_cache,
    parse_config,
    read_config,
)

# Gemma-3-270m, by its config.json: 18 layers, every sixth full, 1 KV head of 256, window 512.
_TINY = FullAttention(4, 1, 256, window=512)


def _gemma_270m():
    model = read_config("gemma-3-27b")
    kinds = [_TINY if (index + 1) % 6 else replace(_TINY, window=None) for index in range(18)]
    return replace(model, layers=tuple(replace(model.layers[0], attention=kind) for kind in kinds))


@pytest.mark.parametrize(("slots", "cells", "mib"), [(3, 1536, 27.0), (4, 1024, 18.0)])
def test_windowed_cells_of_slots_as_unsloth_measured_them(slots, cells, mib):
    # unslothai/unsloth pull request 7530: a context of 1,024 over 3 and 4 slots.
    cache = llamacpp_cache(_gemma_270m(), 1024, settings=LlamaCppSettings(slots=slots))
    assert cache.full.cells * cache.full.streams == cache.windowed.cells * cache.windowed.streams == cells
    assert cache.total == mib * MIB


def test_gpt_oss_holds_768_cells_in_its_windowed_layers():
    # "creating SWA KV cache, size = 768 cells"; builds that padded to 32 said 640.
    model = read_config("gpt-oss-120b")
    cache = llamacpp_cache(model, 131_072)
    assert (cache.full.cells, cache.windowed.cells) == (131_072, 768)
    assert llamacpp_cache(model, 4096, settings=LlamaCppSettings(padding=32)).windowed.cells == 640
    assert llamacpp_cache(read_config("gpt-oss-20b"), 131_072).full.total == 3072 * MIB
    assert (
        llamacpp_cache(read_config("gpt-oss-20b"), 4096, settings=LlamaCppSettings(padding=32)).windowed.total
        == 15 * MIB
    )


def test_both_readings_of_the_ambiguous_gpt_oss_log_are_9216_mib():
    model = read_config("gpt-oss-120b")
    assert llamacpp_cache(model, 262_144).full.total == 9216 * MIB
    whole = llamacpp_cache(model, 131_072, settings=LlamaCppSettings(swa_full=True))
    assert whole.total == 9216 * MIB


def test_full_size_swa_as_logged():
    # gpt-oss-20b, 4,096 cells: 144 MiB each for 18 layers of the 120b.
    cache = llamacpp_cache(read_config("gpt-oss-120b"), 4096, settings=LlamaCppSettings(swa_full=True))
    assert cache.full.total == cache.windowed.total == 144 * MIB


def test_unified_slots_share_the_context_and_widen_the_window():
    model = _gemma_270m()
    shared = llamacpp_cache(model, 8192, settings=LlamaCppSettings(slots=4, unified=True))
    assert (shared.full.cells, shared.full.streams) == (8192, 1)
    assert shared.windowed.cells == 4 * 512 + 512
    apart = llamacpp_cache(model, 8192, settings=LlamaCppSettings(slots=4))
    assert (apart.full.cells, apart.full.streams, apart.windowed.cells) == (2048, 4, 1024)


def test_k_and_v_have_types_of_their_own():
    model = read_config("llama-3.1-8b")
    cache = llamacpp_cache(model, 4096, "q8_0", LlamaCppSettings(type_v="q4_0"))
    assert cache.full.k_bytes == 4096 * 32 * 1024 * 34 // 32
    assert cache.full.v_bytes == 4096 * 32 * 1024 * 18 // 32


def test_three_generations_of_mla_caches():
    model = read_config("deepseek-v3")
    per_token = {
        name: kv_bytes(model, 256, "fp16", engine="llamacpp", settings=LlamaCppSettings(latent=name)) / 256 / 61
        for name in ("latent", "latent_with_values", "expanded")
    }
    assert per_token == {"latent": 1152, "latent_with_values": 2176, "expanded": 2 * 128 * (192 + 128)}


def test_windows_that_llama_cpp_ignores_are_kept_whole_and_unknown_ones_refused():
    mistral = read_config("mistral-7b-v0.1")
    assert kv_bytes(mistral, 32_768, "fp16", engine="llamacpp") == 32_768 * 131_072
    assert kv_bytes(mistral, 32_768) == 4096 * 131_072
    with pytest.raises(InputError, match="'new'"):
        kv_bytes(replace(mistral, model_type="new"), 100, engine="llamacpp")


@pytest.mark.parametrize("model_type", ["starcoder2", "smollm3", "ministral3", "mistral3"])
def test_loaders_that_read_no_window_keep_every_token(model_type):
    mistral = read_config("mistral-7b-v0.1")
    assert kv_bytes(replace(mistral, model_type=model_type), 32_768, "fp16", engine="llamacpp") == 32_768 * 131_072


@pytest.mark.parametrize("model_type", ["olmo3", "exaone_moe", "cohere2"])
def test_loaders_that_read_a_window_hold_it_and_a_ubatch(model_type):
    mistral = read_config("mistral-7b-v0.1")
    cache = llamacpp_cache(replace(mistral, model_type=model_type), 32_768)
    assert (cache.full.layers, cache.windowed.layers, cache.windowed.cells) == (0, 32, 4096 + 512)


def test_exaone_4_has_a_window_at_the_depth_of_its_32b_model_alone():
    mistral = replace(read_config("mistral-7b-v0.1"), model_type="exaone4")
    deep = replace(mistral, layers=mistral.layers * 2)
    assert llamacpp_cache(deep, 32_768).windowed.cells == 4096 + 512
    with pytest.raises(InputError, match="'exaone4'"):
        llamacpp_cache(mistral, 32_768)


def test_cells_are_padded_to_256():
    model = read_config("llama-3.1-8b")
    assert kv_bytes(model, 1, engine="llamacpp") == kv_bytes(model, 256, engine="llamacpp") == 256 * 131_072
    assert kv_bytes(model, 0, engine="llamacpp") == 0
    assert kv_bytes_per_token(model, 5000, "q8_0", engine="llamacpp") == 131_072 * 17 // 32


def test_what_llama_cpp_does_not_do_is_refused():
    model = read_config("llama-3.1-8b")
    with pytest.raises(InputError, match="tp must be 1"):
        kv_bytes(model, 100, tp=2, engine="llamacpp")
    for dtype in ("fp8", "int8", "int4", "fp8_ds_mla"):
        with pytest.raises(InputError, match="kv dtype"):
            kv_bytes(model, 100, dtype, engine="llamacpp")
    odd = replace(model, layers=(replace(model.layers[0], attention=FullAttention(4, 1, 80)),))
    with pytest.raises(InputError, match="blocks of 32"):
        kv_bytes(odd, 100, "q8_0", engine="llamacpp")
    with pytest.raises(InputError, match="latent"):
        LlamaCppSettings(latent="whole")
    with pytest.raises(InputError, match="slots"):
        LlamaCppSettings(slots=0)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), tokens=st.integers(1, 5000))
def test_any_small_config_holds_at_least_the_formula_or_is_refused(data, tokens, small_configs):
    model = parse_config(data.draw(small_configs()), "drawn")
    try:
        held = kv_bytes(model, tokens, engine="llamacpp")
    except InputError:
        return
    assert held >= kv_bytes(model, tokens)
    assert held % 256 == 0
