"""Clocks and ceilings of this machine, sweeps against predictions, records of both, and the streaming client.

`import helpers.measure` loads no torch: what needs it imports it when called.
"""

from helpers.measure.arrivals import Arrival, ClosedLoop, OpenLoop, Trace, read_trace
from helpers.measure.ceilings import (
    Ceilings,
    Rate,
    as_device,
    check_device,
    default_device,
    measure_ceilings,
    set_threads,
)
from helpers.measure.client import exchange_once, measure_request
from helpers.measure.clock import Paired, Timing, paired, says, time_call, timer_for
from helpers.measure.cpu_time import WallAndCpu, doubts, time_wall_and_cpu
from helpers.measure.exchange import Exchange, Read
from helpers.measure.load import LoadRun, Plan, Sent, measure_load
from helpers.measure.machine import Machine, machine
from helpers.measure.peak_memory import peak_memory_bytes
from helpers.measure.percentiles import Percentile, nearest_rank, percentile
from helpers.measure.record import Record, check_target, load_record, parse_record, record_text, records, save_record
from helpers.measure.replay import load_log, save_log
from helpers.measure.results import Conditions, Lengths, Metric, Summary, summarize, table
from helpers.measure.sse import ServerSentEvent, SSEParser
from helpers.measure.statistics import Interval, median_interval, quartiles, verdict
from helpers.measure.stream import OutputEvent, RequestResult, read_stream
from helpers.measure.sweep import Dropped, Point, Sweep, decode_sweep, prefill_sweep

__all__ = [
    "Arrival",
    "Ceilings",
    "ClosedLoop",
    "Conditions",
    "Dropped",
    "Exchange",
    "Interval",
    "Lengths",
    "LoadRun",
    "Machine",
    "Metric",
    "OpenLoop",
    "OutputEvent",
    "Paired",
    "Percentile",
    "Plan",
    "Point",
    "Rate",
    "Read",
    "Record",
    "RequestResult",
    "SSEParser",
    "Sent",
    "ServerSentEvent",
    "Summary",
    "Sweep",
    "Timing",
    "Trace",
    "WallAndCpu",
    "as_device",
    "check_device",
    "check_target",
    "decode_sweep",
    "default_device",
    "doubts",
    "exchange_once",
    "load_log",
    "load_record",
    "machine",
    "measure_ceilings",
    "measure_load",
    "measure_request",
    "median_interval",
    "nearest_rank",
    "paired",
    "parse_record",
    "peak_memory_bytes",
    "percentile",
    "prefill_sweep",
    "quartiles",
    "read_stream",
    "read_trace",
    "record_text",
    "records",
    "save_log",
    "save_record",
    "says",
    "set_threads",
    "summarize",
    "table",
    "time_call",
    "time_wall_and_cpu",
    "timer_for",
    "verdict",
]
