"""Anonymous services to diagnose: a small local server with a fault picked by seed, the tools to look at it, a check.

``service("A")`` starts one and does not say what it is; ``look(url)`` measures it; ``judge("A", place, cause)`` says
whether the answer is right, and if not, which evidence speaks against it.
"""

import contextlib
import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from helpers import measure, serve
from helpers.accounts import verdict
from helpers.accounts.observation import Observation, Run, ServerWindow
from helpers.errors import InputError
from helpers.measure.probe import probe
from helpers.serve.proxy import proxy

LETTERS = ("A", "B", "C")
SEED = 5
"""The seed whose three services the solution of lab 06 diagnoses."""
MODEL = "anonymous"
PROMPT_TOKENS, OUTPUT_TOKENS, CONCURRENCY = 120, 96, 6

PLACES = ("nowhere", "engine", "path")
NOTHING = "nothing wrong"


@dataclass(frozen=True)
class Fault:
    """One thing a service may have. `options`: of the server; `path`: of the proxy before it, None where there is none.

    `sign`: what it would show, and on which line of `look`.
    """

    place: str
    sign: str
    options: Mapping[str, object] = field(default_factory=dict)
    path: Mapping[str, object] | None = None


FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        NOTHING: Fault("nowhere", "a healthy service shows none of the signs below"),
        "running cap": Fault(
            "engine",
            "with a cap, `running` never passes a small number while requests wait, the KV cache is far from full "
            "and nothing is preempted",
            {"max_batch": 2},
        ),
        "KV cache too small": Fault(
            "engine",
            "with too small a cache, `KV share` is near 1 and running requests are preempted",
            {"kv_blocks": 40},
        ),
        "whole prompts in one step": Fault(
            "engine",
            "where a prompt is computed in one step, the longest pause of an answer under way is about as long as the "
            "TTFT of the long newcomer",
            {"prefill_chunk": 0},
        ),
        "buffering proxy": Fault(
            "path",
            "behind a buffer several events come in one read all along, so `events a read` is well above 1 for long "
            "answers too",
            path={"buffer_bytes": 2500},
        ),
        "slow first event": Fault(
            "path",
            "with a timer on the first event, the client's TTFT is longer than the server's by the same amount for "
            "every prompt, and the events after it come one by one",
            path={"first_event_delay_s": 0.08},
        ),
        "connection per request": Fault(
            "path",
            "where connections are not kept, `new connections` is 100 %, and the client's TTFT holds what each costs",
            path={"close_each": True, "accept_delay_s": 0.1},
        ),
    }
)
"""Every cause in the list of answers, and what plants it."""
CAUSES = tuple(FAULTS)

_HEALTHY = {"max_batch": 8, "kv_blocks": 512, "prefill_chunk": 32, "prefix_caching": False}
_SHAPE = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    # Large, so that few of the random tokens are bytes that make no character on their own.
    "vocab_size": 8192,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "torch_dtype": "float32",
}


def cause_of(letter: str, seed: int = SEED) -> str:
    """The cause planted in a service: the answer, for checks and tests."""
    if letter not in LETTERS:
        raise InputError(f"there is no service {letter!r}; choose one of {', '.join(LETTERS)}")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError(f"seed must be a whole number, not {seed!r}")
    return random.Random(f"services {seed}").sample(CAUSES, len(LETTERS))[LETTERS.index(letter)]


@contextlib.contextmanager
def service(letter: str, seed: int = SEED) -> Iterator[str]:
    """Run one of the services inside a ``with`` block, on this machine only; gives its base URL.

    Three services of one seed have three different causes, "nothing wrong" among the possible ones. The model has
    random weights and one token a byte. Raises InputError for a letter or seed that is none.
    """
    with _started(FAULTS[cause_of(letter, seed)]) as url:
        yield url


@contextlib.contextmanager
def _started(fault: Fault) -> Iterator[str]:
    options = serve.Options(**{**_HEALTHY, **fault.options})
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(_SHAPE), encoding="utf-8")
        words = ("--device=cpu", "--dtype=fp32", f"--name={MODEL}")
        url = stack.enter_context(serve.spawned(f"random:{config}", options, *words))
        measure.measure_request(url, _chat(64, 2))
        if fault.path is not None:
            url = stack.enter_context(proxy(url, **fault.path))
        yield url


def look(base_url: str) -> Observation:
    """Measure a service from all sides, print what was seen, and return it, as `accounts.verdict` takes it.

    One request at a time at three prompt lengths, six at a time, and two answers under way while a long
    prompt comes. "server" numbers are its own, from /metrics, over the same requests.
    """
    options = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "requests": 12, "warmup": 1}
    observation = probe(base_url, MODEL, concurrency=CONCURRENCY, leave_out=("repeat", "sweep"), **options)
    print(seen_text(observation))
    return observation


def seen_text(observation: Observation) -> str:
    """What was seen, with the conditions of every number."""
    lines = []
    for run in observation.role("alone"):
        lines += [_about(run), *_alone_lines(run)]
    for run in observation.role("load"):
        lines += [_about(run), *_load_lines(run)]
    for run in observation.role("beside_long"):
        lines.append(f"beside a newcomer of {run.long_prompt_tokens:.0f} tokens in, {_about(run)}")
        lines.append(f"  longest pause {_ms(run.gap.max)}, TTFT of the newcomer {_ms(run.long_ttft)}")
    return "\n".join(lines)


