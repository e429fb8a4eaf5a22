"""The `account` command: the keys of the interface, exit codes, and text with both units."""

import io
import json

import pytest

from helpers import cli
from helpers.accounts import count_parameters, kv_bytes, model_registry, model_types, read_config, weight_bytes
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
        (["llama-3.1-8b", "--engine", "tgi"], "tgi"),
        (["llama-3.1-8b", "--engine", "vllm", "--kv-dtype", "q8_0"], "q8_0"),
        (["llama-3.1-8b", "--engine", "llamacpp", "--kv-dtype", "fp8"], "fp8"),
        (["llama-3.1-8b", "--engine", "llamacpp", "--tp", "2"], "tp must be 1"),
        (["llama-3.1-8b", "--kv-dtype", "fp8_ds_mla"], "fp8_ds_mla"),
        (["llama-3.1-8b", "--block-size", "64"], "--block-size needs --engine vllm"),
        (["llama-3.1-8b", "--engine", "vllm", "--ubatch", "64"], "--ubatch needs --engine llamacpp"),
        (["llama-3.1-8b", "--engine", "vllm", "--block-size", "0"], "block_size"),
        (["llama-3.1-8b", "--utilisation", "0.9"], "--gpu"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--utilisation", "9"], "utilisation"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--activation", "nan"], "--activation"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--engine", "sglang"], "give utilisation"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--gpus", "2", "--engine", "vllm"], "gpus (2) must equal tp (1)"),
        (["gemma-3-27b", "--gpu", "H100 SXM", "--engine", "sglang", "--utilisation", "0.8"], "sglang"),
        (["llama-3.1-8b", "--draft", "no-such-model"], "no-such-model"),
        (["llama-3.1-8b", "--log", "/no/such/file"], "/no/such/file"),
        (["-", "--log", "-"], "stdin"),
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


@pytest.fixture
def stdin(monkeypatch):
    """Give the command a text on stdin."""
    import io

    return lambda text: monkeypatch.setattr("sys.stdin", io.StringIO(text))


def test_a_pasted_config_is_read_from_stdin(command, stdin):
    stdin(json.dumps(model_registry()["qwen3-8b"]["config"]))
    code, out, _ = command("-", "--gpu", "H100 SXM", "--json")
    assert code == 0
    assert json.loads(out)["total_params"] == 8_190_735_360
    for text, named in (("", "JSON"), ("[1]", "JSON object"), ('{"model_type": "unheard"}', "'unheard'")):
        stdin(text)
        code, out, err = command("-", "--json")
        assert (code, out) == (2, "")
        assert named in err and err.count("\n") == 1


@pytest.mark.parametrize("engine", ["hf", "vllm", "sglang", "tensorrt-llm", "llamacpp"])
def test_every_engine_gives_its_sizes_and_its_capacity(command, engine):
    options = ["--utilisation", "0.85"] if engine == "sglang" else []
    code, out, _ = command("llama-3.1-8b", "--engine", engine, "--gpu", "H100 SXM", *options, "--json")
    result = json.loads(out)
    assert code == 0
    assert result["kv_bytes_per_token"] == 131_072
    assert result["kv_bytes_per_request"] == 4096 * 131_072
    capacity = result["capacity"]
    assert sum(term["bytes"] for term in capacity["terms"]) == capacity["pool_bytes"]
    assert result["max_concurrency"] == capacity["units"] // capacity["units_per_request"] > 50
    code, out, _ = command("llama-3.1-8b", "--engine", engine, "--gpu", "H100 SXM", *options)
    assert code == 0
    assert "left for the cache" in out and "requests at once" in out


