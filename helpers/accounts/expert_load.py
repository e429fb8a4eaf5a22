"""Expert counts of a service, as text: CSV, JSON (ours, vLLM's load dump), and the log lines of vLLM and SGLang.

Binary dumps (.npy, .npz, .pt) are read by `helpers.engine.expert_dumps`. What a file is, its content says, never its
name. Sources: SGLang srt/eplb/expert_distribution.py; vLLM vllm/distributed/eplb/eplb_state.py.
"""

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from helpers.accounts.units import count, positive_int
from helpers.errors import InputError

LARGEST_EXPERT = 100_000
_COLUMNS = ("layer", "expert", "count")
_DELIMITERS = ",;\t"


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

    `idle` counts the lines of steps that routed no token. `meaning` says what the engine averaged. `notes` are
    sentences for people.
    """

    source: str
    values: tuple[float, ...]
    idle: int
    meaning: str
    notes: tuple[str, ...] = ()


def read_expert_load(
    path: str | Path, where: Mapping[str, str] | None = None, experts: int | None = None
) -> ExpertLoad | LoggedBalancedness:
    """The expert counts of a text file; a log gives only what it logged.

    CSV (comma, semicolon or tab): a header with ``layer,expert,count``, optionally ``step``; one row for every expert
    of every layer. `where` keeps the rows whose columns have these values. `experts` says how many there are, and that
    a row left out is a zero. JSON: vLLM's dump (eplb_config.expert_load_dump_dir), whole or one snapshot a line, or a
    list ``loads`` as in helpers/data.
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
        # A server's log may quote any bytes of a prompt; in counts one that is no text is damage.
        if not any(marker.encode() in content for marker in _LOG_LINES):
            raise InputError(f"{path} is not UTF-8 text") from error
        text = content.decode("utf-8", "replace")
    name, logged = path.name, any(marker in text for marker in _LOG_LINES)
    # A container runtime may wrap each line of a log as JSON.
    if text.lstrip().startswith("{") and not logged:
        return _read_json(text, name, where or {}, experts)
    if delimiter := _delimiter(text):
        return _read_csv(text, name, delimiter, where or {}, experts)
    if logged:
        _refuse_options(name, where, experts)
        return _read_log(text, name)
    raise InputError(
        f"{name} is neither a CSV whose header names the columns {', '.join(_COLUMNS)}, nor a vLLM expert-load dump, "
        "nor a log with SGLang's [Expert Balancedness] or vLLM's EPLB step lines"
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
    count(totals[most], f"{source}: the sum of layer {most}")
    if (times := _common_factor(used_steps)) > 1:
        notes.append(
            f"every count is a multiple of {times}: probably each token was counted {times} times, by ranks that saw "
            "the same tokens; ratios stay as they are, but the nulls are too low"
        )
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


def _common_factor(steps: Sequence[Sequence[Sequence[int]]]) -> int:
    """The largest number that divides every count; 1 where too few were counted to tell it from chance."""
    factor, seen = 0, 0
    for load in chain.from_iterable(chain.from_iterable(steps)):
        if load:
            factor, seen = math.gcd(factor, load), seen + 1
        if factor == 1:
            return 1
    return factor if seen >= 32 else 1


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


def _delimiter(text: str) -> str | None:
    """What separates the columns, where the first line names the three of `_COLUMNS`; otherwise None."""
    first = text.lstrip().partition("\n")[0]
    for delimiter in _DELIMITERS:
        if set(_COLUMNS) <= {cell.strip().strip('"') for cell in first.split(delimiter)}:
            return delimiter
    return None


def _read_csv(text: str, name: str, delimiter: str, where: Mapping[str, str], experts: int | None) -> ExpertLoad:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
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
        # Without some of its experts a layer would look whole.
        if column in ("expert", "count") or column not in header:
            others = [other for other in header if other not in ("expert", "count")]
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
    hint = "" if any(key[2] == 0 for key in found) else " (experts are numbered from 0)"
    raise InputError(
        f"{name}: {f'step {step}, ' if stepped else ''}layer {layer} has no row for expert {expert}{hint}; write its "
        "0, or say how many experts there are, and that rows left out are zeros"
    )


def _whole(text: str, column: str, at: str) -> int:
    # int() alone would also take "1_000" and digits of other scripts.
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{at}: {column} must be a whole number, zero or more, not {text[:40]!r}")
    return count(int(text), f"{at}: {column}")


def _read_json(text: str, name: str, where: Mapping[str, str], experts: int | None) -> ExpertLoad:
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if '"window_expert_load"' in lines[0][1] and '"snapshots"' not in lines[0][1]:
        _refuse_options(name, where, experts)
        return _from_vllm_lines({f"{name}, line {number}": line for number, line in lines}, name)
    dump = _parsed(text, name)
    if isinstance(dump, dict) and isinstance(dump.get("loads"), list):
        _refuse_options(name, None, experts)
        return _from_loads(dump["loads"], name, where)
    if not isinstance(dump, dict) or not isinstance(dump.get("snapshots"), list):
        raise InputError(f"{name}: key 'snapshots' is missing, which a vLLM expert-load dump holds")
    _refuse_options(name, where, experts)
    snapshots = {f"{name}: snapshots[{index}]": snapshot for index, snapshot in enumerate(dump["snapshots"])}
    return _from_vllm(dump, snapshots, name)


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} is not readable JSON ({error})") from error


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
        if max(row) > tokens:
            raise InputError(f"{at}: {max(row)} of its {tokens} tokens chose one expert, which each can only once")
        if layer in chosen:
            others = [key for key in load if key not in (*keys, *where)]
            hint = f"; choose by {' or '.join(others)}" if others else ""
            raise InputError(f"{at}: layer {layer} stands a second time{hint}")
        chosen[layer] = {"row": row, "tokens": tokens, "k": k}
    if not chosen:
        chosen_by = " with " + ", ".join(f"{key}={value}" for key, value in where.items()) if where else ""
        raise InputError(f"{name} holds no load{chosen_by}")
    if len({(entry["tokens"], entry["k"], len(entry["row"])) for entry in chosen.values()}) > 1:
        raise InputError(f"{name}: the chosen layers differ in tokens, experts or experts_per_token")
    layers, first = sorted(chosen), next(iter(chosen.values()))
    rows = [[chosen[layer]["row"] for layer in layers]]
    return make_expert_load(name, layers, rows, tokens=first["tokens"], experts_per_token=first["k"])


