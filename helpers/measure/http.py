"""HTTP/1.1 on a socket of our own, so that the kernel can say when each byte arrived.

`Connection` is driven by a selector (`helpers.measure.driver`) and never blocks. Per read it keeps the
bytes and two times: the kernel's receive stamp and when this process had them. h11 frames the response;
nothing of the body is looked at but whether ``[DONE]`` came.

The kernel stamp (Linux, SO_TIMESTAMPNS) is of the wall clock. It is moved to the monotonic clock by the
difference of the two, taken when the connection opens and again when the exchange ends: where they differ
by more than `CLOCK_STEP_NS` the wall clock was set meanwhile, and the user stamps are used. Where a read
took several segments at once the stamp is the last one's.
"""

import contextlib
import errno
import os
import re
import selectors
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Mapping

import h11

from helpers.measure.endpoint import Endpoint
from helpers.measure.exchange import Exchange, Read

SO_TIMESTAMPNS = 35
"""Linux's number on all but a few old architectures; Python has no name for it."""

KERNEL_STAMPS = sys.platform == "linux" and struct.calcsize("l") == 8
HAS_ANCILLARY = hasattr(socket.socket, "recvmsg_into")
CLOCK_STEP_NS = 1_000_000
RECEIVE_BYTES = 1 << 16
MOST_BODY_BYTES = 1 << 28
KEPT_HEADERS = ("content-type", "server", "transfer-encoding", "content-length", "content-encoding", "retry-after")
"""Only these are kept of a response's headers: others may hold cookies and identities."""

_stamping: list[socket.socket] = []

_DONE = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\][ \t]*[\r\n]")
_TIMESPEC = struct.Struct("ll")


def keep_stamping() -> None:
    """Have the kernel stamp packets from now on until this process ends.

    Linux switches stamping on with the first socket that asks for it, a moment later, and off with the last:
    without one that stays, the first reads of a lone connection come without a stamp.
    """
    if KERNEL_STAMPS and not _stamping:
        keeper = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            keeper.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        _stamping.append(keeper)


