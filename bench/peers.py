"""Whose TTFT and TPOT are nearest to the truth: this client, guidellm, aiperf, or the openai SDK timed by hand?

Run by ``make bench-peers``. One server, in a process of its own, answers every tool alike and logs when it truly
sent each event; the tools take turns at 1, 16 and 64 streams, each in a process and an environment of its own
under ``build/peers``. What is compared is the median over a run's requests: the tool's against the server's, so
the error holds all that the tool and this machine add. Written to ``build/bench-peers.json``.

What it does not prove: the way through a network, and servers of another habit. A busy machine makes every tool
late, so take turns mean little without a quiet one; `server_late_ms` says how late the server itself was.
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.measure import machine  # noqa: E402
from tests.measure.replay_server import PlantedModel, ReplayProcess, Script, Served  # noqa: E402

BUILD = ROOT / "build" / "peers"
PEERS = {"openai": "openai==3.57.0", "guidellm": "guidellm==0.8.1", "aiperf": "aiperf==0.13.0"}
STREAMS = (1, 16, 64)
OUTPUT_TOKENS, PROMPT_TOKENS = 32, 64
TTFT_S, TPOT_S = 0.150, 0.020
RUN_TIMEOUT_S = 180

TRUTH_KNOWN_TO_MS = 0.01
"""The server's stamp beside its send is no truer than this: smaller errors count as this much in a ratio."""


@dataclass
class BenchModel(PlantedModel):
    """The planted model with what the tools ask beside completions: health, models, content in parts."""

    ttft_s: float = TTFT_S
    tpot_s: float = TPOT_S

    def __call__(self, path: str, body: dict) -> Script:
        if not body:
            answer = json.dumps({"object": "list", "data": [{"id": "planted", "object": "model"}]}).encode()
            return Script([(0.0, answer)], 0.0, 200, "application/json", framing="length")
        return super().__call__(path, body)

    def prompt_tokens(self, body: dict) -> int:
        return len(json.dumps(body.get("messages") or body.get("prompt") or "").split())


OPENAI_SCRIPT = """
import asyncio, json, sys, time
from openai import AsyncOpenAI

async def one(client, i):
    start, stamps, tokens = time.perf_counter(), [], None
    stream = await client.chat.completions.create(
        model="planted", messages=[{"role": "user", "content": f"{i} " + "word " * PROMPT}], max_tokens=OUTPUT,
        stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            stamps.append(time.perf_counter())
        if chunk.usage:
            tokens = chunk.usage.completion_tokens
    return [(stamps[0] - start) * 1e3, (stamps[-1] - stamps[0]) / (tokens - 1) * 1e3]

async def main(url, streams, requests):
    client = AsyncOpenAI(base_url=url, api_key="none")
    await one(client, -1)
    left = iter(range(requests))
    results = []
    async def worker():
        for i in left:
            results.append(await one(client, i))
    await asyncio.gather(*[worker() for _ in range(streams)])
    print(json.dumps(results))

asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="How near to the truth are four clients on one server?")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every tool (3)")
    parser.add_argument("--only", nargs="*", choices=("ours", *PEERS), help="these tools only")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench-peers.json")
    args = parser.parse_args()
    tools = args.only or ["ours", *PEERS]
    for name in tools:
        if name in PEERS:
            install(name)
    prepare()
    runs = []
    with ReplayProcess({}, BenchModel()) as server:
        for streams in STREAMS:
            for turn in range(args.rounds):
                # Another one begins each time, so that none has always the fresh or the warm machine.
                for name in tools[turn % len(tools) :] + tools[: turn % len(tools)]:
                    runs.append(one_run(name, streams, server))
                    say(f"{streams:>3} streams, turn {turn + 1}: {runs[-1]}")
    result = {
        "machine": dataclasses.asdict(machine()),
        "versions": PEERS,
        "planted": {"ttft_ms": TTFT_S * 1e3, "tpot_ms": TPOT_S * 1e3, "output_tokens": OUTPUT_TOKENS},
        "summary": summary(runs, tools),
        "runs": runs,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    say(to_text(result["summary"]))
    say(f"written to {args.out}")


def install(name: str) -> None:
    """The peer in an environment of its own, once."""
    folder = BUILD / name
    if not (folder / "installed").exists():
        say(f"installing {PEERS[name]} into {folder}")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", PEERS[name]], check=True)
        (folder / "installed").touch()


def prepare() -> None:
    """What the tools read: the SDK's script, and a tokenizer, on which two of them insist."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    BUILD.mkdir(parents=True, exist_ok=True)
    script = OPENAI_SCRIPT.replace("PROMPT", str(PROMPT_TOKENS)).replace("OUTPUT", str(OUTPUT_TOKENS))
    (BUILD / "by_hand.py").write_text(script)
    folder = BUILD / "tokenizer"
    folder.mkdir(exist_ok=True)
    tokenizer = Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


