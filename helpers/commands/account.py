"""The two accounts of a model: parameters, FLOPs, weights, KV cache, and on a GPU capacity and floor times.

CONFIG is the path of a Hugging Face config.json (or of its folder), or a name of the registry.
"""

import argparse
from typing import Any

from helpers.accounts import (
    COMPONENTS,
    DTYPES,
    FullAttention,
    Model,
    compute_dtype_on,
    count_parameters,
    decode_floor,
    decode_flops,
    device,
    expert_counts,
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    kv_bytes,
    kv_bytes_per_token,
    max_concurrency,
    prefill_floor,
    prefill_flops,
    read_config,
    ridge_point,
    state_bytes,
    weight_bytes,
)
from helpers.accounts.units import positive_int
from helpers.errors import InputError

EXAMPLE = 'python -m helpers account llama-3.1-8b --context 8192 --gpu "H100 SXM"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``account``."""
    dtypes = list(DTYPES)
    parser.add_argument("config", metavar="CONFIG", help="config.json, its folder, or a registry name (llama-3.1-8b)")
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens per request (default 4096)")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="sequences per decode step (default 1)")
    parser.add_argument("--weights-dtype", choices=dtypes, metavar="DTYPE", help="default: as the config says")
    parser.add_argument("--kv-dtype", choices=dtypes, default="bf16", metavar="DTYPE", help="default bf16")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="tensor-parallel ranks; sizes are one rank's")
    parser.add_argument("--gpu", metavar="NAME", help='a device of the registry, e.g. "H100 SXM"')
    parser.add_argument("--gpus", type=int, metavar="N", help="how many of them, a multiple of --tp (default: --tp)")
    parser.add_argument("--engine", default="ideal", choices=["ideal", "hf", "vllm", "llamacpp"], metavar="ENGINE")
    parser.add_argument("--ignore-key", action="append", default=[], metavar="KEY", help="a config key to leave unread")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Both accounts as the JSON object of ``--json``; sizes in bytes, times in seconds."""
    if args.gpus is not None and args.gpu is None:
        raise InputError("--gpus needs --gpu NAME")
    positive_int(args.batch, "batch")
    model = read_config(args.config, ignore=args.ignore_key)
    parameters, experts = count_parameters(model), expert_counts(model)
    weights = weight_bytes(model, args.weights_dtype, args.tp)
    decode = decode_flops(model, args.context)
    notes = list(model.notes)
    if args.context > model.max_position_embeddings:
        notes.append(f"the context {args.context} is beyond max_position_embeddings ({model.max_position_embeddings})")
    notes += _uneven_kv_heads(model, args.tp)
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if (model.quantization or {}).get(key) is not None:
            notes.append(
                f"the config asks for a quantised KV cache ({key}): the sizes are for --kv-dtype {args.kv_dtype}"
            )
    result: dict[str, Any] = {
        "model": model.name,
        "model_type": model.model_type,
        "total_params": parameters.total,
        "active_params": parameters.active,
        "active_params_with_embedding": parameters.active_with_embedding,
        "params_by_component": {name: getattr(parameters, name) for name in COMPONENTS},
        "experts": {"total": experts.total, "per_token": experts.per_token},
        "weight_bytes": weights.total,
        "weight_bytes_by_component": {name: getattr(weights, name) for name in COMPONENTS},
        "weight_scale_bytes": weights.scales,
        "kv_bytes_per_token": kv_bytes_per_token(model, args.context, args.kv_dtype, args.tp, args.engine),
        "kv_bytes_per_request": kv_bytes(model, args.context, args.kv_dtype, args.tp, args.engine),
        "state_bytes_per_request": state_bytes(model),
        "flops_per_token": decode.weights,
        "attention_flops_per_token": decode.attention,
        "prefill_flops": prefill_flops(model, args.context).total,
        "conditions": {
            "context": args.context,
            "batch": args.batch,
            "weights_dtype": args.weights_dtype or f"{_stored_format(model)} (config)",
            "kv_dtype": args.kv_dtype,
            "tp": args.tp,
            "engine": args.engine,
        },
        "notes": notes,
    }
    if args.gpu is not None:
        result |= _on_gpu(model, args, notes)
    return result


def _uneven_kv_heads(model: Model, tp: int) -> list[str]:
    """What to say where KV heads neither divide by `tp` nor the other way round."""
    counts = {layer.attention.kv_heads for layer in model.layers if isinstance(layer.attention, FullAttention)}
    return [
        f"{heads} KV heads are not shared evenly by {tp} ranks: vLLM refuses this, and the sizes are a lower bound"
        for heads in sorted(counts)
        if heads % tp and tp % heads
    ]


def _stored_format(model: Model) -> str:
    return model.weights_dtype if model.quantization is None else model.quantization["quant_method"]


def _on_gpu(model: Model, args: argparse.Namespace, notes: list[str]) -> dict[str, Any]:
    gpu = device(args.gpu)
    gpus = args.tp if args.gpus is None else args.gpus
    if gpu.visible_memory_bytes is None:
        notes.append(f"no visible-memory figure is known for {gpu.name}: max_concurrency is not given")
        capacity = None
    else:
        capacity = max_concurrency(model, args.context, gpu, gpus, args.tp, args.weights_dtype, args.kv_dtype)
        if not capacity.weights_fit:
            notes.append(f"the weights do not fit in {gpus} × {gpu.name}: no floor time is reached there")
        elif args.batch > capacity.max_concurrency:
            notes.append(
                f"batch {args.batch} at {args.context} tokens does not fit in {gpus} × {gpu.name} "
                f"(at most {capacity.max_concurrency}): its decode floor is not reached there"
            )
    if gpus > args.tp:
        notes.append(f"floor times are those of {args.tp} GPU(s) working on a step together (--tp), not of all {gpus}")
    options = {"weights_dtype": args.weights_dtype, "kv_dtype": args.kv_dtype, "tp": args.tp}
    prefill = prefill_floor(model, args.context, gpu, **options)
    decode = decode_floor(model, args.context, args.batch, gpu, **options)
    dtype = compute_dtype_on(gpu, model, args.weights_dtype)
    return {
        "gpu": gpu.name,
        "gpu_source": gpu.source,
        "gpus": gpus,
        "visible_memory_bytes": capacity and capacity.visible_bytes,
        "free_bytes": capacity and capacity.free_bytes,
        "max_concurrency": capacity and capacity.max_concurrency,
        "compute_dtype": dtype,
        "ridge_flops_per_byte": ridge_point(gpu, dtype),
        "prefill_floor_s": prefill.seconds,
        "prefill_binds": prefill.binds,
        "prefill_intensity": prefill.intensity,
        "decode_floor_s": decode.seconds,
        "decode_binds": decode.binds,
        "decode_intensity": decode.intensity,
    }


def to_text(result: dict[str, Any]) -> str:
    """The same for people: each term named, GB beside GiB."""
    conditions = result["conditions"]
    rank = "" if conditions["tp"] == 1 else f", one of {conditions['tp']} ranks"
    context = f"at {conditions['context']:,} tokens"
    rows: list[tuple[str, str]] = [
        ("model", f"{result['model']} ({result['model_type']})"),
        ("", ""),
        ("parameters", f"{format_count(result['total_params'])} ({result['total_params']:,})"),
        ("  active per token", f"{format_count(result['active_params'])} (input embedding left out)"),
        ("  active, with embedding", format_count(result["active_params_with_embedding"])),
    ]
    components = [(name.replace("_", " "), value) for name, value in result["params_by_component"].items() if value]
    rows += [(f"  {name}", format_count(value)) for name, value in components]
    if result["experts"]["total"]:
        rows.append(
            ("  experts", f"{result['experts']['total']:,}, of which a token runs {result['experts']['per_token']:,}")
        )
    rows += [
        ("", ""),
        ("compute account", f"one decode step of one sequence, {context}"),
        ("  weights", f"{format_flops(result['flops_per_token'])} per token"),
        ("  attention", f"{format_flops(result['attention_flops_per_token'])} per token"),
        ("  prefill of the whole", format_flops(result["prefill_flops"])),
        ("", ""),
        ("memory account", f"weights {conditions['weights_dtype']}, KV {conditions['kv_dtype']}{rank}"),
        ("  weights", format_bytes(result["weight_bytes"])),
    ]
    if result["weight_scale_bytes"]:
        rows.append(("    of which scales", format_bytes(result["weight_scale_bytes"])))
    rows += [
        ("  KV, the next token", format_bytes(result["kv_bytes_per_token"])),
        ("  KV, one request", f"{format_bytes(result['kv_bytes_per_request'])} {context}"),
    ]
    if result["state_bytes_per_request"]:
        rows.append(("  state, one request", format_bytes(result["state_bytes_per_request"])))
    if "gpu" in result:
        rows += _gpu_rows(result, conditions)
    text = "\n".join(f"{label:<26}{value}".rstrip() for label, value in rows)
    notes = "".join(f"\nnote: {note}" for note in result["notes"])
    return text + ("\n" + notes if notes else "")


def _gpu_rows(result: dict[str, Any], conditions: dict[str, Any]) -> list[tuple[str, str]]:
    batch = conditions["batch"]
    rows = [("", ""), ("on", f"{result['gpus']} × {result['gpu']}, {result['compute_dtype']} products")]
    if result["max_concurrency"] is not None:
        fit = "" if result["free_bytes"] >= 0 else " (the weights do not fit)"
        rows += [
            ("  visible memory", format_bytes(result["visible_memory_bytes"])),
            ("  left by the weights", format_bytes(result["free_bytes"])),
            ("  requests at once", f"at most {result['max_concurrency']:,}{fit}; engines reserve more"),
        ]
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
