"""The record command on a model so small that it takes no time, and what it must never do."""

import json

import pytest
import torch
from safetensors.torch import save_file

from helpers import cli
from helpers.commands import record as command
from helpers.engine import expected_tensors, random_decoder
from helpers.measure import decode_sweep, load_record, measure_ceilings, prefill_sweep
from tests.measure import planted

TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with the config.json of a tiny Llama."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


@pytest.fixture
def at_once(monkeypatch):
    """Ceilings as already measured in this process, and a plan of a few points."""
    monkeypatch.setattr(command, "measure_ceilings", lambda d, t, **_: measure_ceilings(d, t, quick=True))
    monkeypatch.setattr(command, "plan", lambda *_: command.Plan((8, 16), (8, 32), (1, 2), 1.0))


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main(["record", "--device", "cpu", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_record_is_written_valid_and_its_summary_agrees_with_it(capsys, tmp_path, tiny, at_once):
    target = tmp_path / "r.json"
    code, out, err = run(capsys, "--out", target, "--model", tiny, "--json")
    assert code == 0, err
    assert all(line.startswith("record: ") for line in err.splitlines())
    result, record = json.loads(out), load_record(target)
    assert (record.weights, record.decode_step, record.dtype) == ("random", "eager", "fp32")
    asked = {(8, 1), (32, 1), (8, 2), (32, 2)}
    assert {(p.tokens, p.batch) for p in record.decode.points} | {
        (d.tokens, d.batch) for d in record.decode.dropped
    } == asked
    assert [row["mbu"] for row in result["decode"]] == [p.mbu for p in record.decode.points]
    assert result["flops_per_s"] == record.ceilings.flops_per_s
    text = command.to_text(result)
    assert "prefill" in text and "decode" in text and str(target) in text


def test_an_existing_file_is_refused_before_anything_is_measured(capsys, tmp_path, monkeypatch):
    target = tmp_path / "r.json"
    target.write_text("precious")
    monkeypatch.setattr(command, "measure_ceilings", lambda *_, **__: pytest.fail("measured for nothing"))
    code, out, err = run(capsys, "--out", target)
    assert (code, out) == (2, "")
    assert "--force" in err
    assert target.read_text() == "precious"


def test_force_overwrites(capsys, tmp_path, tiny, at_once):
    target = tmp_path / "r.json"
    target.write_text("old")
    assert run(capsys, "--out", target, "--model", tiny, "--force")[0] == 0
    assert load_record(target).model


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--model", "no-such-model"], "no-such-model"), (["--dtype", "int4"], "int4"), (["--threads", "-3"], "threads")],
)
def test_bad_options_exit_2_and_leave_no_file(capsys, tmp_path, at_once, arguments, named):
    code, out, err = run(capsys, "--out", tmp_path / "r.json", *arguments)
    assert (code, out) == (2, "")
    assert named in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_weights_is_recorded_as_real(tmp_path, tiny):
    model = random_decoder(command_model(tiny)).model
    save_file({name: torch.zeros(shape) for name, shape in expected_tensors(model).items()}, tmp_path / "m.safetensors")
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    assert command.load(str(tmp_path), "fp32", "cpu")[1] == "real"
    assert command.load(str(tiny), "fp32", "cpu")[1] == "random"


def command_model(folder):
    from helpers.accounts import read_config

    return read_config(folder)


def test_a_record_that_cannot_be_written_after_all_is_kept_elsewhere(capsys, tmp_path, tiny, at_once, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(command, "save_record", full)
    monkeypatch.setattr(command.tempfile, "tempdir", str(tmp_path))
    code, out, err = run(capsys, "--out", tmp_path / "r.json", "--model", tiny)
    assert (code, out) == (2, "")
    (kept,) = tmp_path.glob("record-*.json")
    assert str(kept) in err.splitlines()[-1]
    assert load_record(kept).model


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("positions", [64, 2048, 131072])
def test_a_plan_stays_within_the_models_positions(device, quick, positions):
    chosen = command.plan(device, quick, positions)
    assert max(chosen.prompt_lengths) <= positions
    assert max(chosen.contexts) <= positions
    assert chosen.prompt_lengths and chosen.contexts and 1 in chosen.batches


def test_an_unknown_model_is_refused_before_anything_is_measured(capsys, tmp_path, monkeypatch):
    def never(*arguments, **options):
        raise AssertionError("ceilings were measured first")

    monkeypatch.setattr(command, "measure_ceilings", never)
    code, out, err = run(capsys, "--out", tmp_path / "r.json", "--model", "no-such-model")
    assert (code, out) == (2, "")
    assert "no-such-model" in err


@pytest.mark.parametrize(("slower", "said"), [(1.0, []), (0.02, ["lie above the ceilings"])])
def test_results_above_their_ceilings_are_called_disturbed(slower, said):
    # 16 tokens in half a second are far below the planted ceilings, and far above a fiftieth of them.
    def timer(fn, calls):
        return 0.5 * calls

    peaks = planted.ceilings(1e11 * slower, 1e10 * slower)
    common = {"model": planted.MODEL, "ceilings": peaks, "timer": timer}
    sweeps = {
        "prefill": prefill_sweep(lambda n: lambda: None, [16], **common),
        "decode": decode_sweep(lambda c, b: lambda: None, [16], [1], **common),
    }
    assert all(sweep.points for sweep in sweeps.values())
    sentences = command.disturbed(planted.record(timer, ceilings=peaks, **sweeps))
    assert len(sentences) == len(said)
    assert all(words in sentence for words, sentence in zip(said, sentences, strict=True))
