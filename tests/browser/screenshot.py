"""Look at a notebook in JupyterLab: ``python tests/browser/screenshot.py NOTEBOOK [OUT.png] [--run]`` (Chromium).

The notebook is copied first. With --run every cell is run there; without, its stored outputs are shown. Prints one JSON
object: the text of the page, the images without alt text, and the faults (outside calls, console errors, tracebacks);
exits 1 when there are faults. A page (.html) is opened as a file instead.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from lab_kit import CHROME_ARGUMENTS, CHROMIUM, lab_server, loopback_up, open_notebook, run_all, wait_done, watched_page
from lab_kit import screenshot as take_screenshot
from playwright.sync_api import Browser, sync_playwright

NO_ALT = "nodes => nodes.filter(n => !n.alt || n.alt.length < 10).length"


def look_at_notebook(browser: Browser, notebook: Path, args: argparse.Namespace) -> dict:
    """Open `notebook` in JupyterLab; the JSON object described above."""
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root, scratch = Path(folder) / "notebooks", Path(folder) / "server"
        root.mkdir()
        scratch.mkdir()
        shutil.copy(notebook, root)
        with (
            lab_server(root, scratch) as (base, token),
            watched_page(browser, base, faults, args.width) as page,
        ):
            panel = open_notebook(page, base, token, notebook.name)
            if args.run:
                run_all(page)
                try:
                    wait_done(panel, args.seconds)
                except AssertionError as error:
                    faults.append(f"traceback: {error}")
            page.wait_for_timeout(1500)  # the last outputs are drawn after the last cell has its number
            images = panel.locator(".jp-OutputArea-output img, .jp-RenderedMarkdown img")
            result = {"text": panel.text_content(), "images": images.count(), "no_alt": images.evaluate_all(NO_ALT)}
            if args.out:
                take_screenshot(page, args.out)
    return result | {"faults": faults}


def look_at_page(browser: Browser, file: Path, args: argparse.Namespace) -> dict:
    """Open the HTML file; the JSON object described above."""
    faults: list[str] = []
    with watched_page(browser, f"file://{file.resolve()}", faults, args.width) as page:
        page.goto(f"file://{file.resolve()}")
        images = page.locator("img")
        result = {
            "text": page.locator("body").text_content(),
            "images": images.count(),
            "no_alt": images.evaluate_all(NO_ALT),
        }
        if args.out:
            page.screenshot(path=str(args.out), full_page=True)
    return result | {"faults": faults}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("out", type=Path, nargs="?", help="PNG of the whole notebook")
    parser.add_argument("--run", action="store_true", help="run all cells")
    parser.add_argument("--seconds", type=float, default=600, help="how long the run may take")
    parser.add_argument("--width", type=int, default=1280, help="window width in pixels")
    parser.add_argument("--loopback", action="store_true", help="bring up lo first (under `unshare -n`)")
    args = parser.parse_args()
    if args.loopback:
        loopback_up()
    look = look_at_page if args.notebook.suffix == ".html" else look_at_notebook
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROME_ARGUMENTS)
        result = look(browser, args.notebook, args)
        browser.close()
    print(json.dumps(result))
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
