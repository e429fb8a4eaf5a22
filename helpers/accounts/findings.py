"""What the runs of a service show, as sentences with their numbers, each tied to the evidence item it stands for.

One small function for each thing to see. Limits are ratios and counts, never milliseconds of their own: a slow machine
is no faulty one. A limit that would name a cause is strict; a weak sign stays a note.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from helpers.accounts.evidence import item
from helpers.accounts.kv import kv_bytes
from helpers.accounts.memory import weight_bytes
from helpers.accounts.observation import Observation, Run, ServerWindow
from helpers.accounts.placement import contiguous, rank_loads
from helpers.accounts.service_floors import ServiceFloors, Subject, service_floors
from helpers.accounts.skew import step_time_factor
from helpers.accounts.state import state_bytes
from helpers.accounts.words import ms, percent, plural, times
from helpers.errors import InputError

TPOT_BOUND, TTFT_BOUND = 2.5, 3.0
"""Up to here a usual engine: TPOT over its floor, and TTFT over its floor (prefill reaches 35 to 60 % of the peak)."""

_FASTER, _ALIKE = 1.5, 1.15
_REFUSALS = ("http_429", "http_503")


@dataclass(frozen=True)
class Finding:
    """One thing seen. `item`: the evidence it is, None for a note; `mechanism`: how, more exact than a cause.

    `trouble`: it says that something is wrong or slow, rather than how the service works. `alone`: it is about one
    request alone, so it says nothing of what a load adds. `ratio`: measured ÷ floor where it is one.
    """

    item: str | None
    words: str
    source: str
    mechanism: str | None = None
    trouble: bool = False
    alone: bool = False
    ratio: float | None = None


@dataclass(frozen=True)
class Seen:
    """An observation and what is looked at again and again in it."""

    observation: Observation
    subject: Subject | None
    load: Run

    @property
    def server(self) -> ServerWindow | None:
        return self.load.server

    @cached_property
    def floors(self) -> ServiceFloors | None:
        return None if self.subject is None else service_floors(self.subject, self.load)

    @cached_property
    def sweep(self) -> tuple[Run, ...]:
        """Runs of the judged lengths at several concurrencies, the smallest first, one request alone included."""
        runs: dict[int, Run] = {}
        for run in (*self.observation.role("alone"), *self.observation.role("load")):
            if run.concurrency and _alike(run.prompt_tokens, self.load.prompt_tokens, 1.25):
                runs[run.concurrency] = run
        return tuple(runs[concurrency] for concurrency in sorted(runs))

    @cached_property
    def alone(self) -> Run | None:
        """One request alone, of the judged prompt length; None where there is none."""
        runs = [run for run in (*self.observation.role("alone"), self.load) if run.concurrency == 1]
        runs = [run for run in runs if _alike(run.prompt_tokens, self.load.prompt_tokens, 1.25)]
        return min(runs, key=lambda run: abs(run.prompt_tokens - self.load.prompt_tokens), default=None)

    @cached_property
    def line(self) -> tuple[float, float] | None:
        """a and b of TTFT = a + b · prompt tokens, one request alone, ms; None below two lengths."""
        return prompt_line(self.observation.role("alone"))

    @cached_property
    def prefill_share(self) -> float | None:
        """Share of the device's time that prompts take: prompt tokens per second · seconds per prompt token alone."""
        if self.line is None or self.line[1] <= 0 or self.load.requests_per_s is None:
            return None
        computed = self.load.prompt_tokens - (self.load.cached_tokens_mean or 0)
        return self.load.requests_per_s * computed * self.line[1] / 1e3

    @cached_property
    def refused(self) -> float:
        """Requests the service refused: its own counter where it has one, else answers 429 and 503."""
        if self.server is not None and self.server.rejected is not None:
            return self.server.rejected
        return sum(self.load.errors.get(kind, 0) for kind in _REFUSALS)

    @cached_property
    def failed(self) -> dict[str, int]:
        """Measured requests that failed, by kind, other than those in `refused`."""
        counted = _REFUSALS if self.refused else ()
        return {kind: n for kind, n in self.load.errors.items() if n and kind not in counted}

    @cached_property
    def failed_words(self) -> str:
        """Those failures in words, "" without any."""
        kinds = ", ".join(f"{n} × {kind}" for kind, n in self.failed.items())
        told = f"{sum(self.failed.values())} of {plural(self.load.requests, 'measured request')} failed: {kinds}"
        return told if kinds else ""

    @cached_property
    def cached_share(self) -> float | None:
        """Share of the prompt tokens of the load that came out of a prefix cache; None where nobody tells."""
        if self.load.cached_tokens_mean is not None:
            return self.load.cached_tokens_mean / self.load.prompt_tokens
        if self.server is not None and self.server.cache_queried_tokens and self.server.cache_hit_tokens is not None:
            return self.server.cache_hit_tokens / self.server.cache_queried_tokens
        return None

    @cached_property
    def outside(self) -> float | None:
        """Mean milliseconds of the client's TTFT that the server's timer does not see; None where it cannot be told."""
        return outside_server(self.load)

    @cached_property
    def queued(self) -> tuple[float, float] | None:
        """Mean milliseconds in the queue and to the first token, as the server tells; None where that is no wait."""
        if self.server is None or None in (self.server.queue_mean, self.server.ttft_mean):
            return None
        waited, whole = self.server.queue_mean, self.server.ttft_mean
        return (waited, whole) if waited > 0.2 * whole else None

    def only(self, role: str) -> Run | None:
        runs = self.observation.role(role)
        return runs[-1] if runs else None


