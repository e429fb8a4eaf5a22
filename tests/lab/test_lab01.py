"""Lab 01 against the real models: the references agree with the accounts, the drawing says what its alt text says."""

import pytest
from matplotlib import pyplot as plt

from helpers import accounts
from helpers.lab.drawings import request_timeline
from helpers.lab.exercises import find, lab01

DENSE = ("llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "smollm2-135m")


def test_the_drawing_marks_both_metrics_and_names_the_three_phases():
    fig = request_timeline()
    ax = fig.axes[0]
    assert {text.get_text() for text in ax.texts} >= {"TTFT", "TPOT"}
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["queue", "prefill", "decode steps"]
    plt.close(fig)


@pytest.mark.parametrize("name", DENSE)
def test_the_references_for_a_dense_model_equal_the_accounts(name):
    model = accounts.read_config(name)
    shape, parameters = model.layers[0].attention, accounts.count_parameters(model)
    layer = lab01.gqa_parameters(model.hidden_size, shape.heads, shape.kv_heads, shape.head_dim)
    assert layer * len(model.layers) == parameters.attention
    config = accounts.model_registry()[name]["config"]
    assert lab01.kv_bytes_per_token(config, 16) == accounts.kv_bytes_per_token(model, 1000)
    flops = lab01.decode_flops(
        parameters.active - parameters.norms, len(model.layers), shape.heads, shape.head_dim, 999
    )
    assert flops == accounts.decode_flops(model, 999).total


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite", "qwen3-30b-a3b", "mixtral-8x7b"])
def test_the_reference_for_active_parameters_equals_both_conventions(name):
    model = accounts.read_config(name)
    parameters, moe = accounts.count_parameters(model), model.layers[-1].feed_forward
    always = parameters.attention + parameters.dense_ffn + parameters.router + parameters.norms + parameters.head
    layers, expert = accounts.expert_counts(model).moe_layers, 3 * model.hidden_size * moe.expert_width
    sizes = (layers, expert, moe.experts, moe.experts_per_token, moe.shared_experts)
    expected = (parameters.active, parameters.active_with_embedding)
    assert lab01.moe_active(always, parameters.embedding, *sizes) == expected


@pytest.mark.parametrize("batch", [1, 64, 512])
def test_the_references_for_floor_and_binding_equal_the_roofline(batch):
    model, card = accounts.read_config("llama-3.1-8b"), accounts.device("H100 SXM")
    floor = accounts.decode_floor(model, 2048, batch, card)
    cache, weights = accounts.kv_bytes_per_token(model, 1), accounts.weights_read_bytes(model, batch)
    milliseconds = lab01.decode_floor_ms(weights, cache, 2048, batch, card.bandwidth_bytes_per_s / 1e9)
    assert milliseconds == pytest.approx(1e3 * floor.memory_s)
    rates = card.peak("bf16") / 1e12, card.bandwidth_bytes_per_s / 1e9
    assert find("1.7").reference(floor.flops, floor.bytes, *rates) == floor.binds
