"""Check an exercise where it is written: not done, not yet (with the likely mistake), or correct.

In a lab::

    check.exercise("1.3", kv_bytes_per_token)            # prints one line
    kv_bytes_per_token = check.use("1.3", kv_bytes_per_token)   # yours if correct, else the reference, and says which
    check.summary("01")                                  # a table of the lab

What is printed depends on the learner's function alone, never on time or machine.
"""

import copy
import dataclasses
import inspect
import linecache
import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from helpers.lab.exercise import Exercise
from helpers.lab.exercises import exercises_of, find

NOT_DONE, NOT_YET, CORRECT = "not done", "not yet", "correct"
MAX_WORDS = 4
"""An exercise whose right answers are at most so many different texts is a choice, and any other text a slip."""


@dataclass(frozen=True)
class Result:
    """What a check found: `state` is one of "not done", "not yet", "correct"; `text` is the line it printed."""

    exercise_id: str
    state: str
    text: str

    def __bool__(self) -> bool:
        return self.state == CORRECT

    def _ipython_display_(self) -> None:
        """Nothing: the line was printed, and a notebook should not show it twice."""


_states: dict[str, str] = {}  # exercise id -> state, for `summary`: the learner's progress in this kernel


def exercise(exercise_id: str, function: Callable) -> Result:
    """Check the learner's `function` against exercise `exercise_id`, print one line, and return the `Result`."""
    result = evaluate(find(exercise_id), function)
    _states[exercise_id] = result.state
    print(result.text)
    return result


def use(exercise_id: str, function: Callable) -> Callable:
    """The learner's function where it is correct, otherwise the reference; one printed line says which."""
    definition = find(exercise_id)
    # Run a second time, this cell gets back what it gave: the reference says nothing about the learner.
    if function is definition.reference:
        state = _states.get(exercise_id, NOT_DONE)
    else:
        state = _states[exercise_id] = evaluate(definition, function).state
        if state == CORRECT:
            print(f"Exercise {exercise_id}: from here on your function is used.")
            return function
    print(f"Exercise {exercise_id}: {state}; from here on the reference solution is used in its place.")
    return definition.reference


def summary(lab: str) -> None:
    """Print the exercises of lab `lab` ("01") with the state each had when it was last checked."""
    rows = [(e.id, _states.get(e.id, NOT_DONE), e.minutes, e.title) for e in exercises_of(lab)]
    print(f"Lab {lab}: {sum(state == CORRECT for _, state, _, _ in rows)} of {len(rows)} exercises correct")
    for exercise_id, state, minutes, title in rows:
        print(f"  {exercise_id:<5} {state:<9} {minutes:>3} min  {title}")


def evaluate(definition: Exercise, function: Callable) -> Result:
    """Run `function` on every case of `definition` and say what came of it; prints nothing."""
    state, detail = _judge(definition, function)
    return Result(definition.id, state, f"Exercise {definition.id}: {state}{detail}")


@dataclass(frozen=True)
class _Outcome:
    """What a function did on one case: a value, or the exception it raised."""

    value: Any = None
    error: Exception | None = None


