"""Lab 03 against the accounts: the references agree with helpers.accounts, wrong answers of newcomers are told why."""

import copy
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import accounts
from helpers.lab import check, notebook_file
from helpers.lab.execute import run
from helpers.lab.exercises import exercises_of, find, lab03

GROUPED = ("llama-2-7b", "llama-3.1-70b", "qwen3-32b", "qwen3-30b-a3b", "falcon-7b", "smollm2-135m", "phi-4")
H100 = accounts.device("H100 SXM")


@pytest.mark.parametrize("name", GROUPED)
def test_the_references_for_grouped_attention_equal_the_accounts(name):
    model = accounts.read_config(name)
    a = model.layers[0].attention
    shape = (len(model.layers), model.hidden_size, a.heads, a.kv_heads, a.head_dim)
    for bits, dtype in ((32, "fp32"), (16, "bf16"), (8, "fp8"), (4, "int4")):
        assert lab03.request_bytes(*shape, 5000, bits) == accounts.kv_bytes(model, 5000, dtype)
    for tp in (1, 2, 4, 8):
        if a.heads % tp == 0:
            one = lab03.rank_bytes_per_token(len(model.layers), a.kv_heads, a.head_dim, tp)
            assert one == accounts.kv_bytes_per_token(model, tp=tp)


@pytest.mark.parametrize("name", ["deepseek-v2-lite", "deepseek-v3"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_reference_for_latent_attention_equals_the_accounts_on_every_rank(name, tp):
    model = accounts.read_config(name)
    a = model.layers[0].attention
    shape = (len(model.layers), a.heads, a.kv_lora_rank, a.qk_rope_head_dim)
    assert lab03.latent_rank_bytes(*shape, tp, 8192) == accounts.kv_bytes(model, 8192, tp=tp)


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 1024, 1025, 100_000])
@pytest.mark.parametrize("name", ["gemma-3-27b", "gpt-oss-20b"])
def test_the_reference_for_windows_equals_the_accounts_at_every_length(name, tokens):
    model = accounts.read_config(name)
    windows = [layer.attention.window for layer in model.layers]
    kept = [window for window in windows if window]
    a = model.layers[0].attention
    shape = (len(windows) - len(kept), len(kept), kept[0], 4 * a.kv_heads * a.head_dim)
    assert lab03.mixed_bytes(*shape, tokens) == accounts.kv_bytes(model, tokens)


@pytest.mark.parametrize("tokens", [1, 16, 100, 8192])
@pytest.mark.parametrize("block", [16, 64])
def test_the_reference_for_blocks_equals_vllms_layout(tokens, block):
    model = accounts.read_config("llama-3.1-8b")
    settings = accounts.VllmSettings(block_size=block)
    capacity = accounts.max_concurrency(model, tokens, H100, engine="vllm", vllm=settings)
    per_token = accounts.kv_bytes_per_token(model)
    assert lab03.requests_at_once(capacity.pool_bytes, per_token, tokens, block) == capacity.max_concurrency


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "deepseek-v2-lite"])
@pytest.mark.parametrize("users", [1, 60, 250, 2000])
def test_the_reference_for_cards_equals_a_search_through_the_accounts(name, users):
    model = accounts.read_config(name)
    kv_heads = getattr(model.layers[0].attention, "kv_heads", 1)
    head_bytes = accounts.kv_bytes_per_token(model) // kv_heads
    weights = accounts.weight_bytes(model).total / 1e9
    visible = H100.visible_memory_bytes / 2**30
    fits = (
        tp
        for tp in (1, 2, 4, 8, 16)
        if accounts.max_concurrency(model, 8192, H100, tp=tp, utilisation=0.9).max_concurrency >= users
    )
    assert lab03.cards_for(users, 8192, weights, kv_heads, head_bytes, visible, 0.9) == next(fits, 0)


def test_every_number_of_the_bug_hunt_fits_one_word_only():
    for config, tokens, printed in find("3.6").all_cases():
        values = list(lab03.variants(config, tokens).values())
        assert values.count(printed) == 1
    assert {find("3.6").reference(*case) for case in find("3.6").cases} == set(lab03.FAULTS)


