"""Each way a lab can fail to fit its solution is planted and caught."""

import copy

import pytest
from nbformat import v4

from helpers.lab import generate
from helpers.lab.exercises import find
from helpers.lab.lint_lab import lab_problems, states

EXERCISE = find("1.1")
ANSWER = """def weight_bytes(parameters, bits_per_parameter):
    ### BEGIN SOLUTION
    def bytes_of(bits):
        return bits / 8

    return bytes_of(parameters * bits_per_parameter)
    ### END SOLUTION


check.exercise("1.1", weight_bytes)"""


def pair():
    """A solution and the lab made from it."""
    solution = v4.new_notebook(
        cells=[
            v4.new_markdown_cell("# Lab", id="lab-title"),
            v4.new_code_cell("def shown(x):\n    return x", id="given-code"),
            v4.new_code_cell("def hidden(x):\n    return x", id="solved-code", metadata={"tags": ["solution-only"]}),
            v4.new_markdown_cell(EXERCISE.header(), id="exercise-1-1"),
            v4.new_code_cell(ANSWER, id="exercise-1-1-answer"),
        ]
    )
    return solution, generate.lab_of(solution, "01_x.ipynb")


def test_a_generated_lab_fits_its_solution():
    assert lab_problems(*pair(), [EXERCISE]) == []


def edit(cell_id, old, new):
    def change(notebook):
        (cell,) = [cell for cell in notebook.cells if cell.id == cell_id]
        assert old in cell.source
        cell.source = cell.source.replace(old, new)

    return change


def nothing(notebook):
    pass


PLANTED = {
    "other arguments": (nothing, edit("exercise-1-1-answer", "(parameters,", "(params,"), "has other arguments"),
    "function gone": (nothing, edit("given-code", "def shown(x):\n    return x", "x = 1"), "lacks the function shown"),
    "blank filled": (
        nothing,
        edit("exercise-1-1-answer", "raise NotImplementedError", "return print"),
        "the blank does not raise",
    ),
    "answer in the text": (nothing, edit("lab-title", "Lab", "Lab: return bits / 8"), "gives away a line"),
    "header edited": (edit("exercise-1-1", "●", "○"), nothing, "its header is missing or old"),
    "check forgotten": (edit("exercise-1-1-answer", "check.exercise(", "print("), nothing, "does not check it"),
    "no blank": (edit("exercise-1-1-answer", "### BEGIN", "# begin"), nothing, "has no solution for it"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_misfit_is_caught(name):
    change_solution, change_lab, said = PLANTED[name]
    solution, lab = pair()
    change_solution(solution)
    change_lab(lab)
    problems = lab_problems(solution, lab, [EXERCISE])
    assert any(said in problem for problem in problems), problems


def test_an_exercise_of_another_lab_is_caught():
    solution, lab = pair()
    assert "cell exercise-1-1-answer: an exercise of another lab" in lab_problems(solution, lab, [])


def test_the_states_are_read_from_the_checks_and_not_from_the_fallback_lines():
    solution, _ = pair()
    text = "Exercise 1.1: not yet. f(1) gave 2; expected 3.\nExercise 1.1: not done; from here on the reference\n"
    cell = copy.deepcopy(solution.cells[-1])
    cell.outputs = [v4.new_output("stream", text=text + "Exercise 1.2: correct (9 cases).\n")]
    assert states(v4.new_notebook(cells=[cell])) == {"1.1": "not yet", "1.2": "correct"}