def judged(observation: Observation) -> Run:
    """The run to judge: of role load the one with most concurrency (or the highest rate), else one request alone.

    Raises InputError where there is neither.
    """
    runs = observation.role("load") or observation.role("alone")
    if not runs:
        raise InputError("nothing to judge: the observation has neither a load nor a request alone")
    if not observation.role("load"):
        return max(runs, key=lambda run: run.prompt_tokens)
    return max(runs, key=lambda run: (run.rate_per_s or 0, run.concurrency or 0))


def look(observation: Observation, subject: Subject | None = None) -> Seen:
    """An observation made ready for the detectors."""
    return Seen(observation, subject, judged(observation))


def findings(observation: Observation, subject: Subject | None = None) -> tuple[Finding, ...]:
    """Everything that can be seen, clues last. Raises InputError where there is no run to judge."""
    seen = look(observation, subject)
    found = [finding for detector in DETECTORS for finding in detector(seen)]
    known = {finding.item for finding in found}
    for name, words in observation.clues.items():
        if item(name).id not in known:
            found.append(Finding(name, words or item(name).says, "clue", trouble=name.startswith("ab:")))
    return tuple(found)


def prompt_line(runs: tuple[Run, ...]) -> tuple[float, float] | None:
    """Least-squares a (ms) and b (ms per token) of TTFT p50 over prompt tokens; None below two different lengths."""
    points = [(run.prompt_tokens, run.ttft.p50) for run in runs if run.ttft.p50 is not None]
    if len({x for x, _ in points}) < 2:
        return None
    mean_x, mean_y = (math.fsum(column) / len(points) for column in zip(*points, strict=True))
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    b = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return mean_y - b * mean_x, b


def outside_server(run: Run) -> float | None:
    """Client's mean TTFT − the server's over the same requests, ms; None without both."""
    client = client_mean_ttft(run)
    if run.server is None or run.server.ttft_mean is None or client is None:
        return None
    return client - run.server.ttft_mean


def client_mean_ttft(run: Run) -> float | None:
    """The client's mean TTFT to set beside the server's: over all requests the server counted, where it is known."""
    return run.ttft.mean if run.ttft_of_window_mean is None else run.ttft_of_window_mean


# Gate 0 and 1: is the number what it is taken for, and where is the time spent: client, path or engine?


def claimed_ttft(seen: Seen) -> Iterator[Finding]:
    """Headers that come before the first token, and a claimed TTFT that is their time."""
    headers, ttft = seen.load.headers.p50, seen.load.ttft.p50
    early = None not in (headers, ttft) and headers < 0.5 * ttft
    if early:
        words = f"the response headers come after {ms(headers)}, the first token after {ms(ttft)}"
        yield Finding(None, words + ": a timer that stops at the headers measures no TTFT", "client")
    claimed = seen.observation.claimed_ttft_ms
    if claimed is None:
        return
    by = f" ({seen.observation.claimed_by})" if seen.observation.claimed_by else ""
    if early and claimed < 0.6 * ttft and claimed <= 2 * headers + 1:
        words = f"the claimed TTFT of {ms(claimed)}{by} is the time of the headers, {ms(headers)}; the first token "
        words += f"comes after {ms(ttft)}"
        yield Finding("harness_bug_shown", words, "claim and client", "first_byte_timer", trouble=True)
        return
    floors = seen.floors
    if floors is not None and claimed * floors.tolerance < floors.least_ttft_uncached_ms:
        ratio = floors.least_ttft_uncached_ms / claimed
        words = f"the claimed TTFT of {ms(claimed)}{by} is {times(ratio)} faster than the floor of the whole prompt, "
        words += ms(floors.least_ttft_uncached_ms)
        yield Finding("below_floor", words, "claim and floor", "claim_below_floor", trouble=True)
        return
    fastest = [run.ttft.p50 for run in (seen.load, seen.alone) if run is not None and run.ttft.p50 is not None]
    if fastest and claimed < 0.6 * min(fastest):
        words = f"the claimed TTFT of {ms(claimed)}{by} was not found: {ms(min(fastest))} is the fastest median here"
        yield Finding(None, words, "claim and client", trouble=True)


