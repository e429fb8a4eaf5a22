"""A server of planted streams: writes bytes at set times, and logs when it truly did.

One thread for each connection, plain sockets, TCP_NODELAY; a request names its script in the key
``script``, so many run at once. All times are `time.monotonic_ns` of this machine, which client and
server share.
"""

import contextlib
import json
import multiprocessing
import socket
import ssl
import threading
import time
from dataclasses import dataclass, field


@dataclass
class Script:
    """What to answer: the head after `head_at_s`, then each write at its time after the request was read."""

    writes: list[tuple[float, bytes]]
    head_at_s: float = 0.0
    status: int = 200
    content_type: str = "text/event-stream"
    framing: str = "chunked"
    end: str = "close"
    hold_s: float = 0.0
    raw: bool = False


@dataclass
class Served:
    """One request as the server saw it; `sent_ns[i]`: just before and just after write i."""

    script: str
    request: dict
    headers: dict[str, str]
    received_ns: int
    sent_ns: list[tuple[int, int]] = field(default_factory=list)
    due_ns: list[int] = field(default_factory=list)
    left: bool = False

    @property
    def lateness_ms(self) -> float:
        """How late the latest write was: the machine's disturbance, not the client's."""
        return max(((sent[1] - due) / 1e6 for sent, due in zip(self.sent_ns, self.due_ns, strict=True)), default=0.0)


class ReplayServer:
    """``with ReplayServer({"name": Script(...)}) as server: ... server.base_url, server.served``."""

    def __init__(self, scripts: dict[str, Script], tls: ssl.SSLContext | None = None, answer=None) -> None:
        self.scripts, self._tls, self._answer = scripts, tls, answer
        self.served: list[Served] = []
        self.connections = 0
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()

    def __enter__(self) -> "ReplayServer":
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        scheme = "https" if self._tls else "http"
        self.base_url = f"{scheme}://{'localhost' if self._tls else '127.0.0.1'}:{self.port}/v1"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        # A thread blocked in accept is not woken by close alone.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(5)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        self._open.add(connection)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._open.add(connection)
            while self._one(connection):
                pass
        except OSError:
            pass
        finally:
            self._open.discard(connection)
            connection.close()

    def _one(self, connection: socket.socket) -> bool:
        request = _read_request(connection)
        if request is None:
            return False
        path, headers, body = request
        served = Served(str(body.get("script", "")), body, headers, time.monotonic_ns())
        script = self._answer(path, body) if self._answer else self.scripts[served.script]
        self.served.append(served)
        try:
            return _play(connection, script, served, self._stopping)
        except OSError:
            served.left = True
            return False


def _read_request(connection: socket.socket):
    data = b""
    while b"\r\n\r\n" not in data:
        got = connection.recv(65536)
        if not got:
            return None
        data += got
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", 0)):
        body += connection.recv(65536)
    return first.split()[1], headers, json.loads(body or b"{}")


