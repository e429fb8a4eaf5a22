"""The numbers of a text and of a program: each with its value, its precision, its unit and the words around it.

`numbers_of_text` reads prose and printed output, `numbers_of_code` the literals of Python. `agrees` says whether a
number as written is a rounding of another one, across units ("2.62 MB" of 2,621,440 bytes, "57 %" of 0.57).
"""

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

UNITS = {
    **{name: ("bytes", 1.0) for name in ("byte", "bytes")},
    **{f"{p}B": ("bytes", 1000.0**n) for n, p in enumerate("KMGTP", 1)},
    **{f"{p}iB": ("bytes", 1024.0**n) for n, p in enumerate("KMGTP", 1)},
    "kB": ("bytes", 1000.0),
    **{name: ("seconds", 1.0) for name in ("s", "second", "seconds")},
    **{name: ("seconds", 60.0) for name in ("minute", "minutes", "min")},
    "ms": ("seconds", 1e-3),
    "µs": ("seconds", 1e-6),
    "us": ("seconds", 1e-6),
    "ns": ("seconds", 1e-9),
    "%": ("share", 0.01),
    "percent": ("share", 0.01),
    **{f"{p}B/s": ("bytes/s", 1000.0**n) for n, p in enumerate("KMGTP", 1)},
    **{f"{p}FLOP/s": ("FLOP/s", 1000.0**n) for n, p in enumerate("KMGTP", 1)},
    **{f"{p}FLOPs": ("FLOPs", 1000.0**n) for n, p in enumerate("KMGTP", 1)},
    **{f"{p}FLOP": ("FLOPs", 1000.0**n) for n, p in enumerate("KMGTP", 1)},
    "thousand": ("count", 1e3),
    "million": ("count", 1e6),
    "billion": ("count", 1e9),
    "B": ("count", 1e9),
}
"""Unit as written: what it measures, and how many base units it is. `B` alone is a billion, as in 671 B parameters."""

NUMBER = re.compile(
    r"(?<![\w.,/#^])(?:(?<=top-)|(?<![A-Za-z0-9]-))(?:\d{1,3}(?:[,_]\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?"
    r"(?P<k> ?k\b)?(?![\w⁰¹²³⁴-⁹]|\.\d|/\d)"
    r"(?:[ \u00a0\u202f-]?(?P<unit>" + "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True)) + r")(?![\w/]))?"
)
APPROXIMATE = re.compile(r"(?:about|around|some|nearly|almost|roughly|over|under|≈|~)\s*$", re.IGNORECASE)
WORD = re.compile(r"[^\W\d_]+")
CLAUSE_END = re.compile(r"[.:;?!](?=\s)|\n\n|\n(?=[-|])|\|")
STOP = {
    "the",
    "and",
    "for",
    "from",
    "with",
    "that",
    "this",
    "than",
    "they",
    "are",
    "was",
    "has",
    "have",
    "had",
    "its",
    "his",
    "her",
    "our",
    "your",
    "you",
    "not",
    "but",
    "all",
    "any",
    "can",
    "may",
    "one",
    "two",
    "into",
    "onto",
    "upon",
    "over",
    "under",
    "more",
    "most",
    "less",
    "least",
    "per",
    "out",
    "off",
    "only",
    "also",
    "each",
    "every",
    "other",
    "same",
    "some",
    "such",
    "how",
    "what",
    "when",
    "where",
    "which",
    "who",
    "why",
    "will",
    "would",
    "there",
    "then",
    "their",
    "these",
    "those",
    "about",
    "print",
    "format",
    "accounts",
    "measure",
    "self",
    "return",
}
SYMBOLS = set("LHKDPNEVWdkbnM")
CONTEXT_WORDS = 3
SUFFIX_UNITS = {"ms": "ms", "s": "s", "us": "µs", "seconds": "s", "gb": "GB", "gib": "GiB", "percent": "%", "mb": "MB"}


@dataclass(frozen=True)
class Number:
    """A number as written: `text` (unit included), its value in base units, half of its last digit, what it measures.

    measures: "" for a bare number. words: the stems of the words near it. start: offset of the text it stands in.
    """

    text: str
    value: float
    half_digit: float
    measures: str
    scale: float
    words: frozenset[str]
    start: int = 0
    where: str = ""
    approximate: bool = False

    def same_as(self, other: "Number") -> bool:
        """Whether `other` is this number, and not one that rounds to it: 2 is 2 and "2 %" is 0.02, 2.0 is neither."""
        alike = "." in self.text or "." not in other.text or bool(self.measures)
        return alike and self.value in (other.value, other.value / other.scale, other.value * self.scale)

    @property
    def digits(self) -> str:
        """The digits that say something: no zeros in front, and none behind "about"."""
        digits = re.sub(r"e.*|\D", "", re.match(r"[\d,_.e]+", self.text)[0]).lstrip("0")
        return digits.rstrip("0") if self.approximate else digits


