"""Every number in prose has a source: the committed texts pass, planted wrong numbers and wrong sources do not."""

import dataclasses
import functools
import inspect
import json
import math
import random
import re

import pytest
from nbformat import v4

from helpers import accounts, engine, measure
from helpers.errors import InputError
from helpers.lab import lint_text, notebook_file
from helpers.lab.lint_text import Citation, citations, cited_numbers, prose_only
from helpers.lab.prose import agrees, numbers_of_code, numbers_of_output, numbers_of_text

NAMES = [path.relative_to(lint_text.ROOT).as_posix() for path in lint_text.files()]
CITED = citations()


@pytest.mark.parametrize("name", NAMES)
def test_every_number_in_the_prose_has_a_source(name):
    assert lint_text.problems(lint_text.ROOT / name, CITED) == []


def other_number(text, rng):
    """A wrong number of the same form: as many digits, the same signs between them."""
    while True:
        new = "".join(rng.choice("0123456789") if sign.isdigit() else sign for sign in text)
        if new != text and not re.match(r"0[\d,]", new):
            return new


@functools.cache
def places(name):
    """Every number of a text that the lint looks at: (name, section, cell, text, number)."""
    return [
        (name, section, cell, text, number)
        for section in lint_text.sections_of(lint_text.ROOT / name)
        for cell, text in section.prose.items()
        for number in numbers_of_text(prose_only(text))
    ]


def is_caught(name, section, cell, text, number, wrong):
    figures = re.match(r"[\d,._]+", number.text)[0]
    changed = text[: number.start] + wrong + text[number.start + len(figures) :]
    cited = [c for c in CITED if c.file in ("*", name)]
    sections = (dataclasses.replace(section, prose={cell: t}) for t in (text, changed))
    before, after = (len(list(lint_text.text_problems([s], cited))) for s in sections)
    return after > before


def test_nine_in_ten_planted_wrong_numbers_are_caught(told):
    rng, everywhere = random.Random(6), [place for name in NAMES for place in places(name)]
    planted = 3 * everywhere
    caught = sum(is_caught(*place, other_number(re.match(r"[\d,._]+", place[-1].text)[0], rng)) for place in planted)
    told(f"lint_text: {caught} of {len(planted)} planted wrong numbers caught, {len(everywhere)} numbers, three each")
    assert caught > 0.9 * len(planted)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "docs/endpoints.md"])
def test_a_wrong_number_is_caught_in_every_text(name):
    *place, number = max(places(name), key=lambda place: len(place[-1].digits))
    figures = re.match(r"[\d,._]+", number.text)[0]
    assert is_caught(*place, number, other_number(figures, random.Random(1)))


def one(text):
    (number,) = numbers_of_text(text)
    return number


def code(text):
    (number,) = numbers_of_code(text, "c")
    return number


@pytest.mark.parametrize(
    ("written", "source", "same"),
    [
        ("2.62 MB", "2.6214 MB", True),
        ("2.62 MB", "2,621,440 bytes", True),
        ("2.63 MB", "2,621,440 bytes", False),
        ("2.50 MiB", "2.62144 MB", True),
        ("2.50 MB", "2.50 MiB", False),
        ("57 %", "0.57", True),
        ("57 %", "0.574", True),
        ("57 %", "0.58", False),
        ("57.3 %", "57%", False),
        ("0.6 s", "600 ms", True),
        ("600 ms", "0.6", True),
        ("16,384", "16384", True),
        ("16,384", "16,385", False),
        ("about 14,000", "14,848", False),
        ("about 15,000", "14,848", True),
        ("15,000", "14,848", False),
        ("8 k", "8192", True),
        ("8 k", "9000", False),
        ("671 B", "671.03 B", True),
        ("37 B", "36,625,603,584", True),
        ("30 ms", "30 MB", False),
    ],
)
def test_a_number_agrees_across_units_and_rounding(written, source, same):
    assert agrees(one(written), one(source)) is same


def test_the_name_of_a_variable_gives_its_literal_a_unit():
    assert agrees(one("5 ms"), code("timeout_ms = 5"))
    assert not agrees(one("5 s"), code("timeout_ms = 5"))
    assert [n.value for n in numbers_of_code('print(f"{x:7.2f} of 12")', "c")] == [12]


def test_what_a_figure_says_of_itself_is_no_source():
    assert [n.value for n in numbers_of_output("[figure: 7 bars]\nFigure: 8 of 9\n10 tokens", "c")] == [10]


NOT_LOOKED_AT = {
    "code": "with `tp=16` and `engine_7`",
    "link": "[a](x_17.ipynb), <https://e.org/18>, https://e.org/19",
    "tag": '<img width="17">',
    "heading": "## 17. Title\n\n### Exercise 1.7: title",
    "list": "3. first\n4. second",
    "claim": "C16 to C20, Q1",
    "reference": "notebooks 04 and 05, section 7, exercise 3.2, issue 1144, [x#12](y), question 2",
    "minutes": "- **Time**: about 25 minutes to read.\n\n**Minutes**: 5 · **Difficulty**: ●● (2 of 5)",
    "year": "a trace of 2023",
    "version": "Python 3.11, guidellm 0.8.1, CC BY-NC-SA 4.0, Apache License 2.0",
    "paper": "[arXiv 2405.04434](https://arxiv.org/abs/2405.04434), CACM 52(4)",
    "name": "Llama-3.1-8B, H100, A100-80, bf16, P95, Gemma 4",
    "unit": "1 GB is 10⁹ bytes, 1 GiB is 2³⁰ bytes",
    "none or all": "0 % to 100 %, top-1",
    "zero or one": "near 1, above 0; 1 is even; N − 1, (1 − k/E), N·(N+1)/2",
    "fence": "```\nx = 17\n```",
}


