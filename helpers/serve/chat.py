"""A chat as token ids, in the format whose control tokens the tokenizer has."""

from collections.abc import Sequence

from helpers.errors import InputError

END_TOKENS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "</s>")
"""Tokens that end an answer, as ChatML, GPT-2, Llama 3 and Llama 2 name them."""


def end_tokens(tokenizer) -> frozenset[int]:
    """Ids of those of `END_TOKENS` that the tokenizer has."""
    return frozenset(found for name in END_TOKENS if (found := control_token(tokenizer, name)) is not None)


def control_token(tokenizer, name: str) -> int | None:
    """The id of a control token, or None where the tokenizer has none of that name."""
    try:
        return tokenizer.token(name)
    except InputError:
        return None


def chat_tokens(tokenizer, messages: Sequence[tuple[str, str]], system_prompt: str | None = None) -> list[int]:
    """Token ids of a chat, up to where the assistant answers; `messages` are (role, text), the oldest first.

    ChatML where the tokenizer has ``<|im_start|>`` (SmolLM2, Qwen), Llama 3's headers where it has
    ``<|start_header_id|>``, otherwise a plain transcript, ``role: text`` line by line. `system_prompt` opens a chat
    that has no system turn. What a user types is text: it never becomes a control token.
    """
    turns = list(messages)
    if system_prompt is not None and all(role != "system" for role, _ in turns):
        turns.insert(0, ("system", system_prompt))
    if control_token(tokenizer, "<|im_start|>") is not None:
        return _chatml(tokenizer, turns)
    if control_token(tokenizer, "<|start_header_id|>") is not None:
        return _llama3(tokenizer, turns)
    return tokenizer.encode("".join(f"{role}: {text}\n" for role, text in turns) + "assistant:")


def _chatml(tokenizer, turns: list[tuple[str, str]]) -> list[int]:
    start, end, newline = tokenizer.token("<|im_start|>"), tokenizer.token("<|im_end|>"), tokenizer.encode("\n")
    ids: list[int] = []
    for role, text in turns:
        ids += [start, *tokenizer.encode(f"{role}\n{text}"), end, *newline]
    return [*ids, start, *tokenizer.encode("assistant\n")]


def _llama3(tokenizer, turns: list[tuple[str, str]]) -> list[int]:
    head, close, end = (tokenizer.token(f"<|{name}|>") for name in ("start_header_id", "end_header_id", "eot_id"))
    begin = control_token(tokenizer, "<|begin_of_text|>")

    def plain(text: str) -> list[int]:
        # The tokenizer itself puts a begin token before any text.
        ids = tokenizer.encode(text)
        return ids[1:] if ids and ids[0] == begin else ids

    ids = [] if begin is None else [begin]
    for role, text in turns:
        ids += [head, *plain(role), close, *plain(f"\n\n{text.strip()}"), end]
    return [*ids, head, *plain("assistant"), close, *plain("\n\n")]
