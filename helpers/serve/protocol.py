"""The OpenAI-compatible protocol: what a request may say, and what an answer looks like.

Fields that change nothing here (`user`, `metadata`, names we do not know) are ignored, as OpenAI-compatible servers do;
fields that ask for something we do not do (`n` above 1, `logprobs`, `tools`, …) are refused, because ignoring them
would be a wrong answer. null means absent. Beyond OpenAI's: `ignore_eos`, `min_tokens` and
`stream_options.continuous_usage_stats` as vLLM has them, and `return_timings`, which adds `timings` (see
`helpers.serve.request.Times`) to the last event or to the whole answer.
"""

import json
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helpers.serve.chat import chat_tokens
from helpers.serve.request import Output, Request, Sampling

HARMLESS: dict[str, tuple] = {
    "n": (1,),
    "best_of": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "use_beam_search": (False,),
}
"""Fields of something that this server does not do, with the values that do not ask for it."""

ROLES = ("system", "developer", "user", "assistant")
MOST_STOPS = 16
SEED_RANGE = (-(2**63), 2**64 - 1)


class ApiError(Exception):
    """An answer that is an error: `status` and an OpenAI error object."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.kind = status, param, code, kind

    def as_json(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code}}


def engine_error(message: str) -> ApiError:
    """A fault of ours, not of the request."""
    return ApiError(500, message, kind="server_error")


@dataclass(frozen=True)
class ServedModel:
    """What requests are checked against: the model's name, its tokenizer, vocabulary and most tokens a request."""

    name: str
    tokenizer: Any
    vocab_size: int
    max_tokens: int
    system_prompt: str | None = None