def wall_minus_monotonic_ns() -> int:
    """The wall clock less the monotonic clock, from the tightest of a few looks at both."""
    looks = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        looks.append((after - before, wall - (before + after) // 2))
    return min(looks)[1]


def post_bytes(endpoint: Endpoint, target: str, body: bytes, key: str | None) -> tuple[h11.Request, bytes]:
    """The request head and body of a POST of JSON."""
    headers = [
        ("Host", endpoint.host_header),
        ("Content-Type", "application/json"),
        ("Content-Length", str(len(body))),
        ("Accept", "text/event-stream, application/json"),
        ("Accept-Encoding", "identity"),
        ("User-Agent", "inference-lab"),
    ]
    if key is not None:
        headers.append(("Authorization", f"Bearer {key}"))
    return h11.Request(method="POST", target=target, headers=headers), body


class Connection:
    """One TCP or TLS connection that carries one exchange after another.

    States: "connecting", "handshake", "ready", "busy", "closed". `step` moves it on when its socket is ready.
    """

    def __init__(self, endpoint: Endpoint, addresses: list[tuple], tls: ssl.SSLContext | None) -> None:
        self._endpoint, self._left_to_try, self._tls_context = endpoint, list(addresses), tls
        self.state = "closed"
        self.why_closed = ""
        self.connect_ns: int | None = None
        self.used = False
        self._out = b""
        self._buffer = bytearray(RECEIVE_BYTES)
        self._http = h11.Connection(h11.CLIENT)
        self._tls: ssl.SSLObject | None = None
        self._stamped = False
        self._offset_ns = 0
        self.pending: Pending | None = None
        self.sockets = 0
        self.begun_ns = time.monotonic_ns()
        self._connect_next()

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants(self) -> int:
        """What a selector should watch for."""
        writing = self.state == "connecting" or self._out
        return selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)

    @property
    def streaming(self) -> bool:
        """Is this the middle of a response, where nothing but the next read can follow?"""
        pending = self.pending
        return (
            self.state == "busy"
            and not self._out
            and pending.head_ns is not None
            and pending.end is None
            and pending.done_at_ns is None
        )

    def close(self, why: str = "") -> None:
        if self.state != "closed":
            self.state, self.why_closed = "closed", why
            self._socket.close()

    def send(self, pending: "Pending", head: h11.Request, body: bytes) -> None:
        """Start an exchange on a ready connection; its start stamp is taken here, just before the bytes leave."""
        plain = self._http.send(head) + self._http.send(h11.Data(data=body)) + self._http.send(h11.EndOfMessage())
        if self._tls is not None:
            self._tls.write(plain)
            plain = self._outgoing.read()
        pending.connect_ns = None if self.used else self.connect_ns
        self.state, self.used, self.pending = "busy", True, pending
        self._out = plain
        pending.start_ns = time.monotonic_ns()
        self._flush()

    def release(self) -> bool:
        """End the exchange; True where the connection can carry another one."""
        self.pending = None
        if self.state == "busy" and self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.state = "ready"
            return True
        self.close()
        return False

    def stamps_hold(self) -> bool:
        """Was the wall clock left alone since the connection opened?"""
        return self._stamped and abs(wall_minus_monotonic_ns() - self._offset_ns) <= CLOCK_STEP_NS

    def step(self, mask: int) -> None:
        """Do what the socket is ready for."""
        try:
            if self.state == "connecting" and mask & selectors.EVENT_WRITE:
                self._connected()
            elif self.state == "handshake":
                if mask & selectors.EVENT_READ:
                    self._receive_into_tls()
                self._handshake()
            else:
                if mask & selectors.EVENT_WRITE:
                    self._flush()
                if mask & selectors.EVENT_READ and self.state in ("ready", "busy"):
                    self._receive()
        except BlockingIOError:
            pass
        except ssl.SSLError as error:
            self._fail(f"TLS: {error.reason or error}", "refused" if self.state == "handshake" else "cut")
        except OSError as error:
            self._fail(_reason(error), "cut")

    def _connect_next(self) -> None:
        family, address = self._left_to_try.pop(0)
        try:
            self._socket = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            self.why_closed = _reason(error)
            return
        # Counted because a new socket may get the number of the one just closed.
        self.sockets += 1
        self.state = "connecting"
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if KERNEL_STAMPS:
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
                self._stamped = True
            except OSError:
                self._stamped = False
        code = self._socket.connect_ex(address)
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._not_connected(code)

    def _not_connected(self, code: int) -> None:
        self.close(os.strerror(code))
        if self._left_to_try:
            self._connect_next()

    def _connected(self) -> None:
        code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._not_connected(code)
            return
        self._offset_ns = wall_minus_monotonic_ns()
        if self._tls_context is None:
            self._ready()
            return
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = self._tls_context.wrap_bio(self._incoming, self._outgoing, server_hostname=self._endpoint.host)
        self.state = "handshake"
        self._handshake()

    def _ready(self) -> None:
        self.state, self.connect_ns = "ready", time.monotonic_ns() - self.begun_ns

    def _handshake(self) -> None:
        try:
            self._tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        self._out += self._outgoing.read()
        self._flush()
        if done:
            self._ready()

    def _receive_into_tls(self) -> None:
        data = self._socket.recv(RECEIVE_BYTES)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def _flush(self) -> None:
        try:
            while self._out:
                self._out = self._out[self._socket.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError as error:
            # The answer may have come before the connection broke; reading finds out.
            self._out = b""
            if self.pending is not None:
                self.pending.detail = _reason(error)

    def _receive(self) -> None:
        if HAS_ANCILLARY:
            count, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], 64)
        else:
            count, ancillary = self._socket.recv_into(self._buffer), []
        user_ns = time.monotonic_ns()
        if self.pending is None:
            # Nothing was asked: the server closes an idle connection, or says what nobody wanted to hear.
            if self._tls is None or count == 0:
                self.close("closed by the server while idle")
            else:
                self._decrypt(bytes(memoryview(self._buffer)[:count]))
            return
        kernel_ns = self._kernel_ns(ancillary)
        data = bytes(memoryview(self._buffer)[:count])
        ended = count == 0
        if self._tls is not None:
            data, ended = self._decrypt(data)
        if data or ended:
            self._frame(data, ended, user_ns, kernel_ns)

    def _decrypt(self, data: bytes) -> tuple[bytes, bool]:
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        plain = []
        while True:
            try:
                piece = self._tls.read(RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                return b"".join(plain), True
            except ssl.SSLEOFError:
                # No good-bye: whether a body without a length was whole cannot be known.
                self.pending.cut_short = True
                return b"".join(plain), True
            if not piece:
                return b"".join(plain), True
            plain.append(piece)
        # A renewal of keys may want an answer.
        self._out += self._outgoing.read()
        return b"".join(plain), False

    def _kernel_ns(self, ancillary: list[tuple[int, int, bytes]]) -> int | None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
                seconds, nanoseconds = _TIMESPEC.unpack(data)
                return seconds * 10**9 + nanoseconds - self._offset_ns
        return None

    def _frame(self, data: bytes, ended: bool, user_ns: int, kernel_ns: int | None) -> None:
        pending = self.pending
        pending.heard = pending.heard or bool(data)
        pieces: list[bytes] = []
        try:
            if data:
                self._http.receive_data(data)
                self._take_events(pending, pieces, user_ns if kernel_ns is None else kernel_ns)
            if ended and pending.end is None:
                if not pending.cut_short:
                    self._http.receive_data(b"")
                    self._take_events(pending, pieces, user_ns if kernel_ns is None else kernel_ns)
                if pending.end is None:
                    pending.finish("cut", "the connection was closed before the response ended", user_ns)
        except h11.RemoteProtocolError as error:
            if ended:
                pending.finish("cut", "the connection was closed before the response ended", user_ns)
            else:
                pending.finish("protocol", f"what came back is no HTTP/1.1: {error}", user_ns)
        if pieces:
            pending.take(Read(user_ns, b"".join(pieces), kernel_ns))
        if ended and self.state != "closed":
            self.close()

    def _take_events(self, pending: "Pending", pieces: list[bytes], at_ns: int) -> None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Response):
                pending.take_head(event, at_ns)
            elif isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                pending.finish("complete", "", at_ns)
                return
            elif event is h11.NEED_DATA or event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return

    def _fail(self, why: str, end: str) -> None:
        if self.pending is not None:
            self.pending.finish(end, why, time.monotonic_ns())
        self.close(why)