def test_the_configs_of_the_bug_hunt_are_those_of_the_registry():
    for config in (lab03.GEMMA_3_27B, lab03.PHI_4, lab03.GPT_OSS_20B):
        model = accounts.read_config(config["name"].lower())
        windows = [layer.attention.window for layer in model.layers if layer.attention.window]
        a = model.layers[0].attention
        assert (len(model.layers), model.hidden_size, a.heads, a.kv_heads, a.head_dim) == tuple(
            config[key] for key in ("layers", "hidden", "heads", "kv_heads", "head_dim")
        )
        assert (len(windows), windows[0] if windows else 0) == (config["window_layers"], config["window"])


def test_the_configs_of_the_last_exercise_are_those_of_the_registry_and_give_its_bytes():
    for config in lab03.OWN_CONFIGS:
        name = config["name"].lower()
        real = accounts.model_registry()[name]["config"]
        same = {key: real.get(key) for key in config if key != "name"}
        assert same == {key: value for key, value in config.items() if key != "name"}
        assert lab03.bytes_at_8k(real) == accounts.kv_bytes(accounts.read_config(name), 8192)


@given(
    model=st.sampled_from(((70_553_706_496, 80, 8, 128), (8_030_261_248, 32, 8, 128), (30_532_122_624, 48, 4, 128))),
    tp=st.sampled_from((1, 2, 4, 8)),
    dtype=st.sampled_from(tuple(lab03.NUMBER_BYTES)),
    pool_gib=st.floats(4, 100),
)
def test_ranks_and_dtype_are_found_again_from_what_a_server_prints(model, tp, dtype, pool_gib):
    parameters, layers, kv_heads, head_dim = model
    weights_gib = round(2 * parameters / tp / 2**30, 2)
    per_token = 2 * layers * math.ceil(kv_heads / tp) * head_dim * lab03.NUMBER_BYTES[dtype]
    tokens = int(round(pool_gib, 2) * 2**30) // per_token // 16 * 16
    asked = (parameters, weights_gib, round(pool_gib, 2), tokens, layers, kv_heads, head_dim)
    assert lab03.ranks_and_dtype(*asked) == (tp, dtype)


def test_the_log_lines_of_public_reports_are_told_right():
    # vllm-project/vllm#10517 (Llama-3.1-8B, one RTX 3090)
    assert lab03.ranks_and_dtype(8_030_261_248, 14.9888, 3.81, 1952 * 16, 32, 8, 128) == (1, "bf16")


