"""One request and what came back for it: bytes and times, nothing interpreted yet.

Everything the client reports is computed from this record, so a stored one gives the same numbers again.
All times are nanoseconds of this process's monotonic clock.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

ENDS = ("complete", "done", "cut", "refused", "timeout", "protocol", "left")
"""How an exchange ended.

complete  the response ended as HTTP says it should
done      ``[DONE]`` came and the response was still open: nothing more was waited for
cut       the connection closed or was reset in mid-response
refused   no connection was made
timeout   the time allowed ran out
protocol  what came back is no HTTP/1.1 that is understood
left      the client went away on purpose
"""


@dataclass(frozen=True)
class Read:
    """The body bytes of one read from the socket.

    `kernel_ns`: when the kernel received the last of them; None where the system does not tell.
    `user_ns`: when this process had them.
    """

    user_ns: int
    data: bytes
    kernel_ns: int | None = None

    @property
    def at_ns(self) -> int:
        return self.user_ns if self.kernel_ns is None else self.kernel_ns


@dataclass(frozen=True)
class Exchange:
    """A request as sent and its response as received.

    `start_ns`: just before the first byte was handed to the kernel, on an open connection.
    `intended_ns`: when the plan wanted it sent (open loop); None where there was no such plan.
    `connect_ns`: how long the connection took (name look-up left out; TLS inside); None on one used before.
    """

    request: Mapping[str, object]
    start_ns: int
    end: str
    end_ns: int
    reads: tuple[Read, ...] = ()
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    head_ns: int | None = None
    intended_ns: int | None = None
    connect_ns: int | None = None
    detail: str = ""

    @property
    def body(self) -> bytes:
        return b"".join(read.data for read in self.reads)

    @property
    def stamps(self) -> str:
        """Who stamped the reads: "kernel", "user" or "mixed"; "none" where nothing was read."""
        kinds = {"user" if read.kernel_ns is None else "kernel" for read in self.reads}
        return "mixed" if len(kinds) == 2 else next(iter(kinds), "none")
