"""The committed notebooks, solutions and labs keep the house rules, and the labs are the solutions with blanks."""

from pathlib import Path

import pytest

from helpers.lab import generate, lint, notebook_file
from helpers.lab.execute import run
from helpers.lab.exercises import exercises_of, labs
from helpers.lab.lint_lab import lab_problems, states

ROOT = Path(__file__).resolve().parents[2]


def notebooks_in(*folders):
    """Parameters, one a committed notebook; a skipped one, saying why, where there is none yet."""
    paths = [path for folder in folders for path in sorted((ROOT / folder).glob("[0-9][0-9]_*.ipynb"))]
    none = pytest.param(None, marks=pytest.mark.skip(reason=f"no notebook in {', '.join(folders)} yet"), id="none")
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in paths] or [none]


@pytest.mark.parametrize("path", notebooks_in("notebooks", "solutions"))
def test_a_notebook_keeps_the_house_rules(path):
    assert lint.notebook_problems(notebook_file.read(path)) == []


@pytest.mark.parametrize("path", notebooks_in("labs"))
def test_a_lab_keeps_the_house_rules(path):
    assert lint.notebook_problems(notebook_file.read(path), executed=False) == []


@pytest.mark.parametrize("path", notebooks_in("notebooks", "solutions"))
def test_a_notebook_is_stored_in_its_normal_form(path):
    assert path.read_text("utf-8") == notebook_file.to_text(notebook_file.normalised(notebook_file.read(path)))


def test_the_labs_regenerate_byte_for_byte():
    assert [path.name for path in generate.stale_labs(ROOT)] == [], "run `make labs`"


@pytest.mark.parametrize("path", notebooks_in("solutions"))
def test_a_lab_fits_its_solution_and_its_exercises(path):
    lab = notebook_file.read(ROOT / "labs" / path.name)
    assert lab_problems(notebook_file.read(path), lab, exercises_of(path.name[:2])) == []


@pytest.mark.parametrize("path", notebooks_in("solutions"))
def test_a_solution_reports_every_exercise_correct(path):
    # The stored outputs; that they are still true is what `pytest --nbval` compares.
    assert states(notebook_file.read(path)) == {e.id: "correct" for e in exercises_of(path.name[:2])}


@pytest.mark.slow
@pytest.mark.parametrize("path", notebooks_in("labs"))
def test_a_blank_lab_runs_through_and_reports_every_exercise_as_not_done(path):
    executed = run(notebook_file.read(path), path.name, path.parent, progress=False)
    assert states(executed) == {exercise.id: "not done" for exercise in exercises_of(path.name[:2])}


def test_every_lab_with_exercises_has_its_solution():
    numbers = {path.name[:2] for path in (ROOT / "solutions").glob("[0-9][0-9]_*.ipynb")}
    if not numbers:
        pytest.skip("no solution yet")
    assert numbers == set(labs())