def repeated_prompts(seen: Seen) -> Iterator[Finding]:
    """Prompts that a prefix cache answered: their TTFT is not that of a new prompt."""
    share, repeat = seen.cached_share, seen.load.prompts_repeat
    if share is not None and share >= (0.2 if repeat else 0.5):
        words = f"{percent(share)} of the prompt tokens came out of the prefix cache"
        words += ", since the load sends its prompts again" if repeat else ""
        words += ": this TTFT is not that of a new prompt"
        yield Finding("harness_bug_shown", words, "cached tokens", "repeated_prompts", trouble=True)
        return
    fresh, ttft, floors = seen.alone, seen.load.ttft.p50, seen.floors
    if not repeat or ttft is None:
        return
    if floors is not None and ttft * floors.tolerance < floors.least_ttft_uncached_ms:
        least = floors.least_ttft_uncached_ms
        words = f"prompts are sent again and TTFT, {ms(ttft)}, is below the floor of computing them, {ms(least)}"
        yield Finding("harness_bug_shown", words, "client and floor", "repeated_prompts", trouble=True)
    elif fresh is not None and fresh is not seen.load and fresh.ttft.p50 and ttft < 0.5 * fresh.ttft.p50:
        words = f"prompts are sent again and take {ms(ttft)} under load, a new one alone {ms(fresh.ttft.p50)}"
        yield Finding("harness_bug_shown", words, "client", "repeated_prompts", trouble=True)


def missed_reuse(seen: Seen) -> Iterator[Finding]:
    """A prefix cache that is asked for prompts it has seen, and has nothing."""
    server = seen.server
    looked_up = server is not None and server.cache_queried_tokens and seen.cached_share is not None
    if seen.load.prompts_repeat and looked_up and seen.cached_share < 0.02:
        words = f"{server.cache_queried_tokens:.0f} tokens of repeated prompts were looked up in the prefix cache, "
        words += f"{percent(seen.cached_share)} found"
        yield Finding("expected_reuse_no_hit", words, "cached tokens")


def client_at_its_limit(seen: Seen) -> Iterator[Finding]:
    """A measuring client that reads late: by half a token's time in the median, or less while it computes a lot."""
    share, lag, token = seen.load.client_cpu_share, seen.load.client_lag.p50, _token_ms(seen.load)
    late = None if lag is None or not token else lag / token
    computes = share is not None and share >= 0.85
    told = [f"keeps a core busy for {percent(share)} of the time"] if computes else []
    if late is not None and late > 0.05:
        told.append(f"reads {ms(lag)} late in the median, where a token takes {ms(token)}")
    words = "the client " + " and ".join(told)
    busy = computes if late is None else late > 0.5 or (late > 0.15 and (share or 0.0) >= 0.4)
    if busy and seen.refused:
        # A closed loop sends the next request the moment one is refused: the refusals keep the client busy.
        yield Finding(None, words + ", while requests are refused and the next are sent at once", "client")
    elif busy:
        yield Finding("client_busy", words, "client", "client_lag", trouble=True)
    elif client_is_idle(seen.load):
        within = "" if lag is None else f" and reads within {ms(lag)} in the median"
        yield Finding("client_idle", f"the client computes for {percent(share)} of the time{within}", "client")
    elif told:
        yield Finding(None, words, "client")


def client_is_idle(run: Run) -> bool:
    """Whether the client certainly keeps up: half a core at most, and no tenth of a token late."""
    share, lag, token = run.client_cpu_share, run.client_lag.p50, _token_ms(run)
    return share is not None and share <= 0.5 and (lag is None or not token or lag <= 0.1 * token)


def _token_ms(run: Run) -> float:
    """The time of a token that a late read is set against; of a stream held back TPOT alone says too little."""
    whole = run.e2e.p50 / run.output_tokens if run.e2e.p50 is not None and run.output_tokens else 0.0
    engine = run.server.tpot_mean if run.server is not None else None
    return max(run.tpot.p50 or 0.0, engine or 0.0, whole)


def second_client(seen: Seen) -> Iterator[Finding]:
    """The same load from another process."""
    other = seen.only("second_client")
    if other is None:
        return
    if not _same_load(other, seen.load):
        yield Finding(None, "the second client's run is of another load, and is not compared", "second client")
        return
    faster = _faster(other, seen.load)
    if faster is not None:
        words = f"a second client measures {faster}"
        yield Finding("second_client_fast", words, "second client", "client_lag", trouble=True)
    elif _as_slow(other, seen.load):
        yield Finding("second_client_as_slow", "a second client measures the same", "second client")


def engine_port(seen: Seen) -> Iterator[Finding]:
    """The same load at the engine's own port: is it faster, and is the time outside the engine gone?"""
    direct = seen.only("direct")
    if direct is None:
        return
    if not _same_load(direct, seen.load):
        yield Finding(None, "the run at the engine's own port is of another load, and is not compared", "engine port")
        return
    faster, here, there = _faster(direct, seen.load), seen.outside, outside_server(direct)
    both = None not in (here, there)
    if both and _is_much(seen, here) and here > 0.2 * client_mean_ttft(seen.load) and there < 0.4 * here:
        faster = f"{ms(max(there, 0))} outside the engine's timer instead of {ms(here)}"
    if faster is not None:
        yield Finding("direct_fast_path_slow", f"the engine's own port gives {faster}", "engine port", trouble=True)
    elif _as_slow(direct, seen.load) and not (both and there < 0.7 * here and _is_much(seen, here)):
        yield Finding("direct_as_slow", "the engine's own port is as slow as the public URL", "engine port")


