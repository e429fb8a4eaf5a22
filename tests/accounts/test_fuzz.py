"""Fuzzed configs: the answer of `transformers`, or an InputError; never another exception, never another number."""

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    InputError,
    count_parameters,
    decode_flops,
    kv_bytes,
    model_names,
    model_registry,
    parse_config,
    prefill_flops,
    read_config,
    state_bytes,
    weight_bytes,
)
from helpers.accounts.architectures import WRAPPERS

NONSENSE = st.one_of(
    st.sampled_from([None, 0, -1, 1, 2, 3, 7, True, False, "", "4", "silu", 0.5, 4.0, 10**6, 10**30, [], {}, [None]]),
    st.floats(),
    st.text(max_size=3),
    st.recursive(
        st.none() | st.integers(),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    ),
)


def _accounts(model):
    counts = count_parameters(model)
    numbers = [counts.total, counts.active, decode_flops(model, 9).total, prefill_flops(model, 9).total]
    # A model may keep a state alone and no cache per token.
    numbers += [kv_bytes(model, 9) + state_bytes(model) + 1, weight_bytes(model, "bf16").total]
    return numbers


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_small_config_is_refused_or_agrees_with_transformers(data, small_configs, build):
    config = data.draw(small_configs())
    for _ in range(data.draw(st.integers(1, 2))):
        key = data.draw(st.sampled_from(sorted(set(config) - {"pad_token_id"})))
        if data.draw(st.booleans()):
            config[key] = data.draw(NONSENSE)
        elif key in config and len(config) > 1:
            del config[key]
    try:
        model = parse_config(config, "fuzzed")
    except InputError as error:
        assert "\n" not in str(error)
        return
    if len(model.layers) > 50 or max(model.hidden_size, model.vocab_size) > 10**5:
        return
    assert min(_accounts(model)) > 0
    try:
        reference = build(config)
    except Exception as error:
        event(f"transformers refuses what we read: {type(error).__name__}")
        return
    assert count_parameters(model).total == sum(p.numel() for p in reference.parameters())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(model_names()), data=st.data())
def test_a_mutated_real_config_is_refused_or_gives_positive_numbers(name, data):
    config = dict(model_registry()[name]["config"])
    key = data.draw(st.sampled_from([*sorted(config), "text_config", "quantization_config", "surprise"]))
    config[key] = data.draw(NONSENSE)
    try:
        model = parse_config(config, "fuzzed")
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert min(_accounts(model)) > 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), wrapper=st.sampled_from(sorted(WRAPPERS)))
def test_a_mutated_wrapped_config_is_refused_or_agrees_with_what_it_wraps(data, wrapper, small_configs):
    text = data.draw(small_configs())
    outer = {"model_type": wrapper, "text_config": text}
    for key in data.draw(
        st.lists(st.sampled_from([*sorted(WRAPPERS[wrapper]), "text_config", "surprise"]), max_size=2)
    ):
        outer[key] = data.draw(NONSENSE | st.just(text))
    try:
        model = parse_config(outer, "fuzzed")
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert model.layers == parse_config(outer["text_config"], "fuzzed").layers
    assert min(_accounts(model)) > 0


@settings(max_examples=60, deadline=None)
@given(
    quantization=st.dictionaries(st.text(max_size=8), NONSENSE, max_size=3),
    method=st.sampled_from(["fp8", "awq", "gptq", "mxfp4", "modelopt", "compressed-tensors", "fbgemm_fp8"]),
    data=st.data(),
)
def test_a_fuzzed_quantization_is_refused_or_weighs_something(quantization, method, data):
    keys = [
        "bits",
        "group_size",
        "zero_point",
        "ignore",
        "modules_to_not_convert",
        "weight_block_size",
        "quant_algo",
        "config_groups",
    ]
    for key in data.draw(st.lists(st.sampled_from(keys), max_size=4)):
        quantization[key] = data.draw(NONSENSE | st.sampled_from([4, 8, 128, -1, "FP8", [1, 1], ["lm_head"], ["re:("]]))
    config = {
        **model_registry()["smollm2-135m"]["config"],
        "quantization_config": {**quantization, "quant_method": method},
    }
    try:
        total = weight_bytes(parse_config(config, "fuzzed")).total
    except InputError as error:
        assert "\n" not in str(error)
        return
    assert total > 0


@given(
    config=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_anything_that_is_no_config_is_refused(config):
    with pytest.raises(InputError):
        parse_config(config, "nonsense")


@given(source=st.text(max_size=40) | st.none() | st.integers() | st.lists(st.text()))
def test_any_other_source_is_refused(source, tmp_path_factory):
    try:
        read_config(source)
    except InputError:
        return
    assert str(source).lower() in model_names()
