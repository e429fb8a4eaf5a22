"""The first code cell of every notebook::

from helpers.lab import notebook

notebook.start("01")
"""

import importlib.util
import os
import sys
import warnings
from pathlib import Path

import helpers
from helpers.errors import InputError
from helpers.measure.machine import usable_cores

NEEDED = ("torch", "numpy", "matplotlib", "nbformat")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CHANGE_KERNEL = (
    'choose Kernel > Change Kernel > "Inference lab", and if it is not listed run `make install` and open the notebook '
    "with `make lab`"
)


def start(number: str, folder: Path | None = None) -> None:
    """Set the kernel up for notebook `number` ("01") and print one line.

    Fixes the thread count of the numeric libraries (before they load, so that measurements name it truthfully), hides
    library warnings that say nothing to a learner, and raises InputError when the kernel is not the project's.
    """
    _fix_threads()
    _quieten()
    problem = kernel_problem(folder or Path.cwd())
    if problem:
        raise InputError(problem)
    print(f"Notebook {number} is ready.")


def kernel_problem(folder: Path) -> str:
    """Why this kernel cannot run the course from `folder`, with the way to mend it; "" when it can."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"this kernel (Python in {sys.prefix}) lacks {', '.join(missing)}: {CHANGE_KERNEL}"
    imported = Path(helpers.__file__).resolve().parent
    checkout = next((f for f in (folder, *folder.parents) if (f / "helpers" / "lab" / "notebook.py").is_file()), None)
    if checkout is not None and (checkout / "helpers").resolve() != imported:
        return f"this kernel uses the helpers of another folder ({imported}), not of {checkout}: {CHANGE_KERNEL}"
    return ""


def _fix_threads() -> None:
    threads = os.environ.get("OMP_NUM_THREADS") or str(usable_cores())
    for variable in THREAD_VARIABLES:
        os.environ.setdefault(variable, threads)
    if "torch" in sys.modules and threads.isdigit():
        sys.modules["torch"].set_num_threads(int(threads))


def _quieten() -> None:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", category)
    for library in ("torch", "transformers", "matplotlib", "tqdm"):
        warnings.filterwarnings("ignore", category=UserWarning, module=rf"{library}(\.|$)")
