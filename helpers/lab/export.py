"""The report of this machine: every notebook run here and now, as offline HTML: ``python -m helpers.lab.export``.

Writes build/report.html (see `helpers.lab.report_page`), and per notebook build/report/NN_*.html and the executed copy.
Each page is one file that asks the network for nothing. Copies are run; the committed notebooks stay as they are. A
notebook that fails is shown as failed, up to the cell that failed; the others are still reported, and the exit code
is 1.
"""

import argparse
import contextlib
import html
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode

from helpers import __version__
from helpers.commands.html_page import document
from helpers.errors import InputError
from helpers.lab import ledger, notebook_file
from helpers.lab.execute import CellFailure, run
from helpers.lab.report_page import Chapter, minutes, minutes_text, report

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "report_template"
NO_ALT = "No description has been provided for this image"


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


def export_chapter(path: Path, folder: Path, progress: bool = True) -> tuple[Chapter, NotebookNode]:
    """Run a copy of the notebook at `path`, write it and its page into `folder`; the executed copy, up to a failure."""
    error, started = "", time.monotonic()
    notebook = notebook_file.read(path)
    try:
        notebook = run(notebook, path.name, path.resolve().parent, progress)
    except CellFailure as failure:
        notebook, error = failure.notebook, str(failure)
    chapter = Chapter(path.name, title_of(notebook, path.stem), time.monotonic() - started, error)
    when = time.strftime("%Y-%m-%d %H:%M %Z")
    try:
        page = to_html(notebook, chapter.title, _banner(chapter, when))
    except InputError as refusal:
        chapter = replace(chapter, error=str(refusal))
        page = document(
            chapter.title, f"<h1>{html.escape(chapter.title)}</h1><p>{html.escape(_banner(chapter, when))}</p>"
        )
    notebook_file.write(notebook, folder / path.name)
    notebook_file.write_text(page, folder / chapter.page)
    return chapter, notebook


def _banner(chapter: Chapter, when: str) -> str:
    state = f"FAILED. {chapter.error}" if chapter.error else f"ran in {minutes_text(chapter.seconds)}"
    return f"{chapter.name}, run on this machine on {when} with inference-lab {__version__}: {state}"


def export(paths: Sequence[Path], out: Path) -> list[Chapter]:
    """Run copies of the notebooks at `paths` and write the report into `out`; progress on stderr."""
    folder = out / "report"
    if clash := [path for path in paths if path.resolve().parent == folder.resolve()]:
        raise InputError(f"{clash[0]} lies in the folder that the report writes to")
    if len({path.stem for path in paths}) < len(paths):
        raise InputError("two of the notebooks have the same file name: their pages would overwrite each other")
    # An older report must not be read as this one: the ledger takes its numbers from the copies in this folder.
    for old in [*folder.glob("[0-9][0-9]_*.ipynb"), *folder.glob("[0-9][0-9]_*.html"), *out.glob("report.html")]:
        old.unlink()
    with _executed_folder(folder):
        return _export(paths, out, folder)


@contextlib.contextmanager
def _executed_folder(folder: Path) -> Iterator[None]:
    """Within it, the ledger of a notebook that runs reads the copies of this run (the kernels inherit the variable)."""
    before = os.environ.get(ledger.FOLDER_VARIABLE)
    os.environ[ledger.FOLDER_VARIABLE] = str(folder.resolve())
    try:
        yield
    finally:
        os.environ.pop(ledger.FOLDER_VARIABLE)
        if before is not None:
            os.environ[ledger.FOLDER_VARIABLE] = before


def _export(paths: Sequence[Path], out: Path, folder: Path) -> list[Chapter]:
    chapters: list[Chapter] = []
    notebooks: dict[str, NotebookNode] = {}
    for number, path in enumerate(paths, 1):
        _say(f"notebook {number} of {len(paths)}, {path.name}; {minutes(chapters)} so far")
        chapter, notebooks[path.stem] = export_chapter(path, folder)
        chapters.append(chapter)
        _say(f"{path.name} {'FAILED' if chapter.error else 'ran'} in {minutes_text(chapter.seconds)}")
        # Written after every notebook: a run that is broken off leaves a report on what ran.
        notebook_file.write_text(report(chapters, notebooks, "report", len(paths)), out / "report.html")
    return chapters


def _say(text: str) -> None:
    print(f"report: {text}", file=sys.stderr, flush=True)


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
    try:
        for path in paths:
            notebook_file.read(path)  # a file that is no notebook is refused before minutes are spent on the others
        chapters = export(paths, args.out)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    failed = [chapter for chapter in chapters if chapter.error]
    for chapter in failed:
        print(f"failed: {chapter.error}", file=sys.stderr)
    print(f"{(args.out / 'report.html').resolve()}: {len(chapters) - len(failed)} of {len(chapters)} notebooks ran")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
