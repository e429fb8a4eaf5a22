"""Links and cross references lead somewhere, checked offline: ``python -m helpers.lab.lint_links [FILES]``.

In Markdown files and in the Markdown of notebooks, solutions and labs: relative links and images with their anchors,
paths of this repository in code spans, commands, `make` targets, notebooks, labs, sections, exercises, cells, and the
ids of claims and questions. Links to elsewhere must be well-formed https; ``--external`` lists each once, to be opened
by hand now and then.
"""

import argparse
import importlib.util
import re
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import InputError
from helpers.lab import notebook_file
from helpers.lab.exercises import find

ROOT = Path(__file__).resolve().parents[2]
CLAIMS, QUESTIONS = 24, 3
"""The article's claims are C1 to C24, its questions Q1 to Q3."""
ANNOUNCED = {"06"}
"""Notebooks that the texts may name before they are here."""
FOLDERS = ("helpers", "notebooks", "solutions", "labs", "docs", "tests", "bench")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]*)\)")
LABEL_NUMBER = re.compile(r"#(\d+)|(?:issue|pull request) (\d+)|\b(\d{4}\.\d{5})\b")
IMAGE = re.compile(r"<img\b[^>]*\bsrc=[\"']([^\"']*)[\"']")
BARE_URL = re.compile(r"(?<!\]\()\bhttps?://[^\s<>)\"'`]+")
NUMBERS = r"(\d\d(?:(?:, | and | to |–)\d\d\b)*)"


@dataclass(frozen=True)
class Piece:
    """A piece of Markdown: its file, its place in it (cell id, or ""), its text."""

    path: Path
    place: str
    text: str


