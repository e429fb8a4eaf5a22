"""The judgement of a service: is something slow, where, why, what to measure next, and is it dear.

Gates, in this order: is the measurement valid (identities and floors); is anything wrong at all; which causes do the
findings speak for; is there a second one; what decides. A wrong cause is worse than "cannot tell", and the next
measurement is worth more than either.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from helpers.accounts.capacity import max_concurrency
from helpers.accounts.causes import CAUSES
from helpers.accounts.cost import Cost, cost
from helpers.accounts.evidence import item
from helpers.accounts.findings import (
    TPOT_BOUND,
    Finding,
    Seen,
    client_mean_ttft,
    findings,
    look,
    ranks_of,
    request_bytes,
    skew_factor,
)
from helpers.accounts.identities import Broken, broken_lines
from helpers.accounts.judgement import (
    Evidence,
    KvRoom,
    Metric,
    NextMeasurement,
    RankedCause,
    Second,
    Skew,
    TtftSplit,
    Verdict,
)
from helpers.accounts.model import MoEFFN
from helpers.accounts.observation import Observation
from helpers.accounts.scoring import DECISIVE_BITS, Ranked, Scoring, next_test, score
from helpers.accounts.service_floors import Subject
from helpers.accounts.words import ms, percent, times
from helpers.errors import InputError

NO_FAULTS = ("decode_bandwidth", "small_batch")
"""Causes that are no fault: decode at the hardware's limit, and a load too small to be cheap (see `Cost`)."""

_SHOWN = 0.02
_ONE_RANK = "on one rank skew costs no waiting"
_PROMPT_TTFT = 2.5
_WORTH_TELLING = 0.1
# Findings that explain why a number is below its floor, so that the rest can still be judged.
_EXPLAINS = (("repeated_prompts", "TTFT"), ("buffering", "TPOT"))
_COSTS = {
    0: "reading a log",
    1: "a counter or one request",
    2: "a few requests",
    5: "a short sweep",
    10: "a restart or a trace",
    20: "another machine",
}


def verdict(observation: Observation, subject: Subject | None = None) -> Verdict:
    """Judge a service from what was seen of it and, with `subject`, from what its hardware allows.

    * a number breaks an identity or beats a floor, and no finding explains it: void;
    * no finding tells of trouble: no fault found;
    * else the findings about the load are scored (`score`), or, where one request alone is as slow, all of them. Two
      causes with decisive findings of their own do not hide each other: the likelier is judged without the other's,
      and the other is told as the second;
    * what remains above 2.5 times the floor in one request alone, or decisive for another cause, is the second.

    Raises InputError for an observation without a run to judge, numbers that are none, unknown or contradictory clues.
    """
    observation, broken, notes = _without_broken_runs(observation, subject)
    seen = look(observation, subject)
    found = findings(observation, subject)
    shown = {finding.mechanism for finding in found if finding.trouble}
    explained = {kind for mechanism, kind in _EXPLAINS if mechanism in shown}
    broken = tuple(line for line in broken if line.kind not in explained)
    traits = _traits(observation, subject)
    answer = _void(broken, subject) if broken else _judge(seen, found, traits)
    kv = None if subject is None else _kv_room(seen, subject)
    faulty = not broken and (answer.says == "named" or answer.says == "leading")
    metrics = _metrics(seen)
    return Verdict(
        says=answer.says,
        cause=answer.cause,
        mechanism=answer.mechanism,
        place=None if answer.cause is None else CAUSES[answer.cause].place,
        sentence=answer.sentence,
        second=answer.second,
        ranked=_ranked(answer.scoring, found),
        other=None if answer.scoring is None else answer.scoring.other,
        rules=answer.rules,
        findings=found,
        next_measurement=answer.next,
        missing=_missing(seen),
        conditions=_conditions(seen),
        metrics=metrics,
        binds={
            "prefill": None if seen.floors is None else seen.floors.ttft.binds,
            "decode": None if seen.floors is None else seen.floors.tpot.binds,
        },
        ttft_split=_split(seen),
        kv=kv,
        cost=None if subject is None or broken else _cost(seen, subject, kv, found, faulty),
        skew=None if subject is None or subject.expert_load is None else _skew(subject),
        broken=tuple(line.words for line in broken),
        notes=(*observation.notes, *notes, *([] if broken or explained else _beaten(seen, metrics))),
    )