@functools.lru_cache(maxsize=4096)
def stems(text: str) -> frozenset[str]:
    """The words of `text`, cut down so that "decoding" meets "decoded" and `kv_bytes` meets "byte"."""
    found = set()
    for word in WORD.findall(text):
        for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[\u0370-\u03ff]", word):
            low = part.lower()
            if len(low) >= 3 and low not in STOP:
                found.add(re.sub(r"(?:ing|ed|es|s)$", "", low)[:5] if len(low) > 4 else low.rstrip("s"))
            elif part in SYMBOLS:
                found.add(part)
    return frozenset(found)


def _number(match: re.Match, before: str, words: frozenset[str], where: str = "") -> Number:
    digits = re.match(r"[\d,_.]+(?:e[+-]?\d+)?", match[0])[0].rstrip(".,_").replace(",", "").replace("_", "")
    mantissa, _, power = digits.partition("e")
    scale = 10.0 ** int(power or 0)
    decimals = len(mantissa.partition(".")[2])
    last = 10.0**-decimals
    approximate = bool(APPROXIMATE.search(before[-12:]))
    if approximate and not decimals and mantissa.strip("0"):
        last = 10.0 ** (len(mantissa) - len(mantissa.rstrip("0")))  # "about 14,000" is right to a thousand
    measures, factor = UNITS[match["unit"]] if match["unit"] else ("", 1.0)
    if match["k"]:
        measures, scale = "k", scale * 1000
    text = match[0].strip()
    return Number(text, float(mantissa) * scale * factor, last * scale * factor / 2, measures, factor, words,
                  match.start(), where, approximate)  # fmt: skip


def _with_letters(text: str) -> list[str]:
    return [word for word in text.split() if WORD.search(word)]


def numbers_of_text(text: str, where: str = "", heading: str = "") -> Iterator[Number]:
    """The numbers of prose or of output, each with the words around it in its clause."""
    ends = [0, *(m.end() for m in CLAUSE_END.finditer(text)), len(text)]
    for match in NUMBER.finditer(text):
        low = max(e for e in ends if e <= match.start())
        high = min(e for e in ends if e >= match.end())
        left = " ".join(_with_letters(text[low : match.start()])[-CONTEXT_WORDS:])
        right = " ".join(_with_letters(text[match.end() : high])[:CONTEXT_WORDS])
        yield _number(match, text[low : match.start()], stems(f"{left} {right} {heading}"), where)


def numbers_of_output(text: str, where: str) -> Iterator[Number]:
    """The numbers that a cell printed, each with the words of its line; what a figure says of itself is left out."""
    for line in text.split("\n"):
        if re.match(r"\[?[Ff]igure: |<", line):
            continue
        words = stems(line)
        for match in NUMBER.finditer(line):
            yield _number(match, "", words, where)


def numbers_of_code(source: str, where: str) -> Iterator[Number]:
    """The number literals of Python, with the words of their line; `timeout_ms = 5` is five milliseconds."""
    lines, nodes = source.split("\n"), list(ast.walk(ast.parse(source)))
    specs = [n.format_spec for n in nodes if isinstance(n, ast.FormattedValue) and n.format_spec]
    widths = {id(part) for spec in specs for part in ast.walk(spec)}  # the 7 of f"{x:7}" says nothing
    for node in nodes:
        if not isinstance(node, ast.Constant) or id(node) in widths:
            continue
        line = lines[node.lineno - 1]
        if type(node.value) in (int, float):
            named = re.search(r"(?:\w+_)?([a-z]+)\s*=\s*[-(\[]*$", line[: node.col_offset])
            unit = SUFFIX_UNITS.get(named[1]) if named else None
            measures, factor = UNITS[unit] if unit else ("", 1.0)
            yield Number(repr(node.value), node.value * factor, 0.0, measures, factor, stems(line), 0, where)
        elif isinstance(node.value, str):
            for match in NUMBER.finditer(re.sub(r",(?!\d{3}\b)", " ", node.value)):  # "0,0.5,1" is a list
                yield _number(match, "", stems(f"{line} {node.value}"), where)


def agrees(written: Number, source: Number) -> bool:
    """Whether `written` is `source` rounded to the digits written; a bare number is compared as any unit shows it."""
    if written.measures == "k" and source.measures in ("", "k"):  # 8 k are 8,000 or 8,192
        return any(abs(written.value - source.value / u * 1000) <= written.half_digit for u in (1000, 1024))
    if written.measures and source.measures and written.measures != source.measures:
        return False
    if written.measures == source.measures:
        candidates = [source.value]
    elif written.measures:  # a bare column or literal: in the unit of the text, or in seconds, bytes, shares
        candidates = [source.value * written.scale, source.value]
    else:
        candidates = [source.value / source.scale]
        if source.measures == "share":
            candidates.append(source.value)
    half = max(written.half_digit, 1e-9 * abs(written.value))
    # A source that is itself rounded must be at least as fine as what is written, or be the very same number.
    return any(
        abs(written.value - c) <= half * (1 + 1e-9) and (source.half_digit <= half * 1.001 or written.value == c)
        for c in candidates
    )
