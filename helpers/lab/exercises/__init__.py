"""The exercises: one module `labNN` for each lab, each with a tuple `EXERCISES`."""

import importlib
import importlib.util
import pkgutil
import re

from helpers.errors import InputError
from helpers.lab.exercise import Exercise


def labs() -> tuple[str, ...]:
    """The numbers of the labs that have exercises, in order: ("01", "02")."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name[3:] for name in names if re.fullmatch(r"lab\d\d", name)))


def exercises_of(lab: str) -> tuple[Exercise, ...]:
    """The exercises of one lab ("01"), in order; InputError for a lab that does not exist."""
    if lab not in labs():
        raise InputError(f"there is no lab {lab!r}; the labs are {', '.join(labs())}")
    return importlib.import_module(f"{__name__}.lab{lab}").EXERCISES


def find(exercise_id: str) -> Exercise:
    """The exercise with this id ("1.3"); InputError naming the id when there is none."""
    for lab in labs():
        for exercise in exercises_of(lab):
            if exercise.id == exercise_id:
                return exercise
    raise InputError(f"there is no exercise {exercise_id!r}")
