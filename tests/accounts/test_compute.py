"""The compute account against torch's own FLOP counter on real small models, and against the article's figures."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import (
    InputError,
    attended_pairs,
    attention_equals_weights_context,
    count_parameters,
    decode_flops,
    model_names,
    model_registry,
    parse_config,
    prefill_flops,
    quadratic_share,
    read_config,
)

# transformers 5 renames the argument of the cache; both names work in the releases supported here.
pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")

NAMES = [
    "llama",
    "llama tied with biases",
    "qwen3_moe",
    "gemma2",
    "gpt_oss",
    "deepseek_v3",
    "falcon",
    "minimax_m2",
    "glm4_moe",
    "llama4_text",
]
# Their caches hold more than keys and values, and must know the config.
INDEXED = ["deepseek_v32", "glm_moe_dsa"]


def _counted(model, tokens, **kwargs):
    """FLOPs torch counts in one forward pass, apart from the rotary table (an outer product over positions)."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        output = model(input_ids=torch.ones(1, tokens, dtype=torch.long), **kwargs)
    by_module = {name: sum(ops.values()) for name, ops in counter.get_flop_counts().items()}
    rotary = sum(flops for name, flops in by_module.items() if name.endswith("rotary_emb"))
    return counter.get_total_flops() - rotary, output


# With one row of logits transformers leaves out the prompt in Gemma 4's last layers, which share keys and values.
ALL_LOGITS = ["llama", "gemma4_text"]


@pytest.mark.parametrize(
    ("name", "logits"),
    [*((name, "last") for name in [*NAMES, *INDEXED, "deepseek_v4"]), *((name, "all") for name in ALL_LOGITS)],
)
def test_a_prefill_has_exactly_the_flops_torch_counts(name, logits, build, fixed_configs):
    model = parse_config(fixed_configs[name], name)
    reference = build(fixed_configs[name], device="cpu")
    counted, _ = _counted(reference, 7, logits_to_keep=1 if logits == "last" else 0)
    assert counted == prefill_flops(model, 7, logits=logits, causal=False).total


@pytest.mark.parametrize("name", NAMES + INDEXED)
def test_a_prefill_after_cached_tokens_has_exactly_the_flops_torch_counts(name, build, fixed_configs):
    from transformers import DynamicCache

    model = parse_config(fixed_configs[name], name)
    reference = build(fixed_configs[name], device="cpu")
    # Without the config the cache keeps all tokens in windowed layers too: their kernel then masks, not skips.
    cache = DynamicCache(config=reference.config) if name in INDEXED else DynamicCache()
    _counted(reference, 5, past_key_values=cache)
    counted, _ = _counted(reference, 3, past_key_values=cache, logits_to_keep=1)
    assert counted == prefill_flops(model, 3, past_tokens=5, causal=False).total


def test_a_decode_step_has_exactly_the_flops_torch_counts(build, fixed_configs):
    from transformers import DynamicCache

    model = parse_config(fixed_configs["llama"], "llama")
    reference = build(fixed_configs["llama"], device="cpu")
    cache = DynamicCache()
    _counted(reference, 8, past_key_values=cache)
    counted, _ = _counted(reference, 1, past_key_values=cache)
    assert counted == decode_flops(model, context=9).total


@given(tokens=st.integers(1, 30), past=st.integers(0, 30), window=st.none() | st.integers(1, 40))
def test_attended_pairs_equal_the_entries_of_a_causal_windowed_mask(tokens, past, window):
    reach = window or math.inf
    entries = sum(1 for query in range(past, past + tokens) for key in range(past + tokens) if 0 <= query - key < reach)
    assert attended_pairs(tokens, past, window) == entries


@given(
    name=st.sampled_from(model_names()), prompt=st.integers(1, 3000), latent=st.sampled_from(["absorbed", "expanded"])
)
def test_a_prefill_is_the_sum_of_its_decode_steps_where_nothing_is_expanded_again(name, prompt, latent):
    model = read_config(name)
    whole = prefill_flops(model, prompt, logits="all", latent=latent)
    first, rest = 1, prompt - 1
    one = prefill_flops(model, first, logits="all", latent=latent)
    assert one.total == decode_flops(model, 1, latent).total
    if rest and latent == "absorbed":
        later = prefill_flops(model, rest, past_tokens=first, logits="all", latent=latent)
        assert (whole.weights, whole.attention) == (one.weights + later.weights, one.attention + later.attention)