def _about(run: Run) -> str:
    return f"concurrency {run.concurrency}, {run.prompt_tokens:.0f} in, {run.output_tokens:.0f} out"


def _alone_lines(run: Run) -> Iterator[str]:
    server = run.server or ServerWindow(names="", seconds=0)
    mean = f"mean {_ms(run.ttft_of_window_mean)}, server's own mean {_ms(server.ttft_mean)}"
    yield f"  TTFT P50 {_ms(run.ttft.p50)}, {mean}; events a read {_number(run.events_per_read)}"
    if run.output_tokens == OUTPUT_TOKENS:
        yield f"  {_number(run.output_tokens_per_s)} output tokens/s"
        tpot = f"TPOT P50 {_ms(run.tpot.p50)}, server's own mean {_ms(server.tpot_mean)}"
        yield f"  {tpot}; gap between events P50 {_ms(run.gap.p50)}"
        new = run.sent_on_new_connection
        yield f"  new connections {'unknown' if new is None else f'{new:.0%}'}, P50 to open one {_ms(run.connect.p50)}"


def _load_lines(run: Run) -> Iterator[str]:
    server = run.server or ServerWindow(names="", seconds=0)
    yield f"  {_number(run.output_tokens_per_s)} output tokens/s"
    queue = f"server's mean queue {_ms(server.queue_mean)}"
    yield f"  TTFT P50 {_ms(run.ttft.p50)}, {queue}; TPOT P50 {_ms(run.tpot.p50)}"
    share = "unknown" if server.kv_share_max is None else f"{server.kv_share_max:.0%}"
    for word, running, waiting in (
        ("median", server.running_p50, server.waiting_p50),
        ("most", server.running_max, server.waiting_max),
    ):
        yield f"  {word} of the samples: running {_number(running)}, waiting {_number(waiting)}"
    yield f"  KV share at most {share}; preemptions {_number(server.preemptions)}"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1f} ms"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _chat(prompt_tokens: int, output_tokens: int) -> dict[str, object]:
    messages = [{"role": "user", "content": "a" * prompt_tokens}]
    return {"model": MODEL, "messages": messages, "max_tokens": output_tokens, "ignore_eos": True, "temperature": 0}


def against(letter: str, answer: Sequence[str], seed: int = SEED) -> str:
    """Which evidence speaks against an answer [place, cause]; "" for the right one."""
    truth = cause_of(letter, seed)
    if not isinstance(answer, list | tuple) or len(answer) != 2:
        return "answer with a list of two words, [place, cause]"
    place, cause = answer
    for word, known in ((place, PLACES), (cause, CAUSES)):
        if word not in known:
            return f"{word!r} is no answer: choose one of {', '.join(map(repr, known))}"
    if place != FAULTS[cause].place:
        return f"{cause!r} is not a thing of the place {place!r}: it belongs to {FAULTS[cause].place!r}"
    if cause == truth:
        return ""
    if cause == NOTHING:
        return NOT_HEALTHY[FAULTS[truth].place]
    said = UNLIKE.get((cause, truth)) or f"{FAULTS[cause].sign}: here it is not so"
    return said if place == FAULTS[truth].place else f"{said}. And the place: {ELSEWHERE[FAULTS[truth].place]}"


ELSEWHERE = MappingProxyType(
    {
        "nowhere": "the server's own TTFT and TPOT are the client's, and nothing waits",
        "engine": "the server's own numbers are as slow as the client's, so the time is not lost on the path",
        "path": "the server's own numbers are fine, and the client's are not: something after it takes the time",
    }
)
"""What speaks for the true place."""

NOT_HEALTHY = MappingProxyType(
    {
        "engine": "something is wrong: look at what several requests do to each other, and a long prompt to the others",
        "path": "something is wrong: set the client's TTFT and TPOT beside the server's own, and count events a read",
    }
)

UNLIKE: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("running cap", "KV cache too small"): "a cap leaves the KV cache far from full and preempts nobody: here the "
        "cache is full and running requests are preempted",
        ("KV cache too small", "running cap"): "requests wait, that is right, but the KV share is low and nothing is "
        "preempted: it is not the cache they wait for",
        ("slow first event", "buffering proxy"): "a timer delays the first event alone; here several events come in "
        "one read all along, and the gap between events is not the server's TPOT",
        ("slow first event", "connection per request"): "a timer on the first event lets connections live; here each "
        "request opens a new one, and pays for it",
        ("buffering proxy", "slow first event"): "a buffer groups events all along; here only those of the beginning "
        "come together: `events a read` is near 1 for long answers, and the gap between events is the server's TPOT",
        ("connection per request", "slow first event"): "connections are kept here, all but the first; the time is "
        "lost after the request was sent",
    }
)
"""What tells two causes apart that are often confused, where the sign alone would not: (named, true)."""


def judge(letter: str, place: str, cause: str, seed: int = SEED) -> None:
    """Print whether an answer is right, and which evidence speaks against it if it is not."""
    problem = against(letter, [place, cause], seed)
    print(f"service {letter}, seed {seed}: " + (f"not yet: {problem}." if problem else f"correct, {cause}."))


def judge_words(observation: Observation) -> str:
    """What the judge says of an observation, in one sentence."""
    found = verdict(observation)
    return f"{found.says}. {found.sentence}"
