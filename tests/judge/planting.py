"""Faults planted on a local server, each with the answer that is right: what the slow tests and their tuning share."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from helpers.accounts.observation import Observation
from helpers.measure.probe import probe
from helpers.serve import Options, spawned
from helpers.serve.proxy import proxy

CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    # So many that hardly one token is half a character: every token is an event.
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_theta": 10000.0,
}
"""On two quiet cores a decode step takes about 5 ms and a prompt of 256 tokens about 50 ms."""

QUICK = ("sweep", "beside_long")


@dataclass(frozen=True)
class Plant:
    """A fault and its right answer. `cause` None: nothing is wrong. `also`: the second cause, where two are planted."""

    name: str
    cause: str | None = None
    mechanism: str | None = None
    options: Options = field(default_factory=Options)
    path: dict[str, Any] | None = None
    load: dict[str, Any] = field(default_factory=dict)
    burning: int = 0
    claims_headers: bool = False
    also: str | None = None


SMALL = {"concurrency": 4, "prompt_tokens": 128, "output_tokens": 24, "requests": 12, "lone_requests": 3}

PLANTS = (
    Plant(
        "queue too short",
        "admission_cap",
        "queue_limit",
        Options(max_batch=2, max_queue=1),
        load=SMALL | {"concurrency": 8, "leave_out": QUICK},
    ),
    Plant(
        "headers early",
        "measurement_artefact",
        "first_byte_timer",
        load=SMALL | {"leave_out": QUICK},
        claims_headers=True,
    ),
    Plant(
        "chunked prefill off",
        "prefill_decode_interference",
        "whole_prompt_in_one_step",
        Options(prefill_chunk=0),
        load=SMALL | {"prompt_tokens": 256, "leave_out": ("sweep",)},
    ),
    Plant(
        "batch limit of two",
        "admission_cap",
        "running_cap",
        Options(max_batch=2),
        load=SMALL | {"concurrency": 8, "requests": 24, "leave_out": ("beside_long",)},
    ),
    Plant(
        "KV cache too small",
        "kv_preemption",
        "preemption",
        Options(kv_blocks=26, prefix_caching=False),
        load=SMALL | {"prompt_tokens": 64, "output_tokens": 64, "concurrency": 6, "requests": 12, "leave_out": QUICK},
    ),
    Plant(
        "buffering proxy",
        "network_proxy",
        "buffering",
        path={"buffer_bytes": 3000},
        load=SMALL | {"output_tokens": 48, "leave_out": QUICK},
    ),
    Plant(
        "a connection for each request",
        "network_proxy",
        "connection_per_request",
        path={"close_each": True, "accept_delay_s": 0.06},
        load=SMALL | {"prompt_tokens": 64, "leave_out": QUICK},
    ),
    Plant(
        "repeated prompts",
        "measurement_artefact",
        "repeated_prompts",
        load=SMALL | {"same_prompt": True, "leave_out": QUICK},
    ),
    Plant(
        "timer on the first event",
        "network_proxy",
        "first_event_timer",
        path={"first_event_delay_s": 0.05},
        load=SMALL | {"prompt_tokens": 64, "concurrency": 2, "leave_out": QUICK},
    ),
    Plant(
        "client saturated",
        "client_saturation",
        "client_lag",
        load=SMALL | {"leave_out": QUICK},
        burning=2,
    ),
)

HEALTHY = (
    Plant("one at a time", load=SMALL | {"concurrency": 1, "requests": 8, "leave_out": QUICK}),
    Plant("closed loop", load=SMALL | {"prompt_tokens": 256}),
    Plant("open loop", load=SMALL | {"concurrency": None, "rate": 1.0, "requests": 8, "leave_out": QUICK}),
    Plant("transparent proxy", path={}, load=SMALL | {"leave_out": QUICK}),
)

TWO = Plant(
    "batch limit and buffer",
    "admission_cap",
    options=Options(max_batch=2),
    path={"buffer_bytes": 3000},
    load=SMALL | {"concurrency": 8, "output_tokens": 48, "leave_out": QUICK},
    also="network_proxy",
)


def config_file(folder: Path) -> Path:
    """The model's config.json in a folder."""
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIG))
    return file


@contextlib.contextmanager
def burning(threads: int) -> Iterator[None]:
    """So many threads of this process that compute in Python all the time: the client's own loop waits for the lock."""
    stop = threading.Event()

    def burn() -> None:
        while not stop.is_set():
            sum(range(1000))

    running = [threading.Thread(target=burn, daemon=True) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in running:
            thread.join()


def observe(plant: Plant, config: Path, progress: Callable[[str], None] = lambda line: None) -> Observation:
    """Plant it, probe it, and take it away again."""
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(spawned(f"random:{config}", plant.options, "--name=m", "--threads=1"))
        if plant.path is not None:
            url = stack.enter_context(proxy(url, **plant.path))
        stack.enter_context(burning(plant.burning))
        seen = probe(url, "m", progress=progress, **plant.load)
    if plant.claims_headers:
        headers = seen.role("load")[-1].headers.p50
        seen = dataclasses.replace(seen, claimed_ttft_ms=headers, claimed_by="a timer of somebody's own")
    return seen