def one_run(name: str, streams: int, server: ReplayProcess) -> dict:
    """One run of one tool: its medians, the server's, and how late the server was."""
    requests = max(8, 3 * streams)
    _ = server.served
    begun = time.monotonic()
    try:
        ttft_ms, tpot_ms = RUNNERS[name](server.base_url, streams, requests)
    except (subprocess.SubprocessError, OSError, KeyError, ValueError, IndexError, TypeError) as error:
        return {"tool": name, "streams": streams, "failed": f"{type(error).__name__}: {error}"[:500]}
    truth = [times(one) for one in server.served if one.request.get("stream") and len(one.sent_ns) > OUTPUT_TOKENS]
    true_ttft, true_tpot, late = (statistics.median(column) for column in zip(*truth, strict=True))
    return {
        "tool": name,
        "streams": streams,
        "requests_seen": len(truth),
        "ttft_ms": ttft_ms,
        "true_ttft_ms": true_ttft,
        "ttft_error_ms": ttft_ms - true_ttft,
        "tpot_ms": tpot_ms,
        "true_tpot_ms": true_tpot,
        "tpot_error_ms": tpot_ms - true_tpot,
        "server_late_ms": late,
        "seconds": time.monotonic() - begun,
    }


def times(served: Served) -> tuple[float, float, float]:
    """TTFT and TPOT as the server sent them, and its own lateness; write 0 is the opening event, the last the end."""
    first, last = served.sent_ns[1][1], served.sent_ns[OUTPUT_TOKENS][1]
    return (first - served.received_ns) / 1e6, (last - first) / 1e6 / (OUTPUT_TOKENS - 1), served.lateness_ms


