"""Floor times: which account binds, and never slower than what was measured in public."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    Device,
    InputError,
    decode_floor,
    device,
    device_names,
    expected_distinct_experts,
    kv_bytes,
    model_names,
    prefill_floor,
    read_config,
    ridge_point,
    weight_bytes,
    weights_read_bytes,
)

H100 = device("H100 SXM")
MINE = Device("this machine", {"fp32": 2e11}, 2e10, None, "measured")


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(model_names()),
    gpu=st.sampled_from(device_names()),
    tokens=st.integers(1, 50_000),
    batch=st.integers(1, 500),
)
def test_a_floor_is_positive_and_the_slower_account_binds(name, gpu, tokens, batch):
    model, on = read_config(name), device(gpu)
    for floor in (prefill_floor(model, tokens, on, batch=batch), decode_floor(model, tokens, batch, on)):
        assert floor.flops > 0 and floor.bytes > 0
        assert floor.seconds == max(floor.compute_s, floor.memory_s) > 0
        assert (floor.binds == "compute") == (floor.compute_s >= floor.memory_s)


# With chunks a token reads its own chunk alone, so the first one of the next reads less.
_UNCHUNKED = [name for name in model_names() if name != "llama-4-scout"]


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(_UNCHUNKED), context=st.integers(1, 50_000), batch=st.integers(1, 300))
def test_floors_never_shrink_with_context_or_batch(name, context, batch):
    model = read_config(name)
    base = decode_floor(model, context, batch, H100).seconds
    assert decode_floor(model, context + 100, batch, H100).seconds >= base
    assert decode_floor(model, context, batch + 1, H100).seconds >= base
    assert prefill_floor(model, context + 1, H100).seconds >= prefill_floor(model, context, H100).seconds


def test_claim_c11_a_long_prefill_is_compute_bound_and_a_decode_step_bandwidth_bound():
    model = read_config("llama-3.1-8b")
    assert prefill_floor(model, 4096, H100).binds == "compute"
    decode = decode_floor(model, 4096, 1, H100)
    assert decode.binds == "bandwidth"
    assert decode.intensity < 2 < ridge_point(H100, "bf16")


def test_a_decode_step_at_batch_one_reads_all_weights_but_the_embedding_and_one_cache():
    model = read_config("llama-3.1-8b")
    weights = weight_bytes(model)
    row = 2 * model.hidden_size
    assert decode_floor(model, 1000, 1, H100).bytes == (weights.total - weights.embedding + row + kv_bytes(model, 1000))


def test_a_tied_matrix_is_read_whole_for_the_head():
    model = read_config("smollm2-135m")
    assert weights_read_bytes(model, 1) == weight_bytes(model).total + 2 * model.hidden_size


def test_a_mixture_reads_the_experts_its_tokens_touch():
    model = read_config("qwen3-30b-a3b")
    weights = weight_bytes(model)
    rest = weights.total - weights.embedding - weights.routed_experts
    one = weights_read_bytes(model, 1) - rest - 2 * model.hidden_size
    assert one == pytest.approx(weights.routed_experts * 8 / 128)
    many = weights_read_bytes(model, 2000) - rest - 2 * model.hidden_size * 2000
    assert many == pytest.approx(weights.routed_experts, rel=1e-6)


def test_expected_distinct_experts_agrees_with_drawing_them():
    import random

    generator = random.Random(0)
    draws = [len({e for _ in range(10) for e in generator.sample(range(16), 2)}) for _ in range(4000)]
    assert expected_distinct_experts(16, 2, 10) == pytest.approx(sum(draws) / len(draws), rel=0.01)
    assert expected_distinct_experts(16, 2, 1) == pytest.approx(2)
    assert expected_distinct_experts(16, 2, 0) == 0


# id of a published measurement → our model, its weights, the device, tensor-parallel ranks
DECODES = {
    "gptfast-l2-7b-int8": ("llama-2-7b", "int8", "A100-80 SXM", 1),
    "gptfast-l31-8b-int8": ("llama-3.1-8b", "int8", "A100-80 SXM", 1),
    "gptfast-l2-70b-int8": ("llama-2-70b", "int8", "A100-80 SXM", 1),
    "gptfast-l2-7b-tp2": ("llama-2-7b", "bf16", "A100-80 SXM", 2),
    "gptfast-l2-70b-tp4": ("llama-2-70b", "bf16", "A100-80 SXM", 4),
    "gptfast-l31-405b-int8-tp8": ("llama-3.1-405b", "int8", "A100-80 SXM", 8),
    "gptfast-mixtral-tp2": ("mixtral-8x7b", "bf16", "A100-80 SXM", 2),
    "gptfast-mixtral-int8-1gpu": ("mixtral-8x7b", "int8", "A100-80 SXM", 1),
    "gptfast-mi250x-7b": ("llama-2-7b", "bf16", "MI250X one GCD", 1),
    # LLaMA-7B has the shape of Llama-2-7B.
    "lc-4090-7b-f16": ("llama-2-7b", "fp16", "RTX 4090", 1),
    "lc-4090-7b-q8": ("llama-2-7b", "q8_0", "RTX 4090", 1),
    "lc-a6000-7b-f16": ("llama-2-7b", "fp16", "RTX A6000", 1),
    "lc-m2ultra-7b-f16": ("llama-2-7b", "fp16", "Apple M2 Ultra", 1),
    "tinygrad-3090-7b": ("llama-2-7b", "fp16", "RTX 3090", 1),
}


@pytest.mark.parametrize("case_id", DECODES)
def test_no_published_decode_step_beats_its_floor(case_id, facts):
    case = next(case for case in facts("roofline-cases.json")["cases"] if case["id"] == case_id)
    name, weights_dtype, gpu, tp = DECODES[case_id]
    floor = decode_floor(
        read_config(name), case["context"], 1, device(gpu), weights_dtype=weights_dtype, kv_dtype="fp16", tp=tp
    )
    assert floor.binds == "bandwidth"
    # Bytes read, worked out by others; where they took the size of a file, it holds the input embedding too (1.5 %).
    assert tp * floor.bytes == pytest.approx(case["roofline"]["bytes_read"], rel=0.02)
    utilisation = floor.seconds * 1000 / case["measured"]["tpot_ms"]
    assert 0.2 < utilisation < 0.9


@pytest.mark.parametrize(
    ("case_id", "name", "weights_dtype", "utilisation"),
    [
        ("h20-qwen3-8b-fp8-prefill", "qwen3-8b", "fp8", 0.77),
        ("h20-qwen3-30b-bf16-prefill", "qwen3-30b-a3b", "bf16", 0.79),
    ],
)
def test_a_published_prefill_reaches_the_share_of_its_floor_that_was_published(
    case_id, name, weights_dtype, utilisation, facts
):
    case = next(case for case in facts("roofline-cases.json")["cases"] if case["id"] == case_id)
    floor = prefill_floor(read_config(name), case["tokens"], device("H20"), weights_dtype=weights_dtype)
    assert floor.binds == "compute"
    assert floor.seconds * 1000 / case["measured"]["ttft_ms"] == pytest.approx(utilisation, abs=0.02)


def test_fp8_weights_run_at_the_fp8_peak_where_there_is_one():
    model = read_config("deepseek-v3")
    on_h100, on_a100 = prefill_floor(model, 4096, H100), prefill_floor(model, 4096, device("A100-80 SXM"))
    assert on_h100.flops / on_h100.compute_s == pytest.approx(1979e12)
    assert on_a100.flops / on_a100.compute_s == pytest.approx(312e12)


def test_a_measured_device_serves_whatever_dtype_it_was_measured_in():
    floor = decode_floor(read_config("smollm2-135m"), 128, 1, MINE, weights_dtype="fp32", kv_dtype="fp32")
    assert floor.memory_s == pytest.approx(floor.bytes / 2e10)
    assert floor.binds == "bandwidth"
    with pytest.raises(InputError, match="fp8"):
        decode_floor(read_config("smollm2-135m"), 128, 1, MINE, compute_dtype="fp8")


def test_ranks_split_the_floor_and_a_bad_batch_is_refused():
    model = read_config("llama-3.1-70b")
    assert decode_floor(model, 100, 1, H100, tp=8).seconds == pytest.approx(
        decode_floor(model, 100, 1, H100).seconds / 8, rel=1e-3
    )
    with pytest.raises(InputError, match="batch"):
        decode_floor(model, 100, 0, H100)
