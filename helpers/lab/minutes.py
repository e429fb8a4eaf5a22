"""The minutes that a notebook and a lab take: ``python -m helpers.lab.minutes`` prints them beside what the texts say.

To run: measured. `helpers.lab.execute` stores the whole minutes of each run, rounded up, in the notebook's metadata
and in its first cell.
To read: counted from what is on the page, by the rule of `read_minutes`. A lab: the minutes of its exercises, rounded
up to ten. The first cells and the map of the README repeat these numbers; `text_problems` says where they do not.
"""

import argparse
import math
import re
import sys
from pathlib import Path

from nbformat import NotebookNode

from helpers.errors import InputError
from helpers.lab import notebook_file
from helpers.lab.exercises import exercises_of
from helpers.lab.lint import code_cells, output_texts
from helpers.lab.notebook_file import MINUTES_KEY

ROOT = Path(__file__).resolve().parents[2]
WORDS_PER_MINUTE = 160
"""Prose with formulas, for a reader who thinks along; plain prose is read at about 240 (Brysbaert 2019)."""
SECONDS_PER_CODE_LINE, SECONDS_PER_PRINTED_LINE = 2, 1
SECONDS_PER_FIGURE, SECONDS_PER_GUESS = 20, 20
READ_STEP, LAB_STEP = 5, 10
"""Minutes to which reading is rounded, and up to which a lab is."""


def run_minutes(seconds: float) -> int:
    """Whole minutes of a run, rounded up; 1 at least."""
    return max(1, math.ceil(seconds / 60))


def stored_run_minutes(notebook: NotebookNode) -> int | None:
    """The minutes that the last run took, None where none is stored."""
    return notebook.metadata.get(MINUTES_KEY)


def read_minutes(notebook: NotebookNode) -> int:
    """Minutes to read a notebook with its stored outputs: words, code lines, printed lines, figures and guesses.

    words ÷ WORDS_PER_MINUTE + Σ count · seconds ÷ 60, rounded to READ_STEP, which is also the least.
    """
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    words = len(re.findall(r"\w[\w'.-]*", re.sub(r"\]\([^)]*\)", "]", prose)))
    seconds = 60 * words / WORDS_PER_MINUTE
    for cell in code_cells(notebook):
        seconds += SECONDS_PER_CODE_LINE * sum(bool(line.strip()) for line in cell.source.split("\n"))
        seconds += SECONDS_PER_GUESS * cell.id.endswith("-guess")
        for text in output_texts(cell):
            figure = text.startswith("<img")
            printed = sum(bool(line.strip()) for line in text.split("\n"))
            seconds += SECONDS_PER_FIGURE if figure else SECONDS_PER_PRINTED_LINE * printed
    return max(READ_STEP, READ_STEP * round(seconds / 60 / READ_STEP))


def lab_minutes(number: str) -> int:
    """Minutes of lab `number` ("01"): the sum over its exercises, rounded up to LAB_STEP."""
    return LAB_STEP * math.ceil(sum(exercise.minutes for exercise in exercises_of(number)) / LAB_STEP)


def with_minutes(notebook: NotebookNode, seconds: float) -> NotebookNode:
    """The notebook after a run of `seconds`: the minutes in its metadata, and in its first cell where that states them.

    "about 30 minutes to read, 2 minutes to run" is rewritten; a first cell that says it otherwise is left alone.
    """
    run = run_minutes(seconds)
    notebook.metadata[MINUTES_KEY] = run
    said = f"about {read_minutes(notebook)} minutes to read, {run} minute{'s' * (run > 1)} to run"
    first = notebook.cells[0]
    first.source = re.sub(r"about \d+ minutes to read, \d+ minutes? to run", said, first.source)
    return notebook


def said_minutes(notebook: NotebookNode) -> tuple[int | None, int | None]:
    """The minutes to read (or to do) and to run that the first cell states; None for one that it does not."""
    line = re.search(r"(?m)^- \*\*Time\*\*: .*$", notebook.cells[0].source)
    text = line[0] if line else ""
    first = re.search(r"about (\d+) minutes", text)
    run = re.search(r"(\d+) minutes? to run", text)
    return (int(first[1]) if first else None, int(run[1]) if run else None)


def said_in_readme(root: Path) -> dict[str, tuple[int, int]]:
    """By number: the minutes of notebook and lab in the map of the README."""
    rows = re.findall(r"(?m)^\| \[(\d\d) .*\| (\d+) \+ (\d+) \|$", (root / "README.md").read_text("utf-8"))
    return {number: (int(notebook), int(lab)) for number, notebook, lab in rows}


def rows(root: Path = ROOT) -> list[tuple[str, int, int | None, int]]:
    """(number, minutes to read, to run, of the lab) of every notebook under `root`."""
    found = []
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        notebook = notebook_file.read(path, check=False)
        number = path.name[:2]
        found.append((number, read_minutes(notebook), stored_run_minutes(notebook), lab_minutes(number)))
    return found


def text_problems(root: Path = ROOT) -> list[str]:
    """Where a text says other minutes than were measured or counted, one sentence each."""
    problems, readme = [], said_in_readme(root)
    for number, read, run, lab in rows(root):
        (path,) = (root / "notebooks").glob(f"{number}_*.ipynb")
        if run is None:
            problems.append(f"notebooks/{path.name}: no measured run is stored; run `python -m helpers.lab.execute`")
        said = said_minutes(notebook_file.read(path, check=False))
        if run is not None and said != (read, run):
            problems.append(f"notebooks/{path.name}: says {said} minutes to read and to run, not {(read, run)}")
        solution = root / "solutions" / path.name
        if solution.exists():
            done, _ = said_minutes(notebook_file.read(solution, check=False))
            if done != lab:
                problems.append(f"solutions/{path.name}: says {done} minutes, its exercises {lab}")
        if readme.get(number) != (read, lab):
            problems.append(f"README.md: notebook {number} + lab is {read} + {lab}, not {readme.get(number)}")
    return problems


def main(argv: list[str] | None = None) -> int:
    """Print the minutes, and on stderr where a text says otherwise; 0 when all agree, 1 when not, 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m helpers.lab.minutes", description=__doc__.split("\n")[0])
    parser.parse_args(argv)
    try:
        print("notebook  read  run  lab   (minutes)")
        for number, read, run, lab in rows():
            print(f"{number:8}{read:6}{'-' if run is None else run:>5}{lab:5}")
        problems = text_problems()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