def run_ours(url: str, streams: int, requests: int) -> tuple[float, float]:
    lengths = ["--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS), "--warmup", "1"]
    load = ["--concurrency", str(streams), "--requests", str(requests)]
    command = [sys.executable, "-m", "helpers", "measure", "--base-url", url, "--model", "planted", *load, *lengths]
    result = json.loads(output([*command, "--json"]))
    return result["ttft_ms"]["p50"], result["tpot_ms"]["p50"]


def run_openai(url: str, streams: int, requests: int) -> tuple[float, float]:
    python = str(BUILD / "openai" / "bin" / "python")
    rows = json.loads(output([python, str(BUILD / "by_hand.py"), url, str(streams), str(requests)]))
    return tuple(statistics.median(column) for column in zip(*rows, strict=True))


def run_guidellm(url: str, streams: int, requests: int) -> tuple[float, float]:
    """Its "TPOT" holds TTFT; what others call TPOT is its inter-token latency, which is taken here."""
    out = BUILD / "guidellm.json"
    out.unlink(missing_ok=True)
    command = [str(BUILD / "guidellm" / "bin" / "guidellm"), "run"]
    command += ["--backend", f"kind=openai_http,target={url.removesuffix('/v1')},model=planted"]
    command += ["--profile", f"kind=concurrent,streams={streams}"]
    command += ["--constraint", f"kind=max_requests,count={requests}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={BUILD / 'tokenizer'}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"]
    command += ["--output", f"kind=json,path={out}", "--disable-progress"]
    output(command, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    metrics = json.loads(out.read_text())["benchmarks"][0]["metrics"]
    found = [
        metrics[key]["successful"]["percentiles"]["p50"] for key in ("time_to_first_token_ms", "inter_token_latency_ms")
    ]
    return found[0], found[1]


def run_aiperf(url: str, streams: int, requests: int) -> tuple[float, float]:
    """Its inter-token latency is what others call TPOT."""
    folder = BUILD / "aiperf-out"
    shutil.rmtree(folder, ignore_errors=True)
    command = [str(BUILD / "aiperf" / "bin" / "aiperf"), "profile", "--model", "planted"]
    command += ["--tokenizer", str(BUILD / "tokenizer")]
    command += ["--url", url.removesuffix("/v1"), "--endpoint-type", "chat", "--streaming"]
    command += ["--concurrency", str(streams), "--request-count", str(requests), "--use-legacy-max-tokens"]
    command += ["--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"]
    output([*command, "--use-server-token-count", "--ui", "none", "--artifact-dir", str(folder)])
    (found,) = folder.rglob("profile_export_aiperf.json")
    metrics = json.loads(found.read_text())
    return metrics["time_to_first_token"]["p50"], metrics["inter_token_latency"]["p50"]


RUNNERS = {"ours": run_ours, "openai": run_openai, "guidellm": run_guidellm, "aiperf": run_aiperf}


def output(command: list[str], **environment: str) -> str:
    """What a command prints; its last lines where it fails."""
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=RUN_TIMEOUT_S
    )
    if done.returncode:
        raise ValueError(f"exit code {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
    return done.stdout


def summary(runs: list[dict], tools: list[str]) -> list[dict]:
    """Per number of streams and tool: the median over the turns of the size of its error, and how many times ours."""
    rows = []
    for streams in STREAMS:
        errors = {}
        for name in tools:
            sound = [r for r in runs if r["tool"] == name and r["streams"] == streams and "failed" not in r]
            if sound:
                errors[name] = {
                    key: statistics.median(abs(r[key]) for r in sound) for key in ("ttft_error_ms", "tpot_error_ms")
                }
                errors[name]["server_late_ms"] = statistics.median(r["server_late_ms"] for r in sound)
        for name, found in errors.items():
            row = {"streams": streams, "tool": name, **found}
            for key in ("ttft_error_ms", "tpot_error_ms"):
                ours = errors.get("ours", {}).get(key)
                row[key.replace("error_ms", "times_ours")] = None if ours is None else times_ours(found[key], ours)
            rows.append(row)
    return rows


def times_ours(error_ms: float, ours_ms: float) -> float:
    """How many times ours an error is, where both can be told from the truth."""
    return max(error_ms, TRUTH_KNOWN_TO_MS) / max(ours_ms, TRUTH_KNOWN_TO_MS)


def to_text(rows: list[dict]) -> str:
    """The summary as a table."""
    lines = [f"{'streams':>7}  {'tool':<10}{'TTFT error ms':>14}{'× ours':>9}{'TPOT error ms':>15}{'× ours':>9}"]
    for row in rows:
        shown = ["" if row[k] is None else f"{row[k]:.1f}" for k in ("ttft_times_ours", "tpot_times_ours")]
        lines.append(
            f"{row['streams']:>7}  {row['tool']:<10}{row['ttft_error_ms']:>14.3f}{shown[0]:>9}"
            f"{row['tpot_error_ms']:>15.4f}{shown[1]:>9}"
        )
    lines.append(f"In the ratios an error below {TRUTH_KNOWN_TO_MS} ms counts as that: the truth is not known better.")
    return "\n".join(lines)


def say(line: str) -> None:
    print(f"bench-peers: {line}" if "\n" not in line else line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
