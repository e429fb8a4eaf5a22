"""The minutes in the texts are those that were measured or counted; the rules behave as they say."""

import pytest
from nbformat import v4

from helpers.lab import generate, minutes, notebook_file
from helpers.lab.exercises import exercises_of

KEY = notebook_file.MINUTES_KEY


def test_the_texts_say_the_measured_and_counted_minutes():
    assert minutes.text_problems() == []


@pytest.mark.parametrize(("seconds", "whole"), [(0, 1), (7, 1), (60, 1), (60.1, 2), (124, 3)])
def test_a_run_is_rounded_up_to_whole_minutes(seconds, whole):
    assert minutes.run_minutes(seconds) == whole


def notebook(words=0, code="", printed="", cell_id="some-cell"):
    outputs = [v4.new_output("stream", text=printed)] if printed else []
    prose = v4.new_markdown_cell("word " * words, id="text-cell")
    return v4.new_notebook(cells=[prose, v4.new_code_cell(code, id=cell_id, outputs=outputs)])


def test_reading_grows_with_words_code_printed_lines_and_guesses():
    assert minutes.read_minutes(notebook()) == minutes.READ_STEP
    assert minutes.read_minutes(notebook(words=160 * 20)) == 20
    assert minutes.read_minutes(notebook(code="a = 1\n\n" * 300)) == 10
    assert minutes.read_minutes(notebook(printed="line\n" * 900)) == 15
    fourteen = notebook(words=160 * 12 + 80, cell_id="my-guess")
    assert minutes.read_minutes(fourteen) == 15
    fourteen.cells[1].id = "no-question"
    assert minutes.read_minutes(fourteen) == 10


def test_a_run_writes_its_minutes_into_the_first_cell_and_the_metadata():
    made = notebook(words=160 * 20)
    made.cells[0].source = "- **Time**: about 1 minutes to read, 9 minutes to run here.\n" + made.cells[0].source
    assert minutes.said_minutes(minutes.with_minutes(made, 130)) == (20, 3) and made.metadata[KEY] == 3
    assert "20 minutes to read, 1 minute to run here." in minutes.with_minutes(made, 5).cells[0].source
    lab = notebook()
    assert minutes.with_minutes(lab, 130).cells[0].source == notebook().cells[0].source


def test_a_lab_takes_the_minutes_of_its_exercises_rounded_up_to_ten():
    exact = sum(exercise.minutes for exercise in exercises_of("02"))
    assert 0 <= minutes.lab_minutes("02") - exact < 10 and minutes.lab_minutes("02") % 10 == 0


def test_the_minutes_of_a_run_survive_normalising_and_do_not_reach_the_lab():
    made = notebook()
    for value, kept in ((3, {KEY: 3}), ("3", {}), (True, {})):
        made.metadata[KEY] = value
        assert notebook_file.normalised(made).metadata == notebook_file.NOTEBOOK_METADATA | kept
    made.metadata[KEY] = 3
    assert KEY not in generate.lab_of(made, "01_x.ipynb").metadata


@pytest.fixture
def course(tmp_path):
    """A course of one notebook whose texts agree: 5 minutes to read, 2 to run, 50 for lab 01."""

    def first(time):
        return v4.new_notebook(cells=[v4.new_markdown_cell(f"# Title\n\n- **Time**: {time}.", id="title-cell")])

    made = first("about 5 minutes to read, 2 minutes to run")
    made.metadata[KEY] = 2
    notebook_file.write(made, tmp_path / "notebooks" / "01_x.ipynb")
    lab = minutes.lab_minutes("01")
    notebook_file.write(first(f"about {lab} minutes"), tmp_path / "solutions" / "01_x.ipynb")
    (tmp_path / "README.md").write_text(f"| [01 X](notebooks/01_x.ipynb) | C1 | 5 + {lab} |\n")
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


PLANTED = {
    "reading": ("notebooks/01_x.ipynb", "about 5 minutes", "about 25 minutes", "says (25, 2)"),
    "running": ("notebooks/01_x.ipynb", "2 minutes to run", "1 minute to run", "says (5, 1)"),
    "no time": ("notebooks/01_x.ipynb", "**Time**", "**Tim**", "says (None, None)"),
    "never run": ("notebooks/01_x.ipynb", f'"{KEY}": 2', '"x": 2', "no measured run"),
    "slower run": ("notebooks/01_x.ipynb", f'"{KEY}": 2', f'"{KEY}": 4', "not (5, 4)"),
    "lab": ("solutions/01_x.ipynb", "about 50 minutes", "about 40 minutes", "says 40 minutes, its exercises 50"),
    "map": ("README.md", "5 + 50", "5 + 60", "is 5 + 50, not (5, 60)"),
    "not in the map": ("README.md", "[01 X]", "[1 X]", "not None"),
}


def test_texts_that_agree_pass(course):
    assert minutes.text_problems(course) == []


@pytest.mark.parametrize("kind", PLANTED)
def test_a_text_that_says_other_minutes_is_caught(kind, course):
    name, old, new, expected = PLANTED[kind]
    change(course / name, old, new)
    problems = minutes.text_problems(course)
    assert len(problems) == 1 and expected in problems[0], problems


def test_the_command_prints_a_row_for_each_notebook(capsys):
    assert minutes.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("notebook  read  run  lab") and lines[1].startswith("01")
