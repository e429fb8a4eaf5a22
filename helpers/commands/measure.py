"""Measure TTFT and TPOT of an OpenAI-compatible endpoint under a stated load, or again out of a stored log."""

import argparse
import dataclasses
import sys
from pathlib import Path

from helpers.errors import InputError
from helpers.measure.arrivals import Arrivals, ClosedLoop, OpenLoop, read_trace
from helpers.measure.client import CHAT, COMPLETIONS
from helpers.measure.endpoint import key_from, parse_endpoint
from helpers.measure.load import Plan, measure_load
from helpers.measure.machine import machine
from helpers.measure.record import check_target
from helpers.measure.replay import load_log, save_log
from helpers.measure.results import report, summarize

EXAMPLE = "python -m helpers measure --base-url http://127.0.0.1:8000/v1 --model NAME --concurrency 4"

DEFAULT_REQUESTS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--base-url", metavar="URL", help="as the openai client takes it, ending in /v1")
    parser.add_argument("--model", metavar="NAME", help="the model's name at the server")
    load = parser.add_mutually_exclusive_group()
    load.add_argument("--concurrency", type=int, metavar="N", help="closed loop: requests under way at once (1)")
    load.add_argument("--rate", type=float, metavar="R", help="open loop: Poisson arrivals, requests per second")
    load.add_argument("--trace", metavar="FILE", help="open loop: arrival times and lengths of a CSV or JSONL file")
    parser.add_argument("--requests", type=int, metavar="N", help=f"requests to measure ({DEFAULT_REQUESTS})")
    add_request_arguments(parser)
    parser.add_argument("--continuous-usage", action="store_true", help="ask for token counts per event (vLLM)")
    parser.add_argument("--log", metavar="FILE", help="keep every byte and time; never overwritten")
    parser.add_argument("--replay", metavar="LOG", help="send nothing: compute the numbers of a log again")


def add_request_arguments(parser: argparse._ActionsContainer) -> None:
    """Options that say what each request is and how it is sent: those of `measure` and `judge`."""
    parser.add_argument("--prompt-tokens", type=int, default=256, metavar="N", help="input length (256)")
    parser.add_argument("--output-tokens", type=int, default=64, metavar="N", help="output length (64)")
    parser.add_argument("--warmup", type=int, default=2, metavar="N", help="requests before, not measured (2)")
    parser.add_argument("--seed", type=int, default=0, help="of the Poisson arrivals (0)")
    parser.add_argument("--endpoint", choices=("chat", "completions"), default="chat", help="which path (chat)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="sampling temperature (0)")
    parser.add_argument("--no-ignore-eos", action="store_true", help="let outputs end early")
    parser.add_argument("--key-variable", metavar="VAR", help="environment variable that holds the key")
    parser.add_argument("--ca-file", metavar="FILE", help="certificate authority of an https server")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="seconds per request (600)")
    parser.add_argument("--yes", action="store_true", help="send to another machine than this one")


def run(args: argparse.Namespace) -> dict:
    if args.replay is not None:
        if any(value is not None for value in (args.base_url, args.concurrency, args.rate, args.trace, args.log)):
            raise InputError("--replay sends nothing: it takes no URL, no load and no log to write")
        return summarize(load_log(args.replay)).as_json()
    for option in ("base_url", "model"):
        if not getattr(args, option):
            raise InputError(f"--{option.replace('_', '-')} is missing")
    if args.log is not None:
        if Path(args.log).exists():
            raise InputError(f"--log {args.log} exists already, and a log is never overwritten")
        check_target(args.log)
    plan = plan_of(args)
    key_from(args.key_variable)
    announce(plan, args.yes)
    done = measure_load(
        plan, key_variable=args.key_variable, ca_file=args.ca_file, timeout_s=args.timeout, progress=progress
    )
    if args.log is not None:
        save_log(done, args.log, dataclasses.asdict(machine()))
        progress(f"log written to {args.log}")
    return summarize(done).as_json()


def plan_of(args: argparse.Namespace) -> Plan:
    """The plan of the options."""
    arrivals = arrivals_of(args)
    requests = args.requests
    if requests is None:
        requests = len(arrivals.arrivals) if args.trace is not None else DEFAULT_REQUESTS
    return Plan(
        base_url=args.base_url,
        model=args.model,
        arrivals=arrivals,
        requests=requests,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        warmup=args.warmup,
        path=CHAT if args.endpoint == "chat" else COMPLETIONS,
        temperature=args.temperature,
        ignore_eos=not args.no_ignore_eos,
        continuous_usage=args.continuous_usage,
    )


def arrivals_of(args: argparse.Namespace) -> Arrivals:
    if args.trace is not None:
        return read_trace(args.trace, args.requests)
    if args.rate is not None:
        return OpenLoop(args.rate, args.seed)
    return ClosedLoop(1 if args.concurrency is None else args.concurrency)


def announce(plan: Plan, yes: bool) -> None:
    """Say what will be sent; refuse to send it to another machine without a yes."""
    requests, prompt, output = plan.most_sent()
    will = f"up to {requests} requests with {prompt} prompt tokens and {output} output tokens to {plan.base_url}"
    if not parse_endpoint(plan.base_url).loopback and not yes:
        raise InputError(f"this would send {will}, which may cost money: add --yes to do it")
    progress(f"sending {will}")


def progress(line: str) -> None:
    print(f"measure: {line}", file=sys.stderr, flush=True)


def to_text(result: dict) -> str:
    return report(result)


def exit_code(result: dict) -> int:
    """1 where not one request was sound: a result without a latency is no success."""
    return 1 if result["errors"]["total"] == result["errors"]["of"] else 0