def _without_broken_runs(
    observation: Observation, subject: Subject | None
) -> tuple[Observation, tuple[Broken, ...], tuple[str, ...]]:
    """The runs to go by; the broken lines of those that the judgement rests on; notes on others, which are left out."""
    seen = look(observation, subject)
    needed = (seen.load, seen.alone)
    broken = broken_lines(observation, subject)
    left_out = [line for line in broken if not any(line.run is run for run in needed)]
    runs = tuple(run for run in observation.runs if not any(line.run is run for line in left_out))
    notes = tuple(f"a run is left out: {line.words}" for line in left_out)
    kept = tuple(line for line in broken if any(line.run is run for run in needed))
    return replace(observation, runs=runs), kept, notes


@dataclass(frozen=True)
class _Answer:
    says: str
    cause: str | None
    mechanism: str | None
    sentence: str
    second: Second | None
    scoring: Scoring | None
    rules: tuple[str, ...]
    next: NextMeasurement | None


def _traits(observation: Observation, subject: Subject | None) -> set[str]:
    """Preconditions that hold: those told, and those that the subject or the server's counters show."""
    traits = set(observation.traits)
    if any(run.server is not None and run.server.draft_tokens for run in observation.runs):
        traits.add("cfg_spec_on")
    if subject is None:
        return traits
    if any(isinstance(layer.feed_forward, MoEFFN) for layer in subject.model.layers):
        traits.add("cfg_moe")
    if subject.model.quantization is not None or subject.weights_dtype not in (None, "fp32", "fp16", "bf16"):
        traits.add("cfg_quantised")
    if subject.devices > 1:
        traits |= {"cfg_tp_gt1", "cfg_multi_rank"}
    if (ranks_of(subject) or 1) > 1:
        traits.add("cfg_multi_rank")
    return traits


def _void(broken: tuple[Broken, ...], subject: Subject | None) -> _Answer:
    line = broken[0]
    if line.kind == "identity":
        sentence = (
            f"Cannot judge: {line.words}; one of both numbers, its definition, or the steady state is not what was "
        )
        sentence += "stated."
    else:
        config = f"{subject.model.name} on {subject.devices} × {subject.device.name}"
        sentence = (
            f"Cannot judge: {line.number} is {times(line.times)} faster than the floor, {line.bound}, of {config}; "
        )
        sentence += "either the config, the cache state or the count is not what was stated."
    cause = CAUSES["measurement_artefact"]
    follow = NextMeasurement(cause.test, cause.test_cost, _cost_words(cause.test_cost), cause.id)
    return _Answer("void", cause.id, None, sentence, None, None, (), follow)


def _judge(seen: Seen, found: tuple[Finding, ...], traits: set[str]) -> _Answer:
    under_load = [finding for finding in found if finding.trouble and not finding.alone]
    in_one = [finding for finding in found if finding.trouble and finding.alone]
    if not under_load and not in_one:
        # What no answer rests on is refused all the same: an unknown trait, a clue against what was seen.
        score({finding.item for finding in found if finding.item}, traits)
        if not _comparable(seen):
            return _nothing_to_compare()
        return _Answer("no fault found", None, None, _all_well(seen), None, None, (), None)
    relevant = [finding for finding in found if finding.item and (not finding.alone or not under_load)]
    ratio = None if under_load else max((finding.ratio for finding in in_one if finding.ratio), default=None)
    scoring, rules = _score_apart(relevant, traits, ratio)
    cause = scoring.cause
    if cause is None and seen.failed and not any(finding.trouble for finding in relevant):
        return _only_failures(seen)
    second = _second(found, relevant, in_one if under_load else [], cause, traits)
    follow = _next(scoring, seen)
    return _Answer(
        scoring.says,
        cause,
        None if cause is None else _mechanism(cause, relevant),
        _sentence(seen, scoring, under_load or in_one, relevant, follow),
        second,
        scoring,
        tuple(rules),
        follow,
    )


def _comparable(seen: Seen) -> bool:
    """Whether there is anything that the load could have been found slow against."""
    alone = seen.alone is not None and seen.alone is not seen.load
    return seen.floors is not None or alone or seen.server is not None


def _nothing_to_compare() -> _Answer:
    follow = NextMeasurement("One request alone at three prompt lengths.", 2, _cost_words(2), None)
    sentence = (
        "Cannot tell: there is nothing to compare with, neither a floor (model and device) nor one request alone "
    )
    return _Answer("cannot tell", None, None, sentence + "nor the server's own numbers.", None, None, (), follow)


