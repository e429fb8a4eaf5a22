"""Fixtures every room uses."""

import json
from pathlib import Path

import pytest
from hypothesis import settings

# No test asserts a time: hypothesis' own limit per example fails on a busy machine.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The root folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of ground truth beside the checkout; tests that need it skip, saying so, when it is absent."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("the ground-truth folder ../shared is absent")
    return folder


@pytest.fixture(scope="session")
def facts(shared: Path):
    """Read one JSON file of the ground truth: ``facts("hardware.json")``."""
    return lambda name: json.loads((shared / "facts" / name).read_text(encoding="utf-8"))


@pytest.fixture
def told(record_property):
    """Tell a line of results, ``told("score +35 of 66")``: all of them stand at the end of the run."""
    return lambda line: record_property("told", line)


def pytest_terminal_summary(terminalreporter):
    """What tests measured beside passing: scores and distributions that a person wants to read."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    calls = [report for report in reports if getattr(report, "when", None) == "call"]
    lines = [line for report in calls for name, line in report.user_properties if name == "told"]
    if lines:
        terminalreporter.section("told by tests")
        terminalreporter.write_line("\n".join(lines))


@pytest.fixture(scope="session")
def smollm2_path():
    """The checkpoint folder of SmolLM2 in the user's cache; skips, saying why, on a machine that cannot fetch it."""
    from helpers.engine import smollm2_folder
    from helpers.errors import InputError

    try:
        return smollm2_folder()
    except InputError as error:
        if "cannot fetch" not in str(error):
            raise
        pytest.skip(str(error))
