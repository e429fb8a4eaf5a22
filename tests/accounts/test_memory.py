"""Bytes of the weights: plain formats, and what quantised checkpoints really weigh."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    COMPONENTS,
    DTYPES,
    GB,
    GIB,
    InputError,
    bytes_of,
    count_parameters,
    inventory,
    kv_bytes,
    model_names,
    model_registry,
    parse_config,
    read_config,
    weight_bytes,
)

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}


def _quantised(name, quantization, **more):
    config = {**model_registry()[name]["config"], **more, "quantization_config": quantization}
    return parse_config(config, name)


def test_claim_c8_plain_weights_are_total_parameters_times_bytes():
    for name in model_names():
        model = read_config(name)
        for dtype in DTYPES:
            expected = bytes_of(count_parameters(model).total, dtype)
            # Each tensor is rounded up to whole bytes by itself.
            assert expected <= weight_bytes(model, dtype).total <= expected + len(inventory(model)), (name, dtype)


def test_claim_c9_deepseek_v3_in_fp8_with_scales_is_673_gb():
    weights = weight_bytes(read_config("deepseek-v3"))
    assert round(weights.total / GB, 1) == 673.2
    assert round(weights.total / GIB, 1) == 626.9
    # Embedding, head and router stay bf16; one fp32 scale for each 128 × 128 block of the rest.
    assert weights.embedding == weights.head == 2 * 129_280 * 7168
    assert weights.router == 2 * 58 * 256 * 7168
    attention = 12 * 56 + 192 * 12 + 5 * 56 + 256 * 4 + 56 * 128  # the 576 rows of kv_a_proj take five blocks
    dense, expert = 3 * 144 * 56, 3 * 16 * 56
    assert weights.scales == 4 * (61 * attention + 3 * dense + 58 * 257 * expert)
    assert 8 * 80 * GB < weights.total < 8 * 79.1 * GIB


def test_gpt_oss_20b_weighs_to_the_byte_what_its_checkpoint_states():
    # metadata.total_size of model.safetensors.index.json of openai/gpt-oss-20b on Hugging Face
    assert weight_bytes(read_config("gpt-oss-20b")).total == 13_761_264_768


# config.json of deepseek-ai/DeepSeek-V4-Flash on Hugging Face, the keys that make sizes.
V4_FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "scale_fmt": "ue8m0",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
V4_FLASH = {
    "model_type": "deepseek_v4",
    "hidden_size": 4096,
    "num_hidden_layers": 43,
    "num_attention_heads": 64,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "q_lora_rank": 1024,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "sliding_window": 128,
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0],
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "n_shared_experts": 1,
    "moe_intermediate_size": 2048,
    "vocab_size": 129_280,
    "max_position_embeddings": 1_048_576,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "expert_dtype": "fp4",
    "quantization_config": V4_FP8,
}


def test_deepseek_v4_flash_weighs_to_the_byte_what_its_checkpoint_states():
    # metadata.total_size of model.safetensors.index.json of deepseek-ai/DeepSeek-V4-Flash on Hugging Face. It counts
    # buffers and the layer for multi-token prediction, which the account leaves out; that one is added up here.
    buffers = 40 * 256 * 4 + 3 * 129_280 * 6 * 8  # routing bias (fp32) and the first layers' table of experts (int64)

    def fp8(rows, columns):
        return rows * columns + -(-rows // 128) * -(-columns // 128)

    def fp4(rows, columns):
        return rows * columns // 2 + rows * columns // 32

    attention = fp8(1024, 4096) + fp8(32_768, 1024) + fp8(512, 4096) + fp8(8192, 4096) + fp8(4096, 8192) + 64 * 4
    experts = 256 * 3 * fp4(2048, 4096) + 3 * fp8(2048, 4096) + 256 * 4096 * 2 + 256 * 4
    streams = 2 * (24 * 16_384 + 27) * 4 + (4 * 16_384 + 5) * 4
    norms = (1024 + 512 + 2 * 4096 + 3 * 4096) * 2
    prediction = attention + experts + streams + norms + 2 * fp8(4096, 4096)
    weights = weight_bytes(parse_config(V4_FLASH, "V4-Flash"))
    assert weights.total + buffers + prediction == 159_609_485_896
    assert weights.routed_experts == 43 * 256 * 3 * fp4(2048, 4096)


def test_fp8_experts_of_deepseek_v4_have_fp32_scales():
    # Tensor shapes of DeepSeek-V4-Flash-Base: github.com/NVIDIA-NeMo/Automodel issue 2034.
    weights = weight_bytes(parse_config({**V4_FLASH, "expert_dtype": "fp8"}, "V4-Flash-Base"))
    assert weights.routed_experts == 43 * 256 * 3 * (2048 * 4096 + 16 * 32 * 4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"expert_dtype": "fp6"}, "expert_dtype"),
        ({"expert_dtype": None}, "expert_dtype"),
        ({"quantization_config": {**V4_FP8, "scale_fmt": None}}, "scale_fmt"),
        ({"quantization_config": {**V4_FP8, "weight_block_size": [32, 32]}}, "weight_block_size"),
        ({"quantization_config": AWQ}, "quant_method"),
    ],
)
def test_another_quantised_deepseek_v4_is_refused_but_weighed_as_asked(change, named):
    model = parse_config({**V4_FLASH, **change}, "V4")
    with pytest.raises(InputError, match=rf"{named}.*"):
        weight_bytes(model)
    assert weight_bytes(model, "fp8").total == count_parameters(model).total


def test_a_modelopt_file_beside_the_config_is_read_and_never_overrides_it(tmp_path):
    plain = model_registry()["llama-3.1-70b"]["config"]
    (tmp_path / "config.json").write_text(json.dumps(plain))
    assert weight_bytes(read_config(tmp_path)).total == 2 * 70_553_706_496
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    weights = weight_bytes(read_config(tmp_path))
    matrices = 80 * 7
    assert weights.scales == matrices * 8
    assert weights.attention + weights.dense_ffn - weights.scales == 70_553_706_496 - 2 * 128_256 * 8192 - 161 * 8192
    fp8 = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}
    (tmp_path / "config.json").write_text(json.dumps({**plain, "quantization_config": fp8}))
    assert weight_bytes(read_config(tmp_path)).scales > matrices * 8
    (tmp_path / "config.json").write_text(json.dumps(plain))
    (tmp_path / "hf_quant_config.json").write_text("[]")
    with pytest.raises(InputError, match=r"hf_quant_config.json.*'quantization'"):
        read_config(tmp_path)


def test_a_quantised_hybrid_has_parameters_and_cache_and_its_weights_are_refused_by_name():
    config = {
        "model_type": "lfm2",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
        "layer_types": ["conv", "full_attention"],
    }
    plain, model = parse_config(config, "mine"), parse_config({**config, "quantization_config": AWQ}, "mine")
    assert kv_bytes(model, 100) == kv_bytes(plain, 100) > 0
    assert count_parameters(model) == count_parameters(plain)
    with pytest.raises(InputError, match=r"mine.*'lfm2'.*--weights-dtype"):
        weight_bytes(model)
    assert weight_bytes(model, "int8").total == count_parameters(model).total


def test_llama_70b_in_awq_4_bit_groups_of_128_is_37_gib(facts):
    weights = weight_bytes(_quantised("llama-3.1-70b", AWQ))
    assert round(weights.total / GIB, 2) == 37.04
    logged = next(case for case in facts("kv-cases.json")["cases"] if case["id"] == "vllm-70b-awq")["logged"]
    assert weights.total / GIB == pytest.approx(logged["weights_GiB"], rel=0.005)


def test_llama_8b_weighs_what_an_engine_logged_less_its_rotary_table(facts):
    logged = next(case for case in facts("kv-cases.json")["cases"] if case["id"] == "vllm-llama31-8b-3090-20k")[
        "logged"
    ]
    model = read_config("llama-3.1-8b")
    rotary_table = model.max_position_embeddings * model.layers[0].attention.head_dim * 2
    assert (weight_bytes(model).total + rotary_table) / GIB == pytest.approx(
        logged["weights_GiB_logged_as_GB"], abs=1e-4
    )


def test_llama_405b_fp8_keeps_attention_in_bf16():
    kept = [f"model.layers.{layer}.self_attn.{side}_proj" for layer in range(126) for side in "qkvo"]
    rowwise = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0, "modules_to_not_convert": kept}
    weights = weight_bytes(_quantised("llama-3.1-405b", rowwise))
    assert round(weights.total / GIB) == 449
    assert weights.attention == 2 * count_parameters(read_config("llama-3.1-405b")).attention


def _compressed(**weights):
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }


@pytest.mark.parametrize(
    ("quantization", "bits_per_weight"),
    [
        (AWQ, 4 + (16 + 4) / 128),
        ({**AWQ, "zero_point": False, "group_size": 32}, 4 + 16 / 32),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        (_compressed(), 4 + 16 / 32),
        (_compressed(scale_dtype="torch.bfloat16", zp_dtype=None, actorder=None, observer="mse"), 4 + 16 / 32),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, 4 + 8 / 16),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]}, 8),
    ],
)
def test_quantised_matrices_take_their_bits_and_scales_and_the_rest_stays_16_bit(quantization, bits_per_weight):
    model = _quantised("llama-3.1-8b", quantization)
    parameters, weights = count_parameters(model), weight_bytes(model)
    quantised = parameters.attention + parameters.dense_ffn
    assert weights.attention + weights.dense_ffn == pytest.approx(quantised * bits_per_weight / 8, rel=1e-5)
    plain = parameters.total - quantised
    assert weights.total == weights.attention + weights.dense_ffn + 2 * plain


def test_gptq_carries_a_group_index_for_each_input():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
    same_groups = weight_bytes(_quantised("llama-3.1-8b", AWQ)).total
    inputs = sum(weight.columns for weight in inventory(read_config("llama-3.1-8b")) if weight.module.endswith("_proj"))
    assert weight_bytes(_quantised("llama-3.1-8b", gptq)).total == same_groups + 4 * inputs


def test_modules_named_in_the_config_are_left_alone():
    ignored = ["lm_head", "re:.*self_attn.*", "model.layers.0.mlp.down_proj", "model.layers.1.*"]
    group = {
        "targets": ["Linear"],
        "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True},
    }
    model = _quantised(
        "llama-3.1-8b",
        {"quant_method": "compressed-tensors", "ignore": ignored, "config_groups": {"group_0": group}},
    )
    weights, parameters = weight_bytes(model), count_parameters(model)
    assert weights.attention == 2 * parameters.attention
    one_matrix = 4096 * 14336
    scales = 30 * 2 * (2 * 14336 + 4096) + 2 * 2 * 14336
    assert weights.dense_ffn == parameters.dense_ffn + 4 * one_matrix + scales


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"bits": 4}, "quant_method"),
        ({**AWQ, "bits": 3}, "bits"),
        ({**AWQ, "group_size": 0}, "group_size"),
        ({**AWQ, "surprise": 1}, "surprise"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8", "ignore": ["lm_head"]}, "quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": []}, "lm_head"),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.0.mlp.experts.7"]}, "single experts"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24", "config_groups": {}}, "format"),
        (_compressed(surprise=1), "surprise"),
        (_compressed(scale_dtype="torch.float32"), "scale_dtype"),
    ],
)
def test_a_quantization_that_is_not_understood_is_refused_unless_a_dtype_is_given(quantization, named):
    model = _quantised("llama-3.1-8b", quantization)
    with pytest.raises(InputError, match=named):
        weight_bytes(model)
    assert weight_bytes(model, "bf16").total == 2 * count_parameters(model).total


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_components_add_up_and_tensor_parallel_ranks_hold_no_less_than_a_share(data, small_configs):
    model = parse_config(data.draw(small_configs()), "small")
    whole = weight_bytes(model)
    assert whole.total == sum(getattr(whole, part) for part in COMPONENTS)
    for tp in range(1, max(layer.heads for layer in model.layers) + 1):
        stateless = all(layer.state is None for layer in model.layers)
        try:
            rank = weight_bytes(model, tp=tp)
        except InputError:
            assert not stateless or any(layer.heads % tp for layer in model.layers)
            continue
        assert whole.total <= tp * rank.total <= tp * whole.total


def test_a_rank_of_a_divisible_model_holds_its_share_and_all_norms():
    model = read_config("llama-3.1-70b")
    whole, rank = weight_bytes(model), weight_bytes(model, tp=8)
    assert rank.norms == whole.norms
    assert 8 * (rank.total - rank.norms) == whole.total - whole.norms
    with pytest.raises(InputError, match="tp 5"):
        weight_bytes(model, tp=5)
