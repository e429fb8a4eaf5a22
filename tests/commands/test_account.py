"""The `account` command: the keys of the interface, exit codes, and text with both units."""

import json

import pytest

from helpers import cli
from helpers.accounts import count_parameters, kv_bytes, model_registry, read_config, weight_bytes
from helpers.commands import account

KEYS = {
    "model",
    "model_type",
    "total_params",
    "active_params",
    "active_params_with_embedding",
    "weight_bytes",
    "kv_bytes_per_token",
    "kv_bytes_per_request",
    "state_bytes_per_request",
    "flops_per_token",
    "attention_flops_per_token",
}
GPU_KEYS = {"max_concurrency", "prefill_floor_s", "decode_floor_s"}


@pytest.fixture
def command(monkeypatch, capsys):
    """Run ``account`` with arguments; gives exit code, stdout, stderr."""
    monkeypatch.setattr(cli, "COMMANDS", ("account",))

    def run(*arguments: str):
        try:
            code = cli.main(["account", *arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_json_has_every_key_of_the_interface(command):
    code, out, err = command("llama-3.1-8b", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert set(result) >= KEYS
    assert not GPU_KEYS & set(result)
    code, out, _ = command("llama-3.1-8b", "--json", "--gpu", "H100 SXM")
    assert code == 0
    assert set(json.loads(out)) >= KEYS | GPU_KEYS


def test_numbers_are_those_of_the_accounts(command):
    _, out, _ = command("llama-3.1-8b", "--context", "8192", "--kv-dtype", "fp8", "--weights-dtype", "fp8", "--json")
    result, model = json.loads(out), read_config("llama-3.1-8b")
    assert result["total_params"] == count_parameters(model).total
    assert result["weight_bytes"] == weight_bytes(model, "fp8").total == count_parameters(model).total
    assert result["kv_bytes_per_request"] == kv_bytes(model, 8192, "fp8") == 8192 * 65_536
    assert result["attention_flops_per_token"] == 4 * 32 * 4096 * 8192


def test_sizes_with_tp_are_those_of_one_rank(command):
    _, out, _ = command("llama-3.1-70b", "--tp", "8", "--json")
    assert json.loads(out)["kv_bytes_per_token"] == 327_680 // 8


def test_a_file_is_read_and_a_key_can_be_ignored(command, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**model_registry()["qwen3-8b"]["config"], "mine": 1}))
    code, out, err = command(str(path))
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and "'mine'" in err and err.count("\n") == 1
    code, out, _ = command(str(path), "--ignore-key", "mine", "--json")
    assert code == 0
    assert json.loads(out)["total_params"] == 8_190_735_360


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["no-such-model"], "no-such-model"),
        (["llama-3.1-8b", "--gpu", "H100"], "H100 SXM"),
        (["llama-3.1-8b", "--gpus", "2"], "--gpu"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--gpus", "3", "--tp", "2"], "multiple"),
        (["llama-3.1-8b", "--tp", "5"], "tp 5"),
        (["llama-3.1-8b", "--context", "0"], "context"),
        (["llama-3.1-8b", "--context", "many"], "many"),
        (["llama-3.1-8b", "--batch", "0", "--gpu", "H100 SXM"], "batch"),
        (["llama-3.1-8b", "--batch", "0"], "batch"),
        (["llama-3.1-8b", "--kv-dtype", "fp4"], "fp4"),
        (["llama-3.1-8b", "--engine", "vllm"], "vllm"),
        ([], "CONFIG"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, arguments, named):
    code, out, err = command(*arguments, "--json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert named in err


def test_text_shows_both_accounts_both_units_and_the_notes(command):
    code, out, _ = command("deepseek-v3", "--gpu", "H100 SXM", "--gpus", "8", "--context", "8192")
    assert code == 0
    for part in (
        "compute account",
        "memory account",
        "GB",
        "GiB",
        "673.15 GB (626.92 GiB)",
        "522",
        "note: 1 multi-token",
    ):
        assert part in out


def test_an_unknown_memory_gives_no_concurrency_and_says_so(command):
    _, out, _ = command("llama-3.1-8b", "--gpu", "H20", "--json")
    result = json.loads(out)
    assert result["max_concurrency"] is None
    assert any("H20" in note for note in result["notes"])
    code, out, _ = command("llama-3.1-8b", "--gpu", "H20")
    assert code == 0
    assert "requests at once" not in out


def test_a_context_beyond_the_models_positions_is_noted(command):
    _, out, _ = command("qwen3-8b", "--context", "100000", "--json")
    assert any("max_position_embeddings" in note for note in json.loads(out)["notes"])


def _notes(command, *arguments):
    code, out, _ = command(*arguments, "--json")
    assert code == 0
    return " | ".join(json.loads(out)["notes"])


def test_what_does_not_fit_the_device_is_noted_beside_its_floor_times(command):
    assert "weights do not fit in 1 × H100 SXM" in _notes(command, "llama-3.1-70b", "--gpu", "H100 SXM")
    assert "fit" not in _notes(command, "llama-3.1-70b", "--gpu", "H100 SXM", "--tp", "4")
    assert "fit" not in _notes(command, "llama-3.1-8b", "--gpu", "H100 SXM", "--batch", "128")
    assert "batch 129 at 4096 tokens does not fit" in _notes(
        command, "llama-3.1-8b", "--gpu", "H100 SXM", "--batch", "129"
    )


@pytest.mark.parametrize(("model", "tp", "noted"), [("phi-4", 4, True), ("qwen2.5-7b", 7, True), ("phi-4", 5, False)])
def test_kv_heads_that_no_engine_shares_evenly_are_noted(command, model, tp, noted):
    assert ("KV heads are not shared evenly" in _notes(command, model, "--tp", str(tp))) == noted


def test_a_config_that_asks_for_a_quantised_kv_cache_is_noted(command, tmp_path):
    quantization = {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"], "kv_cache_scheme": None}
    path = tmp_path / "config.json"
    config = {**model_registry()["llama-3.1-8b"]["config"], "quantization_config": quantization}
    path.write_text(json.dumps(config))
    assert "KV cache" not in _notes(command, str(path))
    quantization["kv_cache_scheme"] = {"num_bits": 8, "type": "float", "dynamic": False}
    path.write_text(json.dumps(config))
    assert "(kv_cache_scheme): the sizes are for --kv-dtype bf16" in _notes(command, str(path))


def test_latent_attention_and_replicated_kv_heads_need_no_such_note(command):
    assert "KV heads" not in _notes(command, "deepseek-v3", "--tp", "8")
    assert "KV heads" not in _notes(command, "llama-3.1-8b", "--tp", "32")


def test_the_example_of_the_help_works_as_written(command):
    import shlex

    words = shlex.split(account.EXAMPLE)
    assert words[:4] == ["python", "-m", "helpers", "account"]
    code, out, _ = command(*words[4:])
    assert code == 0 and out
    code, out, _ = command("--help")
    assert code == 0 and account.EXAMPLE in out
