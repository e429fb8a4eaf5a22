"""Runs of an invented service, consistent in their numbers, for the tests of findings and verdicts."""

from dataclasses import replace

from helpers.accounts.observation import Run, ServerWindow, Spread


def spread(p50: float, **more) -> Spread:
    return Spread(**{"p50": p50, "p95": 1.3 * p50, "p99": 1.5 * p50, "mean": p50, "max": 2 * p50, "n": 50} | more)


def timed(run: Run) -> Run:
    """The run with E2E and throughput as its TTFT, TPOT and load make them."""
    e2e = run.ttft.p50 + (run.output_tokens - 1) * run.tpot.p50
    per_s = run.rate_per_s if run.concurrency is None else 1e3 * run.concurrency / e2e
    return replace(run, e2e=spread(e2e), requests_per_s=per_s, output_tokens_per_s=per_s * run.output_tokens)


def run(role="load", prompt=256, output=64, concurrency=4, ttft=120.0, tpot=18.0, server=True, **more) -> Run:
    """A run without faults; `server` False leaves the server's numbers out, a dict changes them."""
    window = None
    if server is not False:
        numbers = {
            "samples": 40,
            "running_p50": float(concurrency or 1),
            "running_max": float(concurrency or 1),
            "waiting_p50": 0.0,
            "waiting_max": 1.0,
            "kv_share_max": 0.2,
            "preemptions": 0.0,
            "rejected": 0.0,
            "finished": 32.0,
            "ttft_mean": ttft - 3,
            "queue_mean": 1.0,
            "prefill_mean": ttft - 4,
            "tpot_mean": tpot,
        }
        window = ServerWindow("lab", 10.0, **numbers | (server if isinstance(server, dict) else {}))
    fields = {
        "role": role,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "concurrency": concurrency,
        "requests": 32,
        "ttft": spread(ttft),
        "tpot": spread(tpot),
        "gap": spread(tpot, p99=2.5 * tpot, max=3 * tpot, n=32 * output),
        "headers": spread(2.0),
        "connect": spread(0.2),
        "events_per_read": 1.0,
        "sent_on_new_connection": 0.1,
        "cached_tokens_mean": 0.0,
        "client_lag": spread(0.1),
        "client_cpu_share": 0.1,
        "server": window,
    }
    return timed(Run(**fields | more))


ALONE = (
    run("alone", 64, 8, 1, ttft=20, tpot=10),
    run("alone", 1024, 8, 1, ttft=240, tpot=10),
    run("alone", 256, 64, 1, ttft=62, tpot=10),
)
SWEEP = (run(concurrency=2, ttft=80, tpot=13),)
HEALTHY = run()
BESIDE = Run(
    "beside_long",
    64,
    64,
    concurrency=2,
    requests=2,
    gap=spread(12, max=75, n=120),
    long_prompt_tokens=1024,
    long_ttft=300,
)
AROUND = (*ALONE, *SWEEP, BESIDE)


def later(runs, milliseconds: float, **more) -> tuple[Run, ...]:
    """The runs with so much added to the client's TTFT, the server's unchanged."""
    return tuple(timed(replace(one, ttft=spread(one.ttft.p50 + milliseconds), **more)) for one in runs)


CAPPED = run(
    concurrency=8,
    ttft=2600,
    tpot=13,
    server={
        "running_p50": 2.0,
        "running_max": 2.0,
        "waiting_p50": 6.0,
        "ttft_mean": 2598.0,
        "queue_mean": 2500.0,
        "prefill_mean": 90.0,
    },
)
BUFFERED = {"events_per_read": 6.0, "gap": spread(0.2, p99=100, max=120, n=2000)}

FAULTS = {
    "queue_limit": (
        "admission_cap",
        (
            *ALONE,
            run(
                concurrency=8,
                server={"waiting_p50": 1.0, "running_p50": 2.0, "running_max": 2.0, "rejected": 20.0},
                errors={"http_429": 20},
            ),
        ),
        {},
    ),
    "first_byte_timer": ("measurement_artefact", (*AROUND, HEALTHY), {"claimed_ttft_ms": 2.2}),
    "whole_prompt_in_one_step": (
        "prefill_decode_interference",
        (*ALONE, *SWEEP, HEALTHY, replace(BESIDE, gap=spread(12, max=230, n=120), long_ttft=260)),
        {},
    ),
    "running_cap": ("admission_cap", (*AROUND, CAPPED), {}),
    "preemption": (
        "kv_preemption",
        (
            *AROUND,
            run(
                concurrency=8,
                ttft=700,
                tpot=30,
                server={
                    "running_p50": 3.0,
                    "running_max": 5.0,
                    "waiting_p50": 4.0,
                    "kv_share_max": 0.98,
                    "preemptions": 11.0,
                },
            ),
        ),
        {},
    ),
    "buffering": ("network_proxy", (*AROUND, *later([HEALTHY], 110, **BUFFERED)), {}),
    "connection_per_request": (
        "network_proxy",
        later([*ALONE, HEALTHY], 50, sent_on_new_connection=1.0),
        {},
    ),
    "repeated_prompts": (
        "measurement_artefact",
        (
            *AROUND,
            run(ttft=30, cached_tokens_mean=250.0, prompts_repeat=True),
        ),
        {},
    ),
    "first_event_timer": ("network_proxy", later([*ALONE, HEALTHY], 50), {}),
    "client_lag": (
        "client_saturation",
        (*AROUND, replace(HEALTHY, client_cpu_share=0.97, client_lag=spread(12.0))),
        {},
    ),
}
"""Mechanism → its cause, the runs that show it, and what else the observation holds."""