def _only_failures(seen: Seen) -> _Answer:
    """Requests that fail, and no evidence why: no cause is likelier than before, so none is told."""
    follow = NextMeasurement(
        "Read the server's log at the first failure, mend that, measure again.", 0, _cost_words(0), None
    )
    others = "; the times are those of the others" if sum(seen.failed.values()) < seen.load.requests else ""
    sentence = f"Cannot tell why: {seen.failed_words}{others}. Next: {follow.says}"
    return _Answer("cannot tell", None, None, sentence, None, None, (), follow)


def _next(scoring: Scoring, seen: Seen) -> NextMeasurement | None:
    """The test that tells most for its cost, of those not made yet; with a named cause and none left, to mend it."""
    observation, server = seen.observation, seen.server
    made = {
        "network_proxy": bool(observation.role("direct")),
        "client_saturation": bool(observation.role("second_client")),
        "prefill_decode_interference": bool(observation.role("beside_long")),
        "kv_preemption": server is not None and server.preemptions is not None,
        "queueing_overload": server is not None and server.queue_mean is not None,
        "prefix_cache_miss": bool(observation.role("repeat")) and seen.cached_share is not None,
        "measurement_artefact": server is not None and server.ttft_mean is not None,
    }
    test = next_test(scoring.ranked, {cause for cause, is_made in made.items() if is_made})
    if test is not None:
        return NextMeasurement(test.says, test.cost, _cost_words(test.cost), test.cause)
    if scoring.cause is not None:
        says = "Mend it and measure again: what then remains above the floor has another cause."
        return NextMeasurement(says, 10, _cost_words(10), scoring.cause)
    return None


def _score_apart(relevant: list[Finding], traits: set[str], ratio: float | None) -> tuple[Scoring, list[str]]:
    """The scoring of all items; where no cause can be named, of the likeliest without what only another explains."""
    names = {finding.item for finding in relevant}
    scoring = score(names, traits, ratio, NO_FAULTS)
    if scoring.says == "named":
        return scoring, list(scoring.rules)
    proven = [row.cause for row in scoring.ranked if _own_proof(row.cause, relevant)]
    for cause in proven[:3]:
        apart = [other for other in proven if other != cause and not _explains(cause, other, relevant)]
        if not apart:
            continue
        rest = {name for name in names if _bits(name, cause) or not any(_bits(name, one) > 0 for one in apart)}
        alone = score(rest, traits, ratio, {*NO_FAULTS, *apart})
        if alone.says == "named" and alone.cause == cause:
            why = f"{' and '.join(apart)}, shown by findings that {cause} does not explain, judged apart"
            return alone, [*alone.rules, why]
    return scoring, list(scoring.rules)


def _own_proof(cause: str, relevant: Iterable[Finding]) -> bool:
    return any(finding.trouble and _bits(finding.item, cause) >= DECISIVE_BITS for finding in relevant)


def _explains(cause: str, other: str, relevant: Iterable[Finding]) -> bool:
    """Whether every decisive finding of `other` speaks for `cause` too."""
    decisive = [finding.item for finding in relevant if _bits(finding.item, other) >= DECISIVE_BITS]
    return all(_bits(name, cause) > 0 for name in decisive)


def _bits(name: str, cause: str) -> float:
    return item(name).bits.get(cause, 0)


def _second(
    found: tuple[Finding, ...], relevant: list[Finding], in_one: list[Finding], first: str | None, traits: set[str]
) -> Second | None:
    """Another cause: of findings that the first does not explain, else of what is slow in one request alone."""
    if first is not None:
        left = [finding for finding in relevant if _bits(finding.item, first) <= 0]
        if any(finding.trouble for finding in left):
            scoring = score({finding.item for finding in left}, traits, None, {*NO_FAULTS, first})
            proof = scoring.cause is not None and _own_proof(scoring.cause, left)
            if not proof:
                shown = max(
                    (one for one in left if one.trouble),
                    key=lambda one: max(item(one.item).bits.values(), default=0),
                )
                if max(item(shown.item).bits.values(), default=0) >= DECISIVE_BITS:
                    sentence = f"Beside it, and not explained by it: {shown.words}."
                    return Second("cannot tell", None, shown.mechanism, None, sentence)
            else:
                mechanism, why = _mechanism(scoring.cause, left), _strongest(scoring.cause, left)
                sentence = f"Beside it: {_lower(CAUSES[scoring.cause].says)[:-1]} ({why.words})"
                return Second(scoring.says, scoring.cause, mechanism, CAUSES[scoring.cause].place, sentence + ".")
    slow = [finding for finding in in_one if (finding.ratio or 0) > TPOT_BOUND]
    if not slow:
        return None
    ratio = max(finding.ratio for finding in slow)
    items = {finding.item for finding in found if finding.item and (finding.alone or finding.source == "clue")}
    scoring = score(items, traits, ratio, {*NO_FAULTS, *([first] if first else [])})
    sentence = f"Without it something else remains: {slow[0].words}"
    if scoring.cause is None:
        return Second("cannot tell", None, None, "engine", sentence + ", and nothing given says why.")
    says = f"; {'likely: ' * (scoring.says == 'leading')}{_lower(CAUSES[scoring.cause].says)}"
    return Second(scoring.says, scoring.cause, None, CAUSES[scoring.cause].place, sentence + says)