def _judge(definition: Exercise, function: Callable) -> tuple[str, str]:
    if not callable(function):
        return NOT_YET, ". Hand over the function itself, without brackets: " + (
            f'`check.exercise("{definition.id}", {definition.reference.__name__})`.'
        )
    cases = definition.all_cases()
    misfit = _signature_misfit(function, cases[0])
    if misfit:
        return NOT_YET, f". {misfit}"
    outcomes = []
    for case in cases:
        arguments = copy.deepcopy(case)
        outcome = _call(function, arguments)
        if isinstance(outcome.error, NotImplementedError):
            return NOT_DONE, "."
        if not matches(arguments, case, 0):
            return NOT_YET, f". {_call_text(function, case)} changed its own arguments: work on a copy."
        outcomes.append(outcome)
    expected = [_call(definition.reference, copy.deepcopy(case)) for case in cases]
    wrong = [i for i in range(len(cases)) if not _right(outcomes[i], expected[i], definition, cases[i])]
    if not wrong:
        return CORRECT, f" ({len(cases)} cases)." if cases[0] else "."
    first = wrong[0]
    said = f". {_call_text(function, cases[first])} "
    if outcomes[first].error is not None:
        reason = _likely_mistake(definition, cases, outcomes)
        why = f" Likely: {reason}." if reason else _absent_key(outcomes[first].error, cases)
        return NOT_YET, said + _error_text(function, outcomes[first].error) + why
    if expected[first].error is not None:
        return NOT_YET, said + f"must raise {type(expected[first].error).__name__}; it returned a value."
    got, wanted = outcomes[first].value, expected[first].value
    reason = _likely_mistake(definition, cases, outcomes)
    ending = f": {reason}." if reason else "."
    if got is None:
        return NOT_YET, said + "returned None" + (ending if reason else ": is the `return` missing?")
    if wanted is None:
        return NOT_YET, said + f"returned {_kind(got)}; expected None here" + ending
    if _kind(got) != _kind(wanted):
        return NOT_YET, said + f"returned {_kind(got)}; expected {definition.result or _kind(wanted)}" + ending
    if isinstance(wanted, list) and len(got) != len(wanted):
        expected_count = definition.result or f"{len(wanted)} values"
        return NOT_YET, said + f"returned {len(got)} of them, {_short(repr(got))}; expected {expected_count}" + ending
    words = sorted({outcome.value for outcome in expected if isinstance(outcome.value, str)})
    if isinstance(wanted, str) and 1 < len(words) <= MAX_WORDS and got not in words:
        return NOT_YET, said + f"returned {_short(repr(got))}: answer exactly {' or '.join(map(repr, words))}."
    if definition.judge is not None:
        reason = _likely_mistake(definition, cases, outcomes) or definition.judge(got, *cases[first])
        return NOT_YET, f"{said}does not pass: {reason}."
    said += f"gave {format_value(got, definition.unit)}; expected {format_value(wanted, definition.unit)}"
    reason = reason or _constant_factor(outcomes, expected)
    return NOT_YET, said + (f": {reason}." if reason else ".")


def _call(function: Callable, arguments: tuple) -> _Outcome:
    try:
        return _Outcome(value=_plain(function(*arguments)))
    except Exception as error:
        return _Outcome(error=error)


def _same(outcome: _Outcome, other: _Outcome, definition: Exercise) -> bool:
    if outcome.error is not None or other.error is not None:
        return type(outcome.error) is type(other.error)
    return matches(outcome.value, other.value, definition.rel_tolerance)


def _right(outcome: _Outcome, expected: _Outcome, definition: Exercise, case: tuple) -> bool:
    """Whether an outcome is right: by the exercise's judge where it has one, else by the reference."""
    if definition.judge is None or outcome.error is not None or _kind(outcome.value) != _kind(expected.value):
        return _same(outcome, expected, definition)
    return not definition.judge(outcome.value, *copy.deepcopy(case))


def _likely_mistake(definition: Exercise, cases: list[tuple], outcomes: list[_Outcome]) -> str:
    """The message of the planted mistake that gives the learner's answer on every case, or ""."""
    for mistake in definition.mistakes:
        if all(
            _same(outcome, _call(mistake.function, copy.deepcopy(case)), definition)
            for case, outcome in zip(cases, outcomes, strict=True)
        ):
            return mistake.message
    return ""


def _constant_factor(outcomes: list[_Outcome], expected: list[_Outcome]) -> str:
    """ "every answer is 2 times the expected one" where that is so: what no named mistake explains."""
    pairs = [(o.value, e.value) for o, e in zip(outcomes, expected, strict=True)]
    if not all(_kind(x) == _kind(y) == "a number" and y for x, y in pairs):
        return ""
    ratios = [got / wanted for got, wanted in pairs]
    if ratios[0] == 0 or not all(math.isclose(ratio, ratios[0], rel_tol=1e-6) for ratio in ratios):
        return ""
    return f"every answer is {ratios[0]:.6g} times the expected one"


