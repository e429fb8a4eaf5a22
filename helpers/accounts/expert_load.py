"""Expert counts of a service, as text: CSV, JSON (ours, vLLM's load dump), and the log lines of vLLM and SGLang.

Binary dumps (.npy, .npz, .pt) are read by `helpers.engine.expert_dumps`. What a file is, its content says, never its
name. Sources: SGLang srt/eplb/expert_distribution.py; vLLM vllm/distributed/eplb/eplb_state.py.
"""

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from helpers.accounts.units import count
from helpers.errors import InputError

LARGEST_EXPERT = 100_000
_COLUMNS = ("layer", "expert", "count")


@dataclass(frozen=True)
class ExpertLoad:
    """Assignments (token, expert) of each expert: `steps` is [steps][layers][experts], `layers` the ids of its layers.

    A step is one forward pass, or one window where the dump sums over passes. `tokens` per layer over all steps and
    `experts_per_token`, where the dump tells them. `ranks`: how many held the experts, in contiguous blocks, where the
    dump tells it. `notes` are sentences for people. Layers that counted nothing are left out, as are such steps.
    """

    source: str
    layers: tuple[int, ...]
    steps: tuple[tuple[Sequence[int], ...], ...]
    tokens: int | None = None
    experts_per_token: int | None = None
    ranks: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def experts(self) -> int:
        """Experts of a layer (or physical slots, where the dump counts those: then a note says so)."""
        return len(self.steps[0][0])

    @cached_property
    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Counts summed over the steps, [layers][experts]."""
        if len(self.steps) == 1:
            return tuple(map(tuple, self.steps[0]))
        return tuple(tuple(map(sum, zip(*layer, strict=True))) for layer in zip(*self.steps, strict=True))


@dataclass(frozen=True)
class LoggedBalancedness:
    """The balancedness values an engine logged, in order; a log line holds one ratio and no counts.

    `idle` counts the lines of steps that routed no token. `meaning` says what the engine averaged.
    """

    source: str
    values: tuple[float, ...]
    idle: int
    meaning: str


def read_expert_load(
    path: str | Path, where: Mapping[str, str] | None = None, experts: int | None = None
) -> ExpertLoad | LoggedBalancedness:
    """The expert counts of a text file; a log gives only what it logged.

    CSV: a header with ``layer,expert,count``, optionally ``step``; one row for every expert of every layer. `where`
    keeps the rows whose other columns have these values. `experts` says how many there are, and that a row left out is
    a zero. JSON: vLLM's dump (eplb_config.expert_load_dump_dir), or a list ``loads`` as in helpers/data.
    Log: lines ``[Expert Balancedness] …`` (SGLang) or ``EPLB step: …`` (vLLM).

    Raises InputError naming the line or key that is not understood; for a binary file, whatever its name.
    """
    path = Path(path).expanduser()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text") from error
    name = path.name
    if text.lstrip().startswith("{"):
        return _read_json(text, name, where or {}, experts)
    header = [cell.strip() for cell in text.lstrip().partition("\n")[0].split(",")]
    if set(_COLUMNS) <= set(header):
        return _read_csv(text, name, where or {}, experts)
    if any(marker in text for marker in _LOG_LINES):
        _refuse_options(name, where, experts)
        return _read_log(text, name)
    raise InputError(
        f"{name} is neither a CSV with the columns {', '.join(_COLUMNS)}, nor a vLLM expert-load dump, nor a log with "
        "SGLang's [Expert Balancedness] or vLLM's EPLB step lines"
    )


def make_expert_load(
    source: str,
    layers: Sequence[int],
    steps: Sequence[Sequence[Sequence[int]]],
    notes: Sequence[str] = (),
    **known: Any,
) -> ExpertLoad:
    """An `ExpertLoad` of checked counts [steps][layers][experts], without the layers and steps that counted nothing.

    Raises InputError where all are zero or the shape is not regular.
    """
    if any(len(step) != len(layers) for step in steps) or len({len(row) for step in steps for row in step}) > 1:
        raise InputError(f"{source}: every step must count the same layers and experts")
    used_steps = [step for step in steps if any(map(any, step))]
    if not used_steps:
        raise InputError(f"{source}: every count is zero, so nothing was recorded")
    used = [index for index in range(len(layers)) if any(any(step[index]) for step in used_steps)]
    notes = list(notes)
    if len(used_steps) < len(steps):
        notes.append(f"{len(steps) - len(used_steps)} of {len(steps)} steps counted nothing and are left out")
    if len(used) < len(layers):
        empty = [layers[index] for index in range(len(layers)) if index not in set(used)]
        notes.append(
            f"layers that counted nothing are left out (dense, or not recorded): {', '.join(map(str, empty[:8]))}"
            + (f" and {len(empty) - 8} more" if len(empty) > 8 else "")
        )
    totals = {layers[index]: sum(sum(step[index]) for step in used_steps) for index in used}
    least, most = min(totals, key=totals.get), max(totals, key=totals.get)
    if totals[least] != totals[most]:
        notes.append(
            f"the layers did not route the same tokens: layer {least} counts {totals[least]:,} assignments, layer "
            f"{most} {totals[most]:,} (dropped tokens, or passes that were not recorded)"
        )
    return ExpertLoad(
        source=source,
        layers=tuple(layers[index] for index in used),
        steps=tuple(tuple(step[index] for index in used) for step in used_steps),
        notes=tuple(notes),
        **known,
    )


def published_load(model: str, traffic: str) -> ExpertLoad:
    """Counts others published for a real model under one kind of text: a selection of layers, with its source.

    `model` and `traffic` as in helpers/data/expert_load.json (``OLMoE-1B-7B-0924``, ``github``). Raises InputError,
    listing what there is, for others.
    """
    loads = _published()["loads"]
    known = list(dict.fromkeys((load["model"], load["traffic"]) for load in loads))
    if (model, traffic) not in known:
        raise InputError(
            f"no published load of {str(model)[:40]!r} under {str(traffic)[:40]!r}; there are: "
            + "; ".join(" ".join(pair) for pair in known)
        )
    return _from_loads(loads, "expert_load.json", {"model": model, "traffic": traffic})


def published_loads() -> tuple[tuple[str, str, str], ...]:
    """Model, traffic and source of every load `published_load` can give."""
    published = _published()
    pairs = dict.fromkeys((load["model"], load["traffic"]) for load in published["loads"])
    return tuple((model, traffic, published["sources"][model]) for model, traffic in pairs)


def _published() -> dict[str, Any]:
    return json.loads((Path(__file__).parents[1] / "data" / "expert_load.json").read_text(encoding="utf-8"))


def _refuse_options(name: str, where: Mapping[str, str] | None, experts: int | None) -> None:
    if where or experts is not None:
        raise InputError(f"{name} is no CSV: neither a column filter nor a number of experts applies to it")


def _read_csv(text: str, name: str, where: Mapping[str, str], experts: int | None) -> ExpertLoad:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    found: dict[tuple[int, int, int], int] = {}
    lines: dict[tuple[int, int, int], int] = {}
    header: list[str] | None = None
    try:
        for row in reader:
            if not "".join(row).strip():
                continue
            if header is None:
                header = [cell.strip() for cell in row]
                _check_header(header, name, where)
                continue
            at = f"{name}, line {reader.line_num}"
            if len(row) != len(header):
                raise InputError(f"{at}: {len(row)} values for {len(header)} columns")
            values = {column: cell.strip() for column, cell in zip(header, row, strict=True)}
            if any(values[column] != wanted for column, wanted in where.items()):
                continue
            step = _whole(values["step"], "step", at) if "step" in values else 0
            key = (step, _whole(values["layer"], "layer", at), _whole(values["expert"], "expert", at))
            if key[2] > LARGEST_EXPERT or (experts is not None and key[2] >= experts):
                raise InputError(f"{at}: expert {key[2]} is beyond the {experts or LARGEST_EXPERT} there can be")
            if key in found:
                raise InputError(f"{at}: {_again(key, header, where)} (first in line {lines[key]})")
            found[key], lines[key] = _whole(values["count"], "count", at), reader.line_num
    except csv.Error as error:
        raise InputError(f"{name}, line {reader.line_num}: not readable as CSV ({error})") from error
    if not found:
        chosen = " with " + ", ".join(f"{column}={value}" for column, value in where.items()) if where else ""
        raise InputError(f"{name} holds no row{chosen}")
    steps, layers = sorted({key[0] for key in found}), sorted({key[1] for key in found})
    number = experts or 1 + max(key[2] for key in found)
    if experts is None:
        _refuse_missing(found, steps, layers, number, "step" in header, name)
    return make_expert_load(
        name,
        layers,
        [[tuple(found.get((s, la, e), 0) for e in range(number)) for la in layers] for s in steps],
    )


def _check_header(header: list[str], name: str, where: Mapping[str, str]) -> None:
    if len(set(header)) < len(header):
        raise InputError(f"{name}: its header names a column twice")
    for column in where:
        if column in (*_COLUMNS, "step") or column not in header:
            others = [other for other in header if other not in (*_COLUMNS, "step")]
            raise InputError(
                f"{name} has no column {column!r} to choose rows by (it has: {', '.join(others) or 'none'})"
            )


def _again(key: tuple[int, int, int], header: list[str], where: Mapping[str, str]) -> str:
    others = [column for column in header if column not in (*_COLUMNS, "step", *where)]
    hint = f"; choose rows by the column {' or '.join(others)}" if others else ""
    return f"layer {key[1]}, expert {key[2]} stands a second time{hint}"


def _refuse_missing(
    found: Mapping[tuple[int, int, int], int],
    steps: list[int],
    layers: list[int],
    experts: int,
    stepped: bool,
    name: str,
) -> None:
    if len(found) == len(steps) * len(layers) * experts:
        return
    step, layer, expert = next(
        (s, la, e) for s in steps for la in layers for e in range(experts) if (s, la, e) not in found
    )
    raise InputError(
        f"{name}: {f'step {step}, ' if stepped else ''}layer {layer} has no row for expert {expert}; write its 0, "
        "or say how many experts there are, and that rows left out are zeros"
    )


def _whole(text: str, column: str, at: str) -> int:
    # int() alone would also take "1_000" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{at}: {column} must be a whole number, zero or more, not {text[:40]!r}")
    return count(int(text), f"{at}: {column}")


def _read_json(text: str, name: str, where: Mapping[str, str], experts: int | None) -> ExpertLoad:
    try:
        dump = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not readable JSON ({error})") from error
    if isinstance(dump, dict) and isinstance(dump.get("loads"), list):
        _refuse_options(name, None, experts)
        return _from_loads(dump["loads"], name, where)
    if not isinstance(dump, dict) or not isinstance(dump.get("snapshots"), list):
        raise InputError(f"{name}: key 'snapshots' is missing, which a vLLM expert-load dump holds")
    _refuse_options(name, where, experts)
    return _from_vllm(dump, name)


def _from_loads(loads: list, name: str, where: Mapping[str, str]) -> ExpertLoad:
    """Entries {layer, counts, tokens, experts_per_token} and further keys to choose by, one entry a layer."""
    chosen: dict[int, Mapping[str, Any]] = {}
    for index, load in enumerate(loads):
        at = f"{name}: loads[{index}]"
        keys = ("layer", "counts", "tokens", "experts_per_token")
        if missing := [key for key in (*keys, *where) if not isinstance(load, dict) or key not in load]:
            raise InputError(f"{at}: key {missing[0]!r} is missing")
        if any(str(load[key]) != wanted for key, wanted in where.items()):
            continue
        row, layer, tokens, k = (
            _table([load["counts"]], f"{at}.counts")[0],
            *(load[key] for key in ("layer", *keys[2:])),
        )
        for key, value in (("layer", layer), ("tokens", tokens), ("experts_per_token", k)):
            count(value, f"{at}.{key}")
        if sum(row) != tokens * k:
            raise InputError(f"{at}: its counts add up to {sum(row)}, not to tokens · experts_per_token ({tokens * k})")
        if layer in chosen:
            others = [key for key in load if key not in (*keys, *where)]
            hint = f"; choose by {' or '.join(others)}" if others else ""
            raise InputError(f"{at}: layer {layer} stands a second time{hint}")
        chosen[layer] = {"row": row, "tokens": tokens, "k": k}
    if not chosen:
        raise InputError(f"{name} holds no load with {', '.join(f'{key}={value}' for key, value in where.items())}")
    if len({(entry["tokens"], entry["k"], len(entry["row"])) for entry in chosen.values()}) > 1:
        raise InputError(f"{name}: the chosen layers differ in tokens, experts or experts_per_token")
    layers, first = sorted(chosen), next(iter(chosen.values()))
    rows = [[chosen[layer]["row"] for layer in layers]]
    return make_expert_load(name, layers, rows, tokens=first["tokens"], experts_per_token=first["k"])


def _from_vllm(dump: Mapping[str, Any], name: str) -> ExpertLoad:
    """Snapshots of physical slots; they are not folded to logical experts, as the map of a snapshot may be a later one.

    Ranks hold contiguous slots, so the load of a rank is exact.
    """
    ranks = dump.get("world_size")
    if ranks is not None:
        count(ranks, f"{name}: key 'world_size'")
    steps, notes = [], []
    for index, snapshot in enumerate(dump["snapshots"]):
        where = f"{name}: snapshots[{index}]"
        if not isinstance(snapshot, dict) or "window_expert_load" not in snapshot:
            raise InputError(f"{where}: key 'window_expert_load' is missing")
        steps.append(_table(snapshot["window_expert_load"], f"{where}.window_expert_load"))
    if not steps:
        raise InputError(f"{name}: key 'snapshots' is empty")
    slots = len(steps[0][0])
    replicas = dump.get("num_redundant_experts") or 0
    held = f"{slots} physical slots, of which {replicas} are replicas" if replicas else f"{slots} physical slots"
    notes.append(f"counts are those of {held}, as they lay on the ranks; each snapshot is one window of passes")
    return make_expert_load(name, range(len(steps[0])), steps, notes, ranks=ranks or None)


def _table(value: Any, where: str) -> list[tuple[int, ...]]:
    """A list of equally long lists of counts."""
    if not isinstance(value, list) or not value or not all(isinstance(row, list) and row for row in value):
        raise InputError(f"{where} must be a list of lists, layers by experts")
    if len({len(row) for row in value}) > 1:
        raise InputError(f"{where}: its layers have different numbers of experts")
    for layer, row in enumerate(value):
        for expert, load in enumerate(row):
            # vLLM divides a window by its ranks where all of them counted the same tokens: whole floats may occur.
            if isinstance(load, float) and load.is_integer():
                row[expert] = load = int(load)
            count(load, f"{where}[{layer}][{expert}]")
    return [tuple(row) for row in value]


_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_LOG_LINES = {
    "[Expert Balancedness]": (
        re.compile(rf"current_pass_balancedness={_NUMBER}(?:\s.*gpu_physical_count_sum={_NUMBER})?"),
        "SGLang: mean over max of the ranks, averaged over all layers; dense layers count as 1",
    ),
    "EPLB step:": (
        re.compile(rf"avg_tokens={_NUMBER}, max_tokens={_NUMBER}, balancedness={_NUMBER}"),
        "vLLM: Σ mean over Σ max; from August 2025 until mid-2026 it was reduced over layers in place of ranks, so "
        "find out which version wrote it",
    ),
}


def _read_log(text: str, name: str) -> LoggedBalancedness:
    markers = [marker for marker in _LOG_LINES if marker in text]
    if len(markers) > 1:
        raise InputError(f"{name} holds lines of both SGLang and vLLM: split it, their balancedness differs")
    pattern, meaning = _LOG_LINES[markers[0]]
    values, idle = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if markers[0] not in line:
            continue
        match = pattern.search(line)
        if match is None:
            raise InputError(f"{name}, line {number}: a {markers[0]} line whose values are not understood")
        # Of SGLang: ratio, and in newer versions the tokens; of vLLM: mean, maximum, ratio.
        numbers = [1.0 if group is None else float(group) for group in match.groups()]
        value, tokens = (numbers[0], numbers[1]) if len(numbers) == 2 else (numbers[2], numbers[1])
        if not tokens:
            idle += 1
        elif not 0 < value <= 1.0005:
            raise InputError(f"{name}, line {number}: balancedness {value} does not lie between 0 and 1")
        else:
            values.append(value)
    if not values:
        raise InputError(f"{name}: none of its {idle} logged steps routed a token")
    return LoggedBalancedness(name, tuple(values), idle, meaning)