def _mechanism(cause: str, relevant: Iterable[Finding]) -> str | None:
    shown = [finding for finding in relevant if finding.mechanism and _bits(finding.item, cause) > 0]
    return max(shown, key=lambda finding: _bits(finding.item, cause)).mechanism if shown else None


def _strongest(cause: str, relevant: Iterable[Finding]) -> Finding | None:
    speaking = [finding for finding in relevant if _bits(finding.item, cause) > 0]
    return max(speaking, key=lambda finding: (_bits(finding.item, cause), finding.trouble), default=None)


def _sentence(
    seen: Seen, scoring: Scoring, trouble: list[Finding], relevant: list[Finding], follow: NextMeasurement | None
) -> str:
    if scoring.cause is not None:
        cause = CAUSES[scoring.cause]
        why = _strongest(scoring.cause, relevant)
        shown = "" if why is None else f": {why.words}"
        if scoring.says == "named":
            return f"In the {cause.place}: {_lower(cause.says)[:-1]}{shown}."
        other = "" if follow is None or follow.decides == scoring.cause else f" It decides on {follow.decides}."
        follows = "" if follow is None else f" Not proven. Next: {follow.says}{other}"
        return f"Probably in the {cause.place}: {_lower(cause.says)[:-1]}{shown}.{follows}"
    too_small = next((rule for rule in scoring.rules if "at most" in rule), None)
    if too_small is not None:
        return f"Cannot tell: {too_small.split(':')[0]}. Something else is at work."
    observed = trouble[0].words
    likely = [row for row in scoring.ranked if row.speaks_for and row.posterior >= _WORTH_TELLING][:2]
    if follow is None or len(likely) < 2:
        return f"Cannot tell why: {observed}; nothing given decides it.{_part_of(seen)}"
    one, other = likely
    cost = f" Cost: {follow.cost_words}."
    return (
        f"Cannot tell: {one.cause} and {other.cause} both predict what was seen ({observed}). Next: {follow.says}{cost}"
    )


def _part_of(seen: Seen) -> str:
    """Which part of TTFT is the largest, where the server tells its own."""
    parts = {"the queue": None, "prefill": None, "the way outside the engine": seen.outside}
    if seen.server is not None:
        parts |= {"the queue": seen.server.queue_mean, "prefill": seen.server.prefill_mean}
    known = {name: part for name, part in parts.items() if part is not None}
    whole = client_mean_ttft(seen.load)
    if len(known) < 2 or whole is None:
        return ""
    largest = max(known, key=known.get)
    return f" Of the {ms(whole)} to the first token (means) the largest part is {largest}, {ms(known[largest])}."


def _all_well(seen: Seen) -> str:
    floors, load = seen.floors, seen.load
    told = []
    if load.ttft.p50 is not None:
        ratio = f", {times(load.ttft.p50 / floors.ttft_ms)} its floor" if floors is not None else ""
        told.append(f"TTFT is {ms(load.ttft.p50)}{ratio}")
    near = False
    if load.tpot.p50 is not None:
        ratio = "" if floors is None else f", {times(load.tpot.p50 / floors.tpot_ms)} its floor"
        near = floors is not None and 0.9 * floors.tpot_ms <= load.tpot.p50 <= 1.5 * floors.tpot_ms
        told.append(f"TPOT {ms(load.tpot.p50)}{ratio}")
    words = "No fault found at " + _load_words(seen) + ": " + " and ".join(told)
    if near:
        return words + ": at the hardware, nothing to mend."
    if seen.server is None:
        words += "; nothing fails, and whether requests wait inside the server was not seen: it shows no /metrics"
    elif seen.queued is not None:
        waited, whole = seen.queued
        words += f"; nothing fails or is held back as far as it was seen, and in the mean {ms(waited)} of {ms(whole)} "
        words += "to the first token pass in the queue"
    else:
        words += "; nothing waits, fails or is held back as far as it was seen"
    return words + ("." if floors is not None else "; without a model and a device there is no floor to compare with.")


