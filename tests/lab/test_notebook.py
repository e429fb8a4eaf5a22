"""The set-up cell: threads before the libraries, the right kernel, one printed line."""

import os
import subprocess
import sys

import pytest

from helpers.errors import InputError
from helpers.lab import notebook


def start_in_new_python(folder, **environment):
    code = (
        "import os, sys\n"
        "from helpers.lab import notebook\n"
        "assert not {'numpy', 'torch'} & set(sys.modules), 'loaded too early'\n"
        "notebook.start('07')\n"
        "import torch\n"
        "print(os.environ['OMP_NUM_THREADS'], os.environ['MKL_NUM_THREADS'], torch.get_num_threads())\n"
    )
    clean = {k: v for k, v in os.environ.items() if k not in notebook.THREAD_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=clean | environment, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_line_is_the_same_from_any_folder_and_the_threads_are_those_asked_for(tmp_path):
    assert start_in_new_python(tmp_path, OMP_NUM_THREADS="1") == ["Notebook 07 is ready.", "1 1 1"]


def test_without_a_wish_the_threads_are_the_usable_cores(tmp_path):
    cores = str(notebook.usable_cores())
    line, threads = start_in_new_python(tmp_path)
    assert line == "Notebook 07 is ready."
    assert threads.split()[:2] == [cores, cores]


def test_a_kernel_without_the_libraries_is_told_how_to_mend_it(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook, "NEEDED", ("json", "no_such_library"))
    with pytest.raises(InputError, match=r"lacks no_such_library: choose Kernel > Change Kernel"):
        notebook.start("01", tmp_path)


def test_the_helpers_of_another_checkout_are_noticed(tmp_path, root):
    other = tmp_path / "helpers" / "lab"
    other.mkdir(parents=True)
    (other / "notebook.py").touch()
    (tmp_path / "notebooks").mkdir()
    assert "helpers of another folder" in notebook.kernel_problem(tmp_path / "notebooks")
    assert notebook.kernel_problem(root / "notebooks") == ""
