"""The claims ledger: every claim of the article, its verdict, and the cells that show it with the numbers they printed.

The table `helpers/data/claims.json` holds words, cell ids and patterns, and not one result: the numbers, and every
verdict that rests on a number, are read out of executed notebooks. What did not run is "not shown", with the reason.
"""

import html
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from helpers.errors import InputError
from helpers.lab.cell_outputs import Notebooks, NotShown, read_folder, search

CLAIMS = Path(__file__).resolve().parents[1] / "data" / "claims.json"
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
FOLDER_VARIABLE = "INFERENCE_LAB_EXECUTED"
"""Environment variable that names the folder of freshly executed notebooks; `make report` sets it for its kernels."""

NOT_SHOWN = "not shown"
TOO_NOISY = "too noisy to say here"
# The words with which cells answer, and what they mean for the ledger.
ANSWERS = {
    "yes": "yes",
    "True": "yes",
    "not contradicted here": "yes",
    "no": "no",
    "False": "no",
    "CONTRADICTED here": "no",
    "too noisy to say": "open",
}
_SHOWN_ANSWERS = {"yes": "yes", "no": "no", "open": "too noisy to say"}
Link = Callable[[str, str], str]
"""From notebook name and cell id to a hyperlink."""


@dataclass(frozen=True)
class Reading:
    """What one cell shows of a claim: `words` with the numbers it printed, or the reason why nothing is shown."""

    notebook: str
    cell: str
    words: str
    shown: bool
    answer: str | None = None  # "yes", "no", "open"; None where the cell only adds a number
    word: str | None = None  # the verdict that the cell itself computed


@dataclass(frozen=True)
class Row:
    """One claim: what the article says (in other words), the verdict, why it is not a plain yes, and the readings."""

    id: str
    says: str
    verdict: str
    remark: str
    readings: tuple[Reading, ...]

    @property
    def shown(self) -> bool:
        """Whether the verdict rests on cells that ran."""
        return self.verdict != NOT_SHOWN


def ledger(folder: str | Path | None = None, without: Iterable[str] = ()) -> tuple[Row, ...]:
    """The rows C1 to C24 and Q1 to Q3, filled from the executed notebooks in `folder`.

    folder: default the one of the present `make report` run, else notebooks/ with the outputs that are stored there.
    without: names of notebooks whose readings are left out, for a notebook that is itself still running.
    """
    return rows(read_folder(folder or executed_folder()), without)


def executed_folder() -> Path:
    """The folder of the present `make report` run, else notebooks/."""
    return Path(os.environ.get(FOLDER_VARIABLE) or NOTEBOOKS)


def rows(notebooks: Notebooks, without: Iterable[str] = ()) -> tuple[Row, ...]:
    """The rows of the ledger, filled from `notebooks`."""
    left_out = set(without)
    return tuple(
        _row(claim, [_reading(r, notebooks) for r in claim["readings"] if r["notebook"] not in left_out])
        for claim in claims()
    )


def claims() -> list[dict]:
    """The table of claims: words, cells and patterns, without any result."""
    return json.loads(CLAIMS.read_text(encoding="utf-8"))["claims"]


def cited_cells() -> dict[str, tuple[str, ...]]:
    """Per notebook, the ids of the cells that the ledger points at, in the order of the table."""
    found: dict[str, dict[str, None]] = {}
    for claim in claims():
        for reading in claim["readings"]:
            found.setdefault(reading["notebook"], {})[reading["cell"]] = None
    return {notebook: tuple(cells) for notebook, cells in sorted(found.items())}


def _reading(entry: Mapping, notebooks: Notebooks) -> Reading:
    notebook, cell = entry["notebook"], entry["cell"]
    decides = "expect" in entry or re.search(r"\(\?P<(answer|word|right)>", entry["pattern"]) is not None
    try:
        found = search(notebooks, notebook, cell, entry["pattern"])[-1].groupdict()
        answer = _answer(entry, found)
        found |= {"answer": _SHOWN_ANSWERS[answer]} if "answer" in found else {}
    except NotShown as reason:
        return Reading(notebook, cell, str(reason), False, "missing" if decides else None)
    return Reading(notebook, cell, entry["words"].format(**found), True, answer, _word(found))


def _answer(entry: Mapping, found: Mapping[str, str]) -> str | None:
    """Yes, no or open: the cell's own answer, or whether each number is as the table expects; None: no question."""
    if "answer" in found:
        if found["answer"] not in ANSWERS:
            raise NotShown(f"cell {entry['cell']} answers {found['answer']!r}")
        return ANSWERS[found["answer"]]
    if "expect" not in entry:
        return None
    return "yes" if all(_fits(found[group], wanted) for group, wanted in entry["expect"].items()) else "no"


def _fits(value: str, wanted: str) -> bool:
    """Whether a printed value is the word `wanted`, or on the side of a number that ``>= 2`` or ``< 2`` asks for."""
    limit = re.fullmatch(r"(>=|<) ([\d.]+)", wanted)
    if limit is None:
        return value == wanted
    at_least = float(value.replace(",", "")) >= float(limit[2])
    return at_least if limit[1] == ">=" else not at_least


