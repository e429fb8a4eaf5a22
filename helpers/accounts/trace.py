"""Request traces: the arrival and the length of every request a real service saw, read from a file."""

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers.errors import InputError

# Beyond any context window: a larger number is a slip or another column.
_MOST_TOKENS = 10**8

# Time, prompt and output: of a trace of one's own, and as the two public families name them.
_OWN = ("at_s", "prompt_tokens", "output_tokens")
_AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE = ("timestamp", "input_length", "output_length")


@dataclass(frozen=True)
class TraceRequest:
    """One request: seconds since the trace began, prompt tokens, and tokens generated."""

    prompt_tokens: int
    output_tokens: int
    arrival_s: float = 0.0

    @property
    def cache_tokens(self) -> int:
        """Tokens whose keys and values it holds at its end: the last new token is never fed back."""
        return self.prompt_tokens + self.output_tokens - 1


@dataclass(frozen=True)
class TraceRow:
    """One row of a trace file: its line from 1 on, its time as the file gives it, its lengths or None."""

    line: int
    arrival_s: float
    prompt_tokens: int | None
    output_tokens: int | None


def read_trace(path: str | Path) -> tuple[TraceRequest, ...]:
    """The requests of a trace file, in its order; the file as `trace_rows` reads it, with both lengths in every row.

    Raises InputError, with the line number, for what is malformed; a length below one token is refused too.
    """
    rows = tuple(trace_rows(path))
    if not rows:
        raise InputError(f"the trace {path} holds no request")
    start = min(row.arrival_s for row in rows)
    return tuple(TraceRequest(row.prompt_tokens, row.output_tokens, row.arrival_s - start) for row in rows)


def trace_rows(path: str | Path, lengths_required: bool = True) -> Iterator[TraceRow]:
    """The rows of a trace file one by one: CSV with a header, or JSONL, told apart by the first line.

    CSV: ``TIMESTAMP`` (date and time, or seconds), ``ContextTokens``, ``GeneratedTokens`` (Azure LLM inference traces).
    JSONL: objects with ``timestamp`` in ms, ``input_length``, ``output_length`` (Mooncake, FAST'25). Either may have
    ``at_s`` (seconds), ``prompt_tokens``, ``output_tokens`` instead: a trace of one's own. Other columns and keys are
    left alone. Without `lengths_required` a length may be missing, empty or null. Raises InputError, with the line
    number, for what is malformed.
    """
    path = Path(path)
    try:
        # Not read_text, which would turn line ends inside a quoted field into others and so shift the line numbers.
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read the trace {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"the trace {path} is not UTF-8 text") from None
    if not text.strip():
        raise InputError(f"the trace {path} is empty")
    rows = _json_rows if text.lstrip().startswith(("{", "[")) else _csv_rows
    return rows(text, path, lengths_required)


def _csv_rows(text: str, path: Path, lengths_required: bool) -> Iterator[TraceRow]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader)]
        names = [own if own in header else azure for own, azure in zip(_OWN, _AZURE, strict=True)]
        needed = names if lengths_required else names[:1]
        if missing := [name for name in needed if name not in header]:
            raise InputError(
                f"{path}, line 1: column {missing[0]!r} is missing; a trace is Azure's CSV, Mooncake's JSONL, or has "
                f"{', '.join(_OWN)}"
            )
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(f"{where}: {len(row)} fields in place of {len(header)}")
            time, prompt, output = (row[header.index(name)] if name in header else "" for name in names)
            yield TraceRow(
                reader.line_num,
                _csv_seconds(time, names[0], where),
                _tokens(prompt, names[1], where) if prompt.strip() or lengths_required else None,
                _tokens(output, names[2], where) if output.strip() or lengths_required else None,
            )
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _json_rows(text: str, path: Path, lengths_required: bool) -> Iterator[TraceRow]:
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{where}: not one JSON object a line") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: {type(row).__name__} in place of a JSON object")
        names = [own if own in row else mooncake for own, mooncake in zip(_OWN, _MOONCAKE, strict=True)]
        for name in names if lengths_required else names[:1]:
            if name not in row:
                raise InputError(f"{where}: key {name!r} is missing")
        time, prompt, output = (row.get(name) for name in names)
        yield TraceRow(
            number,
            _seconds(time, names[0], where, 1.0 if names[0] == _OWN[0] else 1e-3),
            None if prompt is None and not lengths_required else _tokens(prompt, names[1], where),
            None if output is None and not lengths_required else _tokens(output, names[2], where),
        )


def _tokens(value: Any, name: str, where: str) -> int:
    shown = str(value)[:40]
    if isinstance(value, str):
        value = int(shown) if shown.isascii() and shown.isdigit() and len(value) <= 20 else None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{where}: {name} must be a whole number, not {shown!r}")
    if not 1 <= value <= _MOST_TOKENS:
        raise InputError(f"{where}: {name} must lie between 1 and 10^8, not {shown}")
    return value


def _csv_seconds(value: str, name: str, where: str) -> float:
    try:
        return _seconds(float(value), name, where)
    except ValueError:
        pass
    try:
        # Azure writes seven decimals of a second; datetime takes at most six of them.
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InputError(f"{where}: {name} {value[:40]!r} is neither a date and time nor seconds") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(value: Any, name: str, where: str, unit_s: float = 1.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15 or math.isnan(value):
        raise InputError(f"{where}: {name} must be a number, not {str(value)[:40]!r}")
    return value * unit_s
