"""The report of this machine: every notebook run here and now, as offline HTML: ``python -m helpers.lab.export``.

Writes build/report/NN_*.html, each one file that asks the network for nothing, and build/report.html, the index.
Copies are run; the committed notebooks stay as they are. A notebook that fails is shown as failed, up to the cell that
failed; the others are still reported, and the exit code is 1.
"""

import argparse
import html
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from helpers import __version__
from helpers.errors import InputError
from helpers.lab import notebook_file
from helpers.lab.execute import CellFailure, run

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "report_template"
NO_ALT = "No description has been provided for this image"


@dataclass(frozen=True)
class Chapter:
    """One notebook of the report: its file name, title, run time, and the error that stopped it ("" for none)."""

    name: str
    title: str
    seconds: float
    error: str

    @property
    def page(self) -> str:
        """The file name of its HTML page."""
        return Path(self.name).with_suffix(".html").name


class _MathRenderer(IPythonRenderer):
    """Markdown with formulas as MathML: a browser draws it without a script and without the network."""

    def inline_math(self, body: str) -> str:
        return convert(body)

    def block_math(self, body: str) -> str:
        return convert(body, display="block")


class _CourseExporter(HTMLExporter):
    def default_filters(self) -> Iterator[tuple]:
        for name, function in super().default_filters():
            yield name, _markdown if name == "markdown2html" else function


def _markdown(text: str) -> str:
    return MarkdownWithMath(renderer=_MathRenderer(escape=False, anchor_link_text="", embed_images=True)).render(text)


def to_html(notebook: NotebookNode, title: str, banner: str) -> str:
    """One executed notebook as self-contained HTML (no script or style from outside); `banner` stands at the top.

    InputError when an image has no alt text.
    """
    exporter = _CourseExporter(
        template_name="course",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_input_prompt=True,
        exclude_output_prompt=True,
    )
    resources = {"metadata": {"name": title}, "banner": html.escape(banner)}
    page, _ = exporter.from_notebook_node(notebook, resources)
    if NO_ALT in page:
        raise InputError(f"{title}: a figure has no alt text; use figures.show_figure(fig, alt)")
    return page


def title_of(notebook: NotebookNode, fallback: str) -> str:
    """The H1 of a notebook, or `fallback`."""
    first = notebook.cells[0].source if notebook.cells else ""
    return first.split("\n")[0][2:].strip() if first.startswith("# ") else fallback


def export_chapter(path: Path, folder: Path, progress: bool = True) -> Chapter:
    """Run a copy of the notebook at `path` and write its page into `folder`."""
    error, started = "", time.monotonic()
    notebook = notebook_file.read(path)
    try:
        notebook = run(notebook, path.name, path.resolve().parent, progress)
    except CellFailure as failure:
        notebook, error = failure.notebook, str(failure)
    chapter = Chapter(path.name, title_of(notebook, path.stem), time.monotonic() - started, error)
    when = time.strftime("%Y-%m-%d %H:%M %Z")
    state = f"FAILED. {error}" if error else f"ran in {chapter.seconds:.0f} s"
    banner = f"{path.name}, run on this machine on {when} with inference-lab {__version__}: {state}"
    notebook_file.write_text(to_html(notebook, chapter.title, banner), folder / chapter.page)
    return chapter


def index_html(chapters: list[Chapter], folder_name: str) -> str:
    """The index page: one row a notebook, with its state in words."""
    rows = "\n".join(
        f'<tr><td><a href="{folder_name}/{html.escape(c.page)}">{html.escape(c.title)}</a></td>'
        f"<td>{'FAILED: ' + html.escape(c.error) if c.error else 'ran'}</td><td>{c.seconds:.0f} s</td></tr>"
        for c in chapters
    )
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    made = f"Made on {time.strftime('%Y-%m-%d %H:%M %Z')} with inference-lab {__version__} on {machine}."
    return f"""<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Report of this machine</title>
<style>body {{ font: 16px/1.5 sans-serif; max-width: 55em; margin: 2em auto; padding: 0 1em }}
td, th {{ text-align: left; padding: .3em 1em .3em 0; vertical-align: top; border-bottom: 1px solid #999 }}</style>
</head>
<body><main><h1>Report of this machine</h1>
<p>{html.escape(made)} The notebooks were run for this page; no stored output is shown.</p>
<table><thead><tr><th scope="col">Notebook</th><th scope="col">State</th><th scope="col">Time</th></tr></thead>
<tbody>
{rows}
</tbody></table></main></body>
</html>
"""


def main(argv: list[str] | None = None) -> int:
    """Make the report; 0 when every notebook ran, 1 when one failed, 2 on bad input."""
    root = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(prog="python -m helpers.lab.export", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="notebooks (default: all of notebooks/)")
    parser.add_argument("--out", type=Path, default=root / "build", help="folder for report.html and report/")
    args = parser.parse_args(argv)
    paths = args.files or sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        print("error: there is no notebook to report on", file=sys.stderr)
        return 2
    chapters = []
    try:
        for path in paths:
            chapters.append(export_chapter(path, args.out / "report"))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    notebook_file.write_text(index_html(chapters, "report"), args.out / "report.html")
    failed = [chapter for chapter in chapters if chapter.error]
    for chapter in failed:
        print(f"failed: {chapter.error}", file=sys.stderr)
    print(f"{args.out / 'report.html'}: {len(chapters) - len(failed)} of {len(chapters)} notebooks ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
