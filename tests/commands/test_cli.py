"""The contract of the command line that every command keeps."""

import json
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from helpers import cli
from helpers.errors import InputError


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "helpers", *arguments], capture_output=True, text=True)


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_shows_an_example(command):
    done = run(command, "--help")
    assert done.returncode == 0
    assert "example:" in done.stdout
    assert f"python -m helpers {command}" in done.stdout.split("example:")[1]
    assert done.stderr == ""


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_an_unknown_option_is_one_line_and_exit_code_2(command):
    done = run(command, "--no-such-option")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "--no-such-option" in done.stderr or "required" in done.stderr


@pytest.mark.parametrize("arguments", [["nonsense"], []])
def test_an_unknown_or_missing_command_is_one_line_and_exit_code_2(arguments):
    done = run(*arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: ")


@pytest.mark.parametrize("command", ["account", "doctor"])
def test_the_example_runs_as_written_and_its_json_is_one_object(command):
    example = next(iter(cli.build_parser()._subparsers._group_actions)).choices[command].get_default("module").EXAMPLE
    words = shlex.split(example)
    assert words[:3] == ["python", "-m", "helpers"]
    done = run(*words[3:], "--json")
    assert done.returncode in (0, 1) if command == "doctor" else done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)


def fake(monkeypatch, run_command):
    """Put one planted command behind the real command line."""
    module = SimpleNamespace(
        __doc__="A planted command.", EXAMPLE="", add_arguments=lambda p: None, run=run_command, to_text=str
    )
    monkeypatch.setattr(cli, "COMMANDS", ("planted",))
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)


def test_bad_input_is_one_line_even_when_its_message_has_many(monkeypatch, capsys):
    def bad(args):
        raise InputError("the key 'x'\nis unknown")

    fake(monkeypatch, bad)
    assert cli.main(["planted"]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: the key 'x' is unknown\n")


def test_a_fault_of_ours_is_no_traceback_and_not_the_code_of_bad_input(monkeypatch, capsys):
    fake(monkeypatch, lambda args: 1 / 0)
    monkeypatch.delenv("INFERENCE_LAB_DEBUG", raising=False)
    assert cli.main(["planted"]) == 70
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: internal fault") and "ZeroDivisionError" in err and "Traceback" not in err


def test_a_result_that_json_cannot_hold_is_never_half_printed(monkeypatch, capsys):
    fake(monkeypatch, lambda args: {"a": 1, "b": float("nan")})
    assert cli.main(["planted", "--json"]) == 70
    assert capsys.readouterr().out == ""


def test_json_and_text_are_the_same_result(monkeypatch, capsys):
    fake(monkeypatch, lambda args: {"a": 1})
    assert cli.main(["planted", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": 1}
    assert cli.main(["planted"]) == 0
    assert capsys.readouterr().out == "{'a': 1}\n"
