"""Start and stop the server: in a thread of this process, or as a process of its own."""

import asyncio
import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import uvicorn

from helpers.engine import Decoder
from helpers.errors import InputError
from helpers.serve.app import create_app
from helpers.serve.engine import Engine
from helpers.serve.options import Options

LOOPBACK = "127.0.0.1"
READY = "serve: ready at "
"""What the command says on stderr, with the base URL after it, when it takes requests."""

STOP_SECONDS = 5


@contextlib.contextmanager
def running(
    decoder: Decoder,
    tokenizer,
    options: Options | None = None,
    port: int = 0,
    host: str = LOOPBACK,
    name: str | None = None,
) -> Iterator[str]:
    """Serve a decoder from a thread of this process inside a ``with`` block; gives the base URL, ending in ``/v1``.

    `port` 0 takes a free one; `name`: the model's name in the API, by default the decoder's. A client in the same
    process shares Python's global lock with the server, which delays both: to measure, use `spawned`. Raises InputError
    where the address cannot be had.
    """
    engine = Engine(decoder, tokenizer, options)
    listener = bound(host, port)
    config = uvicorn.Config(
        create_app(engine, name or decoder.model.name),
        log_config=None,
        access_log=False,
        lifespan="off",
        loop="asyncio",
        http="h11",
        ws="none",
        # Clients that open their connections beforehand find them open still.
        timeout_keep_alive=300,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    server = uvicorn.Server(config)
    ready = threading.Event()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        engine.dispatch = loop.call_soon_threadsafe
        engine.start()
        # The socket listens already: from here on a connection waits for the loop, it is not refused.
        ready.set()
        await server.serve(sockets=[listener])

    web = threading.Thread(target=lambda: asyncio.run(serve()), name="web", daemon=True)
    web.start()
    try:
        ready.wait()
        yield f"http://{_url_host(host)}:{listener.getsockname()[1]}/v1"
    finally:
        # First the engine: its last words let every stream end.
        engine.stop()
        server.should_exit = True
        web.join(2 * STOP_SECONDS)


@contextlib.contextmanager
def spawned(model: str, options: Options | None = None, *arguments: str) -> Iterator[str]:
    """Serve from a process of its own inside a ``with`` block; gives the base URL, ending in ``/v1``.

    `model` and `arguments` are those of ``python -m helpers serve``. Two processes share no global lock, so a client
    here can be timed. Raises InputError with the server's own words where it does not start.
    """
    words = [sys.executable, "-m", "helpers", "serve", f"--model={model}", "--port=0"]
    words += [*(options or Options()).as_arguments(), *arguments]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, text=True, **pipes)
    try:
        yield _base_url(process)
    finally:
        process.terminate()
        try:
            process.wait(2 * STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stderr.close()


def _base_url(process: subprocess.Popen) -> str:
    said = []
    for line in process.stderr:
        if line.startswith(READY):
            # Whatever it says later must not fill the pipe and stop it.
            threading.Thread(target=_drain, args=(process.stderr,), daemon=True).start()
            return line.removeprefix(READY).split()[0]
        said.append(line.strip())
    raise InputError(f"the server did not start: {(said or ['it said nothing'])[-1]}")


def _drain(stream) -> None:
    with contextlib.suppress(ValueError):
        for _ in stream:
            pass


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError, naming the address, where there is none to be had."""
    # getaddrinfo cuts a larger number to 16 bits and would listen somewhere else.
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= 65535:
        raise InputError(f"port must be a whole number from 0 to 65535, not {port!r}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio sets TCP_NODELAY only on sockets that name their protocol. Without it the first event of every request
        # but a connection's first waits for the client's delayed acknowledgement, 40 ms on Linux.
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"cannot listen on {host} port {port} ({error})") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {host} port {port} ({error.strerror or error})") from error
    return listener


def _url_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host
