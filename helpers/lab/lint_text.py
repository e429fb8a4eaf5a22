"""Every number in prose has a source: ``python -m helpers.lab.lint_text [FILES]`` prints those that have none.

Looked at is the Markdown of notebooks/ and solutions/, README.md and docs/ (labs/ are made from solutions/). A number
stands when, in its own section, a claim cell prints it (rounded and in any unit: "2.62 MB" of 2,621,440 bytes) or code
holds it as an input; or when `helpers/data/cited_numbers.json` cites it. What a clock cell printed is no source: it
changes with the next run. A number of one or two digits agrees with something nearly everywhere, so it must also share
a word with the line it comes from. `EXEMPT` lists what is not looked at.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import InputError
from helpers.lab import notebook_file
from helpers.lab.lint import CLOCK_TAG, output_texts
from helpers.lab.prose import Number, agrees, numbers_of_code, numbers_of_output, numbers_of_text

ROOT = Path(__file__).resolve().parents[2]
CITATIONS = ROOT / "helpers" / "data" / "cited_numbers.json"
WEAK_DIGITS = 2
"""Up to so many significant digits a number needs a word in common with its source."""

EXEMPT = {
    "code that is more than a number": r"``[^`]+``|`[^`]*[^`\d.,%][^`]*`",
    "where a link leads": r"(?<=\])\([^)\s]+\)|<https?:[^>]+>|https?://\S+",
    "an HTML tag": r"<[^>]+>",
    "the number of a heading": r"(?m)^#+ (?:Exercise )?[\d.]+[.:]",
    "the number of a list item": r"(?m)^ *\d+\.(?= )",
    "a claim or a question": r"\b[CQ]\d+\b",
    "a cross reference, which helpers.lab.lint_links follows": (
        r"(?i)\b(?:notebook|lab|section|exercise|question|hint|issue|pull request)s? +"
        r"\d+(?:\.\d+)?\b(?:(?:, | and | to | or |–)\d+(?:\.\d+)?\b)*|#\d+|(?<![.\d])0\d\b(?!\.)"
    ),
    "a bibliographic number": r"\b\d{4}\.\d{4,5}\b|\b[A-Z]{3,} \d+\(\d+\)",
    "a name": r"\b[A-Z]+\d+-\d+\b|\b(?:Gemma|Llama|Qwen|GPT|Phi) \d[\d.]*\b",
    "minutes and difficulty, which helpers.lab.minutes and the exercise define": (
        r"(?m)^- \*\*Time\*\*.*$|^\*\*Minutes\*\*.*$|\d+ \+ \d+ \|$"
    ),
    "a year": r"\b(?:19|20)[0-4]\d\b(?! *(?:tokens|MB|GB|MiB|GiB|ms|s\b|requests))",
    "a version or a licence": (
        r"\b(?:Python|PyTorch|CUDA|version|vLLM|SGLang|guidellm|HTTP|BY|BY-NC-SA|BY-SA|Apache License),? v?\d[\d.]*"
        r"|\bolder than 3\.\d+|\b\d+\.\d+\.\d+\b"
    ),
    "the definition of a unit": r"10⁹|2³⁰|10⁶|2²⁰|\b1 [KMGT]?i?(?:B|FLOP)(?:/s)? is\b",
    "none or all": r"\btop-1\b|(?<![\d.])(?:0|100) ?%",
    "zero or one as a bound or a term": (
        r"\b(?:near|above|below|over|than|to|from|at|be|ln|prints|mean)\s+[01]\b(?![.,]?\d| ?[%×])"
        r"|(?<![\d.,])[01](?= (?:is|for|means|does|where|[-−+÷])(?: |$))|(?<=[-−+÷/(])\s?1\b(?![.,]?\d| ?[·×%])"
    ),
}


@dataclass(frozen=True)
class Section:
    """One section of a text: its prose by cell id (or heading), and the numbers that may stand behind it."""

    prose: dict[str, str]
    sources: tuple[Number, ...]
    clocks: tuple[Number, ...]
    heading: str = ""


@dataclass(frozen=True)
class Citation:
    """Words with numbers whose source is no cell.

    file, cell: where they stand (cell: the heading, in README and docs); "*" for words that are right everywhere.
    words: as written, so that another number in them is not covered. what: what the numbers are.
    source: a public one, or "cell ID" for a cell of the same file that holds the numbers.
    value: Python over `accounts` that computes the number, or a tuple for the numbers of `words` in order.
    """

    file: str
    cell: str
    words: str
    what: str
    source: str
    value: str = ""


def citations(path: Path = CITATIONS) -> tuple[Citation, ...]:
    """The cited numbers; InputError for an entry without a place, a meaning or a source."""
    found = []
    for entry in json.loads(path.read_text("utf-8"))["numbers"]:
        try:
            citation = Citation(**entry)
        except TypeError as error:
            raise InputError(f"{path.name}: {entry}: {error}") from None
        if not all((citation.file, citation.cell, citation.words, citation.what, citation.source)):
            raise InputError(f"{path.name}: {entry} has an empty field")
        found.append(citation)
    return tuple(found)


def prose_only(text: str) -> str:
    """`text` with fenced code, tables' rules and everything in EXEMPT blanked out, offsets kept."""
    text = re.sub(r"(?ms)^ *(```|~~~).*?^ *\1", _blank, text)
    for pattern in EXEMPT.values():
        text = re.sub(pattern, _blank, text)
    return text


