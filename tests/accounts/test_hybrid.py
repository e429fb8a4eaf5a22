"""Models with a state of fixed size: parameters and state against `transformers` modules and published sizes."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    COMPONENTS,
    InputError,
    count_parameters,
    kv_bytes,
    kv_bytes_per_token,
    parse_config,
    read_config,
    state_bytes,
    weight_bytes,
)

FILES = {
    "Jamba-v0.1": "jamba",
    "Nemotron-H-56B": "nemotron_h",
    "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron_h",
    "Qwen3-Next-80B-A3B": "qwen3_next",
    "Qwen--Qwen3.5-27B": "qwen3_5",
    "Qwen--Qwen3.5-35B-A3B": "qwen3_5_moe",
}

# The shape of Qwen3.5-9B (HF config.json of Qwen/Qwen3.5-9B; the defaults of transformers' Qwen3_5TextConfig).
QWEN35_9B = {
    "model_type": "qwen3_5_text",
    "vocab_size": 248_320,
    "hidden_size": 4096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "max_position_embeddings": 262_144,
    "dtype": "bfloat16",
}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_small_hybrid_equals_its_transformers_modules_by_component(
    data, small_configs, hybrid_types, build, components
):
    config = data.draw(small_configs(*hybrid_types))
    parameters = count_parameters(parse_config(config, "small"))
    assert {part: getattr(parameters, part) for part in COMPONENTS} == components(build(config))


@pytest.mark.parametrize("name", FILES)
def test_real_hybrids_have_the_counted_parameters_and_growth_per_token(name, facts, shared):
    model, row = read_config(shared / "facts" / "configs" / f"{name}.json"), facts("parameter-counts.json")[name]
    parameters = count_parameters(model)
    got = (parameters.total, parameters.active_with_embedding, parameters.routed_experts)
    assert got == (row["total"], row["active"], row["routed"])
    assert model.model_type == FILES[name]
    stateful = sum(layer.state is not None for layer in model.layers)
    if "kv" in row:
        assert kv_bytes_per_token(model, 10**6) == row["kv"]["bytes_per_token_bf16"]
        assert stateful == row["kv"]["state_layers"]
        assert sum(layer.attention is not None for layer in model.layers) == row["kv"]["full_layers"]


@pytest.mark.parametrize(
    ("name", "layer_bytes"),
    [("Jamba-v0.1", 589_824), ("Nemotron-H-56B", 16_941_056), ("Qwen3-Next-80B-A3B", 2_162_688)],
)
def test_the_state_of_a_layer_is_what_transformers_was_counted_to_hold(name, layer_bytes, shared):
    model = read_config(shared / "facts" / "configs" / f"{name}.json")
    stateful = sum(layer.state is not None for layer in model.layers)
    assert state_bytes(model, engine="hf") == stateful * layer_bytes


def test_the_ideal_state_of_qwen3_next_is_that_of_the_ground_truth(facts, shared):
    truth = facts("parameter-counts.json")["Qwen3-Next-80B-A3B"]["kv"]["state_bytes_per_seq"]
    assert state_bytes(read_config(shared / "facts" / "configs" / "Qwen3-Next-80B-A3B.json")) == truth == 77_266_944


def test_llama_cpp_logs_50_25_mib_of_state_for_qwen3_5_9b():
    model = parse_config(QWEN35_9B, "Qwen3.5-9B")
    assert state_bytes(model, engine="llamacpp") == 24 * (32 * 128 * 128 * 4 + 8192 * 3 * 4) == 50.25 * 2**20


def test_engines_differ_in_the_window_by_one_input_and_in_the_format_of_the_state():
    model = parse_config(QWEN35_9B, "Qwen3.5-9B")
    recurrent, channels = 24 * 32 * 128 * 128, 24 * 8192
    assert state_bytes(model) == 4 * recurrent + 2 * 3 * channels
    assert state_bytes(model, engine="hf") == 4 * recurrent + 2 * 4 * channels
    # Without a format in the config vLLM keeps the state in the model's own.
    assert state_bytes(model, engine="vllm") == 2 * recurrent + 2 * 3 * channels
    stated = parse_config({**QWEN35_9B, "mamba_ssm_dtype": "float32"}, "Qwen3.5-9B")
    assert state_bytes(stated, engine="vllm") == state_bytes(stated) == state_bytes(model)
    assert state_bytes(model, dtype="fp32", recurrent_dtype="bf16") == 2 * recurrent + 4 * 3 * channels
    with pytest.raises(InputError, match="'sglang'"):
        state_bytes(model, engine="sglang")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), tp=st.integers(1, 4))
def test_ranks_divide_the_state_or_refuse_and_together_hold_at_least_the_whole(data, small_configs, hybrid_types, tp):
    model = parse_config(data.draw(small_configs(*hybrid_types)), "small")
    try:
        rank = state_bytes(model, tp=tp)
    except InputError as error:
        assert f"tp {tp} does not divide" in str(error)
        return
    assert state_bytes(model) <= tp * rank
    recurrent = [layer.state for layer in model.layers if layer.state is not None]
    assert all(tp * one.shard(tp).recurrent_elements == one.recurrent_elements for one in recurrent)
    assert (
        weight_bytes(model, "bf16", tp).total
        <= weight_bytes(model, "bf16").total
        <= tp * weight_bytes(model, "bf16", tp).total
    )


def test_mamba_groups_are_divided_or_where_there_is_one_held_by_every_rank(shared):
    model = read_config(shared / "facts" / "configs" / "Nemotron-H-56B.json")
    mixer = next(layer.state for layer in model.layers if layer.state is not None)
    assert (mixer.groups, mixer.shard(8).groups, mixer.shard(8).heads) == (8, 1, 32)
    alone = replace(mixer, groups=1).shard(8)
    assert (alone.groups, alone.heads) == (1, 32)
    assert 8 * state_bytes(model, tp=8) == state_bytes(model)
    with pytest.raises(InputError, match="tp 16 does not divide the 8 Mamba-2 groups"):
        state_bytes(model, tp=16)


def test_the_state_does_not_depend_on_length_and_attention_layers_alone_grow():
    model = parse_config(QWEN35_9B, "Qwen3.5-9B")
    assert kv_bytes_per_token(model) == 8 * 2 * 4 * 256 * 2
    assert kv_bytes(model, 1000) == 1000 * kv_bytes_per_token(model)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"layer_types": ["linear_attention"] * 31 + ["mamba3"]}, "layer_types"),
        ({"layer_types": ["linear_attention"] * 31}, "layer_types"),
        ({"full_attention_interval": 4, "layer_types": ["full_attention"] * 32}, "full_attention_interval"),
        ({"linear_num_key_heads": 12}, "linear_num_key_heads"),
        ({"attn_output_gate": False}, "attn_output_gate"),
        ({"mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim"),
    ],
)
def test_a_contradiction_is_refused_by_its_key(change, key):
    with pytest.raises(InputError, match=key):
        parse_config({**QWEN35_9B, **change}, "m")


@pytest.mark.parametrize(
    "change",
    [
        {"hybrid_override_pattern": "M*X"},
        {"hybrid_override_pattern": ""},
        {"hybrid_override_pattern": "M*", "layers_block_type": ["mlp", "mlp"]},
        {"hybrid_override_pattern": "M*-", "num_hidden_layers": 4},
        {"hybrid_override_pattern": None},
        {"hybrid_override_pattern": "M", "n_groups": 3},
        {"hybrid_override_pattern": "E", "n_shared_experts": 2},
        {"hybrid_override_pattern": "-", "tie_word_embeddings": True},
    ],
)
def test_a_nemotron_whose_layers_are_not_understood_is_refused(change, shared):
    import json

    text = (shared / "facts" / "configs" / "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json").read_text()
    config = {key: value for key, value in json.loads(text).items() if key != "num_hidden_layers"}
    assert parse_config(config, "m").layers
    key = "num_hidden_layers" if "num_hidden_layers" in change else list(change)[-1]
    with pytest.raises(InputError, match=f"{key}|hybrid_override_pattern"):
        parse_config({**config, **change}, "m")


def test_both_ways_to_name_the_layers_of_a_nemotron_agree(shared):
    import json

    text = (shared / "facts" / "configs" / "nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json").read_text()
    config = json.loads(text)
    names = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = config.pop("hybrid_override_pattern")
    listed = {**config, "layers_block_type": [names[letter] for letter in pattern]}
    both = {**listed, "hybrid_override_pattern": pattern}
    assert parse_config(listed, "m").layers == parse_config(both, "m").layers
    assert len(parse_config(both, "m").layers) == 52


@pytest.mark.parametrize("prefix", ["model.layers", "model.language_model.layers", "language_model.model.layers"])
def test_a_quantised_hybrid_leaves_convolutions_and_the_named_modules_alone(prefix):
    skipped = [f"{prefix}.{i}.linear_attn.in_proj_{gate}" for i in range(32) for gate in "ab"]
    quantization = {
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": ["lm_head", *skipped],
    }
    model = parse_config({**QWEN35_9B, "quantization_config": quantization}, "m")
    mixer = weight_bytes(model).state_mixers
    whole = count_parameters(model).state_mixers
    per_layer_bf16 = 8192 * 4 + 2 * 32 * 4096 + 2 * 32  # convolution, gates a and b, A_log and dt_bias
    matrices = whole - 24 * per_layer_bf16
    assert mixer == matrices + matrices // 128**2 * 4 + 24 * 2 * per_layer_bf16