@pytest.mark.parametrize("kind", NOT_LOOKED_AT)
def test_an_exempt_kind_is_not_looked_at(kind):
    assert [n.text for n in numbers_of_text(prose_only(NOT_LOOKED_AT[kind]))] == []


@pytest.mark.parametrize(
    "text",
    [
        "`17`",
        "17 layers",
        "1.5 times",
        "10 %",
        "100 ms",
        "1 s",
        "2,048 tokens",
        "2048 tokens",
        "0.9 of it",
        "top-8",
        "× 80",
        "1 expert",
        "at 1.5",
    ],
)
def test_what_looks_like_an_exempt_kind_but_is_none_is_looked_at(text):
    assert len(list(numbers_of_text(prose_only(text)))) == 1


def notebook(tmp_path, prose, source="layers = 17", printed="", tags=()):
    outputs = [v4.new_output("stream", text=printed)] if printed else []
    cell = v4.new_code_cell(source, id="code-cell", outputs=outputs, metadata={"tags": list(tags)})
    cells = [
        v4.new_markdown_cell("## Before", id="before-cell"),
        v4.new_code_cell("other = 23", id="other-cell"),
        v4.new_markdown_cell(f"## Title\n\n{prose}", id="text-cell"),
        cell,
    ]
    path = tmp_path / "09_x.ipynb"
    notebook_file.write(v4.new_notebook(cells=cells), path)
    return path


def said(tmp_path, prose, *cited, **cell):
    return lint_text.problems(notebook(tmp_path, prose, **cell), tuple(cited), tmp_path)


def test_a_number_stands_by_code_or_by_what_a_claim_cell_printed(tmp_path):
    assert said(tmp_path, "It has 17 layers.") == []
    assert said(tmp_path, "It takes 5.12 MB.", printed="size 5,123,456 bytes\n") == []


def test_a_number_of_another_section_or_about_something_else_is_no_source(tmp_path):
    assert "'23' has no source" in said(tmp_path, "The other has 23 layers.")[0]
    assert "'17' has no source" in said(tmp_path, "Take 17 apples.")[0]


def test_a_number_that_only_a_clock_cell_printed_may_not_stand_in_prose(tmp_path):
    problems = said(tmp_path, "A step takes 33.9 ms here.", printed="step 33.9 ms", tags=["nbval-ignore-output"])
    assert len(problems) == 1 and "only a clock cell printed it" in problems[0]


def cite(words, source="a data sheet", cell="text-cell"):
    return Citation("09_x.ipynb", cell, words, "what it is", source)


def test_a_citation_covers_its_own_words_and_no_other_number(tmp_path):
    assert said(tmp_path, "A card of 96 GB.", cite("card of 96 GB")) == []
    wrong = said(tmp_path, "A card of 95 GB.", cite("card of 96 GB"))
    assert any("'95 GB' has no source" in p for p in wrong) and any("does not stand there" in p for p in wrong)


def test_a_citation_of_a_cell_is_held_against_it(tmp_path):
    assert said(tmp_path, "Take 17 apples.", cite("17 apples", "cell code-cell")) == []
    for cell in ("cell other-cell", "cell gone"):
        assert "which lacks it" in said(tmp_path, "Take 17 apples.", cite("17 apples", cell))[0]


def test_an_entry_without_a_source_or_with_an_unknown_key_is_refused(tmp_path):
    path = tmp_path / "cited.json"
    entry = {"file": "x", "cell": "y", "words": "5 GB", "what": "z", "source": ""}
    for bad, reason in ((entry, "empty field"), (entry | {"source": "s", "valeu": "1"}, "valeu")):
        path.write_text(json.dumps({"numbers": [bad]}))
        with pytest.raises(InputError, match=reason):
            citations(path)


def names():
    """What the expressions of the citations may use."""
    return {
        "accounts": accounts,
        "engine": engine,
        "measure": measure,
        "math": math,
        "model": accounts.read_config,
        "device": accounts.device,
        "mla": accounts.read_config("deepseek-v3").layers[0].attention,
        "default": lambda f, name: inspect.signature(f).parameters[name].default,
    }


@pytest.mark.parametrize("citation", [c for c in CITED if c.value], ids=lambda c: f"{c.cell}: {c.words}")
def test_a_cited_number_is_the_one_that_its_expression_computes(citation):
    value = eval(citation.value, names())
    values = value if isinstance(value, tuple) else (value,)
    numbers = cited_numbers(citation)
    assert len(numbers) == len(values), "one value for each number of the words"
    for number, computed in zip(numbers, values, strict=True):
        bare = one(repr(float(computed)))
        assert agrees(number, bare), f"{number.text} is not {computed}"


def test_every_citation_holds_a_number_and_most_that_can_be_are_recomputed(capsys):
    assert all(re.search(r"\d", c.words) and (c.file == "*") == (c.cell == "*") for c in CITED)
    held = sum(bool(c.value) or c.source.startswith("cell ") for c in CITED)
    with capsys.disabled():
        print(f"\ncited_numbers.json: {held} of {len(CITED)} entries are recomputed or bound to a cell")
    assert held > len(CITED) / 2


def test_the_command_prints_problems_and_exits_1(tmp_path, capsys):
    good, bad = tmp_path / "good.md", tmp_path / "bad.md"
    good.write_text("# Title\n\nNo number.\n")
    bad.write_text("# Title\n\nIt takes 33 hours.\n")
    assert lint_text.main([str(good)]) == 0
    assert lint_text.main([str(bad)]) == 1
    assert capsys.readouterr().out.startswith("bad.md: Title: '33' has no source")
    assert lint_text.main([str(tmp_path / "gone.md")]) == 2
