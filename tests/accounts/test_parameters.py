"""Parameters against two oracles: counted totals of real configs, and `transformers` modules on the meta device."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    COMPONENTS,
    InputError,
    count_parameters,
    expert_counts,
    model_names,
    model_registry,
    parse_config,
    read_config,
)
from helpers.accounts.architectures import ARCHITECTURES

# That file takes num_experts_per_tok for the experts of a token; Gemma 4 calls them top_k_experts, so its active count
# has none at all. The component oracle below covers the total; what a token runs is checked against the vendor's "A4B".
NO_ACTIVE_EXPERTS_COUNTED = {"google--gemma-4-26B-A4B"}


def test_every_config_of_the_ground_truth_is_reproduced_to_the_last_parameter(facts, shared):
    counted = facts("parameter-counts.json")
    assert len(counted) >= 50
    for name, row in counted.items():
        parameters = count_parameters(read_config(shared / "facts" / "configs" / f"{name}.json"))
        got = {
            "total": parameters.total,
            "active": parameters.active_with_embedding,
            "embed": parameters.embedding,
            "head": parameters.head,
            "routed": parameters.routed_experts,
        }
        if name in NO_ACTIVE_EXPERTS_COUNTED:
            assert got.pop("active") == row["active"] + parameters.active_routed_experts
            assert 3.5e9 < parameters.active_with_embedding < 4.5e9
        assert got == {key: row[key] for key in got}, name


def test_a_model_type_that_is_not_in_the_table_is_refused_by_name():
    config = model_registry()["llama-3.1-8b"]["config"] | {"model_type": "longcat_flash"}
    with pytest.raises(InputError, match="longcat_flash"):
        parse_config(config, "LongCat")


def test_tables_that_are_only_looked_up_are_no_active_parameters():
    config = {
        "model_type": "gemma4_text",
        "hidden_size": 2560,
        "intermediate_size": 10_240,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "global_head_dim": 512,
    }
    parameters = count_parameters(parse_config(config, "per-layer inputs"))
    assert parameters.per_layer_embedding == 262_144 * 2 * 256
    assert parameters.embedding == 262_144 * (2 * 256 + 2560)
    assert parameters.active == parameters.total - parameters.per_layer_embedding


def _one_of_each_type_first():
    """The names of the registry; all but the first of a model_type are slow."""
    seen = set()
    for name in model_names():
        model_type = model_registry()[name]["config"]["model_type"]
        yield pytest.param(name, marks=pytest.mark.slow) if model_type in seen else name
        seen.add(model_type)


@pytest.mark.parametrize("name", list(_one_of_each_type_first()))
def test_a_registry_model_equals_its_transformers_modules_by_component(name, build, components):
    config = model_registry()[name]["config"]
    parameters = count_parameters(parse_config(config, name))
    assert {part: getattr(parameters, part) for part in COMPONENTS} == components(build(config))


@pytest.mark.parametrize("model_type", [name for name in ARCHITECTURES if name != "kimi_k2"])
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_small_config_equals_its_transformers_modules_by_component(
    model_type, data, small_configs, build, components
):
    config = data.draw(small_configs(model_type))
    parameters = count_parameters(parse_config(config, "small"))
    reference = build(config)
    assert {part: getattr(parameters, part) for part in COMPONENTS} == components(reference)


def test_each_fixed_config_equals_its_transformers_modules_by_component(fixed_configs, build, components):
    for name, config in fixed_configs.items():
        parameters = count_parameters(parse_config(config, name))
        assert {part: getattr(parameters, part) for part in COMPONENTS} == components(build(config)), name


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_small_config_slides_in_the_layers_transformers_lets_slide(data, small_configs, build):
    # Of every model_type the cache transformers makes tells the same: test_cache_oracle.
    config = data.draw(
        small_configs("mistral", "phi3", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "gpt_oss")
    )
    reference = build(config)
    whole = getattr(reference.config, "sliding_window", None)
    windows = [getattr(layer.self_attn, "sliding_window", whole) for layer in reference.model.layers]
    assert [layer.attention.window for layer in parse_config(config, "small").layers] == windows


@pytest.mark.parametrize("model_type", [name for name in ARCHITECTURES if name != "kimi_k2"])
def test_defaults_are_those_of_the_transformers_configuration_class(model_type):
    transformers = pytest.importorskip("transformers")
    config_class = transformers.AutoConfig.for_model(model_type).__class__
    for key, value in ARCHITECTURES[model_type].defaults.items():
        if key == "head_dim" and value is None:
            continue  # computed from hidden_size in the modelling code: the parameter oracle covers it
        assert config_class.__dataclass_fields__[key].default == value, key


@pytest.mark.parametrize(
    ("name", "total", "active", "with_embedding"),
    [
        ("deepseek-v3", 671.03, 36.63, 37.55),
        ("gpt-oss-20b", 20.91, 3.61, 4.19),
        ("gpt-oss-120b", 116.83, 5.13, 5.71),
        ("mixtral-8x7b", 46.70, 12.75, 12.88),
        ("qwen3-30b-a3b", 30.53, 3.04, 3.35),
    ],
)
def test_both_conventions_of_active_parameters_give_the_published_billions(name, total, active, with_embedding):
    parameters = count_parameters(read_config(name))
    billions = [round(n / 1e9, 2) for n in (parameters.total, parameters.active, parameters.active_with_embedding)]
    assert billions == [total, active, with_embedding]


def test_a_tied_matrix_counts_once_in_total_and_in_active():
    parameters = count_parameters(read_config("smollm2-135m"))
    assert parameters.head == 0
    assert parameters.active == parameters.active_with_embedding == parameters.total == 134_515_008


def test_claim_c6_a_deepseek_v3_token_runs_522_of_14906_experts():
    experts = expert_counts(read_config("deepseek-v3"))
    assert (experts.moe_layers, experts.routed, experts.shared) == (58, 256 * 58, 58)
    assert (experts.routed, experts.total, experts.per_token) == (14_848, 14_906, 522)
    assert expert_counts(read_config("llama-3.1-8b")).total == 0


def test_active_parameters_grow_with_experts_per_token_and_reach_the_total():
    config = model_registry()["mixtral-8x7b"]["config"]
    counts = [count_parameters(parse_config({**config, "num_experts_per_tok": k}, "m")) for k in range(1, 9)]
    active = [one.active_with_embedding for one in counts]
    assert active == sorted(set(active))
    assert active[-1] == counts[-1].total


def test_one_more_layer_adds_exactly_one_layer():
    config = model_registry()["llama-3.1-8b"]["config"]
    totals = [count_parameters(parse_config({**config, "num_hidden_layers": n}, "m")).total for n in (1, 2, 3)]
    assert totals[2] - totals[1] == totals[1] - totals[0] > 0


REGISTRY_FILES = {
    "llama-2-7b": "Llama-2-7B",
    "llama-2-70b": "Llama-2-70B",
    "llama-3.1-8b": "meta-llama--Meta-Llama-3.1-8B",
    "llama-3.1-70b": "meta-llama--Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama--Meta-Llama-3.1-405B",
    "llama-3.2-3b": "Llama-3.2-3B",
    "qwen2.5-0.5b": "Qwen2.5-0.5B",
    "qwen2.5-7b": "Qwen2.5-7B",
    "qwen3-0.6b": "Qwen--Qwen3-0.6B",
    "qwen3-8b": "Qwen--Qwen3-8B",
    "qwen3-32b": "Qwen--Qwen3-32B",
    "qwen3-30b-a3b": "Qwen--Qwen3-30B-A3B",
    "qwen3-235b-a22b": "Qwen--Qwen3-235B-A22B",
    "mistral-7b-v0.1": "Mistral-7B-v0.1",
    "mixtral-8x7b": "mistralai--Mixtral-8x7B-v0.1",
    "gemma-3-27b": "Gemma-3-27B",
    "phi-4": "Phi-4",
    "gpt-oss-20b": "openai--gpt-oss-20b",
    "gpt-oss-120b": "openai--gpt-oss-120b",
    "deepseek-v2-lite": "DeepSeek-V2-Lite",
    "deepseek-v3": "deepseek-ai--DeepSeek-V3",
}


@pytest.mark.parametrize("name", REGISTRY_FILES)
def test_the_registry_says_what_the_ground_truth_config_says(name, shared, facts):
    ours, truth = read_config(name), read_config(shared / "facts" / "configs" / f"{REGISTRY_FILES[name]}.json")
    shape = ("hidden_size", "vocab_size", "tied_embeddings", "layers", "quantization")
    assert [getattr(ours, key) for key in shape] == [getattr(truth, key) for key in shape]
    if "built_from" not in facts("parameter-counts.json")[REGISTRY_FILES[name]]:
        # A file as published: what only a decoder reads must agree too.
        assert ours.max_position_embeddings == truth.max_position_embeddings
        assert ours.decoder == truth.decoder
