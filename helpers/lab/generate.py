"""Make the labs from the solutions: ``python -m helpers.lab.generate [--check]``.

The solved notebook is the only source. Its language has two words:

- ``### BEGIN SOLUTION`` … ``### END SOLUTION`` inside a function body: the lines between become a blank that raises
  NotImplementedError. The cell's id names the exercise: ``exercise-1-3-answer`` is exercise 1.3.
- the cell tag ``solution-only``: the cell is left out of the lab.

Outputs and execution counts go, cell ids stay, the first cell gets a note on working in a copy. The same solutions
always give the same bytes. ``labs/my_*`` belong to the learner and are never touched.
"""

import argparse
import ast
import copy
import re
import sys
from pathlib import Path

from nbformat import NotebookNode

from helpers.errors import InputError
from helpers.lab import notebook_file
from helpers.lab.exercise import Exercise
from helpers.lab.exercises import find

BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
SOLUTION_ONLY = "solution-only"
COPY_NOTE = (
    "> This file is generated: `make labs` writes it anew. **Work on a copy**: *File > Duplicate Notebook*, and rename "
    "the copy to `my_{name}`, in the same folder; git ignores `labs/my_*`, and `make labs` leaves it alone."
)


def lab_of(solution: NotebookNode, name: str) -> NotebookNode:
    """The lab made from one solved notebook; `name` is its file name, for the copy note and for errors.

    InputError, naming notebook and cell id, for markers that are unbalanced, outside a function body, or in a cell
    whose id names no exercise.
    """
    lab = copy.deepcopy(solution)
    lab.metadata.pop(notebook_file.MINUTES_KEY, None)  # those of the solution's run
    lab.cells = [cell for cell in lab.cells if SOLUTION_ONLY not in cell.metadata.get("tags", [])]
    if not lab.cells or lab.cells[0].cell_type != "markdown":
        raise InputError(f"{name}: the first cell must be Markdown (purpose, minutes, before, after)")
    lab.cells[0].source += "\n\n" + COPY_NOTE.format(name=name)
    for cell in lab.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.source = _blanked(cell.source, f"{name}, cell {cell.id}", cell.id)
        elif BEGIN in cell.source or END in cell.source:
            raise InputError(f"{name}, cell {cell.id}: a solution marker in a Markdown cell")
    return notebook_file.normalised(lab)


def exercise_of_cell(cell_id: str) -> Exercise | None:
    """The exercise a cell id names ("exercise-1-3-answer" -> 1.3), or None; InputError for one that does not exist."""
    found = re.match(r"exercise-(\d+)-(\d+)(-|$)", cell_id)
    return find(f"{found[1]}.{found[2]}") if found else None


def _blanked(source: str, where: str, cell_id: str) -> str:
    """`source` with every solution replaced by a comment and a raise, at the same indentation."""
    if "BEGIN SOLUTION" not in source and "END SOLUTION" not in source:
        return source
    exercise = exercise_of_cell(cell_id)
    if exercise is None:
        raise InputError(f"{where}: a cell with a solution needs an id like 'exercise-1-3-answer'")
    task = f"Exercise {exercise.id}: {exercise.title}"
    lines, raise_lines, begun = [], [], False
    for line in source.split("\n"):
        marker = line.strip()
        if marker == BEGIN and not begun:
            begun, indent = True, line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}# {task.rstrip(chr(63))} — replace the next line with your code.")
            lines.append(f'{indent}raise NotImplementedError("{task}")')
            raise_lines.append(len(lines))
        elif marker == END and begun:
            begun = False
        elif "BEGIN SOLUTION" in line or "END SOLUTION" in line:
            raise InputError(f"{where}: unbalanced or misspelt solution marker {marker!r}")
        elif not begun:
            lines.append(line)
    if begun:
        raise InputError(f"{where}: {BEGIN} without {END}")
    blank = "\n".join(lines)
    if not set(raise_lines) <= _lines_inside_functions(blank, where):
        raise InputError(f"{where}: a solution must lie inside a function body, so that a blank lab runs")
    return blank


def _lines_inside_functions(source: str, where: str) -> set[int]:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise InputError(f"{where}: without its solution the cell is not Python (line {error.lineno})") from None
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside |= set(range(node.body[0].lineno, node.end_lineno + 1))
    return inside


def lab_texts(root: Path) -> dict[Path, str]:
    """Every lab file under `root` with the text it should have, from `root/solutions`."""
    return {
        root / "labs" / path.name: notebook_file.to_text(lab_of(notebook_file.read(path), path.name))
        for path in sorted((root / "solutions").glob("[0-9][0-9]_*.ipynb"))
    }


def stale_labs(root: Path) -> list[Path]:
    """Lab files that are missing, differ from their solution, or have none (the learner's `my_*` excepted)."""
    wanted = lab_texts(root)
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    orphans = [path for path in sorted((root / "labs").glob("[0-9][0-9]_*.ipynb")) if path not in wanted]
    return stale + orphans


def main(argv: list[str] | None = None) -> int:
    """Write the labs, or with --check say which are out of date; 0 good, 1 out of date, 2 bad input."""
    parser = argparse.ArgumentParser(prog="python -m helpers.lab.generate", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when a lab is out of date")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[2], help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        stale = stale_labs(args.root)
        texts = lab_texts(args.root)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in stale:
        name = path.relative_to(args.root).as_posix()
        if args.check:
            print(f"out of date: {name} (run `make labs`)")
        elif path in texts:
            notebook_file.write_text(texts[path], path)
            print(f"wrote {name}")
        else:
            path.unlink()
            print(f"removed {name}: no solution of that name")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
