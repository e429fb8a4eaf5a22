"""The doctor finds what is planted: a package missing or too old, a wrong kernel, a thing that does not work."""

import argparse
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from helpers.commands import doctor
from helpers.errors import InputError

KERNEL_JSON = {"display_name": "Inference lab", "language": "python"}


def run() -> dict:
    return doctor.run(argparse.Namespace())


def check(result: dict, name: str) -> dict:
    return next(found for found in result["checks"] if found["name"] == name)


def plant_version(monkeypatch, package: str, version: str | None) -> None:
    real = metadata.version

    def planted(name: str) -> str:
        if name != package:
            return real(name)
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(doctor.metadata, "version", planted)


def plant_kernel(monkeypatch, folder: Path, program: str | None) -> None:
    """Let jupyter see only a kernel `inference-lab` that starts `program` (or none at all)."""
    from jupyter_client import kernelspec

    kernels = folder / "kernels"
    if program is not None:
        target = kernels / "inference-lab"
        target.mkdir(parents=True)
        argv = [program, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        (target / "kernel.json").write_text(json.dumps(KERNEL_JSON | {"argv": argv}))
    monkeypatch.setattr(kernelspec, "jupyter_path", lambda *parts: [str(folder.joinpath(*parts))])
    monkeypatch.setattr(kernelspec.KernelSpecManager, "ensure_native_kernel", False)


@pytest.fixture
def fit(monkeypatch, tmp_path) -> None:
    """The course's own environment with a kernel that is right, whatever this one is."""
    monkeypatch.setattr(doctor, "own_environment", lambda: Path(sys.prefix))
    plant_kernel(monkeypatch, tmp_path / "fit", sys.executable)


def test_every_requirement_of_pyproject_has_its_line(root, fit):
    import tomllib

    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    found = {c["name"] for c in run()["checks"]}
    for requirement in project["dependencies"]:
        assert doctor.check_package(requirement).name in found


def test_a_fit_environment_is_ok_and_exits_0(fit):
    result = run()
    required = [c for c in result["checks"] if not c["ok"]]
    assert result["ok"], required
    assert doctor.exit_code(result) == 0
    assert "fit" in doctor.to_text(result)


def test_the_keys_are_those_promised(fit):
    result = run()
    assert set(result) == {"ok", "checks"}
    assert all(set(c) == {"name", "ok", "found", "wanted", "mend"} for c in result["checks"])
    assert json.loads(json.dumps(result, allow_nan=False)) == result


@pytest.mark.parametrize(
    ("version", "shown"),
    [(None, "missing"), ("1.13.1", "1.13.1"), ("99.0", "99.0"), ("not-a-version", "not-a-version")],
)
def test_a_required_package_that_is_missing_too_old_or_too_new_exits_1_with_the_command(
    monkeypatch, fit, version, shown
):
    plant_version(monkeypatch, "torch", version)
    result = run()
    found = check(result, "torch")
    assert (found["ok"], found["found"]) == (False, shown)
    assert found["mend"].startswith(f"{sys.executable} -m pip install 'torch>=")
    assert result["ok"] is False
    assert doctor.exit_code(result) == 1
    assert f"mend: {found['mend']}" in doctor.to_text(result)
    assert "Not fit yet: mend torch" in doctor.to_text(result)


def test_a_local_build_of_a_version_in_range_is_accepted(monkeypatch, fit):
    plant_version(monkeypatch, "torch", "2.6.0+cu124")
    assert check(run(), "torch")["ok"]


def test_a_missing_package_of_the_tests_is_advice_only(root, monkeypatch, fit):
    extra = doctor.requirements(root).test
    assert check(run(), "test packages")["found"] == f"all {len(extra)} installed"
    plant_version(monkeypatch, "playwright", None)
    result = run()
    found = check(result, "test packages")
    assert (found["ok"], found["found"]) == (True, "not installed: playwright")
    assert "make test" in found["mend"]
    assert result["ok"]


def test_in_a_foreign_environment_with_gaps_the_advice_is_to_use_the_courses_own(monkeypatch, fit, tmp_path):
    monkeypatch.setattr(doctor, "own_environment", lambda: tmp_path)
    assert check(run(), "environment")["ok"], "complete, so as good as the own one"
    plant_version(monkeypatch, "torch", None)
    result = run()
    found = check(result, "environment")
    assert found["ok"] is False
    assert "make install" in found["mend"]
    assert check(result, "torch")["mend"] == "", "no pip install into an environment that is not the course's"
    assert doctor.exit_code(result) == 1


def test_no_kernel_is_mended_by_the_command_that_registers_it(monkeypatch, tmp_path):
    plant_kernel(monkeypatch, tmp_path, None)
    result = run()
    found = check(result, "kernel")
    assert found["ok"] is False
    assert found["mend"].startswith(f"{sys.executable} -m ipykernel install --sys-prefix --name inference-lab")
    assert doctor.exit_code(result) == 1


def test_a_kernel_of_another_python_is_found_out(monkeypatch, tmp_path):
    other = tmp_path / "other" / "bin"
    other.mkdir(parents=True)
    # A link to the same file, as environments have it: only its folder tells that it is another one.
    (other / "python").symlink_to(Path(sys.executable).resolve())
    plant_kernel(monkeypatch, tmp_path, str(other / "python"))
    found = check(run(), "kernel")
    assert found["ok"] is False
    assert "another Python" in found["found"]


@pytest.mark.parametrize("program", ["python", "/no/such/python"])
def test_a_bare_python_is_this_one_and_a_vanished_one_is_not(monkeypatch, tmp_path, program):
    plant_kernel(monkeypatch, tmp_path, program)
    assert check(run(), "kernel")["ok"] is (program == "python")


def test_a_broken_kernel_file_is_no_kernel(monkeypatch, tmp_path):
    plant_kernel(monkeypatch, tmp_path, "python")
    (tmp_path / "kernels" / "inference-lab" / "kernel.json").write_text("{")
    assert check(run(), "kernel")["ok"] is False


def test_a_python_out_of_range_is_named(monkeypatch, fit):
    monkeypatch.setattr(doctor.platform, "python_version", lambda: "3.9.1")
    found = check(run(), "python")
    assert (found["ok"], found["found"]) == (False, "3.9.1")
    assert found["mend"]


def test_too_little_memory_is_not_ok(monkeypatch, fit):
    monkeypatch.setattr(doctor, "usable_memory_bytes", lambda: 2**30)
    assert check(run(), "memory")["ok"] is False
    monkeypatch.setattr(doctor, "usable_memory_bytes", lambda: None)
    assert check(run(), "memory")["ok"] is True


def test_more_threads_than_cores_are_advised_against(monkeypatch, fit):
    import torch

    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    found = check(run(), "threads")
    assert found["ok"] and "OMP_NUM_THREADS" in found["mend"]


def test_a_cache_folder_that_is_a_file_is_not_writable(monkeypatch, fit, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INFERENCE_LAB_CACHE", str(tmp_path / "file" / "cache"))
    found = check(run(), "cache folder")
    assert found["ok"] is False
    assert "INFERENCE_LAB_CACHE" in found["mend"]


def test_an_absent_real_model_is_told_and_does_not_fail(monkeypatch, fit, tmp_path):
    monkeypatch.setenv("INFERENCE_LAB_CACHE", str(tmp_path / "empty"))
    found = check(run(), "smollm2-135m-instruct")
    assert (found["ok"], found["found"]) == (True, "not there yet")
    assert not (tmp_path / "empty").exists()


def test_the_clock_steps_finely_enough_or_is_reported(monkeypatch, fit):
    ticks = iter(range(10**6))
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: next(ticks) // 3 * 0.016)
    found = doctor.check_timer()
    assert found.ok is False
    assert "16000000 ns" in found.found


def doctor_without(*modules: str) -> subprocess.CompletedProcess:
    """Run `doctor --json` in a Python in which these modules cannot be imported nor found."""
    code = (
        "import sys\n"
        f"gone = {modules!r}\n"
        "sys.modules.update(dict.fromkeys(gone))\n"
        "from importlib import metadata\n"
        "real = metadata.version\n"
        "def version(name):\n"
        "    if name in gone:\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "metadata.version = version\n"
        "from helpers.cli import main\n"
        "sys.exit(main(['doctor', '--json']))\n"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_doctor_works_where_torch_and_numpy_are_missing_and_says_so():
    done = doctor_without("torch", "numpy")
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout)
    assert [check(result, name)["found"] for name in ("torch", "numpy")] == ["missing", "missing"]
    assert check(result, "torch works")["ok"] is False


def test_the_doctor_works_without_what_compares_versions_and_says_that_it_did_not():
    done = doctor_without("packaging", "packaging.specifiers")
    result = json.loads(done.stdout)
    assert "not compared" in check(result, "torch")["found"]
    assert "pip install packaging" in check(result, "torch")["mend"]


def test_without_a_checkout_the_list_comes_from_the_installed_metadata(tmp_path, monkeypatch):
    lines = ["torch<3,>=2.6", "pytest<10,>=8.3; extra == 'test'", 'inference-lab[test]; extra == "dev"']
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: lines)
    monkeypatch.setattr(doctor.metadata, "metadata", lambda name: {"Requires-Python": ">=3.11"})
    assert doctor.requirements(tmp_path) == doctor.Requirements(">=3.11", ("torch<3,>=2.6",), ("pytest<10,>=8.3",))


def test_the_metadata_of_this_very_installation_is_understood(tmp_path):
    found = doctor.requirements(tmp_path)
    assert "torch" in {doctor.check_package(requirement).name for requirement in found.required}
    assert "pytest" in {doctor.check_package(requirement).name for requirement in found.test}
    assert doctor.check_python(found.python).ok


def test_neither_a_checkout_nor_an_installation_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PROJECT", "no-such-project-anywhere")
    with pytest.raises(InputError, match="no-such-project-anywhere"):
        doctor.requirements(tmp_path)


def test_a_foreign_pyproject_beside_the_package_is_not_taken_for_ours(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "something-else"\ndependencies = ["left-pad"]\n')
    assert "left-pad" not in doctor.requirements(tmp_path).required
