"""Prompts of an exact length, no two alike, with servers that count in different ways."""

import random

import pytest

from helpers.errors import InputError
from helpers.measure.prompts import WORDS, make_prompts, words_prompt


def count_words(text: str) -> int:
    return len(text.split()) + 11


def count_letters(text: str) -> int:
    return len(text) // 2 + 7


def count_bytes(text: str) -> int:
    return len(text) + 24


def count_syllables(text: str) -> int:
    return sum(1 + len(word) // 5 for word in text.split()) + 3


@pytest.mark.parametrize("check_each", [0, 100])
def test_one_token_a_word_gives_exact_lengths_with_and_without_counting_each(check_each):
    prompts = make_prompts([50, 51, 300], count=count_words, source="usage", check_each=check_each)
    assert [count_words(text) for text in prompts.texts] == [50, 51, 300]
    assert (prompts.exact, prompts.note, prompts.source) == (True, "", "usage")


@pytest.mark.parametrize("count", [count_letters, count_bytes, count_syllables])
def test_several_tokens_a_word_are_corrected_where_each_is_counted(count):
    targets = [80, 200, 333, *range(400, 420)]
    prompts = make_prompts(targets, count=count, source="tokenize", check_each=len(targets), rng=random.Random(3))
    assert [count(text) for text in prompts.texts] == targets
    assert (prompts.exact, prompts.note) == (True, "")


def test_prompts_beyond_those_that_are_counted_are_not_said_to_be_exact():
    prompts = make_prompts([80] * 30, count=count_bytes, source="tokenize", check_each=5, rng=random.Random(3))
    assert not all(count_bytes(text) == 80 for text in prompts.texts)
    assert [count_bytes(text) for text in prompts.texts[:5]] == [80] * 5


def test_several_tokens_a_word_without_counting_each_are_said_to_be_near():
    prompts = make_prompts([200] * 20, count=count_letters, source="usage", check_each=0)
    assert not prompts.exact and "tokens here" in prompts.note
    lengths = [count_letters(text) for text in prompts.texts]
    assert abs(sum(lengths) / 20 - 200) < 20


def test_a_server_that_counts_nothing_is_said_to_count_nothing():
    for count in (None, lambda text: None):
        prompts = make_prompts([40], count=count, source="usage", check_each=0)
        assert (prompts.source, prompts.exact) == ("none", False)
        assert len(prompts.texts[0].split()) == 40 and prompts.note


def test_no_two_prompts_and_no_two_runs_begin_alike():
    runs = [make_prompts([60] * 200, count=count_words, source="usage", check_each=0) for _ in range(2)]
    starts = [" ".join(text.split()[:16]) for run in runs for text in run.texts]
    assert len(set(starts)) == 400


def test_a_planted_generator_gives_the_same_prompts_again():
    assert words_prompt(random.Random(1), 9) == words_prompt(random.Random(1), 9)


def test_the_words_are_many_and_all_different():
    assert len(WORDS) == len(set(WORDS)) > 150


@pytest.mark.parametrize("target", [1, 11])
def test_a_prompt_shorter_than_the_template_is_refused(target):
    with pytest.raises(InputError, match="template"):
        make_prompts([target], count=count_words, source="usage", check_each=0)


def test_a_prompt_shorter_than_any_word_is_refused():
    with pytest.raises(InputError, match="a prompt of 3 tokens is too short"):
        make_prompts([3], count=count_bytes, source="tokenize", check_each=1, rng=random.Random(2))


def test_a_server_whose_counts_do_not_grow_is_refused():
    with pytest.raises(InputError, match="counts 5 tokens"):
        make_prompts([40], count=lambda text: 5, source="usage", check_each=0)
