"""What a claimed improvement ("ten times in a year") leaves open: the conditions without which its number says nothing.

Conditions are taken from their options alone; nothing is read out of the statement.
"""

import argparse
from typing import Any

from helpers.accounts.claim import CONDITIONS, ImprovementClaim, claimed_factor, missing_conditions
from helpers.errors import InputError

EXAMPLE = 'python -m helpers claim "ten times as capable in a year" --factor 10 --parameters "the same"'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``claim``."""
    parser.add_argument("statement", metavar="STATEMENT", help="the claim, in its own words")
    parser.add_argument("--factor", type=float, required=True, metavar="N", help="how many times better it says")
    for name, question in CONDITIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", dest=name, metavar="TEXT", help=question)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """The conditions of the claim, those that are missing, and its factor: null until none is missing."""
    if not args.statement.strip():
        raise InputError("STATEMENT is empty: there is no claim to ask about")
    stated = {name: (getattr(args, name) or "").strip() or None for name in CONDITIONS}
    claim = ImprovementClaim(args.statement, args.factor, **stated)
    # Checked as if no condition were missing: a bad factor is bad input in any case.
    factor = claimed_factor(ImprovementClaim(args.statement, args.factor, **dict.fromkeys(CONDITIONS, "stated")))
    missing = missing_conditions(claim)
    return {
        "statement": args.statement,
        "complete": not missing,
        "factor": None if missing else factor,
        "missing": list(missing),
        "questions": {name: CONDITIONS[name] for name in missing},
        "conditions": stated,
    }


def to_text(result: dict[str, Any]) -> str:
    """The claim with its number where it is complete, else the questions it leaves open."""
    given = [f"  {name.replace('_', ' '):15} {text}" for name, text in result["conditions"].items() if text]
    if result["complete"]:
        head = f"{result['statement']}: {result['factor']:g} times, on these conditions"
        return "\n".join([head, *given, "Complete is not true: it can now be checked."])
    count = len(result["missing"])
    lines = [f"No number from {result['statement']!r}: {count} of {len(CONDITIONS)} conditions are missing. Ask:"]
    lines += [f"  {name.replace('_', ' '):15} {question}" for name, question in result["questions"].items()]
    return "\n".join([*lines, "Given:", *given] if given else lines)
