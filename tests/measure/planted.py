"""Ceilings and records with round planted numbers."""

from helpers import accounts
from helpers.measure import Ceilings, Machine, Rate, Record, Timing, decode_sweep, prefill_sweep
from helpers.measure.record import SCHEMA

MACHINE = Machine("Some CPU", 4, 8 * 2**30, 2**25, "cpu", "Some CPU", 8 * 2**30, "Linux", 4, {"python": "3.11.7"})
MODEL = accounts.read_config("smollm2-135m")


def ceilings(flops_per_s: float = 1e11, bytes_per_s: float = 1e10) -> Ceilings:
    timing = Timing((1.0,) * 9, "cpu", "fp32", 4, 1, {"torch": "2.13.0"}, 3.0)
    gemm, read = Rate("gemm 1x1x1", int(flops_per_s), timing), Rate("read sum", int(bytes_per_s), timing)
    return Ceilings("cpu", "fp32", True, (gemm,), (read,), MACHINE)


def record(timer, **changes) -> Record:
    peaks = ceilings()
    common = {"model": MODEL, "ceilings": peaks, "timer": timer}
    fields = {
        "schema": SCHEMA,
        "created": "2026-01-02T03:04:05+00:00",
        "lab_version": "0.1.0",
        "model": MODEL.name,
        "weights": "random",
        "weight_bytes": 538060032,
        "dtype": "fp32",
        "decode_step": "eager",
        "ceilings": peaks,
        "prefill": prefill_sweep(lambda n: lambda: None, [16, 64], **common),
        "decode": decode_sweep(lambda c, b: lambda: None, [16, 64], [1, 4], **common),
    }
    return Record(**(fields | changes))