def _load_words(seen: Seen) -> str:
    load = seen.load
    return f"concurrency {load.concurrency}" if load.concurrency else f"{load.rate_per_s:g} requests/s"


def _lower(sentence: str) -> str:
    """The sentence to go on with after a colon; a name keeps its capitals."""
    return sentence if sentence[1].isupper() else sentence[0].lower() + sentence[1:]


def _cost_words(test_cost: float) -> str:
    return _COSTS.get(test_cost, f"{test_cost:g}")


def _ranked(scoring: Scoring | None, found: tuple[Finding, ...]) -> tuple[RankedCause, ...]:
    if scoring is None:
        return ()
    words = {finding.item: finding.words for finding in found if finding.item}

    def told(pairs: Iterable[tuple[str, float]]) -> tuple[Evidence, ...]:
        return tuple(Evidence(name, bits, words.get(name, item(name).says)) for name, bits in pairs)

    def shown(row: Ranked) -> bool:
        return row.posterior >= _SHOWN or any(bits >= DECISIVE_BITS for _, bits in row.speaks_for)

    return tuple(
        RankedCause(
            row.cause,
            CAUSES[row.cause].says,
            CAUSES[row.cause].place,
            row.posterior,
            told(row.speaks_for),
            told(row.speaks_against),
            CAUSES[row.cause].test,
            CAUSES[row.cause].test_cost,
        )
        for row in scoring.ranked
        if shown(row)
    )


def _missing(seen: Seen) -> tuple[str, ...]:
    """Conditions and measurements that were not given, each with what it would tell."""
    observation, subject, server = seen.observation, seen.subject, seen.server
    absent = [
        (subject is None, "model and device: without them there is no floor, no KV room and no price"),
        (server is None, "the server's own numbers (/metrics): queue, batch, KV cache and preemptions are not seen"),
        (seen.alone is None, "one request alone with this prompt length: what the load adds is not known"),
        (
            seen.line is None,
            "one request alone at three prompt lengths: prefill and a constant part are not told apart",
        ),
        (len(seen.sweep) < 3, "smaller loads: where throughput stops rising is not known"),
        (not observation.role("direct"), "the load at the engine's own port: path and front end are not told apart"),
        (not observation.role("second_client"), "a second client: this one was not cross-checked"),
        (not observation.role("beside_long"), "short streams beside a long prompt: stalls are not told apart"),
        (seen.cached_share is None, "cached tokens: how much of the prompts a prefix cache answered is not known"),
        (subject is not None and subject.usd_per_device_hour is None, "the price of a device"),
        (
            subject is not None and subject.device.visible_memory_bytes is None,
            f"the memory of {subject.device.name if subject else ''}: the room for KV cache is not known",
        ),
        (
            subject is not None
            and subject.expert_load is None
            and any(isinstance(layer.feed_forward, MoEFFN) for layer in subject.model.layers),
            "expert counts: gating skew is not known",
        ),
    ]
    return tuple(words for is_absent, words in absent if is_absent)


def _conditions(seen: Seen) -> dict[str, object]:
    load, subject = seen.load, seen.subject
    return {
        "model": None if subject is None else subject.model.name,
        "device": None if subject is None else subject.device.name,
        "device_source": None if subject is None else subject.device.source,
        "devices": None if subject is None else subject.devices,
        "weights_dtype": None if subject is None else subject.weights_dtype or subject.model.weights_dtype,
        "kv_dtype": None if subject is None else subject.kv_dtype,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": load.output_tokens,
        "concurrency": load.concurrency,
        "rate_per_s": load.rate_per_s,
        "requests": load.requests,
        "decode_batch": None if seen.floors is None else seen.floors.batch,
        "cached_tokens_mean": load.cached_tokens_mean,
        "base_url": load.base_url,
        "server_names": None if load.server is None else load.server.names,
        "runs": [run.role for run in seen.observation.runs],
    }


