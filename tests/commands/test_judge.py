"""The judge command: from an endpoint or a file to a judgement as text, JSON and page, and what it refuses."""

import dataclasses
import json

import pytest

from helpers import cli
from helpers.accounts.observation import Observation, Run, ServerWindow, Spread
from helpers.commands import judge as command
from helpers.measure import save_log, summarize
from helpers.measure.endpoint import Endpoint
from helpers.measure.observe import observation_json, read_observation
from tests.measure.replay_server import ReplayServer
from tests.measure.test_probe import PlantedService
from tests.measure.test_results import planted


def run(capsys, *arguments) -> tuple[int, str, str]:
    try:
        code = cli.main(["judge", *map(str, arguments)])
    except SystemExit as left:
        code = left.code
    out, err = capsys.readouterr()
    return code, out, err


def flat(value: float, n: int = 40) -> Spread:
    return Spread(value, value, value, value, value, n)


WINDOW = ServerWindow(
    "vllm", 60.0, 600, running_p50=2, running_max=2, waiting_p50=6, waiting_max=6, kv_share_max=0.04, preemptions=0,
    finished=40, ttft_mean=2000.0, queue_mean=1900.0, prefill_mean=100.0,
)  # fmt: skip
LIGHTER = dataclasses.replace(WINDOW, waiting_p50=2, ttft_mean=790.0, queue_mean=690.0)
CAPPED = Observation(
    (
        Run("alone", 256, 64, 1, requests=5, ttft=flat(100.0), tpot=flat(10.0), e2e=flat(730.0),
            output_tokens_per_s=80.0),
        Run("load", 256, 64, 4, requests=40, ttft=flat(800.0), tpot=flat(11.0), e2e=flat(1493.0),
            output_tokens_per_s=160.0, server=LIGHTER),
        Run("load", 256, 64, 8, requests=40, ttft=flat(2010.0), tpot=flat(11.0), e2e=flat(2703.0),
            output_tokens_per_s=162.0, server=WINDOW, client_cpu_share=0.02),
    )
)  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    file = tmp_path / "seen.json"
    file.write_text(json.dumps(observation_json(CAPPED)))
    return file


