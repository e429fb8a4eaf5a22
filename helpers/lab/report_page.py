"""The page of `make report`: what ran and how long, the machine, the claims, predicted against measured, the figures.

One HTML file without script: every cell that the claims ledger or a comparison points at stands on it, with its anchor.
"""

import html
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from helpers import __version__, measure
from helpers.commands.html_page import document, preformatted, scrollable
from helpers.lab import comparisons, ledger
from helpers.lab.cell_outputs import NotShown, text_of

_IMAGE = re.compile(r'<img alt="(?P<alt>[^"]+)" src="(?P<source>data:image/png;base64,[A-Za-z0-9+/=]+)">')


@dataclass(frozen=True)
class Chapter:
    """One notebook of the report: its file name, title, run time, and the error that stopped it ("" for none)."""

    name: str
    title: str
    seconds: float
    error: str

    @property
    def key(self) -> str:
        """The file name without its ending, which links and anchors use."""
        return Path(self.name).stem

    @property
    def page(self) -> str:
        """The file name of its HTML page."""
        return f"{self.key}.html"

    @property
    def state(self) -> str:
        """What became of it, in words."""
        return f"FAILED: {self.error}" if self.error else "ran"


def report(
    chapters: Sequence[Chapter], notebooks: Mapping[str, NotebookNode], folder_name: str, planned: int | None = None
) -> str:
    """The report on `chapters`, whose executed `notebooks` are given by key; their own pages lie in `folder_name`.

    planned: how many notebooks were to be run; where fewer are there, the page says that it is not complete.
    """
    planned = len(chapters) if planned is None else planned
    claims = ledger.rows(notebooks)
    pairs = comparisons.comparisons(notebooks)
    failed = [chapter for chapter in chapters if chapter.error]
    made = f"Made on {time.strftime('%Y-%m-%d %H:%M %Z')} with inference-lab {__version__}."
    sentence = f"{len(chapters) - len(failed)} of {planned} notebooks ran in {minutes(chapters)}. "
    if len(chapters) < planned:
        sentence += f"The run has not ended, or was broken off: {planned - len(chapters)} were not reached. "
    sentence += f"{ledger.count_text(claims)}."
    link = _link_within(notebooks)
    body = [
        "<h1>Report of this machine</h1>",
        f'<p class="lead">{_failures(failed)}{html.escape(sentence)}</p>',
        f"<p>{html.escape(made)} The notebooks were run for this page; no stored output is shown. Where a cell says "
        "“your guess”, it is the one that stands in the notebook.</p>",
        _contents(chapters),
        '<h2 id="notebooks">Notebooks</h2>',
        scrollable("notebooks", _chapter_table(chapters, folder_name)),
        '<h2 id="machine">Machine</h2>',
        _machine(),
        '<h2 id="claims">The claims of the article</h2>',
        "<p>Every verdict and number was read out of the cells that ran for this page. The article is named in the "
        "README; its statements are given here in other words. “Holds” is what the notebooks call “right”.</p>",
        scrollable("claims ledger", ledger.html_table(claims, link)),
        '<h2 id="predicted">Predicted against measured</h2>',
        *_pairs(pairs, link),
    ]
    for chapter in chapters:
        body += _results(chapter, notebooks.get(chapter.key), folder_name)
    title = "Report of this machine"
    return document(f"{len(failed)} FAILED: {title}" if failed else title, "\n".join(body))


def _failures(failed: Sequence[Chapter]) -> str:
    """What the page says before anything else where a notebook failed: which, and where."""
    if not failed:
        return ""
    what = "; ".join(chapter.error for chapter in failed)
    return f"<strong>{len(failed)} FAILED: {html.escape(what)}.</strong> "


def minutes(chapters: Sequence[Chapter]) -> str:
    """The run time of all `chapters` together, in minutes."""
    return minutes_text(sum(chapter.seconds for chapter in chapters))


def minutes_text(seconds: float) -> str:
    """A run time as minutes with one decimal, below one minute as seconds."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{seconds / 60:.1f} minutes"


def anchor(notebook: str, cell: str) -> str:
    """The id of a cell's output on the report page."""
    return f"{notebook}--{cell}"


def _link_within(notebooks: Mapping[str, NotebookNode]) -> ledger.Link:
    """Links to the cells on this page; to the section of the claims where their notebook is not part of the report."""

    def link(notebook: str, cell: str) -> str:
        known = notebook in notebooks and any(c.id == cell for c in notebooks[notebook].cells)
        return f"#{anchor(notebook, cell)}" if known else "#notebooks"

    return link


