"""Each house rule catches the violation planted for it, and a sound notebook breaks none."""

import socket

import pytest
from nbformat import v4

from helpers.lab import lint, notebook_file

TITLE = "# Title\n\n**Purpose**: x.\n**Time**: 10 minutes.\n**Before**: x.\n**After**: x."
IMAGE = '<img alt="A bar chart of bytes." src="data:image/png;base64,/tmp/abc/opt/x+/home/q=">'


def code(source, cell_id, number, *outputs, tags=()):
    cell = v4.new_code_cell(source, id=cell_id, execution_count=number, outputs=list(outputs))
    if tags:
        cell.metadata["tags"] = list(tags)
    return cell


def stream(text, name="stdout"):
    return v4.new_output("stream", name=name, text=text)


def sound():
    """A notebook that breaks no rule, with one cell of each kind."""
    cells = [
        v4.new_markdown_cell(TITLE, id="title-cell"),
        code("import time", "import-time", 1),
        v4.new_markdown_cell(
            "## Section\n\n```\n# not a heading\n```\n\nSee https://example.org/home/x.", id="section-one"
        ),
        code("start = time.perf_counter()", "clock-start", 2, stream("0.1 s\n"), tags=["nbval-ignore-output"]),
        code("print(3 / 4)", "claim-ratio", 3, stream("0.75 tokens/tmp\n")),
        code("show()", "claim-figure", 4, v4.new_output("display_data", {"text/html": IMAGE, "text/plain": "x"})),
        v4.new_markdown_cell("### Subsection", id="section-two"),
    ]
    return v4.new_notebook(cells=cells, metadata=notebook_file.NOTEBOOK_METADATA)


def test_a_sound_notebook_breaks_no_rule():
    assert lint.notebook_problems(sound()) == []


def replace_code(source, *outputs, tags=()):
    def plant(notebook):
        notebook.cells[4] = code(source, "claim-ratio", 3, *outputs, tags=tags)

    return plant


def replace_text(source):
    return lambda notebook: notebook.cells[2].update(source=source)


def set_title(old, new):
    return lambda notebook: notebook.cells[0].update(source=TITLE.replace(old, new))