def bursts(seen: Seen) -> Iterator[Finding]:
    """Output events that come several in a read, closer together than the engine makes them."""
    load, server = seen.load, seen.server
    per_read, gap = load.events_per_read, load.gap.p50
    if per_read is None or gap is None or per_read < 1.5 or "cfg_spec_on" in seen.observation.traits:
        return
    engine = None if server is None or server.draft_tokens else server.tpot_mean
    # An answer that is held back whole comes at once: then not even its mean is the engine's.
    step = engine or max(load.tpot.p50 or 0.0, seen.floors.least_tpot_ms if seen.floors is not None else 0.0)
    if not step or gap >= (0.5 if engine else 0.2) * step:
        return
    words = f"{per_read:.1f} output events come in one read, half of the gaps are under {ms(gap)}, and "
    words += f"{'the engine takes' if engine else 'it takes at least'} {ms(step)}"
    words += " a token: something holds the stream back and lets it go in groups"
    certain = engine is not None and per_read >= 2 and gap < 0.25 * engine and client_is_idle(load)
    name = "grouped_on_the_way" if certain else "bursts_itl_falls"
    yield Finding(name, words, "client and server", "buffering", trouble=True)


def connections(seen: Seen) -> Iterator[Finding]:
    """A connection for each request, where it costs time: until it stands, or until somebody takes it up."""
    load = seen.load
    share, connect, ttft = load.sent_on_new_connection, load.connect.p50, load.ttft.p50
    # A closed loop opens one connection for each place, an open loop a few: only more than that is a fault.
    if share is None or share < 0.9 or load.requests < 3 * (load.concurrency or 2):
        return
    words = f"{percent(share)} of the requests open a connection of their own"
    if None not in (connect, ttft) and connect >= 0.1 * ttft:
        words += f", and {ms(connect)} of TTFT's {ms(ttft)} pass until it stands"
        yield Finding("connection_per_request", words, "client", "connection_per_request", trouble=True)
    elif seen.outside is not None and seen.outside > 0.2 * client_mean_ttft(load) and _is_much(seen, seen.outside):
        words += f", and {ms(seen.outside)} of TTFT's {ms(client_mean_ttft(load))} pass outside the engine"
        yield Finding("connection_per_request", words, "client and server", "connection_per_request", trouble=True)
    else:
        cost = "" if connect is None else f", which takes {ms(connect)}"
        yield Finding(None, words + cost, "client", "connection_per_request")


def outside_the_timer(seen: Seen) -> Iterator[Finding]:
    """How much of the client's TTFT lies outside the server's own timer."""
    if seen.outside is None:
        return
    whole, inner = client_mean_ttft(seen.load), seen.server.ttft_mean
    words = f"the client's mean TTFT is {ms(whole)}, the server's own {ms(inner)}"
    if seen.outside > 0.2 * whole:
        yield Finding("outside_server_timer", words, "client and server", trouble=_is_much(seen, seen.outside))
    elif seen.outside < 0.1 * whole and not _is_much(seen, seen.outside):
        yield Finding("server_agrees", words, "client and server")


def fixed_offset(seen: Seen) -> Iterator[Finding]:
    """A part of TTFT that is there at every prompt length, and that the engine does not see."""
    alone = seen.observation.role("alone")
    offsets = [(run.prompt_tokens, outside_server(run), client_mean_ttft(run)) for run in alone]
    offsets = [row for row in offsets if row[1] is not None]
    if len({prompt for prompt, _, _ in offsets}) >= 2:
        low, high = (pick(offset for _, offset, _ in offsets) for pick in (min, max))
        shortest, longest = (pick(prompt for prompt, _, _ in offsets) for pick in (min, max))
        mean = math.fsum(offset for _, offset, _ in offsets) / len(offsets)
        words = f"between {shortest:.0f} and {longest:.0f} prompt tokens the client's TTFT is {ms(max(low, 0))} to "
        words += f"{ms(max(high, 0))} above the server's own"
        whole = client_mean_ttft(seen.alone) if seen.alone is not None else max(ttft for _, _, ttft in offsets)
        if _is_much(seen, mean) and mean > 0.2 * whole and low > 0.4 * high:
            waits = longest >= 4 * shortest and max(high, seen.outside or 0) <= 1.5 * low
            words += ", whatever the length" + " and the load" * waits
            name = "offset_is_a_wait" if waits else "ttft_fixed_offset"
            mechanism = "first_event_timer"
            if any(finding.trouble for finding in connections(seen)):
                words += ", and each request opens a connection"
                mechanism = "connection_per_request"
            elif waits:
                words += ": a timer, not work"
            yield Finding(name, words, "client and server", mechanism, trouble=True)
        elif mean < 0.1 * whole:
            yield Finding("no_offset", words, "client and server")
    elif seen.line is not None and len({run.prompt_tokens for run in alone}) >= 3:
        a, b = seen.line
        longest = max(run.prompt_tokens for run in alone)
        if b >= 0 and a > b * longest and _is_much(seen, a):
            words = f"TTFT alone is {ms(a)} and {1e3 * b:.0f} µs per prompt token: most of it no prompt explains"
            yield Finding("ttft_fixed_offset", words, "three prompt lengths", "first_event_timer", trouble=True)


