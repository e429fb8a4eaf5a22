"""Running notebooks in a fresh kernel: outputs stored, failures named, headers filled."""

import os
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nbformat import v4

from helpers.lab import execute, notebook_file
from helpers.lab.exercises import find

LAB = """from helpers.lab import check


def weight_bytes(parameters, bits_per_parameter):
    return parameters / 0


check.exercise("1.1", weight_bytes)"""


def write(path, *cells):
    notebook_file.write(v4.new_notebook(cells=list(cells)), path)
    return path


def test_a_notebook_is_run_in_its_own_folder_and_its_outputs_stored(tmp_path, capsys):
    path = write(
        tmp_path / "01_x.ipynb",
        v4.new_markdown_cell("old header", id="exercise-1-1"),
        v4.new_code_cell("import pathlib\nprint(pathlib.Path('01_x.ipynb').exists())", id="own-folder"),
        v4.new_code_cell(LAB, id="error-line"),
        v4.new_code_cell("6 * 7", id="last-value"),
    )
    os.chmod(path, 0o640)
    assert execute.main([str(path)]) == 0
    notebook = notebook_file.read(path)
    header, folder, checked, value = notebook.cells
    assert header.source == find("1.1").header()
    assert folder.outputs[0].text == "True\n"
    # The learner's own line, as the kernel numbers it, and no second output for the returned result.
    assert [output.output_type for output in checked.outputs] == ["stream"]
    assert "raised ZeroDivisionError: division by zero (line 5: `return parameters / 0`)" in checked.outputs[0].text
    assert value.outputs[0].data["text/plain"] == "42"
    assert [cell.execution_count for cell in notebook.cells[1:]] == [1, 2, 3]
    assert notebook.metadata == notebook_file.NOTEBOOK_METADATA | {notebook_file.MINUTES_KEY: 1}
    assert path.stat().st_mode & 0o777 == 0o640
    assert "01_x.ipynb: 4/4 last-value" in capsys.readouterr().err


def test_a_failing_cell_is_named_and_the_file_left_as_it_was(tmp_path, capsys):
    path = write(
        tmp_path / "02_y.ipynb",
        v4.new_code_cell("a = 1", id="good-cell"),
        v4.new_code_cell("a / 0", id="bad-cell"),
        v4.new_code_cell("a", id="never-run"),
    )
    before = path.read_bytes()
    assert execute.main([str(path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "error: 02_y.ipynb, cell bad-cell: ZeroDivisionError: division by zero"
    assert path.read_bytes() == before


def test_a_missing_file_is_exit_code_2(tmp_path, capsys):
    assert execute.main([str(tmp_path / "gone.ipynb")]) == 2
    assert capsys.readouterr().err.startswith("error: there is no notebook")


def test_the_default_is_the_course_in_order(tmp_path):
    for name in ("solutions/01_a.ipynb", "notebooks/02_b.ipynb", "notebooks/01_a.ipynb", "notebooks/my_01.ipynb"):
        write(tmp_path / name)
    names = [path.relative_to(tmp_path).as_posix() for path in execute.notebook_paths(tmp_path)]
    assert names == ["notebooks/01_a.ipynb", "notebooks/02_b.ipynb", "solutions/01_a.ipynb"]


def test_the_kernel_of_this_environment_is_registered():
    try:
        spec = KernelSpecManager().get_kernel_spec(notebook_file.KERNEL_NAME)
    except NoSuchKernel:
        pytest.fail('no kernel "inference-lab": run `make install`')
    assert spec.display_name == notebook_file.KERNEL_DISPLAY_NAME
    assert Path(spec.argv[0]).parent == Path(sys.executable).parent, "another environment's kernel: run `make install`"