@dataclass(frozen=True)
class Call:
    """A request that was understood."""

    prompt: tuple[int, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool
    continuous_usage: bool
    return_timings: bool


def parse_json(body: bytes) -> dict[str, Any]:
    """The JSON object of a request body. Raises ApiError 400 for anything else."""

    def refuse(constant: str):
        raise ValueError(f"{constant} is not JSON")

    try:
        value = json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the request body is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ApiError(400, f"the request body must be a JSON object, not {_kind(value)}")
    return value


def parse_chat(body: dict[str, Any], model: ServedModel) -> Call:
    """A body of /v1/chat/completions. Raises ApiError, naming the field."""
    _check_common(body, model)
    return _call(body, model, chat_prompt(body, model), default_max_tokens=None)


def parse_completion(body: dict[str, Any], model: ServedModel) -> Call:
    """A body of /v1/completions; `prompt` is a text or a list of token ids, alone or as the one entry of a list."""
    _check_common(body, model)
    return _call(body, model, completion_prompt(body, model), default_max_tokens=16)


def chat_prompt(body: dict[str, Any], model: ServedModel) -> list[int]:
    """Token ids of `messages`. Raises ApiError, naming the field."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message", "messages")
    turns = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ApiError(400, f"{where} must be an object, not {_kind(message)}", "messages")
        role = message.get("role")
        if role not in ROLES:
            raise ApiError(400, f"{where}.role must be one of {', '.join(ROLES)}, not {_shown(role)}", "messages")
        text = _content(message.get("content"), f"{where}.content")
        turns.append(("system" if role == "developer" else role, text))
    return chat_tokens(model.tokenizer, turns, model.system_prompt)


def completion_prompt(body: dict[str, Any], model: ServedModel) -> list[int]:
    """Token ids of `prompt`. Raises ApiError, naming the field."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return model.tokenizer.encode(_text(prompt, "prompt"))
    if not isinstance(prompt, list) or not all(_is_int(token) for token in prompt):
        raise ApiError(400, "prompt must be one text or one list of token ids", "prompt")
    if outside := [token for token in prompt if not 0 <= token < model.vocab_size]:
        raise ApiError(400, f"prompt holds token id {outside[0]}, the vocabulary has {model.vocab_size}", "prompt")
    return prompt


def check_model(body: dict[str, Any], model: ServedModel) -> None:
    """Raises ApiError 404 where `model` names another one; absent means the one there is."""
    name = body.get("model")
    if name is not None and not isinstance(name, str):
        raise ApiError(400, f"model must be a text, not {_kind(name)}", "model")
    if name not in (None, model.name):
        raise ApiError(404, f"the model {name[:80]!r} does not exist: {model.name!r} does", "model", "model_not_found")


def _check_common(body: dict[str, Any], model: ServedModel) -> None:
    check_model(body, model)
    for name, harmless in HARMLESS.items():
        value = body.get(name)
        # In Python False is 0 and True is 1; in JSON they are not.
        if value is not None and (value, type(value) is bool) not in [(one, type(one) is bool) for one in harmless]:
            raise ApiError(400, f"{name} {_shown(value)} is not supported by this server", name)


def _call(body: dict[str, Any], model: ServedModel, prompt: Sequence[int], default_max_tokens: int | None) -> Call:
    if not prompt:
        raise ApiError(400, "the prompt is empty: a decoder needs at least one token to start from", "prompt")
    room = model.max_tokens - len(prompt)
    if room < 1:
        raise _too_long(model, f"the prompt has {len(prompt)} tokens")
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is None:
        options = {}
    elif not isinstance(options, dict):
        raise ApiError(400, f"stream_options must be an object, not {_kind(options)}", "stream_options")
    elif not stream:
        raise ApiError(400, "stream_options is only for stream: true", "stream_options")
    asked = _max_tokens(body)
    max_tokens = asked if asked is not None else min(room, default_max_tokens or room)
    if max_tokens > room:
        raise _too_long(model, f"{len(prompt)} prompt tokens and {max_tokens} to generate are asked for")
    sampling = Sampling(
        max_tokens=max_tokens,
        temperature=_number(body, "temperature", 1.0, 0, 2),
        top_p=_number(body, "top_p", 1.0, 0, 1),
        seed=_integer(body, "seed", *SEED_RANGE),
        stop=_stop(body),
        ignore_eos=_flag(body, "ignore_eos"),
        min_tokens=_integer(body, "min_tokens", 0, max_tokens) or 0,
    )
    if sampling.top_p == 0:
        raise ApiError(400, "top_p must be above 0", "top_p")
    if sampling.min_tokens and sampling.stop:
        raise ApiError(400, "min_tokens is not supported together with stop", "min_tokens")
    if 0 < sampling.temperature < 1e-5:
        raise ApiError(400, "temperature must be 0 or at least 0.00001", "temperature")
    return Call(
        prompt=tuple(prompt),
        sampling=sampling,
        stream=stream,
        include_usage=_flag(options, "include_usage", "stream_options."),
        continuous_usage=_flag(options, "continuous_usage_stats", "stream_options."),
        return_timings=_flag(body, "return_timings"),
    )


def _too_long(model: ServedModel, what: str) -> ApiError:
    message = f"the most tokens a request may have, prompt and answer together, are {model.max_tokens}; {what}"
    return ApiError(400, message, code="context_length_exceeded")


def _max_tokens(body: dict[str, Any]) -> int | None:
    names = ("max_tokens", "max_completion_tokens")
    old, new = (_integer(body, name, 1, 2**31) for name in names)
    if old is not None and new is not None and old != new:
        raise ApiError(400, f"max_tokens {old} and max_completion_tokens {new} contradict each other", "max_tokens")
    return old if new is None else new


def _stop(body: dict[str, Any]) -> tuple[str, ...]:
    stop = body.get("stop")
    stop = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stop, list) or len(stop) > MOST_STOPS or not all(isinstance(one, str) and one for one in stop):
        raise ApiError(400, f"stop must be a text or a list of at most {MOST_STOPS}, none empty", "stop")
    return tuple(stop)


def _content(content: Any, where: str) -> str:
    if isinstance(content, list):
        texts = [part for part in content if isinstance(part, dict) and part.get("type") == "text"]
        parts = [part.get("text") for part in texts]
        if len(texts) < len(content) or not all(isinstance(part, str) for part in parts):
            raise ApiError(400, f"{where} holds a part that is not text", "messages")
        content = "".join(parts)
    if not isinstance(content, str):
        raise ApiError(400, f"{where} must be a text, not {_kind(content)}", "messages")
    return _text(content, "messages")


