"""The text of `judge`: one screen, the sentence first."""

import textwrap
from collections.abc import Sequence
from typing import Any

from helpers.accounts.words import ms, percent

_WIDTH = 92
_MOST_CAUSES, _MOST_ITEMS = 3, 3


def judge_text(result: dict[str, Any]) -> str:
    """The judgement as people read it: what is said, measured against floor, where TTFT goes, causes, what next."""
    parts = [
        _said(result),
        _conditions(result["conditions"]),
        _table(result["metrics"]),
        _ttft(result["ttft_split"]),
        _room(result),
        _causes(result["evidence"]),
        _next(result["next_measurement"]),
        _money(result),
        _open_points(result),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _wrapped(text: str, indent: str = "", after: str | None = None) -> list[str]:
    return (
        textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent if after is None else after) or []
    )


def _said(result: dict[str, Any]) -> list[str]:
    verdict = result["verdict"]
    says, sentence = verdict["says"], verdict["sentence"]
    # Some sentences begin with what is said.
    begins = sentence.lower().startswith(says)
    lines = _wrapped(says.upper() + (sentence[len(says) :] if begins else f". {sentence}"))
    if verdict["mechanism"] is not None:
        lines += _wrapped(f"How: {verdict['mechanism'].replace('_', ' ')} ({verdict['cause']}).")
    if verdict["second"] is not None:
        lines += _wrapped(verdict["second"]["sentence"])
    for line in result["evidence"]["broken"]:
        lines += _wrapped(f"Broken: {line}")
    return lines


def _conditions(about: dict[str, Any]) -> list[str]:
    load = f"concurrency {about['concurrency']:g}" if about["concurrency"] else f"{about['rate_per_s']:g} requests/s"
    words = f"{load}, {about['prompt_tokens']:g} prompt tokens, {about['output_tokens']:g} output tokens, "
    words += f"{about['requests']} requests measured" + (f" at {about['base_url']}" if about["base_url"] else "")
    lines = _wrapped(words)
    if about["model"] is not None:
        words = f"{about['model']} on {about['devices']} × {about['device']}, weights {about['weights_dtype']}, "
        lines += _wrapped(words + f"KV {about['kv_dtype']}, {about['decode_batch']} decoding together")
    return lines


def _table(metrics: Sequence[dict[str, Any]]) -> list[str]:
    lines = [f"{'':<20}{'P50':>12}{'P95':>12}{'floor':>12}{'ratio':>10}"]
    for row in metrics:
        show = ms if row["unit"] == "ms" else _plain
        cells = [_cell(row[name], show) for name in ("p50", "p95", "floor")]
        ratio = _cell(row["ratio"], lambda value: f"{value:.2f}×")
        label = row["name"] if row["unit"] == "ms" else f"{row['name']}, {row['unit']}"
        lines.append(f"{label:<20}" + "".join(f"{cell:>12}" for cell in cells) + f"{ratio:>10}")
    return lines


def _cell(value: float | None, show) -> str:
    return "–" if value is None else show(value)


def _plain(value: float) -> str:
    return f"{value:,.1f}"


def _ttft(split: dict[str, Any]) -> list[str]:
    if split["total_ms"] is None:
        return []
    names = {
        "queue_ms": "queue",
        "prefill_ms": "prefill",
        "first_decode_ms": "first decode step",
        "delivery_ms": "outside the engine",
    }
    known = [f"{words} {_signed(split[name])}" for name, words in names.items() if split[name] is not None]
    if not known:
        return _wrapped(f"mean TTFT {ms(split['total_ms'])}: {split['note']}")
    words = f"mean TTFT {ms(split['total_ms'])} = {' + '.join(known)}"
    if split["adds_up"] is False:
        words += f" (which do not add up: {ms(split['sum_ms'])})"
    return _wrapped(f"{words}; {split['note']}")


def _signed(milliseconds: float) -> str:
    return f"−{ms(-milliseconds)}" if milliseconds < 0 else ms(milliseconds)


def _room(result: dict[str, Any]) -> list[str]:
    lines = []
    if result["binds"]["decode"] is not None:
        lines.append(f"what binds: {result['binds']['prefill']} in prefill, {result['binds']['decode']} in decode")
    kv = result["kv"]
    if kv is not None:
        each = f"{kv['bytes_per_request'] / 1e6:,.1f} MB of KV cache for each request"
        if kv["max_concurrency"] is None:
            lines += _wrapped(f"{each}; {kv['note']}")
        else:
            lines += _wrapped(f"{each}: memory has room for {kv['max_concurrency']:,} at once ({kv['note']})")
    skew = result["skew"]
    if skew is not None:
        factor = (
            "" if skew["step_time_factor"] is None else f"{skew['step_time_factor']:.2f}× over {skew['ranks']} ranks; "
        )
        lines += _wrapped(f"expert skew: {factor}{skew['note']}")
    return lines


def _causes(evidence: dict[str, Any]) -> list[str]:
    if not evidence["ranked"]:
        return []
    lines = ["causes, the likeliest first"]
    for row in evidence["ranked"][:_MOST_CAUSES]:
        lines += _wrapped(f"{percent(row['posterior']):>6}  {row['cause']}: {row['says']}", "  ", " " * 10)
        for label, sign in (("for", "+"), ("against", "")):
            for one in row[label][:_MOST_ITEMS]:
                words = f"{label + ':':<9}{one['words']} ({sign}{one['bits']:g} bits)"
                lines += _wrapped(words, " " * 10, " " * 19)
    left = len(evidence["ranked"]) - _MOST_CAUSES
    if evidence["other"] is not None:
        more = f", {left} more are in --json" if left > 0 else ""
        lines.append(f"  {percent(evidence['other']):>6}  none of these{more}")
    for rule in evidence["rules"]:
        lines += _wrapped(f"rule: {rule}", "  ", " " * 10)
    return lines


def _next(follow: dict[str, Any] | None) -> list[str]:
    if follow is None:
        return []
    decides = "" if follow["decides"] is None else f"decides on {follow['decides']}; "
    return _wrapped(f"next: {follow['says']} It {decides}costs {follow['cost_words']}.")


def _money(result: dict[str, Any]) -> list[str]:
    cost = result["cost"]
    if cost is None:
        return []
    lines = _wrapped(f"cost, {cost['says']}: {cost['sentence']}")
    if cost["usd_per_hour"] is not None:
        names = (("as measured", ""), ("at the floor", "floor_"), ("attainable", "attainable_"))
        for label, prefix in names:
            pair = [cost[f"{prefix}usd_per_million_{side}"] for side in ("input", "output")]
            if None not in pair:
                lines.append(
                    f"  {label:<14}{pair[0]:>10.3g} USD per million input,{pair[1]:>10.3g} per million output tokens"
                )
        source = cost["price_source"] or "its source was not given"
        lines += _wrapped(f"price: {cost['usd_per_hour']:g} USD per hour for all devices, {source}", "  ")
    for one in cost["references"]:
        price = f"{one['low']:g}" if one["low"] == one["high"] else f"{one['low']:g} to {one['high']:g}"
        third = ", third party" if one["third_party"] else ""
        words = f"{one['what']} {price} {one['unit']} ({one['as_of']}; {one['source']}{third})"
        lines += _wrapped(f"listed, not today's: {words}", "  ")
    return lines


def _open_points(result: dict[str, Any]) -> list[str]:
    lines = [line for words in result["missing"] for line in _wrapped(f"not known: {words}", "", "  ")]
    return lines + [line for words in result["notes"] for line in _wrapped(f"note: {words}", "", "  ")]
