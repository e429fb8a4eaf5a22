"""Clocks and ceilings of this machine, sweeps against the accounts' predictions, and records of both.

`import helpers.measure` loads no torch: what needs it imports it when called.
"""

from helpers.measure.ceilings import (
    Ceilings,
    Rate,
    as_device,
    check_device,
    default_device,
    measure_ceilings,
    set_threads,
)
from helpers.measure.clock import Paired, Timing, paired, says, time_call, timer_for
from helpers.measure.machine import Machine, machine
from helpers.measure.peak_memory import peak_memory_bytes
from helpers.measure.record import Record, check_target, load_record, parse_record, record_text, records, save_record
from helpers.measure.statistics import Interval, median_interval, quartiles, verdict
from helpers.measure.sweep import Dropped, Point, Sweep, decode_sweep, prefill_sweep

__all__ = [
    "Ceilings",
    "Dropped",
    "Interval",
    "Machine",
    "Paired",
    "Point",
    "Rate",
    "Record",
    "Sweep",
    "Timing",
    "as_device",
    "check_device",
    "check_target",
    "decode_sweep",
    "default_device",
    "load_record",
    "machine",
    "measure_ceilings",
    "median_interval",
    "paired",
    "parse_record",
    "peak_memory_bytes",
    "prefill_sweep",
    "quartiles",
    "record_text",
    "records",
    "save_record",
    "says",
    "set_threads",
    "time_call",
    "timer_for",
    "verdict",
]
