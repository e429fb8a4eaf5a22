"""Reading and writing `.ipynb` files so that the same content is always the same bytes."""

import json
import os
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.errors import InputError

KERNEL_NAME = "inference-lab"
KERNEL_DISPLAY_NAME = "Inference lab"
NOTEBOOK_METADATA = {
    "kernelspec": {"display_name": KERNEL_DISPLAY_NAME, "language": "python", "name": KERNEL_NAME},
    "language_info": {"name": "python"},
}
MINUTES_KEY = "minutes_to_run"
"""Metadata: the whole minutes that the last run took (`helpers.lab.minutes`)."""


def read(path: str | Path, check: bool = True) -> NotebookNode:
    """The notebook in `path`, as nbformat 4 and valid; InputError naming the file otherwise.

    check: False leaves out the validation, most of the time that reading takes; for texts that another test validates.
    """
    try:
        if not check:
            return nbformat.v4.reads(Path(path).read_text("utf-8"))
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except FileNotFoundError:
        raise InputError(f"there is no notebook {path}") from None
    except Exception as error:
        raise InputError(f"{path} is not a valid notebook: {_first_line(error)}") from None
    return notebook


def normalised(notebook: NotebookNode) -> NotebookNode:
    """A copy with nothing in it that depends on the machine or the editor.

    Kept: cell ids, types, sources, tags, outputs, execution counts. Metadata is the project's own and nothing else
    (no timestamps, no widget state, no interpreter version), besides the minutes of the last run; neighbouring pieces
    of one stream become one.
    """
    cells = []
    for cell in notebook.cells:
        tags = sorted(set(cell.metadata.get("tags", [])))
        new = {
            "cell_type": cell.cell_type,
            "id": cell.id,
            "metadata": {"tags": tags} if tags else {},
            "source": cell.source.strip("\n"),
        }
        if cell.cell_type == "code":
            new["execution_count"] = cell.execution_count
            new["outputs"] = _normalised_outputs(cell.outputs)
        cells.append(new)
    minutes = notebook.metadata.get(MINUTES_KEY)
    kept = {MINUTES_KEY: minutes} if type(minutes) is int else {}
    content = {"cells": cells, "metadata": NOTEBOOK_METADATA | kept, "nbformat": 4, "nbformat_minor": 5}
    return nbformat.from_dict(json.loads(json.dumps(content)))


def _normalised_outputs(outputs: list) -> list:
    result: list = []
    for output in outputs:
        if output.output_type == "stream":
            if result and result[-1].get("name") == output.name:
                result[-1]["text"] += output.text
                continue
            result.append({"name": output.name, "output_type": "stream", "text": output.text})
        elif output.output_type == "error":
            result.append(dict(output))
        else:
            result.append(dict(output) | {"metadata": {}})
    return result


def to_text(notebook: NotebookNode) -> str:
    """The notebook as text: sorted keys, one-space indent, text split into lines, one newline at the end."""
    return nbformat.writes(notebook, version=4, indent=1, sort_keys=True, ensure_ascii=False).rstrip("\n") + "\n"


def write(notebook: NotebookNode, path: str | Path) -> None:
    """Write the whole file or nothing: an interrupted write leaves the old file in place."""
    write_text(to_text(notebook), path)


def write_text(text: str, path: str | Path) -> None:
    """Write `text` to `path` atomically (a temporary file in the same folder, then a rename)."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
