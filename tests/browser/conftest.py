"""What every test in a real browser needs: Chromium with playwright, else a skip that says so, and the kit."""

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="session", autouse=True)
def _browser():
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed")
    if not (shutil.which("chromium") or shutil.which("chromium-browser")):
        pytest.skip("chromium is not installed")


@pytest.fixture(scope="session")
def lab_kit() -> ModuleType:
    """tests/browser/lab_kit.py: a JupyterLab server of one's own, a page in it, Run All Cells."""
    spec = importlib.util.spec_from_file_location("lab_kit", Path(__file__).with_name("lab_kit.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
