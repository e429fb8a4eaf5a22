"""Measure one request: TTFT, TPOT and what else its stream tells."""

import json
import time
from collections.abc import Callable, Mapping

from helpers.errors import InputError
from helpers.measure.driver import Driver, Job
from helpers.measure.endpoint import key_from, parse_endpoint
from helpers.measure.exchange import Exchange, Read
from helpers.measure.stream import RequestResult, read_stream

CHAT, COMPLETIONS = "/chat/completions", "/completions"


def measure_request(
    base_url: str,
    request: Mapping[str, object],
    *,
    path: str = CHAT,
    key_variable: str | None = None,
    timeout_s: float = 600.0,
    ca_file: str | None = None,
    on_read: Callable[[Read], None] | None = None,
) -> RequestResult:
    """Send one streaming request and say when its output came.

    `base_url` as the `openai` client takes it, ending in ``/v1``; `request` a dict, posted to `path` with
    ``stream`` on and usage asked for. `key_variable` names the environment variable that holds the key.
    `on_read` is called with every read as it arrives (for a live display: it costs time, and the kernel's
    stamps do not mind). Whatever the server does comes back as a result, its `error` set where it failed;
    InputError is raised only on a request or URL that cannot be sent.
    """
    return read_stream(
        exchange_once(
            base_url,
            request,
            path=path,
            key_variable=key_variable,
            timeout_s=timeout_s,
            ca_file=ca_file,
            on_read=on_read,
        )
    )


def exchange_once(
    base_url: str,
    request: Mapping[str, object],
    *,
    path: str = CHAT,
    key_variable: str | None = None,
    timeout_s: float = 600.0,
    ca_file: str | None = None,
    on_read: Callable[[Read], None] | None = None,
) -> Exchange:
    """The same request as raw bytes and times, from which `read_stream` computes the result."""
    endpoint, body = parse_endpoint(base_url), streaming(request)
    with Driver(endpoint, key=key_from(key_variable), ca_file=ca_file, timeout_s=timeout_s) as driver:
        driver.start(Job(encoded(body), body, endpoint.path + path, on_read=on_read))
        return wait_for_one(driver)


def wait_for_one(driver: Driver) -> Exchange:
    """The exchange of the only job under way; the driver's own time limits end it."""
    while True:
        for _, exchange in driver.poll(time.monotonic_ns() + 1_000_000_000):
            return exchange


def streaming(request: Mapping[str, object]) -> dict[str, object]:
    """The request with streaming on and usage asked for, unless it says itself what it wants.

    Raises InputError where it asks for what one stream cannot show: no streaming, or several choices.
    """
    if not isinstance(request, Mapping):
        raise InputError(f"a request must be a dict, not {type(request).__name__}")
    if request.get("stream", True) is not True:
        raise InputError("request key 'stream' must be true: without a stream there is no TTFT")
    if request.get("n", 1) not in (1, None) or request.get("best_of", 1) not in (1, None):
        raise InputError("request keys 'n' and 'best_of' must be 1: several choices share one token count")
    return {"stream_options": {"include_usage": True}, **request, "stream": True}


def encoded(request: Mapping[str, object]) -> bytes:
    """The request as JSON bytes. Raises InputError where it holds what JSON cannot."""
    try:
        return json.dumps(request, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"the request is not JSON ({error})") from error
