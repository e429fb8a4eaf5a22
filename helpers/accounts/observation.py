"""What was seen of a service, as plain numbers: runs under stated conditions, and the server's own numbers beside them.

`helpers.measure` makes these from a live endpoint or a stored log; `helpers.accounts.verdict` judges them. None: not
known. Times are milliseconds, shares lie between 0 and 1.
"""

from dataclasses import dataclass, field

from helpers.errors import InputError

ROLES = ("load", "alone", "repeat", "beside_long", "direct", "second_client")
"""What a run is for.

load           the load that is judged: of several the one with the largest concurrency or rate, the others are a sweep
alone          one request at a time (several prompt lengths: the slope of TTFT over length)
repeat         the prompt of an earlier request sent again, one at a time: does a prefix cache answer?
beside_long    short requests streaming while one much longer prompt is computed
direct         the load again, at the engine's own port instead of the public URL
second_client  the load again, from a client in another process
"""


@dataclass(frozen=True)
class Spread:
    """Median, 95th and 99th percentile, mean, largest and number of one quantity; None where n is too small to say."""

    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    mean: float | None = None
    max: float | None = None
    n: int = 0


@dataclass(frozen=True)
class ServerWindow:
    """The server's own numbers over one run: counters and histograms as differences, gauges as samples during it.

    `names` says which engine's metric names were understood ("vllm", "sglang", "llamacpp", "lab"). Histogram means are
    sum ÷ count over the window.
    """

    names: str
    seconds: float
    samples: int = 0
    running_p50: float | None = None
    running_max: float | None = None
    waiting_p50: float | None = None
    waiting_max: float | None = None
    kv_share_max: float | None = None
    preemptions: float | None = None
    rejected: float | None = None
    finished: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    cache_queried_tokens: float | None = None
    cache_hit_tokens: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    ttft_mean: float | None = None
    queue_mean: float | None = None
    prefill_mean: float | None = None
    decode_mean: float | None = None
    tpot_mean: float | None = None
    e2e_mean: float | None = None
    step_tokens_mean: float | None = None


@dataclass(frozen=True)
class Run:
    """One load, its conditions, and what client and server saw of it.

    Exactly one of `concurrency` and `rate_per_s` is set. `ttft` counts from the intended start in an open loop.
    `headers`: end of the response's head. `gap`: between output events. `events_per_read`: output events ÷ reads that
    carried any, 1 where each arrived alone. `sent_on_new_connection`: share of requests that opened one.
    `long_prompt_tokens`, `long_ttft`: of the long request in a run beside_long. `ttft_of_window_mean`: the client's
    mean TTFT from the send over all requests that `server` counts, those before and after the measured ones included;
    it is what `server.ttft_mean` compares with.
    """

    role: str
    prompt_tokens: float
    output_tokens: float
    concurrency: int | None = None
    rate_per_s: float | None = None
    requests: int = 0
    ttft: Spread = Spread()
    tpot: Spread = Spread()
    gap: Spread = Spread()
    e2e: Spread = Spread()
    headers: Spread = Spread()
    connect: Spread = Spread()
    events_per_read: float | None = None
    sent_on_new_connection: float | None = None
    cached_tokens_mean: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    client_lag: Spread = Spread()
    client_cpu_share: float | None = None
    errors: dict[str, int] = field(default_factory=dict)
    long_prompt_tokens: float | None = None
    long_ttft: float | None = None
    prompts_repeat: bool = False
    base_url: str | None = None
    server: ServerWindow | None = None
    ttft_of_window_mean: float | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise InputError(f"role must be one of {', '.join(ROLES)}, not {self.role!r}")
        if (self.concurrency is None) == (self.rate_per_s is None):
            raise InputError("a run needs exactly one of concurrency and rate_per_s")
        for name in ("prompt_tokens", "concurrency", "rate_per_s"):
            if getattr(self, name) == 0:
                raise InputError(f"{name} of a run must be above zero")


@dataclass(frozen=True)
class Observation:
    """All runs of one service, the clues that no run shows, and what somebody claims.

    `clues`: ids of `helpers.accounts.evidence.EVIDENCE` that were seen elsewhere (start-up log, trace, a controlled
    toggle ``ab:CAUSE``), each with its words. `traits`: preconditions known of the service, such as ``cfg_tp_gt1``.
    `claimed_ttft_ms`: the TTFT that somebody reports of it, and `claimed_by` how it was taken.
    """

    runs: tuple[Run, ...]
    clues: dict[str, str] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    claimed_ttft_ms: float | None = None
    claimed_by: str | None = None
    notes: tuple[str, ...] = ()

    def role(self, role: str) -> tuple[Run, ...]:
        """The runs of one role, in order."""
        return tuple(run for run in self.runs if run.role == role)
