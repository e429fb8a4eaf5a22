"""Lab 01 against the real models: the references agree with the accounts, the drawing says what its alt text says."""

import copy
import math
import subprocess
import sys

import pytest
from matplotlib import pyplot as plt

from helpers import accounts
from helpers.lab import check, notebook_file
from helpers.lab.drawings import request_timeline
from helpers.lab.execute import run
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


def test_the_check_numbers_of_the_lab_are_those_of_the_accounts():
    p, llama = (accounts.count_parameters(accounts.read_config(n)) for n in ("deepseek-v3", "llama-3.1-70b"))
    small = accounts.count_parameters(accounts.read_config("smollm2-135m"))
    assert find("1.1").cases[2] == (p.total, 8)
    always = p.attention + p.dense_ffn + p.router + p.norms + p.head
    assert find("1.3").cases[0][:2] == (always, p.embedding)
    assert find("1.3").reference(*find("1.3").cases[0]) == (p.active, p.active_with_embedding)
    assert {case[0] for case in find("1.4").cases} == {llama.active, small.active}
    for config in (lab01.LLAMA_8B, lab01.QWEN3_32B, lab01.LLAMA_2_7B, lab01.SMOLLM2_135M):
        real = accounts.model_registry()[config["name"].lower()]["config"]
        assert {key: real.get(key) for key in config if key != "name"} == {
            k: v for k, v in config.items() if k != "name"
        }


def default_128(config, bits):
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads", heads)
    return 2 * config["num_hidden_layers"] * kv_heads * config.get("head_dim", 128) * bits / 8


def bare_key(config, bits):
    return 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * bits / 8


def misspelt_key(config, bits):
    return 2 * config["num_layers"] * bits / 8


def intensity(f, b, peak, bw):
    return f / b, peak * 1e12 / (bw * 1e9)


