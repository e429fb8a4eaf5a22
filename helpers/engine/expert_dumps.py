"""Expert counts of a service, in any form: .npy and .npz, SGLang's .pt dumps, and the text `helpers.accounts` reads.

A pickle runs code of whoever wrote it and is never unpickled: arrays are read with ``allow_pickle=False``, torch files
with ``weights_only=True``. Source of the .pt layouts: SGLang srt/eplb/expert_distribution.py, the `dump` methods.
"""

import warnings
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.accounts.expert_load import (
    LARGEST_EXPERT,
    ExpertLoad,
    LoggedBalancedness,
    make_expert_load,
    read_expert_load,
)
from helpers.accounts.units import positive_int
from helpers.errors import InputError

_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_MOST_COUNTS = 2**28
"""Counts one tensor may hold: a file of a few bytes can claim a tensor beyond any memory."""

BINARY_MAGIC = (b"\x93NUMPY", b"PK\x03\x04", b"\x80")
"""How the binary files start: .npy, a zip (.npz or .pt), a bare pickle."""


def read_expert_dump(
    paths: str | Path | Sequence[str | Path],
    where: Mapping[str, str] | None = None,
    experts: int | None = None,
    array: str | None = None,
) -> ExpertLoad | LoggedBalancedness:
    """The expert counts of a file; of several, the sum, which only SGLang's per-pass dumps of one recording have.

    .npy: counts [layers, experts] of whole numbers. .npz: the array named `array` (``counts`` [layers, experts] or
    [steps, layers, experts], or ``topk_ids`` [layers, tokens, k]); another name is taken for counts where it has 2
    dimensions and for top-k ids where it has 3. .pt: SGLang's stat dump (``logical_count``) or per-pass and per-token
    dumps (``records``, one file for each rank). Anything else: see `helpers.accounts.read_expert_load`, which `where`
    and `experts` are for; `experts` also says how many there are where ids alone are given.

    Raises InputError naming file and key for what is not understood.
    """
    paths = [Path(path).expanduser() for path in ([paths] if isinstance(paths, str | Path) else paths)]
    if not paths:
        raise InputError("no file of expert counts is given")
    kinds = [_kind(path) for path in paths]
    if set(kinds) == {"torch"}:
        _refuse_options(paths[0].name, where=where, array=array)
        return _read_sglang(paths, experts)
    if len(paths) > 1:
        odd = next((path for path, kind in zip(paths, kinds, strict=True) if kind != "torch"), paths[0])
        raise InputError(f"{odd.name} is no SGLang per-pass dump, and only those come as one file for each rank")
    if kinds[0] == "text":
        _refuse_options(paths[0].name, array=array)
        return read_expert_load(paths[0], where, experts)
    _refuse_options(paths[0].name, where=where)
    return _read_numpy(paths[0], kinds[0], experts, array)


def is_binary(path: str | Path) -> bool:
    """Whether `path` starts like one of the binary files; False for one that cannot be read."""
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(8).startswith(BINARY_MAGIC)
    except OSError:
        return False


def _kind(path: Path) -> str:
    """``npy``, ``npz``, ``torch`` or ``text``, by content; a bare pickle is refused."""
    if not is_binary(path):
        return "text"
    with path.open("rb") as file:
        start = file.read(6)
    if start == BINARY_MAGIC[0]:
        return "npy"
    if start.startswith(b"\x80"):
        raise InputError(f"{path.name} is a pickle, which could run code and is never unpickled here: save it as .npz")
    try:
        with zipfile.ZipFile(path) as file:
            names = file.namelist()
    except Exception as error:
        # zipfile answers a damaged archive with many kinds of error.
        raise InputError(f"{path.name} starts like a .npz or .pt file but is not a readable one ({error})") from error
    if any(name.endswith("/data.pkl") for name in names):
        return "torch"
    if names and all(name.endswith(".npy") for name in names):
        return "npz"
    raise InputError(f"{path.name} is a zip file, but neither a .npz nor a torch .pt file")


def _refuse_options(name: str, **options: Any) -> None:
    for option, value in options.items():
        if value:
            raise InputError(f"{name}: {option} does not apply to this kind of file")


