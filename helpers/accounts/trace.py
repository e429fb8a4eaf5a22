"""Request traces: the arrival and the length of every request a real service saw, read from a file."""

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers.errors import InputError

# Beyond any context window: a larger number is a slip or another column.
_MOST_TOKENS = 10**8


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


def read_trace(path: str | Path) -> tuple[TraceRequest, ...]:
    """The requests of a trace file, in its order: Azure's CSV or Mooncake's JSONL, told apart by the first line.

    CSV: a header with ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens`` (Azure LLM inference traces; date and time,
    or seconds). JSONL: objects with ``timestamp`` in ms, ``input_length``, ``output_length`` (Mooncake, FAST'25). Other
    columns and keys are left alone. Raises InputError, with the line number, for what is malformed; a prompt or an
    output below one token is refused too.
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
    requests = tuple(rows(text, path))
    if not requests:
        raise InputError(f"the trace {path} holds no request")
    start = min(request.arrival_s for request in requests)
    return tuple(TraceRequest(r.prompt_tokens, r.output_tokens, r.arrival_s - start) for r in requests)


def _csv_rows(text: str, path: Path) -> Iterable[TraceRequest]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    try:
        header = [name.strip() for name in next(reader)]
        if missing := [name for name in columns if name not in header]:
            raise InputError(
                f"{path}, line 1: column {missing[0]!r} is missing; a trace is Azure's CSV or Mooncake's JSONL"
            )
        stamp, prompt, output = (header.index(name) for name in columns)
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if not row:
                continue
            if len(row) != len(header):
                raise InputError(f"{where}: {len(row)} fields in place of {len(header)}")
            yield TraceRequest(
                _tokens(row[prompt], "ContextTokens", where),
                _tokens(row[output], "GeneratedTokens", where),
                _csv_seconds(row[stamp], where),
            )
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _json_rows(text: str, path: Path) -> Iterable[TraceRequest]:
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
        for key in ("timestamp", "input_length", "output_length"):
            if key not in row:
                raise InputError(f"{where}: key {key!r} is missing")
        yield TraceRequest(
            _tokens(row["input_length"], "input_length", where),
            _tokens(row["output_length"], "output_length", where),
            _seconds(row["timestamp"], where, 1e-3),
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


def _csv_seconds(value: str, where: str) -> float:
    try:
        return _seconds(float(value), where)
    except ValueError:
        pass
    try:
        # Azure writes seven decimals of a second; datetime takes at most six of them.
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        raise InputError(f"{where}: TIMESTAMP {value[:40]!r} is neither a date and time nor seconds") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _seconds(value: Any, where: str, unit_s: float = 1.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15 or math.isnan(value):
        raise InputError(f"{where}: timestamp must be a number, not {str(value)[:40]!r}")
    return value * unit_s
