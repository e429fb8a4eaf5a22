"""A tokenizer that needs no file: one token for each byte, so that a prompt's length is known to the byte."""

from helpers.errors import InputError

LETTERS = b"abcdefghijklmnopqrstuvwxyz     "


class ByteTokenizer:
    """UTF-8 bytes as token ids 0 to 255, for random weights of any vocabulary; it has no control tokens.

    Ids from 256 on stand for a letter or a space, so that a model with random weights shows one character for nearly
    every token. ``decode(encode(text)) == text``. Raises InputError for a vocabulary that cannot hold all bytes.
    """

    def __init__(self, vocab_size: int = 256) -> None:
        if vocab_size < 256:
            raise InputError(f"a vocabulary of {vocab_size} cannot hold the 256 bytes")
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode("utf-8"))

    def decode(self, tokens: list[int], keep_special: bool = False) -> str:
        """The text of `tokens`; bytes that are no UTF-8 become U+FFFD."""
        return bytes(token if token < 256 else LETTERS[token % len(LETTERS)] for token in tokens).decode(
            "utf-8", "replace"
        )

    def token(self, text: str) -> int:
        """InputError: there are no control tokens."""
        raise InputError(f"the tokenizer has no token {text!r}")
