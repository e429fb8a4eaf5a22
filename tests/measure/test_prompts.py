"""Prompts of an exact length, no two alike, with servers that count in different ways."""

import random

import pytest

from helpers.errors import InputError
from helpers.measure.prompts import WORDS, make_prompts, words_prompt


def count_words(text: str) -> int:
    return len(text.split()) + 11


def count_letters(text: str) -> int:
    return len(text) // 2 + 7


@pytest.mark.parametrize("check_each", [0, 100])
def test_one_token_a_word_gives_exact_lengths_with_and_without_counting_each(check_each):
    prompts = make_prompts([50, 51, 300], count=count_words, source="usage", check_each=check_each)
    assert [count_words(text) for text in prompts.texts] == [50, 51, 300]
    assert (prompts.exact, prompts.note, prompts.source) == (True, "", "usage")


def test_several_tokens_a_word_are_corrected_where_each_is_counted():
    prompts = make_prompts([80, 200, 333], count=count_letters, source="tokenize", check_each=3)
    assert [count_letters(text) for text in prompts.texts] == pytest.approx([80, 200, 333], abs=2)
    assert prompts.exact is ([count_letters(text) for text in prompts.texts] == [80, 200, 333])


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


def test_a_server_whose_counts_do_not_grow_is_refused():
    with pytest.raises(InputError, match="counts 5 tokens"):
        make_prompts([40], count=lambda text: 5, source="usage", check_each=0)