def _blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def sections_of_notebook(path: Path) -> list[Section]:
    """The sections of a notebook, cut at every heading."""
    sections: list[Section] = []
    prose: dict[str, str] = {}
    sources: list[Number] = []
    clocks: list[Number] = []
    heading = ""

    def close() -> None:
        if prose or sources:
            sections.append(Section(dict(prose), tuple(sources), tuple(clocks), heading))
        prose.clear(), sources.clear(), clocks.clear()

    for cell in notebook_file.read(path, check=False).cells:
        if cell.cell_type == "code":
            sources += numbers_of_code(cell.source, cell.id)
            printed = clocks if CLOCK_TAG in cell.metadata.get("tags", []) else sources
            for text in output_texts(cell):
                printed += numbers_of_output(text, cell.id)
            continue
        title = re.match(r"#+ +(.*)", cell.source)
        if title:
            close()
            heading = title[1]
        prose[cell.id] = cell.source
        for block in re.findall(r"(?ms)^ *```\w*\n(.*?)^ *```", cell.source):
            sources += numbers_of_output(block, cell.id)
    close()
    return sections


def sections_of_markdown(path: Path) -> list[Section]:
    """The sections of a Markdown file, by heading; their fenced code is their source."""
    text = path.read_text("utf-8")
    fences = [range(m.start(), m.end()) for m in re.finditer(r"(?ms)^```.*?^```", text)]
    heads = [m for m in re.finditer(r"(?m)^#+ +(.*)$", text) if not any(m.start() in f for f in fences)]
    sections = []
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.start() : following.start() if following else None]
        blocks = "\n".join(re.findall(r"(?ms)^```\w*\n(.*?)^```", body))
        inline = " \n".join(re.findall(r"`([^`\n]+)`", body))
        sources = (*numbers_of_output(blocks, head[1]), *numbers_of_output(inline, head[1]))
        sections.append(Section({head[1]: body}, sources, (), head[1]))
    return sections


def source_of(number: Number, section: Section) -> Number | None:
    """A number of the section that this one is a rounding of; None where there is none.

    Up to WEAK_DIGITS digits they must share a word. A single digit, and a bare number of two, is no rounding, unless
    the text says "about".
    """
    for source in section.sources:
        if not agrees(number, source):
            continue
        if len(number.digits) > WEAK_DIGITS:
            return source
        may_round = number.approximate or (len(number.digits) > 1 and number.measures)
        if (may_round or number.same_as(source)) and sum(len(w) > 1 or 0.5 for w in number.words & source.words) >= 1:
            return source
    return None