def _fault_by_ratio(config, tokens, printed):
    full = config["layers"] - config["window_layers"]
    held = full * tokens + config["window_layers"] * min(tokens, config["window"])
    right = 4 * config["kv_heads"] * config["head_dim"] * held
    ratios = {
        Fraction(1): "right",
        Fraction(1, 2): "K or V missing",
        Fraction(8): "bits",
        Fraction(config["heads"], config["kv_heads"]): "query heads",
        Fraction(config["hidden"] // config["heads"], config["head_dim"]): "hidden / heads",
    }
    return ratios.get(Fraction(printed, right), "window ignored")


def _cards_by_list(users, tokens, weight_gb, kv_heads, head_bytes, visible_gib, usable):
    groups = [1, 2, 4, 8, 16]
    each = [weight_gb / g * 10**9 + users * tokens * head_bytes * -(-kv_heads // g) for g in groups]
    room = visible_gib * 1024**3 * usable
    return next((g for g, size in zip(groups, each, strict=True) if size <= room), 0)


RIGHT_ANOTHER_WAY = (
    ("3.1", lambda n, hidden, h, k, d, t, bits: n * t * k * d * bits // 4),
    ("3.2", lambda n, k, d, tp: 4 * n * -(-k // tp) * d),
    ("3.2", lambda n, k, d, tp: 2 * 2 * n * d * ((k + tp - 1) // tp)),
    ("3.3", lambda n, h, r, p, tp, t: float(t * n * (2 * r + 2 * p))),
    ("3.4", lambda f, w, window, b, t: sum(b * min(t, x) for x in [t] * f + [window] * w)),
    ("3.5", lambda pool, b, t, block: int(pool / (block * b)) // -(-t // block)),
    ("3.5", lambda pool, b, t, block: math.floor(pool / (math.ceil(t / block) * block * b))),
    ("3.6", _fault_by_ratio),
    ("3.8", _cards_by_list),
)


@pytest.mark.parametrize(("exercise_id", "answer"), RIGHT_ANOTHER_WAY)
def test_a_right_answer_by_another_formula_is_accepted(exercise_id, answer):
    result = check.evaluate(find(exercise_id), answer)
    assert result.state == check.CORRECT, result.text


def _first_key_only(config):
    return 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * 8192


def _cards_by_hand(
    users, tokens, weight_gb, kv_heads, head_bytes, visible_gib, usable, heads=None, of_the_rest=False, groups=None
):
    heads = heads or (lambda k, g: -(-k // g))
    for g in groups or (1, 2, 4, 8, 16):
        visible, weights = visible_gib * 1024**3, weight_gb * 1e9 / g
        room = (visible - weights) * usable if of_the_rest else visible * usable - weights
        if users * tokens * head_bytes * heads(kv_heads, g) <= room:
            return g
    return 0


PLANTED = (
    ("3.1", lambda n, hidden, h, k, d, t, bits: 2 * n * hidden * t * bits / 8, "you used the hidden size"),
    ("3.1", lambda n, hidden, h, k, d, t, bits: 2 * n * h * d * t * bits / 8, "you counted the query heads"),
    ("3.1", lambda n, hidden, h, k, d, t, bits: 4 * n * k * d * t * bits / 8, "2 times the expected"),
    ("3.2", lambda n, k, d, tp: 4 * n * d * k / tp, "cannot hold a part of a head"),
    ("3.2", lambda n, k, d, tp: 4 * n * d * round(k / tp), "expected"),
    ("3.3", lambda n, h, r, p, tp, t: 2 * n * (r + p) * t / tp, "every rank holds all of it"),
    ("3.4", lambda f, w, window, b, t: b * (f + w) * t, "you kept every token in every layer"),
    ("3.5", lambda pool, b, t, block: pool // (b * t), "a request takes whole blocks"),
    ("3.5", lambda pool, b, t, block: round(pool / (block * b * math.ceil(t / block))), "expected"),
    ("3.6", lambda config, tokens, printed: "right", "you believe every calculator"),
    ("3.7", lambda *a: lab03.ranks_and_dtype(*a)[0], "expected a pair (ranks, dtype)"),
    ("3.7", lambda p, w, pool, t, n, k, d: (round(2 * p / (w * 1e9)), "bf16"), "expected"),
    ("3.8", lambda *a: 16, "expected"),
    ("3.8", lambda u, t, w, k, b, gib, s: lab03.cards_for(u, t, w, k, b, gib, 1.0), "the share `usable`"),
    ("3.6", lambda *a: lab03._windows_always_full(*a) or "right", "expected 'query heads'"),
    ("3.7", lambda *a: (lab03.ranks_and_dtype(*a)[0], "bf16"), "the cache need not be"),
    ("3.8", lambda *a: _cards_by_hand(*a, heads=lambda k, g: max(1, k / g)), "a head is held whole"),
    ("3.8", lambda *a: _cards_by_hand(*a, heads=lambda k, g: max(1, k // g)), "the fullest rank decides"),
    ("3.8", lambda *a: _cards_by_hand(*a, of_the_rest=True), "not of what they leave"),
    ("3.8", lambda *a: _cards_by_hand(*a, groups=range(1, 17)), "1, 2, 4, 8 or 16"),
    ("3.9", lambda config: lab03._at_8k_with(windows="always full")(config), "does not fill a larger window"),
    ("3.9", _first_key_only, "This key may be absent: use .get."),
    ("3.9", lambda config: lab03.bytes_at_8k(config) / 1e9, "1e-09 times the expected"),
)


@pytest.mark.parametrize(("exercise_id", "wrong", "said"), PLANTED)
def test_a_wrong_answer_of_a_newcomer_is_told_what_is_wrong(exercise_id, wrong, said):
    result = check.evaluate(find(exercise_id), wrong)
    assert result.state == check.NOT_YET
    assert said in result.text


def test_the_lab_names_its_minutes():
    minutes = sum(exercise.minutes for exercise in exercises_of("03"))
    assert 60 <= minutes <= 75


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["solutions", "labs"])
def test_every_cell_can_be_run_twice_and_says_the_same(folder, root):
    twice = notebook_file.read(root / folder / "03_kv_cache_size.ipynb")
    again = [copy.deepcopy(cell) for cell in twice.cells for _ in range(2)]
    for number, cell in enumerate(again):
        cell.id = f"{cell.id}-{number % 2 + 1}"
    twice.cells = again
    cells = run(twice, f"{folder}/03 twice", root / folder, progress=False).cells
    assert [text_of(cell) for cell in cells[1::2]] == [text_of(cell) for cell in cells[::2]]


def text_of(cell):
    return "".join(output.text for output in cell.get("outputs", []) if output.output_type == "stream")