class Pending:
    """An exchange under way: only appended to while the stream runs."""

    def __init__(
        self,
        request: Mapping[str, object],
        *,
        intended_ns: int | None = None,
        key: str | None = None,
        on_read: Callable[[Read], None] | None = None,
    ) -> None:
        self.request, self.intended_ns, self._key, self._on_read = request, intended_ns, key, on_read
        self.begun_ns = time.monotonic_ns()
        self.start_ns: int | None = None
        self.connect_ns: int | None = None
        self.reads: list[Read] = []
        self.head_ns: int | None = None
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.heard = False
        self.cut_short = False
        self.end: str | None = None
        self.end_ns = 0
        self.done_at_ns: int | None = None
        self.detail = ""
        self._tail = b""
        self._body_bytes = 0

    def take_head(self, response: h11.Response, at_ns: int) -> None:
        self.status, self.head_ns = response.status_code, at_ns
        named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        self.headers = {name: named[name] for name in KEPT_HEADERS if name in named}
        if named.get("content-encoding", "identity") != "identity":
            coding = named["content-encoding"]
            self.finish("protocol", f"the body is compressed ({coding}), which was not asked for", at_ns)

    def take(self, read: Read) -> None:
        self.reads.append(read)
        self._body_bytes += len(read.data)
        tail = self._tail + read.data
        if b"[DONE]" in tail and self.done_at_ns is None and _DONE.search(tail):
            self.done_at_ns = read.user_ns
        # As much as the longest spelling of the end mark may have been cut from.
        self._tail = tail[-32:]
        if self._body_bytes > MOST_BODY_BYTES:
            self.finish("protocol", f"the body is larger than {MOST_BODY_BYTES} bytes", read.user_ns)
        if self._on_read is not None:
            self._on_read(read)

    def finish(self, end: str, detail: str, at_ns: int) -> None:
        if self.end is None:
            self.end, self.detail, self.end_ns = end, detail or self.detail, at_ns

    def exchange(self, stamps_hold: bool) -> Exchange:
        """The finished exchange, without kernel stamps where they do not hold and without any echo of the key."""
        reads = self.reads if stamps_hold else [Read(r.user_ns, r.data) for r in self.reads]
        start_ns = self.begun_ns if self.start_ns is None else self.start_ns
        return Exchange(
            request=self.request,
            start_ns=start_ns,
            end=self.end or "left",
            end_ns=max(self.end_ns, start_ns),
            reads=tuple(without_key(reads, self._key)),
            status=self.status,
            headers={name: self._hidden(value) for name, value in self.headers.items()},
            head_ns=self.head_ns,
            intended_ns=self.intended_ns,
            connect_ns=self.connect_ns,
            detail=self._hidden(self.detail),
        )

    def _hidden(self, text: str) -> str:
        return text.replace(self._key, "*" * len(self._key)) if self._key else text


def without_key(reads: list[Read], key: str | None) -> list[Read]:
    """The same reads with every echo of the key overwritten by as many stars, also one cut between reads."""
    if not key:
        return reads
    body = b"".join(read.data for read in reads)
    secret = key.encode()
    if secret not in body:
        return reads
    body = body.replace(secret, b"*" * len(secret))
    cleaned, at = [], 0
    for read in reads:
        cleaned.append(Read(read.user_ns, body[at : at + len(read.data)], read.kernel_ns))
        at += len(read.data)
    return cleaned


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else str(error)