def _is_much(seen: Seen, offset: float) -> bool:
    """Whether a wait is more than what passing a token on costs: twice a token's time, one request alone."""
    base = seen.alone or seen.load
    return base.tpot.p50 is None or offset > max(2 * base.tpot.p50, 5.0)


# Gate 2: one request alone against its floors.


def tpot_against_floor(seen: Seen) -> Iterator[Finding]:
    """The time of a token alone, and under load, against its floor."""
    floors, alone, load = seen.floors, seen.alone, seen.load
    if floors is None or "cfg_spec_on" in seen.observation.traits:
        return
    if alone is not None and alone.tpot.p50 is not None:
        own = service_floors(seen.subject, alone).tpot_alone_ms
        ratio = alone.tpot.p50 / own
        words = f"alone, a token takes {ms(alone.tpot.p50)}, {times(ratio)} its floor of {ms(own)}"
        if alone.tpot.p50 > TPOT_BOUND * floors.slack * own + floors.launch:
            yield Finding("c1_tpot_gt2p5_floor", words, "client and floor", trouble=True, alone=True, ratio=ratio)
        elif ratio <= 1.5:
            yield Finding("tpot_near_floor", words, "client and floor", alone=True, ratio=ratio)
        elif ratio > TPOT_BOUND:
            words += f"; starting kernels may explain {ms(floors.launch)} of it in a model this small"
            yield Finding(None, words, "client and floor", alone=True, ratio=ratio)
        else:
            yield Finding(None, words, "client and floor", alone=True, ratio=ratio)
    if load is not alone and load.tpot.p50 is not None:
        bound = (TPOT_BOUND * floors.slack * floors.tpot_ms + floors.launch) / (1 - min(seen.prefill_share or 0.0, 0.8))
        ratio = load.tpot.p50 / floors.tpot_ms
        words = f"under load a token takes {ms(load.tpot.p50)}, {times(ratio)} the floor of a step of {floors.batch}"
        slower = alone is None or alone.tpot.p50 is None or load.tpot.p50 > 1.3 * alone.tpot.p50
        yield Finding(None, words, "client and floor", trouble=load.tpot.p50 > bound and slower, ratio=ratio)


def ttft_against_floor(seen: Seen) -> Iterator[Finding]:
    """The time to the first token alone against the floor of its prefill."""
    floors, alone = seen.floors, seen.alone
    if floors is None or alone is None or alone.ttft.p50 is None:
        return
    own = service_floors(seen.subject, alone).ttft_ms
    ratio, step = alone.ttft.p50 / own, alone.tpot.p50 or 0.0
    words = f"alone, the first token takes {ms(alone.ttft.p50)}, {times(ratio)} the floor of its prefill, {ms(own)}"
    if ratio <= 2:
        yield Finding("c1_ttft_near_floor", words, "client and floor", alone=True, ratio=ratio)
    else:
        bound = TTFT_BOUND * floors.slack * own + floors.launch + 2 * step
        yield Finding(None, words, "client and floor", trouble=alone.ttft.p50 > bound, alone=True, ratio=ratio)


def ttft_under_load(seen: Seen) -> Iterator[Finding]:
    """The time to the first token under load: at worst all prompts in flight come before one's own."""
    floors, load = seen.floors, seen.load
    if floors is None or load is seen.alone or load.ttft.p50 is None:
        return
    # In an open loop a few may arrive together.
    before = load.concurrency or 5
    bound = before * (TTFT_BOUND * floors.slack * floors.ttft_ms + floors.launch + 2 * (load.tpot.p50 or 0.0))
    words = f"under load the first token takes {ms(load.ttft.p50)}, {times(load.ttft.p50 / floors.ttft_ms)} the floor "
    words += f"of its own prefill, {ms(floors.ttft_ms)}"
    yield Finding(None, words, "client and floor", trouble=load.ttft.p50 > bound)


def slow_alone(seen: Seen) -> Iterator[Finding]:
    """Slowness that needs no load."""
    floors, alone, load = seen.floors, seen.alone, seen.load
    if floors is None or alone is None or None in (alone.tpot.p50, load.tpot.p50, alone.ttft.p50, load.ttft.p50):
        return
    slow = alone.tpot.p50 > TPOT_BOUND * floors.slack * floors.tpot_alone_ms + floors.launch
    if slow and load.tpot.p50 < 1.3 * alone.tpot.p50 and load.ttft.p50 < 1.5 * alone.ttft.p50:
        words = f"one request alone is as slow: {ms(alone.tpot.p50)} a token, {ms(load.tpot.p50)} under load"
        yield Finding("c1_slow_already", words, "client", trouble=True, alone=True)


# Gate 3: what a load adds, and what a queue waits for.