def _metrics(seen: Seen) -> tuple[Metric, ...]:
    load, floors = seen.load, seen.floors

    def row(name: str, spread, floor: float | None) -> Metric:
        ratio = spread.p50 / floor if floor and spread.p50 is not None else None
        return Metric(name, "ms", spread.p50, spread.p95, floor, ratio)

    most = None if floors is None else floors.output_tokens_per_s
    per_s = load.output_tokens_per_s
    return (
        row("TTFT", load.ttft, None if floors is None else floors.ttft_ms),
        row("TPOT", load.tpot, None if floors is None else floors.tpot_ms),
        row("E2E", load.e2e, None if floors is None else floors.e2e_ms),
        Metric("output", "tokens/s", per_s, None, most, most / per_s if most and per_s else None),
    )


def _beaten(seen: Seen, metrics: tuple[Metric, ...]) -> list[str]:
    """A note where a number is faster than its floor and yet not called impossible: why that may be."""
    faster = [f"{row.name} ({row.ratio:.2f}×)" for row in metrics if row.ratio is not None and row.ratio < 0.995]
    if not faster:
        return []
    if "cfg_spec_on" in seen.observation.traits:
        why = "with speculation a step gives several tokens, and the floor is of one"
    elif min(row.ratio for row in metrics if row.ratio is not None) * seen.floors.tolerance < 1:
        why = "weights this small may stay in a cache, or fewer decoded together than was taken"
    elif seen.floors.tolerance > 1.5:
        why = "this machine was measured in seconds, maybe while it was busier: a ratio near 1 says little here"
    else:
        why = "a run's mean lengths and a datasheet's figures are no nearer than that"
    return [f"faster than the floor, which nothing is: {', '.join(faster)}; {why}"]


def _split(seen: Seen) -> TtftSplit:
    server, total = seen.server, client_mean_ttft(seen.load)
    if server is None:
        return TtftSplit(None, None, None, None, total, None, None, "the server's own times are not known")
    parts = [part for part in (server.queue_mean, server.prefill_mean, seen.outside) if part is not None]
    whole = len(parts) == 3 and total is not None
    adds_up = abs(sum(parts) - total) <= 0.15 * total + 2 if whole else None
    note = "the engine counts the first decode step as prefill" if server.prefill_mean is not None else "not told apart"
    return TtftSplit(
        server.queue_mean,
        server.prefill_mean,
        None,
        seen.outside,
        total,
        sum(parts) if parts else None,
        adds_up,
        note,
    )


def _kv_room(seen: Seen, subject: Subject) -> KvRoom:
    tokens = max(round(seen.load.prompt_tokens + seen.load.output_tokens), 1)
    per_request = request_bytes(subject, tokens)
    try:
        room = max_concurrency(
            subject.model, tokens, subject.together, weights_dtype=subject.weights_dtype, kv_dtype=subject.kv_dtype
        ).max_concurrency
    except InputError as error:
        return KvRoom(per_request, None, seen.load.concurrency, str(error))
    note = "an upper bound: the engine's own reserves and its own limit are not counted"
    return KvRoom(per_request, room, seen.load.concurrency, note)


def _cost(seen: Seen, subject: Subject, kv: KvRoom, found: tuple[Finding, ...], faulty: bool) -> Cost:
    slope = None if seen.line is None else seen.line[1]
    items = {finding.item for finding in found}
    waits = {"waiting_gt0", "refused"} & items
    # Whether nothing waits is known from the server, or from a first token that comes about as fast as it can.
    quick = seen.load.ttft.p50 is not None and seen.load.ttft.p50 <= _PROMPT_TTFT * seen.floors.ttft_ms
    watched = quick or "waiting_0" in items
    outside = {"measurement_artefact", "client_saturation"}
    slow = faulty and not any(
        finding.trouble and finding.item and max(item(finding.item).bits, key=item(finding.item).bits.get) in outside
        for finding in found
    )
    return cost(subject, seen.load, kv.max_concurrency, slope, idle=watched and not waits, slow=slow)


def _skew(subject: Subject) -> Skew:
    factor = skew_factor(subject)
    if factor is None:
        ranks = ranks_of(subject)
        note = "over how many ranks the experts are spread was not given" if ranks is None else _ONE_RANK
        return Skew(ranks, None, subject.expert_load.source, note)
    note = f"the experts of a step take {percent(factor - 1)} longer than with even ranks, if time is linear in tokens"
    return Skew(ranks_of(subject), factor, subject.expert_load.source, note)
