"""The text of `account`: a table for people, every term named, GB beside GiB."""

from typing import Any

from helpers.accounts.units import format_bytes, format_count, format_flops, format_seconds

_WIDTH = 30


def account_text(result: dict[str, Any]) -> str:
    """The result of `account` as a table, the notes at its end."""
    rows = [*_parameter_rows(result), *_compute_rows(result), *_memory_rows(result)]
    if "gpu" in result:
        rows += _gpu_rows(result)
    text = "\n".join(f"{label:<{_WIDTH}}{value}".rstrip() for label, value in rows)
    if "comparison" in result:
        text += "\n\n" + _log_table(result)
    notes = "".join(f"\nnote: {note}" for note in result["notes"])
    return text + ("\n" + notes if notes else "")


def _parameter_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    tied = result["active_params"] == result["active_params_with_embedding"]
    embedding = "the input embedding is the output head too, and counts" if tied else "input embedding left out"
    rows = [
        ("model", f"{result['model']} ({result['model_type']})"),
        ("", ""),
        ("parameters", f"{format_count(result['total_params'])} ({result['total_params']:,})"),
        ("  active per token", f"{format_count(result['active_params'])} ({embedding})"),
        ("  active, with embedding", format_count(result["active_params_with_embedding"])),
    ]
    components = [(name.replace("_", " "), value) for name, value in result["params_by_component"].items() if value]
    rows += [(f"  {name}", format_count(value)) for name, value in components]
    experts = result["experts"]
    if experts["total"]:
        rows.append(("  experts", f"{experts['total']:,}, of which a token runs {experts['per_token']:,}"))
    return rows


def _compute_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    state = result["state_flops_per_token"]
    return [
        ("", ""),
        ("compute account", f"one decode step of one sequence, {_at(result)}"),
        ("  weights", f"{format_flops(result['flops_per_token'])} per token"),
        ("  attention", f"{format_flops(result['attention_flops_per_token'])} per token"),
        *([("  state", f"{format_flops(state)} per token")] if state else []),
        ("  prefill of the whole", format_flops(result["prefill_flops"])),
    ]


def _memory_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    conditions, size = result["conditions"], result["weight_bytes"]
    rank = "" if conditions["tp"] == 1 else f", one of {conditions['tp']} ranks"
    engine = "" if conditions["engine"] == "ideal" else f", as {conditions['engine']} holds it"
    rows = [
        ("", ""),
        ("memory account", f"weights {conditions['weights_dtype']}, KV {conditions['kv_dtype']}{rank}{engine}"),
        ("  weights", "not known here, see the note" if size is None else format_bytes(size)),
    ]
    if result["weight_scale_bytes"]:
        rows.append(("    of which scales", format_bytes(result["weight_scale_bytes"])))
    rows += [
        ("  KV, the next token", format_bytes(result["kv_bytes_per_token"])),
        ("  KV, one request", f"{format_bytes(result['kv_bytes_per_request'])} {_at(result)}"),
    ]
    if result["state_bytes_per_request"]:
        rows.append(("  state, one request", format_bytes(result["state_bytes_per_request"])))
    if "draft" in result:
        draft = result["draft"]
        rows += [
            (f"  draft {draft['model']}"[: _WIDTH - 1], ""),
            ("    weights", format_bytes(draft["weight_bytes"])),
            ("    KV, one request", format_bytes(draft["kv_bytes_per_request"])),
        ]
    return rows


def _gpu_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    batch = result["conditions"]["batch"]
    rows = [("", ""), ("on", f"{result['gpus']} × {result['gpu']}, {result['compute_dtype']} products")]
    if result["capacity"] is not None:
        rows += _capacity_rows(result)
    return [
        *rows,
        ("  ridge point", f"{result['ridge_flops_per_byte']:,.0f} FLOP/byte"),
        (
            "  prefill, no faster than",
            f"{format_seconds(result['prefill_floor_s'])} for one prompt; {result['prefill_binds']} binds "
            f"({result['prefill_intensity']:,.0f} FLOP/byte)",
        ),
        (
            "  decode, no faster than",
            f"{format_seconds(result['decode_floor_s'])} a step, batch {batch}; {result['decode_binds']} binds "
            f"({result['decode_intensity']:,.1f} FLOP/byte)",
        ),
    ]


def _capacity_rows(result: dict[str, Any]) -> list[tuple[str, str]]:
    capacity = result["capacity"]
    (first, visible), *taken = ((term["name"], term["bytes"]) for term in capacity["terms"])
    rows = [(f"  {first}", format_bytes(visible))]
    rows += [(f"  − {name}", format_bytes(-size)) for name, size in taken if size]
    rows.append(("  = left for the cache", format_bytes(capacity["pool_bytes"])))
    unit, each = capacity["unit"], capacity["units_per_request"]
    if unit == "byte":
        rows.append(("  a request takes", f"{format_bytes(capacity['bytes_per_request'])} {_at(result)}"))
    else:
        rows += [
            (f"  {unit}s", f"{capacity['units']:,} of {format_bytes(capacity['unit_bytes'])}"),
            (
                "  a request takes",
                f"{each:,} {unit}{'s' * (each != 1)}, {format_bytes(capacity['bytes_per_request'])} {_at(result)}",
            ),
        ]
    fit = "" if result["free_bytes"] >= 0 else "; the weights do not fit"
    rows.append(
        (
            "  requests at once",
            f"at most {result['max_concurrency']:,} ({capacity['concurrency']:,.2f}){fit} {_at(result)}",
        )
    )
    if capacity["mean_concurrency"] is not None:
        mean = f"at most {capacity['mean_concurrency']:,} where requests have {capacity['mean_context']:,} tokens"
        rows.append(("  at the mean length", mean))
    return rows


def _log_table(result: dict[str, Any]) -> str:
    log, rows = result["log"], result["comparison"]
    said = ", ".join(f"{name} {log[name]}" for name in ("version", "model", "dtype", "kv_dtype", "tp") if name in log)
    lines = [f"start-up log of {log['engine']}{': ' + said if said else ''}"]
    width = max(len(row["quantity"]) for row in rows) + 2
    lines.append(f"  {'':<{width}}{'logged':>27}{'predicted':>27}{'ratio':>9}")
    for row in rows:
        logged, predicted = (_figure(row[name], row["unit"]) for name in ("logged", "predicted"))
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.4f}"
        verdict = "agrees" if row["matches"] else "differs"
        lines.append(f"  {row['quantity']:<{width}}{logged:>27}{predicted:>27}{ratio:>9}  {verdict}")
        if row["reason"]:
            lines.append(f"  {'':<{width}}  {row['reason']}")
    return "\n".join(lines)


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "not known"
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:,.2f}×" if unit == "×" else f"{value:,.0f} {unit}"


def _at(result: dict[str, Any]) -> str:
    return f"at {result['conditions']['context']:,} tokens"
