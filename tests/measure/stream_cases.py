"""Timed streams of the ground truth as bytes, and as an exchange on a simulated clock."""

import base64

from helpers.measure.exchange import Exchange, Read

ENDS = {"close": "complete", "abort": "cut", "hold": "done"}


def write_bytes(write: dict) -> bytes:
    return base64.b64decode(write["data"]) if write.get("encoding") == "base64" else write["data"].encode()


def simulated(case: dict) -> Exchange:
    """The exchange a client without any delay would record: every write is one read, at its own time."""
    reads = tuple(Read(round(w["at_ms"] * 1e6), write_bytes(w)) for w in case["writes"])
    return Exchange(
        request={"max_tokens": case["request"]["max_tokens"], "ignore_eos": case["request"]["ignore_eos"]},
        start_ns=0,
        end=ENDS[case.get("end", "close")],
        end_ns=reads[-1].user_ns,
        reads=reads,
        status=case.get("status", 200),
        headers={"content-type": case.get("content_type", "text/event-stream")},
        head_ns=round(case.get("head_at_ms", 0) * 1e6),
    )
