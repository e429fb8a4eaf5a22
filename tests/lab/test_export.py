"""The HTML report: complete, offline, honest about failures, and made from copies."""

import re

import pytest
from nbformat import v4

from helpers.errors import InputError
from helpers.lab import export, notebook_file

FIGURE = """from helpers.lab import figures
fig = figures.bars_figure({"A": {"weights": 1.0}}, "Memory (GB)")
figures.show_figure(fig, "One bar of one gigabyte.")"""


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
    code = export.main(["--out", str(folder / "out"), *map(str, sorted(before))])
    assert {path: path.read_bytes() for path in before} == before
    return code, folder / "out"


def test_a_failing_notebook_is_reported_as_failed_and_the_rest_still_appears(report):
    code, out = report
    assert code == 1
    index = (out / "report.html").read_text()
    assert "FAILED: 02_bad.ipynb, cell bad-cell: ZeroDivisionError: division by zero" in index
    assert "<td>ran</td>" in index
    for page in re.findall(r'href="([^"]+)"', index):
        assert (out / page).is_file()
    bad = (out / "report" / "02_bad.html").read_text()
    assert "so far" in bad
    assert "FAILED" in bad


def test_a_page_holds_its_figure_and_formulas_and_asks_the_network_for_nothing(report):
    page = (report[1] / "report" / "01_good.html").read_text()
    assert 'alt="One bar of one gigabyte."' in page
    assert page.count("<math") == 2
    assert not re.search(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=[\"'](?:https?:)?//", page)
    assert not re.search(r"@import\s|url\((?!['\"]?data:)['\"]?https?:", page)


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