_VLLM_KEYS = ("model_name", "world_size", "num_moe_layers", "num_physical_experts", "num_redundant_experts")


def _from_vllm_lines(lines: Mapping[str, str], name: str) -> ExpertLoad:
    """The newer form of the dump: one snapshot a line, each with what the older one says once."""
    snapshots = {where: _parsed(line, where) for where, line in lines.items()}
    first: dict[str, Any] = {}
    for where, snapshot in snapshots.items():
        if not isinstance(snapshot, dict):
            raise InputError(f"{where} is no JSON object")
        first = first or snapshot
        if other := [key for key in _VLLM_KEYS if snapshot.get(key) != first.get(key)]:
            raise InputError(f"{where}: key {other[0]!r} is another than in the first line: these are two recordings")
    return _from_vllm(first, snapshots, name)


def _from_vllm(dump: Mapping[str, Any], snapshots: Mapping[str, Any], name: str) -> ExpertLoad:
    """Snapshots of physical slots; they are not folded to logical experts, as the map of a snapshot may be a later one.

    Ranks hold contiguous slots, so the load of a rank is exact.
    """
    ranks = dump.get("world_size")
    if ranks is not None:
        positive_int(ranks, f"{name}: key 'world_size'")
    steps = []
    for where, snapshot in snapshots.items():
        if not isinstance(snapshot, dict) or "window_expert_load" not in snapshot:
            raise InputError(f"{where}: key 'window_expert_load' is missing")
        steps.append(_table(snapshot["window_expert_load"], f"{where}.window_expert_load"))
    if not steps:
        raise InputError(f"{name}: key 'snapshots' is empty")
    slots = len(steps[0][0])
    for key, held in (("num_moe_layers", len(steps[0])), ("num_physical_experts", slots)):
        if dump.get(key, held) != held:
            raise InputError(f"{name}: key {key!r} is {dump[key]!r}, but window_expert_load holds {held}")
    replicas = count(dump.get("num_redundant_experts") or 0, f"{name}: key 'num_redundant_experts'")
    held = f"{slots} physical slots, of which {replicas} are replicas" if replicas else f"{slots} physical slots"
    notes = [f"counts are those of {held}, as they lay on the ranks; each snapshot is one window of passes"]
    numbers, window = [snapshot.get("step") for snapshot in snapshots.values()], dump.get("window_size")
    known = all(isinstance(value, int) for value in (*numbers, window))
    if known and any(0 <= later - earlier < window for earlier, later in pairwise(numbers)):
        notes.append(f"snapshots lie closer than their window of {window} passes: some passes are counted twice")
    return make_expert_load(name, range(len(steps[0])), steps, notes, ranks=ranks)


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