def _read_numpy(path: Path, kind: str, experts: int | None, wanted: str | None) -> ExpertLoad:
    name = path.name
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if kind == "npy":
                _refuse_options(name, array=wanted)
                label, values = "", loaded
            else:
                label = _chosen(name, loaded.files, wanted)
                values = loaded[label]
    except InputError:
        raise
    except Exception as error:
        # ValueError for a pickle; a damaged header or archive provokes many kinds.
        raise InputError(f"{name} is not readable without unpickling ({' '.join(str(error).split())[:120]})") from error
    where = f"{name}: array {label!r}" if label else name
    # np.load gives the bare bytes of an archive's member that is no array.
    if not isinstance(values, np.ndarray):
        raise InputError(f"{where} is no NumPy array")
    if values.dtype.kind not in "iu":
        raise InputError(f"{where} is {values.dtype}, but counts and expert ids are whole numbers")
    if label == "topk_ids" or (label and label != "counts" and values.ndim == 3):
        notes = [] if label == "topk_ids" else [f"array {label!r}, of 3 dimensions, is taken for top-k ids"]
        return _from_ids(values, where, name, experts, notes)
    if values.ndim == 2:
        values = values[None]
    elif values.ndim != 3 or label != "counts":
        raise InputError(f"{where} has shape {list(values.shape)}, but counts are [layers, experts]")
    if experts is not None and experts != values.shape[2]:
        raise InputError(f"{where} counts {values.shape[2]} experts, not {experts}")
    return make_expert_load(name, range(values.shape[1]), _rows(values, where))


