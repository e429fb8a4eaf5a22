"""The calculator without a browser: the same answer as the command, refusals in one sentence, every knob counts."""

import argparse
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from matplotlib import pyplot as plt

from helpers.accounts import InputError, device_names, kv_bytes, model_names, model_registry, read_config, state_bytes
from helpers.commands import account
from helpers.lab import calculator, widgets
from helpers.lab.calculator import PASTED, Question, calculate, curve_figure, to_text

SAME = (
    Question("llama-3.1-8b"),
    Question("deepseek-v3", context=32_768, tp=8, gpu="H200 SXM", engine="vllm"),
    Question("gemma-3-27b", context=131_072, kv_dtype="q8_0", utilisation=0.75),
    Question("qwen3-next-80b-a3b", tp=2, gpu="B200 SXM", kv_dtype="fp8", engine="vllm"),
    Question("llama-3.1-70b", tp=2, gpu="L4"),
    Question("phi-4", gpu="H20", context=1024),
)


def command(question, config):
    """The JSON object of ``account`` for the same question."""
    parser = argparse.ArgumentParser()
    account.add_arguments(parser)
    options = {
        "--context": question.context,
        "--kv-dtype": question.kv_dtype,
        "--tp": question.tp,
        "--gpu": question.gpu,
        "--utilisation": question.utilisation,
        "--engine": question.engine,
    }
    words = [str(word) for option in options.items() for word in option]
    return account.run(parser.parse_args([config, *words]))


def assert_same(answer, said):
    for name in ("weight_bytes", "kv_bytes_per_token", "kv_bytes_per_request", "state_bytes_per_request"):
        assert getattr(answer, name) == said[name], name
    if answer.capacity is None:
        assert said["max_concurrency"] is None
        return
    assert answer.capacity.max_concurrency == said["max_concurrency"]
    assert [{"name": name, "bytes": size} for name, size in answer.capacity.terms] == said["capacity"]["terms"]
    assert answer.capacity.pool_bytes == said["capacity"]["pool_bytes"]


@pytest.mark.parametrize("question", SAME, ids=lambda question: question.model)
def test_the_answer_is_that_of_the_account_command(question):
    assert_same(calculate(question), command(question, question.model))


def test_a_pasted_config_gives_what_the_command_gives_for_the_file(tmp_path):
    text = json.dumps(model_registry()["qwen3-32b"]["config"])
    (tmp_path / "config.json").write_text(text)
    question = Question(PASTED, pasted=text, tp=2)
    assert_same(calculate(question), command(question, str(tmp_path)))