def _play(connection: socket.socket, script: Script, served: Served, stopping: threading.Event) -> bool:
    start_ns = served.received_ns
    if not script.raw:
        _sleep_until(start_ns + round(script.head_at_s * 1e9), stopping)
        connection.sendall(_head(script))
    for at_s, data in script.writes:
        due_ns = start_ns + round(at_s * 1e9)
        _sleep_until(due_ns, stopping)
        before_ns = time.monotonic_ns()
        chunked = script.framing == "chunked" and not script.raw
        connection.sendall(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
        served.sent_ns.append((before_ns, time.monotonic_ns()))
        served.due_ns.append(due_ns)
    if script.hold_s:
        stopping.wait(script.hold_s)
    if script.end == "abort" or script.raw or script.framing == "close":
        return False
    if script.framing == "chunked":
        connection.sendall(b"0\r\n\r\n")
    return True


def _head(script: Script) -> bytes:
    lines = [f"HTTP/1.1 {script.status} Planted", f"Content-Type: {script.content_type}"]
    if script.framing == "chunked":
        lines.append("Transfer-Encoding: chunked")
    elif script.framing == "length":
        lines.append(f"Content-Length: {sum(len(data) for _, data in script.writes)}")
    else:
        lines.append("Connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _sleep_until(due_ns: int, stopping: threading.Event) -> None:
    while (left := due_ns - time.monotonic_ns()) > 0:
        # A plain sleep is the more exact one; a long wait must end when the server does.
        if left > 200_000_000:
            stopping.wait((left - 100_000_000) / 1e9)
        else:
            time.sleep(left / 1e9)
        if stopping.is_set():
            raise ConnectionAbortedError("the server stops")


def script_of(case: dict) -> Script:
    """The script of one timed stream of the ground truth."""
    from tests.measure.stream_cases import write_bytes

    return Script(
        writes=[(write["at_ms"] / 1e3, write_bytes(write)) for write in case["writes"]],
        head_at_s=case.get("head_at_ms", 0) / 1e3,
        status=case.get("status", 200),
        content_type=case.get("content_type", "text/event-stream"),
        end=case.get("end", "close"),
        hold_s=case.get("hold_ms", 0) / 1e3,
    )


class ReplayProcess:
    """A `ReplayServer` in a process of its own, so that client and server do not share an interpreter's lock.

    ``with ReplayProcess(scripts) as server: ...``; `server.served` is what it logged, once asked for.
    """

    def __init__(self, scripts: dict[str, Script], answer=None) -> None:
        self._arguments = (scripts, answer)

    def __enter__(self) -> "ReplayProcess":
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve_in_process, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        if not self._pipe.poll(60):
            raise TimeoutError("the replay server did not start")
        self.base_url = self._pipe.recv()
        return self

    @property
    def served(self) -> list[Served]:
        """What was served since it was last asked."""
        self._pipe.send("served")
        return self._pipe.recv()

    def __exit__(self, *_: object) -> None:
        self._pipe.send("stop")
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()


def _serve_in_process(pipe, scripts: dict[str, Script], answer) -> None:
    with ReplayServer(scripts, answer=answer) as server:
        pipe.send(server.base_url)
        while pipe.recv() == "served":
            served, server.served = server.served, []
            pipe.send(served)


TEMPLATE_TOKENS = 11
"""What the planted chat template adds to a prompt."""


def chunk(**parts: object) -> bytes:
    """One event of a chat stream."""
    choice = {"index": 0, "delta": parts.pop("delta", {}), "finish_reason": parts.pop("finish_reason", None)}
    usage = parts.pop("usage", None)
    body = {"id": "c", "object": "chat.completion.chunk", "choices": parts.pop("choices", [choice])}
    return b"data: " + json.dumps(body | ({"usage": usage} if usage else {})).encode() + b"\n\n"


def refusal(status: int, message: str, delay_s: float = 0.0) -> Script:
    """A JSON error."""
    body = json.dumps({"error": {"message": message, "code": status}}).encode()
    return Script([(delay_s, body)], delay_s, status, "application/json", framing="length")


@dataclass
class PlantedModel:
    """Answers like a model that takes `ttft_s` to the first token and `tpot_s` for each further one.

    `tokenizes`: has ``/tokenize``. `unknown`: fields it answers 422 to. `fails(i)`: does request i get a 503?
    """

    ttft_s: float = 0.006
    tpot_s: float = 0.001
    tokenizes: bool = True
    counts: bool = True
    unknown: tuple[str, ...] = ()
    stops_after: int | None = None
    fails: object = None
    asked: int = 0

    def __call__(self, path: str, body: dict) -> Script:
        if path.endswith("/tokenize"):
            if not self.tokenizes:
                return refusal(404, "no such path")
            answer = json.dumps({"count": self.prompt_tokens(body)}).encode()
            return Script([(0.0, answer)], 0.0, 200, "application/json", framing="length")
        for field_name in self.unknown:
            if field_name in body:
                return refusal(422, f"unknown field {field_name}")
        self.asked += 1
        if self.fails is not None and self.fails(self.asked):
            return refusal(503, "overloaded")
        return self.stream(body)

    def prompt_tokens(self, body: dict) -> int:
        texts = [body["prompt"]] if "prompt" in body else [m["content"] for m in body["messages"]]
        return sum(len(text.split()) for text in texts) + (TEMPLATE_TOKENS if "messages" in body else 0)

    def stream(self, body: dict) -> Script:
        cap = body.get("max_tokens") or body.get("max_completion_tokens")
        ends_early = self.stops_after is not None and self.stops_after < cap and not body.get("ignore_eos")
        tokens = self.stops_after if ends_early else cap
        prompt = self.prompt_tokens(body)
        usage = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
        writes = [(self.ttft_s + i * self.tpot_s, chunk(delta={"content": f" t{i}"})) for i in range(tokens)]
        end_s = writes[-1][0]
        last = chunk(finish_reason="stop" if ends_early else "length")
        if self.counts and body.get("stream_options", {}).get("include_usage"):
            last += chunk(choices=[], usage=usage)
        writes.append((end_s, last + b"data: [DONE]\n\n"))
        return Script([(0.0, chunk(delta={"role": "assistant", "content": ""})), *writes])
