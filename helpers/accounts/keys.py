"""Reading the keys of one config object strictly: every value checked, every key accounted for."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from helpers.errors import InputError

# Larger than any model by orders of magnitude: beyond it a value is a slip, not a size.
LARGEST_SIZE = 10**9
_REQUIRED = object()


class Keys:
    """The keys of one JSON object; remembers which were read, so that an unread one can be refused by name.

    `defaults` are those of the transformers configuration class of the model_type; a default that is taken is
    recorded in `defaulted`. `where` names the object in messages.
    """

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None):
        self.values = values
        self.where = " ".join(where.split())[:200]
        self.defaults = defaults or {}
        self.read: set[str] = set()
        self.defaulted: dict[str, Any] = {}

    def refuse(self, key: str, why: str) -> InputError:
        """An InputError that names `key` and the object it stands in."""
        return InputError(f"{self.where}: key {_short(key)} {why}")

    def raw(self, key: str) -> Any:
        """The value as it stands; a missing key takes the class default, or is refused where there is none."""
        self.read.add(key)
        if key in self.values:
            return self.values[key]
        if key in self.defaults:
            self.defaulted[key] = self.defaults[key]
            return self.defaults[key]
        raise self.refuse(key, "is missing")

    def size(self, key: str, *, smallest: int = 1, largest: int = LARGEST_SIZE) -> int:
        """A whole number from `smallest` to `largest`."""
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(key, f"must be a whole number, not {_short(value)}")
        if not smallest <= value <= largest:
            raise self.refuse(key, f"must lie between {smallest:,} and {largest:,}, not {_short(value)}")
        return value

    def size_or_none(self, key: str) -> int | None:
        """A positive whole number, or None where the key is null."""
        return None if self.raw(key) is None else self.size(key)

    def flag(self, key: str) -> bool:
        """true or false."""
        value = self.raw(key)
        if not isinstance(value, bool):
            raise self.refuse(key, f"must be true or false, not {_short(value)}")
        return value

    def positive_number(self, key: str) -> float:
        """A finite number above zero."""
        value = self.raw(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
            raise self.refuse(key, f"must be a number above zero, not {_short(value)}")
        return float(value)

    def text(self, key: str) -> str:
        """A string."""
        value = self.raw(key)
        if not isinstance(value, str):
            raise self.refuse(key, f"must be a string, not {_short(value)}")
        return value

    def object(self, key: str) -> dict[str, Any]:
        """A JSON object."""
        value = self.raw(key)
        if not isinstance(value, dict):
            raise self.refuse(key, f"must be an object, not {_short(value)}")
        return value

    def one_of(self, key: str, allowed: Iterable[Any], why: str) -> None:
        """Nothing where the key is absent or its value is in `allowed`; refused with `why` otherwise."""
        self.read.add(key)
        if key not in self.values:
            return
        value = self.values[key]
        # Compared with the type, so that neither 0 for false nor 1.0 for 1 passes as the same thing.
        if not any(type(value) is type(other) and value == other for other in allowed):
            raise self.refuse(key, f"is {_short(value)}, {why}")

    def same_as(self, key: str, other: str, value: Any) -> None:
        """Refuses a `key` that is present and contradicts the value of `other`."""
        self.one_of(key, [value], f"which contradicts {other} ({_short(value)})")

    def alias(self, *names: str) -> str:
        """The one of `names` that is present (all present must agree); the first where none is."""
        present = [name for name in names if name in self.values]
        for name in present[1:]:
            self.same_as(name, present[0], self.values[present[0]])
        return present[0] if present else names[0]

    def ignore(self, keys: Iterable[str]) -> None:
        """Keys known to change neither parameters, nor cache, nor FLOPs: read, whatever they hold."""
        self.read.update(keys)

    def refuse_unread(self) -> None:
        """Refuses the first key that nothing has read."""
        for key in self.values:
            if key not in self.read:
                raise self.refuse(
                    key,
                    "is not known here and might change the answer (if it does not, name it to --ignore-key)",
                )


def _short(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**18:
        return "a number beyond 10^18"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
