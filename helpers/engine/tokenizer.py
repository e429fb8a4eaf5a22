"""Text to token ids and back, from a checkpoint's tokenizer.json."""

import os
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from helpers.engine.smollm2 import smollm2_folder
from helpers.errors import InputError

SMOLLM2_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
"""What SmolLM2's chat template puts in the system turn where none is given."""


class Tokenizer:
    """The tokenizer of a checkpoint folder. Raises InputError where its tokenizer.json is absent or unreadable."""

    def __init__(self, folder: str | os.PathLike) -> None:
        file = Path(folder) / "tokenizer.json"
        if not file.is_file():
            raise InputError(f"{folder} holds no tokenizer.json")
        try:
            self._tokenizer = FastTokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception.
            raise InputError(f"{file} is not a readable tokenizer ({error})") from error
        # Text is text: "<|im_end|>" typed by a user must not end the user's turn.
        self._tokenizer.encode_special_tokens = True

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, with those the tokenizer itself adds (a BOS in Llama 3; none in SmolLM2)."""
        return self._tokenizer.encode(text).ids

    def decode(self, tokens: list[int], keep_special: bool = False) -> str:
        """The text of `tokens`; control tokens are left out unless `keep_special`."""
        return self._tokenizer.decode(tokens, skip_special_tokens=not keep_special)

    def chat(self, user: str, system: str = SMOLLM2_SYSTEM) -> list[int]:
        """Token ids of a chat with a system and a user turn, up to where the assistant answers (ChatML, SmolLM2's).

        Raises InputError for a tokenizer without ChatML's control tokens.
        """
        newline = self.encode("\n")
        ids = []
        for role, text in (("system", system), ("user", user)):
            ids += [self.token("<|im_start|>"), *self.encode(f"{role}\n{text}"), self.token("<|im_end|>"), *newline]
        return [*ids, self.token("<|im_start|>"), *self.encode("assistant\n")]

    def token(self, text: str) -> int:
        """The id of a single token such as ``<|im_end|>``; InputError where there is none."""
        found = self._tokenizer.token_to_id(text)
        if found is None:
            raise InputError(f"the tokenizer has no token {text!r}")
        return found

    @property
    def vocab_size(self) -> int:
        """Tokens, control tokens included."""
        return self._tokenizer.get_vocab_size()


def smollm2_tokenizer() -> Tokenizer:
    """SmolLM2's tokenizer, fetched with the model on first use. Raises InputError as `load_smollm2` does."""
    return Tokenizer(smollm2_folder())
