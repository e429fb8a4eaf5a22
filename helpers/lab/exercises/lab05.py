"""Lab 05, TTFT and TPOT: the parser, both metrics, percentiles, throughput, five wrong measurements, queues, and Q1."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence

from helpers.lab.exercise import Exercise, Mistake

# 5.1: the events of a stream.


def sse_data(reads: Sequence[bytes]) -> list[str]:
    """The data of every complete event of a stream that was read in pieces cut anywhere."""
    events, data = [], []
    for line in b"".join(reads).replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line.startswith(b"data:"):
            data.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and data:
            events.append(b"\n".join(data).decode("utf-8"))
            data = []
    return events


def _sse(
    line_end: bytes = b"\r\n",
    *,
    prefix: bytes = b"data:",
    anywhere: bool = False,
    joined: bytes = b"\n",
    strip: Callable[[bytes], bytes] = lambda text: text.removeprefix(b" "),
    unfinished: bool = False,
    each_line: bool = False,
) -> Callable[[Sequence[bytes]], list[str]]:
    """`sse_data` with a fault; without arguments it has none."""

    def wrong(reads):
        events, data = [], []
        lines = b"".join(reads).replace(line_end, b"\n").split(b"\n")
        for line in lines if unfinished else lines[:-1]:
            if (prefix in line) if anywhere else line.startswith(prefix):
                data.append(strip(line.partition(prefix)[2]))
            if data and (each_line or not line):
                events.append(joined.join(data).decode("utf-8"))
                data = []
        return [*events, joined.join(data).decode("utf-8")] if unfinished and data else events

    return wrong


def _sse_read_by_read(reads):
    return [event for read in reads for event in _read_alone(read)]


def _read_alone(read):
    lines = read.decode("utf-8", errors="replace").replace("\r\n", "\n").split("\n")
    return [line.removeprefix("data:").removeprefix(" ") for line in lines if line.startswith("data:")]


def _sse_decoded_read_by_read(reads):
    return sse_data([read.decode("utf-8", errors="replace").encode() for read in reads])


def _sse_splitlines(reads):
    return sse_data(["\n".join([*b"".join(reads).decode("utf-8").splitlines(), ""]).encode()])


def _cut(rng: random.Random, stream: bytes, pieces: int) -> list[bytes]:
    places = sorted(rng.randrange(1, len(stream)) for _ in range(pieces - 1))
    return [stream[a:b] for a, b in itertools.pairwise([0, *places, len(stream)])]


def _sse_case(rng: random.Random) -> tuple:
    end = rng.choice(("\n", "\r\n"))
    blocks = []
    for number in range(rng.randrange(2, 6)):
        text = rng.choice(("tide", "猫", "été", "a\u2028b", " two spaces", "x: data: y")) + str(number)
        block = rng.choice((f"data: {text}", f"data:{text}", f": ping{end}data: {text}", f"id: 1{end}data: {text}"))
        blocks.append(block + rng.choice(("", f"{end}data: more")))
    stream = "".join(block + 2 * end for block in blocks) + rng.choice(("", f"data: cut o{end}"))
    return (_cut(rng, stream.encode(), rng.randrange(2, 9)),)


# 5.2: the first output anyone can use.

OUTPUT_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls")


def ttft_ms(sent_ms: float, events: Sequence[Sequence]) -> float | None:
    """Milliseconds from the send to the first event with text, reasoning or a tool call; None where none came."""
    for arrived_ms, chunk in events:
        for choice in chunk["choices"]:
            if any(choice["delta"].get(key) for key in OUTPUT_KEYS):
                return arrived_ms - sent_ms
    return None


def _first(useful: Callable[[Mapping], object], *, sent: bool = True, scale: float = 1.0, last: bool = False):
    """`ttft_ms` with another idea of what is useful: a function of a choice's delta."""

    def wrong(sent_ms, events):
        found = [at for at, chunk in events for choice in chunk["choices"] if useful(choice["delta"])]
        return (found[-1 if last else 0] - (sent_ms if sent else 0)) * scale if found else None

    return wrong


def _useful(delta: Mapping) -> bool:
    return any(delta.get(key) for key in OUTPUT_KEYS)


def _without(*keys: str) -> Callable[[Mapping], bool]:
    return lambda delta: any(delta.get(key) for key in OUTPUT_KEYS if key not in keys)


def _first_choice_only(sent_ms, events):
    return ttft_ms(sent_ms, [[at, {"choices": chunk["choices"][:1]}] for at, chunk in events])


def _first_without_role(sent_ms, events):
    found = [at for at, chunk in events for choice in chunk["choices"] if "role" not in choice["delta"]]
    return found[0] - sent_ms if found else None


def _ttft_or(instead: Callable[[Sequence], float]):
    def wrong(sent_ms, events):
        right = ttft_ms(sent_ms, events)
        return instead(events) if right is None else right

    return wrong


def _delta(**delta) -> dict:
    return {"choices": [{"delta": delta}]}


_ROLE, _USAGE = _delta(role="assistant", content=""), {"choices": []}
_SECOND_CHOICE = {"choices": [{"delta": {"content": ""}}, {"delta": {"content": "A"}}]}


def _ttft_case(rng: random.Random) -> tuple:
    sent = at = round(rng.uniform(0, 5000), 1)
    kinds = [rng.choice((_ROLE, _delta(content=""), _USAGE)) for _ in range(rng.randrange(1, 4))]
    key = rng.choice(OUTPUT_KEYS)
    useful = _delta(**{key: [{"index": 0}] if key == "tool_calls" else "The"})
    kinds += [useful, _delta(content=" sea"), _delta(content=" is")] * rng.choice((0, 1, 1, 1, 1))
    events = []
    for chunk in [*kinds, _delta(), _USAGE]:
        at = round(at + rng.uniform(1, 300), 1)
        events.append([at, chunk])
    return sent, events


# 5.3: the pace.


