"""What a judgement consists of: the records that `verdict` fills, and their JSON."""

from dataclasses import asdict, dataclass

from helpers.accounts.cost import Cost
from helpers.accounts.findings import Finding


@dataclass(frozen=True)
class Evidence:
    """One item that bears on a cause: its bits, and the words of what was seen."""

    item: str
    bits: float
    words: str


@dataclass(frozen=True)
class RankedCause:
    """A cause, its share of belief, what speaks for and against it, and the measurement that would decide."""

    cause: str
    says: str
    place: str
    posterior: float
    speaks_for: tuple[Evidence, ...]
    speaks_against: tuple[Evidence, ...]
    next_test: str
    test_cost: float


@dataclass(frozen=True)
class Second:
    """A further cause beside the first: `says` is "named", "leading" or "cannot tell"."""

    says: str
    cause: str | None
    mechanism: str | None
    place: str | None
    sentence: str


@dataclass(frozen=True)
class NextMeasurement:
    """What to measure next: in one sentence, its cost in words, and the cause it would decide."""

    says: str
    cost: float
    cost_words: str
    decides: str | None


@dataclass(frozen=True)
class Metric:
    """Measured and floor of one quantity; `ratio` is how many times worse than the floor; None where unknown."""

    name: str
    unit: str
    p50: float | None
    p95: float | None
    floor: float | None
    ratio: float | None


@dataclass(frozen=True)
class TtftSplit:
    """Mean TTFT in parts, milliseconds: in the engine's queue, in prefill, to the first decode step, and outside the
    engine's timer (network, front end, delivery). None where the server does not tell. `adds_up`: whether the known
    parts sum to the total, within 15 %.
    """

    queue_ms: float | None
    prefill_ms: float | None
    first_decode_ms: float | None
    delivery_ms: float | None
    total_ms: float | None
    sum_ms: float | None
    adds_up: bool | None
    note: str


@dataclass(frozen=True)
class KvRoom:
    """What memory leaves for requests of this length: an upper bound, weights and KV cache alone."""

    bytes_per_request: int
    max_concurrency: int | None
    asked_concurrency: int | None
    note: str


@dataclass(frozen=True)
class Skew:
    """How much later the experts of a step are done than with even ranks, from expert counts."""

    ranks: int | None
    step_time_factor: float | None
    source: str
    note: str


@dataclass(frozen=True)
class Verdict:
    """The whole judgement. `says`: "named", "leading", "cannot tell", "no fault found" or "void".

    `cause` is None for "cannot tell" and "no fault found". `mechanism` tells how, where a finding shows it.
    """

    says: str
    cause: str | None
    mechanism: str | None
    place: str | None
    sentence: str
    second: Second | None
    ranked: tuple[RankedCause, ...]
    other: float | None
    rules: tuple[str, ...]
    findings: tuple[Finding, ...]
    next_measurement: NextMeasurement | None
    missing: tuple[str, ...]
    conditions: dict[str, object]
    metrics: tuple[Metric, ...]
    binds: dict[str, str | None]
    ttft_split: TtftSplit
    kv: KvRoom | None
    cost: Cost | None
    skew: Skew | None
    broken: tuple[str, ...]
    notes: tuple[str, ...]

    def as_json(self) -> dict:
        """One JSON object; keys ``verdict`` (what is said) and ``evidence`` (why), then the accounts behind it."""
        return {
            "verdict": {
                "says": self.says,
                "cause": self.cause,
                "mechanism": self.mechanism,
                "place": self.place,
                "sentence": self.sentence,
                "second": None if self.second is None else asdict(self.second),
            },
            "evidence": {
                "findings": [asdict(finding) for finding in self.findings],
                "ranked": [_ranked_json(row) for row in self.ranked],
                "other": self.other,
                "rules": list(self.rules),
                "broken": list(self.broken),
            },
            "next_measurement": None if self.next_measurement is None else asdict(self.next_measurement),
            "conditions": self.conditions,
            "metrics": [asdict(metric) for metric in self.metrics],
            "binds": self.binds,
            "ttft_split": asdict(self.ttft_split),
            "kv": None if self.kv is None else asdict(self.kv),
            "cost": None if self.cost is None else _cost_json(self.cost),
            "skew": None if self.skew is None else asdict(self.skew),
            "missing": list(self.missing),
            "notes": list(self.notes),
        }


def _ranked_json(row: RankedCause) -> dict:
    fields = asdict(row)
    fields["for"], fields["against"] = list(fields.pop("speaks_for")), list(fields.pop("speaks_against"))
    return fields


def _cost_json(price: Cost) -> dict:
    return asdict(price) | {"references": [asdict(one) for one in price.references]}