def test_every_kind_of_attention_costs_in_a_prefill_what_its_decode_steps_cost(fixed_configs):
    for name, config in fixed_configs.items():
        model = parse_config(config, name)
        steps = [decode_flops(model, context).total for context in range(1, 31)]
        assert prefill_flops(model, 30, logits="all", latent="absorbed").total == sum(steps), name
        later = prefill_flops(model, 19, past_tokens=11, logits="all", latent="absorbed")
        assert later.total == sum(steps[11:]), name


# With chunks a token attends to its own chunk alone, so the first one of the next costs less.
_UNCHUNKED = [name for name in model_names() if name != "llama-4-scout"]


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(_UNCHUNKED), context=st.integers(1, 300_000), more=st.integers(0, 1000))
def test_attention_flops_never_shrink_with_context_and_weights_do_not_change(name, context, more):
    model = read_config(name)
    short, long = decode_flops(model, context), decode_flops(model, context + more)
    assert 0 < short.attention <= long.attention
    assert short.weights == long.weights > 0


def test_claim_c7_flops_per_token_are_twice_the_active_parameters_to_within_a_percent():
    for name in model_names():
        model = read_config(name)
        assert decode_flops(model, 1).weights == pytest.approx(2 * count_parameters(model).active, rel=0.01), name


@pytest.mark.parametrize(
    ("name", "latent", "thousands"),
    [
        ("llama-3.1-8b", "absorbed", 28.6),
        ("llama-3.1-70b", "absorbed", 53.0),
        ("llama-3.1-405b", "absorbed", 97.8),
        ("qwen3-30b-a3b", "absorbed", 7.7),
        ("deepseek-v3", "absorbed", 4.3),
        ("deepseek-v3", "expanded", 14.7),
    ],
)
def test_claim_c7_the_context_at_which_attention_equals_the_weights(name, latent, thousands):
    model = read_config(name)
    context = attention_equals_weights_context(model, latent)
    assert round(context / 1000, 1) == thousands
    at = decode_flops(model, round(context), latent)
    assert at.attention == pytest.approx(at.weights, rel=1e-3)


def test_windows_can_keep_attention_below_the_weights_for_ever():
    assert attention_equals_weights_context(read_config("mistral-7b-v0.1")) == math.inf


@pytest.mark.parametrize("name", ["deepseek-ai--DeepSeek-V3.2", "deepseek-ai--DeepSeek-V4-Flash", "GLM-4.5"])
def test_the_equal_context_is_right_where_an_indexer_picks_tokens(name, shared):
    model = read_config(shared / "facts" / "configs" / f"{name}.json")
    at = decode_flops(model, round(attention_equals_weights_context(model)))
    assert at.attention == pytest.approx(at.weights, rel=1e-3)


@pytest.mark.parametrize("name", ["gemma-3-27b", "gpt-oss-20b"])
def test_the_equal_context_is_right_across_window_edges(name):
    model = read_config(name)
    at = decode_flops(model, round(attention_equals_weights_context(model)))
    assert at.attention == pytest.approx(at.weights, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "tokens", "percent"),
    [
        ("llama-3.1-8b", 8192, 14),
        ("llama-3.1-8b", 32768, 57),
        ("llama-3.1-8b", 131072, 229),
        ("llama-3.1-70b", 8192, 8),
        ("llama-3.1-70b", 131072, 124),
        ("qwen3-30b-a3b", 8192, 53),
        ("qwen3-30b-a3b", 131072, 847),
    ],
)
def test_claim_c22_the_quadratic_share_of_a_prefill(name, tokens, percent):
    assert round(100 * quadratic_share(read_config(name), tokens)) == percent


@pytest.mark.parametrize("bad", [0, -1, 1.5, "8", True, None, 10**13])
def test_token_counts_that_are_no_counts_are_refused(bad):
    model = read_config("smollm2-135m")
    for call in (lambda: decode_flops(model, bad), lambda: prefill_flops(model, bad)):
        with pytest.raises(InputError, match=r"context|prompt_tokens"):
            call()


def test_unknown_modes_are_refused_by_name():
    model = read_config("smollm2-135m")
    with pytest.raises(InputError, match="logits"):
        prefill_flops(model, 1, logits="none")
    with pytest.raises(InputError, match="latent"):
        decode_flops(model, 1, latent="both")


def test_more_layers_cost_more_flops():
    config = model_registry()["qwen3-8b"]["config"]
    deeper = [
        prefill_flops(parse_config({**config, "num_hidden_layers": n, "max_window_layers": n}, "m"), 100).total
        for n in (1, 2, 3)
    ]
    assert deeper[2] - deeper[1] == deeper[1] - deeper[0] > 0