def tpot_ms(sent_ms: float, arrivals_ms: Sequence[float], output_tokens: int | None) -> float | None:
    """(last − first output event) ÷ (N − 1) in ms; None where N is unknown or below 2, or all came at one time."""
    if output_tokens is None or output_tokens < 2 or arrivals_ms[0] == arrivals_ms[-1]:
        return None
    return (arrivals_ms[-1] - arrivals_ms[0]) / (output_tokens - 1)


def _pace(value: Callable[[float, Sequence[float], int], float]):
    """Right about when there is no TPOT, `value(sent, arrivals, N)` where there is one."""

    def wrong(sent_ms, arrivals_ms, output_tokens):
        right = tpot_ms(sent_ms, arrivals_ms, output_tokens)
        return None if right is None else value(sent_ms, arrivals_ms, output_tokens)

    return wrong


def _pace_zero(unknown: bool, few: bool, burst: bool):
    """Right where there is a TPOT, 0 where one of these reasons holds."""

    def wrong(sent_ms, arrivals_ms, output_tokens):
        right = tpot_ms(sent_ms, arrivals_ms, output_tokens)
        if right is not None:
            return right
        if output_tokens is None:
            return 0.0 if unknown else None
        return 0.0 if (few if output_tokens < 2 else burst) else None

    return wrong


def _pace_of_no_tokens(sent_ms, arrivals_ms, output_tokens):
    if output_tokens == 0:
        return (arrivals_ms[-1] - arrivals_ms[0]) / -1
    return tpot_ms(sent_ms, arrivals_ms, output_tokens)


def _pace_guessing_n(sent_ms, arrivals_ms, output_tokens):
    return tpot_ms(sent_ms, arrivals_ms, len(arrivals_ms) if output_tokens is None else output_tokens)


def _tpot_case(rng: random.Random) -> tuple:
    sent = round(rng.uniform(0, 1000), 1)
    at, arrivals = sent + round(rng.uniform(100, 900), 1), []
    events = rng.randrange(3, 9)
    for _ in range(events):
        arrivals.append(round(at, 1))
        at += rng.uniform(10, 90)
    # More tokens than events, as with speculative decoding; the counts of both never agree by chance.
    return sent, arrivals, rng.choice((None, events + 1, events + 2, 3 * events))


# 5.4: percentiles.


def percentile(samples: Sequence[float], p: int, failures: int) -> float:
    """Nearest rank: the ⌈p · n / 100⌉-th smallest, n with the failures, each of which counts as infinity."""
    everything = sorted(samples) + [math.inf] * failures
    return everything[math.ceil(p * len(everything) / 100) - 1]


def _rank(index: Callable[[int, int], int], *, failures_as: float | None = math.inf, ordered: bool = True):
    def wrong(samples, p, failures):
        everything = [*samples, *([] if failures_as is None else [failures_as] * failures)]
        everything = sorted(everything) if ordered else everything
        return everything[min(max(index(p, len(everything)), 0), len(everything) - 1)]

    return wrong


def _nearest(p: int, n: int) -> int:
    return math.ceil(p * n / 100) - 1


def _one_too_far(samples, p, failures):
    everything = sorted(samples) + [math.inf] * failures
    return everything[math.ceil(p * len(everything) / 100)]  # off the end where the rank is the last: an IndexError


def _interpolated(samples, p, failures):
    everything = sorted(samples) + [math.inf] * failures
    place = (len(everything) - 1) * p / 100
    low, share = everything[int(place)], place - int(place)
    return low if share == 0 else low + (everything[int(place) + 1] - low) * share if low < math.inf else math.inf


def _percentile_case(rng: random.Random) -> tuple:
    samples = [round(rng.uniform(50, 900), 1) for _ in range(rng.randrange(5, 60))]
    return samples, rng.choice((50, 90, 95, 99)), rng.choice((0, 0, 1, 2, 3))


# 5.5: throughput.


def throughput(requests: Sequence[Mapping]) -> list[float]:
    """[output tokens/s of the system, median output tokens/s of one sound request over its own time]."""
    sound = [r for r in requests if not r["failed"]]
    seconds = max(r["end_s"] for r in requests) - min(r["start_s"] for r in requests)
    own = [r["output_tokens"] / (r["end_s"] - r["start_s"]) for r in sound]
    return [sum(r["output_tokens"] for r in sound) / seconds, statistics.median(own)]


def _own(requests: Sequence[Mapping]) -> list[float]:
    return [r["output_tokens"] / (r["end_s"] - r["start_s"]) for r in requests if not r["failed"]]


def _system(value: Callable[[Sequence[Mapping]], float]):
    return lambda requests: [value(requests), throughput(requests)[1]]


def _tokens(requests: Sequence[Mapping]) -> int:
    return sum(r["output_tokens"] for r in requests if not r["failed"])


def _durations(requests: Sequence[Mapping]) -> list[float]:
    return [r["end_s"] - r["start_s"] for r in requests]


def _all_sound(requests: Sequence[Mapping]) -> list[dict]:
    return [{**r, "failed": False} for r in requests]


def _throughput_case(rng: random.Random) -> tuple:
    requests, start = [], rng.uniform(0, 100)
    count = rng.randrange(5, 10)
    for number in range(count):
        begin = round(start + rng.uniform(0, 4), 2)
        seconds = round(rng.uniform(1, 6), 2)
        # The last to end and one more have failed: they take time and give no tokens.
        failed = number in (1, 3)
        end = round(begin + seconds + (9 if number == 1 else 0), 2)
        tokens = rng.randrange(20, 200)
        requests.append({"start_s": begin, "end_s": end, "output_tokens": tokens, "failed": failed})
    return (requests,)


# 5.6: what is wrong with a measurement.

TTFT_WORDS = ("right", "headers", "role event", "whole answer", "unexplained")
TPOT_WORDS = ("right", "TTFT included", "characters", "events", "unexplained")


def diagnose(stream: Mapping, reported: Mapping) -> list[str]:
    """[word for the TTFT, word for the TPOT] that were reported of a stream: the first that fits to 1 %."""
    return _diagnosis(stream, reported)


