"""The `claim` command: a number only with all its conditions, and the questions for those that are missing."""

import json

import pytest

from helpers import cli
from helpers.accounts.claim import CONDITIONS

ALL = [argument for name in CONDITIONS for argument in (f"--{name.replace('_', '-')}", f"the {name} said")]


@pytest.fixture
def command(monkeypatch, capsys):
    """Run ``claim`` with arguments; gives exit code, stdout, stderr."""
    monkeypatch.setattr(cli, "COMMANDS", ("claim",))

    def run(*arguments):
        try:
            code = cli.main(["claim", *arguments])
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_an_incomplete_claim_gives_no_factor_and_asks_for_each_missing_condition(command):
    code, out, err = command("ten times in a year", "--factor", "10", "--parameters", "the same", "--json")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert (result["complete"], result["factor"]) == (False, None)
    assert result["missing"] == [name for name in CONDITIONS if name != "parameters"]
    assert result["questions"] == {name: CONDITIONS[name] for name in result["missing"]}
    text = command("ten times in a year", "--factor", "10", "--parameters", "the same")[1]
    assert "5 of 6 conditions are missing" in text
    for name in result["missing"]:
        assert CONDITIONS[name] in text


def test_a_complete_claim_gives_its_factor_with_its_conditions(command):
    code, out, _ = command("an H200 decodes faster", "--factor", "1.43", *ALL, "--json")
    result = json.loads(out)
    assert code == 0
    assert (result["complete"], result["missing"], result["factor"]) == (True, [], 1.43)
    text = command("an H200 decodes faster", "--factor", "1.43", *ALL)[1]
    assert "1.43 times" in text
    assert all(f"the {name} said" in text for name in CONDITIONS)


def test_nothing_is_guessed_from_the_statement_and_blank_is_missing(command):
    _, out, _ = command("10x on MMLU against GPT-4 on one H100 at batch 1", "--factor", "10", "--load", " ", "--json")
    assert json.loads(out)["missing"] == list(CONDITIONS)


@pytest.mark.parametrize("factor", ["0", "-2", "nan", "inf"])
def test_a_factor_that_is_no_positive_number_is_refused_also_without_conditions(command, factor):
    code, out, err = command("faster", f"--factor={factor}")
    assert (code, out) == (2, "")
    assert err.startswith("error: factor must be a finite number above zero")


def test_an_empty_statement_is_refused(command):
    assert command("  ", "--factor", "2")[0] == 2
