"""Predicted against measured: every pair that executed notebooks printed side by side, with its ratio.

The table `helpers/data/comparisons.json` holds words, cell ids and patterns, and not one result.
"""

import html
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from helpers.lab.cell_outputs import Notebooks, NotShown, search, text_of

COMPARISONS = Path(__file__).resolve().parents[1] / "data" / "comparisons.json"
KINDS = {
    "exact": "Predictions that have to be equal to what is counted",
    "floor": "Floors: no run may be faster than its floor",
    "estimate": "Estimates: a formula against the run",
}


@dataclass(frozen=True)
class Comparison:
    """One prediction beside its measurement, both as the cell printed them; or, with `reason`, why there is none."""

    kind: str
    notebook: str
    cell: str
    what: str
    predicted: str = ""
    measured: str = ""
    unit: str = ""
    noisy: bool = False
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Measured ÷ predicted; None where nothing is shown or the prediction is zero."""
        if self.reason or not _number(self.predicted):
            return None
        return _number(self.measured) / _number(self.predicted)


def comparisons(notebooks: Notebooks) -> tuple[Comparison, ...]:
    """All pairs of `notebooks`, in the order of the table; a cell that shows none gives one row with the reason."""
    found: list[Comparison] = []
    for entry in entries():
        found += _of_cell(entry, notebooks)
    return tuple(found)


def entries() -> list[dict]:
    """The table of comparisons: words, cells and patterns, without any result."""
    return json.loads(COMPARISONS.read_text(encoding="utf-8"))["comparisons"]


def _of_cell(entry: Mapping, notebooks: Notebooks) -> list[Comparison]:
    kind, notebook, cell = entry["kind"], entry["notebook"], entry["cell"]
    try:
        matches = search(notebooks, notebook, cell, entry["pattern"])
        text = text_of(notebooks, notebook, cell)
    except NotShown as reason:
        return [Comparison(kind, notebook, cell, re.sub(r"\{\w+\}", "…", entry["what"]), reason=str(reason))]
    headings = list(re.finditer(entry["heading"], text, re.MULTILINE)) if "heading" in entry else []
    found = []
    for match in matches:
        groups = match.groupdict()
        above = [heading["heading"] for heading in headings if heading.start() < match.start()]
        groups |= {"heading": above[-1]} if above else {}
        found.append(
            Comparison(
                *(kind, notebook, cell, entry["what"].format(**groups), groups["predicted"], groups["measured"]),
                unit=entry["unit"].format(**groups),
                noisy=bool(groups.get("noisy")),
            )
        )
    return found


def summary(found: Iterable[Comparison], kind: str) -> str:
    """How the ratios of one kind lie, in one or two sentences; noisy rows are counted, and named as such."""
    rows = [row for row in found if row.kind == kind]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    missing = sum(bool(row.reason) for row in rows)
    tail = f" Not shown: {missing} {'cell' if missing == 1 else 'cells'}." if missing else ""
    if not ratios:
        return f"Nothing was measured.{tail}"
    noisy = sum(row.noisy for row in rows)
    text = f"{len(ratios)} pairs, measured ÷ predicted: median {statistics.median(ratios):.2f}, "
    text += f"from {min(ratios):.2f} to {max(ratios):.2f}; {noisy} noisy."
    if kind == "exact":
        text += f" Equal as printed: {sum(ratio == 1 for ratio in ratios)} of {len(ratios)}."
    if kind == "floor":
        text += f" Faster than the floor: {sum(ratio < 1 for ratio in ratios)}."
    return text + tail


def html_table(found: Iterable[Comparison], kind: str, link: Callable[[str, str], str]) -> str:
    """The pairs of one kind as an HTML table, each with a link to its cell."""
    body = []
    for row in found:
        if row.kind != kind:
            continue
        where = f'<a href="{html.escape(link(row.notebook, row.cell))}">{row.notebook[:2]}, {html.escape(row.cell)}</a>'
        what = f'<th scope="row">{html.escape(row.what)}</th>'
        if row.reason:
            body.append(f'<tr>{what}<td colspan="4">not shown: {html.escape(row.reason)}</td><td>{where}</td></tr>')
            continue
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        cells = [f"{row.predicted} {row.unit}", f"{row.measured} {row.unit}", ratio, _remark(row)]
        body.append(f"<tr>{what}{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}<td>{where}</td></tr>")
    names = ("What", "Predicted", "Measured", "Measured ÷ predicted", "Remark", "Cell")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table>"


def _remark(row: Comparison) -> str:
    remarks = ["noisy"] if row.noisy else []
    if row.kind == "floor" and row.ratio is not None and row.ratio < 1:
        remarks.append("faster than the floor: a ceiling is too low, or the data lay in a cache")
    if row.kind == "exact" and row.ratio != 1:
        remarks.append("differs")
    return ", ".join(remarks)


def _number(text: str) -> float:
    return float(text.replace(",", ""))
