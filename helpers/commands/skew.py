"""Gating skew of an expert-count dump: how uneven the load is, beside what a perfect gate would show.

FILE is a CSV (layer, expert, count), .npy or .npz counts or top-k ids, an SGLang or vLLM expert-load dump, or a log
with their balancedness lines.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.accounts.expert_load import ExpertLoad, LoggedBalancedness, read_expert_load
from helpers.accounts.placement import PLACEMENTS, rank_loads
from helpers.accounts.skew import (
    dead_experts,
    distinct_experts,
    effective_experts,
    max_over_mean,
    mean_balancedness,
    step_time_factor,
)
from helpers.accounts.skew_null import null_max_over_mean
from helpers.accounts.units import positive_int
from helpers.errors import InputError

EXAMPLE = "python -m helpers skew helpers/data/expert_load.json --where traffic=law --ranks 8"
FILES = (
    "a CSV with the header layer,expert,count (optionally step), .npy or .npz, an SGLang .pt or vLLM JSON dump, or a "
    "server's log; several only of one SGLang per-pass recording, one of each rank"
)
BATCHES = (1, 8, 64, 256)
_BINARY = (b"\x93NUMPY", b"PK\x03\x04", b"\x80")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``skew``."""
    parser.add_argument("files", metavar="FILE", nargs="+", help=FILES)
    parser.add_argument(
        "--ranks", type=int, metavar="R", help="expert-parallel ranks (default: the dump's, else one each)"
    )
    parser.add_argument("--placement", choices=list(PLACEMENTS), default="contiguous", help="default contiguous")
    parser.add_argument("--tokens", type=int, metavar="N", help="tokens the counts are of, per layer; tells k")
    parser.add_argument("--experts", type=int, metavar="E", help="experts of a layer; rows left out are zeros")
    parser.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE", help="keep these rows of a CSV")
    parser.add_argument("--array", metavar="NAME", help="which array of a .npz")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Skew per layer and over all, as the JSON object of ``--json``; null for what the file cannot tell."""
    for name in ("ranks", "tokens", "experts"):
        if getattr(args, name) is not None:
            positive_int(getattr(args, name), f"--{name}")
    load = _read(args)
    if isinstance(load, LoggedBalancedness):
        return _of_log(load, args)
    ranks = args.ranks or load.ranks or load.experts
    placement = PLACEMENTS[args.placement](load.experts, ranks)
    tokens, experts_per_token = _tokens(load, args.tokens)
    counts = load.counts
    loads = [[rank_loads(row, placement) for row in step] for step in load.steps]
    of_layers = [rank_loads(row, placement) for row in counts]
    notes = list(load.notes)
    if load.ranks and (ranks, args.placement) != (load.ranks, "contiguous"):
        notes.append(f"the dump's own are {load.ranks} ranks, contiguous; this is what another placement would give")
    if experts_per_token is None:
        notes.append(
            "experts per token are not known (say --tokens): the nulls are for assignments drawn one by one, a bit high"
        )
    return {
        "source": load.source,
        "layers": list(load.layers),
        "experts": load.experts,
        "assignments": [sum(row) for row in counts],
        "max_over_mean": [max_over_mean(row) for row in counts],
        "null_max_over_mean": [_null(row, experts_per_token) for row in counts],
        "balancedness": [1 / max_over_mean(row) for row in of_layers],
        "null_balancedness": [1 / _null(row, experts_per_token, ranks) for row in counts],
        "effective_experts": [effective_experts(row) for row in counts],
        "dead_experts": [len(dead_experts(row)) for row in counts],
        "hottest_expert": [row.index(max(row)) for row in counts],
        "mean_balancedness": mean_balancedness(of_layers),
        "step_time_factor": step_time_factor([row for step in loads for row in step]),
        "null_step_time_factor": _null_factor(load, experts_per_token, ranks),
        "step_time_factor_of_sums": step_time_factor(of_layers),
        "distinct_experts": _distinct(counts, experts_per_token),
        "conditions": {
            "ranks": ranks,
            "placement": args.placement,
            "tokens": tokens,
            "experts_per_token": experts_per_token,
            "steps": len(load.steps),
        },
        "notes": notes,
    }


def _read(args: argparse.Namespace) -> ExpertLoad | LoggedBalancedness:
    pairs = [pair.partition("=") for pair in args.where]
    for column, equals, _ in pairs:
        if not column or not equals:
            raise InputError(f"--where takes COLUMN=VALUE, not {column!r}")
    where = {column: value for column, _, value in pairs}
    if len(args.files) == 1 and not _starts_binary(args.files[0]) and args.array is None:
        # Text needs no torch, which takes seconds to import.
        return read_expert_load(args.files[0], where, args.experts)
    from helpers.engine.expert_dumps import read_expert_dump

    return read_expert_dump(args.files, where, args.experts, args.array)


def _starts_binary(path: str) -> bool:
    try:
        with Path(path).expanduser().open("rb") as file:
            return file.read(8).startswith(_BINARY)
    except OSError:
        return False


def _tokens(load: ExpertLoad, stated: int | None) -> tuple[int | None, int | None]:
    """Tokens per layer and experts per token: of the dump, or from the stated tokens where they divide the counts."""
    if load.tokens is not None:
        if stated not in (None, load.tokens):
            raise InputError(f"--tokens {stated} contradicts {load.source}, which holds {load.tokens} tokens")
        return load.tokens, load.experts_per_token
    if stated is None:
        return None, None
    for layer, row in zip(load.layers, load.counts, strict=True):
        assignments = sum(row)
        if assignments % stated or not 1 <= assignments // stated <= load.experts:
            raise InputError(
                f"--tokens {stated} does not fit {load.source}: layer {layer} counts {assignments} assignments, "
                f"{assignments / stated:.4g} for each token of {load.experts} experts"
            )
        if max(row) > stated:
            raise InputError(
                f"--tokens {stated} does not fit {load.source}: layer {layer} counts {max(row)} for expert "
                f"{row.index(max(row))}, which a token chooses at most once"
            )
        if assignments != sum(load.counts[0]):
            raise InputError(
                f"--tokens {stated} does not fit {load.source}: its layers count different numbers of tokens"
            )
    return stated, sum(load.counts[0]) // stated


def _null(row: Sequence[int], experts_per_token: int | None, ranks: int | None = None) -> float:
    k = experts_per_token or 1
    return null_max_over_mean(len(row), k, max(1, round(sum(row) / k)), ranks)


def _null_factor(load: ExpertLoad, experts_per_token: int | None, ranks: int) -> float:
    """The step time factor of random routing: the null of each step and layer, weighted by its assignments."""
    rows = [row for step in load.steps for row in step if any(row)]
    return sum(_null(row, experts_per_token, ranks) * sum(row) for row in rows) / sum(map(sum, rows))


def _distinct(counts: Sequence[Sequence[int]], experts_per_token: int | None) -> dict[str, float] | None:
    """Experts a decode batch touches, mean of the layers, by batch; null where k is not known."""
    if experts_per_token is None:
        return None
    return {
        str(batch): statistics.fmean(distinct_experts(row, experts_per_token, batch) for row in counts)
        for batch in BATCHES
    }


def _of_log(log: LoggedBalancedness, args: argparse.Namespace) -> dict[str, Any]:
    for option in ("ranks", "tokens"):
        if getattr(args, option) is not None:
            raise InputError(f"--{option} does not apply to {log.source}: a log line holds a ratio and no counts")
    per_layer = ("layers", "max_over_mean", "null_max_over_mean", "balancedness", "effective_experts")
    return {
        "source": log.source,
        **{key: [] for key in per_layer},
        "step_time_factor": None,
        "logged_balancedness": {
            "steps": len(log.values),
            "idle_steps": log.idle,
            "median": statistics.median(log.values),
            "least": min(log.values),
            "most": max(log.values),
        },
        "notes": [
            log.meaning,
            *log.notes,
            "a log line holds no counts: neither skew of a layer, nor its null, nor a step time can be told from it",
        ],
    }


def to_text(result: dict[str, Any]) -> str:
    """The same for people: a row for each layer with the null beside, then what it does to time and reads."""
    if "logged_balancedness" in result:
        return _log_text(result)
    about, experts = result["conditions"], result["experts"]
    k = about["experts_per_token"]
    of_token = "" if k is None else f", top-{k}, {about['tokens']:,} tokens"
    lines = [
        f"{result['source']}: {len(result['layers'])} layers of {experts} experts{of_token}, {about['steps']} step(s); "
        f"{about['ranks']} ranks, {about['placement']}",
        "",
        "layer  assignments  max/mean  (null)  balancedness  (null)  effective  dead  hottest",
    ]
    columns = ("layers", "assignments", "max_over_mean", "null_max_over_mean", "balancedness", "null_balancedness")
    columns += ("effective_experts", "dead_experts", "hottest_expert")
    for row in zip(*(result[column] for column in columns), strict=True):
        lines.append("{:>5}  {:>11,}  {:>8.2f}  {:>6.2f}  {:>12.3f}  {:>6.3f}  {:>9.1f}  {:>4}  {:>7}".format(*row))
    ratio = result["step_time_factor"] / result["null_step_time_factor"]
    lines += [
        "",
        f"step time factor  {result['step_time_factor']:.2f} (null {result['null_step_time_factor']:.2f}): on "
        f"{about['ranks']} ranks the experts of a step take this many times as long as evenly loaded",
        f"                  ones would, {ratio:.2f} times as random routing, where a rank's time is linear in tokens",
    ]
    if about["steps"] > 1:
        lines.append(f"                  {result['step_time_factor_of_sums']:.2f} of the sums, which hide single steps")
    if result["distinct_experts"] is not None:
        touched = ", ".join(f"{value:.1f} at {batch}" for batch, value in result["distinct_experts"].items())
        lines.append(f"distinct experts  a decode batch touches, of {experts}: {touched} sequences")
    lines.append("compute account   FLOPs per token do not change with skew: each runs as many experts")
    lines += [f"note: {note}" for note in result["notes"]]
    return "\n".join(lines)


def _log_text(result: dict[str, Any]) -> str:
    logged = result["logged_balancedness"]
    return "\n".join(
        [
            f"{result['source']}: logged balancedness of {logged['steps']} steps, {logged['idle_steps']} idle left out",
            f"median {logged['median']:.3f}, from {logged['least']:.3f} to {logged['most']:.3f}",
            *(f"note: {note}" for note in result["notes"]),
        ]
    )