def _candidates(stream: Mapping) -> tuple[dict[str, float], dict[str, float]]:
    """What each way of measuring says of a stream, by its word."""
    first, last = stream["output_ms"][0], stream["output_ms"][-1]
    ttft = {"right": first, "headers": stream["headers_ms"], "role event": stream["role_ms"], "whole answer": last}
    tpot = {
        "right": (last - first) / (stream["tokens"] - 1),
        "TTFT included": last / stream["tokens"],
        "characters": (last - first) / (stream["characters"] - 1),
        "events": (last - first) / (len(stream["output_ms"]) - 1),
    }
    return ttft, tpot


def _diagnosis(stream, reported, tolerance=0.01, change=lambda ttft, tpot: None, words=lambda ttft, tpot: [ttft, tpot]):
    ttft, tpot = _candidates(stream)
    change(ttft, tpot)

    def word(value, candidates):
        fits = (name for name, ms in candidates.items() if abs(value - ms) <= tolerance * ms)
        return next(fits, "unexplained")

    return words(word(reported["ttft_ms"], ttft), word(reported["tpot_ms"], tpot))


def _diagnosing(**fault):
    return lambda stream, reported: _diagnosis(stream, reported, **fault)


def _swap_headers_and_role(ttft, tpot):
    ttft["headers"], ttft["role event"] = ttft["role event"], ttft["headers"]


def _gaps_for_tokens(ttft, tpot):
    first, last = ttft["right"], ttft["whole answer"]
    tokens = round((last - first) / tpot["right"]) + 1
    tpot["TTFT included"] = last / (tokens - 1)


def _n_for_gaps(ttft, tpot):
    first, last = ttft["right"], ttft["whole answer"]
    tokens = round((last - first) / tpot["right"]) + 1
    tpot["right"] = (last - first) / tokens


def _counts_for_gaps(ttft, tpot):
    for word in ("characters", "events"):
        count = round((ttft["whole answer"] - ttft["right"]) / tpot[word]) + 1
        tpot[word] *= (count - 1) / count


def _diagnosing_nearest(stream, reported):
    pairs = zip(_candidates(stream), (reported["ttft_ms"], reported["tpot_ms"]), strict=True)
    return [min(ways, key=lambda word: abs(ways[word] - value)) for ways, value in pairs]


def _events_are_tokens(ttft, tpot):
    tpot["right"], tpot["events"] = tpot["events"], tpot["right"]


def _stream(headers: float, role: float, first: float, gap: float, events: int, tokens: int, characters: int) -> dict:
    output = [round(first + number * gap, 1) for number in range(events)]
    return {"headers_ms": headers, "role_ms": role, "output_ms": output, "tokens": tokens, "characters": characters}


def _measured(stream: Mapping, ttft: str, tpot: str) -> dict:
    """What somebody reports who measures like that, rounded as reports are; "unexplained" is a number of no origin."""
    ttfts, tpots = _candidates(stream)
    return {
        "ttft_ms": round(ttfts.get(ttft, 1.7 * ttfts["whole answer"]), 2),
        "tpot_ms": round(tpots.get(tpot, 1.9 * max(tpots.values())), 3),
    }


_LONG = _stream(4.0, 9.0, 820.0, 60.0, 20, 60, 250)
_PLAIN = _stream(5.0, 11.0, 400.0, 40.0, 12, 24, 100)
_CHINESE = _stream(3.0, 7.5, 600.0, 50.0, 10, 30, 17)
FIVE_MEASUREMENTS = (
    (_LONG, _measured(_LONG, "headers", "right")),
    (_PLAIN, _measured(_PLAIN, "right", "characters")),
    (_CHINESE, _measured(_CHINESE, "role event", "TTFT included")),
    (_PLAIN, _measured(_PLAIN, "whole answer", "events")),
    (_LONG, _measured(_LONG, "right", "right")),
)
"""Five reports about streams, four of them with something wrong."""


def _diagnosis_case(rng: random.Random) -> tuple:
    events = rng.randrange(8, 30)
    tokens = events * rng.choice((2, 3))
    characters = tokens * rng.choice((3, 4, 5))
    headers, first = round(rng.uniform(2, 9), 1), round(rng.uniform(300, 2000), 1)
    stream = _stream(headers, 2 * headers, first, round(rng.uniform(30, 90), 1), events, tokens, characters)
    return stream, _measured(stream, rng.choice(TTFT_WORDS), rng.choice(TPOT_WORDS))


# 5.7: open loop.


def latencies_s(arrivals_s: Sequence[float], service_s: Sequence[float]) -> list[float]:
    """Latency of each request from its intended start; one server takes them in order, one at a time."""
    free_s, latencies = 0.0, []
    for arrived_s, seconds in zip(arrivals_s, service_s, strict=True):
        free_s = max(free_s, arrived_s) + seconds
        latencies.append(free_s - arrived_s)
    return latencies


def _waits_for_the_one_before(arrivals_s, service_s):
    found = [service_s[0]]
    for i in range(1, len(arrivals_s)):
        found.append(max(0.0, arrivals_s[i - 1] + service_s[i - 1] - arrivals_s[i]) + service_s[i])
    return found


def _never_idle(arrivals_s, service_s):
    ends = list(itertools.accumulate(service_s, initial=arrivals_s[0]))[1:]
    return [end - arrived for end, arrived in zip(ends, arrivals_s, strict=True)]


def _never_idle_from_zero(arrivals_s, service_s):
    return [end - arrived for end, arrived in zip(itertools.accumulate(service_s), arrivals_s, strict=True)]


def _latency(change: Callable[[float, float, float], float]):
    """`change(latency, arrival, service)` in place of each latency."""
    return lambda arrivals, service: [
        change(*one) for one in zip(latencies_s(arrivals, service), arrivals, service, strict=True)
    ]


def _latency_case(rng: random.Random) -> tuple:
    at, arrivals, service = rng.uniform(1, 5), [], []
    for number in range(rng.randrange(6, 12)):
        at += rng.uniform(0.2, 1.5)
        arrivals.append(round(at, 2))
        service.append(round(rng.uniform(2.5, 4) if number == 2 else rng.uniform(0.1, 0.4), 2))
    arrivals.append(round(at + 20, 2))
    service.append(0.2)
    return arrivals, service


# 5.8: where a TTFT went.