PLANTED = [
    ("1.8", default_128, "128 is only the usual size"),
    ("1.8", bare_key, "This key may be absent: use .get."),
    ("1.8", misspelt_key, "No case has this key: is it misspelt?"),
    ("1.8", lambda c, bits: lab01.kv_bytes_per_token(c, 8) * (bits // 8), "at 4 bits it takes half a byte"),
    ("1.8", lambda c, bits: lab01.kv_bytes_per_token(c, 8) * (2 if bits == 16 else 1), "compute the bytes from `bits`"),
    ("1.7", lambda f, b, p, w: "compute" if f / (p * 1e12) >= b / (w * 2**30) else "bandwidth", "not in GiB/s"),
    ("1.7", lambda f, b, p, w: "compute" if f / (p * 1e12) > b / (w * 1e9) else "bandwidth", "equal, say compute"),
    ("1.7", lambda *a: "compute" if intensity(*a)[0] > intensity(*a)[1] else "bandwidth", "equal, say compute"),
    ("1.7", lambda f, b, p, w: "compute", "you say compute every time"),
    ("1.7", lambda f, b, p, w: "compute" if p * 1e12 >= w * 1e9 else "bandwidth", "you say compute every time"),
    ("1.7", lambda f, b, p, w: "compute" if p >= w else "bandwidth", "you say bandwidth every time"),
    ("1.7", lambda f, b, p, w: "compute" if f / p >= b / w else "bandwidth", "the units differ"),
    ("1.7", lambda *a: lab01.binding_account(*a).title(), "answer exactly 'bandwidth' or 'compute'"),
    ("1.7", lambda *a: "memory", "returned 'memory': answer exactly 'bandwidth' or 'compute'"),
    (
        "1.5",
        lambda w, k, g, u: int((w + k) * 1e9 / (u * g * 2**30)) + 1,
        "gave 2 cards; expected 1 card: you add a card",
    ),
    ("1.5", lambda w, k, g, u: math.ceil((w + k) / u / g), "you divided GB by GiB"),
    ("1.3", lambda *a: lab01.moe_active(*a)[0], "returned a number; expected a pair (without, with)."),
    (
        "1.3",
        lambda *a: [*lab01.moe_active(*a), 0],
        "returned 3 of them, [36625603584, 37552282624, 0]; expected a pair (without, with).",
    ),
    (
        "1.3",
        lambda *a: lab01.moe_active(*a)[::-1],
        "gave 37,552,282,624 and 36,625,603,584 parameters; expected 36,625",
    ),
    ("1.4", lambda a, n, h, d, c: 2 * a + 4 * n * n * d * c, "expected"),
    ("1.4", lambda a, n, h, d, c: 2 * a + 4 * n * d * c, "all `heads` do it"),
    ("1.4", lambda a, n, h, d, c: 2 * a + 4 * h * d * c, "the attention of one layer"),
]


@pytest.mark.parametrize(("exercise_id", "wrong", "said"), PLANTED)
def test_a_wrong_answer_of_a_newcomer_is_told_what_is_wrong(exercise_id, wrong, said):
    result = check.evaluate(find(exercise_id), wrong)
    assert result.state == check.NOT_YET
    assert said in result.text


CARDS = [
    lambda w, kv, gib, usable: math.ceil((w + kv) * 1e9 / (gib * 2**30 * usable)),
    lambda w, kv, gib, usable: math.ceil((w * 1e9 + kv * 1e9) / (gib * 1024**3 * usable)),
    lambda w, kv, gib, usable: math.ceil((w + kv) * 1e9 / 2**30 / gib / usable),
    lambda w, kv, gib, usable: math.ceil((w + kv) / 1.073741824 / (gib * usable)),
    lambda w, kv, gib, usable: math.ceil((w + kv) / (gib * 1.073741824 * usable)),
    lambda w, kv, gib, usable: math.ceil((w / usable + kv / usable) / (gib * 2**30 / 1e9)),
    lambda w, kv, gib, usable: math.ceil((w * 1e9 / 2**30 + kv * 1e9 / 2**30) / (gib * usable)),
    lambda w, kv, gib, usable: -int(-(w + kv) * 1e9 // (gib * 2**30 * usable)),
]
BINDS = [
    lambda f, b, peak, bw: "compute" if f / b >= peak * 1e12 / (bw * 1e9) else "bandwidth",
    lambda f, b, peak, bw: "compute" if f / b >= 1000 * peak / bw else "bandwidth",
    lambda f, b, peak, bw: "compute" if f / 1e12 / peak >= b / 1e9 / bw else "bandwidth",
    lambda f, b, peak, bw: "compute" if f / peak / 1e12 >= b / bw / 1e9 else "bandwidth",
    lambda f, b, peak, bw: "compute" if f / peak >= 1000 * b / bw else "bandwidth",
    lambda f, b, peak, bw: "compute" if f * bw * 1e9 >= b * peak * 1e12 else "bandwidth",
    lambda f, b, peak, bw: "compute" if f / (peak * 1e12) * 1e3 >= b / (bw * 1e9) * 1e3 else "bandwidth",
    lambda f, b, peak, bw: "bandwidth" if b / (bw * 10**9) > f / (peak * 10**12) else "compute",
]


@pytest.mark.parametrize(("exercise_id", "right"), [*(("1.5", f) for f in CARDS), *(("1.7", f) for f in BINDS)])
def test_every_way_to_write_a_right_formula_passes_the_exactly_full_card_and_the_exact_tie(exercise_id, right):
    assert check.evaluate(find(exercise_id), right).state == check.CORRECT


def test_the_first_cell_needs_neither_matplotlib_nor_torch(root):
    for folder in ("notebooks", "solutions"):
        cells = notebook_file.read(root / folder / "01_two_accounts.ipynb").cells
        first = next(cell.source for cell in cells if cell.cell_type == "code")
        assert first == 'from helpers.lab import notebook\n\nnotebook.start("01")'
    code = first + "\nimport sys\nprint(sorted({'matplotlib', 'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["Notebook 01 is ready.", "[]"]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["notebooks", "solutions", "labs"])
def test_every_cell_can_be_run_twice_and_says_the_same(folder, root):
    twice = notebook_file.read(root / folder / "01_two_accounts.ipynb")
    again = [copy.deepcopy(cell) for cell in twice.cells for _ in range(2)]
    for number, cell in enumerate(again):
        cell.id = f"{cell.id}-{number % 2 + 1}"
    twice.cells = again
    cells = run(twice, f"{folder}/01 twice", root / folder, progress=False).cells
    firsts, seconds = cells[::2], cells[1::2]
    assert [text_of(cell) for cell in seconds] == [text_of(cell) for cell in firsts]


def text_of(cell):
    return "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")
