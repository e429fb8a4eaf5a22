"""The house rules of a notebook, as a program: ``python -m helpers.lab.lint FILES`` prints what breaks them.

Two kinds of code cell, never mixed. A *clock cell* reads a clock (`CLOCK_CALLS`) and carries the tag
``nbval-ignore-output``; every other cell is a *claim cell*, whose stored output nbval compares strictly.
"""

import argparse
import ast
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from helpers.errors import InputError
from helpers.lab import notebook_file

CLOCK_TAG = "nbval-ignore-output"
CLOCK_CALLS = {
    "time_call",
    "time_wall_and_cpu",
    "run_expert_parallel",
    "paired",
    "exchange_once",
    "measure_request",
    "measure_load",
    "watch",
    "probe",
    "run_probe",
    "look",
    "measure_ceilings",
    "perf_counter",
    "perf_counter_ns",
    "monotonic",
    "monotonic_ns",
}
"""Calls that read a clock, besides every name that ends in `_sweep`: they need the tag."""
MACHINE_CALLS = {"machine", "load_smollm2", "default_device"}
"""Calls whose output depends on the machine: they may carry the tag."""
MAX_CODE_LINES = 25
MAX_CODE_COLUMNS = 92
"""What JupyterLab shows of a line at 1280 pixels beside its file browser."""
BANNED = (r"^\s*%%?(time|timeit|autoreload)\b", r"^\s*[!%]\s*(pip|conda)\b", r"^\s*from \S+ import \*")
KNOWN_TAGS = {CLOCK_TAG, "solution-only"}
IMAGE_DATA = re.compile(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=\s]+")
MACHINE_PATH = re.compile(
    r"(?<![\w./:<>])/(?:home|root|work|Users|tmp|opt|usr|var|mnt|media|private|data|content)/[\w.\-]+"
    r"|[A-Za-z]:\\\\?Users\b"
)
SECRET = re.compile(
    r"\bsk-[A-Za-z0-9_\-]{20,}|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{20,}|\bAKIA[A-Z0-9]{16}\b"
    r"|\bBearer [A-Za-z0-9._\-]{16,}|-----BEGIN [A-Z ]*PRIVATE KEY"
)
ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}")
CELL_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
HEX_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4})*")
FIRST_CELL = {
    "the purpose (**Purpose**)": r"\*\*Purpose",
    "the minutes (a number of minutes)": r"\d+\s+minutes",
    "what is needed before (**Before**)": r"\*\*Before",
    "what the reader can do after (**After**)": r"\*\*After",
}


def notebook_problems(notebook: NotebookNode, executed: bool = True) -> list[str]:
    """What breaks the house rules, one sentence each, naming the cell id; [] for a sound notebook.

    executed: whether outputs are stored (notebooks/ and solutions/) or not (labs/).
    """
    checks = [_kernel, _first_cell, _headings, _ids, _tags, _code_size, _banned, _clocks, _private, _figures]
    checks.append(_ran if executed else _not_ran)
    return [problem for check in checks for problem in check(notebook)]


