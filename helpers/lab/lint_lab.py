"""Does a lab fit its solution: same functions, blanks that raise, no answer left in it, every exercise complete."""

import ast
import re
from collections.abc import Sequence

from nbformat import NotebookNode

from helpers.lab.exercise import Exercise
from helpers.lab.generate import BEGIN, END
from helpers.lab.lint import code_cells, output_texts

TELLING_CHARACTERS = 12
"""A shorter line of a solution (`else:`, `return x`) may well stand in a lab and gives nothing away."""


def lab_problems(solution: NotebookNode, lab: NotebookNode, exercises: Sequence[Exercise]) -> list[str]:
    """What is wrong between a solved notebook, its lab, and the definitions of its exercises; [] where all fits."""
    return [
        *_function_problems(solution, lab),
        *_leaks(solution, lab),
        *_exercise_problems(solution, exercises),
    ]


def states(notebook: NotebookNode) -> dict[str, str]:
    """The state each exercise printed in the stored outputs: id -> "not done", "not yet" or "correct"."""
    text = "\n".join(text for cell in code_cells(notebook) for text in output_texts(cell))
    return dict(re.findall(r"^Exercise (\d+\.\d+): (not done|not yet|correct)(?=[ .])", text, flags=re.MULTILINE))


def _solution_lines(notebook: NotebookNode) -> dict[str, list[str]]:
    """The lines between solution markers, stripped, by cell id."""
    found: dict[str, list[str]] = {}
    for cell in code_cells(notebook):
        for block in re.findall(rf"{BEGIN}\n(.*?)\s*{END}", cell.source, flags=re.DOTALL):
            found.setdefault(cell.id, []).extend(line.strip() for line in block.split("\n"))
    return found


def _functions(notebook: NotebookNode) -> dict[tuple[str, str], ast.FunctionDef | ast.AsyncFunctionDef]:
    return {
        (cell.id, node.name): node
        for cell in code_cells(notebook)
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _function_problems(solution: NotebookNode, lab: NotebookNode) -> list[str]:
    problems, blanks, kept = [], _functions(lab), {cell.id for cell in lab.cells}
    solved_cells = _solution_lines(solution)
    for (cell_id, name), function in _functions(solution).items():
        if cell_id not in kept:
            continue
        blank = blanks.get((cell_id, name))
        # A function defined inside a solution is part of the answer and is blanked with it.
        if blank is None and cell_id not in solved_cells:
            problems.append(f"cell {cell_id}: the lab lacks the function {name}")
        elif blank is not None and ast.dump(blank.args) != ast.dump(function.args):
            problems.append(f"cell {cell_id}: {name} has other arguments in the lab")
    for cell_id in solved_cells:
        here = [function for (home, _), function in blanks.items() if home == cell_id]
        raised = [n for f in here for n in ast.walk(f) if isinstance(n, ast.Raise)]
        if not any("NotImplementedError" in ast.dump(node) for node in raised):
            problems.append(f"cell {cell_id}: the blank does not raise NotImplementedError")
    return problems


def _leaks(solution: NotebookNode, lab: NotebookNode) -> list[str]:
    problems = []
    for cell_id, lines in _solution_lines(solution).items():
        for line in (line for line in lines if len(line) >= TELLING_CHARACTERS):
            problems += [
                f"cell {cell.id}: gives away a line of the solution of {cell_id} ({line})"
                for cell in lab.cells
                if line in cell.source
            ]
    return problems


def _exercise_problems(solution: NotebookNode, exercises: Sequence[Exercise]) -> list[str]:
    problems = []
    by_id = {cell.id: cell for cell in solution.cells}
    solved = list(_solution_lines(solution))
    code = "\n".join(cell.source for cell in code_cells(solution))
    for exercise in exercises:
        header = by_id.get(exercise.slug)
        if header is None or header.source != exercise.header():
            problems.append(
                f"exercise {exercise.id}: its header is missing or old; run `python -m helpers.lab.execute`"
            )
        if not any(cell_id.startswith(f"{exercise.slug}-") for cell_id in solved):
            problems.append(f"exercise {exercise.id}: the notebook has no solution for it")
        if f'check.exercise("{exercise.id}", ' not in code:
            problems.append(f"exercise {exercise.id}: the notebook does not check it")
    slugs = tuple(f"{exercise.slug}-" for exercise in exercises)
    problems += [f"cell {cell_id}: an exercise of another lab" for cell_id in solved if not cell_id.startswith(slugs)]
    return problems
