"""The first notebook in JupyterLab in a real browser, with the network taken away where the system allows it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import v4

from helpers.lab import export, notebook_file

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "01_two_accounts.ipynb"
LOOK = [sys.executable, str(Path(__file__).with_name("screenshot.py"))]


def without_network():
    """The command prefix that leaves a process only the loopback device; [] where the system forbids it."""
    prefix = ["unshare", "-n"] if os.geteuid() == 0 else ["unshare", "-rn"]
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return []
    return prefix if subprocess.run([*prefix, "true"], capture_output=True).returncode == 0 else []


def look(path, *options):
    """Open `path` in the browser; what was seen there (text, images, images without alt text, faults)."""
    prefix = without_network()
    loopback = ["--loopback"] if prefix else []
    done = subprocess.run([*prefix, *LOOK, str(path), *options, *loopback], capture_output=True, text=True)
    assert done.stdout, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not NOTEBOOK.exists(), reason="notebooks/01_two_accounts.ipynb does not exist yet")
def test_a_learner_runs_the_first_notebook_and_nothing_calls_outside():
    seen = look(NOTEBOOK, "--run")
    assert seen["faults"] == []
    assert "Notebook 01 is ready." in seen["text"]
    assert seen["no_alt"] == 0


@pytest.mark.slow
def test_faults_of_a_notebook_are_seen(tmp_path):
    cells = [
        v4.new_markdown_cell('# Bad\n\n<img src="https://example.org/x.png">', id="bad-title"),
        v4.new_code_cell("1 / 0", id="bad-cell"),
    ]
    notebook_file.write(notebook_file.normalised(v4.new_notebook(cells=cells)), tmp_path / "bad.ipynb")
    seen = look(tmp_path / "bad.ipynb", "--run", "--seconds", "60")
    assert any("outside call: https://example.org/x.png" in fault for fault in seen["faults"])
    assert any("ZeroDivisionError" in fault for fault in seen["faults"])
    assert seen["no_alt"] == 1


@pytest.mark.slow
def test_a_page_of_the_report_opens_from_the_disk_without_a_fault_or_an_outside_call(tmp_path):
    image = v4.new_output(
        "display_data", {"text/html": '<img alt="One bar of bytes." src="data:image/gif;base64,R0lGOD">'}
    )
    cells = [
        v4.new_markdown_cell("# Page\n\nTime $t = \\frac{b}{B}$.", id="page-title"),
        v4.new_code_cell("show()", id="page-figure", execution_count=1, outputs=[image]),
    ]
    notebook = notebook_file.normalised(v4.new_notebook(cells=cells))
    page = tmp_path / "page.html"
    page.write_text(export.to_html(notebook, "Page", "ran here"))
    seen = look(page)
    assert seen["faults"] == []
    assert (seen["images"], seen["no_alt"]) == (1, 0)
    assert "ran here" in seen["text"]
    assert "$t" not in seen["text"]
