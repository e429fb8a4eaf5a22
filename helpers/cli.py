"""The command line: ``python -m helpers COMMAND``, also installed as ``inference-lab``.

Each command is one module of ``helpers.commands`` with four names:

``EXAMPLE``                 a command line that works as written, shown by ``--help``
``add_arguments(parser)``   declares its options
``run(args) -> dict``       does the work; the dict is the JSON object of ``--json``
``to_text(result) -> str``  the same result for people

and, where success is not all or nothing, ``exit_code(result) -> int``. The first sentence
of the module's docstring is its help. Heavy imports (torch) belong inside ``run``.
"""

import argparse
import errno
import importlib
import json
import os
import sys
from collections.abc import Iterable

from helpers import __version__
from helpers.errors import InputError

COMMANDS = ("account", "ceilings", "claim", "doctor", "judge", "measure", "record", "serve", "skew")


class _Parser(argparse.ArgumentParser):
    """argparse that keeps the contract: bad input is one line ``error: …`` and exit code 2."""

    def error(self, message: str) -> None:
        # argparse repeats unknown arguments as they are, line breaks included.
        print(f"error: {' '.join(message.split())} (see `{self.prog} --help`)", file=sys.stderr)
        sys.exit(2)


def build_parser(commands: Iterable[str] | None = None) -> argparse.ArgumentParser:
    """The parser with `commands` (default: all of `COMMANDS`) as subcommands."""
    parser = _Parser(prog="python -m helpers", description="Inference engineering: accounts and measurements.")
    parser.add_argument("--version", action="version", version=f"inference-lab {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name in COMMANDS if commands is None else commands:
        module = importlib.import_module(f"helpers.commands.{name}")
        summary = module.__doc__.strip().split("\n\n")[0].replace("\n", " ")
        sub = subparsers.add_parser(
            name,
            help=summary,
            description=summary,
            epilog=f"example:\n  {module.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object on stdout")
        sub.set_defaults(module=module)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (0 success, 2 bad input, 70 our fault, 74 stdout takes nothing)."""
    argv = sys.argv[1:] if argv is None else argv
    # Only the command asked for is imported: `doctor` must work where another one is broken.
    args = build_parser([name for name in COMMANDS if argv[:1] == [name]] or None).parse_args(argv)
    try:
        result = args.module.run(args)
        text = json.dumps(result, allow_nan=False) if args.json else args.module.to_text(result)
    except InputError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("INFERENCE_LAB_DEBUG"):
            raise
        print(
            f"error: internal fault, please report it: {type(error).__name__}: {' '.join(str(error).split())} "
            "(INFERENCE_LAB_DEBUG=1 shows where)",
            file=sys.stderr,
        )
        return 70
    try:
        _print_whole(text)
    except BrokenPipeError:
        # `… | head` closed the pipe, which is no error.
        _silence_stdout()
    except OSError as error:
        print(f"error: the result could not be written to stdout ({error.strerror or error})", file=sys.stderr)
        _silence_stdout()
        return 74
    return getattr(args.module, "exit_code", lambda _: 0)(result)


def _print_whole(text: str) -> None:
    """Print `text` on stdout, all of it or OSError; a stdout that is not UTF-8 shows ``?`` for what it lacks."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed")
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), flush=True)


def _silence_stdout() -> None:
    """Keep the interpreter's own flush at exit from complaining about what could not be written."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
