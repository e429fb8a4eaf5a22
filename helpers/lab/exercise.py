"""What an exercise is: its text, its reference answer, the cases it is checked on, and the mistakes people make."""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from helpers.errors import InputError

RANDOM_CASES = 8
"""How many hidden cases are drawn on top of the written ones, so that a hard-coded answer fails."""


@dataclass(frozen=True)
class Mistake:
    """One wrong answer worth naming: `function` computes it, `message` tells the learner what went wrong."""

    name: str
    function: Callable
    message: str


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab.

    id: "1.3" is exercise 3 of lab 01. `cases` are argument tuples, shown to the learner when they fail;
    `random_case(rng)` draws one more argument tuple. `unit` is that of the result ("bytes", "seconds", "FLOPs");
    "" for one without. `rel_tolerance` is relative; 0 asks for equality. `result` says what to return, where the kind
    of the value ("a list") does not: "a pair (without, with)". `judge(value, *case)`, where many answers are right,
    says what is wrong with one, "" for a right one; without it an answer must equal the reference's.
    """

    id: str
    title: str
    minutes: int
    difficulty: int
    why: str
    hints: tuple[str, ...]
    reference: Callable
    cases: tuple[tuple, ...]
    random_case: Callable[[random.Random], tuple]
    mistakes: tuple[Mistake, ...]
    unit: str = ""
    rel_tolerance: float = 1e-9
    result: str = ""
    judge: Callable[..., str] | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d?\.[1-9]\d?", self.id):
            raise InputError(f"exercise id {self.id!r} is not of the form '1.3'")

    @property
    def lab(self) -> str:
        """The two-digit number of its lab: "01" for "1.3"."""
        return f"{int(self.id.split('.')[0]):02d}"

    @property
    def slug(self) -> str:
        """The start of its cell ids: "exercise-1-3"."""
        return "exercise-" + self.id.replace(".", "-")

    def all_cases(self) -> list[tuple]:
        """The written cases, then the drawn ones; the same on every run, because the seed is the exercise's id."""
        rng = random.Random(self.id)
        return [*self.cases, *(self.random_case(rng) for _ in range(RANDOM_CASES))]

    def header(self) -> str:
        """The Markdown above the exercise: title, minutes, difficulty, why it matters, hints folded away."""
        dots = "●" * self.difficulty + "○" * (5 - self.difficulty)
        hints = "\n".join(
            f"<details><summary>Hint {number}</summary>\n\n{hint}\n\n</details>"
            for number, hint in enumerate(self.hints, 1)
        )
        return (
            f"## Exercise {self.id}: {self.title}\n\n"
            f"**Minutes**: {self.minutes} · **Difficulty**: {dots} ({self.difficulty} of 5)\n\n"
            f"**Why it matters**: {self.why}\n\n{hints}"
        )