def test_settings_of_an_engine_change_its_sizes(command):
    def request(*options):
        _, out, _ = command("gemma-3-27b", "--context", "65536", *options, "--json")
        return json.loads(out)["kv_bytes_per_request"]

    few = request("--engine", "vllm", "--batched-tokens", "2048")
    many = request("--engine", "vllm")
    whole = request("--engine", "vllm", "--no-hybrid-manager")
    assert request() < few < many < whole == 65_536 * 62 * 8192
    assert request("--engine", "llamacpp", "--ubatch", "2048") > request("--engine", "llamacpp")
    _, out, _ = command("deepseek-v3", "--engine", "llamacpp", "--mla-cache", "expanded", "--json")
    assert json.loads(out)["kv_bytes_per_token"] == 4_997_120


def test_the_terms_of_the_capacity_are_named_in_the_text(command):
    _, out, _ = command(
        *("llama-3.1-8b", "--engine", "vllm", "--gpu", "H100 SXM", "--activation", "1.5", "--mean-context", "900")
    )
    for part in (
        "not granted to the engine",
        "− weights",
        "rotary table",
        "1.61 GB (1.50 GiB)",
        "  blocks",
        "at the mean length",
        "note: an upper bound",
    ):
        assert part in out
    assert "not granted to the engine8" not in out


def test_notes_say_what_vllm_does_with_windows(command):
    notes = _notes(command, "gemma-3-27b", "--engine", "vllm")
    assert "8 padding layers" in notes
    assert "8192 batched tokens" in notes
    assert "no capacity" in notes
    assert "padding" not in _notes(command, "llama-3.1-8b", "--engine", "vllm")


def test_the_packed_latent_has_sizes_and_floors(command):
    _, out, _ = command(
        "deepseek-v3", "--engine", "vllm", "--kv-dtype", "fp8_ds_mla", "--gpu", "H100 SXM", "--tp", "8", "--json"
    )
    result = json.loads(out)
    assert result["kv_bytes_per_token"] == 61 * 656
    assert result["decode_floor_s"] > 0
    assert any("plain fp8" in note for note in result["notes"])


def test_a_draft_is_a_second_cache(command):
    _, out, _ = command("llama-3.1-70b", "--draft", "llama-3.2-3b", "--context", "131072", "--tp", "2", "--json")
    result = json.loads(out)
    assert [result["kv_bytes_per_request"] / 2**30, result["draft"]["kv_bytes_per_request"] / 2**30] == [20.0, 7.0]
    code, out, _ = command("llama-3.1-70b", "--draft", "llama-3.2-3b", "--context", "131072", "--tp", "2")
    assert code == 0
    assert "draft llama-3.2-3b" in out


_LOG = """INFO Loading model weights took 14.9888 GB
INFO # GPU blocks: 1952, # CPU blocks: 2048
INFO Maximum concurrency for 20000 tokens per request: 1.56x
"""


def test_a_log_is_compared_line_by_line(command, tmp_path, stdin):
    path = tmp_path / "server.log"
    path.write_text(_LOG)
    code, out, _ = command("llama-3.1-8b", "--log", str(path), "--json")
    result = json.loads(out)
    assert code == 0
    assert result["log"]["engine"] == "vllm"
    assert [row["quantity"] for row in result["comparison"]] == ["weights", "requests of 20,000 tokens at once"]
    assert all(row["matches"] for row in result["comparison"])
    stdin(_LOG)
    code, out, _ = command("llama-3.1-8b", "--log", "-")
    assert code == 0
    for part in ("start-up log of vllm", "16.09 GB (14.99 GiB)", "1.56×", "agrees"):
        assert part in out
    stdin(_LOG)
    _, out, _ = command("llama-3.1-70b", "--log", "-")
    assert "differs" in out and "fewer bits" in out


def test_a_log_that_is_none_is_one_line_and_exit_code_2(command, stdin):
    stdin("hello")
    code, out, err = command("llama-3.1-8b", "--log", "-", "--json")
    assert (code, out) == (2, "")
    assert "no size of a start-up log" in err and err.count("\n") == 1


QUANTISED_HYBRID = {
    "model_type": "lfm2",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "layer_types": ["conv", "full_attention"],
    "quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["lm_head"]},
}


