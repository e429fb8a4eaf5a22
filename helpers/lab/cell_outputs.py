"""What the cells of executed notebooks printed, found by notebook and cell id; never a number from elsewhere."""

import re
from collections.abc import Mapping
from pathlib import Path

from nbformat import NotebookNode

from helpers.lab import notebook_file

Notebooks = Mapping[str, NotebookNode]
"""Executed notebooks by file name without its ending, such as ``02_prefill_vs_decode``."""


class NotShown(Exception):
    """Why a cell shows nothing, in a few words: it is missing, did not run, failed, or prints something else."""


def read_folder(folder: str | Path) -> dict[str, NotebookNode]:
    """The notebooks ``NN_*.ipynb`` of `folder` with their outputs, by name."""
    return {path.stem: notebook_file.read(path) for path in sorted(Path(folder).glob("[0-9][0-9]_*.ipynb"))}


def text_of(notebooks: Notebooks, notebook: str, cell_id: str) -> str:
    """Everything that a cell printed; NotShown where there is no such cell, it did not run, or it failed."""
    if notebook not in notebooks:
        raise NotShown(f"notebook {notebook} was not run")
    cell = next((cell for cell in notebooks[notebook].cells if cell.id == cell_id), None)
    if cell is None or cell.cell_type != "code":
        raise NotShown(f"{notebook} has no code cell {cell_id}")
    if any(output.output_type == "error" for output in cell.outputs):
        raise NotShown(f"cell {cell_id} failed")
    if cell.execution_count is None:
        raise NotShown(f"cell {cell_id} was not run")
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


def search(notebooks: Notebooks, notebook: str, cell_id: str, pattern: str) -> list[re.Match]:
    """Every place where `pattern` fits what a cell printed (``^``, ``$``: line ends); NotShown where there is none."""
    found = list(re.finditer(pattern, text_of(notebooks, notebook, cell_id), re.MULTILINE))
    if not found:
        raise NotShown(f"cell {cell_id} ran, but did not print what is looked for")
    return found