def text_problems(sections: list[Section], cited: list[Citation]) -> Iterator[str]:
    """One sentence for every number without a source."""
    for section in sections:
        for cell, text in section.prose.items():
            covered = [span for c in cited if c.cell in ("*", cell) for span in _spans(c.words, text)]
            for number in numbers_of_text(prose_only(text)):
                if any(number.start in span for span in covered) or source_of(number, section):
                    continue
                around = " ".join(text[max(0, number.start - 45) : number.start + len(number.text) + 35].split())
                clock = any(agrees(number, c) and number.words & c.words for c in section.clocks)
                why = "only a clock cell printed it" if clock else "no cell beside it shows it"
                yield f"{cell}: {number.text!r} has no source ({why}): … {around} …"


def _spans(words: str, text: str) -> list[range]:
    return [range(m.start(), m.end()) for m in re.finditer(rf"(?<!\d){re.escape(words)}(?!\d)", text)]


def files(root: Path = ROOT) -> list[Path]:
    """What the lint reads: notebooks, solutions, README and docs."""
    notebooks = [p for folder in ("notebooks", "solutions") for p in sorted((root / folder).glob("[0-9][0-9]_*.ipynb"))]
    return [*notebooks, root / "README.md", *sorted((root / "docs").glob("*.md"))]


def sections_of(path: Path) -> list[Section]:
    """The sections of a notebook or Markdown file."""
    return sections_of_notebook(path) if path.suffix == ".ipynb" else sections_of_markdown(path)


def problems(path: Path, cited: tuple[Citation, ...] | None = None, root: Path = ROOT) -> list[str]:
    """The numbers of one file that have no source, and the citations for it that nothing uses."""
    name = path.resolve().relative_to(root).as_posix() if path.resolve().is_relative_to(root) else path.name
    mine = [c for c in (citations() if cited is None else cited) if c.file in ("*", name)]
    sections = sections_of(path)
    texts = {cell: text for section in sections for cell, text in section.prose.items()}
    bound = [number for section in sections for number in section.sources]
    unused = [c for c in mine if c.file != "*" and not _spans(c.words, texts.get(c.cell, ""))]
    return [
        *text_problems(sections, mine),
        *(f"{c.cell}: {c.words!r} is cited, but does not stand there" for c in unused),
        *(f"{c.cell}: {c.words!r} cites {c.source}, which lacks it" for c in mine if not _shown_by(c, bound)),
    ]


def _shown_by(citation: Citation, bound: list[Number]) -> bool:
    """Whether the cell that a citation names as its source holds each of its numbers ("5 % more" is also 1.05)."""
    if not citation.source.startswith("cell "):
        return True
    there = [n for n in bound if n.where == citation.source.removeprefix("cell ")]
    return all(
        any(agrees(n, t) or (n.measures == "share" and abs(1 + n.value - t.value) < 1e-9) for t in there)
        for n in cited_numbers(citation)
    )


def cited_numbers(citation: Citation) -> list[Number]:
    """The numbers in the words of a citation, in order."""
    return list(numbers_of_text(prose_only(citation.words)))


def main(argv: list[str] | None = None) -> int:
    """Print the numbers without a source; 0 for none, 1 for some, 2 for a file that cannot be read."""
    parser = argparse.ArgumentParser(prog="python -m helpers.lab.lint_text", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="files (default: notebooks, solutions, README, docs)")
    args = parser.parse_args(argv)
    code = 0
    for path in args.files or files():
        try:
            found = problems(path)
        except (InputError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        for problem in found:
            print(f"{path.name}: {problem}")
        code = code or int(bool(found))
    return code


if __name__ == "__main__":
    sys.exit(main())