PLANTED = {
    "no such kernel": (lambda n: n.metadata.kernelspec.update(name="python3"), "the kernel is 'python3'"),
    "no title": (lambda n: n.cells.pop(0), "not Markdown that begins with an H1"),
    "no purpose": (set_title("**Purpose**", "Aim"), "does not say the purpose"),
    "no minutes": (set_title("10 minutes", "a while"), "does not say the minutes"),
    "no before": (set_title("**Before**", "x"), "does not say what is needed before"),
    "no after": (set_title("**After**", "x"), "does not say what the reader can do after"),
    "second H1": (replace_text("# Again"), "a second H1, 'Again'"),
    "jump": (replace_text("### Deep"), "jumps from level 1 to 3"),
    "same id": (lambda n: n.cells[2].update(id="title-cell"), "title-cell occurs twice"),
    "hex id": (lambda n: n.cells[2].update(id="ab12cd34"), "ab12cd34 is not speaking"),
    "uuid": (lambda n: n.cells[2].update(id="ab12cd34-ab12-cd34"), "is not speaking"),
    "camel id": (lambda n: n.cells[2].update(id="kvBytes"), "kvBytes is not speaking"),
    "odd tag": (lambda n: n.cells[4].metadata.update(tags=["raises-exception"]), "unknown tag 'raises-exception'"),
    "long cell": (replace_code("\n".join(f"a{i} = 1" for i in range(26))), "26 lines of code, more than 25"),
    "long line": (replace_code("a = " + "1" * 89), "a line of 93 columns, more than 92"),
    "%%time": (replace_code("%%time\nf()"), "%%time is banned"),
    "!pip": (replace_code("!pip install x"), "!pip is banned"),
    "star import": (replace_code("from math import *"), "from math import * is banned"),
    "magic": (replace_code("%matplotlib inline"), "not plain Python"),
    "address": (replace_code("f", stream("<function f at 0x7f3a1c2d>")), "a memory address (at 0x7f3a1c2d)"),
    "stderr": (replace_code("f()", stream("warning", "stderr")), "stored output on stderr"),
    "clock without tag": (replace_code("t = time_call(f)"), "reads a clock but lacks the tag"),
    "clock by module": (replace_code("t = clock.paired(f, g)"), "reads a clock but lacks the tag"),
    "sweep": (replace_code("rows = measure.decode_sweep(f)"), "reads a clock but lacks the tag"),
    "time.time": (replace_code("a = time.time()"), "reads a clock but lacks the tag"),
    "hidden clock": (
        lambda n: n.cells.__setitem__(
            slice(3, 5),
            [code("def wait():\n    return time.perf_counter()", "def-wait", 2), code("wait()", "call-wait", 3)],
        ),
        "cell call-wait: reads a clock but lacks the tag",
    ),
    "tag without clock": (
        replace_code("print(1)", tags=["nbval-ignore-output"]),
        "tagged nbval-ignore-output but reads",
    ),
    "path in output": (replace_code("p", stream("/home/ann/x.py")), "a path of a machine (/home/ann)"),
    "path in source": (replace_code("p = open('/tmp/file.json')"), "a path of a machine (/tmp/file.json)"),
    "path in text": (replace_text("in C:\\Users\\ann"), "a path of a machine"),
    "key": (replace_code(f"k = 'sk-{'abcdef' * 4}'"), "holds a key"),
    "token": (replace_code("k", stream("hf_" + "abcdef" * 4)), "holds a key"),
    "bare figure": (
        replace_code("plot()", v4.new_output("display_data", {"image/png": "iVBO", "text/plain": "x"})),
        "a figure without alt text",
    ),
    "image without alt": (
        replace_code("plot()", v4.new_output("display_data", {"text/html": '<img src="x">'})),
        "an image without alt text",
    ),
    "text image without alt": (replace_text("![](x.png)"), "an image without alt text"),
    "never ran": (lambda n: n.cells[4].update(execution_count=None), "ran as None, not as 3"),
    "ran out of order": (lambda n: n.cells[4].update(execution_count=7), "ran as 7, not as 3"),
    "stored error": (
        replace_code("1 / 0", v4.new_output("error", ename="ZeroDivisionError", evalue="x", traceback=[])),
        "a stored error",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_violation_is_caught(name):
    plant, said = PLANTED[name]
    notebook = sound()
    plant(notebook)
    problems = lint.notebook_problems(notebook)
    assert any(said in problem for problem in problems), problems


def test_the_host_name_is_caught_where_it_is_telling(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "ann-laptop-7")
    notebook = sound()
    assert lint.notebook_problems(notebook) == []
    notebook.cells[4].outputs = [stream("measured on ann-laptop-7\n")]
    assert any("a host name (ann-laptop-7)" in problem for problem in lint.notebook_problems(notebook))


def test_a_lab_must_hold_no_output():
    notebook = sound()
    assert any("a lab holds an output" in problem for problem in lint.notebook_problems(notebook, executed=False))
    for cell in lint.code_cells(notebook):
        cell.update(outputs=[], execution_count=None)
    assert lint.notebook_problems(notebook, executed=False) == []


def test_defining_a_clock_is_not_reading_it_and_machine_facts_may_be_tagged():
    notebook = sound()
    replace_code("def wait():\n    return time.perf_counter()")(notebook)
    assert lint.notebook_problems(notebook) == []
    replace_code("print(machine())", tags=["nbval-ignore-output"])(notebook)
    assert lint.notebook_problems(notebook) == []


def test_the_command_prints_problems_and_exits_1(tmp_path, capsys):
    notebook = sound()
    path = tmp_path / "01_x.ipynb"
    notebook_file.write(notebook, path)
    assert lint.main([str(path)]) == 0
    notebook.cells[2].id = "ab12cd34"
    notebook_file.write(notebook, path)
    assert lint.main([str(path)]) == 1
    assert capsys.readouterr().out.startswith("01_x.ipynb: cell id ab12cd34 is not speaking")
    assert lint.main([str(tmp_path / "gone.ipynb")]) == 2
