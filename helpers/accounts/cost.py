"""Is it dear? What a million tokens cost as measured, at the floors, and at the best this hardware can do.

USD per million tokens = price of all devices per hour · 10⁶ / (3600 · tokens per second · utilisation).
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from helpers.accounts.observation import Run
from helpers.accounts.service_floors import ServiceFloors, Subject, decode_batch, service_floors
from helpers.accounts.words import plural
from helpers.errors import InputError

ATTAINABLE = 0.6
"""What a good engine reaches of the floors: half to 0.7 in public timings."""

_SLOW, _FAR = 2.5, 2.5


@dataclass(frozen=True)
class Reference:
    """A listed price range, never today's: `low` to `high` USD, `unit`, the dates, and where it was listed."""

    what: str
    low: float
    high: float
    unit: str
    as_of: str
    source: str
    third_party: bool


@dataclass(frozen=True)
class Cost:
    """What input and output tokens cost, USD per million; None where a price or a number is missing.

    `says`: "dear because idle", "dear because slow", "dear because of the SLO", "dear because of the GPU", "not dear"
    or "cannot tell". `floor_*`: at the floors, the same batch. `attainable_*`: at 0.6 of the floors, with the largest
    batch that memory (and the TPOT target) allow, `attainable_batch`. `prefill_share`: of the device time, from
    `split_by`.
    """

    says: str
    sentence: str
    usd_per_hour: float | None
    price_source: str | None
    usd_per_million_input: float | None
    usd_per_million_output: float | None
    floor_usd_per_million_input: float | None
    floor_usd_per_million_output: float | None
    attainable_usd_per_million_input: float | None
    attainable_usd_per_million_output: float | None
    attainable_batch: int | None
    prefill_share: float | None
    split_by: str | None
    references: tuple[Reference, ...]


def usd_per_million(usd_per_hour: float, tokens_per_s: float, utilisation: float = 1.0) -> float:
    """USD per million tokens: price per hour of all devices · 10⁶ / (3600 · tokens per second · utilisation).

    2.69 USD/h at 223 tokens/s: 3.35. Raises InputError for a value that is not a finite number above zero, or a
    utilisation above 1.
    """
    for name, value in (("usd_per_hour", usd_per_hour), ("tokens_per_s", tokens_per_s), ("utilisation", utilisation)):
        if isinstance(value, bool) or not 0 < value < math.inf:
            raise InputError(f"{name} must be a finite number above zero, not {value!r}")
    if utilisation > 1:
        raise InputError(f"utilisation must be at most 1, not {utilisation!r}")
    return usd_per_hour * 1e6 / (3600 * tokens_per_s * utilisation)


def references(device_name: str | None = None, model_name: str | None = None) -> tuple[Reference, ...]:
    """Listed prices of a device of the registry (per hour) and of a model of the registry (API, per million tokens)."""
    table = json.loads((Path(__file__).parents[1] / "data" / "prices.json").read_text(encoding="utf-8"))
    found: list[Reference] = []
    row = table["devices"].get(device_name)
    if row is not None:
        about = (row["as_of"], row["source"], row["third_party"])
        found.append(Reference(device_name, row["low"], row["high"], "USD per device and hour", *about))
    row = table["models"].get(model_name)
    if row is not None:
        about = (row["as_of"], row["source"], row["third_party"])
        for side in ("input", "output"):
            unit = f"USD per million {side} tokens"
            found.append(Reference(f"{model_name} API", row[f"{side}_low"], row[f"{side}_high"], unit, *about))
    return tuple(found)


def cost(
    subject: Subject,
    run: Run,
    kv_concurrency: int | None = None,
    prefill_ms_per_token: float | None = None,
    idle: bool = False,
    slow: bool = False,
) -> Cost:
    """The cost verdict of one run.

    `kv_concurrency`: requests that memory holds at once; `prefill_ms_per_token`: the slope of TTFT over length, one
    request alone; `idle`: nothing waited and nothing was refused; `slow`: a fault was found that makes it slow. The
    device time of a run is split into prefill, requests · prompt tokens · that slope (else the floors' own ratio), and
    decode, the rest.
    """
    floors = service_floors(subject, run)
    listed = references(subject.device.name, subject.model.name)
    share, split_by = _prefill_share(run, floors, prefill_ms_per_token)
    if subject.usd_per_device_hour is None:
        where = next((one for one in listed if "hour" in one.unit), None)
        words = "Cannot tell what it costs: no price was given"
        words += (
            "."
            if where is None
            else f"; {where.what} was listed at {where.low:g} to {where.high:g} {where.unit}, {where.as_of}."
        )
        return Cost("cannot tell", words, None, None, *[None] * 6, None, share, split_by, listed)
    price = subject.usd_per_device_hour * subject.devices
    measured = _measured(price, run, share)
    batch = _largest_batch(subject, run, kv_concurrency)
    attainable = (None, None) if batch is None else _attainable(subject, run, floors, batch)
    says, sentence = _say(subject, run, floors, measured, attainable[1], listed, idle, slow, kv_concurrency)
    return Cost(
        says,
        sentence,
        price,
        subject.price_source,
        *measured,
        *_at(price, floors, floors.tpot.seconds / floors.batch, 1.0),
        *attainable,
        batch,
        share,
        split_by,
        listed,
    )


