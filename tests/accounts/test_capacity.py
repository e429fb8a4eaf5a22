"""Capacity: an upper bound, with its terms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    ENGINES,
    GIB,
    Device,
    InputError,
    VllmSettings,
    device,
    kv_bytes,
    max_concurrency,
    model_registry,
    parse_config,
    read_config,
    rotary_table_bytes,
    vllm_layout,
    weight_bytes,
)

H100 = device("H100 SXM")


def test_the_terms_make_the_result():
    model = read_config("llama-3.1-8b")
    capacity = max_concurrency(model, 8192, H100)
    assert capacity.visible_bytes == int(79.1 * GIB)
    assert capacity.free_bytes == capacity.visible_bytes - weight_bytes(model).total
    assert capacity.max_concurrency == capacity.free_bytes // kv_bytes(model, 8192) == 64


def test_claim_c9_eight_h100_hold_deepseek_v3_on_paper_and_almost_nothing_beside_it():
    model = read_config("deepseek-v3")
    eight = max_concurrency(model, 4096, H100, gpus=8)
    assert eight.weights_fit
    assert 0.7 < eight.free_bytes / 8 / GIB < 0.8
    assert not max_concurrency(model, 4096, H100, gpus=7).weights_fit
    assert max_concurrency(model, 4096, H100, gpus=7).max_concurrency == 0
    assert max_concurrency(model, 4096, H100, gpus=16).max_concurrency > 1000


def test_claim_c23_more_cards_do_not_split_a_latent_cache_under_tensor_parallelism():
    model = read_config("deepseek-v3")
    ranks = max_concurrency(model, 4096, H100, gpus=16, tp=16)
    shared = max_concurrency(model, 4096, H100, gpus=16)
    assert ranks.bytes_per_request == 16 * shared.bytes_per_request
    assert ranks.max_concurrency < shared.max_concurrency // 10


@settings(max_examples=30, deadline=None)
@given(context=st.integers(1, 200_000), gpus=st.integers(1, 16))
def test_longer_requests_fit_fewer_times_and_more_cards_hold_more(context, gpus):
    model = read_config("llama-3.1-70b")
    here = max_concurrency(model, context, H100, gpus=gpus).max_concurrency
    assert max_concurrency(model, context + 100, H100, gpus=gpus).max_concurrency <= here
    assert max_concurrency(model, context, H100, gpus=gpus + 1).max_concurrency >= here


def test_what_cannot_be_known_is_refused():
    model = read_config("llama-3.1-8b")
    with pytest.raises(InputError, match="H20"):
        max_concurrency(model, 100, device("H20"))
    with pytest.raises(InputError, match="multiple of tp"):
        max_concurrency(model, 100, H100, gpus=3, tp=2)
    with pytest.raises(InputError, match="gpus"):
        max_concurrency(model, 100, H100, gpus=0)
    with pytest.raises(InputError, match="context"):
        max_concurrency(model, 0, H100)


def _card(visible_gib: float) -> Device:
    return Device("a card", {"bf16": 1e14}, 1e12, int(visible_gib * GIB), "its log")


def _gib(value: float) -> int:
    return round(value * GIB)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_named_terms_sum_to_the_pool_in_every_engine(engine):
    share = {"utilisation": 0.85} if engine != "llamacpp" else {}
    capacity = max_concurrency(read_config("llama-3.1-8b"), 8192, H100, engine=engine, **share)
    assert sum(size for _, size in capacity.terms) == capacity.pool_bytes
    assert capacity.terms[0] == ("visible memory", H100.visible_memory_bytes)
    assert all(size <= 0 for _, size in capacity.terms[1:])
    assert capacity.units * capacity.unit_bytes <= capacity.pool_bytes < (capacity.units + 1) * capacity.unit_bytes
    assert capacity.max_concurrency == int(capacity.concurrency) >= 50


def test_the_weights_line_of_llama_is_its_parameters_and_the_rotary_table():
    # vLLM logs 14.9888 "GB" for Llama-3.1-8B (issue 10517).
    model = read_config("llama-3.1-8b")
    assert rotary_table_bytes(model) == 131_072 * 128 * 2
    held = max_concurrency(model, 100, H100, engine="vllm")
    assert round((held.weight_bytes + held.rotary_bytes) / GIB, 4) == 14.9888
    assert weight_bytes(model).total + 2**25 == held.weight_bytes + held.rotary_bytes


def test_a_70b_in_awq_takes_37_gib():
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
    config = model_registry()["llama-3.1-70b"]["config"] | {"torch_dtype": "float16", "quantization_config": awq}
    model = parse_config({key: value for key, value in config.items() if key != "dtype"}, "70B AWQ")
    assert round(weight_bytes(model).total / GIB, 2) == 37.04


def test_the_budget_of_vllm_closes_on_a_log():
    # Qwen2.5-VL-7B on a 3090: 23.67 GiB × 0.90, weights 15.5083, non-torch 0.28, activation peak 1.16 GiB leave
    # 4.36 GiB: 5,102 blocks, 9.96 requests of 8,192 tokens. Its vision tower is no part of the language model here.
    model = read_config("qwen2.5-7b")
    tower = _gib(15.5083) - weight_bytes(model).total - rotary_table_bytes(model)
    capacity = max_concurrency(
        model,
        8192,
        _card(23.67),
        engine="vllm",
        utilisation=0.9,
        activation_bytes=_gib(1.16),
        non_torch_bytes=_gib(0.28) + tower,
        cuda_graph_bytes=0,
    )
    assert capacity.notes == ()
    assert capacity.pool_bytes / GIB == pytest.approx(4.36, abs=0.01)
    assert capacity.units == pytest.approx(5102, rel=0.002)
    assert capacity.concurrency == pytest.approx(9.96, rel=0.002)


def test_tensorrt_llm_takes_a_share_of_what_is_left():
    # 31.84 GiB in all, 17.83 left: 0.9 of it are 16.05 GiB, 8,219 blocks of 32 tokens, with an 8-bit cache.
    model = read_config("llama-3.1-8b")
    used = _gib(31.84) - _gib(17.83) - weight_bytes(model, "fp8").total
    capacity = max_concurrency(
        model,
        4096,
        _card(31.84),
        weights_dtype="fp8",
        kv_dtype="fp8",
        engine="tensorrt-llm",
        activation_bytes=0,
        cuda_graph_bytes=0,
        non_torch_bytes=used,
    )
    assert capacity.pool_bytes / GIB == pytest.approx(16.05, abs=0.005)
    assert capacity.units == pytest.approx(8219, abs=3)
    assert capacity.units_per_request == 4096 // 32


def test_sglang_counts_tokens_in_its_static_share():
    model = read_config("llama-3.1-8b")
    capacity = max_concurrency(model, 4096, _card(80), engine="sglang", utilisation=0.8)
    assert capacity.pool_bytes == int(_gib(80) * 0.8) - weight_bytes(model).total
    assert (capacity.unit, capacity.units) == ("token", capacity.pool_bytes // 131_072)
    with pytest.raises(InputError, match="give utilisation"):
        max_concurrency(model, 4096, H100, engine="sglang")
    with pytest.raises(InputError, match="activation_bytes"):
        max_concurrency(model, 4096, H100, engine="sglang", utilisation=0.8, activation_bytes=1)


def test_llama_cpp_counts_slots_of_padded_cells_and_takes_no_share():
    model = read_config("llama-3.1-8b")
    capacity = max_concurrency(model, 1000, H100, engine="llamacpp", mean_context=10)
    assert capacity.unit_bytes == 1024 * 131_072
    assert capacity.mean_concurrency == capacity.max_concurrency
    with pytest.raises(InputError, match="no share"):
        max_concurrency(model, 1000, H100, engine="llamacpp", utilisation=0.9)


def test_a_reserve_that_is_not_given_is_called_an_upper_bound():
    model = read_config("llama-3.1-8b")
    some = max_concurrency(model, 4096, H100, engine="vllm", activation_bytes=_gib(2))
    assert any("upper bound" in note and "non-torch, cuda-graph" in note for note in some.notes)
    assert dict(some.terms)["activation peak"] == -_gib(2)
    none = max_concurrency(model, 4096, H100, engine="vllm")
    assert none.activation_bytes == 0
    assert any("activation" in note for note in none.notes)
    assert none.max_concurrency >= some.max_concurrency


def test_requests_of_the_mean_length_fit_more_often():
    model = read_config("gemma-3-27b")
    capacity = max_concurrency(model, 32_768, _card(140), engine="vllm", mean_context=2000)
    assert capacity.mean_concurrency > 5 * capacity.max_concurrency > 0
    layout = vllm_layout(model)
    assert capacity.mean_concurrency == capacity.units // layout.request_blocks(2000)
    with pytest.raises(InputError, match="mean_context"):
        max_concurrency(model, 100, H100, mean_context=200)


def test_a_draft_takes_weights_and_a_second_cache():
    target, draft = read_config("llama-3.1-8b"), read_config("llama-3.2-1b")
    for engine in ("ideal", "vllm"):
        alone = max_concurrency(target, 8192, H100, engine=engine)
        both = max_concurrency(target, 8192, H100, engine=engine, draft=draft)
        assert both.draft_weight_bytes == weight_bytes(draft).total
        assert both.bytes_per_request == alone.bytes_per_request + kv_bytes(draft, 8192)
        assert both.max_concurrency < alone.max_concurrency


def test_batched_tokens_of_windowed_layers_cost_capacity():
    model, card = read_config("gemma-3-27b"), _card(140)
    few = max_concurrency(model, 65_536, card, engine="vllm", vllm=VllmSettings(max_batched_tokens=2048))
    many = max_concurrency(model, 65_536, card, engine="vllm", vllm=VllmSettings(max_batched_tokens=16_384))
    assert few.units == many.units
    assert few.max_concurrency > many.max_concurrency


@settings(max_examples=40, deadline=None)
@given(context=st.integers(1, 100_000), engine=st.sampled_from(["vllm", "tensorrt-llm", "llamacpp"]))
def test_no_engine_holds_more_than_the_ideal(context, engine):
    model = read_config("llama-3.1-8b")
    held = max_concurrency(model, context, H100, engine=engine).max_concurrency
    assert held <= max_concurrency(model, context, H100).max_concurrency


def test_what_an_engines_rule_does_not_cover_is_refused():
    model = read_config("llama-3.1-8b")
    with pytest.raises(InputError, match="'tgi'"):
        max_concurrency(model, 100, H100, engine="tgi")
    with pytest.raises(InputError, match=r"gpus \(2\) must equal tp \(1\)"):
        max_concurrency(model, 100, H100, gpus=2, engine="vllm")
    for share in (0, 1.1, -1, True, "0.9", float("nan")):
        with pytest.raises(InputError, match="utilisation"):
            max_concurrency(model, 100, H100, engine="vllm", utilisation=share)
    with pytest.raises(InputError, match="activation_bytes"):
        max_concurrency(model, 100, H100, activation_bytes=-1)
    with pytest.raises(InputError, match="full and plain latent"):
        max_concurrency(read_config("gemma-3-27b"), 100, H100, engine="sglang", utilisation=0.9)


def test_windows_are_counted_with_the_batched_tokens_of_the_card():
    model, context = read_config("gemma-3-27b"), 32_768
    for card, tokens in (("A100-80 SXM", 2048), ("H100 SXM", 8192)):
        layout = vllm_layout(model, settings=VllmSettings(max_batched_tokens=tokens))
        capacity = max_concurrency(model, context, device(card), engine="vllm")
        assert capacity.units_per_request == layout.request_blocks(context)


def test_terms_and_blocks_of_a_tensor_parallel_group_are_those_of_all_its_ranks():
    model = read_config("llama-3.1-70b")
    one, four = (max_concurrency(model, 8192, H100, tp=tp, engine="vllm") for tp in (2, 4))
    assert one.rotary_bytes == 2 * rotary_table_bytes(model) and four.rotary_bytes == 4 * rotary_table_bytes(model)
    # Eight KV heads: four ranks hold the cache once between them, as two do.
    assert one.unit_bytes == four.unit_bytes == 16 * 327_680
    assert four.pool_bytes // four.unit_bytes == four.units
