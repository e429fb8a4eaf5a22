"""pyproject.toml, constraints.txt, environment.yml and the README speak of the same packages."""

import os
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

# conda-forge's name of a package that PyPI calls otherwise.
CONDA_TO_PYPI = {"pytorch-cpu": "torch"}


def requirements(lines) -> dict[str, Requirement]:
    parsed = [Requirement(line) for line in lines]
    return {canonicalize_name(r.name): r for r in parsed}


@pytest.fixture(scope="module")
def project(root) -> dict:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def environment(root) -> dict[str, Requirement]:
    listed = yaml.safe_load((root / "environment.yml").read_text())["dependencies"]
    lines = [line for line in listed if isinstance(line, str) and not re.match(r"(python|pip)\b", line)]
    lines += [line for part in listed if isinstance(part, dict) for line in part["pip"] if not line.startswith("-e")]
    return {canonicalize_name(CONDA_TO_PYPI.get(name, name)): r for name, r in requirements(lines).items()}


@pytest.fixture(scope="module")
def pins(root) -> dict[str, str]:
    lines = [line for line in (root / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    pairs = [re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;+]+)", line) for line in lines]
    assert all(pairs), "constraints.txt holds plain pins only, one NAME==VERSION a line"
    return {canonicalize_name(p[1]): p[2] for p in pairs}


def test_environment_yml_has_the_ranges_of_pyproject(project, environment):
    wanted = requirements(project["dependencies"])
    assert {name: r.specifier for name, r in environment.items()} == {name: r.specifier for name, r in wanted.items()}


def test_environment_yml_installs_the_project_itself_and_names_a_python_that_fits(root, project):
    listed = yaml.safe_load((root / "environment.yml").read_text())["dependencies"]
    assert "-e ." in next(part["pip"] for part in listed if isinstance(part, dict))
    python = next(line for line in listed if isinstance(line, str) and line.startswith("python="))
    assert Requirement(f"python{project['requires-python']}").specifier.contains(python.removeprefix("python="))


def test_every_requirement_has_a_pin_within_its_range(project, pins):
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    for name, requirement in requirements(project["dependencies"] + extras).items():
        if name == canonicalize_name(project["name"]):
            continue
        assert name in pins, f"{name} has no pin in constraints.txt"
        assert requirement.specifier.contains(pins[name]), f"the pin {name}=={pins[name]} is outside {requirement}"


def test_every_pin_installs_on_the_oldest_python_that_is_promised(project, pins):
    oldest = project["requires-python"].removeprefix(">=") + ".0"
    for name, version in pins.items():
        try:
            about = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # A pin of another system's package.
        if about.version.partition("+")[0] == version:
            wanted = about.metadata["Requires-Python"] or ""
            assert SpecifierSet(wanted).contains(oldest), f"{name}=={version} wants Python {wanted}, not {oldest}"


def test_the_environment_is_the_pinned_one(root, pins):
    if not os.environ.get("CI") or Path(sys.prefix) != root / ".venv":
        pytest.skip("held in CI: elsewhere newer releases within the ranges are welcome")
    installed = {canonicalize_name(d.name): d.version.partition("+")[0] for d in metadata.distributions()}
    assert {name: installed[name] for name in pins if name in installed} == {n: pins[n] for n in pins if n in installed}
    assert len(pins) - 20 < sum(name in installed for name in pins)


def test_torch_is_pinned_exactly(pins):
    assert pins["torch"].count(".") == 2


def test_every_requirement_is_bounded_on_both_sides(project):
    for requirement in requirements(project["dependencies"]).values():
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{requirement} needs a lower bound and a cap"


def test_the_readme_gives_a_reason_for_every_dependency(root, project):
    table = (root / "README.md").read_text().split("## Dependencies")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.+?) \|", table, flags=re.MULTILINE))
    named = {canonicalize_name(name) for name in rows}
    wanted = requirements(project["dependencies"] + project["optional-dependencies"]["test"])
    assert named == set(wanted)
    assert all(len(reason) > 15 for reason in rows.values())