def code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """The code cells, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def output_texts(cell: NotebookNode) -> Iterator[str]:
    """Every text stored as output of a code cell, image data left out."""
    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            yield output.text
        elif output.output_type == "error":
            yield "\n".join([output.ename, output.evalue, *output.traceback])
        else:
            for mime, value in output.data.items():
                if not mime.startswith("image/"):
                    yield IMAGE_DATA.sub("", value if isinstance(value, str) else str(value))


def _kernel(notebook: NotebookNode) -> Iterator[str]:
    name = notebook.metadata.get("kernelspec", {}).get("name")
    if name != notebook_file.KERNEL_NAME:
        yield f"the kernel is {name!r}, not {notebook_file.KERNEL_NAME!r}"


def _first_cell(notebook: NotebookNode) -> Iterator[str]:
    first = notebook.cells[0] if notebook.cells else None
    if first is None or first.cell_type != "markdown" or not first.source.startswith("# "):
        yield "the first cell is not Markdown that begins with an H1"
        return
    for what, pattern in FIRST_CELL.items():
        if not re.search(pattern, first.source):
            yield f"cell {first.id}: the first cell does not say {what}"


def _headings(notebook: NotebookNode) -> Iterator[str]:
    level = 0
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        text = re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.MULTILINE | re.DOTALL)
        for marks, title in re.findall(r"^(#{1,6}) +(.+)$", text, flags=re.MULTILINE):
            if len(marks) == 1 and level:
                yield f"cell {cell.id}: a second H1, {title!r}"
            if len(marks) > level + 1:
                yield f"cell {cell.id}: heading {title!r} jumps from level {level} to {len(marks)}"
            level = len(marks)


def _ids(notebook: NotebookNode) -> Iterator[str]:
    seen = set()
    for cell in notebook.cells:
        if cell.id in seen:
            yield f"cell id {cell.id} occurs twice"
        seen.add(cell.id)
        if not CELL_ID.fullmatch(cell.id) or HEX_ID.fullmatch(cell.id):
            yield f"cell id {cell.id} is not speaking kebab-case such as kv-bytes-mha"


def _tags(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        for tag in set(cell.metadata.get("tags", [])) - KNOWN_TAGS:
            yield f"cell {cell.id}: unknown tag {tag!r}"


def _code_size(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        lines = sum(bool(line.strip()) for line in cell.source.split("\n"))
        if lines > MAX_CODE_LINES:
            yield f"cell {cell.id}: {lines} lines of code, more than {MAX_CODE_LINES}"
        columns = max(map(len, cell.source.split("\n")))
        if columns > MAX_CODE_COLUMNS:
            yield f"cell {cell.id}: a line of {columns} columns, more than {MAX_CODE_COLUMNS}"


def _banned(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        for pattern in BANNED:
            found = re.search(pattern, cell.source, flags=re.MULTILINE)
            if found:
                yield f"cell {cell.id}: {found[0].strip()} is banned"
        for text in output_texts(cell):
            found = ADDRESS.search(text)
            if found:
                yield f"cell {cell.id}: the output holds a memory address ({found[0]})"
        if any(output.output_type == "stream" and output.name == "stderr" for output in cell.outputs):
            yield f"cell {cell.id}: stored output on stderr"


def _clocks(notebook: NotebookNode) -> Iterator[str]:
    clocks = set(CLOCK_CALLS)
    for cell in code_cells(notebook):
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            yield f"cell {cell.id}: not plain Python (line {error.lineno})"
            continue
        # A function that reads a clock makes a clock of its name, for the cells that call it later.
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _reads_clock(node.body, clocks):
                clocks.add(node.name)
        tagged = CLOCK_TAG in cell.metadata.get("tags", [])
        top_level = [node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))]
        if _reads_clock(top_level, clocks):
            if not tagged:
                yield f"cell {cell.id}: reads a clock but lacks the tag {CLOCK_TAG}"
        elif tagged and not _calls(top_level) & MACHINE_CALLS:
            yield f"cell {cell.id}: tagged {CLOCK_TAG} but reads no clock"


def _reads_clock(nodes: list[ast.stmt], clocks: set[str]) -> bool:
    calls = _calls(nodes)
    return bool(calls & clocks) or "time.time" in calls or any(name.endswith("_sweep") for name in calls)


def _calls(nodes: list[ast.stmt]) -> set[str]:
    """The names called anywhere under `nodes`: `f` for f(…) and for m.f(…), and `time.time` in full."""
    names = set()
    for node in (n for top in nodes for n in ast.walk(top) if isinstance(n, ast.Call)):
        if isinstance(node.func, ast.Name):
            names.add(node.func.id)
        elif isinstance(node.func, ast.Attribute):
            names.add(node.func.attr)
            if isinstance(node.func.value, ast.Name):
                names.add(f"{node.func.value.id}.{node.func.attr}")
    return names


def _private(notebook: NotebookNode) -> Iterator[str]:
    host = socket.gethostname()
    # A one-word host name such as "lab" or "localhost" is a word of the text too: only a telling one is looked for.
    telling = re.compile(rf"\b{re.escape(host)}\b") if len(host) > 7 and host != "localhost" else None
    for cell in notebook.cells:
        for text in (IMAGE_DATA.sub("", cell.source), *output_texts(cell)):
            for what, pattern in (("a path of a machine", MACHINE_PATH), ("a key", SECRET), ("a host name", telling)):
                found = pattern.search(text) if pattern else None
                if found:
                    yield f"cell {cell.id}: holds {what} ({found[0][:40]})"


def _figures(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if any(mime.startswith("image/") for mime in data):
                yield f"cell {cell.id}: a figure without alt text; use figures.show_figure(fig, alt)"
            yield from _images_without_alt(cell.id, data.get("text/html", ""))
        if cell.cell_type == "markdown":
            yield from _images_without_alt(cell.id, cell.source)
            if re.search(r"!\[\s*\]\(", cell.source):
                yield f"cell {cell.id}: an image without alt text"


def _images_without_alt(cell_id: str, text: str) -> Iterator[str]:
    for image in re.findall(r"<img\b[^>]*>", text):
        if not re.search(r'\balt="[^"]{10,}"', image):
            yield f"cell {cell_id}: an image without alt text"


def _ran(notebook: NotebookNode) -> Iterator[str]:
    for number, cell in enumerate(code_cells(notebook), 1):
        if cell.execution_count != number:
            yield f"cell {cell.id}: ran as {cell.execution_count}, not as {number}; run `python -m helpers.lab.execute`"
        if any(output.output_type == "error" for output in cell.outputs):
            yield f"cell {cell.id}: a stored error"


def _not_ran(notebook: NotebookNode) -> Iterator[str]:
    for cell in code_cells(notebook):
        if cell.outputs or cell.execution_count is not None:
            yield f"cell {cell.id}: a lab holds an output or an execution count"


def main(argv: list[str] | None = None) -> int:
    """Print the problems of the given notebooks; 0 for none, 1 for some, 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m helpers.lab.lint", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    code = 0
    for path in parser.parse_args(argv).files:
        try:
            problems = notebook_problems(notebook_file.read(path), executed=path.resolve().parent.name != "labs")
        except InputError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        for problem in problems:
            print(f"{path.name}: {problem}")
        code = code or int(bool(problems))
    return code


if __name__ == "__main__":
    sys.exit(main())
