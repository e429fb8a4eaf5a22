"""The contract of the command line that every command keeps."""

import json
import os
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest

from helpers import cli
from helpers.errors import InputError


def run(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "helpers", *arguments], capture_output=True, text=True, **options)


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


def test_an_argument_with_line_breaks_is_still_refused_in_one_line():
    done = run("doctor", "--no-such-option", "a\nb")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_a_terminal_without_unicode_gets_the_text_and_no_traceback():
    done = run("account", "llama-3.1-8b", "--gpu", "H100 SXM", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 ? H100 SXM" in done.stdout


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full, a stdout that takes nothing")
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_a_stdout_that_takes_nothing_is_one_line_and_no_success(redirection):
    line = f"{shlex.quote(sys.executable)} -m helpers account llama-3.1-8b {redirection}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == 74
    assert done.stderr.startswith("error: the result could not be written") and done.stderr.count("\n") == 1


def test_a_reader_that_stops_early_is_no_error():
    line = f"{{ {shlex.quote(sys.executable)} -m helpers account llama-3.1-8b; echo rc=$? >&2; }} | true"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.stderr == "rc=0\n"


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


def test_doctor_works_where_another_command_cannot_be_imported(monkeypatch, capsys):
    real = cli.importlib.import_module

    def broken(name):
        if name != "helpers.commands.doctor":
            raise ImportError(name)
        return real(name)

    monkeypatch.setattr(cli.importlib, "import_module", broken)
    assert cli.main(["doctor", "--json"]) in (0, 1)
    assert json.loads(capsys.readouterr().out)["checks"]
