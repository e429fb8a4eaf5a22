"""What the README tells a stranger to type works as written, and what it points at exists."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from helpers.engine import smollm2_folder
from helpers.errors import InputError
from helpers.lab.picture import stored_picture

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"


def commands() -> list[str]:
    """Every command line of the README's shell blocks, in order."""
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", README.read_text(), flags=re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def environment() -> dict[str, str]:
    """As after `source .venv/bin/activate`, with a browser that does nothing."""
    folder = os.path.dirname(sys.executable)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "BROWSER": "true"}


def test_the_two_commands_come_first():
    assert [c for c in commands() if c.startswith("make ")][:2] == ["make lab", "make test"]


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("make ")])
def test_every_make_target_of_the_readme_exists(command):
    done = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_make_test_runs_linters_unit_tests_and_notebooks():
    done = subprocess.run(["make", "--dry-run", "test"], cwd=ROOT, capture_output=True, text=True, check=True)
    for part in ("ruff check", "lint-imports", "-m 'not slow'", "-m slow", "--nbval"):
        assert part in done.stdout


# Those that need another machine, an endpoint, or minutes; each is tested where the command is.
ELSEWHERE = (
    "git ",
    "cd ",
    "source ",
    "make ",
    "python -m helpers record",
    "python -m helpers serve",
    "python -m helpers measure",
    "python -m helpers judge",
)


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith(ELSEWHERE)])
def test_the_other_commands_run_as_written(command, tmp_path):
    assert command.startswith(("python -m helpers", "inference-lab")), f"no test knows how to run: {command}"
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    if "--json" in command:
        assert isinstance(json.loads(done.stdout), dict)


@pytest.mark.slow
def test_a_stranger_serves_measures_replays_and_judges_as_written(tmp_path):
    try:
        smollm2_folder()
    except InputError as error:
        if "cannot fetch" not in str(error):
            raise
        pytest.skip(str(error))
    (serve,) = [c for c in commands() if c.startswith("python -m helpers serve")]
    measure, replay = [c for c in commands() if c.startswith("python -m helpers measure")]
    (judge,) = [c for c in commands() if c.startswith("python -m helpers judge")]
    # The port of the README may be taken on this machine.
    words = [sys.executable, *shlex.split(serve)[1:], "--port=0"]
    server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        ready = server.stderr.readline()
        assert ready.startswith("serve: ready at http://127.0.0.1:"), ready
        url = ready.split()[-1]
        assert "http://127.0.0.1:8000/v1" in measure
        said = []
        live = [command.replace("http://127.0.0.1:8000/v1", url) for command in (measure, judge)]
        for command in (live[0], replay, live[1], "python -m helpers judge --from run.jsonl"):
            words = [sys.executable, *shlex.split(command)[1:]]
            path = {"PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                words, cwd=tmp_path, env=environment() | path, capture_output=True, text=True, timeout=900
            )
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)
        assert said[0] == said[1] and "TTFT" in said[0] and "errors: 0 of 8" in said[0]
        assert "floor" in said[2] and "not known: model and device" in said[3]
        page = (tmp_path / "judgement.html").read_text()
        assert "TTFT" in page and "floor" in page and "127.0.0.1" in page
    finally:
        server.terminate()
        server.communicate(timeout=60)


def test_make_lab_serves_the_first_notebook_under_the_url_it_prints(tmp_path):
    if Path(sys.prefix) != ROOT / ".venv":
        pytest.skip("this run is not in the checkout's own .venv, which `make lab` would have to build first")
    env = environment() | {"JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"), "JUPYTERLAB_WORKSPACES_DIR": str(tmp_path)}
    env.pop("JUPYTER_TOKEN", None)
    log = tmp_path / "lab.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            ["make", "lab"], cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        found, deadline = None, time.monotonic() + 90
        while not found and server.poll() is None and time.monotonic() < deadline:
            found = re.search(r"http://127\.0\.0\.1:\d+/lab\S*\?token=\w+", log.read_text())
            time.sleep(0.2)
        assert found, log.read_text()
        url = urllib.parse.urlsplit(found[0])
        assert url.path == "/lab/tree/notebooks/01_two_accounts.ipynb"
        assert urllib.request.urlopen(found[0], timeout=30).status == 200
        contents = f"{url.scheme}://{url.netloc}/api/contents/notebooks/01_two_accounts.ipynb?{url.query}"
        notebook = json.load(urllib.request.urlopen(contents, timeout=30))
        assert notebook["content"]["metadata"]["kernelspec"]["name"] == "inference-lab"
        specs = json.load(
            urllib.request.urlopen(f"{url.scheme}://{url.netloc}/api/kernelspecs?{url.query}", timeout=30)
        )
        assert "inference-lab" in specs["kernelspecs"]
        setting = "lab/api/settings/@jupyterlab/apputils-extension:notification"
        asked = json.load(urllib.request.urlopen(f"{url.scheme}://{url.netloc}/{setting}?{url.query}", timeout=30))
        assert asked["schema"]["properties"]["fetchNews"]["default"] == "false", "JupyterLab asks to fetch news"
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


def test_the_map_names_every_notebook_and_only_those_that_exist():
    named = set(re.findall(r"\]\(notebooks/([^)]+\.ipynb)\)", README.read_text()))
    assert named == {p.name for p in (ROOT / "notebooks").glob("*.ipynb")}


def test_the_picture_is_the_one_stored_in_the_notebook_it_comes_from():
    stored = stored_picture(ROOT / "notebooks/02_prefill_vs_decode.ipynb", "roofline-figure")
    assert (ROOT / "docs/roofline.png").read_bytes() == stored


@pytest.mark.parametrize(("cell", "reason"), [("no-such-cell", "no cell"), ("roofline-claim", "no picture")])
def test_a_picture_that_is_not_there_is_refused(cell, reason):
    with pytest.raises(InputError, match=reason):
        stored_picture(ROOT / "notebooks/02_prefill_vs_decode.ipynb", cell)
