"""JupyterLab and a headless Chromium for the tests: start the server on copies, open a notebook, run it, wait.

Everything stays on 127.0.0.1; a request to anywhere else is recorded as a fault.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import re
import secrets
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Locator, Page, expect

KERNEL_NAME, KERNEL_DISPLAY_NAME = "inference-lab", "Inference lab"
CHROMIUM = next((p for p in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if Path(p).exists()), None)
CHROME_ARGUMENTS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--no-pings",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-domain-reliability",
    "--disable-features=OptimizationHints,MediaRouter,Translate",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
    # "none" draws every cell, so that texts and pictures of cells off screen can be read.
    "notebook-extension/tracker": {"windowingMode": "none"},
}
PRIVATE_FOLDERS = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
    "MPLCONFIGDIR",
)


def loopback_up() -> None:
    """Bring up `lo`, which is down in a fresh network namespace (what `ip link set lo up` does)."""
    siocgifflags, siocsifflags, iff_up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(s, siocgifflags, request))[1]
        fcntl.ioctl(s, siocsifflags, struct.pack("16sH14x", b"lo", flags | iff_up))


def _die_with_parent() -> None:
    # Linux only: pytest killed by a signal skips its teardown, and the server must not outlive it.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@contextlib.contextmanager
def lab_server(root: Path, scratch: Path) -> Iterator[tuple[str, str]]:
    """JupyterLab on the folder `root` (a copy of the notebooks); yields its address and token."""
    for name, body in SETTINGS.items():
        file = scratch / "settings/@jupyterlab" / f"{name}.jupyterlab-settings"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(body))
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    token, base = secrets.token_hex(16), f"http://127.0.0.1:{port}"
    environment = os.environ | {
        "JUPYTER_TOKEN": token,
        "JUPYTER_PREFER_ENV_PATH": "1",
        "JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
    }
    environment |= {name: str(scratch / name.lower()) for name in PRIVATE_FOLDERS}
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        f"--ServerApp.root_dir={root}",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        f"--KernelSpecManager.allowed_kernelspecs={KERNEL_NAME}",
        "--KernelSpecManager.ensure_native_kernel=False",
        f"--MultiKernelManager.default_kernel_name={KERNEL_NAME}",
    ]
    log = scratch / "lab.log"
    with log.open("w") as out:
        server = subprocess.Popen(
            command, env=environment, stdout=out, stderr=subprocess.STDOUT, preexec_fn=_die_with_parent
        )
    try:
        _wait_until_up(server, f"{base}/api/status?token={token}", log)
        yield base, token
    finally:
        server.terminate()  # SIGTERM: the server stops its kernels too
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(15)
        server.kill()


def _wait_until_up(server: subprocess.Popen, url: str, log: Path) -> None:
    end = time.monotonic() + 60
    while True:
        if server.poll() is not None or time.monotonic() > end:
            raise RuntimeError(log.read_text()[-3000:])
        try:
            urllib.request.urlopen(url, timeout=2)
            return
        except OSError:
            time.sleep(0.2)


@contextlib.contextmanager
def watched_page(browser: Browser, base: str, faults: list[str], width: int = 1280) -> Iterator[Page]:
    """A fresh page; outside requests, console errors, page errors and bad responses are added to `faults`."""
    context = browser.new_context(viewport={"width": width, "height": 1000}, reduced_motion="reduce", locale="en-US")
    context.set_default_timeout(15_000)
    ours = (base, base.replace("http", "ws"), "data:", "blob:")
    context.on("request", lambda r: r.url.startswith(ours) or faults.append(f"outside call: {r.url}"))
    page = context.new_page()
    page.on("websocket", lambda w: w.url.startswith(ours) or faults.append(f"outside call: {w.url}"))
    page.on("console", lambda m: m.type == "error" and faults.append(f"console: {m.text}"))
    page.on("pageerror", lambda e: faults.append(f"page error: {e}"))
    page.on("response", lambda r: r.status >= 400 and faults.append(f"HTTP {r.status}: {r.url}"))
    try:
        yield page
    finally:
        context.close()


def open_notebook(page: Page, base: str, token: str, name: str) -> Locator:
    """Open one notebook in a workspace of its own and wait for its kernel; the notebook's panel."""
    page.goto(f"{base}/lab/workspaces/t{secrets.token_hex(4)}/tree/{name}?token={token}&reset")
    panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    # The kernel's name first: for about two seconds the indicator says "idle" while there is no kernel at all.
    expect(panel.locator(".jp-KernelName")).to_have_text(KERNEL_DISPLAY_NAME, timeout=60_000)
    indicator = panel.locator(".jp-Notebook-ExecutionIndicator")
    expect(indicator).to_have_attribute("data-status", "idle", timeout=60_000)
    return panel


def run_all(page: Page) -> None:
    """Run > Run All Cells, as a learner does it."""
    for item in ("Run", "Run All Cells"):
        page.get_by_role("menuitem", name=item, exact=True).click()


def wait_done(panel: Locator, seconds: float) -> None:
    """Wait until every code cell has a number; AssertionError at the first traceback or after `seconds`."""
    end, prompts = time.monotonic() + seconds, []
    while time.monotonic() < end:
        prompts = panel.locator(".jp-CodeCell .jp-InputArea-prompt").all_text_contents()
        stderr = panel.locator("[data-mime-type='application/vnd.jupyter.stderr']")
        bad = stderr.filter(has_text="Traceback (most recent call last)")
        if bad.count():
            raise AssertionError(bad.first.text_content()[-1500:])
        if prompts and all(re.search(r"\[\d+\]", prompt) for prompt in prompts):
            return
        time.sleep(0.2)
    raise AssertionError(f"not finished after {seconds} s: {prompts}")


def screenshot(page: Page, out: Path) -> None:
    """A picture of the whole notebook: the window is made as tall as the notebook first."""
    inner = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer")
    height = inner.evaluate("e => e.scrollHeight")
    page.set_viewport_size({"width": page.viewport_size["width"], "height": min(height + 150, 16_000)})
    inner.evaluate("e => { e.scrollTop = 0 }")
    page.wait_for_timeout(500)
    last = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").last.bounding_box()
    bottom = min(last["y"] + last["height"] + 40, page.viewport_size["height"])
    page.screenshot(path=str(out), clip={"x": 0, "y": 0, "width": page.viewport_size["width"], "height": bottom})
