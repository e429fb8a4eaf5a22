"""Is this environment fit for the course: versions, cores, memory, device, kernel, threads, timer."""

import argparse
import os
import platform
import shlex
import shutil
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path

import helpers
from helpers.accounts import format_bytes
from helpers.errors import InputError
from helpers.measure.machine import usable_cores, usable_memory_bytes

EXAMPLE = "python -m helpers doctor"

PROJECT = "inference-lab"
KERNEL = "inference-lab"
# SmolLM2 in fp32 (0.54 GB), torch and a notebook server side by side.
LEAST_MEMORY_BYTES = 2 * 2**30
COARSEST_TIMER_S = 1e-6


@dataclass(frozen=True)
class Check:
    """One finding. `ok` is False only where the course would not run or would measure wrongly; `mend`
    beside a true `ok` is advice."""

    name: str
    ok: bool
    found: str
    wanted: str
    mend: str = ""


@dataclass(frozen=True)
class Requirements:
    """What the project asks for: a range of Python versions, packages, and packages of the extra `test`."""

    python: str
    required: tuple[str, ...]
    test: tuple[str, ...]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Doctor takes no options of its own."""


def run(args: argparse.Namespace) -> dict:
    """Run every check; `ok` is True where all of them are."""
    checks = [asdict(check) for check in find_checks(requirements())]
    return {"ok": all(check["ok"] for check in checks), "checks": checks}


def exit_code(result: dict) -> int:
    return 0 if result["ok"] else 1


def to_text(result: dict) -> str:
    width = max(len(check["name"]) for check in result["checks"])
    lines = []
    for check in result["checks"]:
        mark = "ok  " if check["ok"] else "FAIL"
        lines.append(f"{mark} {check['name']:{width}}  {check['found']}  (wanted: {check['wanted']})")
        if check["mend"]:
            lines.append(f"     {'':{width}}  {'advice' if check['ok'] else 'mend'}: {check['mend']}")
    failed = [check["name"] for check in result["checks"] if not check["ok"]]
    lines.append("This environment is fit." if result["ok"] else f"Not fit yet: mend {', '.join(failed)}.")
    return "\n".join(lines)


def find_checks(wanted: Requirements) -> Iterator[Check]:
    """Every check, in the order in which a reader would mend them."""
    yield check_python(wanted.python)
    packages = [check_package(requirement) for requirement in wanted.required]
    environment = check_environment(packages)
    yield environment
    # In another environment than the course's own, changing it package by package is bad advice.
    yield from packages if environment.ok else (replace(package, mend="") for package in packages)
    yield check_test_packages(wanted.test)
    yield check_torch()
    yield check_kernel()
    yield check_cores()
    yield check_memory()
    yield check_threads()
    yield check_device()
    yield check_timer()
    yield from check_cache()


def requirements(root: Path | None = None) -> Requirements:
    """The project's requirements: from pyproject.toml in a checkout, else from the installed metadata.

    Raises InputError where there is neither.
    """
    file = (root or Path(helpers.__file__).parents[1]) / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == PROJECT:
            extras = project.get("optional-dependencies", {})
            return Requirements(
                project["requires-python"], tuple(project["dependencies"]), tuple(extras.get("test", ()))
            )
    try:
        about = metadata.metadata(PROJECT)
    except metadata.PackageNotFoundError as error:
        raise InputError(f"{PROJECT} is not installed and no pyproject.toml of it is beside the package") from error
    lines = [line.partition(";") for line in metadata.requires(PROJECT) or ()]
    required = tuple(name.strip() for name, _, marker in lines if "extra" not in marker)
    test = tuple(name.strip() for name, _, marker in lines if marker.strip().replace("'", '"') == 'extra == "test"')
    return Requirements(about["Requires-Python"], required, test)


def check_python(wanted: str) -> Check:
    found = platform.python_version()
    ok = _within(found, wanted)
    mend = "" if ok else f"create the environment anew with a Python {wanted}, for example: python3.12 -m venv .venv"
    return Check("python", ok is not False, found, wanted, mend)


def own_environment() -> Path:
    """The environment that `make install` makes."""
    return Path(helpers.__file__).parents[1] / ".venv"


def check_environment(packages: Iterable[Check]) -> Check:
    """Is this the environment that `make install` makes, or another one that has everything."""
    wanted = "the course's own, or one with every package"
    if Path(sys.prefix).resolve() == own_environment().resolve():
        return Check("environment", True, "the course's own .venv", wanted)
    if all(package.ok for package in packages):
        return Check("environment", True, f"another one, complete: {sys.prefix}", wanted)
    mend = "in the course's folder: make install, then source .venv/bin/activate"
    return Check("environment", False, f"another one, with packages missing: {sys.prefix}", wanted, mend)


def check_test_packages(requirements: Iterable[str]) -> Check:
    """Are the packages of the extra `test` there: only `make test` needs them, and installs them itself."""
    packages = [check_package(requirement) for requirement in requirements]
    lacking = [package.name for package in packages if not package.ok]
    found = f"not installed: {', '.join(lacking)}" if lacking else f"all {len(packages)} installed"
    return Check("test packages", True, found, "optional", "make test installs them" if lacking else "")


def check_package(requirement: str) -> Check:
    """Is the package installed, and is its version within the range the project declares."""
    end = next((i for i, letter in enumerate(requirement) if letter in "<>=!~ [;"), len(requirement))
    name, wanted = requirement[:end], requirement[end:] or "any version"
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        found = None
    within = found is not None and _within(found, requirement[end:])
    mend = "" if within else f"{_python()} -m pip install {shlex.quote(requirement)}"
    shown = found or "missing"
    if within is None:
        shown, mend = f"{found}, range not compared", f"{_python()} -m pip install packaging"
    return Check(name, within is not False, shown, wanted, mend)


def check_torch() -> Check:
    """Can torch be imported and compute: a damaged installation has a version and still fails."""
    try:
        import torch

        ok, found = torch.ones(2).sum().item() == 2, f"computes on the CPU with torch {torch.__version__}"
    except Exception as error:
        ok, found = False, f"{type(error).__name__}: {' '.join(str(error).split())}"
    return Check(
        "torch works",
        ok,
        found,
        "a sum on the CPU",
        "" if ok else f"{_python()} -m pip install --force-reinstall torch",
    )


def check_kernel() -> Check:
    """Is the Jupyter kernel of the course registered, and does it start this very Python."""
    mend = f'{_python()} -m ipykernel install --sys-prefix --name {KERNEL} --display-name "Inference lab"'
    wanted = f"kernel {KERNEL} for this Python"
    try:
        from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
    except ImportError:
        return Check("kernel", False, "jupyter_client is missing", wanted, f"{_python()} -m pip install jupyterlab")
    try:
        starts = KernelSpecManager().get_kernel_spec(KERNEL).argv[0]
    except (NoSuchKernel, IndexError, OSError, ValueError):
        return Check("kernel", False, f"no usable kernel {KERNEL}", wanted, mend)
    if _is_this_python(starts):
        return Check("kernel", True, f"{KERNEL} starts this Python", wanted)
    return Check("kernel", False, f"{KERNEL} starts another Python: {starts}", wanted, mend)


def check_cores() -> Check:
    cores = usable_cores()
    advice = "" if cores > 1 else "on one core everything runs, slowly; leave other programs closed while measuring"
    return Check("cores", True, str(cores), "2 or more", advice)


def check_memory() -> Check:
    found = usable_memory_bytes()
    wanted = f"at least {format_bytes(LEAST_MEMORY_BYTES)}"
    if found is None:
        return Check("memory", True, "not told by this system", wanted)
    ok = found >= LEAST_MEMORY_BYTES
    return Check("memory", ok, format_bytes(found), wanted, "" if ok else "give the container or machine more memory")


def check_threads() -> Check:
    """Does torch compute with as many threads as there are cores: more of them wait for one another."""
    cores, torch = usable_cores(), sys.modules.get("torch")
    if torch is None:
        return Check("threads", True, "not known without torch", f"{cores}, one a core")
    threads = torch.get_num_threads()
    advice = "" if threads <= cores else f"export OMP_NUM_THREADS={cores} before starting Python or JupyterLab"
    return Check("threads", True, str(threads), f"{cores}, one a core", advice)


def check_device() -> Check:
    wanted = "cpu; cuda or mps is used where it works"
    if sys.modules.get("torch") is None:
        return Check("device", True, "not known without torch", wanted)
    from helpers.measure import default_device, machine

    device = default_device()
    about = machine(device)
    memory = f", {format_bytes(about.device_memory_bytes)}" if about.device_memory_bytes else ""
    unused = device == "cpu" and shutil.which("nvidia-smi") is not None
    advice = "there may be an NVIDIA GPU that this torch cannot use: see pytorch.org for a CUDA build" if unused else ""
    return Check("device", True, f"{device}: {about.device_name}{memory}", wanted, advice)


def check_timer() -> Check:
    """The smallest step of the clock that measurements use, found by reading it until it moves."""
    steps = []
    for _ in range(100):
        start = now = time.perf_counter()
        while now == start:
            now = time.perf_counter()
        steps.append(now - start)
    step = min(steps)
    ok = step <= COARSEST_TIMER_S and time.get_clock_info("perf_counter").monotonic
    mend = "" if ok else "timings of this system are coarse: use another operating system or container runtime"
    return Check("timer", ok, f"steps of {step * 1e9:.0f} ns", f"at most {COARSEST_TIMER_S * 1e9:.0f} ns", mend)


def check_cache() -> Iterator[Check]:
    """Can the real model be kept, and is it there already."""
    wanted = "writable"
    try:
        from helpers.engine.smollm2 import NAME, cache_folder
    except ImportError as error:
        yield Check("cache folder", True, f"not checked: {error.name or 'a package'} is missing", wanted)
        return
    folder = cache_folder()
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    ok = existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)
    mend = "" if ok else "set INFERENCE_LAB_CACHE to a folder you can write to"
    yield Check("cache folder", ok, f"{folder}: {'writable' if ok else 'not writable'}", wanted, mend)
    found = "there" if (folder / NAME).is_dir() else "not there yet"
    yield Check(NAME, True, found, "fetched once, when first used (93 MB)")


def _within(version: str, specifiers: str) -> bool | None:
    """Is a version within a range such as ">=2.6,<3"; None where nothing here can compare versions."""
    try:
        from packaging.specifiers import SpecifierSet
        from packaging.version import InvalidVersion
    except ImportError:
        return None
    bare = specifiers.partition(";")[0].rpartition("]")[2].strip()
    try:
        return SpecifierSet(bare).contains(version, prereleases=True)
    except InvalidVersion:
        return False


def _is_this_python(program: str) -> bool:
    # jupyter_client starts a bare "python" as its own interpreter.
    if program in {"python", "python3", f"python3.{sys.version_info.minor}"}:
        return True
    # Folders, not files: the interpreters of two environments are links to one and the same file.
    try:
        return Path(program).parent.samefile(Path(sys.executable).parent)
    except OSError:
        return False


def _python() -> str:
    return shlex.quote(sys.executable)
