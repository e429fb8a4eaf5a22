"""Speculative decoding by prompt look-up: guess that the text goes on as it did after the same words before.

One decode step reads all weights, however many tokens it computes (Leviathan et al. 2023); so k drafted tokens are
checked in the step that would have made one. Prompt look-up (Saxena 2023; vLLM's ``ngram``) needs no second model: it
drafts what followed the last earlier occurrence of the final n-gram. Greedy text is unchanged by it, to rounding: a
step over k + 1 tokens may add in another order than a step over one.
"""

from collections.abc import Sequence

LONGEST_NGRAM = 3


def propose(tokens: Sequence[int], count: int, longest_ngram: int = LONGEST_NGRAM) -> list[int]:
    """`count` drafted tokens to follow `tokens`, or none where no n-gram at their end has occurred before.

    The longest n-gram first, n ≤ `longest_ngram`, and of its occurrences the latest. Where the text after it is shorter
    than `count` the draft goes on with itself, as a repetition would.
    """
    if count <= 0:
        return []
    tokens = list(tokens)
    for length in range(min(longest_ngram, len(tokens) - 1), 0, -1):
        ngram = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start + length - 1] == ngram[-1] and tokens[start : start + length] == ngram:
                period = len(tokens) - length - start
                return [tokens[start + length + index % period] for index in range(count)]
    return []


def accepted(draft: Sequence[int], chosen: Sequence[int]) -> int:
    """How many drafted tokens the model chose itself: `chosen` [k + 1] follow the last token and each of the draft."""
    return next((n for n, (guess, token) in enumerate(zip(draft, chosen, strict=False)) if guess != token), len(draft))
