"""A record of a machine: ceilings, prefill and decode sweeps and their provenance, as one JSON file.

A record is shown as recorded, with its date, never as live. The file holds samples, not summaries: every
median is computed from them when it is read, so no two numbers in it can disagree.
"""

import dataclasses
import json
import math
import os
import tempfile
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import helpers
from helpers.errors import InputError
from helpers.measure.ceilings import Ceilings
from helpers.measure.machine import Machine
from helpers.measure.sweep import Sweep

SCHEMA = "inference-lab.record/1"
FOLDER = Path(helpers.__file__).parent / "data" / "records"


@dataclass(frozen=True)
class Record:
    """One machine, one model, one dtype.

    `created`: UTC, ISO 8601. `weights`: "random" (in the model's real shape) or "real".
    `decode_step`: "cuda graph" or "eager". `config`: the registry name or shape `model` was built from.
    """

    schema: str
    created: str
    lab_version: str
    model: str
    weights: str
    weight_bytes: int
    dtype: str
    decode_step: str
    ceilings: Ceilings
    prefill: Sweep
    decode: Sweep

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise InputError(f"schema is {self.schema!r}, this version reads {SCHEMA!r}")
        try:
            moment = datetime.fromisoformat(self.created)
        except ValueError:
            moment = None
        if moment is None or moment.tzinfo is None:
            raise InputError(f"created must be an ISO 8601 time with its zone, not {self.created!r}")
        for name, allowed in (("weights", ("random", "real")), ("decode_step", ("cuda graph", "eager"))):
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} must be one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        if not self.model or self.weight_bytes <= 0:
            raise InputError("a record needs the name of its model and weight_bytes above zero")
        if self.dtype != self.ceilings.dtype:
            raise InputError(f"dtype {self.dtype!r} is not the {self.ceilings.dtype!r} of the ceilings")
        if (self.prefill.phase, self.decode.phase) != ("prefill", "decode"):
            raise InputError("prefill and decode must each hold a sweep of their own phase")

    @property
    def machine(self) -> Machine:
        return self.ceilings.machine


def records() -> list[Path]:
    """The recorded runs that travel with the course, sorted by name; may be empty."""
    return sorted(FOLDER.glob("*.json"))


def load_record(path: str | Path) -> Record:
    """Read and validate one record. Raises InputError naming the file and the key that is wrong."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"record {path.name}: cannot be read ({type(error).__name__})") from error
    try:
        return parse_record(text)
    except InputError as error:
        raise InputError(f"record {path.name}: {error}") from error


def parse_record(text: str) -> Record:
    """The record in a JSON text. Raises InputError naming the key that is missing, unknown or wrong."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_refuse_twins)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not JSON ({' '.join(str(error).split())})") from error
    if isinstance(value, dict) and value.get("schema") != SCHEMA:
        raise InputError(f"schema is {value.get('schema')!r}, this version reads {SCHEMA!r}")
    return _read(Record, value, "")


def record_text(record: Record) -> str:
    """The record as JSON, in the order of its fields."""
    return json.dumps(dataclasses.asdict(record), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def save_record(record: Record, path: str | Path, *, force: bool = False) -> None:
    """Write a record whole or not at all. Raises InputError where the file exists and `force` is not set."""
    path = Path(path)
    check_target(path, force=force)
    text = record_text(record)
    # In the target's own folder: only there is putting the file in place one atomic step.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes the file private; a record is an ordinary file.
        os.chmod(temporary, 0o644)
        if force:
            os.replace(temporary, path)
        else:
            _place_new(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def check_target(path: str | Path, *, force: bool = False) -> None:
    """Raise InputError unless a record can be written to `path`: ask before measuring, not after."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file to write a record to")
    if path.exists() and not force:
        raise InputError(f"{path} exists already; --force overwrites it")
    if not path.parent.is_dir():
        raise InputError(f"folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"folder {path.parent} is not writable")


def _place_new(temporary: str, path: Path) -> None:
    try:
        # A link fails where the name was taken meanwhile; a rename would overwrite.
        os.link(temporary, path)
    except FileExistsError as error:
        raise InputError(f"{path} exists already; --force overwrites it") from error
    except OSError:
        # A file system without links.
        check_target(path)
        os.replace(temporary, path)


def _refuse_constant(name: str) -> None:
    raise InputError(f"holds {name}, which is no number")


def _refuse_twins(pairs: list[tuple[str, object]]) -> dict:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise InputError(f"key {key!r} appears twice in one object")
    return dict(pairs)


def _read(kind, value, where: str):
    """`value` (out of JSON) as the type `kind`: a dataclass, tuple, mapping, optional or plain type."""
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _read(inner, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise InputError(f"{where} must be a list, not {_shown(value)}")
        return tuple(_read(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is Mapping:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be an object, not {_shown(value)}")
        return {key: _read(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _read_plain(kind, value, where)


def _read_plain(kind, value, where: str):
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else math.inf
    # bool is an int to Python, and no number here.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{where} must be {kind.__name__}, not {_shown(value)}")
    if (kind is float and not math.isfinite(value)) or (kind is int and abs(value) >= 2**63):
        raise InputError(f"{where} is too large a number")
    return value


def _read_dataclass(kind, value, where: str):
    if not isinstance(value, dict):
        raise InputError(f"{where or 'a record'} must be an object, not {_shown(value)}")
    hints = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    for field in dataclasses.fields(kind):
        if field.name not in value:
            raise InputError(f"key {prefix}{field.name} is missing")
    for key in value:
        if key not in hints:
            raise InputError(f"key {prefix}{key} is unknown")
    fields = {key: _read(hints[key], item, f"{prefix}{key}") for key, item in value.items()}
    try:
        return kind(**fields)
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from error


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}…"
