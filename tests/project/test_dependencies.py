"""pyproject.toml, constraints.txt, environment.yml and the README speak of the same packages."""

import re
import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
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