def refusals(seen: Seen) -> Iterator[Finding]:
    """Requests refused, and failures of any other kind."""
    kv = seen.server.kv_share_max if seen.server is not None else None
    if seen.refused:
        # The server's counter also holds what was sent around the measured requests.
        by_server = seen.server is not None and seen.server.rejected is not None
        words = f"{plural(seen.refused, 'request')} refused"
        words += ", counted by the server" if by_server else f" of {seen.load.requests} measured"
        if kv is not None and kv >= 0.95:
            yield Finding(None, words + f" with the KV cache {percent(kv)} full", "server", trouble=True)
        else:
            words += "" if kv is None else f" with the KV cache at most {percent(kv)} full"
            words += ": the queue is short, not the memory"
            yield Finding("refused", words, "server", "queue_limit", trouble=True)
    if seen.failed:
        yield Finding(None, seen.failed_words, "client", trouble=True)


def queue(seen: Seen) -> Iterator[Finding]:
    """Whether requests wait in the engine's queue, and where the running batch stands meanwhile."""
    server, load = seen.server, seen.load
    if server is None:
        return
    waiting = server.waiting_p50
    if waiting is None and server.queue_mean is not None and load.requests_per_s is not None:
        # Little's law on the queue: requests per second · seconds waited.
        waiting = load.requests_per_s * server.queue_mean / 1e3
    if waiting is None:
        return
    if waiting < 1:
        if seen.queued is not None:
            # A burst is short beside the run: the median of the samples misses it.
            words = f"in the mean {ms(seen.queued[0])} of {ms(seen.queued[1])} to the first token pass in the queue"
            yield Finding(None, words + ", though fewer than one request waits at a time", "server")
        elif waiting <= 0.5 and not seen.refused:
            yield Finding("waiting_0", _gauge("nothing waits in the queue", server), "server")
        return
    running, most = server.running_p50, server.running_max
    words = f"{waiting:.0f} requests wait in the median"
    if running is not None:
        words = f"running {running:g} in the median while {waiting:.0f} wait"
    yield Finding("waiting_gt0", _gauge(words, server), "server", trouble=True)
    room = (server.kv_share_max is None or server.kv_share_max < 0.9) and not server.preemptions
    if None not in (running, most) and running >= 1 and most - running < 0.5 and room:
        words = f"the batch stays at {running:g} while {waiting:.0f} wait"
        words += (
            "" if server.kv_share_max is None else f" and the KV cache is at most {percent(server.kv_share_max)} full"
        )
        yield Finding("running_eq_cap", _gauge(words, server), "server", "running_cap", trouble=True)


def _gauge(words: str, server: ServerWindow) -> str:
    return words + (f", in {server.samples} samples" if server.samples else "")


def kv_cache(seen: Seen) -> Iterator[Finding]:
    """How full the KV cache was, and what the requests in flight would need."""
    server, subject, load = seen.server, seen.subject, seen.load
    share = server.kv_share_max if server is not None else None
    if share is not None and share >= 0.95:
        yield Finding("kv_ge95", f"the KV cache is {percent(share)} full at most", "server")
    elif share is not None and share < 0.7:
        yield Finding("kv_lt70", f"the KV cache is never more than {percent(share)} full", "server")
    if subject is None or subject.together.visible_memory_bytes is None:
        return
    weights = weight_bytes(subject.model, subject.weights_dtype).total
    pool = subject.together.visible_memory_bytes - weights
    if pool <= 0:
        words = (
            f"the weights need {weights / 1e9:.1f} GB, the device has {subject.together.visible_memory_bytes / 1e9:.1f}"
        )
        yield Finding("model_gt_vram", words, "arithmetic", "weights_do_not_fit", trouble=True, alone=True)
        return
    if load.concurrency:
        demand = load.concurrency * request_bytes(subject, round(load.prompt_tokens + load.output_tokens / 2)) / pool
        if demand > 1:
            words = f"{load.concurrency} requests need {times(demand)} the memory that the weights leave for KV cache"
            yield Finding("kv_demand_gt_pool", words, "arithmetic")


def request_bytes(subject: Subject, tokens: int) -> int:
    """Bytes of KV cache and state that one request of `tokens` tokens holds."""
    return kv_bytes(subject.model, max(tokens, 1), subject.kv_dtype) + state_bytes(subject.model)


def preemptions(seen: Seen) -> Iterator[Finding]:
    """Running requests that were sent back to the queue."""
    server = seen.server
    if server is None or server.preemptions is None:
        return
    if not server.preemptions:
        yield Finding("preempt_0", "no running request was sent back to the queue", "server")
        return
    finished = server.finished or seen.load.requests
    words = f"{plural(server.preemptions, 'preemption')} over {finished:.0f} finished requests"
    often = bool(finished) and server.preemptions >= 0.1 * finished
    name = "preempted_often" if often else "preempt_rising"
    yield Finding(name, words + ": computed again after the KV cache ran out", "server", "preemption", trouble=True)