def _chosen(name: str, files: Sequence[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in files:
            raise InputError(f"{name} has no array {wanted!r} (it has: {', '.join(files)})")
        return wanted
    known = [label for label in files if label in ("counts", "topk_ids")]
    if len(known) != 1:
        raise InputError(f"{name}: say which of its arrays holds counts or top-k ids: {', '.join(files) or 'none'}")
    return known[0]


def _from_ids(ids: np.ndarray, where: str, name: str, experts: int | None, notes: list[str]) -> ExpertLoad:
    """Counts of top-k ids [layers, tokens, k]."""
    if ids.ndim != 3 or 0 in ids.shape:
        raise InputError(f"{where} has shape {list(ids.shape)}, but top-k ids are [layers, tokens, k]")
    ids, largest = ids.astype(np.int64), int(ids.max())
    if int(ids.min()) < 0 or largest > LARGEST_EXPERT:
        raise InputError(f"{where} holds the expert id {min(int(ids.min()), 0) or largest}")
    ordered = np.sort(ids, axis=2)
    if (repeated := np.argwhere(ordered[:, :, 1:] == ordered[:, :, :-1])).size:
        raise InputError(f"{where}: layer {repeated[0][0]}, token {repeated[0][1]} chose an expert twice")
    if experts is None:
        experts = largest + 1
        notes.append(f"the number of experts, {experts}, is taken from the largest id; say it where there are more")
    if largest >= positive_int(experts, "experts"):
        raise InputError(f"{where} holds the expert id {largest}, but there are {experts} experts")
    counts = np.stack([np.bincount(layer.ravel(), minlength=experts) for layer in ids])[None]
    known = {"tokens": ids.shape[1], "experts_per_token": ids.shape[2]}
    return make_expert_load(name, range(ids.shape[0]), _rows(counts, where), notes, **known)


def _read_sglang(paths: Sequence[Path], experts: int | None) -> ExpertLoad:
    dumps = [_load_torch(path) for path in paths]
    if len(paths) == 1 and "logical_count" in dumps[0]:
        return _from_stat(dumps[0], paths[0].name, experts)
    passes: dict[int, torch.Tensor] = {}
    seen: set[tuple[int, int]] = set()
    for path, dump in zip(paths, dumps, strict=True):
        if not isinstance(dump.get("records"), list):
            raise InputError(f"{path.name}: key 'records' is missing, which a per-pass dump holds")
        for index, record in enumerate(dump["records"]):
            where = f"{path.name}: records[{index}]"
            number, rank, counts = (
                _key(record, key, where) for key in ("forward_pass_id", "rank", "global_physical_count")
            )
            if not isinstance(number, int) or not isinstance(rank, int):
                raise InputError(f"{where}: forward_pass_id and rank must be whole numbers")
            if (number, rank) in seen:
                raise InputError(f"{where}: rank {rank} counts pass {number} a second time")
            seen.add((number, rank))
            counts = _counts_tensor(counts, 2, f"{where}.global_physical_count")
            if number in passes and passes[number].shape != counts.shape:
                raise InputError(f"{where}: its counts have another shape than those of the other ranks")
            passes[number] = passes[number] + counts if number in passes else counts
    if not passes:
        raise InputError(f"{paths[0].name}: key 'records' is empty")
    ranks = sorted({rank for _, rank in seen})
    # A pass that a rank has not counted would look skewed towards the experts of the others.
    whole = [number for number in sorted(passes) if all((number, rank) in seen for rank in ranks)]
    if not whole:
        raise InputError(f"{paths[0].name}: its ranks ({', '.join(map(str, ranks))}) have no forward pass in common")
    steps = [passes[number] for number in whole]
    if len({tuple(step.shape) for step in steps}) > 1:
        raise InputError(f"{paths[0].name}: its passes count different numbers of layers or experts")
    stacked = torch.stack(steps)
    if experts is not None and experts != stacked.shape[2]:
        raise InputError(f"{paths[0].name} counts {stacked.shape[2]} physical experts, not {experts}")
    notes = [f"counts are those of {stacked.shape[2]} physical slots, as they lay on the ranks"]
    if len(whole) < len(passes):
        notes.append(f"{len(passes) - len(whole)} of {len(passes)} passes are left out, as not every rank counted them")
    if len(ranks) == 1:
        notes.append(f"only rank {ranks[0]} is in: where there are others, give the files of all, which are added up")
    return make_expert_load(
        paths[0].name if len(paths) == 1 else f"{paths[0].name} and {len(paths) - 1} more",
        range(stacked.shape[1]),
        _rows(stacked.numpy(), paths[0].name),
        notes,
    )


def _from_stat(dump: Mapping, name: str, experts: int | None) -> ExpertLoad:
    counts = _counts_tensor(dump["logical_count"], 3, f"{name}: logical_count")
    if experts is not None and experts != counts.shape[2]:
        raise InputError(f"{name} counts {counts.shape[2]} experts, not {experts}")
    return make_expert_load(name, range(counts.shape[1]), _rows(counts.numpy(), f"{name}: logical_count"))


def _load_torch(path: Path) -> dict:
    try:
        with warnings.catch_warnings():
            # What torch only warns of (a TorchScript archive, old storages) is refused here or of no concern.
            warnings.simplefilter("ignore")
            dump = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # UnpicklingError for code, RuntimeError for a broken archive, and whatever a crafted one provokes.
        reason = " ".join(str(error).split())[:80]
        raise InputError(f"{path.name} is not readable by torch with weights_only=True ({reason}…)") from error
    if not isinstance(dump, dict):
        raise InputError(f"{path.name} holds a {type(dump).__name__}, not the dict of an SGLang dump")
    return dump


def _key(record: Any, key: str, where: str) -> Any:
    if not isinstance(record, dict) or key not in record:
        raise InputError(f"{where}: key {key!r} is missing")
    return record[key]


def _counts_tensor(value: Any, dimensions: int, where: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.dtype not in _WHOLE or value.layout != torch.strided:
        raise InputError(f"{where} must be a tensor of whole numbers")
    if value.is_meta or value.numel() > _MOST_COUNTS:
        raise InputError(f"{where} of shape {list(value.shape)} holds no counts that could be read")
    if value.dim() != dimensions or 0 in value.shape:
        wanted = "[steps, layers, experts]" if dimensions == 3 else "[layers, experts]"
        raise InputError(f"{where} has shape {list(value.shape)}, but counts are {wanted}")
    return value.long()


def _rows(values: np.ndarray, where: str) -> list[list[array]]:
    """[steps][layers] of compact rows of counts; a dump of a large model holds tens of millions."""
    if values.size == 0:
        raise InputError(f"{where} has shape {list(values.shape)}: it counts nothing")
    if values.min() < 0 or values.max() > 10**12:
        raise InputError(f"{where} holds the count {values.min() if values.min() < 0 else values.max()}")
    values = np.ascontiguousarray(values, dtype=np.int64)
    # The unused steps of SGLang's ring buffer are zeros; one step is kept, so that all zeros are refused by name.
    used = values[values.any(axis=(1, 2))] if values.any() else values[:1]
    return [[array("q", row.tobytes()) for row in step] for step in used]
