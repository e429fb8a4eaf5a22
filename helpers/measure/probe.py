"""Look at a live endpoint from all sides with as few requests as possible: an `Observation` for the judge.

In the order of the questions: one request alone at three prompt lengths, the same prompt again, a sweep of smaller
loads, the load itself, short streams beside a long prompt, and where asked for the engine's own port and a second
client. Beside each load the server's own /metrics are read, where it has them.
"""

import contextlib
import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from helpers.accounts.observation import Observation, Run, ServerWindow
from helpers.errors import InputError
from helpers.measure.arrivals import Arrivals, ClosedLoop, OpenLoop
from helpers.measure.client import CHAT, COMPLETIONS, encoded
from helpers.measure.driver import Driver, Job
from helpers.measure.endpoint import key_from, parse_endpoint
from helpers.measure.exchange import Exchange
from helpers.measure.load import LoadRun, Plan, Sent, measure_load
from helpers.measure.observe import run_of, spread
from helpers.measure.replay import load_log
from helpers.measure.scrape import Scraper, Watch
from helpers.measure.stream import read_stream

STEPS = ("alone", "repeat", "sweep", "load", "beside_long", "direct", "second_client")
OPTIONAL = ("sweep", "beside_long")
"""What a quick probe leaves out."""

SHORT_OUTPUT = 8
"""Output tokens of the lone requests whose prompt length is not the asked one: they are there for their TTFT."""

LONG_ROUNDS = 3
SHORT_STREAMS = 2
LONGEST_SHORT_STREAM = 512
SETTLE_S = 5.0


