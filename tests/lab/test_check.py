"""The three states of a check, and what each kind of wrong answer is told."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.errors import InputError
from helpers.lab import check
from helpers.lab.exercise import Exercise, Mistake
from helpers.lab.exercises import exercises_of, find


def kv_bytes_per_token(layers, kv_heads, head_dim, bytes_per_value):
    """The example every test here uses: 2 (K and V) × layers × kv_heads × head_dim × bytes."""
    return 2 * layers * kv_heads * head_dim * bytes_per_value


EXERCISE = Exercise(
    id="9.1",
    title="KV bytes per token",
    minutes=5,
    difficulty=2,
    why="It bounds the batch.",
    hints=("K and V.", "KV heads, not query heads."),
    reference=kv_bytes_per_token,
    cases=((32, 8, 128, 2),),
    random_case=lambda rng: (rng.randint(1, 99), rng.randint(1, 16), 64, 2),
    mistakes=(
        Mistake("K only", lambda n, k, d, b: n * k * d * b, "you counted K and forgot V"),
        Mistake("bits", lambda n, k, d, b: 16 * n * k * d * b, "these are bits, not bytes"),
        Mistake("one layer", lambda n, k, d, b: 2 * k * d * b, "this is one layer of them"),
    ),
    unit="bytes",
)


def text_of(function):
    return check.evaluate(EXERCISE, function).text


def test_a_right_answer_is_correct_even_as_a_float_or_a_tensor():
    torch = pytest.importorskip("torch")
    for kind in (int, float, torch.tensor):
        result = check.evaluate(EXERCISE, lambda *a, kind=kind: kind(kv_bytes_per_token(*a)))
        assert result.state == check.CORRECT
        assert result
    assert result.text == "Exercise 9.1: correct (9 cases)."


def test_a_blank_is_not_done():
    def blank(layers, kv_heads, head_dim, bytes_per_value):
        raise NotImplementedError("Exercise 9.1")

    assert text_of(blank) == "Exercise 9.1: not done."
    assert not check.evaluate(EXERCISE, blank)


def test_each_planted_mistake_gets_its_own_message():
    for mistake in EXERCISE.mistakes:
        assert text_of(mistake.function).endswith(f": {mistake.message}.")
    assert "gave 65,536 bytes; expected 131,072 bytes: you counted K" in text_of(EXERCISE.mistakes[0].function)


def test_a_planted_mistake_that_fails_with_an_error_is_named_too():
    cut = Mistake("no such rank", lambda n, k, d, b: n // 0, "`int` cuts a ratio below one to 0: use `round`")
    exercise = dataclasses.replace(EXERCISE, mistakes=(*EXERCISE.mistakes, cut))
    text = check.evaluate(exercise, lambda n, k, d, b: 1 // 0).text
    assert "ZeroDivisionError" in text and text.endswith(" Likely: `int` cuts a ratio below one to 0: use `round`.")


def test_a_value_where_there_is_none_is_told_so():
    exercise = dataclasses.replace(
        EXERCISE, reference=lambda *a: None, mistakes=(), result="a number of bytes, or None"
    )
    assert check.evaluate(exercise, lambda *a: 3).text.endswith("returned a number; expected None here.")


def test_a_config_that_fails_is_shown_whole():
    config = {f"key_{i}": i for i in range(20)}
    exercise = dataclasses.replace(
        EXERCISE, reference=lambda c: c["key_19"], cases=((config,),), random_case=lambda rng: (config,), mistakes=()
    )
    assert "'key_19': 19" in check.evaluate(exercise, lambda c: 0).text


def test_a_wrong_factor_nobody_planted_is_still_named():
    assert text_of(lambda *a: 3 * kv_bytes_per_token(*a)).endswith("every answer is 3 times the expected one.")


def test_a_constant_is_rejected_and_shows_the_case_it_fails():
    text = text_of(lambda n, k, d, b: 131072)
    assert "not yet" in text
    assert "gave 131,072 bytes; expected" in text
    assert "times the expected" not in text


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda n, k, d, b: None, "returned None: is the `return` missing?"),
        (lambda n, k, d, b: math.nan, "returned NaN; expected a number."),
        (lambda n, k, d, b: "131072", "returned text; expected a number."),
        (lambda n, k, d, b: True, "returned True or False; expected a number."),
        (lambda n, k, d, b: [131072], "returned a list; expected a number."),
        (lambda n, k: 1, "keep the arguments of the exercise"),
        (131072, 'Hand over the function itself, without brackets: `check.exercise("9.1", kv_bytes_per_token)`'),
    ],
)
def test_every_other_wrong_answer_is_named_in_one_line(function, said):
    text = text_of(function)
    assert text.startswith("Exercise 9.1: not yet. ")
    assert said in text
    assert "\n" not in text


def test_an_exception_names_the_learners_own_line():
    def crash(layers, kv_heads, head_dim, bytes_per_value):
        per_layer = kv_heads * head_dim
        return per_layer / (layers - layers)

    text = text_of(crash)
    line = crash.__code__.co_firstlineno + 2
    assert f"raised ZeroDivisionError: division by zero (line {line}: `return per_layer / (layers - layers)`)" in text


def test_changing_the_arguments_is_told_apart_from_a_wrong_answer():
    exercise = dataclasses.replace(
        EXERCISE, reference=sum, cases=(([1, 2, 3],),), random_case=lambda rng: ([rng.random(), 4],)
    )

    def empties_its_list(values):
        total = 0
        while values:
            total += values.pop()
        return total

    assert "changed its own arguments" in check.evaluate(exercise, empties_its_list).text
    assert check.evaluate(exercise, lambda values: sum(values))


def test_a_reference_that_refuses_demands_a_refusal():
    def refusing(value):
        if value < 0:
            raise InputError("negative")
        return value

    exercise = dataclasses.replace(
        EXERCISE, reference=refusing, cases=((3,), (-3,)), random_case=lambda rng: (rng.randint(-9, 9),)
    )
    assert check.evaluate(exercise, refusing)
    assert "must raise InputError" in check.evaluate(exercise, lambda value: value).text


def test_the_learner_is_never_marked_wrong_by_the_reference_changing_arguments():
    case = ([3, 1, 2],)

    def sorts_in_place(values):
        values.sort()
        return values[0]

    exercise = dataclasses.replace(EXERCISE, reference=sorts_in_place, cases=(case,), random_case=lambda rng: ([7, 5],))
    assert check.evaluate(exercise, min)
    assert case == ([3, 1, 2],)


def test_the_hidden_cases_are_the_same_on_every_run_and_not_all_alike():
    assert EXERCISE.all_cases() == EXERCISE.all_cases()
    assert len({kv_bytes_per_token(*case) for case in EXERCISE.all_cases()}) > 4


def test_use_falls_back_to_the_reference_and_says_so(capsys):
    reference = find("1.1").reference
    assert check.use("1.1", lambda *arguments: 0) is reference
    assert "not yet; from here on the reference solution is used" in capsys.readouterr().out

    def mine(*arguments):
        return reference(*arguments)

    assert check.use("1.1", mine) is mine
    assert "your function is used" in capsys.readouterr().out


def test_a_use_cell_run_twice_does_not_count_the_reference_as_the_learners_work(capsys):
    function = check.use("1.1", lambda *arguments: 0)
    again = check.use("1.1", function)
    assert again is function
    check.summary("01")
    out = capsys.readouterr().out
    assert out.count("not yet; from here on the reference solution is used") == 2
    assert "0 of" in out and "correct  " not in out


def test_the_summary_tells_the_states_of_the_last_checks(capsys):
    check.exercise("1.1", find("1.1").reference)
    capsys.readouterr()
    check.summary("01")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(exercises_of("01"))
    assert next(line for line in lines if line.split()[0] == "1.1").split()[1] == "correct"


def test_a_result_shows_nothing_more_in_a_notebook():
    from IPython.core.formatters import DisplayFormatter

    data, metadata = DisplayFormatter().format(check.evaluate(EXERCISE, kv_bytes_per_token))
    assert (data, metadata) == ({}, {})


def test_an_unknown_exercise_or_lab_is_refused_by_name():
    with pytest.raises(InputError, match=r"there is no exercise '77\.7'"):
        check.exercise("77.7", min)
    with pytest.raises(InputError, match="there is no lab '77'"):
        check.summary("77")
    with pytest.raises(InputError, match="exercise id 'x' is not of the form"):
        dataclasses.replace(EXERCISE, id="x")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_every_value_matches_itself(value):
    assert check.matches(value, value, 0)


@given(st.floats(1e-30, 1e30), st.floats(1e-6, 1e6))
def test_numbers_match_within_the_tolerance_and_no_further(value, factor):
    assert check.matches(value * (1 + 1e-12), value, 1e-9)
    assert check.matches(value * factor, value, 1e-9) == math.isclose(value * factor, value, rel_tol=1e-9)


@given(VALUES, VALUES)
def test_matching_is_symmetric(one, other):
    assert check.matches(one, other, 0) == check.matches(other, one, 0)


def test_true_is_not_one_and_nan_is_not_nan():
    assert not check.matches(True, 1, 0)
    assert not check.matches([0], [False], 0)
    assert not check.matches(math.nan, math.nan, 1)


def test_numbers_are_written_with_unit_and_separators():
    assert check.format_value(85_899_345_920, "bytes") == "85,899,345,920 bytes"
    assert check.format_value(0.00125, "seconds") == "0.00125 seconds"
    assert check.format_value(16060522496.5, "bytes") == "16,060,522,496.5 bytes"
    assert check.format_value([1234567, 1], "parameters") == "1,234,567 and 1 parameters"


def test_one_of_a_thing_is_singular_and_a_symbol_has_no_plural():
    assert [check.format_value(1, unit) for unit in ("cards", "FLOPs", "ms", "tokens/s")] == [
        "1 card",
        "1 FLOP",
        "1 ms",
        "1 tokens/s",
    ]
    assert check.format_value(2, "cards") == "2 cards"
    assert check.format_value(1.5, "cards") == "1.5 cards"


def test_a_key_that_some_cases_lack_is_told_from_one_that_all_lack():
    exercise = dataclasses.replace(
        EXERCISE, reference=lambda c: c.get("a", 5), cases=(({"a": 1},), ({},)), random_case=lambda rng: ({"a": 2},)
    )
    assert check.evaluate(exercise, lambda c: c["a"]).text.endswith("This key may be absent: use .get.")
    assert check.evaluate(exercise, lambda c: c["b"]).text.endswith("No case has this key: is it misspelt?")


def test_a_choice_of_words_names_the_words():
    exercise = dataclasses.replace(
        EXERCISE,
        reference=lambda n: "odd" if n % 2 else "even",
        cases=((1,),),
        random_case=lambda rng: (rng.randint(1, 9),),
    )
    text = check.evaluate(exercise, lambda n: "Odd").text
    assert text.endswith("returned 'Odd': answer exactly 'even' or 'odd'.")
    assert "answer exactly" not in check.evaluate(exercise, lambda n: "odd").text


def test_what_to_return_is_said_in_the_words_of_the_exercise():
    exercise = dataclasses.replace(
        EXERCISE,
        reference=lambda n: (n, 2 * n),
        cases=((1,),),
        random_case=lambda rng: (rng.randint(1, 9),),
        result="a pair (once, twice)",
    )
    assert check.evaluate(exercise, lambda n: n).text.endswith("returned a number; expected a pair (once, twice).")
    assert "returned 3 of them, [1, 1, 1]; expected a pair" in check.evaluate(exercise, lambda n: (n, n, n)).text
    assert check.evaluate(exercise, lambda n: [n, 2 * n])
