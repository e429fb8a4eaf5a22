"""Is the engine near this machine's ceilings, and is it faster than transformers? Run by ``make bench``.

Every number is a ratio of two things timed in turn, in pairs (`helpers.measure.paired`): the engine beside the fastest
plain kernel of this machine, and transformers beside the engine, on the same weights and threads. So what slows the
machine for a while slows both. Written to ``build/bench.json`` with all medians, spreads and the machine.

A result is for this machine, fp32 on its CPU, one sequence; run it with nothing else running.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from helpers.accounts import Model, kv_bytes, prefill_flops, weights_read_bytes
from helpers.engine import (
    Decoder,
    decode_runner,
    free_bytes,
    load_smollm2,
    prefill_runner,
    random_decoder,
    smollm2_folder,
)
from helpers.engine.decoder import attend
from helpers.engine.linear import Linear
from helpers.measure import Interval, Paired, machine, paired, time_call
from helpers.measure.ceilings import Kernel, gemm_kernels, read_kernels

PROMPT_TOKENS = 512
CONTEXT = 256
"""Tokens in the cache, the new one included, while decode is timed."""

TARGETS = {
    "prefill_of_ceiling": 0.85,
    "prefill_of_ceiling_1b": 0.85,
    "decode_of_ceiling": 0.50,
    "decode_of_ceiling_1b": 0.75,
    "decode_speedup_vs_transformers": 1.5,
    "prefill_speedup_vs_transformers": 1.0,
}

Call = Callable[[], object]


def fastest(kernels: Iterable[Kernel], seconds: float) -> Kernel:
    """The kernel with most work per second; each is timed for up to `seconds`. Its minimum is compared: the
    undisturbed speed of a call decides which kernel is the ceiling, the pairs then measure it."""
    best, best_rate = None, 0.0
    for kernel in kernels:
        rate = kernel.work / time_call(kernel.call, dtype="fp32", max_seconds=seconds, target_spread=0.02).min_s
        say(f"  {kernel.name}: {rate / 1e9:.1f} G/s")
        if rate > best_rate:
            best, best_rate = kernel, rate
    return best


def reference_calls() -> tuple[Call, Call]:
    """transformers' prefill and decode step, logits of the last token only, on the same weights."""
    from transformers import AutoModelForCausalLM, DynamicCache

    model = AutoModelForCausalLM.from_pretrained(smollm2_folder(), dtype=torch.float32).eval()
    prompt = torch.randint(model.config.vocab_size, (1, PROMPT_TOKENS))
    cache, token = DynamicCache(), prompt[:, :1]
    with torch.inference_mode():
        # The cache goes by position, its name differs between versions.
        model(prompt[:, : CONTEXT - 1], None, None, cache, logits_to_keep=1)

    @torch.inference_mode()
    def prefill() -> torch.Tensor:
        return model(prompt, None, None, DynamicCache(), logits_to_keep=1).logits

    @torch.inference_mode()
    def decode() -> torch.Tensor:
        logits = model(token, None, None, cache, logits_to_keep=1).logits
        cache.crop(-1)
        return logits

    return prefill, decode


def prefill_kernels(decoder: Decoder) -> Call:
    """The matrix products of a prefill, stored and written as by this decoder, and its attention; nothing between them.

    It tells how much of the distance to the ceiling is these kernels' own. Another layout or kernel may do better.
    """
    shape = decoder.model.layers[0].attention
    rows = {linear.inputs: torch.randn(PROMPT_TOKENS, linear.inputs) for linear in matrices(decoder)}
    queries = torch.randn(1, PROMPT_TOKENS, shape.heads, shape.head_dim)
    keys, values = torch.randn(2, 1, shape.kv_heads, PROMPT_TOKENS, shape.head_dim)

    def call() -> None:
        for block in decoder.layers:
            for linear in (block.qkv, block.output, block.down):
                linear(rows[linear.inputs])
            block.gate_up(rows[block.gate_up.inputs], by_output=True)
            attend(queries, keys, values, None, True, "fused")

    return call


def matrices(decoder: Decoder) -> list[Linear]:
    """The matrices of all layers."""
    return [m for block in decoder.layers for m in (block.qkv, block.output, block.gate_up, block.down)]


def decode_bytes(model: Model) -> float:
    """What the accounts say a decode step reads: the weights once, and the KV cache with the new token."""
    return weights_read_bytes(model, 1, "fp32") + kv_bytes(model, CONTEXT, "fp32")


def share_of_ceiling(name: str, work: float, call: Call, kernel: Kernel, seconds: float) -> dict:
    """(work ÷ seconds of the engine) over (work ÷ seconds of the kernel), timed in pairs."""
    say(f"{name}: in turn with {kernel.name}")
    pairs = paired(kernel.call, call, dtype="fp32", max_seconds=seconds, max_pairs=60)
    report = describe(name, pairs, scale=work / kernel.work)
    return report | {
        "ceiling_kernel": kernel.name,
        "ceiling_per_s": kernel.work / pairs.a.median_s,
        "achieved_per_s": work / pairs.b.median_s,
        "work": work,
    }