def _contents(chapters: Sequence[Chapter]) -> str:
    sections = {"notebooks": "Notebooks", "machine": "Machine", "claims": "Claims", "predicted": "Predicted, measured"}
    sections |= {f"results-{chapter.key}": chapter.title for chapter in chapters}
    items = "".join(f'<li><a href="#{key}">{html.escape(name)}</a></li>' for key, name in sections.items())
    return f'<nav aria-label="contents"><ul>{items}</ul></nav>'


def _chapter_table(chapters: Sequence[Chapter], folder_name: str) -> str:
    rows = "\n".join(
        f'<tr><th scope="row"><a href="#results-{c.key}">{html.escape(c.title)}</a></th><td>{_state(c)}</td>'
        f'<td class="number">{c.seconds / 60:.1f}</td>'
        f'<td><a href="{html.escape(folder_name)}/{html.escape(c.page)}">{html.escape(c.page)}</a></td></tr>'
        for c in chapters
    )
    names = {"Notebook": "", "State": "", "Minutes": ' class="number"', "Whole notebook, with text and code": ""}
    head = "".join(f'<th scope="col"{extra}>{name}</th>' for name, extra in names.items())
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _state(chapter: Chapter) -> str:
    return f"<strong>{html.escape(chapter.state)}</strong>" if chapter.error else html.escape(chapter.state)


def _machine() -> str:
    about = measure.machine(measure.default_device())
    memory = "unknown" if about.memory_bytes is None else f"{about.memory_bytes / 2**30:.1f} GiB"
    facts = {
        "Device": about.device_name if about.device == "cpu" else f"{about.device_name} ({about.device})",
        "Processor": f"{about.cpu}, {about.cores} cores",
        "Memory": memory,
        "System": about.system,
        "Versions": ", ".join(f"{name} {version}" for name, version in about.versions.items()),
    }
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{html.escape(fact)}</dd>" for name, fact in facts.items()) + "</dl>"


def _pairs(pairs: Sequence[comparisons.Comparison], link: ledger.Link) -> list[str]:
    parts = []
    for kind, title in comparisons.KINDS.items():
        table = scrollable(title, comparisons.html_table(pairs, kind, link))
        parts += [f"<h3>{title}</h3>", f"<p>{html.escape(comparisons.summary(pairs, kind))}</p>", table]
    return parts


def _results(chapter: Chapter, notebook: NotebookNode | None, folder_name: str) -> list[str]:
    """The figures of a chapter and the outputs of its cited cells, in the order of the notebook; first what failed."""
    page = f"{folder_name}/{chapter.page}"
    parts = [
        f'<h2 id="results-{chapter.key}">{html.escape(chapter.title)}</h2>',
        f"<p>{html.escape(chapter.state)} ({minutes_text(chapter.seconds)}). "
        f'<a href="{html.escape(page)}">The whole notebook, with text and code</a>.</p>',
    ]
    if notebook is None:
        return parts
    cited = set(ledger.cited_cells().get(chapter.key, ()))
    cited |= {entry["cell"] for entry in comparisons.entries() if entry["notebook"] == chapter.key}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if cell.id in cited:
            parts.append(_cited(chapter.key, cell.id, notebook))
        parts += _figures(cell)
    return parts


def _cited(key: str, cell: str, notebook: NotebookNode) -> str:
    heading = f'<h3 id="{html.escape(anchor(key, cell))}">{html.escape(cell)}</h3>'
    try:
        text = text_of({key: notebook}, key, cell)
    except NotShown as reason:
        return f"{heading}\n<p>Not shown: {html.escape(str(reason))}.</p>"
    return f"{heading}\n{preformatted(cell, text.rstrip())}"


def _figures(cell: NotebookNode) -> list[str]:
    """The pictures of a cell with their alt text, each with the line that the cell printed under it."""
    pictures = [
        match
        for output in cell.outputs
        for match in _IMAGE.finditer("".join(output.get("data", {}).get("text/html", "")))
    ]
    printed = "".join(output.text for output in cell.outputs if output.output_type == "stream")
    lines = re.findall(r"^Figure: (.+)$", printed, re.MULTILINE)
    lines += [""] * (len(pictures) - len(lines))
    return [
        f'<figure><img alt="{picture["alt"]}" src="{picture["source"]}">'
        f"<figcaption>{html.escape(line) or picture['alt']} ({html.escape(cell.id)})</figcaption></figure>"
        for picture, line in zip(pictures, lines, strict=False)
    ]
