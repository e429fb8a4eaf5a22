"""A tiny model to serve, real servers on it, and a decoder whose every answer is known beforehand."""

import contextlib
import hashlib
import http.client
import json
import time
from urllib.parse import urlsplit

import pytest
import torch

from helpers.accounts import parse_config
from helpers.engine import Tokenizer, random_decoder
from helpers.serve import ByteTokenizer, Options, Request, Sampling, running

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}


@pytest.fixture(scope="package", autouse=True)
def one_thread():
    """Models this small are computed by one thread; more only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_config():
    return dict(TINY)


@pytest.fixture(scope="session")
def tiny():
    """Random weights with a vocabulary in which most tokens are a letter; fixed layouts, so nothing is measured."""
    return random_decoder(parse_config(TINY, "tiny"), seed=1, layout="output-major")


@pytest.fixture(scope="session")
def bytes_tokenizer():
    return ByteTokenizer(TINY["vocab_size"])


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2_path):
    return Tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def serve(tiny, bytes_tokenizer):
    """``serve(max_batch=2, …)``: a running server on the tiny model with these options, started once for all tests."""
    with contextlib.ExitStack() as stack:
        urls = {}

        def start(decoder=tiny, **options) -> str:
            options = Options(**options)
            key = (id(decoder), options)
            if key not in urls:
                urls[key] = stack.enter_context(running(decoder, bytes_tokenizer, options, name="tiny"))
            return urls[key]

        yield start


@pytest.fixture(scope="session")
def url(serve):
    """A server with the default options."""
    return serve()


class FakeDecoder:
    """A decoder that computes nothing: the next token is a digest of all before it, so every answer is known.

    It writes through the cache's own book-keeping, so blocks, sharing and lengths are the real ones.
    """

    def __init__(self, vocab_size: int = 5) -> None:
        config = TINY | {"hidden_size": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "num_hidden_layers": 1}
        self.model = parse_config(config | {"vocab_size": vocab_size, "max_position_embeddings": 4096}, "fake")
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.fails, self.call_seconds = False, 0.0

    def __call__(self, tokens, cache, logits="last"):
        if self.fails:
            raise RuntimeError("planted")
        time.sleep(self.call_seconds)
        histories = [list(sequence.tokens) for sequence in cache.sequences]
        cache.span(tokens)
        cache.advance(tokens.shape[1])
        out = torch.zeros(*tokens.shape, self.model.vocab_size)
        for row, (history, new) in enumerate(zip(histories, tokens.tolist(), strict=True)):
            for column, token in enumerate(new):
                history.append(token)
                out[row, column, self.next_token(history)] = 1.0
        return out if logits == "all" else out[:, -1]

    def next_token(self, history) -> int:
        # Only a few tokens back, so that answers repeat themselves and drafts are sometimes right.
        seed = bytes(token % 256 for token in history[-3:]) + bytes([len(history) % 7])
        return hashlib.sha256(seed).digest()[0] % self.model.vocab_size

    def answer(self, prompt, count) -> list[int]:
        history = list(prompt)
        for _ in range(count):
            history.append(self.next_token(history))
        return history[len(prompt) :]


@pytest.fixture
def fake():
    return FakeDecoder()


@pytest.fixture(scope="session")
def fake_decoder():
    """The class, for tests that want another vocabulary or other answers."""
    return FakeDecoder


@pytest.fixture(scope="session")
def slow():
    """A decoder that takes 5 ms a call, so that a long answer is still running while a test does other things."""
    decoder = FakeDecoder(256)
    decoder.call_seconds = 0.005
    return decoder


class Collected(Request):
    """A request that keeps its outputs."""

    def __init__(self, prompt, **sampling) -> None:
        self.outputs = []
        super().__init__(tuple(prompt), Sampling(**({"max_tokens": 8} | sampling)), self.outputs.append)

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def said(self) -> str:
        return "".join(output.text for output in self.outputs)


@pytest.fixture(scope="session")
def collected():
    return Collected


def run_until_idle(engine, most_steps: int = 2000) -> list:
    """Every step until nothing is left to do; fails where that takes suspiciously long."""
    steps = [engine.step()]
    while engine.scheduler.busy:
        steps.append(engine.step())
        assert len(steps) < most_steps, "the engine makes no progress"
    return steps


@pytest.fixture(scope="session")
def until_idle():
    return run_until_idle


class Plain:
    """A plain HTTP client: ``plain(url).post("/v1/completions", {…})`` gives status, headers and body."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc

    def ask(self, method: str, path: str, body=None, headers=()):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, dict(headers))
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read()
        finally:
            connection.close()

    def post(self, path: str, body):
        return self.ask("POST", path, body, {"Content-Type": "application/json"})

    def json(self, path: str, body) -> dict:
        status, _, data = self.post(path, body)
        assert status == 200, data
        return json.loads(data)

    def events(self, path: str, body) -> list[dict]:
        """The JSON events of a stream that ended as it should."""
        status, headers, data = self.post(path, body | {"stream": True})
        assert status == 200, data
        assert headers["content-type"].startswith("text/event-stream")
        *events, done = [part.removeprefix(b"data: ") for part in data.split(b"\n\n") if part]
        assert done == b"[DONE]"
        return [json.loads(event) for event in events]

    def metric(self, name: str) -> float:
        """The value of one metric that has no label but the model's name."""
        text = self.ask("GET", "/metrics")[2].decode()
        (line,) = [line for line in text.splitlines() if line.startswith(name + "{")]
        return float(line.rsplit(" ", 1)[1])


@pytest.fixture(scope="session")
def plain():
    return Plain
