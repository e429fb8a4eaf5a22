"""The ceilings command: the promised keys, relations between them, refusals."""

import json

import pytest
import torch

from helpers import cli


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["ceilings", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def result() -> dict:
    from helpers.commands.ceilings import as_result
    from helpers.measure import measure_ceilings

    return as_result(measure_ceilings("cpu", "fp32", quick=True))


def test_the_promised_keys_are_there_and_agree(result):
    promised = {"flops_per_s", "bytes_per_s", "dtype", "device", "spread", "n", "noisy", "threads", "versions"}
    assert promised <= set(result)
    assert (
        result["flops_per_s"]
        == result["gemm"]["per_s"]
        == max(r["per_s"] for r in result["tried"] if r["kernel"].startswith("gemm"))
    )
    assert result["bytes_per_s"] == result["read"]["per_s"]
    assert result["ridge_flops_per_byte"] == result["flops_per_s"] / result["bytes_per_s"]
    for rate in (result["gemm"], result["read"]):
        assert rate["q1_per_s"] <= rate["per_s"] <= rate["q3_per_s"]
        assert rate["noisy"] == bool(rate["noisy_because"])
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_command_prints_one_json_object_and_nothing_else(capsys):
    before = torch.get_num_threads()
    try:
        code, out, err = run(capsys, "--quick", "--json", "--device", "cpu", "--threads", "1")
    finally:
        torch.set_num_threads(before)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["threads"], found["device"], found["dtype"]) == (1, "cpu", "fp32")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--device", "tpu"], "tpu"),
        (["--device", "cuda:99"], "cuda:99"),
        (["--dtype", "fp8", "--device", "cpu"], "fp8"),
        (["--threads", "0"], "threads"),
        (["--threads", "100000"], "threads"),
    ],
)
def test_an_unknown_value_exits_2_in_one_line_that_names_it(capsys, arguments, named):
    code, out, err = run(capsys, *arguments, "--quick")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and named in err


def test_the_text_says_when_a_ceiling_is_noisy(result):
    from helpers.commands.ceilings import to_text

    noisy = result | {"gemm": result["gemm"] | {"noisy": True, "noisy_because": "only 3 samples"}}
    quiet = result | {"gemm": result["gemm"] | {"noisy": False, "noisy_because": ""}}
    assert "NOISY: only 3 samples" in to_text(noisy)
    assert "only 3 samples" not in to_text(quiet)
    assert "GB/s" in to_text(quiet) and "FLOP per byte" in to_text(quiet)
