"""The `skew` command: the keys of the interface, its figures on real counts, and what it refuses."""

import json
import subprocess
import sys

import pytest

from helpers import cli
from helpers.accounts import contiguous, effective_experts, max_over_mean, null_max_over_mean, rank_loads, strided
from tests.accounts.test_expert_load import SGLANG_LOG, VLLM_LOG, vllm_dump

KEYS = {"layers", "max_over_mean", "balancedness", "effective_experts", "null_max_over_mean", "step_time_factor"}
LAYERS = {3: [50, 30, 10, 10], 5: [25, 25, 25, 25]}


@pytest.fixture
def command(monkeypatch, capsys):
    """Run ``skew`` with arguments; gives exit code, stdout, stderr."""
    monkeypatch.setattr(cli, "COMMANDS", ("skew",))

    def run(*arguments):
        try:
            code = cli.main(["skew", *map(str, arguments)])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def counts_csv(tmp_path):
    path = tmp_path / "counts.csv"
    rows = [f"{layer},{expert},{load}" for layer, row in LAYERS.items() for expert, load in enumerate(row)]
    path.write_text("layer,expert,count\n" + "\n".join(rows))
    return path


def test_json_has_every_key_of_the_interface_in_the_order_of_the_layers(command, counts_csv):
    code, out, err = command(counts_csv, "--ranks", 2, "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert set(result) >= KEYS
    assert result["layers"] == [3, 5]
    assert result["max_over_mean"] == [2, 1]
    assert result["balancedness"] == pytest.approx([100 / 160, 1])
    assert result["effective_experts"] == pytest.approx([effective_experts(LAYERS[3]), 4])
    assert result["step_time_factor"] == pytest.approx((80 + 50) / 100)


def test_the_placement_decides_the_load_of_the_ranks(command, counts_csv):
    for name, place in (("contiguous", contiguous), ("strided", strided)):
        _, out, _ = command(counts_csv, "--ranks", 2, "--placement", name, "--json")
        wanted = [1 / max_over_mean(rank_loads(row, place(4, 2))) for row in LAYERS.values()]
        assert json.loads(out)["balancedness"] == pytest.approx(wanted)


def test_without_ranks_each_expert_is_its_own(command, counts_csv):
    result = json.loads(command(counts_csv, "--json")[1])
    assert result["conditions"]["ranks"] == 4
    assert result["balancedness"] == pytest.approx([1 / ratio for ratio in result["max_over_mean"]])


def test_the_null_is_for_the_tokens_counted(command, counts_csv):
    unknown, known = (json.loads(command(counts_csv, "--json", *more)[1]) for more in ((), ("--tokens", 50)))
    assert unknown["null_max_over_mean"] == [null_max_over_mean(4, 1, 100)] * 2
    assert known["null_max_over_mean"] == [null_max_over_mean(4, 2, 50)] * 2
    assert known["conditions"]["experts_per_token"] == 2
    assert any("--tokens" in note for note in unknown["notes"]) and not known["notes"]


def test_the_nulls_of_ranks_are_for_those_ranks(command, counts_csv):
    result = json.loads(command(counts_csv, "--tokens", 50, "--ranks", 2, "--json")[1])
    of_ranks = null_max_over_mean(4, 2, 50, 2)
    assert of_ranks < null_max_over_mean(4, 2, 50)
    assert result["null_balancedness"] == pytest.approx([1 / of_ranks] * 2)
    assert result["null_step_time_factor"] == pytest.approx(of_ranks)


def test_each_figure_is_the_one_its_key_names(command, tmp_path):
    rows = {0: [90, 5, 3, 2], 1: [1, 39, 30, 30], 2: [10, 10, 10, 10]}
    path = tmp_path / "counts.csv"
    lines = [f"{layer},{expert},{load}" for layer, row in rows.items() for expert, load in enumerate(row)]
    path.write_text("layer,expert,count\n" + "\n".join(lines))
    result = json.loads(command(path, "--ranks", 2, "--json")[1])
    assert result["assignments"] == [100, 100, 40]
    assert result["hottest_expert"] == [0, 1, 0]
    # Below a tenth of the mean, 25: the 2 of layer 0 and the 1 of layer 1.
    assert result["dead_experts"] == [1, 1, 0]
    assert result["mean_balancedness"] == pytest.approx((50 / 95 + 50 / 60 + 1) / 3)
    assert result["step_time_factor"] == pytest.approx((95 + 60 + 20) / (50 + 50 + 20))
    nulls = [null_max_over_mean(4, 1, load, 2) for load in result["assignments"]]
    wanted = sum(null * load for null, load in zip(nulls, (100, 100, 40), strict=True)) / 240
    assert result["null_step_time_factor"] == pytest.approx(wanted)


def test_steps_are_judged_one_by_one(command, tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,layer,expert,count\n0,0,0,8\n0,0,1,0\n1,0,0,0\n1,0,1,8\n")
    result = json.loads(command(path, "--ranks", 2, "--json")[1])
    assert result["max_over_mean"] == [1]
    assert (result["step_time_factor"], result["step_time_factor_of_sums"]) == (2, 1)
    assert 1 < result["null_step_time_factor"] < 2


def test_the_text_shows_the_null_beside_and_the_effect(command, counts_csv):
    code, out, _ = command(counts_csv, "--ranks", 2, "--tokens", 50)
    assert code == 0
    row = next(line for line in out.splitlines() if line.lstrip().startswith("3 "))
    assert "2.00" in row and f"{null_max_over_mean(4, 2, 50):.2f}" in row
    assert "step time factor  1.30" in out and "distinct experts" in out


def test_a_vllm_dump_brings_its_ranks(command, tmp_path):
    (tmp_path / "dump.json").write_text(json.dumps(vllm_dump()))
    result = json.loads(command(tmp_path / "dump.json", "--json")[1])
    assert result["conditions"]["ranks"] == 2
    assert result["balancedness"] == pytest.approx([0.6, 1])
    assert result["step_time_factor"] == pytest.approx(16 / 12)


def test_another_placement_than_the_dumps_own_is_called_so(command, tmp_path):
    (tmp_path / "dump.json").write_text(json.dumps(vllm_dump()))
    for options in (["--ranks", 4], ["--placement", "strided"]):
        notes = json.loads(command(tmp_path / "dump.json", "--json", *options)[1])["notes"]
        assert any("the dump's own are 2 ranks, contiguous" in note for note in notes)
    assert not any("own are" in note for note in json.loads(command(tmp_path / "dump.json", "--json")[1])["notes"])


@pytest.mark.parametrize(("log", "median"), [(VLLM_LOG, 0.6875), (SGLANG_LOG, 0.581)])
def test_a_log_gives_its_ratio_and_no_invented_counts(command, tmp_path, log, median):
    (tmp_path / "server.log").write_text(log)
    code, out, _ = command(tmp_path / "server.log", "--json")
    result = json.loads(out)
    assert code == 0 and set(result) >= KEYS
    assert (result["layers"], result["step_time_factor"]) == ([], None)
    assert result["logged_balancedness"]["median"] == pytest.approx(median)
    assert f"median {median:.3f}" in command(tmp_path / "server.log")[1]
    code, _, err = command(tmp_path / "server.log", "--ranks", 2)
    assert code == 2 and "--ranks" in err


def test_text_files_are_read_without_torch(counts_csv):
    code = (
        "import sys; from helpers import cli; cli.main(['skew', sys.argv[1], '--json']); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, counts_csv], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_binary_dumps_are_read_too(command, tmp_path):
    np = pytest.importorskip("numpy")
    np.savez(tmp_path / "ids.npz", topk_ids=np.array([[[0, 1], [0, 2], [0, 3]]]), other=np.zeros(1))
    result = json.loads(command(tmp_path / "ids.npz", "--json")[1])
    assert result["max_over_mean"] == [2]
    assert result["conditions"] | {"ranks": 4, "tokens": 3, "experts_per_token": 2} == result["conditions"]
    # Every token uses expert 0, and each of the other three with a chance of one third.
    assert result["distinct_experts"] == {str(n): pytest.approx(1 + 3 * (1 - (2 / 3) ** n)) for n in (1, 8, 64, 256)}
    code, _, err = command(tmp_path / "ids.npz", "--tokens", 4)
    assert code == 2 and "--tokens 4 contradicts" in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--ranks", 3], "4 experts do not divide evenly by 3 ranks"),
        (["--ranks", 0], "--ranks"),
        (["--placement", "packed"], "packed"),
        (["--tokens", 33], "--tokens 33 does not fit"),
        (["--tokens", 20], "5 for each token of 4 experts"),
        (["--tokens", 25], "counts 50 for expert 0"),
        (["--experts", 3], "expert 3 is beyond"),
        (["--where", "traffic"], "COLUMN=VALUE"),
        (["--where", "traffic=code"], "no column 'traffic'"),
        (["--array", "counts"], "array does not apply"),
        (["second.csv"], "per-pass"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(command, counts_csv, arguments, named):
    code, out, err = command(counts_csv, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and named in err and err.count("\n") == 1


def test_the_example_runs_as_written(root):
    from helpers.commands import skew

    words = skew.EXAMPLE.split()
    done = subprocess.run([sys.executable, *words[1:], "--json"], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["conditions"]["experts_per_token"] == 6


def test_real_counts_show_the_published_skew(command, shared):
    path = shared / "facts" / "moe-data" / "esft_deepseek_v2_lite_expert_counts.csv"
    result = json.loads(command(path, "--where", "task=translation", "--ranks", 8, "--json")[1])
    assert len(result["layers"]) == 26
    assert sum(result["max_over_mean"]) / 26 == pytest.approx(5.6, abs=0.06)
    assert result["step_time_factor"] == pytest.approx(1.68, abs=0.02)
    assert max(result["null_max_over_mean"]) < 1.1