@dataclass(frozen=True)
class ProbePlan:
    """What will be asked of an endpoint: the load that is judged, and which of `STEPS` are left out.

    Exactly one of `concurrency` and `rate` is set. `lone_requests`: of each prompt length. `same_prompt`: the load
    sends one prompt again and again, as a careless benchmark does. Raises InputError for what no load can be.
    """

    base_url: str
    model: str
    concurrency: int | None = None
    rate: float | None = None
    prompt_tokens: int = 256
    output_tokens: int = 64
    requests: int | None = None
    direct_url: str | None = None
    second_client: bool = False
    leave_out: tuple[str, ...] = ()
    same_prompt: bool = False
    lone_requests: int = 5
    warmup: int = 2
    seed: int = 0
    path: str = CHAT
    temperature: float = 0.0
    ignore_eos: bool = True

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise InputError("a probe needs exactly one of concurrency and rate")
        unknown = [step for step in self.leave_out if step not in STEPS]
        if unknown:
            raise InputError(f"leave_out holds {unknown[0]!r}, which is none of {', '.join(STEPS)}")
        for url in self.urls:
            parse_endpoint(url)
        if self.same_prompt and self.second_client:
            raise InputError("same_prompt and second_client do not go together: each client makes its own prompts")
        self.loads()

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.base_url, self.direct_url) if self.direct_url else (self.base_url,)

    @property
    def arrivals(self) -> Arrivals:
        return ClosedLoop(self.concurrency) if self.concurrency is not None else OpenLoop(self.rate, self.seed)

    @property
    def measured(self) -> int:
        """Requests of the load that are measured."""
        return self.requests if self.requests is not None else max(32, 4 * (self.concurrency or 0))

    def steps(self) -> tuple[str, ...]:
        """The steps that are done, in order."""
        wanted = {"direct": bool(self.direct_url), "second_client": self.second_client}
        left = [step for step in STEPS if step not in self.leave_out and wanted.get(step, True)]
        # What is sent again, and how long streams must be, is known from the lone requests.
        needs_alone = ("repeat", "beside_long")
        return tuple(step for step in left if "alone" in left or step not in needs_alone)

    def lengths(self, most_tokens: int | None = None) -> tuple[int, ...]:
        """Prompt lengths of the lone requests, the asked one last; `most_tokens`: what the server can take."""
        short = self.prompt_tokens // 4 if self.prompt_tokens >= 256 else 2 * self.prompt_tokens
        long = 4 * self.prompt_tokens
        if most_tokens is not None:
            long = min(long, most_tokens - LONGEST_SHORT_STREAM // 8, most_tokens - SHORT_OUTPUT - 1)
        others = dict.fromkeys(n for n in (short, long) if n > 0 and n != self.prompt_tokens)
        return (*others, self.prompt_tokens)

    def _plan(self, **changes: Any) -> Plan:
        given = {
            "base_url": self.base_url,
            "model": self.model,
            "arrivals": self.arrivals,
            "requests": self.measured,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "warmup": self.warmup,
            "path": self.path,
            "temperature": self.temperature,
            "ignore_eos": self.ignore_eos,
        }
        return Plan(**{**given, **changes})

    def alone(self, most_tokens: int | None = None) -> tuple[Plan, ...]:
        """One lone request after another, at each of the lengths."""
        output = {self.prompt_tokens: self.output_tokens}
        return tuple(
            self._plan(
                arrivals=ClosedLoop(1),
                requests=self.lone_requests,
                prompt_tokens=n,
                output_tokens=output.get(n, min(SHORT_OUTPUT, self.output_tokens)),
                warmup=max(self.warmup, 1) if index == 0 else 1,
            )
            for index, n in enumerate(self.lengths(most_tokens))
        )

    def sweep(self) -> tuple[Plan, ...]:
        """Up to two smaller loads of the same kind."""
        if self.rate is not None:
            slower = OpenLoop(self.rate / 2, self.seed)
            return (self._plan(arrivals=slower, requests=max(8, self.measured // 2), warmup=0),)
        few = sorted({self.concurrency // 4, self.concurrency // 2} - {0, 1, self.concurrency})
        return tuple(
            self._plan(arrivals=ClosedLoop(c), requests=min(self.measured, max(8, 3 * c)), warmup=0) for c in few
        )

    def loads(self) -> tuple[tuple[str, Plan], ...]:
        """The step and the plan of every load that `measure_load` sends, the lone requests included."""
        here = {
            "alone": self.alone(),
            "sweep": self.sweep(),
            "load": (self._plan(),),
            "direct": (self._plan(base_url=self.direct_url or self.base_url),),
            "second_client": (self._plan(),),
        }
        return tuple((step, plan) for step in self.steps() for plan in here.get(step, ()))

    def most_sent(self) -> tuple[int, int, int]:
        """Requests, prompt tokens and output tokens that may be sent and asked for at most."""
        total = [0, 0, 0]
        for _, plan in self.loads():
            total = [a + b for a, b in zip(total, plan.most_sent(), strict=True)]
        if "repeat" in self.steps():
            n = self.lone_requests
            more = (n, n * self.prompt_tokens, n * self.output_tokens)
            total = [a + b for a, b in zip(total, more, strict=True)]
        if "beside_long" in self.steps():
            prompts = SHORT_STREAMS * min(self.lengths()) + max(self.lengths())
            outputs = SHORT_STREAMS * LONGEST_SHORT_STREAM + SHORT_OUTPUT
            more = (LONG_ROUNDS * (SHORT_STREAMS + 1), LONG_ROUNDS * prompts, LONG_ROUNDS * outputs)
            total = [a + b for a, b in zip(total, more, strict=True)]
        return tuple(total)


def probe(
    base_url: str,
    model: str,
    *,
    key_variable: str | None = None,
    ca_file: str | None = None,
    timeout_s: float = 600.0,
    progress: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Observation:
    """Look at an endpoint from all sides; `options` are those of `ProbePlan` (``concurrency=8, prompt_tokens=256``).

    Raises InputError where the endpoint cannot be used, or the options are no plan.
    """
    plan = ProbePlan(base_url, model, **options)
    return run_probe(plan, key_variable=key_variable, ca_file=ca_file, timeout_s=timeout_s, progress=progress)


def run_probe(
    plan: ProbePlan,
    *,
    key_variable: str | None = None,
    ca_file: str | None = None,
    timeout_s: float = 600.0,
    progress: Callable[[str], None] = lambda line: None,
) -> Observation:
    """The same from a plan that was made, and perhaps announced, before."""
    key_from(key_variable)
    reach = {"key_variable": key_variable, "ca_file": ca_file}
    with contextlib.ExitStack() as stack:
        scrapers = [
            stack.enter_context(contextlib.closing(Scraper(url, model=plan.model, **reach))) for url in plan.urls
        ]
        # A proxy may hide the engine's numbers, which its own port then tells.
        scraper = next((s for s in scrapers if s.read() is not None), None)
        work = _Work(plan, scraper, {**reach, "timeout_s": timeout_s}, progress)
        work.notes += (scraper or scrapers[0]).notes
        for number, step in enumerate(plan.steps(), 1):
            progress(f"step {number} of {len(plan.steps())}: {_SAYS[step]}")
            work.do(step)
    return Observation(tuple(work.runs), notes=tuple(dict.fromkeys(work.notes)))


_SAYS = {
    "alone": "one request at a time, at three prompt lengths",
    "repeat": "the same prompts again",
    "sweep": "smaller loads",
    "load": "the load",
    "beside_long": "short streams beside a long prompt",
    "direct": "the load at the engine's own port",
    "second_client": "the load from a client in another process",
}


class _Work:
    """The runs so far, and what they need of each other."""

    def __init__(
        self, plan: ProbePlan, scraper: Scraper | None, reach: Mapping[str, Any], progress: Callable[[str], None]
    ) -> None:
        self.plan, self.scraper, self.reach, self.progress = plan, scraper, reach, progress
        self.runs: list[Run] = []
        self.notes: list[str] = []
        self.alone: dict[int, tuple[Exchange, ...]] = {}

    def do(self, step: str) -> None:
        """One step."""
        getattr(self, f"_{step}")()

    def _alone(self) -> None:
        for plan in self.plan.alone(self._most_tokens()):
            try:
                load, server, cpu = self._measured(plan)
            except InputError:
                # Too short for the chat template, or too long for the server: only the asked length must be possible.
                if plan.prompt_tokens == self.plan.prompt_tokens:
                    raise
                self.notes.append(f"no lone requests of {plan.prompt_tokens} prompt tokens: the server takes none")
                continue
            sound = tuple(e for sent in load.sent if sent.phase == "measured" and _is_sound(e := sent.exchange))
            if not sound and plan.prompt_tokens != self.plan.prompt_tokens:
                self.notes.append(f"no lone requests of {plan.prompt_tokens} prompt tokens: all failed")
                continue
            self.alone[plan.prompt_tokens] = sound
            self._add(load, "alone", server, cpu)

    def _repeat(self) -> None:
        sound = self.alone.get(self.plan.prompt_tokens, ())
        if not sound:
            self.notes.append("no prompt was sent again: no lone request was sound")
            return
        with self._watched() as seen, self._driver() as driver:
            sent = []
            for exchange in sound:
                driver.start(self._job(exchange.request, "measured"))
                sent += [Sent(str(job.label), one) for job, one in _until_ended(driver)]
        plan = self.plan._plan(arrivals=ClosedLoop(1), requests=len(sent), warmup=0)
        self._add(_as_load(plan, sent), "repeat", *seen(), prompts_repeat=True)

    def _sweep(self) -> None:
        for plan in self.plan.sweep():
            load, server, cpu = self._measured(plan)
            self._add(load, "load", server, cpu)

    def _load(self) -> None:
        texts = None
        if self.plan.same_prompt:
            sound = self.alone.get(self.plan.prompt_tokens, ())
            if not sound:
                raise InputError("same_prompt needs a sound lone request, whose prompt is sent again")
            texts = [_text_of(sound[0].request)]
        load, server, cpu = self._measured(self.plan._plan(), texts)
        self._add(load, "load", server, cpu)

    def _direct(self) -> None:
        load, server, cpu = self._measured(self.plan._plan(base_url=self.plan.direct_url))
        self._add(load, "direct", server, cpu)

    def _second_client(self) -> None:
        self._settle()
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "second.jsonl"
            command = [sys.executable, "-m", "helpers", "measure", f"--log={log}", "--yes", *self._as_options()]
            done = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            try:
                _, said = done.communicate()
            except BaseException:
                done.kill()
                done.communicate()
                raise
            if not log.is_file():
                why = said.decode("utf-8", "replace").strip().splitlines()
                self.notes.append(f"the second client did not measure: {(why or ['it said nothing'])[-1]}")
                return
            self._add(load_log(log), "second_client", None, None)

    def _as_options(self) -> list[str]:
        plan = self.plan
        load = (
            ["--rate", plan.rate, "--seed", plan.seed] if plan.rate is not None else ["--concurrency", plan.concurrency]
        )
        words = ["--base-url", plan.base_url, "--model", plan.model, *load, "--requests", plan.measured]
        words += ["--prompt-tokens", plan.prompt_tokens, "--output-tokens", plan.output_tokens]
        words += ["--warmup", plan.warmup, "--temperature", plan.temperature, "--timeout", self.reach["timeout_s"]]
        words += ["--endpoint", "completions" if plan.path == COMPLETIONS else "chat"]
        words += [] if plan.ignore_eos else ["--no-ignore-eos"]
        for option in ("key_variable", "ca_file"):
            if self.reach[option] is not None:
                words += [f"--{option.replace('_', '-')}", self.reach[option]]
        return [str(word) for word in words]

    def _beside_long(self) -> None:
        lengths = [n for n, sound in self.alone.items() if sound]
        if len(lengths) < 2 or max(lengths) == self.plan.prompt_tokens:
            self.notes.append("no long prompt beside short streams: no longer one was answered alone")
            return
        short, long = min(lengths), max(lengths)
        long_ttft = spread(read_stream(e).ttft_ms for e in self.alone[long]).p50
        tpot = spread(read_stream(e).tpot_ms for e in self.alone[self.plan.prompt_tokens]).p50
        output = min(LONGEST_SHORT_STREAM, math.ceil(2 * long_ttft / tpot) + 16 if tpot else LONGEST_SHORT_STREAM)
        rounds = []
        with self._watched() as seen, self._driver() as driver:
            for _ in range(LONG_ROUNDS):
                shorts = [_with_new_words(self.alone[short][0].request, output) for _ in range(SHORT_STREAMS)]
                sent = self._round(driver, shorts, _with_new_words(self.alone[long][0].request))
                if sent is not None:
                    rounds.append(sent)
        server, cpu = seen()
        if not rounds:
            self.notes.append("no long prompt beside short streams: the streams ended before it, or a request failed")
            return
        # One disturbance of the machine makes a gap as long as a prefill does: the middle round has none of it.
        gaps = [_gaps_beside(shorts, longer) for shorts, longer in rounds]
        order = sorted(range(len(rounds)), key=lambda i: max(gaps[i], default=0.0))
        middle = order[(len(order) - 1) // 2]
        shorts, longer = rounds[middle]
        results = [read_stream(exchange) for exchange in shorts]
        self.runs.append(
            Run(
                role="beside_long",
                prompt_tokens=short,
                output_tokens=output,
                concurrency=SHORT_STREAMS,
                requests=len(shorts),
                ttft=spread(result.ttft_ms for result in results),
                gap=spread(gaps[middle]),
                headers=spread(result.headers_ms for result in results),
                client_cpu_share=cpu,
                long_prompt_tokens=read_stream(longer).prompt_tokens or long,
                long_ttft=read_stream(longer).ttft_ms,
                base_url=self.plan.base_url,
                server=server,
            )
        )

    def _round(
        self, driver: Driver, shorts: Sequence[Mapping[str, Any]], long: Mapping[str, Any]
    ) -> tuple[list[Exchange], Exchange] | None:
        """Short streams under way, then the long prompt until it is answered: all exchanges; None where that failed."""
        reads = [0] * len(shorts)

        def counting(index: int) -> Callable[[object], None]:
            def count(_: object) -> None:
                reads[index] += 1

            return count

        for index, request in enumerate(shorts):
            driver.start(self._job(request, "short", counting(index)))
        ended: list[tuple[Job, Exchange]] = []
        while min(reads) < 4 and not ended:
            ended += driver.poll(time.monotonic_ns() + 2_000_000)
        if not ended:
            driver.start(self._job(long, "long"))
            while driver.running and not any(job.label == "long" for job, _ in ended):
                ended += driver.poll(time.monotonic_ns() + 1_000_000_000)
        ended += driver.leave()
        longer = [e for job, e in ended if job.label == "long" and _is_sound(e)]
        streams = [e for job, e in ended if job.label == "short" and read_stream(e).error in (None, "left")]
        return (streams, longer[0]) if longer and len(streams) == len(shorts) else None

    def _measured(
        self, plan: Plan, texts: Sequence[str] | None = None
    ) -> tuple[LoadRun, ServerWindow | None, float | None]:
        """A load, the server's window over it, and the share of a core that this process took."""
        self._settle()
        seen: list[Callable] = []

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            with self._watched() as window:
                yield
            seen.append(window)

        load = measure_load(
            plan, **self.reach, progress=lambda line: self.progress(f"  {line}"), texts=texts, around=around
        )
        return load, *seen[0]()

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Callable[[], tuple[ServerWindow | None, float | None]]]:
        """A block seen from the server's side; what it gives tells the window and the processor's share afterwards."""
        result: list[Any] = [None, None]
        with contextlib.ExitStack() as stack:
            watch = None if self.scraper is None else stack.enter_context(Watch(self.scraper))
            cpu_s, wall_s = time.process_time(), time.monotonic()
            yield lambda: tuple(result)
            cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        if wall_s > 0:
            result[1] = cpu_s / wall_s
        if watch is not None:
            try:
                result[0] = watch.window()
            except InputError as error:
                self.notes.append(str(error))
            self.notes += self.scraper.notes

    def _settle(self) -> None:
        """Wait until the server has nothing to do, so that what one load left does not meet the next."""
        if self.scraper is None:
            time.sleep(0.2)
        end = time.monotonic() + SETTLE_S
        while self.scraper is not None and time.monotonic() < end:
            scrape = self.scraper.read()
            if scrape is None or not scrape.values.get("running", 0) + scrape.values.get("waiting", 0):
                return
            time.sleep(0.05)

    def _driver(self) -> Driver:
        endpoint = parse_endpoint(self.plan.base_url)
        return Driver(
            endpoint,
            key=key_from(self.reach["key_variable"]),
            ca_file=self.reach["ca_file"],
            timeout_s=self.reach["timeout_s"],
        )

    def _job(self, request: Mapping[str, Any], label: str, on_read: Callable | None = None) -> Job:
        target = parse_endpoint(self.plan.base_url).path + self.plan.path
        return Job(encoded(request), request, target, on_read=on_read, label=label)

    def _most_tokens(self) -> int | None:
        """Tokens of prompt and answer that the server says a request may have."""
        pages = Scraper(self.plan.base_url, **{k: self.reach[k] for k in ("key_variable", "ca_file")})
        with contextlib.closing(pages):
            raw = pages.raw(parse_endpoint(self.plan.base_url).path + "/models")
        try:
            rows = json.loads(raw[1])["data"] if raw else []
            known = [row["max_model_len"] for row in rows if row.get("id") == self.plan.model]
            return next(n for n in known if isinstance(n, int) and n > 0)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            return None

    def _add(self, load: LoadRun, role: str, server: ServerWindow | None, cpu: float | None, **also: Any) -> None:
        self.notes += load.notes
        self.runs.append(run_of(load, role, server=server, client_cpu_share=cpu, **also))


def _is_sound(exchange: Exchange) -> bool:
    return read_stream(exchange).error is None


def _until_ended(driver: Driver) -> list[tuple[Job, Exchange]]:
    ended: list[tuple[Job, Exchange]] = []
    while driver.running or not ended:
        ended += driver.poll(time.monotonic_ns() + 1_000_000_000)
    return ended


def _as_load(plan: Plan, sent: Sequence[Sent]) -> LoadRun:
    return LoadRun(plan, tuple(sent), "usage", True, plan.ignore_eos, 0.0, 0.0)


def _text_of(request: Mapping[str, Any]) -> str:
    return request["messages"][-1]["content"] if "messages" in request else request["prompt"]


def _with_new_words(request: Mapping[str, Any], output_tokens: int | None = None) -> dict[str, Any]:
    """The request with the words of its prompt in another order: as many tokens, but no cache knows them."""
    words = _text_of(request).split(" ")
    random.SystemRandom().shuffle(words)
    text = " ".join(words)
    changed = dict(request)
    if "messages" in request:
        changed["messages"] = [*request["messages"][:-1], {**request["messages"][-1], "content": text}]
    else:
        changed["prompt"] = text
    key = "max_completion_tokens" if "max_completion_tokens" in request else "max_tokens"
    return changed if output_tokens is None else {**changed, key: output_tokens}


def _gaps_beside(shorts: Sequence[Exchange], long: Exchange) -> list[float]:
    """Gaps of the short streams, in milliseconds, that overlap with the wait for the long prompt's first token."""
    first_ns = long.start_ns + round((read_stream(long).ttft_ms or 0.0) * 1e6)
    gaps = []
    for exchange in shorts:
        for a, b in pairwise(read_stream(exchange).output_events):
            if b.at_ns > long.start_ns and a.at_ns < first_ns:
                gaps.append((b.at_ns - a.at_ns) / 1e6)
    return gaps
