"""Links and cross references of the committed texts lead somewhere; each kind of broken one is planted and caught."""

import pytest
from nbformat import v4

from helpers.lab import lint_links, notebook_file

ROOT = lint_links.ROOT


@pytest.mark.parametrize("path", lint_links.files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_and_reference_leads_somewhere(path):
    assert lint_links.problems(path) == []


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A small course with one notebook, one lab, a picture and a page."""
    root = tmp_path_factory.mktemp("course")
    (root / "docs").mkdir()
    (root / "docs" / "page.md").write_text("# A page\n\n## What `it` is: 1, 2\n\n## Twice\n\n## Twice\n")
    (root / "docs" / "picture.png").write_bytes(b"")
    (root / "Makefile").write_text("lab: x\n")
    (root / "helpers" / "commands").mkdir(parents=True)
    (root / "helpers" / "commands" / "account.py").write_text("")
    for folder in ("notebooks", "labs"):
        cells = [v4.new_markdown_cell("# Title", id="title-cell"), v4.new_markdown_cell("## 1. One", id="one-cell")]
        notebook_file.write(v4.new_notebook(cells=cells), root / folder / "01_x.ipynb")
    return root


def said(course, text):
    """The problems of `text` as a cell of a notebook, and as a page of docs."""
    path = course / "notebooks" / "02_planted.ipynb"
    cells = [v4.new_markdown_cell("## 3. Three", id="three-cell"), v4.new_markdown_cell(text, id="text-cell")]
    notebook_file.write(v4.new_notebook(cells=cells), path)
    try:
        return lint_links.problems(path, course)
    finally:
        path.unlink()


SOUND = """[page](../docs/page.md), [its part](../docs/page.md#what-it-is-1-2), [again](../docs/page.md#twice-1),
[another](01_x.ipynb#1.-One), [here](#3.-Three), ![A picture.](../docs/picture.png),
<img src="../docs/picture.png">, [x#12](https://github.com/a/b/issues/12), <https://example.org>,
http://127.0.0.1:8000/v1, notebook 01, lab 01, notebook 01, section 1, section 3, exercise 1.1, claims C1 to C24, Q3,
`docs/page.md`, `helpers/commands`, `python -m helpers account x`, `make lab`, cell `three-cell`, `labs/my_01.ipynb`"""


def test_sound_links_and_references_pass(course):
    assert said(course, SOUND) == []


PLANTED = {
    "file": ("[page](../docs/gone.md)", "../docs/gone.md leads to no file"),
    "file beside": ("[other](07_x.ipynb)", "07_x.ipynb leads to no file"),
    "outside": ("[out](../../../)", "leaves the repository"),
    "no target": ("[page]()", "a link without a target"),
    "anchor of a page": ("[part](../docs/page.md#what-it-was)", "#what-it-was leads to no heading"),
    "anchor twice": ("[again](../docs/page.md#twice-2)", "#twice-2 leads to no heading"),
    "anchor of a notebook": ("[one](01_x.ipynb#1-one)", "#1-one leads to no heading"),
    "anchor here": ("[here](#4.-Four)", "#4.-Four leads to no heading"),
    "picture": ("![A picture.](../docs/gone.png)", "gone.png leads to no file"),
    "picture tag": ("<img alt='x' src='gone.png'>", "gone.png leads to no file"),
    "plain http": ("[x](http://example.org/a)", "http://example.org/a is not https"),
    "bare http": ("see http://example.org/a.", "http://example.org/a is not https"),
    "no host": ("[x](https://example/a)", "https://example/a has no host"),
    "issue": ("[x#12](https://github.com/a/b/issues/13)", "is called x#12 and leads to"),
    "paper": ("[arXiv 2405.04434](https://arxiv.org/abs/2405.04435)", "is called arXiv 2405.04434"),
    "path": ("`helpers/gone.py`", "`helpers/gone.py` is no path"),
    "command": ("`python -m helpers acount x`", "acount` is no command"),
    "program": ("`python -m helpers.lab.gone`", "helpers.lab.gone` is no program"),
    "make target": ("`make coffee`", "`make coffee` is no target"),
    "notebook": ("see notebook 09", "there is no notebook 09"),
    "one of several": ("notebooks 01 and 09", "there is no notebook 09"),
    "lab": ("see lab 02", "there is no lab 02"),
    "section here": ("see section 2", "there is no section 2 in 02_planted"),
    "section there": ("see notebook 01, section 3", "there is no section 3 in 01_x"),
    "exercise": ("see exercise 1.99", "there is no exercise 1.99"),
    "claim": ("as C25 says", "there is no C25"),
    "no claim": ("as **C0** says", "there is no C0"),
    "question": ("(Q4)", "there is no Q4"),
    "cell": ("see cell `four-cell`", "there is no cell four-cell"),
}


@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_broken_link_is_caught(kind, course):
    text, expected = PLANTED[kind]
    problems = said(course, text)
    assert len(problems) == 1 and problems[0].startswith("text-cell: ") and expected in problems[0], problems


def test_what_stands_in_a_code_block_is_no_link(course):
    assert said(course, "```\n[page](gone.md) C99\n```") == []


def test_the_list_of_links_to_elsewhere_names_each_once(capsys):
    assert lint_links.main(["--external"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == sorted(set(listed)) and "https://www.clxhxhhr.top/posts/5528/" in listed
    assert all(url.startswith("https://") for url in listed)


def test_the_command_names_what_is_broken_and_exits_1(tmp_path, capsys):
    (tmp_path / "a.md").write_text("[x](gone.md)")
    assert lint_links.main([str(tmp_path / "a.md")]) == 1
    assert capsys.readouterr().out == "a.md: a.md: the link gone.md leads to no file\n"
    assert lint_links.main([str(tmp_path / "gone.md")]) == 2