def ttft_parts_ms(timings: Mapping[str, float], client_ttft_ms: float) -> dict[str, float]:
    """Milliseconds of parse, queue, prefill (from the server's stamps) and delivery, which is the rest of the TTFT."""
    stamps = ("received_at_s", "queued_at_s", "prefill_start_at_s", "prefill_end_at_s")
    spans = [(timings[b] - timings[a]) * 1e3 for a, b in itertools.pairwise(stamps)]
    parts = dict(zip(("parse", "queue", "prefill"), spans, strict=True))
    return parts | {"delivery": client_ttft_ms - sum(spans)}


def _parts(change: Callable[[dict[str, float]], dict[str, float]]):
    return lambda timings, client_ttft_ms: change(ttft_parts_ms(timings, client_ttft_ms))


def _parts_in_seconds(timings, client_ttft_ms):
    parts = ttft_parts_ms(timings, client_ttft_ms)
    spans = {name: parts[name] / 1e3 for name in ("parse", "queue", "prefill")}
    return spans | {"delivery": client_ttft_ms - sum(spans.values())}


def _parts_case(rng: random.Random) -> tuple:
    # Powers of two keep the differences of large clock values exact enough.
    stamps, at = {}, float(rng.randrange(1_000, 90_000))
    for name in ("received_at_s", "queued_at_s", "prefill_start_at_s", "prefill_end_at_s"):
        stamps[name] = at
        at += rng.randrange(8, 2000) / 1024
    spans_ms = (stamps["prefill_end_at_s"] - stamps["received_at_s"]) * 1e3
    return stamps, round(spans_ms + rng.uniform(2, 40), 2)


# 5.9: Q1.

NEEDED = ("concurrency", "input_tokens", "output_tokens", "ttft_ms", "e2e_ms")


def what_is_it(reported_ms: float, measured: Mapping) -> str:
    """Which P50 of a measured run a reported latency is within 10 % of: "TTFT", "end to end", "either", "neither"."""
    if any(measured.get(name) is None for name in NEEDED):
        raise ValueError("a condition or a metric is missing")
    fits = [abs(reported_ms - measured[name]) <= 0.1 * measured[name] for name in ("ttft_ms", "e2e_ms")]
    return {(True, True): "either", (True, False): "TTFT", (False, True): "end to end"}.get(tuple(fits), "neither")


def _it(tolerance: float = 0.1, rename: Mapping[str, str] | None = None, of_reported: bool = False):
    """`what_is_it` with another tolerance, or other words."""

    def wrong(reported_ms, measured):
        if any(measured.get(name) is None for name in NEEDED):
            raise ValueError("missing")

        def fit(ms):
            return abs(reported_ms - ms) <= tolerance * (reported_ms if of_reported else ms)

        fits = fit(measured["ttft_ms"]), fit(measured["e2e_ms"])
        word = {(True, True): "either", (True, False): "TTFT", (False, True): "end to end"}.get(fits, "neither")
        return (rename or {}).get(word, word)

    return wrong


def _it_nearest(reported_ms, measured):
    if any(measured.get(name) is None for name in NEEDED):
        raise ValueError("missing")
    nearer = abs(reported_ms - measured["ttft_ms"]) <= abs(reported_ms - measured["e2e_ms"])
    return "TTFT" if nearer else "end to end"


def _run(ttft: float | None, e2e: float | None, **other: object) -> dict:
    run = {"concurrency": 8, "input_tokens": 512, "output_tokens": 128, "ttft_ms": ttft, "e2e_ms": e2e}
    return {**run, **other}


def _it_case(rng: random.Random) -> tuple:
    ttft = round(rng.uniform(100, 900), 1)
    e2e = round(ttft * rng.choice((1.05, 3.0, 10.0)), 1)
    # Never near the edge of a tolerance, where rounding would decide.
    factor = rng.choice((0.95, 1.0, 1.04, 1.3, 0.6))
    return round(factor * rng.choice((ttft, e2e)), 1), _run(ttft, e2e, concurrency=rng.choice((1, 8, 64)))


