"""The raw log of a run: every byte and every time, from which another person computes every number again.

JSON lines: the first holds the plan and what the client itself cost, each further one a request with the
phase it belonged to, its body, and its reads as [kernel ns or null, user ns, text or {"base64": …}].
The key is not in it: it is never part of a request's body, and echoes of it are overwritten.
"""

import base64
import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path

from helpers import __version__
from helpers.errors import InputError
from helpers.measure.arrivals import Arrival, Arrivals, ClosedLoop, OpenLoop, Trace
from helpers.measure.exchange import ENDS, Exchange, Read
from helpers.measure.load import PHASES, LoadRun, Plan, Sent

SCHEMA = "inference-lab/measure-log/1"


def save_log(run: LoadRun, path: str | Path, machine: Mapping[str, object] | None = None) -> None:
    """Write the log; whole or not at all."""
    path = Path(path)
    head = {
        "schema": SCHEMA,
        "lab_version": __version__,
        "machine": dict(machine or {}),
        "plan": {**_plain(run.plan), "arrivals": _arrivals_out(run.plan.arrivals)},
        **{
            field.name: getattr(run, field.name)
            for field in dataclasses.fields(run)
            if field.name not in ("plan", "sent")
        },
    }
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as out:
            for line in (head, *(_sent_out(sent) for sent in run.sent)):
                out.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"log {path} cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def load_log(path: str | Path) -> LoadRun:
    """The run of a log. Raises InputError that names the file, the line and what is wrong with it."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"log {path} cannot be read ({error})") from error
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if number == 1:
                if not isinstance(row, dict) or row.get("schema") != SCHEMA:
                    raise InputError(f"its schema is not {SCHEMA}")
                head = _head_in(row)
            else:
                rows.append(_sent_in(row))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            what = f"key {error} is missing" if isinstance(error, KeyError) else error
            raise InputError(f"log {path}, line {number}: {what}") from error
    if not lines[0]:
        raise InputError(f"log {path}, line 1: its schema is not {SCHEMA}")
    if not rows:
        raise InputError(f"log {path} holds no requests")
    return LoadRun(sent=tuple(rows), **head)


def _plain(value: object) -> dict:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _arrivals_out(arrivals: Arrivals) -> dict:
    if isinstance(arrivals, Trace):
        rows = [[a.at_s, a.prompt_tokens, a.output_tokens] for a in arrivals.arrivals]
        return {"kind": "trace", "name": arrivals.name, "arrivals": rows}
    return {"kind": "closed" if isinstance(arrivals, ClosedLoop) else "open", **_plain(arrivals)}


def _arrivals_in(row: dict) -> Arrivals:
    if row["kind"] == "trace":
        return Trace(tuple(Arrival(*a) for a in row["arrivals"]), row["name"])
    if row["kind"] == "closed":
        return ClosedLoop(row["concurrency"])
    return OpenLoop(row["rate_per_s"], row["seed"])


def _head_in(row: dict) -> dict:
    plan = Plan(**{**row["plan"], "arrivals": _arrivals_in(row["plan"]["arrivals"])})
    names = [field.name for field in dataclasses.fields(LoadRun) if field.name not in ("plan", "sent")]
    return {"plan": plan, **{name: row[name] for name in names}, "notes": tuple(row["notes"])}


def _sent_out(sent: Sent) -> dict:
    reads = [[read.kernel_ns, read.user_ns, _bytes_out(read.data)] for read in sent.exchange.reads]
    return {"phase": sent.phase, **_plain(sent.exchange), "reads": reads}


def _sent_in(row: dict) -> Sent:
    fields = {field.name: row[field.name] for field in dataclasses.fields(Exchange)}
    if row["phase"] not in PHASES:
        raise InputError(f"phase {row['phase']!r} is unknown")
    if fields["end"] not in ENDS:
        raise InputError(f"end {fields['end']!r} is unknown")
    for name in ("start_ns", "end_ns"):
        _whole(fields[name], name)
    for name in ("status", "head_ns", "intended_ns", "connect_ns"):
        if fields[name] is not None:
            _whole(fields[name], name)
    if not isinstance(fields["request"], dict) or not isinstance(fields["headers"], dict):
        raise InputError("request and headers must be objects")
    fields["reads"] = tuple(
        Read(_whole(user, "a read's time"), _bytes_in(data), None if kernel is None else _whole(kernel, "a stamp"))
        for kernel, user, data in row["reads"]
    )
    return Sent(row["phase"], Exchange(**fields))


def _whole(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} must be a whole number, not {value!r}")
    return value


def _bytes_out(data: bytes) -> str | dict:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _bytes_in(value: str | dict) -> bytes:
    return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value.encode("utf-8")