def _word(found: Mapping[str, str]) -> str | None:
    """The verdict that a cell printed; from "right in 4 of 7 parts" it follows."""
    if "right" in found:
        right, parts = int(found["right"]), int(found["parts"])
        return "right" if right == parts else "half true" if right else "wrong"
    return found.get("word")


def _row(claim: Mapping, readings: list[Reading]) -> Row:
    """A claim with its verdict: a contradiction counts first, then what is missing, noise, and the cells' own word."""
    answers = {reading.answer for reading in readings}
    said = {reading.word for reading in readings if reading.word}
    verdict, remark = claim["verdict"], claim.get("remark", "")
    if "no" in answers:
        verdict, remark = claim.get("if_no", "CONTRADICTED here"), ""
    elif "missing" in answers or not any(reading.shown for reading in readings):
        verdict, remark = NOT_SHOWN, ""
    elif "open" in answers:
        verdict, remark = TOO_NOISY, ""
    elif isinstance(verdict, dict):
        unknown = said - set(verdict)
        if unknown or len(said) != 1:
            words = ", ".join(sorted(unknown or said))
            verdict, remark = NOT_SHOWN, f"the cells say {words}, which is not in the table"
        else:
            verdict = verdict[said.pop()]
    return Row(claim["id"], claim["says"], verdict, remark, tuple(readings))


def measured_on(notebooks: Notebooks) -> str:
    """The machine that these outputs come from, as notebook 02 printed it; "an unknown machine" where it did not."""
    try:
        (found, *_) = search(notebooks, "02_prefill_vs_decode", "which-machine-clock", r"^machine +(?P<machine>.+)$")
    except NotShown:
        return "an unknown machine"
    return found["machine"]


def caption(folder: str | Path | None = None) -> str:
    """Where the numbers of `ledger(folder)` come from, in one sentence: stored ones are never shown as live."""
    folder = Path(folder or executed_folder())
    fresh = folder != NOTEBOOKS
    where = "the run that this report is made of" if fresh else "the outputs stored in notebooks/, no run of today"
    return f"Numbers are from {where}: {measured_on(read_folder(folder))}."


def count_text(found: Iterable[Row]) -> str:
    """How many claims are shown, and which are not."""
    found = tuple(found)
    missing = [row.id for row in found if not row.shown]
    tail = f"; not shown: {', '.join(missing)}" if missing else ""
    return f"{len(found) - len(missing)} of {len(found)} claims and questions are shown{tail}"


def notebook_link(notebook: str, cell: str) -> str:
    """From a notebook beside it: JupyterLab opens the notebook at that cell."""
    return f"{notebook}.ipynb#cell-id={cell}"


def table(found: Iterable[Row], link: Link = notebook_link) -> str:
    """The ledger as a Markdown table, each reading with a link to its cell."""
    lines = ["| claim | the article says | verdict | what shows it |", "|---|---|---|---|"]
    for row in found:
        shown = "<br>".join(
            f"{_markdown(_reading_text(reading))} ([{reading.notebook[:2]}, {reading.cell}]"
            f"({link(reading.notebook, reading.cell)}))"
            for reading in row.readings
        )
        verdict = f"**{_markdown(row.verdict)}**" + (f": {_markdown(row.remark)}" if row.remark else "")
        lines.append(f"| {row.id} | {_markdown(row.says)} | {verdict} | {shown} |")
    return "\n".join(lines)


def html_table(found: Iterable[Row], link: Link = notebook_link) -> str:
    """The ledger as an HTML table, each reading with a link to its cell."""
    body = []
    for row in found:
        # A notebook that did not run is told once, for all its cells.
        readings = "".join(
            f"<li>{html.escape(text)} "
            + ", ".join(dict.fromkeys(_html_link(reading, link) for reading in alike))
            + "</li>"
            for text, alike in groupby(row.readings, _reading_text)
        )
        remark = f"<br>{html.escape(row.remark)}" if row.remark else ""
        body.append(
            f'<tr id="claim-{row.id}"><th scope="row">{row.id}</th><td>{html.escape(row.says)}</td>'
            f"<td><strong>{html.escape(row.verdict)}</strong>{remark}</td><td><ul>{readings}</ul></td></tr>"
        )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("Claim", "The article says", "Verdict", "What shows it"))
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n" + "\n".join(body) + "\n</tbody></table>"


def _html_link(reading: Reading, link: Link) -> str:
    address = html.escape(link(reading.notebook, reading.cell))
    return f'<a href="{address}">{reading.notebook[:2]}, {html.escape(reading.cell)}</a>'


def one_row(found: Iterable[Row], claim_id: str) -> Row:
    """The row of one claim; InputError for an id that the ledger does not have."""
    for row in found:
        if row.id == claim_id:
            return row
    raise InputError(f"the ledger has no claim {claim_id!r}")


def _reading_text(reading: Reading) -> str:
    return reading.words if reading.shown else f"{NOT_SHOWN}: {reading.words}"


def _markdown(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")
