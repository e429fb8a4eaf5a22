"""Every exercise of every lab is sound: `definition_problems` finds nothing; and it finds what is planted."""

import dataclasses

import pytest

from helpers.lab.exercise import Mistake
from helpers.lab.exercises import exercises_of, find, labs
from helpers.lab.selftest import definition_problems

ALL = [exercise for lab in labs() for exercise in exercises_of(lab)]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_the_definition_is_sound(exercise):
    assert definition_problems(exercise) == []


@pytest.mark.parametrize("lab", labs())
def test_the_ids_of_a_lab_count_from_one(lab):
    wanted = [f"{int(lab)}.{number}" for number in range(1, len(exercises_of(lab)) + 1)]
    assert [exercise.id for exercise in exercises_of(lab)] == wanted


SOUND = find("1.1")
FIRST_ANSWER = SOUND.reference(*SOUND.cases[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mistakes": SOUND.mistakes[:2]}, "only 2 mistakes"),
        ({"mistakes": (*SOUND.mistakes, Mistake("right", SOUND.reference, "no mistake"))}, "is reported as correct"),
        (
            {"mistakes": (*SOUND.mistakes, Mistake("twin", SOUND.mistakes[0].function, "said second"))},
            "mistake 'twin' gets another message",
        ),
        (
            {"mistakes": (*SOUND.mistakes, dataclasses.replace(SOUND.mistakes[0], name="echo"))},
            "share a name or a message",
        ),
        ({"random_case": lambda rng: SOUND.cases[0], "cases": SOUND.cases[:1]}, "passes as an answer"),
        ({"hints": ("one",)}, "fewer than two hints"),
        ({"difficulty": 6}, "difficulty 6"),
        ({"minutes": 0}, "minutes 0"),
        ({"why": " "}, "title or why is empty"),
        ({"reference": lambda p, b: float("nan")}, "the reference is rejected"),
    ],
)
def test_a_planted_flaw_in_a_definition_is_found(change, said):
    problems = definition_problems(dataclasses.replace(SOUND, **change))
    assert any(said in problem for problem in problems), problems


def test_cases_that_change_from_run_to_run_are_found():
    counter = iter(range(10**9))
    problems = definition_problems(dataclasses.replace(SOUND, random_case=lambda rng: (next(counter), 8)))
    assert "the cases differ from run to run" in problems


def test_the_header_shows_difficulty_in_words_and_folds_the_hints():
    header = SOUND.header()
    assert header.startswith("## Exercise 1.1: ")
    assert "(1 of 5)" in header
    assert header.count("<details>") == len(SOUND.hints)
