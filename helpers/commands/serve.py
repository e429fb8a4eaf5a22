"""Serve a model on this machine: an OpenAI-compatible server with continuous batching, loopback unless told."""

import argparse
import signal
import sys
import threading
from dataclasses import fields
from pathlib import Path

from helpers.accounts import read_config
from helpers.commands.ceilings import add_device_arguments, chosen_device_and_dtype
from helpers.errors import InputError

EXAMPLE = "python -m helpers serve --model smollm2 --port 8000"

SMOLLM2 = ("smollm2", "smollm2-135m-instruct")
RANDOM = "random:"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        default="smollm2",
        help="smollm2, a folder with safetensors and tokenizer.json, or random:SHAPE for random weights in the shape "
        "of a registry name or config.json, with a tokenizer of one token a byte (default: smollm2)",
    )
    parser.add_argument("--name", help="the model's name in the API (default: as --model says)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; there is no password (loopback)")
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for a free one (default: 8000)")
    parser.add_argument("--max-batch", type=int, help="requests that run together (default: 8)")
    parser.add_argument("--max-queue", type=int, help="requests that may wait; more get 429 (default: 64)")
    parser.add_argument("--prefill-chunk", type=int, help="prompt tokens a step, 0: whole prompts (default: 256)")
    parser.add_argument("--kv-blocks", type=int, help="blocks of KV cache (default: 512)")
    parser.add_argument("--block-tokens", type=int, help="tokens a block (default: 16)")
    parser.add_argument("--kv-dtype", help="bf16, fp16, int8 or fp8 (default: as the decoder's --dtype)")
    parser.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false", default=None)
    parser.add_argument("--speculate", type=int, help="tokens drafted by prompt look-up a step (default: 0)")
    parser.add_argument("--headers", help="early, or first-token: when response headers are sent (default: early)")
    parser.add_argument("--system-prompt", help="system turn of chats that bring none (default: SmolLM2's own)")
    add_device_arguments(parser)


def run(args: argparse.Namespace) -> dict:
    from helpers.serve import running
    from helpers.serve.running import READY, bound

    options = options_of(args)
    device, dtype = chosen_device_and_dtype(args)
    # An address that cannot be had is refused before minutes are spent on weights.
    bound(args.host, args.port).close()
    decoder, tokenizer, name = load(args.model, device, dtype)
    name = args.name or name
    stop = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with running(decoder, tokenizer, options, args.port, args.host, name) as base_url:
            print(f"{READY}{base_url}", file=sys.stderr, flush=True)
            progress(f"model {name!r}, {decoder.device}, {decoder.weight_nbytes} bytes of weights; Ctrl-C ends it")
            # Ctrl-C is how a server is ended, not a failure of the command.
            try:
                stop.wait()
            except KeyboardInterrupt:
                progress("stopping")
    finally:
        signal.signal(signal.SIGTERM, previous)
    return {"base_url": base_url, "model": name, "stopped": True}


def options_of(args: argparse.Namespace):
    """The server's options: those given, and the defaults of `helpers.serve.Options`."""
    from helpers.engine.tokenizer import SMOLLM2_SYSTEM
    from helpers.serve import Options

    given = {field.name: getattr(args, field.name) for field in fields(Options)}
    if args.model in SMOLLM2 and args.system_prompt is None:
        given["system_prompt"] = SMOLLM2_SYSTEM
    return Options(**{name: value for name, value in given.items() if value is not None})


def to_text(result: dict) -> str:
    return f"{result['model']} at {result['base_url']} has stopped"


def load(name: str, device: str, dtype: str):
    """Decoder, tokenizer and API name for what `--model` says."""
    from helpers.engine import Tokenizer, load_folder, random_decoder, smollm2_folder
    from helpers.serve import ByteTokenizer

    if name in SMOLLM2:
        folder = smollm2_folder()
        return load_folder(folder, dtype, device), Tokenizer(folder), SMOLLM2[-1]
    if name.startswith(RANDOM):
        model = read_config(name.removeprefix(RANDOM))
        # A vocabulary that cannot hold the bytes is refused before any weights are made.
        tokenizer = ByteTokenizer(model.vocab_size)
        return random_decoder(model, dtype, device), tokenizer, name
    if Path(name).expanduser().is_dir():
        folder = Path(name).expanduser()
        tokenizer = Tokenizer(folder)
        return load_folder(folder, dtype, device), tokenizer, folder.resolve().name
    raise InputError(f"{name} is neither smollm2, nor a folder, nor random:SHAPE")


def progress(line: str) -> None:
    print(f"serve: {line}", file=sys.stderr, flush=True)
