"""Server-sent events out of bytes: the whole grammar, cut at any place, and which read completed each event.

Nothing is decoded, stripped or searched for before it is framed: a read may end inside a character, inside
a line end or before a space of a JSON string.
Source: WHATWG HTML, section 9.2.6 "Interpreting an event stream".
"""

import re
from dataclasses import dataclass

_LINE_END = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ServerSentEvent:
    """One dispatched event: its type ("message" where the stream names none), its data, and the read that ended it."""

    type: str
    data: str
    read: int


class SSEParser:
    """Feed it the body read by read; each `feed` returns the events which that read completed."""

    def __init__(self) -> None:
        self._reads = 0
        self._line: list[bytes] = []
        self._data: list[bytes] = []
        self._type = b""
        self._first_line = True
        self._after_cr = False

    def feed(self, data: bytes) -> list[ServerSentEvent]:
        """The events completed by these bytes, which are read number 0, 1, 2, … of the stream."""
        if data and self._after_cr:
            # A CR ends its line at once; the LF of a pair that was cut belongs to it and ends nothing.
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if data.endswith(b"\r"):
            self._after_cr = True
        first, *rest = _LINE_END.split(data)
        self._line.append(first)
        events = []
        for following in rest:
            event = self._end_line()
            if event is not None:
                events.append(event)
            self._line = [following]
        self._reads += 1
        return events

    def close(self) -> list[ServerSentEvent]:
        """The event left open at a clean end of the stream, if any.

        The standard drops it. Servers exist that end with ``data: [DONE]`` and no blank line, so it is
        handed out, and counted to the last read.
        """
        self._reads = max(self._reads - 1, 0)
        events = [self._end_line(), self._end_line()]
        return [event for event in events if event is not None]

    def _end_line(self) -> ServerSentEvent | None:
        line = b"".join(self._line)
        self._line = []
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._type = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, kind = b"\n".join(self._data), self._type
        self._data, self._type = [], b""
        if not data:
            return None
        return ServerSentEvent(_text(kind) or "message", _text(data), self._reads)


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")
