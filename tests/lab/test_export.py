"""The HTML report: complete, offline, honest about failures, and made from copies."""

import contextlib
import io
import os
import re

import pytest
from nbformat import v4

from helpers.errors import InputError
from helpers.lab import export, ledger, notebook_file, report_page
from helpers.measure import machine

FIGURE = """from helpers.lab import figures
fig = figures.bars_figure({"A": {"weights": 1.0}}, "Memory (GB)")
figures.show_figure(fig, "One bar of one gigabyte.")"""


said: dict[str, str] = {}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    good = [
        v4.new_markdown_cell("# Good *news*\n\nTime $t = \\frac{b}{B}$ and\n\n$$E = mc^2$$", id="good-title"),
        v4.new_code_cell(FIGURE, id="good-figure"),
    ]
    bad = [
        v4.new_markdown_cell("# Bad <news>", id="bad-title"),
        v4.new_code_cell("print('so far')", id="bad-begin"),
        v4.new_code_cell("1 / 0", id="bad-cell"),
    ]
    for name, cells in (("01_good", good), ("02_bad", bad)):
        notebook_file.write(v4.new_notebook(cells=cells), folder / f"{name}.ipynb")
    before = {path: path.read_bytes() for path in folder.glob("*.ipynb")}
    old = folder / "out" / "report" / "09_old.ipynb"
    old.parent.mkdir(parents=True)
    old.write_text("{}")
    with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()) as stdout:
        code = export.main(["--out", str(folder / "out"), *map(str, sorted(before))])
    assert {path: path.read_bytes() for path in before} == before
    assert not old.exists(), "what an older run left is not part of this report"
    said.update(stderr=stderr.getvalue(), stdout=stdout.getvalue())
    return code, folder / "out"


def test_a_failing_notebook_is_reported_as_failed_and_the_rest_still_appears(report):
    code, out = report
    assert code == 1
    index = (out / "report.html").read_text()
    assert "FAILED: 02_bad.ipynb, cell bad-cell: ZeroDivisionError: division by zero" in index
    assert "<title>1 FAILED: " in index and '<p class="lead"><strong>1 FAILED: 02_bad.ipynb, cell bad-cell: ' in index
    assert "<td>ran</td>" in index
    ids = re.findall(r' id="([^"]+)"', index)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="([^"]+)"', index):
        assert target[1:] in ids if target.startswith("#") else (out / target).is_file()
    bad = (out / "report" / "02_bad.html").read_text()
    assert "so far" in bad
    assert "FAILED" in bad


def test_a_page_holds_its_figure_and_formulas_and_asks_the_network_for_nothing(report):
    page = (report[1] / "report" / "01_good.html").read_text()
    assert 'alt="One bar of one gigabyte."' in page
    assert page.count("<math") == 2
    assert not re.search(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"'](?:https?:)?//", page)
    assert not re.search(r"@import\s|url\((?!['\"]?data:)['\"]?https?:", page)


def test_the_report_shows_figures_machine_and_claims_without_a_stored_number(report):
    index = (report[1] / "report.html").read_text()
    assert '<img alt="One bar of one gigabyte." src="data:image/png;base64,' in index
    assert "<figcaption>One bar of one gigabyte. (good-figure)</figcaption>" in index
    assert machine().cpu in index
    assert f"python {machine().versions['python']}" in index
    assert "1 of 2 notebooks ran" in index
    assert "0 of 27 claims and questions are shown" in index
    assert "not shown: notebook 03_kv_cache_size was not run" in index
    assert "Nothing was measured. Not shown: " in index


def test_progress_tells_the_minutes_and_the_end_tells_where_the_page_is(report):
    assert "report: notebook 2 of 2, 02_bad.ipynb; " in said["stderr"]
    assert re.search(r"report: 01_good.ipynb ran in \d+ s", said["stderr"])
    assert said["stdout"] == f"{report[1] / 'report.html'}: 1 of 2 notebooks ran\n"


def test_the_executed_copies_lie_beside_their_pages_and_kernels_are_told_where(report):
    executed = notebook_file.read(report[1] / "report" / "01_good.ipynb")
    assert executed.cells[1].outputs
    assert ledger.FOLDER_VARIABLE not in os.environ
    with export._executed_folder(report[1]):
        assert ledger.executed_folder() == report[1]


def test_a_report_that_was_broken_off_says_so():
    chapter = report_page.Chapter("01_good.ipynb", "Good", 90.0, "")
    page = report_page.report([chapter], {}, "report", planned=3)
    assert "1 of 3 notebooks ran in 1.5 minutes. The run has not ended, or was broken off: 2 were not reached." in page


def test_a_cell_that_the_ledger_cites_stands_on_the_page_with_its_anchor():
    notebooks = {"01_two_accounts": notebook_file.read(ledger.NOTEBOOKS / "01_two_accounts.ipynb")}
    page = report_page.report([report_page.Chapter("01_two_accounts.ipynb", "Two", 1.0, "")], notebooks, "report")
    assert 'href="#01_two_accounts--verdict-table"' in page
    assert '<h3 id="01_two_accounts--verdict-table">' in page
    assert "C6  loose" in page


def test_a_notebook_in_the_folder_of_the_pages_and_two_of_one_name_are_refused(tmp_path, capsys):
    for folder in ("report", "a", "b"):
        notebook_file.write(v4.new_notebook(cells=[v4.new_code_cell("1", id="one")]), tmp_path / folder / "01_x.ipynb")
    assert export.main(["--out", str(tmp_path), str(tmp_path / "report" / "01_x.ipynb")]) == 2
    assert "lies in the folder" in capsys.readouterr().err
    assert export.main(["--out", str(tmp_path / "o"), *(str(tmp_path / f / "01_x.ipynb") for f in "ab")]) == 2
    assert "same file name" in capsys.readouterr().err
    assert (tmp_path / "report" / "01_x.ipynb").exists()


def test_titles_are_escaped(report):
    assert "Bad &lt;news&gt;" in (report[1] / "report.html").read_text()


def test_an_image_without_alt_text_is_refused():
    picture = v4.new_output("display_data", {"image/png": "iVBORw0KGgo="})
    notebook = v4.new_notebook(cells=[v4.new_code_cell("plot()", id="plot-cell", outputs=[picture])])
    with pytest.raises(InputError, match="a figure has no alt text"):
        export.to_html(notebook, "01 x", "banner")


def test_nothing_to_report_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(export, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    assert export.main([]) == 2
    assert "no notebook to report on" in capsys.readouterr().err
