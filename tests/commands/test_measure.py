"""The measure command: what it says before it sends, what it prints, what it keeps, and what it never tells."""

import json

import pytest

from helpers import cli
from helpers.commands import measure as command
from helpers.measure.endpoint import Endpoint
from tests.measure.replay_server import PlantedModel, ReplayServer

KEYS = ("conditions", "ttft_ms", "tpot_ms", "e2e_ms", "throughput", "client_lag_ms", "errors")


def run(capsys, *arguments) -> tuple[int, str, str]:
    code = cli.main(["measure", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def server():
    with ReplayServer({}, answer=PlantedModel()) as server:
        yield server


def small(server) -> list[str]:
    lengths = ["--prompt-tokens", "40", "--output-tokens", "4", "--requests", "4"]
    return ["--base-url", server.base_url, "--model", "m", *lengths]


@pytest.mark.parametrize("load", [["--concurrency", "2"], ["--rate", "200", "--seed", "3"], []])
def test_a_load_gives_one_json_object_with_its_conditions(capsys, server, load):
    code, out, err = run(capsys, *small(server), *load, "--json")
    assert code == 0, err
    result = json.loads(out)
    assert all(key in result for key in KEYS)
    about = result["conditions"]
    assert (about["prompt_tokens"]["median"], about["output_tokens"]["median"], about["model"]) == (40, 4, "m")
    assert (about["concurrency"] is None) is ("--rate" in load)
    assert result["ttft_ms"]["n"] == 4 and result["errors"]["total"] == 0
    assert "up to" in err and "prompt tokens" in err and all(line.startswith("measure: ") for line in err.splitlines())


def test_a_log_replayed_prints_the_same_json_and_the_same_text(capsys, server, tmp_path):
    log = tmp_path / "run.jsonl"
    code, live, err = run(capsys, *small(server), "--log", log, "--json")
    assert code == 0, err
    asked = len(server.served)
    code, again, _ = run(capsys, "--replay", log, "--json")
    assert (code, json.loads(again)) == (0, json.loads(live))
    assert len(server.served) == asked
    code, text, _ = run(capsys, "--replay", log)
    assert code == 0
    assert text.splitlines()[0].startswith("m at http://127.0.0.1:") and "concurrency 1, 40 prompt tokens" in text


def test_completions_are_measured_too(capsys, server):
    code, out, _ = run(capsys, *small(server), "--endpoint", "completions", "--json")
    assert code == 0
    assert json.loads(out)["conditions"]["path"] == "/completions"
    assert all("prompt" in served.request for served in server.served)


def test_a_trace_file_sets_times_and_lengths(capsys, server, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("at_s,prompt_tokens,output_tokens\n0,30,2\n0.01,35,3\n")
    code, out, err = run(capsys, "--base-url", server.base_url, "--model", "m", "--trace", trace, "--json")
    assert code == 0, err
    about = json.loads(out)["conditions"]
    assert (about["trace"], about["requests"], about["prompt_tokens"]["high"]) == ("t.csv", 2, 35)


def test_another_machine_gets_nothing_without_a_yes(capsys, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it was sent")

    monkeypatch.setattr(command, "measure_load", never)
    monkeypatch.setattr(Endpoint, "addresses", never)
    url = "https://api.example.com/v1"
    code, out, err = run(capsys, "--base-url", url, "--model", "m", "--requests", "10", "--output-tokens", "7")
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and err.count("\n") == 1
    assert "--yes" in err and url in err and "output tokens" in err


def test_a_server_where_everything_fails_is_no_success(capsys):
    with ReplayServer({}, answer=PlantedModel(fails=lambda i: i > 1)) as server:
        code, out, _ = run(capsys, *small(server), "--json")
        assert code == 1
    result = json.loads(out)
    assert result["ttft_ms"]["p50"] is None and result["errors"]["total"] == 4
    assert "errors: 4 of 4; 4 × http_503 (overloaded)" in command.to_text(result)


KEY = "sk-planted-0123456789"


def test_the_key_is_sent_and_stands_in_no_output_and_no_log(capsys, server, tmp_path, monkeypatch):
    monkeypatch.setenv("PLANTED_KEY", KEY)
    log = tmp_path / "run.jsonl"
    code, out, err = run(capsys, *small(server), "--key-variable", "PLANTED_KEY", "--log", log, "--json")
    assert code == 0
    assert all(served.headers["authorization"] == f"Bearer {KEY}" for served in server.served)
    assert KEY not in out + err + log.read_text()


def test_a_key_that_the_server_repeats_is_not_repeated(capsys, monkeypatch):
    from tests.measure.replay_server import refusal

    monkeypatch.setenv("PLANTED_KEY", KEY)
    with ReplayServer({}, answer=lambda path, body: refusal(401, f"Incorrect API key: {KEY}")) as server:
        code, out, err = run(capsys, *small(server), "--key-variable", "PLANTED_KEY")
    assert (code, out) == (2, "")
    assert "http_401" in err and KEY not in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--base-url"),
        (["--base-url", "http://127.0.0.1:1/v1"], "--model"),
        (["--base-url", "127.0.0.1", "--model", "m"], "base URL"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m"], "connection"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--concurrency", "0"], "concurrency"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--rate", "-1"], "rate"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--rate", "1", "--concurrency", "1"], "--concurrency"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--requests", "0"], "requests"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--timeout", "0"], "timeout"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--timeout", "inf"], "timeout"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--temperature", "nan"], "temperature"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--key-variable", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--trace", "nowhere.csv"], "nowhere.csv"),
        (["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--log", "/no/such/folder/x"], "/no/such/folder"),
        (["--replay", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--replay", "x", "--concurrency", "2"], "--replay"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, named):
    try:
        code, out, err = run(capsys, *arguments)
    except SystemExit as left:
        code, (out, err) = left.code, capsys.readouterr()
    last = err.splitlines()[-1]
    assert (code, out) == (2, "")
    assert last.startswith("error: ") and named in last
    assert "Traceback" not in err


def test_a_log_is_never_overwritten_and_nothing_sent_for_it(capsys, server, tmp_path):
    log = tmp_path / "run.jsonl"
    log.write_text("precious")
    code, _, err = run(capsys, *small(server), "--log", log)
    assert code == 2 and "exists already" in err
    assert log.read_text() == "precious" and server.served == []