def _text(text: str, param: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ApiError(400, f"{param} holds half a surrogate pair, which is no character", param) from error
    return text


def _flag(body: dict[str, Any], name: str, prefix: str = "") -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ApiError(400, f"{prefix}{name} must be true or false, not {_shown(value)}", prefix + name)
    return bool(value)


def _number(body: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if not _is_number(value) or not math.isfinite(value) or not low <= value <= high:
        raise ApiError(400, f"{name} must be a number from {low} to {high}, not {_shown(value)}", name)
    return float(value)


def _integer(body: dict[str, Any], name: str, low: int, high: int) -> int | None:
    value = body.get(name)
    if value is not None and (not _is_int(value) or not low <= value <= high):
        raise ApiError(400, f"{name} must be a whole number from {low} to {high}, not {_shown(value)}", name)
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "…"


class Answer:
    """The JSON of one answer, streamed or whole, in the words of /v1/chat/completions or /v1/completions."""

    def __init__(self, model: str, call: Call, request: Request, chat: bool) -> None:
        self.call, self.request, self.chat = call, request, chat
        self.head = {
            "id": ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(12),
            "object": ("chat.completion" if chat else "text_completion") + (".chunk" if chat and call.stream else ""),
            "created": int(time.time()),
            "model": model,
        }

    def role_event(self) -> bytes:
        """A chat's first event: who speaks, and an empty text."""
        return self._event([self._choice({"delta": {"role": "assistant", "content": ""}}, None)], 0)

    def event(self, output: Output, last: bool) -> bytes:
        """What one step added; `last` where no usage event follows, so that timings ride here."""
        said = {"delta": {"content": output.text} if output.text else {}} if self.chat else {"text": output.text}
        choices = [self._choice(said, output.finish_reason)]
        return self._event(choices, output.output_tokens, self._timings() if last else {})

    def usage_event(self, output_tokens: int) -> bytes:
        """The event without choices that `include_usage` asks for."""
        return server_sent_event(self.head | {"choices": [], "usage": self.usage(output_tokens)} | self._timings())

    def whole(self, text: str, output: Output) -> dict[str, Any]:
        """The answer in one piece."""
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choices = [self._choice(said, output.finish_reason)]
        return self.head | {"choices": choices, "usage": self.usage(output.output_tokens)} | self._timings()

    def usage(self, output_tokens: int) -> dict[str, Any]:
        prompt_tokens = len(self.request.prompt)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": output_tokens,
            "total_tokens": prompt_tokens + output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.request.cached_tokens or 0},
        }

    def _choice(self, said: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        return {"index": 0} | said | {"logprobs": None, "finish_reason": finish_reason}

    def _event(self, choices: list[dict], output_tokens: int, extra: dict[str, Any] | None = None) -> bytes:
        chunk = self.head | {"choices": choices}
        if self.call.continuous_usage:
            chunk["usage"] = self.usage(output_tokens)
        elif self.call.include_usage:
            chunk["usage"] = None
        return server_sent_event(chunk | (extra or {}))

    def _timings(self) -> dict[str, Any]:
        return {"timings": self.request.timings()} if self.call.return_timings else {}


DONE = b"data: [DONE]\n\n"


def server_sent_event(value: dict[str, Any]) -> bytes:
    """One event of an event stream: ``data: {…}`` and an empty line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # JSON may hold them as they are, but many a client splits lines at them too.
    for separator in "\x85\u2028\u2029":
        text = text.replace(separator, f"\\u{ord(separator):04x}")
    return b"data: " + text.encode("utf-8") + b"\n\n"


def parse_tokenize(body: dict[str, Any], model: ServedModel) -> list[int]:
    """Token ids for /tokenize, which takes `prompt` (a text) or `messages`, as vLLM's does."""
    check_model(body, model)
    if "messages" in body:
        return chat_prompt(body, model)
    if not isinstance(body.get("prompt"), str):
        raise ApiError(400, "prompt must be a text", "prompt")
    return model.tokenizer.encode(_text(body["prompt"], "prompt"))


def parse_detokenize(body: dict[str, Any], model: ServedModel) -> str:
    """The text for /detokenize, which takes `tokens`."""
    check_model(body, model)
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(_is_int(token) and 0 <= token < model.vocab_size for token in tokens):
        raise ApiError(400, f"tokens must be a list of token ids below {model.vocab_size}", "tokens")
    return model.tokenizer.decode(tokens)
