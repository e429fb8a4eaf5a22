"""Measure this machine's ceilings: GEMM FLOP/s (compute account) and read bytes/s (bandwidth account)."""

import argparse

from helpers.errors import InputError
from helpers.measure import Ceilings, Rate, check_device, default_device, measure_ceilings, set_threads
from helpers.measure.ceilings import check_dtype, rate_line

EXAMPLE = "python -m helpers ceilings --quick"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_device_arguments(parser)
    parser.add_argument("--quick", action="store_true", help="a few seconds instead of about a minute")


def add_device_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every command that measures: which device, which number format, how many threads."""
    parser.add_argument("--device", help="cpu, cuda, cuda:N or mps (default: the best there is)")
    parser.add_argument("--dtype", help="fp32, fp16 or bf16 (default: bf16 on cuda, else fp32)")
    parser.add_argument("--threads", type=int, help="CPU threads (default: what torch chooses)")


def chosen_device_and_dtype(args: argparse.Namespace) -> tuple[str, str]:
    """Device and dtype of the options; sets torch's threads where asked. Raises InputError on bad ones."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise InputError("torch is missing, and measuring needs it (see `python -m helpers doctor`)") from error
    if args.threads is not None:
        set_threads(args.threads)
    device = args.device or default_device()
    dtype = args.dtype or ("bf16" if device.startswith("cuda") else "fp32")
    check_device(device)
    check_dtype(dtype)
    return device, dtype


def run(args: argparse.Namespace) -> dict:
    device, dtype = chosen_device_and_dtype(args)
    return as_result(measure_ceilings(device, dtype, quick=args.quick, fresh=True))


def as_result(ceilings: Ceilings) -> dict:
    """The JSON object of measured ceilings; per-second values are of the best kernel of each kind."""
    about = ceilings.machine
    return {
        "flops_per_s": ceilings.flops_per_s,
        "bytes_per_s": ceilings.bytes_per_s,
        "ridge_flops_per_byte": ceilings.ridge_flops_per_byte,
        "dtype": ceilings.dtype,
        "device": ceilings.device,
        "device_name": about.device_name,
        "threads": about.threads,
        "spread": max(ceilings.best_gemm.timing.spread, ceilings.best_read.timing.spread),
        "n": min(ceilings.best_gemm.n, ceilings.best_read.n),
        "noisy": ceilings.noisy,
        "quick": ceilings.quick,
        "gemm": _rate(ceilings.best_gemm),
        "read": _rate(ceilings.best_read),
        "tried": [_rate(rate) for rate in (*ceilings.gemm, *ceilings.read)],
        "versions": dict(about.versions),
    }


def _rate(rate: Rate) -> dict:
    return {
        "kernel": rate.kernel,
        "per_s": rate.per_s,
        "q1_per_s": rate.q1_per_s,
        "q3_per_s": rate.q3_per_s,
        "spread": rate.timing.spread,
        "n": rate.n,
        "noisy": rate.noisy,
        "noisy_because": rate.timing.noisy_because,
    }


def to_text(result: dict) -> str:
    threads = f", {result['threads']} threads" if result["device"] == "cpu" else ""
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [f"{result['device']} ({result['device_name']}), {result['dtype']}{threads}; {versions}"]
    for label, kind, unit, size in (
        ("compute", "gemm", "TFLOP/s", 1e12),
        ("bandwidth", "read", "GB/s", 1e9),
    ):
        best = result[kind]
        shown = (best[key] for key in ("per_s", "q1_per_s", "q3_per_s", "n", "kernel"))
        noisy = f"  NOISY: {best['noisy_because']}" if best["noisy"] else ""
        lines.append(rate_line(label, unit, size, *shown) + noisy)
    lines.append(f"ridge      {result['ridge_flops_per_byte']:9.2f} FLOP per byte")
    return "\n".join(lines)