def matches(got: Any, expected: Any, rel_tolerance: float) -> bool:
    """Whether two values agree: numbers within the relative tolerance, containers element by element.

    True is not 1, text is not a number, NaN agrees with nothing; arrays and tensors are compared as nested lists.
    """
    got, expected = _plain(got), _plain(expected)
    if _kind(got) != _kind(expected):
        return False
    if _kind(got) == "a number":
        return got == expected or math.isclose(got, expected, rel_tol=rel_tolerance)
    if isinstance(got, list):
        return len(got) == len(expected) and all(
            matches(a, b, rel_tolerance) for a, b in zip(got, expected, strict=True)
        )
    if isinstance(got, dict):
        return got.keys() == expected.keys() and all(matches(got[k], expected[k], rel_tolerance) for k in got)
    return got == expected


def _plain(value: Any) -> Any:
    """Arrays, tensors, tuples, dataclasses and mappings as lists and dicts."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, (list, tuple, range)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, bool):
        return "True or False"
    if isinstance(value, numbers.Real):
        return "NaN" if math.isnan(value) else "a number"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "named values"
    return f"a {type(value).__name__}"


def format_value(value: Any, unit: str = "") -> str:
    """A value for the learner's eye: 85,899,345,920 bytes; 0.00125 seconds; 1 byte; a pair as "1,000 and 2,000"."""
    if unit.isalpha() and len(unit) > 2 and unit.endswith("s") and _kind(value) == "a number" and value == 1:
        unit = unit[:-1]
    if isinstance(value, list) and len(value) == 2 and all(_kind(item) == "a number" for item in value):
        return f"{' and '.join(format_value(item) for item in value)} {unit}".strip()
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return _short(repr(value)) + (f" {unit}" if unit else "")
    whole = float(value).is_integer() and abs(value) < 1e18
    text = f"{int(value):,}" if whole else f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.1f}"
    return f"{text} {unit}".strip()


def _short(text: str, limit: int = 90) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _call_text(function: Callable, case: tuple) -> str:
    """The call as the learner would write it; a model or device goes by its name."""
    shown = (str(a.name) if dataclasses.is_dataclass(a) and hasattr(a, "name") else _plain_repr(a) for a in case)
    return f"{getattr(function, '__name__', 'your function')}({', '.join(shown)})"


def _plain_repr(value: Any) -> str:
    # A config is shown whole: which key matters is the question.
    return _short(repr(_plain(value)), 400 if isinstance(value, Mapping) else 80)


def _signature_misfit(function: Callable, case: tuple) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*case)
    except TypeError:
        name = getattr(function, "__name__", "your function")
        return f"{name}{signature} is called with {len(case)} arguments: keep the arguments of the exercise."
    return ""


def _absent_key(error: Exception, cases: list[tuple]) -> str:
    """What to do about a KeyError on a key that only some of the mappings handed over have, or none; else ""."""
    if not isinstance(error, KeyError) or not error.args:
        return ""
    has_it = [error.args[0] in argument for case in cases for argument in case if isinstance(argument, Mapping)]
    if not has_it or all(has_it):
        return ""
    return " This key may be absent: use .get." if any(has_it) else " No case has this key: is it misspelt?"


def _error_text(function: Callable, error: Exception) -> str:
    """ "raised ZeroDivisionError: division by zero (line 4: `return a / b`)", the line being the learner's own."""
    home = getattr(getattr(function, "__code__", None), "co_filename", None)
    place, traceback = "", error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == home:
            line = linecache.getline(home, traceback.tb_lineno).strip()
            place = f" (line {traceback.tb_lineno}" + (f": `{line}`)" if line else ")")
        traceback = traceback.tb_next
    detail = _short(" ".join(str(error).split()))
    return f"raised {type(error).__name__}{': ' + detail if detail else ''}{place}."
