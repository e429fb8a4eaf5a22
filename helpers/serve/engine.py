"""The engine thread: one loop that takes requests in, computes step after step, and hands tokens out."""

import secrets
import threading
import time
from collections.abc import Callable

import torch

from helpers.engine import Decoder, PagedKVCache, dtype_name
from helpers.engine.generate import choose
from helpers.engine.paged_quantized import QuantizedPagedKVCache
from helpers.engine.speculative import accepted
from helpers.serve.chat import end_tokens
from helpers.serve.metrics import Metrics
from helpers.serve.options import Options
from helpers.serve.request import Output, Request
from helpers.serve.scheduler import Scheduler, Step
from helpers.serve.text import TextStream


class Overloaded(Exception):
    """As many requests run and wait as the options allow."""


class Stopped(Exception):
    """The engine takes no requests any more."""


class Engine:
    """Continuous batching of requests on one decoder; `submit` and `cancel` may be called from any thread.

    Every `Output` goes to its request's listener through `dispatch(function)`, which runs the function where listeners
    live, e.g. on an event loop; by default at once, in the engine's thread. `start` begins, `stop` ends the loop, and
    with it what is not finished. Without `start`, `step` does one step: tests drive it so.
    """

    def __init__(self, decoder: Decoder, tokenizer, options: Options | None = None) -> None:
        self.decoder, self.tokenizer, self.options = decoder, tokenizer, options or Options()
        self.cache = self._new_cache()
        self.scheduler = Scheduler(
            self.cache, self.options.max_batch, self.options.prefill_chunk, self.options.speculate
        )
        self.end_tokens = end_tokens(tokenizer)
        self.metrics = Metrics()
        self.dispatch: Callable[[Callable[[], None]], object] = lambda function: function()
        self._news = threading.Condition()
        self._arrived: list[Request] = []
        self._left: list[Request] = []
        self._unfinished: set[Request] = set()
        self._outputs: list[tuple[Request, Output]] = []
        self._stopping = False
        self._torch_threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def _new_cache(self) -> PagedKVCache:
        decoder, options = self.decoder, self.options
        shape = (decoder.model, options.kv_blocks, options.block_tokens)
        where = (decoder.dtype, decoder.device, options.prefix_caching)
        if options.kv_dtype in (None, dtype_name(decoder.dtype)):
            return PagedKVCache(*shape, *where)
        return QuantizedPagedKVCache(*shape, *where, store=options.kv_dtype)

    @property
    def max_tokens(self) -> int:
        """Prompt and answer of one request together: the model's positions or window, or what all blocks hold."""
        model = self.decoder.model
        # This decoder does not cut a sliding window, so a request must fit into it.
        windows = [window for layer in model.layers if (window := layer.attention.window) is not None]
        return min(model.max_position_embeddings, self.cache.blocks * self.cache.block_tokens, *windows)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._arrived) + len(self.scheduler.waiting)

    @property
    def alive(self) -> bool:
        """Whether the loop runs."""
        return self._thread.is_alive() and not self._stopping

    def start(self) -> None:
        """Begin the loop."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the current step; requests that are not finished fail. Does nothing a second time."""
        with self._news:
            self._stopping = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, request: Request) -> None:
        """Queue a request. Raises Overloaded where `max_batch` + `max_queue` are unfinished, Stopped after `stop`."""
        with self._news:
            if self._stopping:
                raise Stopped("the server is shutting down")
            if len(self._unfinished) >= self.options.max_batch + self.options.max_queue:
                self.metrics.rejected()
                raise Overloaded(f"{len(self._unfinished)} requests are running or waiting, which is the most")
            request.text = TextStream(self.tokenizer, request.sampling.stop)
            request.times.queued_s = time.perf_counter()
            self._unfinished.add(request)
            self._arrived.append(request)
            self._news.notify()

    def cancel(self, request: Request) -> None:
        """Forget a request whose client has left; nothing where it is finished."""
        with self._news:
            if request in self._unfinished:
                self._left.append(request)
                self._news.notify()

    def _run(self) -> None:
        # torch keeps this number for each thread.
        torch.set_num_threads(self._torch_threads)
        try:
            while self._wait_for_work():
                try:
                    self.step()
                except Exception as error:
                    # Out of memory, say: those who run now are told, those who wait have their chance.
                    for request in list(self.scheduler.running or self.scheduler.waiting):
                        self._end(request, Output(error=f"the engine failed: {type(error).__name__}: {error}"))
                    self._flush()
                    self._report()
            for request in list(self._unfinished):
                self._end(request, Output(error="the server is shutting down"))
        finally:
            # However the loop ended, nobody is left waiting for it.
            with self._news:
                self._stopping = True
                left, self._unfinished = self._unfinished, set()
            self._outputs += [(request, Output(error="the engine has stopped")) for request in left]
            self._flush()

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to compute or to forget; False once the engine is to stop."""
        with self._news:
            while not (self._stopping or self._arrived or self._left or self.scheduler.busy):
                self._news.wait()
            return not self._stopping

    def step(self) -> Step:
        """Take in who came, drop who left, and compute one step; every token goes out as soon as it is known."""
        with self._news:
            arrived, self._arrived = self._arrived, []
            left, self._left = self._left, []
        for request in arrived:
            self.scheduler.add(request)
        for request in left:
            if request in self._unfinished:
                request.finish_reason = "abort"
                self._end(request, None)
        step = self.scheduler.next_step()
        for request, count in step.prefill:
            self._prefill(request, count)
        drafted = [request for request in step.decode if request.draft]
        plain = [request for request in step.decode if not request.draft]
        if plain:
            self._decode(plain)
        if drafted:
            self._decode_drafted(drafted)
        if step.prefill or step.decode:
            self.metrics.step(sum(count for _, count in step.prefill) + len(step.decode))
        self._report()
        return step

    def _report(self) -> None:
        self.metrics.gauges(
            running=len(self.scheduler.running),
            waiting=self.waiting,
            kv_usage=1 - self.cache.free_blocks / self.cache.blocks,
            preemptions=self.scheduler.preemptions,
        )

    def _prefill(self, request: Request, count: int) -> None:
        if request.times.prefill_start_s is None:
            request.times.prefill_start_s = time.perf_counter()
        start = request.sequence.length
        tokens = request.tokens[start : start + count]
        logits = self.decoder(self._tensor([tokens]), self.cache.view([request.sequence]))
        if request.to_compute == 0:
            self._choose([request], logits)

    def _decode(self, requests: list[Request]) -> None:
        tokens = self._tensor([[request.tokens[-1]] for request in requests])
        self._choose(requests, self.decoder(tokens, self.cache.view([request.sequence for request in requests])))

    def _decode_drafted(self, requests: list[Request]) -> None:
        tokens = self._tensor([[request.tokens[-1], *request.draft] for request in requests])
        view = self.cache.view([request.sequence for request in requests])
        chosen = self.decoder(tokens, view, logits="all").argmax(-1).tolist()
        now = time.perf_counter()
        for request, row in zip(requests, chosen, strict=True):
            right = accepted(request.draft, row)
            self.cache.truncate(request.sequence, request.sequence.length - len(request.draft) + right)
            request.drafted_tokens += len(request.draft)
            request.accepted_tokens += right
            self.metrics.drafted(len(request.draft), right)
            request.draft = []
            self._append(request, row[: right + 1], now)
        self._flush()

    @torch.inference_mode()
    def _choose(self, requests: list[Request], logits: torch.Tensor) -> None:
        """The next token of each request from logits [B, vocab]."""
        for row, request in enumerate(requests):
            if self.end_tokens and request.output_tokens < request.sampling.min_tokens:
                logits[row, sorted(self.end_tokens)] = -torch.inf
        tokens = logits.argmax(-1).tolist()
        for row, request in enumerate(requests):
            if request.sampling.temperature > 0:
                tokens[row] = self._draw(request, logits[row : row + 1])
        now = time.perf_counter()
        for request, token in zip(requests, tokens, strict=True):
            self._append(request, [token], now)
        self._flush()

    def _draw(self, request: Request, logits: torch.Tensor) -> int:
        if request.generator is None:
            # Its own generator, so that a seed means the same answer whoever else is in the batch.
            seed = request.sampling.seed
            request.generator = torch.Generator(self.decoder.device)
            request.generator.manual_seed(secrets.randbits(62) if seed is None else seed)
        return int(choose(logits, request.sampling.temperature, request.sampling.top_p, request.generator))

    def _append(self, request: Request, tokens: list[int], now: float) -> None:
        """Add tokens to an answer up to where it ends, and say so to its listener."""
        pieces, finish_reason, sampling = [], None, request.sampling
        before = request.times.token_s[-1] if request.times.token_s else None
        had = request.output_tokens
        for token in tokens:
            request.tokens.append(token)
            request.times.token_s.append(now)
            if token in self.end_tokens and not sampling.ignore_eos:
                finish_reason = "stop"
            else:
                pieces.append(request.text.push(token))
                if request.text.stopped:
                    finish_reason = "stop"
                elif request.output_tokens >= sampling.max_tokens:
                    finish_reason = "length"
            if finish_reason is not None:
                pieces.append(request.text.finish())
                break
        self.metrics.tokens(request, request.output_tokens - had, before, now)
        output = Output("".join(pieces), request.output_tokens, finish_reason)
        if finish_reason is None:
            self._outputs.append((request, output))
        else:
            request.finish_reason = finish_reason
            self._end(request, output)

    def _end(self, request: Request, output: Output | None) -> None:
        """Free what a request holds; its last output, None where nobody listens any more."""
        self.scheduler.remove(request)
        with self._news:
            self._unfinished.discard(request)
        if output is not None:
            self._outputs.append((request, output))
        self.metrics.finished(request, "error" if output is not None and output.error else request.finish_reason)

    def _flush(self) -> None:
        outputs, self._outputs = self._outputs, []
        if outputs:
            self.dispatch(lambda: [request.listener(output) for request, output in outputs])

    def _tensor(self, rows: list[list[int]]) -> torch.Tensor:
        return torch.tensor(rows, device=self.decoder.device)
