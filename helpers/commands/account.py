"""The two accounts of a model: parameters, FLOPs, weights, KV cache, and on a GPU capacity and floor times.

CONFIG is the path of a Hugging Face config.json (or of its folder), a name of the registry, or - for a config.json
pasted on stdin. With --log a server's start-up lines are compared with the account.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from helpers.accounts import (
    COMPONENTS,
    DTYPES,
    ENGINES,
    GIB,
    PACKED_MLA,
    STATE_RULES,
    Capacity,
    FullAttention,
    LlamaCppSettings,
    Model,
    VllmSettings,
    WeightBytes,
    compare_log,
    compute_dtype_on,
    count_parameters,
    decode_floor,
    decode_flops,
    default_batched_tokens,
    device,
    expert_counts,
    kv_bytes,
    kv_bytes_per_token,
    max_concurrency,
    model_types,
    parse_config_text,
    prefill_floor,
    prefill_flops,
    read_config,
    read_log,
    ridge_point,
    state_bytes,
    vllm_layout,
    weight_bytes,
)
from helpers.accounts.capacity import check_layers
from helpers.accounts.units import positive_int
from helpers.commands.account_text import account_text
from helpers.errors import InputError

EXAMPLE = 'python -m helpers account llama-3.1-8b --context 8192 --gpu "H100 SXM"'

# Engines whose pools are counted by the token, with caches as large as the formula says.
_SIZED_AS_IDEAL = ("sglang", "tensorrt-llm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``account``."""
    dtypes = list(DTYPES)
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="config.json, its folder, a registry name (llama-3.1-8b), or - for stdin",
    )
    parser.add_argument("--types", action="store_true", help="only list the model_types that can be read")
    parser.add_argument("--context", type=int, default=4096, metavar="N", help="tokens per request (default 4096)")
    parser.add_argument("--mean-context", type=int, metavar="N", help="mean tokens per request, where below --context")
    parser.add_argument("--batch", type=int, default=1, metavar="B", help="sequences per decode step (default 1)")
    parser.add_argument("--weights-dtype", choices=dtypes, metavar="DTYPE", help="default: as the config says")
    parser.add_argument(
        "--kv-dtype",
        choices=[*dtypes, PACKED_MLA],
        metavar="DTYPE",
        help=f"default bf16, or as --log says; {PACKED_MLA}: vLLM's packed FP8 latent",
    )
    parser.add_argument("--tp", type=int, metavar="N", help="tensor-parallel ranks; sizes are one rank's (default 1)")
    parser.add_argument("--gpu", metavar="NAME", help='a device of the registry, e.g. "H100 SXM"')
    parser.add_argument("--gpus", type=int, metavar="N", help="how many of them, a multiple of --tp (default: --tp)")
    parser.add_argument(
        "--engine", default="ideal", choices=ENGINES, metavar="ENGINE", help=f"{', '.join(ENGINES)} (default ideal)"
    )
    parser.add_argument("--ignore-key", action="append", default=[], metavar="KEY", help="a config key to leave unread")
    parser.add_argument("--draft", metavar="CONFIG", help="a speculative draft model, held beside the model")
    parser.add_argument("--log", metavar="FILE", help="start-up lines of a server (- for stdin) to compare with")
    memory = parser.add_argument_group("memory of a server (with --gpu)")
    memory.add_argument("--utilisation", type=float, metavar="SHARE", help="the engine's share of memory, e.g. 0.9")
    for name, what in _RESERVES.items():
        memory.add_argument(
            f"--{name}", type=float, metavar="GIB", help=f"GiB per GPU of {what}; unknown: counted as 0"
        )
    layout = parser.add_argument_group("settings of an engine (vllm, llamacpp)")
    layout.add_argument("--block-size", type=int, metavar="N", help="vllm: tokens per block (default 16)")
    layout.add_argument(
        "--batched-tokens",
        type=int,
        metavar="N",
        help="vllm: --max-num-batched-tokens (default 8192, or that of --gpu)",
    )
    layout.add_argument("--state-blocks", type=int, metavar="N", help="vllm: 2 with prefix caching (default 1)")
    layout.add_argument("--no-hybrid-manager", action="store_true", help="vllm: windowed layers are kept whole")
    layout.add_argument("--ubatch", type=int, metavar="N", help="llamacpp: -ub (default 512)")
    layout.add_argument(
        "--mla-cache", choices=["latent", "latent_with_values", "expanded"], help="llamacpp: what an MLA model caches"
    )


