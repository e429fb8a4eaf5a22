"""Observations that were recorded once and travel with the course, to be judged the same on every machine."""

from pathlib import Path

from helpers.accounts.observation import Observation
from helpers.errors import InputError
from helpers.measure.observe import read_observation

FOLDER = Path(__file__).resolve().parents[1] / "data" / "observations"


def recorded_observation(name: str) -> Observation:
    """The recorded observation `name`, such as "capped"; its notes say where and how. InputError for an unknown one."""
    known = sorted(path.stem for path in FOLDER.glob("*.json"))
    if name not in known:
        raise InputError(f"no observation {name!r} is recorded; there are {', '.join(known)}")
    return read_observation(FOLDER / f"{name}.json")