def _prefill_share(run: Run, floors: ServiceFloors, ms_per_token: float | None) -> tuple[float, str]:
    computed = run.prompt_tokens - (run.cached_tokens_mean or 0)
    if ms_per_token is not None and ms_per_token > 0 and run.requests_per_s is not None:
        share = run.requests_per_s * computed * ms_per_token / 1e3
        if share < 1:
            return share, "TTFT alone over prompt length"
    return floors.ttft.seconds / floors.request_seconds, "the floors' own ratio"


def _measured(price: float, run: Run, share: float) -> tuple[float | None, float | None]:
    if not run.requests_per_s or not share or share >= 1:
        return None, None
    into, out = run.requests_per_s * run.prompt_tokens, run.output_tokens_per_s
    return (
        usd_per_million(price * share, into) if into else None,
        usd_per_million(price * (1 - share), out) if out else None,
    )


def _at(price: float, floors: ServiceFloors, seconds_per_output: float, efficiency: float) -> tuple[float, float]:
    """Input and output at a step of `seconds_per_output` per token, the device never idle."""
    prompt_tokens = floors.prompt_tokens
    into = usd_per_million(price, prompt_tokens / floors.ttft.seconds * efficiency)
    return into, usd_per_million(price, efficiency / seconds_per_output)


def _attainable(subject: Subject, run: Run, floors: ServiceFloors, batch: int) -> tuple[float, float]:
    """Input and output at `ATTAINABLE` of the floors, `batch` sequences together."""
    price = subject.usd_per_device_hour * subject.devices
    return _at(price, floors, subject.decode(_mean_context(run), batch).seconds / batch, ATTAINABLE)


def _mean_context(run: Run) -> int:
    return max(round(run.prompt_tokens + run.output_tokens / 2), 1)


def _largest_batch(subject: Subject, run: Run, kv_concurrency: int | None) -> int | None:
    """The most sequences that memory holds and, with a target, whose step keeps to it at `ATTAINABLE` of the floor."""
    if not kv_concurrency:
        return None
    target = subject.tpot_target_ms

    def keeps(batch: int) -> bool:
        return target is None or 1e3 * subject.decode(_mean_context(run), batch).seconds <= target * ATTAINABLE

    if keeps(kv_concurrency):
        return kv_concurrency
    low, high = 1, kv_concurrency
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def _say(
    subject: Subject,
    run: Run,
    floors: ServiceFloors,
    measured: tuple[float | None, float | None],
    best: float | None,
    listed: tuple[Reference, ...],
    idle: bool,
    slow: bool,
    kv_concurrency: int | None,
) -> tuple[str, str]:
    """The verdict word and its sentence; `best`: attainable USD per million output tokens."""
    out = measured[1]
    if out is None:
        return "cannot tell", "Cannot tell what it costs: the throughput was not measured."
    paid = f"{_usd(measured[0])} per million input and {_usd(out)} per million output tokens"
    api = next((one for one in listed if "output" in one.unit), None)
    offer = "" if api is None else f"APIs listed {api.low:g} to {api.high:g} USD for output ({api.as_of})"
    ratio = None if run.tpot.p50 is None else run.tpot.p50 / floors.tpot_ms
    far_off = ratio is not None and ratio > _SLOW
    if api is not None and out <= (api.low if slow or far_off else api.high):
        return "not dear", f"{paid}; {offer}."
    if slow or far_off:
        how = f"a token takes {ratio:.1f} times its floor" if far_off else "a fault was found"
        return "dear because slow", f"{paid}: {how}; mend that first, then look at the price again."
    batch = decode_batch(run)
    if best is not None and idle and out > _FAR * best and batch * 4 <= kv_concurrency:
        words = f"{paid}: {plural(batch, 'request')} at a time where memory holds {kv_concurrency}, which would bring "
        return "dear because idle", words + f"output to about {_usd(best)}: more load, a smaller GPU, or share it."
    if best is not None and subject.tpot_target_ms is not None:
        relaxed = replace(subject, tpot_target_ms=2 * subject.tpot_target_ms)
        later = _attainable(relaxed, run, floors, _largest_batch(relaxed, run, kv_concurrency))[1]
        if later < 0.75 * best:
            words = f"{paid}: a TPOT of {subject.tpot_target_ms:g} ms allows {_usd(best)} at best, twice of it "
            return "dear because of the SLO", words + f"{_usd(later)}."
    if api is not None and ratio is not None and (best is None or best > api.high):
        return "dear because of the GPU", f"{paid}: {ratio:.1f} times the floor, nothing to tune, and {offer}."
    if best is not None and out <= _FAR * best:
        return "not dear", f"{paid}, near what this hardware can do ({_usd(best)} for output)."
    return "cannot tell", f"{paid}; no reference says whether that is dear."


def _usd(amount: float | None) -> str:
    return "an unknown amount" if amount is None else f"{amount:.3g} USD"
