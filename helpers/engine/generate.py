"""Generation: one prefill, then one decode step per token, greedy or sampled, for a batch of prompts."""

from collections.abc import Collection, Iterator, Sequence

import torch

from helpers.engine.decoder import Decoder
from helpers.engine.kv_cache import KVCache
from helpers.errors import InputError


def generate(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_tokens: Collection[int] = (),
) -> list[list[int]]:
    """The new tokens of each prompt, at most `max_new_tokens`; a row ends before its first stop token.

    `prompts`: token ids, rows of any length. `temperature` 0 is greedy; above it tokens are drawn from
    softmax(logits / temperature), cut to the smallest set of at least `top_p` probability. Raises InputError for empty
    prompts, ids outside the vocabulary, options out of range, and requests longer than the model's positions.
    """
    rows: list[list[int]] = [[] for _ in prompts]
    for step in stream(decoder, prompts, max_new_tokens, temperature, top_p, seed, stop_tokens):
        for row, token in zip(rows, step, strict=True):
            if token is not None:
                row.append(token)
    return rows


def stream(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    stop_tokens: Collection[int] = (),
) -> Iterator[list[int | None]]:
    """As `generate`, but yields each step as it is computed: one token per row, None for rows that have ended."""
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens <= 0:
        raise InputError(f"max_new_tokens must be a whole number above zero, not {max_new_tokens!r}")
    if not temperature >= 0:
        raise InputError(f"temperature must be zero or more, not {temperature!r}")
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, not {top_p!r}")
    check_prompts(decoder, prompts)
    return _steps(decoder, prompts, max_new_tokens, temperature, top_p, seed, frozenset(stop_tokens))


def _steps(decoder, prompts, max_new_tokens, temperature, top_p, seed, stop_tokens) -> Iterator[list[int | None]]:
    generator = torch.Generator(decoder.device).manual_seed(seed)
    logits, cache = prefill(decoder, prompts, max_new_tokens)
    running = [True] * len(prompts)
    for step in range(max_new_tokens):
        tokens = choose(logits, temperature, top_p, generator)
        chosen = tokens.tolist()
        running = [alive and token not in stop_tokens for alive, token in zip(running, chosen, strict=True)]
        if not any(running):
            return
        yield [token if alive else None for alive, token in zip(running, chosen, strict=True)]
        if step + 1 < max_new_tokens:
            logits = decoder(tokens[:, None], cache)


def prefill(
    decoder: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int = 1
) -> tuple[torch.Tensor, KVCache]:
    """Run the prompts through the decoder: the logits after each, [B, vocab], and a cache with room for new tokens.

    Shorter prompts are padded on the left, see `KVCache`. Raises InputError as `generate` does.
    """
    check_prompts(decoder, prompts)
    longest = max(map(len, prompts))
    # The last new token is returned, never fed back: it needs no slot.
    cache = KVCache(decoder.model, len(prompts), longest + max_new_tokens - 1, decoder.dtype, decoder.device)
    padding = [longest - len(prompt) for prompt in prompts]
    cache.reset(padding)
    rows = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
    return decoder(torch.tensor(rows, device=decoder.device), cache), cache


def choose(logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator) -> torch.Tensor:
    """The next token of each row, [B], from logits [B, vocab]: the largest, or drawn as `generate` says."""
    if temperature == 0:
        return logits.argmax(-1)
    probabilities, order = torch.softmax(logits.float() / temperature, -1).sort(-1, descending=True)
    # A token stays where those before it do not yet reach top_p: the first always does.
    probabilities = probabilities.masked_fill(probabilities.cumsum(-1) - probabilities >= top_p, 0)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return order.gather(-1, drawn)[:, 0]


def check_prompts(decoder: Decoder, prompts: Sequence[Sequence[int]]) -> None:
    """Raises InputError where there is no prompt, one is empty, or an id is outside the vocabulary."""
    if not prompts:
        raise InputError("there is no prompt to generate from")
    for index, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise InputError(f"prompt {index} is empty: a decoder needs at least one token to start from")
        for token in prompt:
            if not 0 <= token < decoder.model.vocab_size:
                raise InputError(
                    f"prompt {index} holds token id {token}, outside {decoder.model.name}'s vocabulary of "
                    f"{decoder.model.vocab_size}"
                )
