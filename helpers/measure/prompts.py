"""Prompts of so many tokens, no two alike: a server that remembers prompts must not answer from memory.

They are common English words, each one token with or without a leading space in the usual byte-level
vocabularies, drawn at random: the first dozen words already differ between any two prompts and any two
runs. How many tokens the chat template adds is asked of the server: by ``/tokenize`` where it has it
(vLLM), else by the `usage` of two requests with one output token each.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from string import ascii_lowercase

from helpers.errors import InputError

_WORDS = """
time people way water day man world life hand part child eye place work week case point company number
group problem fact year thing woman school state family student country question night area money story
month book job word business issue side kind head house service friend father power hour game line end
member law car city community name president team minute idea body information back parent face level
office door health person art war history party result change reason research girl moment air teacher
force education foot boy age policy music market sense nation plan college interest death course someone
experience class control field development role rate heart drug show leader light voice wife mind price
report decision son view relationship town road arm difference value building action season tax director
position player record paper space ground form event matter center star table need court oil cost
industry figure street image phone data picture practice piece land product doctor wall patient worker
news test movie north love support technology
"""
WORDS = tuple(_WORDS.split())

CALIBRATION_WORDS = (32, 96)
MOST_CORRECTIONS = 32


@dataclass(frozen=True)
class Prompts:
    """`texts` as asked for; `source` says who counted their tokens: "tokenize", "usage" or "none"."""

    texts: tuple[str, ...]
    source: str
    exact: bool
    note: str


def words_prompt(rng: random.Random, words: int) -> str:
    """So many words at random."""
    return " ".join(rng.choices(WORDS, k=words))


def make_prompts(
    targets: list[int],
    *,
    count: Callable[[str], int | None] | None,
    source: str,
    check_each: int,
    rng: random.Random | None = None,
) -> Prompts:
    """One prompt for each of the `targets` (tokens as the server counts them, chat template included).

    `count(text)` asks the server for the tokens of a prompt; None where it does not say. `check_each`: how
    many of the prompts, from the first, are counted one by one and corrected (0 where counting is dear).
    Raises InputError where a target is below what the template alone takes.
    """
    rng = rng or random.Random(random.SystemRandom().getrandbits(128))
    counted = [count(words_prompt(rng, words)) for words in CALIBRATION_WORDS] if count is not None else [None]
    if None in counted:
        note = "the server tells no prompt length: one word was taken for one token, the chat template left out"
        return Prompts(tuple(words_prompt(rng, max(1, n)) for n in targets), "none", False, note)
    few, many = CALIBRATION_WORDS
    per_word = (counted[1] - counted[0]) / (many - few)
    if per_word <= 0:
        raise InputError(f"the server counts {counted[0]} tokens in {few} words and {counted[1]} in {many}")
    around = counted[0] - few * per_word
    texts, exact = [], per_word == 1
    for index, target in enumerate(targets):
        words = round((target - around) / per_word)
        if words < 1:
            raise InputError(f"a prompt of {target} tokens is too short: the chat template alone takes {around:.0f}")
        text = words_prompt(rng, words)
        if index < check_each:
            text, right = _corrected(text, target, per_word, count, rng)
            exact = right if index == 0 else exact and right
        texts.append(text)
    note = "" if exact else f"a word is {per_word:.2f} tokens here, so prompt lengths are near the target and not on it"
    return Prompts(tuple(texts), source, exact, note)


def _corrected(
    text: str, target: int, per_word: float, count: Callable[[str], int | None], rng: random.Random
) -> tuple[str, bool]:
    """The text made longer or shorter until the server counts `target`; False where it never does.

    By whole words, and by letters where less than half a word is missing (a word may be several tokens). At the end,
    because the start is what makes the prompt unlike any other. Raises InputError where a single word is too long.
    """
    letters_per_token = len(text) / len(text.split()) / per_word
    best = (math.inf, text)
    for _ in range(MOST_CORRECTIONS):
        tokens = count(text)
        if tokens is None:
            break
        missing = target - tokens
        best = min(best, (abs(missing), text))
        if missing == 0:
            return text, True
        words, letters = round(abs(missing) / per_word), max(1, round(abs(missing) * letters_per_token))
        if missing > 0:
            text += " " + words_prompt(rng, words) if words else "".join(rng.choices(ascii_lowercase, k=letters))
        else:
            text = " ".join(text.split(" ")[:-words]) if words else text[:-letters]
        if not text:
            raise InputError(f"a prompt of {target} tokens is too short: with one word it has {tokens}")
    return best[1], False
