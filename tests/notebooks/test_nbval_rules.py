"""What nbval compares: the words of a figure, not its pixels; and the one rule that makes it so."""

import copy
import re
import subprocess
import sys
from pathlib import Path

import pytest
from nbformat import v4
from nbval.plugin import get_sanitize_patterns

from helpers.lab import execute, notebook_file

RULES = Path(__file__).with_name("nbval-sanitize.txt")
OTHER_PICTURE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUg=="
FIGURE = """from helpers.lab import figures
fig = figures.bars_figure({"A": {"weights": 1.0}}, "Memory (GB)")
figures.show_figure(fig, "One bar of one gigabyte.", "A takes 1 GB")"""


def sanitised(text):
    for pattern, replacement in get_sanitize_patterns(RULES.read_text()):
        text = re.sub(pattern, replacement, text)
    return text


def test_there_is_exactly_one_rule_and_it_masks_pictures_alone():
    # nbval drops a rule it cannot parse without a word, so the rules are counted and tried.
    assert len(get_sanitize_patterns(RULES.read_text())) == 1
    image = f'<img alt="One bar." src="{OTHER_PICTURE}">'
    assert sanitised(image) == '<img alt="One bar." src="data:image/png;base64,not-compared">'
    for kept in ("16,060,522,496 bytes", "base64,abc", "Figure: A takes 1 GB", '<img alt="x" src="plot.png">'):
        assert sanitised(kept) == kept


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    notebook = v4.new_notebook(cells=[v4.new_code_cell(FIGURE, id="one-figure")])
    return execute.run(notebook, "figure.ipynb", tmp_path_factory.mktemp("figure"), progress=False)


def nbval(folder, stored):
    """Run nbval once over one notebook made of the given cells; whether each passed, in order."""
    for number, cell in enumerate(stored, 1):
        cell.update(id=f"figure-{number}", execution_count=number)
    notebook_file.write(v4.new_notebook(cells=stored, metadata=notebook_file.NOTEBOOK_METADATA), folder / "x.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", f"--nbval-sanitize-with={RULES}", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-rA", "-q", "--color=no", f"--rootdir={folder}", "."], cwd=folder, capture_output=True, text=True
    )
    found = re.findall(r"^(PASSED|FAILED) x\.ipynb::Cell (\d+)", done.stdout, flags=re.MULTILINE)
    assert len(found) == len(stored), done.stdout + done.stderr
    return [state == "PASSED" for state, _ in sorted(found, key=lambda pair: int(pair[1]))]


def test_a_new_picture_passes_and_a_changed_word_does_not(executed, tmp_path):
    def edited(change):
        cell = copy.deepcopy(executed.cells[0])
        change(cell.outputs)
        return cell

    def set_html(outputs, pattern, new):
        outputs[0].data["text/html"], count = re.subn(pattern, new, outputs[0].data["text/html"])
        assert count == 1

    same = edited(lambda outputs: None)
    new_picture = edited(lambda o: set_html(o, r"data:image/png;base64,[^\"]+", OTHER_PICTURE))
    new_alt = edited(lambda o: set_html(o, "One bar", "Two bars"))
    new_summary = edited(lambda o: o[1].update(text="Figure: A takes 2 GB\n"))
    assert nbval(tmp_path, [same, new_picture, new_alt, new_summary]) == [True, True, False, False]