def test_weights_that_are_not_understood_are_left_out_and_said_so_and_nothing_rests_on_them(command, tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(QUANTISED_HYBRID))
    code, out, _ = command(str(path), "--json")
    result = json.loads(out)
    assert code == 0
    assert result["weight_bytes"] is result["weight_bytes_by_component"] is result["weight_scale_bytes"] is None
    assert result["kv_bytes_per_request"] == 4096 * 2 * 2 * 16 * 2
    assert any("weights is not given" in note and "quantization_config" in note for note in result["notes"])
    _, text, _ = command(str(path))
    assert "not known here" in text
    for more in (["--gpu", "H100 SXM"], ["--log", str(path)]):
        code, out, err = command(str(path), *more)
        assert (code, out) == (2, "") and "quantization_config" in err
    code, out, _ = command(str(path), "--weights-dtype", "fp8", "--gpu", "H100 SXM", "--json")
    assert code == 0 and json.loads(out)["weight_bytes"] == json.loads(out)["total_params"]


@pytest.mark.parametrize("engine", ["sglang", "tensorrt-llm"])
def test_an_engine_whose_pools_are_not_known_for_a_model_sizes_nothing_with_or_without_a_gpu(command, engine):
    code, out, err = command("gemma-3-27b", "--engine", engine)
    assert (code, out) == (2, "") and engine in err
    assert command("llama-3.1-8b", "--engine", engine)[0] == 0


def test_the_packed_latent_asks_for_its_engine(command):
    code, _, err = command("deepseek-v3", "--kv-dtype", "fp8_ds_mla")
    assert code == 2 and "--engine vllm" in err
    code, out, _ = command("deepseek-v3", "--kv-dtype", "fp8_ds_mla", "--engine", "vllm", "--json")
    assert code == 0 and json.loads(out)["kv_bytes_per_token"] == 656 * 61


def test_the_card_sets_the_batched_tokens_unless_they_are_given(command):
    def blocks(*more):
        _, out, _ = command("gemma-3-27b", "--engine", "vllm", "--context", "32768", "--json", *more)
        return json.loads(out)["kv_bytes_per_request"]

    assert blocks("--gpu", "A100-80 SXM") == blocks("--batched-tokens", "2048") < blocks()
    assert blocks("--gpu", "A100-80 SXM", "--batched-tokens", "8192") == blocks("--gpu", "H100 SXM") == blocks()


def test_a_log_of_another_model_is_suspected(command, tmp_path):
    path = tmp_path / "server.log"
    path.write_text("Available KV cache memory: 54.05 GiB\nGPU KV cache size: 442,768 tokens\n")
    _, out, _ = command("llama-3.1-8b", "--log", str(path))
    assert "no figure of the log agrees" not in out
    _, out, _ = command("qwen3-8b", "--log", str(path))
    assert "no figure of the log agrees" in out


def test_types_are_listed_without_a_config(command):
    code, out, err = command("--types")
    assert (code, err) == (0, "")
    assert out.split() == list(model_types())
    _, out, _ = command("--types", "--json")
    assert json.loads(out) == {"model_types": list(model_types())}
    code, out, err = command()
    assert (code, out) == (2, "") and "CONFIG" in err


def test_a_model_type_that_is_not_known_is_told_where_the_known_ones_are(command, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "qwen3_mo"}))
    code, _, err = command(str(path))
    assert code == 2 and "qwen3_moe" in err and "account --types" in err


def test_zero_ranks_are_refused_not_taken_for_none_given(command):
    code, _, err = command("llama-3.1-8b", "--tp", "0")
    assert code == 2 and "tp must be" in err


def test_a_byte_order_mark_on_stdin_is_no_part_of_the_config(command, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeff" + json.dumps(model_registry()["qwen3-8b"]["config"])))
    code, out, _ = command("-", "--json")
    assert code == 0 and json.loads(out)["total_params"] == 8_190_735_360