# Both engines print the ratio with a fixed number of digits: fewer are those of a line that was cut.
_LOG_LINES = {
    "[Expert Balancedness]": (
        re.compile(
            r"\[Expert Balancedness\] forward_pass_id=(?P<step>[0-9]+) "
            r"current_pass_balancedness=(?P<ratio>[0-9]\.[0-9]{3})(?:\s.*?gpu_physical_count_sum=(?P<tokens>[0-9]+))?"
        ),
        "SGLang: mean over max of the ranks, averaged over all layers; dense layers count as 1",
    ),
    "EPLB step:": (
        re.compile(
            r"EPLB step:(?: (?P<step>[0-9]+) for model (?P<model>.+?):)? "
            r"avg_tokens=[0-9.]+, max_tokens=(?P<tokens>[0-9]+), balancedness=(?P<ratio>[0-9]+\.[0-9]{4})"
        ),
        "vLLM: Σ mean over Σ max; from August 2025 until August 2026 (its pull request 51813) it was reduced over "
        "layers in place of ranks, so find out which version wrote it",
    ),
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_PROCESS = re.compile(r"\bpid=([0-9]+)\)")


def _read_log(text: str, name: str) -> LoggedBalancedness:
    markers = [marker for marker in _LOG_LINES if marker in text]
    if len(markers) > 1:
        raise InputError(f"{name} holds lines of both SGLang and vLLM: split it, their balancedness differs")
    marker, (pattern, meaning) = markers[0], _LOG_LINES[markers[0]]
    # Older versions of SGLang do not log the sum; where others do, a line without it was cut.
    sums_logged = "gpu_physical_count_sum=" in text
    logged: list[tuple[int, dict[str, str | None]]] = []
    processes: set[str] = set()
    for number, line in enumerate(_COLOUR.sub("", text).splitlines(), 1):
        if marker not in line:
            continue
        # Processes that write at once may share a line.
        found = [match.groupdict() for match in pattern.finditer(line)]
        if len(found) != line.count(marker) or (sums_logged and any(entry["tokens"] is None for entry in found)):
            raise InputError(f"{name}, line {number}: a line with {marker!r} whose values are not understood")
        logged += [(number, entry) for entry in found]
        processes.update(_PROCESS.findall(line))
    if len(models := {entry["model"] for _, entry in logged if entry.get("model")}) > 1:
        raise InputError(f"{name} holds lines of several models ({', '.join(sorted(models))}): keep those of one")
    values, idle = [], 0
    for number, entry in logged:
        value = float(entry["ratio"])
        if entry["tokens"] is not None and not int(entry["tokens"]):
            idle += 1
        elif not 0 < value <= 1:
            raise InputError(f"{name}, line {number}: balancedness {value} does not lie between 0 and 1")
        else:
            values.append(value)
    if not values:
        raise InputError(f"{name}: none of its {idle} logged steps routed a token")
    # vLLM's step starts again after each rearrangement, SGLang's pass only with its process.
    again = marker != "EPLB step:" and any(int(a["step"]) >= int(b["step"]) for (_, a), (_, b) in pairwise(logged))
    notes = []
    if again or len(processes) > 1:
        notes.append("the lines are those of several processes: a server that was started again, or several servers")
    return LoggedBalancedness(name, tuple(values), idle, meaning, tuple(notes))