def load_sweep(seen: Seen) -> Iterator[Finding]:
    """TTFT, TPOT and throughput over rising concurrency."""
    runs = [run for run in seen.sweep if None not in (run.ttft.p50, run.tpot.p50, run.output_tokens_per_s)]
    if len(runs) < 2 or runs[-1].concurrency < 2 * runs[0].concurrency:
        return
    first, last, before = runs[0], runs[-1], runs[-2]
    span = f"from concurrency {first.concurrency} to {last.concurrency}"
    best = max(runs, key=lambda run: run.output_tokens_per_s)
    rate = f"{best.output_tokens_per_s:.0f} to {last.output_tokens_per_s:.0f} tokens/s"
    if len(runs) >= 3 and best is not last and last.output_tokens_per_s < 0.7 * best.output_tokens_per_s:
        words = f"throughput falls from {rate} between concurrency {best.concurrency} and {last.concurrency}"
        yield Finding("tput_falls_C_up", words, "load sweep", trouble=True)
    elif last.concurrency >= 1.5 * before.concurrency and last.output_tokens_per_s < 1.1 * before.output_tokens_per_s:
        words = f"throughput stays the same between concurrency {before.concurrency} and {last.concurrency}"
        yield Finding("tput_flat_C_up", words, "load sweep")
    if last.ttft.p50 >= 2 * first.ttft.p50 and last.tpot.p50 <= 1.3 * first.tpot.p50:
        words = f"{span} TTFT goes from {ms(first.ttft.p50)} to {ms(last.ttft.p50)}, TPOT stays at {ms(last.tpot.p50)}"
        yield Finding("ttft_up_tpot_flat", words, "load sweep")
    steps = [
        (small, large)
        for small, large in pairwise(runs)
        if large.tpot.p50 >= 2 * small.tpot.p50 and large.concurrency < 1.9 * small.concurrency
    ]
    if steps:
        small, large = steps[0]
        words = f"TPOT goes from {ms(small.tpot.p50)} to {ms(large.tpot.p50)} between concurrency {small.concurrency} "
        words += f"and {large.concurrency}"
        yield Finding("tpot_step_at_batch", words, "load sweep", trouble=True)
    elif last.tpot.p50 > 1.3 * first.tpot.p50:
        words = f"{span} TPOT goes from {ms(first.tpot.p50)} to {ms(last.tpot.p50)} without a jump"
        yield Finding("tpot_up_smooth", words, "load sweep")


def running_over_concurrency(seen: Seen) -> Iterator[Finding]:
    """A running batch that shrinks while more is offered, though nothing was preempted."""
    runs = [run for run in seen.sweep if run.server is not None and run.server.running_p50]
    if len(runs) < 3 or runs[-1].server.preemptions or seen.refused:
        return
    most = max(runs, key=lambda run: run.server.running_p50)
    last = runs[-1]
    if last.server.running_p50 < 0.6 * most.server.running_p50:
        words = f"running {most.server.running_p50:g} in the median at concurrency {most.concurrency}, and only "
        words += f"{last.server.running_p50:g} at {last.concurrency}"
        yield Finding("running_drops_under_load", words, "load sweep", trouble=True)


def worse_than_one_by_one(seen: Seen) -> Iterator[Finding]:
    """A load whose requests take longer than if they had been served one after another."""
    alone, load = seen.alone, seen.load
    if alone is None or alone is load or not load.concurrency:
        return
    together = load.concurrency
    if None not in (alone.ttft.p50, load.ttft.p50) and load.ttft.p50 > 1.5 * together * alone.ttft.p50:
        words = (
            f"TTFT is {ms(load.ttft.p50)} at concurrency {together} and {ms(alone.ttft.p50)} alone: more than if the "
        )
        yield Finding(None, words + "prompts were computed one by one", "client", trouble=True)
    if None not in (alone.tpot.p50, load.tpot.p50) and load.tpot.p50 > 1.5 * together * alone.tpot.p50:
        words = (
            f"a token takes {ms(load.tpot.p50)} at concurrency {together} and {ms(alone.tpot.p50)} alone: more than "
        )
        yield Finding(None, words + "if the answers were made one by one", "client", trouble=True)


def prefill_capacity(seen: Seen) -> Iterator[Finding]:
    """Prompt tokens per second against what prefill alone could do."""
    share = seen.prefill_share
    if share is None:
        return
    words = f"prompts take {percent(share)} of the time, by the TTFT of a token alone"
    if share > 1.2:
        words += ": more than there is, so one request alone was slower than those under load, and this says nothing"
    yield Finding("prefill_load_near_cap" if 0.7 <= share <= 1.2 else None, words, "client")


def gap_tail(seen: Seen) -> Iterator[Finding]:
    """The tail of the gaps between tokens."""
    gap = seen.load.gap
    if gap.n < 100 or not gap.p50 or gap.p99 is None:
        return
    words = f"the gaps between tokens are {ms(gap.p50)} in the median, {ms(gap.p99)} at the 99th percentile"
    if gap.p99 >= 5 * gap.p50:
        # Groups of events have no median gap to speak of.
        if (seen.load.events_per_read or 1) < 1.5:
            yield Finding("itl_p99_gg_p50", words, "client")
    elif gap.p99 < 3 * gap.p50:
        yield Finding("no_gap_tail", words, "client")