def files(root: Path = ROOT) -> list[Path]:
    """What is checked: the Markdown files and every notebook of the course."""
    folders = ("notebooks", "solutions", "labs")
    notebooks = [path for folder in folders for path in sorted((root / folder).glob("[0-9][0-9]_*.ipynb"))]
    return [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md")), *notebooks]


def pieces(path: Path) -> list[Piece]:
    """The Markdown of a file, fenced code blanked out."""
    if path.suffix == ".ipynb":
        cells = notebook_file.read(path, check=False).cells
        texts = [(cell.id, cell.source) for cell in cells if cell.cell_type == "markdown"]
    else:
        texts = [("", path.read_text("utf-8"))]
    return [Piece(path, place, re.sub(r"(?ms)^ *(```|~~~).*?^ *\1", "", text)) for place, text in texts]


def anchors(path: Path) -> set[str]:
    """The anchors of a file's headings: as GitHub makes them for Markdown, as Jupyter does for a notebook."""
    headings = [h for piece in pieces(path) for h in re.findall(r"(?m)^#{1,6} +(.+?)\s*$", piece.text)]
    plain = [re.sub(r"[*`]|\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    if path.suffix == ".ipynb":
        return {heading.replace(" ", "-") for heading in plain}
    slugs: set[str] = set()
    for heading in plain:
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        again = [f"{slug}-{number}" for number in range(1, 99)]
        slugs.add(next(s for s in [slug, *again] if s not in slugs))
    return slugs


def external_links(paths: list[Path]) -> list[str]:
    """Every link to elsewhere, once, in order."""
    found = set()
    for piece in (piece for path in paths for piece in pieces(path)):
        targets = [m[2] for m in LINK.finditer(piece.text)] + [m[0] for m in BARE_URL.finditer(piece.text)]
        found |= {target.rstrip(".,;") for target in targets if "://" in target}
    return sorted(url for url in found if not re.match(r"https?://(?:127\.0\.0\.1|localhost)\b", url))


def problems(path: Path, root: Path = ROOT) -> list[str]:
    """The links and references of one file that lead nowhere, one sentence each."""
    checks = (_links, _labels, _urls, _paths, _commands, _claims, _course, _cells)
    return [
        f"{piece.place or path.name}: {problem}"
        for piece in pieces(path)
        for check in checks
        for problem in check(piece, root)
    ]


def _links(piece: Piece, root: Path) -> Iterator[str]:
    for target in [m[2] for m in LINK.finditer(piece.text)] + IMAGE.findall(piece.text):
        if not target:
            yield "a link without a target"
        if not target or "://" in target or target.startswith(("mailto:", "data:")):
            continue
        name, _, anchor = urllib.parse.unquote(target).partition("#")
        file = (piece.path.parent / name).resolve() if name else piece.path
        if not file.exists():
            yield f"the link {target} leads to no file"
        elif not file.is_relative_to(root):
            yield f"the link {target} leaves the repository"
        elif anchor and file.suffix in (".md", ".ipynb") and anchor not in anchors(file):
            yield f"the link {target} leads to no heading"


def _labels(piece: Piece, root: Path) -> Iterator[str]:
    for label, target in LINK.findall(piece.text):
        for number in ("".join(groups) for groups in LABEL_NUMBER.findall(label)):
            if not re.search(rf"\b{re.escape(number)}$", target):
                yield f"the link is called {label} and leads to {target}"


def _urls(piece: Piece, root: Path) -> Iterator[str]:
    targets = [m[2] for m in LINK.finditer(piece.text)] + [m[0] for m in BARE_URL.finditer(piece.text)]
    for url in (target.rstrip(".,;") for target in targets if "://" in target):
        parts = urllib.parse.urlsplit(url)
        if parts.hostname in ("127.0.0.1", "localhost"):
            continue
        if parts.scheme != "https":
            yield f"{url} is not https"
        if not re.fullmatch(r"(?:[a-z0-9-]+\.)+[a-z]{2,}", parts.hostname or ""):
            yield f"{url} has no host"


def _paths(piece: Piece, root: Path) -> Iterator[str]:
    for span in re.findall(r"`((?:" + "|".join(FOLDERS) + r")/[\w./*-]*)`", piece.text):
        if "my_" not in span and not any(root.glob(span.rstrip("/"))):
            yield f"`{span}` is no path of this repository"


def _commands(piece: Piece, root: Path) -> Iterator[str]:
    for name in re.findall(r"python -m helpers ([a-z]\w*)", piece.text):
        if not (root / "helpers" / "commands" / f"{name}.py").exists():
            yield f"`python -m helpers {name}` is no command"
    for module in re.findall(r"python -m (helpers\.[\w.]*\w)", piece.text):
        if importlib.util.find_spec(module) is None:
            yield f"`python -m {module}` is no program"
    targets = set(re.findall(r"(?m)^([a-z][a-z-]*):", (root / "Makefile").read_text("utf-8")))
    for target in re.findall(r"`make ([a-z][a-z-]*)", piece.text):
        if target not in targets:
            yield f"`make {target}` is no target"


def _claims(piece: Piece, root: Path) -> Iterator[str]:
    text = re.sub(r"`[^`\n]*`", "", piece.text)
    for letter, number in re.findall(r"(?<![\w.-])([CQ])(\d{1,2})\b(?!\.\w)", text):
        if not 1 <= int(number) <= (CLAIMS if letter == "C" else QUESTIONS):
            yield f"there is no {letter}{number}"


def _course(piece: Piece, root: Path) -> Iterator[str]:
    for folder, word in (("notebooks", "notebooks?"), ("labs", "labs?")):
        there = {path.name[:2] for path in (root / folder).glob("[0-9][0-9]_*.ipynb")}
        for listed in re.findall(rf"(?i)\b{word} {NUMBERS}\b", piece.text):
            for number in set(re.findall(r"\d\d", listed)) - there - ANNOUNCED:
                yield f"there is no {folder[:-1]} {number}"
    for notebook, section in re.findall(r"(?i)(?:\bnotebook (\d\d),? )?\bsection (\d+)\b", piece.text):
        places = list((root / "notebooks").glob(f"{notebook}_*.ipynb")) if notebook else [piece.path]
        if places and not any(a.startswith(f"{section}.-") for a in anchors(places[0])):
            yield f"there is no section {section} in {places[0].name}"
    for exercise in re.findall(r"(?i)\bexercise (\d+\.\d+)\b", piece.text):
        try:
            find(exercise)
        except InputError:
            yield f"there is no exercise {exercise}"


def _cells(piece: Piece, root: Path) -> Iterator[str]:
    for name in re.findall(r"\bcell `([a-z0-9]+(?:-[a-z0-9]+)+)`", piece.text):
        if name not in {cell.id for cell in notebook_file.read(piece.path, check=False).cells}:
            yield f"there is no cell {name}"


def main(argv: list[str] | None = None) -> int:
    """Print what leads nowhere, or the links to elsewhere; 0 for nothing wrong, 1 for something, 2 on bad input."""
    parser = argparse.ArgumentParser(prog="python -m helpers.lab.lint_links", description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="files (default: all Markdown and notebooks)")
    parser.add_argument("--external", action="store_true", help="list the links to elsewhere, each once")
    args = parser.parse_args(argv)
    paths = args.files or files()
    try:
        if args.external:
            print(*external_links(paths), sep="\n")
            return 0
        found = [(path, problem) for path in paths for problem in problems(path)]
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path, problem in found:
        print(f"{path.name}: {problem}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