EXERCISES = (
    Exercise(
        id="5.1",
        title="The events of a stream",
        minutes=10,
        difficulty=4,
        why="a parser that loses events loses tokens, and the server looks slow or short of words.",
        hints=(
            "A read ends anywhere, even inside a character: put the bytes together before you look at them.",
            "Go through the lines: collect what stands behind `data:`, and give it out at the empty line.",
            "What follows the last line end is no line yet; decode the bytes of an event when it is complete.",
        ),
        reference=sse_data,
        cases=(
            ([b"data: one\n\ndata: two\n\n"],),
            ([b"data: o", b"ne\n", b"\ndata: t", b"wo\n\n"],),
            ([b"data: \xe7\x8c", b"\xab!\n\n"],),
            ([b"data: one\r\n\r", b"\ndata: two\r\n\r\n"],),
            ([b"data:tight\n\ndata:  two spaces \n\n"],),
            ([b": data: a ping\n\nid: 7\nevent: x\ndata: one\n\n"],),
            ([b"data: first line\ndata: second line\n\n"],),
            ([b"data: whole\n\ndata: cut off\n"],),
            (["data: a\u2028b\n\n".encode()],),
            ([b"data: last\n\ndata: [DO", b"NE]\n\n"],),
        ),
        random_case=_sse_case,
        mistakes=(
            Mistake(
                "read by read",
                _sse_read_by_read,
                "each read is parsed alone: an event may begin in one read and end in another",
            ),
            Mistake(
                "decoded read by read",
                _sse_decoded_read_by_read,
                "each read is decoded alone: a character cut in two is lost; put the bytes together first",
            ),
            Mistake(
                "splitlines",
                _sse_splitlines,
                "`splitlines` also splits at U+2028, which may stand inside JSON: lines end in \\n or \\r\\n only",
            ),
            Mistake(
                "the space is needed",
                _sse(prefix=b"data: ", strip=lambda text: text),
                "the space after `data:` is optional: events without it are lost",
            ),
            Mistake(
                "stripped",
                _sse(strip=lambda text: text.strip()),
                "only one space after the colon is left out: tokens begin with spaces that are text",
            ),
            Mistake(
                "the space is kept",
                _sse(strip=lambda text: text),
                "one space after the colon does not belong to the data",
            ),
            Mistake(
                "anywhere in the line",
                _sse(anywhere=True),
                "`data:` counts at the beginning of a line only: a line that begins with a colon is a comment",
            ),
            Mistake(
                "no CRLF",
                _sse(b"\n"),
                "lines may end in \\r\\n: the empty line is then \\r, and no event ever ends",
            ),
            Mistake(
                "an event for each line",
                _sse(each_line=True),
                "an event ends at the empty line: several `data:` lines before it are one event",
            ),
            Mistake(
                "joined without a line end",
                _sse(joined=b""),
                "the `data:` lines of one event are joined by a line end",
            ),
            Mistake(
                "[DONE] dropped",
                lambda reads: [text for text in sse_data(reads) if text != "[DONE]"],
                "`[DONE]` is an event like any other here: whoever uses the events must see that the stream is whole",
            ),
            Mistake(
                "unfinished counted",
                _sse(unfinished=True),
                "an event that no empty line ended has not arrived: the stream was cut off",
            ),
        ),
    ),
    Exercise(
        id="5.2",
        title="TTFT from events",
        minutes=6,
        difficulty=2,
        why="the first event is often a role with an empty text, and then it is not what a user waits for.",
        hints=(
            "Go through the events in order and return at the first one that anybody could use.",
            "`delta.get(key)` is false for a key that is missing, an empty text and an empty list alike.",
        ),
        reference=ttft_ms,
        cases=(
            (0.0, [[4.0, _ROLE], [420.0, _delta(content="The")], [460.0, _delta(content=" sea")], [461.0, _USAGE]]),
            (1000.0, [[1004.0, _ROLE], [1300.0, _delta(reasoning_content="Hm")], [1900.0, _delta(content="Yes")]]),
            (50.0, [[60.0, _USAGE], [300.0, _delta(reasoning="Hm")], [900.0, _delta(content="Yes")]]),
            (50.0, [[60.0, _ROLE], [300.0, _delta(tool_calls=[{"index": 0}])], [350.0, _delta()]]),
            (0.0, [[5.0, _ROLE], [200.0, _delta(content="")], [300.0, _USAGE]]),
            (0.0, [[5.0, _ROLE], [310.0, _SECOND_CHOICE], [350.0, _delta(content="The")]]),
            (0.0, [[5.0, _ROLE], [280.0, _delta(content="\n")], [330.0, _delta(content="The")]]),
        ),
        random_case=_ttft_case,
        mistakes=(
            Mistake(
                "first event",
                lambda sent, events: events[0][0] - sent,
                "this is the first event: a role with an empty text is nothing that anyone can use",
            ),
            Mistake(
                "first without a role",
                _first_without_role,
                "an event without a role may be empty as well: ask what it carries, not what it lacks",
            ),
            Mistake(
                "white space is nothing",
                _first(lambda delta: any(str(delta.get(key) or "").strip() for key in OUTPUT_KEYS)),
                "a line break or a space is a token too: only a text of no characters is empty",
            ),
            Mistake(
                "first choice only",
                _first_choice_only,
                "a chunk may have several choices: look at each, not only at the first",
            ),
            Mistake(
                "key present",
                _first(lambda delta: any(key in delta for key in OUTPUT_KEYS)),
                "the key is there, but its text is empty: ask whether it has a value",
            ),
            Mistake(
                "content only",
                _first(lambda delta: delta.get("content")),
                "a model that reasons, or calls a tool, has output before its first `content`, or without any",
            ),
            Mistake(
                "no reasoning",
                _first(_without("reasoning_content", "reasoning")),
                "reasoning is output too, under both of its names",
            ),
            Mistake(
                "one name of reasoning",
                _first(_without("reasoning")),
                "some servers call it `reasoning` and not `reasoning_content`: take both",
            ),
            Mistake(
                "no tool calls",
                _first(_without("tool_calls")),
                "an answer may be a tool call and nothing else: that is output",
            ),
            Mistake(
                "from zero",
                _first(_useful, sent=False),
                "this is a time of the clock: TTFT counts from `sent_ms`",
            ),
            Mistake(
                "the last",
                _first(_useful, last=True),
                "this is the last output: the end of the answer, not its beginning",
            ),
            Mistake("seconds", _first(_useful, scale=1e-3), "these are seconds: the exercise asks for milliseconds"),
            Mistake(
                "zero for none",
                _ttft_or(lambda events: 0.0),
                "where no output came there is no TTFT: 0 would be the best of all, so return None",
            ),
        ),
        unit="ms",
        result="a number of ms, or None where no output came",
    ),
    Exercise(
        id="5.3",
        title="TPOT, and when there is none",
        minutes=6,
        difficulty=3,
        why="a TPOT of 0 for an answer whose pace was never seen makes the worst server the best one.",
        hints=(
            "First the cases without an answer, each with `return None`; then one line.",
            "Between N tokens there are N − 1 gaps, and the first token belongs to TTFT.",
        ),
        reference=tpot_ms,
        cases=(
            (0.0, [500.0, 550.0, 600.0, 650.0], 4),
            (0.0, [500.0, 560.0, 620.0], 9),
            (100.0, [400.0, 440.0, 500.0], None),
            (100.0, [400.0], 1),
            (100.0, [800.0, 800.0, 800.0], 3),
            (100.0, [400.0, 440.0], 0),
            # One token in two events: the server's count is wrong, or its last event carries no token.
            (100.0, [400.0, 440.0], 1),
        ),
        random_case=_tpot_case,
        mistakes=(
            Mistake(
                "N for N - 1",
                _pace(lambda sent, at, n: (at[-1] - at[0]) / n),
                "N tokens have N − 1 gaps between them",
            ),
            Mistake(
                "TTFT included",
                _pace(lambda sent, at, n: (at[-1] - sent) / n),
                "this starts at the send, so TTFT is in it, and it divides by N: some tools do that under this name",
            ),
            Mistake(
                "from the send",
                _pace(lambda sent, at, n: (at[-1] - sent) / (n - 1)),
                "N − 1 is right, but the clock still starts at the send: start it at the first token",
            ),
            Mistake(
                "events",
                _pace(lambda sent, at, n: (at[-1] - at[0]) / (len(at) - 1)),
                "this divides by events: one event may carry several tokens, so divide by N − 1",
            ),
            Mistake(
                "median gap",
                _pace(lambda sent, at, n: statistics.median(b - a for a, b in itertools.pairwise(at))),
                "this is the median gap between events: TPOT is (last − first) ÷ (N − 1)",
            ),
            Mistake("seconds", _pace(lambda *case: tpot_ms(*case) / 1e3), "these are seconds: divide nothing by 1000"),
            Mistake(
                "events for an unknown N",
                _pace_guessing_n,
                "where the server does not tell N it is unknown: the number of events is no token count, return None",
            ),
            Mistake(
                "zero for one read",
                _pace_zero(False, False, True),
                "all output came at one time, so its pace was not seen: None, not 0",
            ),
            Mistake(
                "zero for one token",
                _pace_zero(False, True, False),
                "one token has no gap: None, not 0",
            ),
            Mistake(
                "only one token refused",
                _pace_of_no_tokens,
                "a server may tell N = 0: every N below 2 has no TPOT, not only N = 1",
            ),
            Mistake(
                "zero for none at all",
                _pace_zero(True, True, True),
                "where it cannot be known return None: 0 is a number, and the best one there is",
            ),
        ),
        unit="ms",
        result="a number of ms, or None where it cannot be known",
    ),
    Exercise(
        id="5.4",
        title="A percentile with failures",
        minutes=6,
        difficulty=3,
        why="a server that drops its slowest requests has a fine P95, if failures are left out.",
        hints=(
            "A request that failed took for ever: put `math.inf` into the list for each of them.",
            "Rank ⌈p · n / 100⌉ counts from 1, and a list counts from 0.",
        ),
        reference=percentile,
        cases=(
            ([300.0, 100.0, 200.0, 400.0], 50, 0),
            ([300.0, 100.0, 200.0, 400.0, 500.0], 50, 0),
            ([float(ms) for ms in range(20, 0, -1)], 95, 0),
            ([float(ms) for ms in range(1, 19)], 95, 2),
            ([120.0, 80.0, 100.0], 99, 0),
        ),
        random_case=_percentile_case,
        mistakes=(
            Mistake(
                "failures dropped",
                _rank(_nearest, failures_as=None),
                "the failures are missing: each is one more sample, as slow as can be",
            ),
            Mistake(
                "failures as 0",
                _rank(_nearest, failures_as=0.0),
                "a failure counts here as the fastest request of all: it is infinitely slow",
            ),
            Mistake(
                "one too far",
                _one_too_far,
                "a list counts from 0: rank r is at index r − 1",
            ),
            Mistake(
                "floor of p times n",
                _rank(lambda p, n: p * n // 100),
                "index ⌊p · n / 100⌋ is one too far where p · n / 100 is whole",
            ),
            Mistake(
                "rank rounded down",
                _rank(lambda p, n: p * n // 100 - 1),
                "the rank is rounded up: rounded down, fewer than p per cent of the samples lie at or below it",
            ),
            Mistake(
                "rounded",
                _rank(lambda p, n: round(p * n / 100) - 1),
                "`round` also rounds down: the rank is always rounded up",
            ),
            Mistake(
                "share of the last index",
                _rank(lambda p, n: int(p * (n - 1) / 100)),
                "p per cent of the last index, cut off, is one of the ways to interpolate: the rank is ⌈p · n / 100⌉",
            ),
            Mistake("not sorted", _rank(_nearest, ordered=False), "the samples have to be in order first"),
            Mistake(
                "interpolated",
                _interpolated,
                "this lies between two samples: nearest rank is always one that was measured",
            ),
            Mistake(
                "the other end",
                _rank(lambda p, n: math.ceil((100 - p) * n / 100) - 1),
                "this counts from the slowest end: P95 is a time that 95 % of the requests did not exceed",
            ),
        ),
        unit="ms",
    ),
    Exercise(
        id="5.5",
        title="Throughput: system and request",
        minutes=6,
        difficulty=2,
        why="both are called tokens per second, and they may lie an order of magnitude apart.",
        hints=(
            "The system's time runs from the first start to the last end, whoever was under way.",
            "Failed requests give no tokens, and yet they took part of that time.",
        ),
        reference=throughput,
        cases=(
            (
                [
                    {"start_s": 0.0, "end_s": 4.0, "output_tokens": 100, "failed": False},
                    {"start_s": 1.0, "end_s": 6.0, "output_tokens": 100, "failed": False},
                    {"start_s": 2.0, "end_s": 10.0, "output_tokens": 120, "failed": False},
                ],
            ),
            (
                [
                    {"start_s": 5.0, "end_s": 7.0, "output_tokens": 80, "failed": False},
                    {"start_s": 5.0, "end_s": 9.0, "output_tokens": 30, "failed": True},
                    {"start_s": 6.0, "end_s": 8.0, "output_tokens": 50, "failed": False},
                ],
            ),
        ),
        random_case=_throughput_case,
        mistakes=(
            Mistake(
                "sum of rates",
                _system(lambda requests: sum(_own(requests))),
                "rates add up only while all requests are under way at once: divide all tokens by all time",
            ),
            Mistake(
                "sum of durations",
                _system(lambda requests: _tokens(requests) / sum(_durations(requests))),
                "the durations overlap: the system's time is from the first start to the last end",
            ),
            Mistake(
                "longest duration",
                _system(lambda requests: _tokens(requests) / max(_durations(requests))),
                "the longest request is not all the time: take first start to last end",
            ),
            Mistake(
                "one request",
                _system(lambda requests: throughput(requests)[1]),
                "the first number is one request's again: one request is not the system",
            ),
            Mistake(
                "one times n",
                _system(lambda requests: throughput(requests)[1] * len(_own(requests))),
                "one request's rate times their number is no measurement of the system",
            ),
            Mistake(
                "from zero",
                _system(lambda requests: _tokens(requests) / max(r["end_s"] for r in requests)),
                "the clock does not start at 0: subtract the first start",
            ),
            Mistake(
                "failed counted",
                lambda requests: throughput(_all_sound(requests)),
                "failed requests are credited with tokens that nobody got",
            ),
            Mistake(
                "failed in the median",
                lambda requests: [throughput(requests)[0], throughput(_all_sound(requests))[1]],
                "the second number is a median over sound requests only: failed ones are in it",
            ),
            Mistake(
                "failed in the sum",
                lambda requests: [throughput(_all_sound(requests))[0], throughput(requests)[1]],
                "the first number counts tokens of failed requests, which nobody got",
            ),
            Mistake(
                "failed left out of the time",
                lambda requests: throughput([r for r in requests if not r["failed"]]),
                "failed requests give no tokens, but the time they took is part of the system's time",
            ),
            Mistake(
                "mean",
                lambda requests: [throughput(requests)[0], statistics.mean(_own(requests))],
                "the second number is a mean: asked for is the median",
            ),
            Mistake(
                "the wrong way round",
                lambda requests: throughput(requests)[::-1],
                "the two are in the wrong order: the system first",
            ),
            Mistake(
                "requests per second",
                _system(lambda requests: throughput(requests)[0] * len(_own(requests)) / _tokens(requests)),
                "these are requests per second: count output tokens",
            ),
        ),
        unit="tokens/s",
        result="a list [system, one request]",
    ),
    Exercise(
        id="5.6",
        title="Find what is wrong: five reports",
        minutes=12,
        difficulty=4,
        why="a number rarely says how it was taken; beside the stream itself it gives itself away.",
        hints=(
            "Compute what every wrong way would say of this stream, each in a dict under its word.",
            "The word is the first whose value is within 1 % of the reported one; reports are rounded.",
            "All times count from the send, so the last of `output_ms` is the time of the whole answer.",
        ),
        reference=diagnose,
        cases=(
            *FIVE_MEASUREMENTS,
            (_PLAIN, _measured(_PLAIN, "unexplained", "unexplained")),
            (_CHINESE, _measured(_CHINESE, "headers", "events")),
            (_CHINESE, _measured(_CHINESE, "right", "characters")),
            # 3 % off is not explained, 0.5 % off is.
            (_PLAIN, {"ttft_ms": 412.0, "tpot_ms": 19.7}),
            (_PLAIN, {"ttft_ms": 402.0, "tpot_ms": 40.2}),
        ),
        random_case=_diagnosis_case,
        mistakes=(
            Mistake(
                "exact",
                _diagnosing(tolerance=1e-9),
                "reports are rounded: compare within 1 %",
            ),
            Mistake(
                "50 %",
                _diagnosing(tolerance=0.5),
                "this tolerance lets too much pass: compare within 1 %",
            ),
            Mistake(
                "10 %",
                _diagnosing(tolerance=0.1),
                "3 % off passes here: 1 % is asked for",
            ),
            Mistake(
                "0.1 %",
                _diagnosing(tolerance=0.001),
                "0.5 % off does not pass here: 1 % is asked for",
            ),
            Mistake(
                "nearest",
                _diagnosing_nearest,
                "this takes the nearest way, however far: where none is within 1 % the word is 'unexplained'",
            ),
            Mistake(
                "counts for gaps",
                _diagnosing(change=_counts_for_gaps),
                "characters and events stand for tokens here, so they too are divided by their number − 1",
            ),
            Mistake(
                "headers and role swapped",
                _diagnosing(change=_swap_headers_and_role),
                "headers and role event are the wrong way round",
            ),
            Mistake(
                "TTFT included over N - 1",
                _diagnosing(change=_gaps_for_tokens),
                "with TTFT included the whole time is divided by N, not by N − 1",
            ),
            Mistake(
                "right over N",
                _diagnosing(change=_n_for_gaps),
                "the right TPOT is divided by N − 1, not by N",
            ),
            Mistake(
                "events are tokens",
                _diagnosing(change=_events_are_tokens),
                "`tokens` is N, and the length of `output_ms` is the number of events: those two are mixed up",
            ),
            Mistake(
                "TTFT alone",
                _diagnosing(words=lambda ttft, tpot: [ttft, "right"]),
                "the TTFT is judged, every TPOT is called right",
            ),
            Mistake(
                "TPOT alone",
                _diagnosing(words=lambda ttft, tpot: ["right", tpot]),
                "the TPOT is judged, every TTFT is called right",
            ),
            Mistake(
                "the wrong way round",
                _diagnosing(words=lambda ttft, tpot: [tpot, ttft]),
                "the two words are in the wrong order: TTFT first",
            ),
        ),
        result="a list [word for the TTFT, word for the TPOT]",
    ),
    Exercise(
        id="5.7",
        title="Latency from the intended start",
        minutes=8,
        difficulty=3,
        why="a client that waits for a slow server before it asks again sees only what the server lets it see.",
        hints=(
            "Keep the time at which the server is free. A request begins then, or when it arrives if that is later.",
            "The latency runs from the arrival, so the wait is in it.",
        ),
        reference=latencies_s,
        cases=(
            ([0.0, 1.0, 2.0, 3.0], [0.1, 0.1, 0.1, 0.1]),
            ([0.0, 1.0, 2.0, 3.0], [0.1, 3.5, 0.5, 0.1]),
            ([2.0, 2.5, 3.0, 60.0], [2.0, 2.0, 2.0, 0.5]),
        ),
        random_case=_latency_case,
        mistakes=(
            Mistake(
                "service only",
                _latency(lambda latency, arrived, seconds: seconds),
                "this is the time of the work alone, as a closed loop sees it: the wait for a busy server is missing",
            ),
            Mistake(
                "wait only",
                _latency(lambda latency, arrived, seconds: latency - seconds),
                "this is the wait alone: the request is served after it",
            ),
            Mistake(
                "the one before",
                _waits_for_the_one_before,
                "this waits for the request before as if that had not waited itself: a queue adds up",
            ),
            Mistake(
                "never idle",
                _never_idle,
                "a server that has nothing to do waits for the next request: it cannot begin before the arrival",
            ),
            Mistake(
                "never idle, from zero",
                _never_idle_from_zero,
                "this server works from time 0 on without a pause: it begins with a request when that has arrived",
            ),
            Mistake(
                "end times",
                _latency(lambda latency, arrived, seconds: latency + arrived),
                "these are times of the clock: subtract the arrival",
            ),
            Mistake(
                "milliseconds",
                _latency(lambda latency, arrived, seconds: 1e3 * latency),
                "these are milliseconds: the exercise asks for seconds",
            ),
            Mistake(
                "service twice",
                _latency(lambda latency, arrived, seconds: latency + seconds),
                "the time of the request's own work is counted twice",
            ),
        ),
        unit="seconds",
        rel_tolerance=1e-6,
        result="a list of seconds, one for each request",
    ),
    Exercise(
        id="5.8",
        title="Where a TTFT went",
        minutes=5,
        difficulty=2,
        why="a high TTFT with a long queue wants more capacity; with a long prefill, a shorter prompt or faster card.",
        hints=(
            "The server's stamps are on the server's clock: take differences between them only.",
            "Delivery is what is left of the client's TTFT when the three spans are taken off.",
        ),
        reference=ttft_parts_ms,
        cases=(
            (
                {"received_at_s": 10.0, "queued_at_s": 10.25, "prefill_start_at_s": 11.25, "prefill_end_at_s": 11.75},
                1758.0,
            ),
            (
                {"received_at_s": 50.0, "queued_at_s": 50.125, "prefill_start_at_s": 50.1875, "prefill_end_at_s": 53.0},
                3040.0,
            ),
            # The client saw less than the server says it took: the two do not fit together.
            (
                {"received_at_s": 20.0, "queued_at_s": 20.125, "prefill_start_at_s": 20.25, "prefill_end_at_s": 20.75},
                738.0,
            ),
        ),
        random_case=_parts_case,
        mistakes=(
            Mistake(
                "seconds",
                _parts_in_seconds,
                "the stamps are seconds: the exercise asks for milliseconds",
            ),
            Mistake(
                "all in seconds",
                _parts(lambda p: {name: ms / 1e3 for name, ms in p.items()}),
                "all four are seconds: the exercise asks for milliseconds",
            ),
            Mistake(
                "queue from the receipt",
                _parts(lambda p: p | {"queue": p["parse"] + p["queue"]}),
                "this queue begins at the receipt: parsing is counted twice",
            ),
            Mistake(
                "queue inside the prefill",
                _parts(lambda p: p | {"prefill": p["queue"] + p["prefill"]}),
                "this prefill begins when the request was queued: the wait is counted twice",
            ),
            Mistake(
                "all as delivery",
                _parts(lambda p: p | {"delivery": sum(p.values())}),
                "this delivery is the whole TTFT: take the three spans off",
            ),
            Mistake(
                "only the prefill taken off",
                _parts(lambda p: p | {"delivery": p["parse"] + p["queue"] + p["delivery"]}),
                "parse and queue are still in the delivery",
            ),
            Mistake(
                "never below 0",
                _parts(lambda p: p | {"delivery": max(0.0, p["delivery"])}),
                "a rest below 0 says that the two measurements do not fit together: give it out, do not hide it",
            ),
            Mistake(
                "without its sign",
                _parts(lambda p: p | {"delivery": abs(p["delivery"])}),
                "a rest below 0 says that the two measurements do not fit together: its sign is lost here",
            ),
            Mistake(
                "shares",
                _parts(lambda p: {name: ms / sum(p.values()) for name, ms in p.items()}),
                "these are shares of the TTFT: the exercise asks for milliseconds",
            ),
        ),
        unit="ms",
        rel_tolerance=1e-6,
        result="a dict with parse, queue, prefill and delivery",
    ),
    Exercise(
        id="5.9",
        title="800 ms of what?",
        minutes=10,
        difficulty=2,
        why="question 1 of the article; a latency without its name and its conditions cannot be acted on.",
        hints=(
            "First the refusal: `measured.get(name) is None` for any of the five names.",
            "Then two questions, each yes or no: is it within 10 % of that P50? Four answers follow.",
        ),
        reference=what_is_it,
        cases=(
            (800.0, _run(790.0, 4200.0)),
            (800.0, _run(120.0, 830.0)),
            (800.0, _run(780.0, 815.0)),
            (800.0, _run(100.0, 5000.0)),
            (800.0, _run(725.0, 6000.0)),
            (800.0, _run(727.5, 6000.0)),
            (800.0, _run(790.0, 4200.0, concurrency=None)),
            (800.0, {"concurrency": 8, "input_tokens": 512, "ttft_ms": 790.0, "e2e_ms": 4200.0}),
            (800.0, _run(790.0, 4200.0, input_tokens=None)),
            (800.0, _run(None, 4200.0)),
            (800.0, _run(790.0, None)),
        ),
        random_case=_it_case,
        mistakes=(
            Mistake(
                "TTFT first",
                _it(rename={"either": "TTFT"}),
                "where both fit, nothing says that it is the TTFT: the answer is 'either'",
            ),
            Mistake(
                "end to end first",
                _it(rename={"either": "end to end"}),
                "where both fit, nothing says that it is the end: the answer is 'either'",
            ),
            Mistake(
                "exact",
                _it(tolerance=1e-9),
                "a report is never exactly your own measurement: within 10 % is asked for",
            ),
            Mistake(
                "50 %",
                _it(tolerance=0.5),
                "this tolerance is wider than 10 %",
            ),
            Mistake(
                "nearest",
                _it_nearest,
                "this takes the nearer of the two, however far: where none is within 10 % the answer is 'neither'",
            ),
            Mistake(
                "10 % of the report",
                _it(of_reported=True),
                "the 10 % are those of the measured P50, not of the reported number",
            ),
            Mistake(
                "swapped",
                _it(rename={"TTFT": "end to end", "end to end": "TTFT"}),
                "the two names are the wrong way round",
            ),
        ),
    ),
)