def beside_a_long_prompt(seen: Seen) -> Iterator[Finding]:
    """Short streams while one long prompt is computed: do they stand still for all of it?"""
    run = seen.only("beside_long")
    if run is None or None in (run.gap.max, run.gap.p50, run.long_ttft) or not run.long_ttft:
        return
    # Beside others the long prompt itself is slower: what its prefill takes is its TTFT alone, where that was measured.
    whole = run.long_ttft
    for alone in seen.observation.role("alone"):
        if run.long_prompt_tokens and alone.ttft.p50 and _alike(alone.prompt_tokens, run.long_prompt_tokens, 1.1):
            whole = min(whole, alone.ttft.p50)
    share = run.gap.max / whole
    long = "the long prompt" if run.long_prompt_tokens is None else f"a prompt of {run.long_prompt_tokens:.0f} tokens"
    words = f"while {long} is computed ({ms(whole)} to its first token) the largest gap of the short streams is "
    words += ms(run.gap.max)
    # The run alone may be of a faster hour: the gap must be much of the long prompt's wait beside the streams too.
    if share >= 0.6 and run.gap.max >= max(5 * run.gap.p50, 0.5 * run.long_ttft):
        words += f", {f'{percent(share)} of it' if share < 1 else 'no shorter'}: all stand still for it"
        yield Finding(
            "itl_spikes_during_prefill", words, "beside a long prompt", "whole_prompt_in_one_step", trouble=True
        )
    elif share <= 0.4:
        yield Finding("no_prefill_stall", words, "beside a long prompt")


def expert_skew(seen: Seen) -> Iterator[Finding]:
    """The hottest rank against the mean, from the expert counts of the service."""
    factor = skew_factor(seen.subject)
    if factor is None:
        return
    words = f"the busiest of {ranks_of(seen.subject)} ranks carries {times(factor)} the mean tokens"
    yield Finding("rank_skew" if factor >= 1.5 else None, words, "expert counts")


def ranks_of(subject: Subject | None) -> int | None:
    """Ranks that hold the experts: as told, or as the dump of counts says."""
    if subject is None or subject.expert_load is None:
        return None
    return subject.ranks or subject.expert_load.ranks


def skew_factor(subject: Subject | None) -> float | None:
    """Σ over layers of the busiest rank's tokens ÷ Σ of the mean, contiguous blocks; None without counts or ranks."""
    ranks = ranks_of(subject)
    if ranks is None or ranks < 2:
        return None
    counts = subject.expert_load.counts
    placement = contiguous(len(counts[0]), ranks)
    return step_time_factor([rank_loads(layer, placement) for layer in counts])


def speculation(seen: Seen) -> Iterator[Finding]:
    """How many drafted tokens were right; whether that pays, only a run without drafts can say."""
    server = seen.server
    if server is not None and server.draft_tokens and server.accepted_tokens is not None:
        share = server.accepted_tokens / server.draft_tokens
        yield Finding(None, f"{percent(share)} of the drafted tokens were accepted", "server")


DETECTORS: tuple[Callable[[Seen], Iterator[Finding]], ...] = (
    claimed_ttft,
    repeated_prompts,
    missed_reuse,
    client_at_its_limit,
    second_client,
    engine_port,
    bursts,
    connections,
    outside_the_timer,
    fixed_offset,
    tpot_against_floor,
    ttft_against_floor,
    ttft_under_load,
    slow_alone,
    refusals,
    queue,
    kv_cache,
    preemptions,
    load_sweep,
    running_over_concurrency,
    worse_than_one_by_one,
    prefill_capacity,
    gap_tail,
    beside_a_long_prompt,
    expert_skew,
    speculation,
)
"""Everything that is looked for, gate by gate."""


def _alike(one: float, other: float, factor: float) -> bool:
    return max(one, other) <= factor * min(one, other)


def _same_load(one: Run, other: Run) -> bool:
    """Whether two runs are of the same pace and lengths, so that their times can be set side by side."""
    if one.concurrency != other.concurrency:
        return False
    pairs = [(one.prompt_tokens, other.prompt_tokens), (one.output_tokens, other.output_tokens)]
    if one.concurrency is None:
        pairs.append((one.rate_per_s, other.rate_per_s))
    return all(_alike(mine, its, 1.25) for mine, its in pairs)


def _faster(other: Run, load: Run) -> str | None:
    """By how much `other` is faster than `load`, in words; None where it is not, or where the server was too."""
    ours, theirs = (run.server.ttft_mean if run.server is not None else None for run in (load, other))
    # A server that was itself slower during one of both runs says nothing of the path; nor do cached prompts.
    if None not in (ours, theirs) and ours > 1.3 * theirs:
        return None
    if (other.cached_tokens_mean or 0) > (load.cached_tokens_mean or 0) + 0.1 * other.prompt_tokens:
        return None
    limit = _FASTER if None not in (ours, theirs) else 2.0
    for name, mine, its in (("TTFT", load.ttft.p50, other.ttft.p50), ("E2E", load.e2e.p50, other.e2e.p50)):
        if None not in (mine, its) and mine >= limit * its:
            return f"{name} of {ms(its)} instead of {ms(mine)}"
    return None


def _as_slow(other: Run, load: Run) -> bool:
    pairs = ((load.ttft.p50, other.ttft.p50), (load.e2e.p50, other.e2e.p50))
    known = [(mine, its) for mine, its in pairs if None not in (mine, its)]
    return bool(known) and all(mine <= _ALIKE * its for mine, its in known)