def speedup(name: str, reference: Call, call: Call, seconds: float) -> dict:
    """Seconds of transformers over seconds of the engine, timed in pairs."""
    say(f"{name}: in turn with transformers")
    return describe(name, paired(reference, call, dtype="fp32", max_seconds=seconds, max_pairs=60), scale=1.0)


def describe(name: str, pairs: Paired, scale: float) -> dict:
    """What the pairs say about `scale` · a ÷ b, and whether its interval lies above the target."""
    interval: Interval = pairs.interval()
    target = TARGETS.get(name)
    return {
        "name": name,
        "value": scale * pairs.ratio,
        "low": scale * interval.low,
        "high": scale * interval.high,
        "target": target,
        "reached": "no target" if target is None else pairs.says(at_least=target / scale),
        "engine_median_s": pairs.b.median_s,
        "engine_iqr_s": pairs.b.iqr_s,
        "other_median_s": pairs.a.median_s,
        "other_iqr_s": pairs.a.iqr_s,
        "n": pairs.n,
    }


def measure(seconds: float, with_1b: bool) -> list[dict]:
    """All results, each timed for up to `seconds`."""
    say("ceilings")
    gemm, read = fastest(gemm_kernels(), seconds / 10), fastest(read_kernels(quick=False), seconds / 10)
    decoder = load_smollm2()
    prefill, decode = prefill_runner(decoder)(PROMPT_TOKENS), decode_runner(decoder)(CONTEXT, 1)
    flops = prefill_flops(decoder.model, PROMPT_TOKENS).total
    results = [
        share_of_ceiling("prefill_of_ceiling", flops, prefill, gemm, seconds),
        share_of_ceiling("prefill_kernels_of_ceiling", flops, prefill_kernels(decoder), gemm, seconds),
        share_of_ceiling("decode_of_ceiling", decode_bytes(decoder.model), decode, read, seconds),
    ]
    reference_prefill, reference_decode = reference_calls()
    results += [
        speedup("decode_speedup_vs_transformers", reference_decode, decode, seconds),
        speedup("prefill_speedup_vs_transformers", reference_prefill, prefill, seconds),
    ]
    del decoder, prefill, decode, reference_prefill, reference_decode
    free = free_bytes("cpu")
    if not with_1b or (free is not None and free < 7e9):
        say("the Llama-3.2-1B shape: left out" + ("" if not with_1b else ", it needs 7 GB of free memory"))
        return results
    say("random weights in the shape of Llama-3.2-1B, 5 GB")
    large = random_decoder("llama-3.2-1b")
    prefill, decode = prefill_runner(large)(PROMPT_TOKENS), decode_runner(large)(CONTEXT, 1)
    flops = prefill_flops(large.model, PROMPT_TOKENS).total
    return [
        *results,
        share_of_ceiling("decode_of_ceiling_1b", decode_bytes(large.model), decode, read, seconds),
        # Some ten seconds a prefill: it takes more time than the others to repeat.
        share_of_ceiling("prefill_of_ceiling_1b", flops, prefill, gemm, 4 * seconds),
    ]


def table(results: list[dict]) -> str:
    """The results for people."""
    lines = [
        f"{'':34}{'value':>8}{'95 % interval':>18}{'target':>8}  {'reached':18}{'engine':>11}{'other':>11}{'n':>4}"
    ]
    for r in results:
        interval = f"{r['low']:.2f} to {r['high']:.2f}"
        target = "" if r["target"] is None else f"{r['target']:.2f}"
        engine, other = f"{r['engine_median_s'] * 1e3:.1f} ms", f"{r['other_median_s'] * 1e3:.1f} ms"
        lines.append(
            f"{r['name']:34}{r['value']:8.2f}{interval:>18}{target:>8}  {r['reached']:18}"
            f"{engine:>11}{other:>11}{r['n']:4}"
        )
    return "\n".join(lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="time for each result")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    parser.add_argument("--no-1b", action="store_true", help="leave out the Llama-3.2-1B shape, which takes 5 GB")
    parser.add_argument("--out", type=Path, default=Path("build/bench.json"))
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    with torch.inference_mode():
        results = measure(args.seconds, not args.no_1b)
    report = {r["name"]: r["value"] for r in results} | {
        "results": results,
        "dtype": "fp32",
        "prompt_tokens": PROMPT_TOKENS,
        "context": CONTEXT,
        "machine": dataclasses.asdict(machine()),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(machine().to_text())
    print(table(results))


if __name__ == "__main__":
    main()
