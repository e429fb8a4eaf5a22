"""Take a figure out of a stored notebook: ``python -m helpers.lab.picture NOTEBOOK CELL_ID OUT.png``.

The README shows a real result; this is how it stays the one that a notebook stores.
"""

import base64
import re
import sys
from pathlib import Path

import nbformat

from helpers.errors import InputError


def stored_picture(notebook: str | Path, cell_id: str) -> bytes:
    """The PNG that cell `cell_id` of `notebook` shows. Raises InputError where there is no such cell or picture."""
    cells = {cell.id: cell for cell in nbformat.read(notebook, as_version=4).cells}
    if cell_id not in cells:
        raise InputError(f"{notebook} has no cell {cell_id!r}")
    shown = [output.get("data", {}).get("text/html", "") for output in cells[cell_id].get("outputs", [])]
    found = re.search(r'src="data:image/png;base64,([^"]+)"', "".join(shown))
    if not found:
        raise InputError(f"cell {cell_id!r} of {notebook} shows no picture")
    return base64.b64decode(found[1])


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(f"error: usage: {__doc__.splitlines()[0]}")
    try:
        picture = stored_picture(*sys.argv[1:3])
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    Path(sys.argv[3]).parent.mkdir(parents=True, exist_ok=True)
    Path(sys.argv[3]).write_bytes(picture)