@given(
    model=st.sampled_from(model_names()),
    context=st.integers(1, 300_000),
    kv_dtype=st.sampled_from(calculator.KV_DTYPES),
    tp=st.sampled_from((1, 2, 4, 8, 16)),
    gpu=st.sampled_from(device_names()),
    utilisation=st.sampled_from((0.5, 0.9, 1.0)),
    engine=st.sampled_from(calculator.ENGINES),
)
@settings(max_examples=60, deadline=None)
def test_any_setting_is_answered_with_a_table_that_adds_up_or_refused(**choice):
    try:
        answer = calculate(Question(**choice))
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        return
    text = to_text(answer)
    assert "GB (" in text or "MB (" in text
    if answer.capacity is not None:
        assert sum(size for _, size in answer.capacity.terms) == answer.capacity.pool_bytes
        fitting = answer.capacity.max_concurrency * answer.capacity.bytes_per_request
        assert fitting <= max(answer.capacity.pool_bytes, 0)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question(PASTED), "no config.json is pasted yet"),
        (Question(PASTED, pasted="{"), "is not valid JSON"),
        (Question(PASTED, pasted='{"model_type": "llama"}'), "key 'num_attention_heads' is missing"),
        (Question(PASTED, pasted='{"model_type": "nonesuch"}'), "model_type 'nonesuch' is not supported"),
        (Question("no-such-model"), "no-such-model"),
        (Question("llama-3.1-8b", kv_dtype="q8_0", engine="vllm"), "not one vLLM stores"),
        (Question("llama-3.1-8b", tp=3), "tp"),
        (Question("llama-3.1-8b", gpu="H100"), "did you mean"),
        (Question("llama-3.1-8b", utilisation=1.5), "utilisation"),
        (Question("llama-3.1-8b", context=0), "context"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_sentence(question, said):
    with pytest.raises(InputError, match=said) as refusal:
        calculate(question)
    assert "\n" not in str(refusal.value)


def test_the_table_names_every_term_and_both_units():
    text = to_text(calculate(Question("deepseek-v3", tp=8, gpu="H200 SXM", engine="vllm")))
    for term in (
        "visible memory",
        "− not granted to the engine",
        "− weights",
        "− rotary table",
        "= left for the cache",
    ):
        assert term in text
    assert "each of the 8 ranks holds" in text
    assert "575.67 MB (549.00 MiB)" in text
    assert "at most 86" in text
    assert "an upper bound" in text


def test_weights_that_do_not_fit_and_cards_without_a_figure_are_said_so():
    assert "at most 0; the weights do not fit" in to_text(calculate(Question("llama-3.1-70b", gpu="L4")))
    text = to_text(calculate(Question("llama-3.1-8b", gpu="H20")))
    assert "no visible-memory figure is known for H20" in text
    assert "requests at once" not in text


def test_the_state_of_fixed_size_is_a_term_of_its_own():
    assert "state of fixed size" in to_text(calculate(Question("qwen3-next-80b-a3b")))
    assert "state of fixed size" not in to_text(calculate(Question("llama-3.1-8b")))


def test_the_curve_is_the_cache_and_the_state_of_each_model():
    fig, alt = curve_figure(calculate(Question("qwen3-next-80b-a3b", kv_dtype="fp8")))
    labels = [line.get_label() for line in fig.axes[0].get_lines()]
    assert labels[0] == "qwen3-next-80b-a3b (chosen)"
    assert set(labels[1:]) == set(calculator.COMPARED) - {"qwen3-next-80b-a3b"}
    model = read_config("qwen3-next-80b-a3b")
    drawn = fig.axes[0].get_lines()[0].get_ydata()
    expected = [(kv_bytes(model, n, "fp8") + state_bytes(model)) / 1e9 for n in calculator.CONTEXTS]
    assert list(drawn) == pytest.approx(expected)
    assert all(name in alt for name in calculator.COMPARED)
    plt.close(fig)


def test_the_hidden_size_formula_is_right_for_multi_head_attention_and_71_times_too_high_for_falcon():
    llama, falcon = read_config("llama-2-7b"), read_config("falcon-7b")
    assert calculator.hidden_size_bytes(llama, 4096) == kv_bytes(llama, 4096)
    assert calculator.hidden_size_bytes(falcon, 4096) == 71 * kv_bytes(falcon, 4096)


def test_every_knob_of_the_widget_changes_the_words_that_it_shows():
    shown = widgets.show_calculator("llama-3.1-70b")
    seen = [shown.text]
    for knob, value in (
        (shown.tp, 4),
        (shown.context, 32_768),
        (shown.kv_dtype, "fp8"),
        (shown.gpu, "H200 SXM"),
        (shown.utilisation, 0.75),
        (shown.engine, "vllm"),
        (shown.model, "llama-3.1-8b"),
    ):
        knob.value = value
        seen.append(shown.text)
    assert len(set(seen)) == len(seen)
    question = Question("llama-3.1-8b", 32_768, "fp8", 4, "H200 SXM", 0.75, "vllm")
    assert shown.question == question
    assert shown.text == to_text(calculate(question)) + "\n"


def test_a_pasted_text_is_taken_up_at_once_and_a_wrong_one_shows_its_refusal_and_no_number():
    shown = widgets.show_calculator()
    shown.pasted.value = json.dumps(model_registry()["gemma-3-27b"]["config"])
    assert shown.model.value == PASTED
    assert "the pasted config, KV cache in bf16" in shown.text
    shown.pasted.value = '{"model_type": "llama", "hidden_size": "wide"}'
    assert shown.text.startswith("refused: ")
    assert len(shown.text.splitlines()) == 1
    shown.pasted.value = json.dumps(model_registry()["qwen3-8b"]["config"])
    assert "1.21 GB (1.12 GiB)" in shown.text


def test_a_stored_notebook_says_that_the_cell_must_be_run():
    shown = widgets.show_calculator()
    stored = shown._repr_mimebundle_()["text/plain"]
    assert "run this cell first" in stored


@given(text=st.text(max_size=300))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_pasted_text_is_answered_or_refused(text):
    try:
        to_text(calculate(Question(PASTED, pasted=text)))
    except InputError as error:
        assert len(str(error).splitlines()) == 1
