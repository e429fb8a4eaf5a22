"""Imports point one way, and the accounts stay light."""

import subprocess
import sys
import tomllib


def test_import_linter_holds_the_contracts(root):
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports_command as run; sys.exit(run())"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_is_in_a_contract(root):
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    keys = ("layers", "source_modules", "forbidden_modules")
    held = {name for contract in contracts for key in keys for name in contract.get(key, [])}
    rooms = {f"helpers.{p.parent.name}" for p in (root / "helpers").glob("*/__init__.py")}
    assert rooms and rooms <= held, f"no contract of pyproject.toml speaks of {rooms - held}"


def test_the_accounts_import_neither_torch_nor_numpy():
    code = "import sys, helpers.accounts; print([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_command_line_starts_without_torch():
    code = "import sys, helpers.cli; helpers.cli.build_parser(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
