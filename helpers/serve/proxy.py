"""A proxy to plant faults of the path with: it relays bytes, and holds them back as real gateways do.

Without a fault it is a plain relay that changes no byte. It runs as a process of its own, so that it shares no global
lock with the client that is measured through it; that process runs this file, which therefore imports nothing heavy.
"""

import argparse
import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"
_OUTPUT = re.compile(rb'"(?:content|text|reasoning_content|reasoning)": ?"[^"]')
_PIECE = 1 << 16


@contextlib.contextmanager
def proxy(
    upstream_url: str,
    *,
    buffer_bytes: int = 0,
    first_event_delay_s: float = 0.0,
    close_each: bool = False,
    accept_delay_s: float = 0.0,
) -> Iterator[str]:
    """Relay to the server at `upstream_url` inside a ``with`` block; gives the base URL to use instead of it.

    `buffer_bytes`: a stream goes on only when so many bytes of it are there, or its end. `first_event_delay_s`: a timer
    starts with the first event that has output, and nothing goes on until it rings. `close_each`: every connection
    carries one response and is closed. `accept_delay_s`: a new connection is served only after so long (as behind a
    TLS handshake, a look-up, a slow load balancer). Raises InputError for an upstream that is not plain HTTP, and for a
    number below 0.
    """
    from helpers.errors import InputError

    parts = urlsplit(upstream_url)
    if parts.scheme != "http" or not parts.hostname:
        raise InputError(f"upstream_url must look like http://HOST:PORT/v1, not {upstream_url!r}")
    faults = {
        "buffer_bytes": buffer_bytes,
        "first_event_delay_s": first_event_delay_s,
        "accept_delay_s": accept_delay_s,
    }
    for name, value in faults.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise InputError(f"{name} must be a number of at least 0, not {value!r}")
    words = [f"--{name.replace('_', '-')}={value}" for name, value in faults.items()]
    words += ["--close-each"] * bool(close_each)
    command = [sys.executable, "-P", __file__, f"--host={parts.hostname}", f"--port={parts.port or 80}", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise InputError("the proxy did not start")
        yield f"http://{LOOPBACK}:{port}{parts.path.rstrip('/')}"
    finally:
        process.terminate()
        process.wait()
        process.stdin.close()
        process.stdout.close()


class Framing:
    """Where each response of a connection begins and ends: ``feed`` cuts the bytes into heads and bodies.

    Every byte comes out again, in order, as ("head" | "body", bytes); ("end", b"") follows a response whose length is
    known. `streams`: is the body of the current response one in chunks?
    """

    def __init__(self) -> None:
        self.streams = False
        self._state, self._line, self._left = "head", b"", 0

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes]]:
        """The pieces of `data`."""
        while data:
            if self._state == "head":
                self._line += data
                head, end, data = self._line.partition(b"\r\n\r\n")
                if not end:
                    return
                self._line = b""
                self._begin(head)
                yield "head", head + end
            else:
                taken = self._take(data)
                yield "body", data[:taken]
                data = data[taken:]
            if self._state == "end":
                self._state = "head"
                yield "end", b""

    def _begin(self, head: bytes) -> None:
        status, *lines = head.lower().split(b"\r\n")
        headers = {name.strip(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        code = status.split()[1]
        self.streams = b"chunked" in headers.get(b"transfer-encoding", b"")
        if code[:1] == b"1":
            # Another head follows.
            self._state = "head"
        elif code in (b"204", b"304"):
            self._state = "end"
        elif self.streams:
            self._state = "size"
        elif b"content-length" in headers:
            self._left = int(headers[b"content-length"])
            self._state = "rest" if self._left else "end"
        else:
            self._state = "open"

    def _take(self, data: bytes) -> int:
        """Move on by some of `data`: how many bytes that were."""
        if self._state == "open":
            return len(data)
        if self._state in ("rest", "chunk"):
            taken = min(len(data), self._left)
            self._left -= taken
            if not self._left:
                self._state = "end" if self._state == "rest" else "size"
            return taken
        # The line of a chunk's size, or of a trailer.
        at = data.find(b"\n")
        taken = len(data) if at < 0 else at + 1
        self._line += data[:taken]
        if at >= 0:
            line, self._line = self._line.strip(), b""
            if self._state == "size":
                size = int(line.partition(b";")[0], 16)
                self._state, self._left = ("chunk", size + 2) if size else ("trailer", 0)
            elif not line:
                self._state = "end"
        return taken


def _closing(head: bytes) -> bytes:
    """The head of a response after which the connection ends."""
    lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith((b"connection:", b"keep-alive:"))]
    return b"\r\n".join([*lines, b"connection: close"]) + b"\r\n\r\n"


async def _relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_PIECE):
        writer.write(data)
        await writer.drain()


async def _respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, faults: argparse.Namespace) -> None:
    """Relay responses with the faults on them."""
    framing, held, said, rung = Framing(), b"", b"", False
    while data := await reader.read(_PIECE):
        for kind, piece in framing.feed(data):
            if kind == "head":
                said, rung = b"", not framing.streams
                writer.write(_closing(piece) if faults.close_each else piece)
            elif kind == "body":
                held += piece
                if not rung:
                    said += piece
                    rung = bool(_OUTPUT.search(said))
                    if rung:
                        await asyncio.sleep(faults.first_event_delay_s)
            if held and (kind == "end" or not framing.streams or len(held) >= faults.buffer_bytes):
                writer.write(held)
                held = b""
            if kind == "end" and faults.close_each:
                await writer.drain()
                return
        await writer.drain()
    writer.write(held)
    await writer.drain()


async def _serve(faults: argparse.Namespace) -> None:
    faulty = bool(faults.buffer_bytes or faults.first_event_delay_s or faults.close_each)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = [writer]
        try:
            await asyncio.sleep(faults.accept_delay_s)
            their_reader, their_writer = await asyncio.open_connection(faults.host, faults.port)
            writers.append(their_writer)
            for one in writers:
                one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answers = _respond(their_reader, writer, faults) if faulty else _relay(their_reader, writer)
            tasks = [asyncio.ensure_future(work) for work in (_relay(reader, their_writer), answers)]
            # Whoever goes first ends both: a client that left must be seen leaving by the server.
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        except OSError:
            pass
        finally:
            for one in writers:
                one.close()

    server = await asyncio.start_server(connected, LOOPBACK, 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    # Until whoever started this process has gone.
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--buffer-bytes", type=float)
    parser.add_argument("--first-event-delay-s", type=float)
    parser.add_argument("--accept-delay-s", type=float)
    parser.add_argument("--close-each", action="store_true")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    _main()
