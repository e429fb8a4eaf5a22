"""vLLM's blocks and groups against the figures real servers printed, and against the rules of its source."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    GIB,
    PACKED_MLA,
    FullAttention,
    InputError,
    VllmSettings,
    default_batched_tokens,
    device,
    kv_bytes,
    kv_bytes_per_token,
    model_names,
    parse_config,
    read_config,
    state_bytes,
    vllm_layout,
)
from helpers.accounts.kv import kv_width_elements


@pytest.fixture(scope="module")
def config(shared):
    """Read one config of the ground truth by the name of its file."""
    return lambda name: read_config(shared / "facts" / "configs" / f"{name}.json")


def _with_attention(*kinds: FullAttention):
    model = read_config("gemma-3-27b")
    return replace(model, layers=tuple(replace(model.layers[0], attention=kind) for kind in kinds))


def _without_indexers(model):
    """The model without the keys of its indexer, which vLLM keeps in fp8 whatever the format of the rest."""
    layers = (
        replace(layer, attention=replace(layer.attention, indexer=None))
        if getattr(layer.attention, "indexer", None)
        else layer
        for layer in model.layers
    )
    return replace(model, layers=tuple(layers))


@pytest.mark.parametrize(
    ("full", "sliding", "groups", "padding"), [(10, 14, 2, 4), (10, 15, 3, 5), (10, 18, 3, 2), (10, 20, 3, 0)]
)
def test_groups_take_the_larger_count_only_below_one_and_a_half_times_the_smaller(full, sliding, groups, padding):
    # vllm/v1/core/kv_cache_utils.py, _get_kv_cache_groups_uniform_page_size: padding 10 to 14 costs less than dividing.
    layout = vllm_layout(
        _with_attention(*[FullAttention(8, 4, 64)] * full, *[FullAttention(8, 4, 64, window=64)] * sliding)
    )
    assert (len(layout.groups), layout.padding_layers) == (groups, padding)


def test_gemma_3_has_seven_groups_of_ten_with_eight_padding_layers():
    layout = vllm_layout(read_config("gemma-3-27b"))
    assert [group.kind for group in layout.groups].count("sliding") == 6
    # The 52 layers are dealt out evenly, not six groups filled one after the other.
    assert [group.layers for group in layout.groups if group.kind == "sliding"] == [9, 9, 9, 9, 8, 8]
    assert (len(layout.groups), layout.padding_layers, layout.block_bytes) == (7, 8, 1_310_720)
    assert sum(group.layers for group in layout.groups) == 62
    # vLLM's own warning: 8 of 52 windowed layers, 15.38 %.
    assert round(layout.padding_layers / 52 * 100, 2) == 15.38


def test_gemma_3_prints_its_tokens_and_concurrency_exactly():
    layout = vllm_layout(read_config("gemma-3-27b"))
    # The pool is printed to 0.01 GiB, the blocks in full.
    assert layout.num_blocks(109.855 * GIB) <= 89_994 <= layout.num_blocks(109.865 * GIB)
    assert layout.printed_tokens(89_994) == 205_696
    assert round(layout.max_concurrency(89_994, 4096), 2) == 50.05
    assert layout.request_blocks(4096) == 256 + 6 * 257
    assert layout.printed_tokens(layout.num_blocks(35.31 * GIB)) == 66_112
    assert not layout.is_capacity


def test_later_versions_print_concurrency_times_length_for_medgemma():
    layout = vllm_layout(read_config("gemma-3-27b"), "fp8", settings=VllmSettings(max_batched_tokens=4096))
    assert layout.request_blocks(65_536) == 4096 + 6 * 321
    low, high = (layout.printed_tokens(layout.num_blocks(pool * GIB), 65_536) for pool in (10.555, 10.565))
    assert low <= 188_347 <= high
    assert round(layout.max_concurrency(layout.num_blocks(10.56 * GIB), 65_536), 2) == 2.87


def test_state_pages_explain_qwen_3_8_to_the_last_token(config):
    # 27B in FP8 with an fp8 cache on two cards: 4.99 GiB, 302,921 tokens, 2.31 requests of 131,072.
    layout = vllm_layout(config("Qwen--Qwen3.5-27B"), "fp8", 2, VllmSettings(state_blocks=2))
    assert layout.smallest_block_tokens == 1568
    blocks = layout.num_blocks(4.99 * GIB)
    assert blocks == 208
    assert round(layout.max_concurrency(blocks, 131_072), 2) == 2.31
    assert layout.printed_tokens(blocks, 131_072) == 302_921


def test_printed_tokens_of_a_hybrid_are_far_below_what_fits(config):
    # vLLM issue 40691: 290,864 tokens printed beside 33.04 requests of 32,768 tokens (1,082,655 tokens).
    layout = vllm_layout(config("Qwen--Qwen3.5-27B"))
    assert layout.smallest_block_tokens == 784
    assert layout.printed_tokens(1487) == 290_864
    assert round(layout.max_concurrency(1487, 32_768), 2) == 33.04
    assert layout.longest_request(1487) > 3.7 * 290_864


@pytest.mark.parametrize(
    ("blocks", "length", "printed"),
    [(5102, 8192, 9.96), (190_100, 32_768, 92.82), (2889, 8192, 5.64), (715, 2048, 5.59), (14_815, 512, 462.97)],
)
def test_concurrency_of_full_attention_is_blocks_over_length_to_the_printed_digit(blocks, length, printed):
    layout = vllm_layout(read_config("qwen2.5-7b"))
    assert f"{layout.max_concurrency(blocks, length):.2f}" == f"{printed:.2f}"
    assert layout.printed_tokens(blocks) == layout.longest_request(blocks) == blocks * 16


def test_concurrency_from_printed_tokens_to_the_printed_digit():
    layout = vllm_layout(read_config("qwen2.5-7b"))
    blocks = 245_360 // 16
    assert f"{layout.max_concurrency(blocks, 32_768):.2f}" == "7.49"
    assert layout.num_blocks(13.1 * GIB) == pytest.approx(blocks, rel=0.005)


def test_bamba_of_v0_keeps_state_outside_the_pool_and_matches_in_fp32():
    # 3 attention layers of 8 KV heads at tensor parallel 2, 34.78 GiB: 189,945 blocks, 2967.89 requests of 1,024.
    model = _with_attention(*[FullAttention(32, 8, 128)] * 3)
    layout = vllm_layout(model, "fp32", 2, VllmSettings(hybrid_manager=False))
    assert layout.num_blocks(34.775 * GIB) <= 189_945 <= layout.num_blocks(34.785 * GIB)
    assert round(layout.max_concurrency(189_945, 1024), 2) == 2967.89


def test_mla_billed_as_keys_and_values_halved_the_tokens():
    latent = read_config("deepseek-v2-lite")
    assert 2 * kv_bytes_per_token(latent, engine="vllm") == 2 * 31_104
    assert round(499_184 / 249_584, 2) == 2.0


def test_needed_memory_of_one_request_is_what_vllm_says():
    # "To serve at least one request with the models's max seq len (16384), (3.00 GiB KV cache is needed".
    model = replace(read_config("qwen2.5-7b"), layers=read_config("llama-3.1-8b").layers[:1] * 48)
    layout = vllm_layout(model)
    assert layout.request_blocks(16_384) * layout.block_bytes == 3 * GIB
    assert layout.longest_request(layout.num_blocks(0.18 * GIB)) == 976
    eight = vllm_layout(read_config("qwen3-8b"))
    assert eight.longest_request(eight.num_blocks(2.4 * GIB)) == pytest.approx(17_472, abs=16)


def test_packed_and_plain_fp8_latents_are_two_answers():
    model = read_config("deepseek-v3")
    assert kv_bytes(model, 16, "fp8", engine="vllm") == 16 * 61 * 576
    assert kv_bytes(model, 16, PACKED_MLA, engine="vllm") == 16 * 61 * 656
    with pytest.raises(InputError, match="latent attention"):
        kv_bytes(read_config("llama-3.1-8b"), 16, PACKED_MLA, engine="vllm")


def test_the_indexer_adds_132_bytes_a_layer_whatever_the_dtype(config):
    model = config("deepseek-ai--DeepSeek-V3.2")
    for dtype, latent in ((PACKED_MLA, 656), ("fp8", 576), ("bf16", 1152)):
        assert kv_bytes(model, 16, dtype, engine="vllm") == 16 * 61 * (latent + 132)


def test_int8_carries_a_scale_for_every_token_head_key_and_value():
    model = read_config("llama-3.1-8b")
    assert kv_bytes(model, 16, "int8", engine="vllm") == 16 * 32 * 2 * 8 * (128 + 4)


def test_heads_are_shared_down_to_one_a_rank_and_blocks_are_whole():
    model = read_config("llama-3.1-70b")
    assert [kv_bytes(model, 1, tp=tp, engine="vllm") // 16 for tp in (1, 8, 16)] == [327_680, 40_960, 40_960]
    assert kv_bytes(model, 17, engine="vllm") == 2 * kv_bytes(model, 16, engine="vllm") == 32 * 327_680
    assert kv_bytes(model, 0, engine="vllm") == 0
    blocks = VllmSettings(block_size=64)
    assert kv_bytes(model, 1, engine="vllm", settings=blocks) == 64 * 327_680


def test_layers_alike_in_all_but_width_share_one_block_table():
    layout = vllm_layout(_with_attention(FullAttention(8, 8, 128), FullAttention(8, 4, 128)))
    assert len(layout.groups) == 1
    assert layout.block_bytes == 16 * 2 * 2 * (8 + 4) * 128
    assert layout.is_capacity


def test_narrow_layers_hold_more_tokens_a_block_where_kinds_differ():
    model = _with_attention(FullAttention(8, 2, 512), FullAttention(8, 8, 256, window=64))
    layout = vllm_layout(model)
    assert {(group.kind, group.block_tokens) for group in layout.groups} == {("full", 32), ("sliding", 16)}
    assert layout.block_bytes == 16 * 2 * 2 * 8 * 256
    with pytest.raises(InputError, match="do not divide"):
        vllm_layout(_with_attention(FullAttention(8, 3, 128), FullAttention(8, 8, 128, window=64)))


def test_nearly_equal_counts_are_padded_to_the_larger():
    # vLLM's own example: 12 windowed and 13 full layers (gpt-oss-20b with a draft) become 13 and 13.
    kinds = [FullAttention(8, 2, 64, window=128)] * 12 + [FullAttention(8, 2, 64)] * 13
    layout = vllm_layout(_with_attention(*kinds))
    assert [(group.layers, group.padding) for group in layout.groups] == [(12, 1), (13, 0)]


def test_windows_without_the_hybrid_manager_are_kept_whole():
    model = read_config("gemma-3-27b")
    whole = kv_bytes(model, 65_536, engine="vllm", settings=VllmSettings(hybrid_manager=False))
    assert whole == 65_536 * 62 * 8192
    assert kv_bytes(model, 65_536, engine="vllm") < whole / 3


def test_chunked_layers_hold_a_chunk_and_what_is_batched():
    model = _with_attention(FullAttention(8, 8, 128, chunk=64), FullAttention(8, 8, 128))
    layout = vllm_layout(model, settings=VllmSettings(max_batched_tokens=32))
    assert layout.request_blocks(1600) == 1600 // 16 + (64 + 32) // 16


def test_what_vllm_does_not_store_is_refused():
    model = read_config("llama-3.1-8b")
    for dtype in ("q8_0", "q4_0", "int4", "fp4", None):
        with pytest.raises(InputError, match="kv dtype"):
            vllm_layout(model, dtype)
    with pytest.raises(InputError, match="block_size"):
        VllmSettings(block_size=0)
    with pytest.raises(InputError, match="tp 5"):
        vllm_layout(model, tp=5)
    with pytest.raises(InputError, match="no layer keeps keys"):
        vllm_layout(replace(model, layers=(replace(model.layers[0], attention=None),)))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(model_names()),
    tokens=st.integers(0, 300_000),
    more=st.integers(0, 5000),
    dtype=st.sampled_from(["bf16", "fp8", "fp32"]),
)
def test_blocks_never_hold_less_than_the_formula_and_grow_with_length(name, tokens, more, dtype):
    model = read_config(name)
    here = kv_bytes(model, tokens, dtype, engine="vllm")
    assert kv_bytes(_without_indexers(model), tokens, dtype) <= here
    assert here <= kv_bytes(model, tokens + more, dtype, engine="vllm")
    layout = vllm_layout(model, dtype)
    blocks = layout.request_blocks(tokens)
    assert layout.longest_request(blocks) >= tokens
    assert layout.longest_request(blocks - 1) < max(tokens, 1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_small_config_is_laid_out_or_refused(data, small_configs):
    model = parse_config(data.draw(small_configs()), "drawn")
    try:
        layout = vllm_layout(model)
    except InputError:
        return
    kept = sum(kv_width_elements(layer.attention) > 0 for layer in model.layers)
    indexers = sum(getattr(layer.attention, "indexer", None) is not None for layer in model.layers)
    states = sum(state_bytes(replace(model, layers=(layer,))) > 0 for layer in model.layers)
    assert sum(group.layers for group in layout.groups) == kept + indexers + states
    assert kv_bytes(model, 100, engine="vllm") >= kv_bytes(model, 100)


@pytest.mark.parametrize(
    ("card", "tokens"),
    [("H100 SXM", 8192), ("A100-80 SXM", 2048), ("RTX 4090", 2048), ("MI300X", 8192), ("L40S", 2048)],
)
def test_the_batched_tokens_a_server_takes_by_itself_depend_on_the_card(card, tokens):
    assert default_batched_tokens(device(card)) == tokens
