"""The accounts are light: no torch, no numpy, quick to import."""

import subprocess
import sys

HEAVY = ("torch", "numpy", "transformers", "matplotlib")


def test_importing_the_accounts_loads_no_heavy_module(root):
    code = f"import sys, helpers.accounts; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_accounts_import_little_beyond_the_standard_library(root):
    code = "import sys; before = set(sys.modules); import helpers.accounts; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    outside = {name.split(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert outside == {"helpers"}
