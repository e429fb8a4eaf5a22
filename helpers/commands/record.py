"""Record this machine: ceilings, prefill and decode sweeps and their provenance, as one JSON file."""

import argparse
import dataclasses
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from helpers import __version__
from helpers.accounts import read_config
from helpers.commands.ceilings import add_device_arguments, chosen_device_and_dtype
from helpers.errors import InputError
from helpers.measure import (
    Record,
    Sweep,
    check_target,
    decode_sweep,
    load_record,
    measure_ceilings,
    prefill_sweep,
    record_text,
    save_record,
)
from helpers.measure.record import SCHEMA

EXAMPLE = "python -m helpers record --quick --out my_machine.json"

REAL_MODEL = "smollm2-135m-instruct"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is swept, and the seconds each sweep may take."""

    prompt_lengths: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    budget_s: float


def plan(device: str, quick: bool, max_positions: int) -> Plan:
    """The sweep that suits a device: on a GPU longer and wider than on a CPU, and within the model's positions."""
    if quick:
        chosen = Plan((128, 512), (128, 1024), (1, 4), 10.0)
    elif device == "cpu":
        chosen = Plan((64, 128, 256, 512, 1024, 2048), (128, 1024, 4096), (1, 2, 4, 8, 16), 120.0)
    else:
        chosen = Plan((128, 512, 2048, 8192, 32768), (128, 2048, 8192, 32768), (1, 4, 16, 64), 90.0)
    fit = {
        name: tuple(n for n in getattr(chosen, name) if n <= max_positions) or (max_positions,)
        for name in ("prompt_lengths", "contexts")
    }
    return dataclasses.replace(chosen, **fit)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write; never overwritten")
    parser.add_argument("--force", action="store_true", help="overwrite the file")
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"a registry name (random weights in its shape), {REAL_MODEL}, or a folder of safetensors "
        "(default: the largest Llama that fits; on a CPU smollm2-135m)",
    )
    add_device_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="under a minute, few points")


def run(args: argparse.Namespace) -> dict:
    from helpers.engine import decode_runner, prefill_runner

    check_target(args.out, force=args.force)
    device, dtype = chosen_device_and_dtype(args)
    if args.model not in (None, REAL_MODEL):
        # A name that does not exist should not cost the minutes of the ceilings first.
        read_config(args.model)
    progress(f"ceilings of {device} in {dtype}")
    # First of all: a device or dtype that does not exist is refused before any weights are made.
    ceilings = measure_ceilings(device, dtype, quick=args.quick, fresh=True)
    decoder, weights = load(args.model, dtype, device)
    todo = plan(device, args.quick, decoder.model.max_position_embeddings)
    common = {"model": decoder.model, "ceilings": ceilings, "budget_s": todo.budget_s}
    progress(f"prefill of {decoder.model.name}, up to {todo.budget_s:g} s")
    prefill = prefill_sweep(prefill_runner(decoder), todo.prompt_lengths, **common)
    progress(f"decode of {decoder.model.name}, up to {todo.budget_s:g} s")
    decode = decode_sweep(decode_runner(decoder), todo.contexts, todo.batches, **common)
    record = Record(
        schema=SCHEMA,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        lab_version=__version__,
        model=decoder.model.name,
        weights=weights,
        weight_bytes=decoder.weight_nbytes,
        dtype=dtype,
        decode_step="cuda graph" if decoder.cuda_graph else "eager",
        ceilings=ceilings,
        prefill=prefill,
        decode=decode,
    )
    save_or_rescue(record, args.out, force=args.force)
    return {
        "file": str(args.out),
        "model": record.model,
        "weights": weights,
        "device": device,
        "device_name": record.machine.device_name,
        "dtype": dtype,
        "decode_step": record.decode_step,
        "flops_per_s": ceilings.flops_per_s,
        "bytes_per_s": ceilings.bytes_per_s,
        "noisy": ceilings.noisy or bool(disturbed(record)) or any(p.noisy for p in (*prefill.points, *decode.points)),
        "prefill": as_rows(prefill),
        "decode": as_rows(decode),
        "dropped": [{"phase": s.phase} | dataclasses.asdict(d) for s in (prefill, decode) for d in s.dropped],
    }


def to_text(result: dict) -> str:
    record = load_record(result["file"])
    return "\n".join(
        [
            record.ceilings.to_text(),
            f"{record.model} ({record.weights} weights, {record.dtype}, decode step {record.decode_step})",
            "prefill",
            record.prefill.to_text(),
            "decode",
            record.decode.to_text(),
            *disturbed(record),
            f"written to {result['file']}",
        ]
    )


def disturbed(record: Record) -> list[str]:
    """A sentence where a result lies above its ceiling: no run can, so the ceiling was measured too low."""
    above = [p for sweep in (record.prefill, record.decode) for p in sweep.points if max(p.mfu, p.mbu) > 1.05]
    if not above:
        return []
    return [f"{len(above)} results lie above the ceilings, so those were disturbed: run again on a quiet machine"]


def as_rows(sweep: Sweep) -> list[dict]:
    """The points of a sweep as flat JSON objects, for programs that read `--json`."""
    return [
        {
            "tokens": p.tokens,
            "batch": p.batch,
            "predicted_s": p.predicted_s,
            "measured_s": p.measured_s,
            "iqr_s": p.timing.iqr_s,
            "n": p.timing.n,
            "noisy": p.noisy,
            "ratio": p.ratio,
            "mfu": p.mfu,
            "mbu": p.mbu,
            "binds": p.binds,
        }
        for p in sweep.points
    ]


def load(name: str | None, dtype: str, device: str):
    """The decoder to measure and whether its weights are "random" or "real"."""
    from helpers.engine import largest_that_fits, load_folder, load_smollm2, random_decoder

    if name == REAL_MODEL:
        return load_smollm2(dtype, device), "real"
    if name is not None and Path(name).is_dir() and any(Path(name).glob("*.safetensors")):
        return load_folder(name, dtype, device), "real"
    if name is not None:
        model = read_config(name)
    else:
        model = read_config("smollm2-135m") if device == "cpu" else largest_that_fits(device, dtype)
    progress(f"random weights in the shape of {model.name}")
    return random_decoder(model, dtype, device), "random"


def save_or_rescue(record: Record, path: str, *, force: bool) -> None:
    """Write the record; where that fails after all, keep it in the folder for temporary files and say where."""
    try:
        save_record(record, path, force=force)
    except (OSError, InputError) as error:
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", prefix="record-", suffix=".json", delete=False
        ) as rescue:
            rescue.write(record_text(record))
        raise InputError(f"{path} was not written ({error}): the record is kept in {rescue.name}") from error


def progress(line: str) -> None:
    print(f"record: {line}", file=sys.stderr, flush=True)
