"""The web side: routes, streams and errors, on one event loop; it hands requests to the engine and never computes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from helpers.serve import protocol
from helpers.serve.engine import Engine, Overloaded, Stopped
from helpers.serve.protocol import DONE, Answer, ApiError, Call, ServedModel
from helpers.serve.request import Output, Request

LARGEST_BODY = 8_000_000
"""Bytes of the largest request body."""

PARSED_AT_ONCE = 20_000
"""Bytes up to which a body is tokenised on the event loop; a longer one would hold up everybody's tokens."""


def create_app(engine: Engine, name: str) -> Starlette:
    """The ASGI application that serves `engine` under the model name `name`."""
    model = ServedModel(
        name, engine.tokenizer, engine.decoder.model.vocab_size, engine.max_tokens, engine.options.system_prompt
    )
    started = int(time.time())

    async def answer(http: HttpRequest, parse: Callable[[dict, ServedModel], Call], chat: bool) -> Response:
        body = await read_body(http)
        received = time.perf_counter()
        call = await parsed(body, parse, model)
        request, outputs = submit(engine, call, received)
        reply = Answer(name, call, request, chat)
        if call.stream:
            early = engine.options.headers == "early"
            return EventStream(events(reply, outputs, early), early, lambda: engine.cancel(request))
        try:
            return await unless_gone(http, whole(reply, outputs))
        finally:
            engine.cancel(request)

    async def chat_completions(http: HttpRequest) -> Response:
        return await answer(http, protocol.parse_chat, chat=True)

    async def completions(http: HttpRequest) -> Response:
        return await answer(http, protocol.parse_completion, chat=False)

    about = {"id": name, "object": "model", "created": started, "owned_by": "inference-lab"}
    about["max_model_len"] = model.max_tokens

    async def models(http: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [about]})

    async def one_model(http: HttpRequest) -> Response:
        protocol.check_model({"model": http.path_params["model"]}, model)
        return JSONResponse(about)

    async def health(http: HttpRequest) -> Response:
        return Response(status_code=200 if engine.alive else 503)

    async def metrics(http: HttpRequest) -> Response:
        return PlainTextResponse(engine.metrics.text(name), media_type="text/plain; version=0.0.4")

    async def tokenize(http: HttpRequest) -> Response:
        tokens = await parsed(await read_body(http), protocol.parse_tokenize, model)
        return JSONResponse(
            {"count": len(tokens), "max_model_len": model.max_tokens, "tokens": tokens, "token_strs": None}
        )

    async def detokenize(http: HttpRequest) -> Response:
        return JSONResponse({"prompt": await parsed(await read_body(http), protocol.parse_detokenize, model)})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            # A name may hold slashes: random:org/model, or a path.
            Route("/v1/models/{model:path}", one_model),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
        ],
        exception_handlers={
            ApiError: lambda http, error: error_response(error),
            HTTPException: lambda http, error: error_response(ApiError(error.status_code, error.detail)),
            ClientDisconnect: lambda http, error: Response(status_code=400),
            Exception: lambda http, error: error_response(protocol.engine_error(f"{type(error).__name__}: {error}")),
        },
    )


def error_response(error: ApiError) -> Response:
    """The JSON error object with its status; overload says when to come again."""
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return JSONResponse(error.as_json(), error.status, headers)


async def read_body(http: HttpRequest) -> bytes:
    """The whole request body. Raises ApiError 413 for one larger than `LARGEST_BODY`."""
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            raise ApiError(413, f"the request body is larger than {LARGEST_BODY} bytes")
    return bytes(body)


async def parsed(body: bytes, parse: Callable, model: ServedModel):
    """What `parse` makes of the JSON object in `body`."""
    if len(body) <= PARSED_AT_ONCE:
        return parse(protocol.parse_json(body), model)
    return await asyncio.to_thread(lambda: parse(protocol.parse_json(body), model))


def submit(engine: Engine, call: Call, received: float) -> tuple[Request, asyncio.Queue[Output]]:
    """Queue a call with the engine. Raises ApiError 429 where the queue is full, 503 where the server shuts down."""
    outputs: asyncio.Queue[Output] = asyncio.Queue()
    request = Request(call.prompt, call.sampling, outputs.put_nowait)
    request.times.received_s = received
    try:
        engine.submit(request)
    except Overloaded as error:
        raise ApiError(429, str(error), code="queue_full", kind="overloaded_error") from error
    except Stopped as error:
        raise ApiError(503, str(error), kind="server_error") from error
    return request, outputs


async def outputs_until_last(outputs: asyncio.Queue[Output]) -> AsyncIterator[Output]:
    """Outputs as they come, the last included. Raises ApiError where the engine failed."""
    while True:
        output = await outputs.get()
        if output.error is not None:
            raise protocol.engine_error(output.error)
        yield output
        if output.last:
            return


async def whole(reply: Answer, outputs: asyncio.Queue[Output]) -> Response:
    """The answer in one piece."""
    texts = []
    async for output in outputs_until_last(outputs):
        texts.append(output.text)
    return JSONResponse(reply.whole("".join(texts), output))


async def events(reply: Answer, outputs: asyncio.Queue[Output], early: bool) -> AsyncIterator[bytes]:
    """The event stream of an answer: role, one event for each output that has text, usage where asked for, [DONE].

    An output without text (half a character, the beginning of a stop string, a control token) is no event: its token
    counts in the next one's usage.
    """
    times = reply.request.times
    role_due = reply.chat
    if early and role_due:
        yield reply.role_event()
        role_due = False
    async for output in outputs_until_last(outputs):
        if role_due:
            yield reply.role_event()
            role_due = False
        if output.text or output.last:
            if times.first_event_sent_s is None:
                # Before the write: after it the client may have the event before this thread runs again.
                times.first_event_sent_s = time.perf_counter()
            yield reply.event(output, last=output.last and not reply.call.include_usage)
    if reply.call.include_usage:
        yield reply.usage_event(output.output_tokens)
    yield DONE


async def unless_gone(http: HttpRequest, work) -> Response:
    """The result of a coroutine, or of nothing as soon as the client has left."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(http.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else Response(status_code=400)
    finally:
        await cancelled(task, gone)


async def disconnected(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def cancelled(*tasks: asyncio.Future) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """A response of server-sent events that ends when the client leaves; `done` is called in every case.

    `early`: headers go out before the first event is there. Otherwise they wait for it, so that a failure before it is
    an HTTP error; later it is an event with an `error` object. (Starlette's own StreamingResponse sends its headers at
    once and leaves a generator that it cancels to the garbage collector.)
    """

    def __init__(self, events: AsyncIterator[bytes], early: bool, done: Callable[[], None]) -> None:
        self.status_code, self.background = 200, None
        self.init_headers({"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"})
        self.events, self.early, self.done = events, early, done

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(scope, receive, send))
        gone = asyncio.ensure_future(disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            await cancelled(sending, gone)
            self.done()

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = self.early
        if started:
            await self._start(send)
        try:
            async for event in self.events:
                if not started:
                    await self._start(send)
                    started = True
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except ApiError as error:
            if not started:
                await error_response(error)(scope, receive, send)
                return
            event = protocol.server_sent_event(error.as_json()) + DONE
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
