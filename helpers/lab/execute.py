"""Run notebooks from a fresh kernel and store their outputs: ``python -m helpers.lab.execute [FILES]``.

Without files: all of notebooks/ and solutions/. A notebook is written back only when every cell ran; metadata is
normalised (`notebook_file.normalised`), so that what changes in git is what changed in the notebook. The header of each
exercise (cell ``exercise-1-3``) is written from its definition, and the minutes of the run.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import nbclient
from nbformat import NotebookNode

from helpers.errors import InputError
from helpers.lab import notebook_file
from helpers.lab.generate import exercise_of_cell
from helpers.lab.minutes import with_minutes

CELL_TIMEOUT_S = 900
FOLDERS = ("notebooks", "solutions")


class CellFailure(InputError):
    """A cell that raised: the message names notebook, cell id and error; `notebook` holds what ran until then."""

    def __init__(self, message: str, notebook: NotebookNode) -> None:
        super().__init__(message)
        self.notebook = notebook


def with_exercise_headers(notebook: NotebookNode) -> NotebookNode:
    """The notebook, with each Markdown cell ``exercise-N-M`` set to the header of that exercise."""
    for cell in notebook.cells:
        exercise = exercise_of_cell(cell.id) if cell.cell_type == "markdown" else None
        if exercise is not None and cell.id == exercise.slug:
            cell.source = exercise.header()
    return notebook


def run(notebook: NotebookNode, name: str, folder: Path, progress: bool = True) -> NotebookNode:
    """Execute every cell of `notebook` in a fresh kernel started in `folder`; the executed, normalised copy.

    Raises CellFailure at the first cell that raises. Progress goes to stderr.
    """
    notebook = notebook_file.normalised(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    started = time.monotonic()

    def say(cell: NotebookNode, cell_index: int, **_: object) -> None:
        if progress:
            seconds = time.monotonic() - started
            print(f"{name}: {cell_index + 1}/{len(notebook.cells)} {cell.id} ({seconds:.0f} s)", file=sys.stderr)

    client = nbclient.NotebookClient(
        notebook,
        kernel_name=notebook_file.KERNEL_NAME,
        timeout=CELL_TIMEOUT_S,
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
        on_cell_start=say,
    )
    # TQDM_DISABLE: a progress bar is stderr text that would be stored, and compared by nbval.
    # JUPYTER_PREFER_ENV_PATH: the kernel of this environment wins over one of the same name in the user's home.
    environment = os.environ | {"TQDM_DISABLE": "1", "JUPYTER_PREFER_ENV_PATH": "1"}
    os.environ.setdefault("JUPYTER_PREFER_ENV_PATH", "1")
    try:
        client.execute(env=environment, stderr=subprocess.DEVNULL)  # the kernel's own log, not the cells' stderr
    except nbclient.exceptions.CellExecutionError as error:
        raise CellFailure(_failure_text(notebook, name, error), notebook_file.normalised(notebook)) from None
    except nbclient.exceptions.CellTimeoutError:
        raise CellFailure(f"{name}: a cell ran for more than {CELL_TIMEOUT_S} s", notebook) from None
    except nbclient.exceptions.DeadKernelError:
        raise CellFailure(f"{name}: the kernel died (out of memory?)", notebook) from None
    return notebook_file.normalised(notebook)


def _failure_text(notebook: NotebookNode, name: str, error: nbclient.exceptions.CellExecutionError) -> str:
    failed = (c.id for c in notebook.cells if any(o.output_type == "error" for o in c.get("outputs", [])))
    return f"{name}, cell {next(failed, '?')}: {error.ename}: {' '.join(str(error.evalue).split())}"


def notebook_paths(root: Path) -> list[Path]:
    """The notebooks of the course, in order: notebooks/ then solutions/."""
    return [path for folder in FOLDERS for path in sorted((root / folder).glob("[0-9][0-9]_*.ipynb"))]


def main(argv: list[str] | None = None) -> int:
    """Execute the notebooks in place; 0 when all ran, 1 when a cell failed, 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m helpers.lab.execute", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="notebooks (default: all of notebooks/ and solutions/)")
    args = parser.parse_args(argv)
    root = Path(__file__).resolve().parents[2]
    code = 0
    for path in args.files or notebook_paths(root):
        try:
            notebook = with_exercise_headers(notebook_file.read(path))
            started = time.monotonic()
            executed = run(notebook, path.name, path.resolve().parent)
            notebook_file.write(with_minutes(executed, time.monotonic() - started), path)
        except CellFailure as error:
            print(f"error: {error}", file=sys.stderr)
            code = code or 1
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
    return code


if __name__ == "__main__":
    sys.exit(main())
