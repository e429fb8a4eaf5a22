"""Tokens to text as they come: no half character leaves, and no part of a stop string."""

from collections.abc import Sequence

HALF = "\ufffd"
"""What a decoder makes of bytes that are no whole character, or not yet."""


class TextStream:
    """The text of one answer, piece by piece: ``push(token)`` returns what may be shown by now.

    All pieces and `finish` together are ``tokenizer.decode`` of all tokens, cut before the first stop string that
    appears. Held back are the bytes of an unfinished character and what may be the beginning of a stop string.
    """

    def __init__(self, tokenizer, stop: Sequence[str] = ()) -> None:
        self.tokenizer, self.stop = tokenizer, tuple(stop)
        self.stopped = False
        # Decoded text may depend on the token before (a leading space), so the last finished piece is decoded too.
        self._context: list[int] = []
        self._open: list[int] = []
        self._held = ""

    def push(self, token: int) -> str:
        """The text that `token` completes, often that of the token itself, sometimes none."""
        self._open.append(token)
        text = self._open_text()
        if not text or text.endswith(HALF):
            return ""
        self._context, self._open = self._open, []
        return self._emit(text)

    def finish(self) -> str:
        """What is still held back, when no token will follow."""
        text = "" if self.stopped else self._emit(self._open_text())
        rest, self._held, self._open = ("" if self.stopped else self._held), "", []
        return text + rest

    def _open_text(self) -> str:
        before = self.tokenizer.decode(self._context) if self._context else ""
        return self.tokenizer.decode(self._context + self._open)[len(before) :]

    def _emit(self, text: str) -> str:
        text = self._held + text
        found = [at for stop in self.stop if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        held = max((overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]


def overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that begin `stop`, the most there are but not all of it."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