def test_a_saved_observation_is_judged_with_the_evidence_beside_it(capsys, saved):
    code, out, err = run(capsys, "--from", saved, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert result["verdict"]["cause"] == "admission_cap" and result["verdict"]["mechanism"] == "running_cap"
    assert any("running" in finding["words"] for finding in result["evidence"]["findings"])
    assert read_observation(saved) == CAPPED and result["observation"] == observation_json(CAPPED)
    assert any("nothing is set against floors" in note for note in result["notes"])


def test_the_text_says_the_sentence_first_and_fits_a_screen(capsys, saved):
    code, out, _ = run(capsys, "llama-3.1-8b", "--gpu", "H100 SXM", "--usd-per-hour", "2.5", "--from", saved)
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith(("NAMED. ", "LEADING. "))
    assert len(lines) <= 60 and max(map(len, lines)) <= 120
    text = " ".join(out.split())
    for part in (
        "llama-3.1-8b on 1 × H100 SXM",
        "TTFT",
        "floor",
        "queue 1.90 s",
        "admission_cap",
        "cost",
        "what binds",
        "price: 2.5 USD per hour for all devices, its source was not given",
        "listed, not today's: H100 SXM 2.11 to 12.29 USD per device and hour (2026-08-19 to 2026-11-09; SF Compute",
    ):
        assert part in text, part


def test_a_log_and_the_json_of_measure_are_judged_too(capsys, tmp_path):
    save_log(planted(), tmp_path / "run.jsonl")
    (tmp_path / "sum.json").write_text(json.dumps(summarize(planted()).as_json()))
    for source in (tmp_path / "run.jsonl", f"load={tmp_path / 'sum.json'}"):
        code, out, err = run(capsys, "--from", source)
        assert code == 0, err
        assert out.startswith(("NO FAULT FOUND at ", "CANNOT TELL"))
    both = ["--from", f"alone={tmp_path / 'run.jsonl'}", "--from", saved_second(tmp_path)]
    code, out, _ = run(capsys, *both, "--json")
    assert code == 0 and json.loads(out)["conditions"]["runs"] == ["alone", "load"]


def saved_second(folder):
    file = folder / "second.json"
    file.write_text(json.dumps(observation_json(Observation(CAPPED.runs[-1:]))))
    return file


def test_a_clue_and_a_claim_from_the_command_line_are_weighed(capsys, saved):
    clue = [
        "--clue",
        "ab:admission_cap=raised to 64, throughput doubled",
        "--claimed-ttft-ms",
        "3",
        "--claimed-by",
        "me",
    ]
    code, out, err = run(capsys, "--from", saved, *clue, "--trait", "cfg_moe", "--json")
    assert code == 0, err
    seen = json.loads(out)["observation"]
    assert seen["clues"] == {"ab:admission_cap": "raised to 64, throughput doubled"}
    assert (seen["claimed_ttft_ms"], seen["claimed_by"], seen["traits"]) == (3.0, "me", ["cfg_moe"])


def test_the_page_and_the_saved_observation_are_written_and_never_overwritten(capsys, saved, tmp_path):
    page, kept = tmp_path / "judgement.html", tmp_path / "kept.json"
    code, _, err = run(capsys, "--from", saved, "--html", page, "--save", kept)
    assert code == 0, err
    assert "<html" in page.read_text() and read_observation(kept) == CAPPED
    for option, file in (("--html", page), ("--save", kept)):
        code, out, err = run(capsys, "--from", saved, option, file)
        assert (code, out) == (2, "") and "never overwritten" in err


@pytest.mark.slow
def test_an_endpoint_is_probed_and_judged(capsys, tmp_path):
    kept = tmp_path / "kept.json"
    with ReplayServer({}, answer=PlantedService(ttft_s=0.004, tpot_s=0.001)) as server:
        load = ["--base-url", server.base_url, "--model", "m", "--concurrency", "2", "--prompt-tokens", "60"]
        code, out, err = run(
            capsys, *load, "--output-tokens", "6", "--requests", "6", "--quick", "--save", kept, "--json"
        )
    assert code == 0, err
    assert "up to" in err and "4 steps" not in err.splitlines()[-1]
    assert all(line.startswith("judge: ") for line in err.splitlines())
    result = json.loads(out)
    assert result["conditions"]["runs"] == ["alone", "alone", "alone", "repeat", "load"]
    assert result["conditions"]["server_names"] == "vllm"
    code, again, _ = run(capsys, "--from", kept, "--json")
    assert json.loads(again)["verdict"] == result["verdict"]


def test_another_machine_gets_nothing_without_a_yes(capsys, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it was sent")

    monkeypatch.setattr(command, "run_probe", never)
    monkeypatch.setattr(Endpoint, "addresses", never)
    for urls in (["--base-url", "https://api.example.com/v1"],
                 ["--base-url", "http://127.0.0.1:1/v1", "--direct-url", "http://engine.example.com/v1"]):  # fmt: skip
        code, out, err = run(capsys, *urls, "--model", "m")
        assert (code, out) == (2, "") and "--yes" in err and "output tokens" in err and err.count("\n") == 1


KEY = "sk-planted-0123456789"


def test_a_key_that_the_server_repeats_is_not_repeated(capsys, monkeypatch):
    from tests.measure.replay_server import refusal

    monkeypatch.setenv("PLANTED_KEY", KEY)
    with ReplayServer({}, answer=lambda path, body: refusal(401, f"Incorrect API key: {KEY}")) as server:
        code, out, err = run(capsys, "--base-url", server.base_url, "--model", "m", "--key-variable", "PLANTED_KEY")
    assert (code, out) == (2, "") and "http_401" in err and KEY not in err


HERE = ["--base-url", "http://127.0.0.1:1/v1", "--model", "m"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--base-url"),
        (["--base-url", "http://127.0.0.1:1/v1"], "--model"),
        (["llama-3.1-8b", *HERE], "--gpu NAME or --this-machine"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--this-machine", *HERE], "exclude"),
        (["--gpu", "H100 SXM", *HERE], "--gpu needs CONFIG"),
        (["--usd-per-hour", "2", *HERE], "--usd-per-hour needs CONFIG"),
        (["no-such-model", "--gpu", "H100 SXM", *HERE], "no-such-model"),
        (["llama-3.1-8b", "--gpu", "abacus", *HERE], "abacus"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--gpus", "0", *HERE], "devices"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--usd-per-hour", "-1", *HERE], "usd_per_device_hour"),
        (["llama-3.1-8b", "--this-machine", "--dtype", "fp3", *HERE], "fp3"),
        (["llama-3.1-8b", "--this-machine", "--device", "abacus", *HERE], "abacus"),
        (["llama-3.1-8b", "--gpu", "H100 SXM", "--weights-dtype", "fp3", *HERE], "fp3"),
        ([*HERE, "--concurrency", "0"], "concurrency"),
        ([*HERE, "--rate", "-1"], "rate"),
        ([*HERE, "--claimed-ttft-ms", "nan"], "--claimed-ttft-ms"),
        ([*HERE, "--claimed-by", "me"], "--claimed-ttft-ms"),
        ([*HERE, "--clue", "a feeling"], "a feeling"),
        ([*HERE, "--trait", "cfg_tea"], "cfg_tea"),
        ([*HERE, "--leave-out", "tea"], "tea"),
        ([*HERE, "--key-variable", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        ([*HERE, "--html", "/no/such/folder/x.html"], "/no/such/folder"),
        (HERE, "connection"),
        (["--from", "nowhere.json"], "nowhere.json"),
        (["--from", "x", *HERE], "--base-url"),
        (["--from", "x", "--quick"], "--quick"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, named):
    code, out, err = run(capsys, *arguments)
    last = err.splitlines()[-1]
    assert (code, out) == (2, "")
    assert last.startswith("error: ") and named in last and "Traceback" not in err


def test_a_file_of_many_runs_takes_no_role(capsys, saved):
    code, _, err = run(capsys, "--from", f"alone={saved}")
    assert code == 2 and "3 runs" in err