_RESERVES = {"activation": "activation peak", "non-torch": "memory outside the framework", "cuda-graphs": "CUDA graphs"}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Both accounts as the JSON object of ``--json``; sizes in bytes, times in seconds."""
    if args.types:
        return {"model_types": list(model_types())}
    _check_together(args)
    positive_int(args.batch, "batch")
    model = _read(args.config, args.ignore_key)
    draft = None if args.draft is None else _read(args.draft, args.ignore_key)
    tp = 1 if args.tp is None else positive_int(args.tp, "tp")
    dtype, engine, settings = args.kv_dtype or "bf16", args.engine, _settings(args)
    sizes = "ideal" if engine in _SIZED_AS_IDEAL else engine
    if engine in _SIZED_AS_IDEAL:
        check_layers(engine, [model] if draft is None else [model, draft])
    parameters, experts = count_parameters(model), expert_counts(model)
    decode = decode_flops(model, args.context)
    notes = [*model.notes, *_notes(model, args, tp, dtype)]
    weights = _weights(model, args, tp, notes)
    result: dict[str, Any] = {
        "model": model.name,
        "model_type": model.model_type,
        "total_params": parameters.total,
        "active_params": parameters.active,
        "active_params_with_embedding": parameters.active_with_embedding,
        "params_by_component": {name: getattr(parameters, name) for name in COMPONENTS},
        "experts": {"total": experts.total, "per_token": experts.per_token},
        "weight_bytes": weights and weights.total,
        "weight_bytes_by_component": weights and {name: getattr(weights, name) for name in COMPONENTS},
        "weight_scale_bytes": weights and weights.scales,
        "kv_bytes_per_token": kv_bytes_per_token(model, args.context, dtype, tp, sizes, settings),
        "kv_bytes_per_request": kv_bytes(model, args.context, dtype, tp, sizes, settings),
        "state_bytes_per_request": state_bytes(model, tp=tp, engine=sizes if sizes in STATE_RULES else "ideal"),
        "flops_per_token": decode.weights,
        "attention_flops_per_token": decode.attention,
        "state_flops_per_token": decode.state,
        "prefill_flops": prefill_flops(model, args.context).total,
        "conditions": {
            "context": args.context,
            "batch": args.batch,
            "weights_dtype": args.weights_dtype or f"{_stored_format(model)} (config)",
            "kv_dtype": dtype,
            "tp": tp,
            "engine": engine,
        },
        "notes": notes,
    }
    if draft is not None:
        result["draft"] = {
            "model": draft.name,
            "weight_bytes": weight_bytes(draft, None, tp).total,
            "kv_bytes_per_request": kv_bytes(draft, args.context, dtype, tp, sizes, settings),
        }
    if args.gpu is not None:
        result |= _on_gpu(model, draft, args, tp, dtype, settings, notes)
    if args.log is not None:
        result |= _compared(model, draft, args, settings, notes)
    return result


def to_text(result: dict[str, Any]) -> str:
    """The same for people: each term named, GB beside GiB."""
    if "model_types" in result:
        return "\n".join(result["model_types"])
    return account_text(result)


def _check_together(args: argparse.Namespace) -> None:
    """Refuses options that would be silently ignored, and a missing CONFIG."""
    if args.config is None:
        raise InputError("CONFIG is missing: a config.json, its folder, a registry name, or - for stdin")
    if [args.config, args.draft, args.log].count("-") > 1:
        raise InputError("only one of CONFIG, --draft and --log can be read from stdin (-)")
    if args.kv_dtype == PACKED_MLA and args.engine != "vllm":
        raise InputError(f"--kv-dtype {PACKED_MLA} is a layout of vLLM's and needs --engine vllm")
    needs_gpu = {"gpus": args.gpus, "utilisation": args.utilisation, "mean-context": args.mean_context}
    needs_gpu |= {name: getattr(args, name.replace("-", "_")) for name in _RESERVES}
    for name, value in needs_gpu.items():
        if value is not None and args.gpu is None:
            raise InputError(f"--{name} needs --gpu NAME")
    hybrid = args.no_hybrid_manager or None
    vllm = {"block-size": args.block_size, "batched-tokens": args.batched_tokens, "state-blocks": args.state_blocks}
    for engine, options in (
        ("vllm", vllm | {"no-hybrid-manager": hybrid}),
        ("llamacpp", {"ubatch": args.ubatch, "mla-cache": args.mla_cache}),
    ):
        for name, value in options.items():
            if value is not None and args.engine != engine and args.log is None:
                raise InputError(f"--{name} needs --engine {engine}")


def _read(source: str, ignore: list[str]) -> Model:
    if source != "-":
        return read_config(source, ignore=ignore)
    return parse_config_text(_stdin(), "stdin", "stdin", ignore)


def _stdin() -> str:
    try:
        return sys.stdin.read()
    except (OSError, ValueError, AttributeError):
        raise InputError("stdin cannot be read as text in UTF-8") from None


def _weights(model: Model, args: argparse.Namespace, tp: int, notes: list[str]) -> WeightBytes | None:
    """The size of the weights; None, and a note why, where only their quantisation is not understood.

    Capacity, floor times and a log's comparison rest on it: with them there is no answer without it.
    """
    try:
        return weight_bytes(model, args.weights_dtype, tp)
    except InputError as error:
        if args.weights_dtype is not None or args.gpu is not None or args.log is not None:
            raise
        notes.append(f"the size of the weights is not given: {error}")
        return None


def _settings(args: argparse.Namespace) -> VllmSettings | LlamaCppSettings | None:
    vllm, llamacpp = _vllm_settings(args), _llamacpp_settings(args)
    return {"vllm": vllm, "llamacpp": llamacpp}.get(args.engine)


def _vllm_settings(args: argparse.Namespace) -> VllmSettings:
    given = {
        "block_size": args.block_size,
        "max_batched_tokens": args.batched_tokens,
        "state_blocks": args.state_blocks,
    }
    if args.batched_tokens is None and args.gpu is not None:
        given["max_batched_tokens"] = default_batched_tokens(device(args.gpu))
    return VllmSettings(
        hybrid_manager=not args.no_hybrid_manager, **{name: value for name, value in given.items() if value is not None}
    )


def _llamacpp_settings(args: argparse.Namespace) -> LlamaCppSettings:
    given = {"ubatch": args.ubatch, "latent": args.mla_cache}
    return LlamaCppSettings(**{name: value for name, value in given.items() if value is not None})


def _notes(model: Model, args: argparse.Namespace, tp: int, dtype: str) -> list[str]:
    notes = []
    if args.context > model.max_position_embeddings:
        notes.append(f"the context {args.context} is beyond max_position_embeddings ({model.max_position_embeddings})")
    notes += _uneven_kv_heads(model, tp)
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        if (model.quantization or {}).get(key) is not None:
            notes.append(f"the config asks for a quantised KV cache ({key}): the sizes are for --kv-dtype {dtype}")
    if args.engine == "vllm":
        notes += _vllm_notes(model, args, tp, dtype)
    return notes


def _vllm_notes(model: Model, args: argparse.Namespace, tp: int, dtype: str) -> list[str]:
    layout = vllm_layout(model, dtype, tp, _vllm_settings(args))
    kinds = {group.kind for group in layout.groups}
    notes = []
    if kinds & {"sliding", "chunked"}:
        notes.append(
            f"a windowed layer is counted with its window and {layout.settings.max_batched_tokens} batched tokens, the "
            "most vLLM lets it hold (--batched-tokens)"
        )
    if layout.padding_layers:
        notes.append(f"vLLM adds {layout.padding_layers} padding layers to make its groups of layers equal")
    if "state" in kinds:
        notes.append(
            f"vLLM takes {layout.state_blocks()} blocks of {layout.block_bytes:,} bytes for the state of a request, "
            f"and blocks of {layout.smallest_block_tokens:,} tokens for its keys and values"
        )
    if not layout.is_capacity:
        notes.append('the "GPU KV cache size" that vLLM prints for this model is no capacity in tokens')
    return notes


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


def _on_gpu(
    model: Model,
    draft: Model | None,
    args: argparse.Namespace,
    tp: int,
    dtype: str,
    settings: VllmSettings | LlamaCppSettings | None,
    notes: list[str],
) -> dict[str, Any]:
    gpu = device(args.gpu)
    gpus = tp if args.gpus is None else args.gpus
    if gpu.visible_memory_bytes is None:
        notes.append(f"no visible-memory figure is known for {gpu.name}: max_concurrency is not given")
        capacity = None
    else:
        capacity = max_concurrency(
            model,
            args.context,
            gpu,
            gpus,
            tp,
            args.weights_dtype,
            dtype,
            engine=args.engine,
            utilisation=args.utilisation,
            activation_bytes=_gib(args.activation, "activation"),
            non_torch_bytes=_gib(args.non_torch, "non-torch"),
            cuda_graph_bytes=_gib(args.cuda_graphs, "cuda-graphs"),
            mean_context=args.mean_context,
            draft=draft,
            **({args.engine: settings} if settings is not None else {}),
        )
        notes += capacity.notes
        if not capacity.weights_fit:
            notes.append(f"the weights do not fit in {gpus} × {gpu.name}: no floor time is reached there")
        elif args.batch > capacity.max_concurrency:
            notes.append(
                f"batch {args.batch} at {args.context} tokens does not fit in {gpus} × {gpu.name} "
                f"(at most {capacity.max_concurrency}): its decode floor is not reached there"
            )
    if gpus > tp:
        notes.append(f"floor times are those of {tp} GPU(s) working on a step together (--tp), not of all {gpus}")
    if dtype == PACKED_MLA:
        notes.append("the floor times count the packed FP8 latent as plain fp8")
    options = {"weights_dtype": args.weights_dtype, "kv_dtype": "fp8" if dtype == PACKED_MLA else dtype, "tp": tp}
    prefill = prefill_floor(model, args.context, gpu, **options)
    decode = decode_floor(model, args.context, args.batch, gpu, **options)
    compute_dtype = compute_dtype_on(gpu, model, args.weights_dtype)
    return {
        "gpu": gpu.name,
        "gpu_source": gpu.source,
        "gpus": gpus,
        "visible_memory_bytes": capacity and capacity.visible_bytes,
        "free_bytes": capacity and capacity.free_bytes,
        "max_concurrency": capacity and capacity.max_concurrency,
        "capacity": capacity and _capacity_json(capacity, args.mean_context),
        "compute_dtype": compute_dtype,
        "ridge_flops_per_byte": ridge_point(gpu, compute_dtype),
        "prefill_floor_s": prefill.seconds,
        "prefill_binds": prefill.binds,
        "prefill_intensity": prefill.intensity,
        "decode_floor_s": decode.seconds,
        "decode_binds": decode.binds,
        "decode_intensity": decode.intensity,
    }


def _capacity_json(capacity: Capacity, mean_context: int | None) -> dict[str, Any]:
    return {
        "engine": capacity.engine,
        "terms": [{"name": name, "bytes": size} for name, size in capacity.terms],
        "pool_bytes": capacity.pool_bytes,
        "unit": capacity.unit,
        "unit_bytes": capacity.unit_bytes,
        "units": capacity.units,
        "units_per_request": capacity.units_per_request,
        "bytes_per_request": capacity.bytes_per_request,
        "concurrency": capacity.concurrency,
        "mean_context": mean_context,
        "mean_concurrency": capacity.mean_concurrency,
    }


def _gib(value: float | None, name: str) -> int | None:
    if value is None:
        return None
    if not 0 <= value < 10**6:
        raise InputError(f"--{name} must be GiB, zero or more, not {value}")
    return round(value * GIB)


def _compared(
    model: Model,
    draft: Model | None,
    args: argparse.Namespace,
    settings: VllmSettings | LlamaCppSettings | None,
    notes: list[str],
) -> dict[str, Any]:
    facts = read_log(_stdin() if args.log == "-" else _file_text(args.log))
    rows = compare_log(
        facts,
        model,
        args.kv_dtype,
        args.weights_dtype,
        args.tp,
        draft,
        vllm=_vllm_settings(args),
        llamacpp=_llamacpp_settings(args),
    )
    notes += facts.notes
    if not any(row.matches for row in rows):
        notes.append("no figure of the log agrees: is it a log of this model, with this --tp and these formats?")
    return {
        "log": {
            "engine": facts.engine,
            **facts.words,
            "figures": {name: reading.value for name, reading in facts.figures.items()},
        },
        "comparison": [
            {
                "quantity": row.quantity,
                "unit": row.unit,
                "logged": row.logged,
                "predicted": row.predicted,
                "ratio": row.ratio,
                "matches": row.matches,
                "reason": row.reason,
            }
            for row in rows
        ],
    }


def _file_text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8-sig", errors="replace")
    except (OSError, ValueError) as error:
        raise InputError(f"{name[:200]!r}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
