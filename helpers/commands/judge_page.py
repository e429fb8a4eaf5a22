"""The judgement of `judge` as one HTML page: the sentence first, then everything that it rests on.

Model names, addresses and clues come from strangers: every text is escaped, and the page runs no script.
"""

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from helpers.accounts.units import format_bytes
from helpers.accounts.words import ms, percent
from helpers.commands.html_page import document, preformatted, scrollable

_PARTS = {
    "queue_ms": "queue",
    "prefill_ms": "prefill",
    "first_decode_ms": "first decode step",
    "delivery_ms": "outside the engine (network, front end, delivery)",
}
# Greys and a hatch tell the parts apart without colour.
_FILLS = ("#0b3d91", "#767676", "#b36200", "#c9d3e6")


def page(result: Mapping[str, Any]) -> str:
    """One self-contained HTML page of the JSON object that `judge` gives."""
    about = result["conditions"]
    what = about["model"] or about["base_url"] or "a service"
    title = f"Judgement of {what}"
    sections = {
        "Measured against the floor": _metrics(result["metrics"], result["binds"]),
        "Where the time to the first token goes": _split(result["ttft_split"]),
        "Causes": _causes(result["evidence"]),
        "The next measurement": _next(result["next_measurement"]),
        "What was seen": _findings(result["evidence"]["findings"]),
        "Memory and experts": _room(result["kv"], result["skew"]),
        "Cost": _cost(result["cost"]),
        "Conditions": _conditions(result),
        "What is not known": _list([*result["missing"], *result["notes"]]),
        "Where this comes from": _provenance(result),
    }
    body = [f"<h1>{_text(title)}</h1>", _said(result)]
    body += [f"<h2>{name}</h2>\n{content}" for name, content in sections.items() if content]
    return document(title, "\n".join(body))


def _text(value: object) -> str:
    return html.escape(str(value))


def _list(items: Iterable[object]) -> str:
    lines = "".join(f"<li>{_text(item)}</li>" for item in items)
    return f"<ul>{lines}</ul>" if lines else ""


def _facts(facts: Mapping[str, object]) -> str:
    """A list of names and values; what is None is left out."""
    rows = "".join(f"<dt>{_text(k)}</dt><dd>{_text(v)}</dd>" for k, v in facts.items() if v is not None)
    return f"<dl>{rows}</dl>" if rows else ""


def _table(name: str, head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table of plain texts whose first column names the rows; the next `numbers` columns stand right."""

    def mark(column: int) -> str:
        return ' class="number"' if 1 <= column <= numbers else ""

    top = "".join(f'<th scope="col"{mark(i)}>{_text(cell)}</th>' for i, cell in enumerate(head))
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>'
        + "".join(f"<td{mark(i)}>{_text(cell)}</td>" for i, cell in enumerate(rest, 1))
        + "</tr>"
        for first, *rest in rows
    )
    return scrollable(name, f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>")


def _said(result: Mapping[str, Any]) -> str:
    verdict = result["verdict"]
    parts = [
        f'<p class="lead"><strong>{_text(verdict["says"].capitalize())}.</strong> {_text(verdict["sentence"])}</p>'
    ]
    if verdict["mechanism"] is not None:
        how = f"{verdict['mechanism'].replace('_', ' ')} (cause {verdict['cause']}, place: {verdict['place']})"
        parts.append(f"<p>How: {_text(how)}.</p>")
    if verdict["second"] is not None:
        parts.append(f"<p>{_text(verdict['second']['sentence'])}</p>")
    if result["evidence"]["broken"]:
        parts.append("<p>Lines that cannot be:</p>" + _list(result["evidence"]["broken"]))
    return "\n".join(parts)


def _shower(unit: str) -> Callable[[float | None], str]:
    def show(value: float | None) -> str:
        if value is None:
            return "not known"
        return ms(value) if unit == "ms" else f"{value:,.1f} {unit}"

    return show


def _metrics(metrics: Sequence[Mapping[str, Any]], binds: Mapping[str, str | None]) -> str:
    rows = []
    for row in metrics:
        show = _shower(row["unit"])
        ratio = "not known" if row["ratio"] is None else f"{row['ratio']:.2f}"
        p95 = show(row["p95"]) if row["unit"] == "ms" else "–"  # throughput is one number for a run
        rows.append((row["name"], show(row["floor"]), show(row["p50"]), p95, ratio))
    head = ("Quantity", "Floor", "Measured (P50)", "P95", "Times worse than the floor")
    parts = [_bars(row) for row in metrics if row["p50"] is not None]
    parts.append(_table("measured against the floor", head, rows, numbers=4))
    if binds["prefill"] is not None or binds["decode"] is not None:
        parts.append(f"<p>What binds: {_text(binds['prefill'])} in prefill, {_text(binds['decode'])} in decode.</p>")
    return "\n".join(parts)


def _bars(row: Mapping[str, Any]) -> str:
    """Floor, P50 and P95 of one quantity as bars from zero, each with its number."""
    show = _shower(row["unit"])
    lengths = {"floor": row["floor"], "P50": row["p50"], "P95": row["p95"]}
    if row["unit"] != "ms":
        lengths = {"measured": row["p50"], "at the floors": row["floor"]}
    known = {name: value for name, value in lengths.items() if value is not None and value >= 0}
    longest = max(known.values()) or 1.0
    bars = []
    for number, (name, value) in enumerate(known.items()):
        y, width = 26 * number, max(1.0, 420 * value / longest)
        fill = _FILLS[1] if "floor" in name else _FILLS[0]
        bars.append(
            f'<text x="0" y="{y + 17}">{_text(name)}</text>'
            f'<rect x="110" y="{y + 3}" width="{width:.1f}" height="18" fill="{fill}"/>'
            f'<text x="{116 + width:.1f}" y="{y + 17}">{_text(show(value))}</text>'
        )
    alt = f"{row['name']}: " + ", ".join(f"{name} {show(value)}" for name, value in known.items())
    return _svg(alt, 26 * len(known), bars, f"{row['name']}, bars from zero")


def _svg(alt: str, height: int, shapes: Iterable[str], caption: str) -> str:
    """A drawing with its text alternative and a caption; its texts inherit the font of the page."""
    return (
        f'<figure><svg role="img" aria-label="{_text(alt)}" viewBox="0 0 660 {height}" width="660" height="{height}" '
        f'font-size="14">{"".join(shapes)}</svg><figcaption>{_text(caption)}</figcaption></figure>'
    )


def _split(split: Mapping[str, Any]) -> str:
    if split["total_ms"] is None:
        return f"<p>{_text(split['note'])}.</p>"
    known = {words: split[name] for name, words in _PARTS.items() if split[name] is not None}
    unknown = [words for name, words in _PARTS.items() if split[name] is None]
    parts = []
    if known:
        parts.append(_stack(known, split["total_ms"]))
        rows = [(words, _milliseconds(value), _share(value, split["total_ms"])) for words, value in known.items()]
        rows.append(("mean TTFT", ms(split["total_ms"]), ""))
        parts.append(_table("parts of TTFT", ("Part", "Mean", "Share"), rows, numbers=2))
    else:
        parts.append(f"<p>Mean TTFT {ms(split['total_ms'])}.</p>")
    if split["adds_up"] is not None:
        words = "The parts add up" if split["adds_up"] else "The parts do NOT add up"
        parts.append(f"<p>{words}: together {ms(split['sum_ms'])}.</p>")
    if unknown:
        parts.append(f"<p>Not told apart: {_text(', '.join(unknown))}.</p>")
    parts.append(f"<p>{_text(split['note'][:1].upper() + split['note'][1:])}.</p>")
    return "\n".join(parts)


def _milliseconds(value: float) -> str:
    return f"−{ms(-value)}" if value < 0 else ms(value)


def _share(value: float, whole: float) -> str:
    return percent(value / whole) if whole > 0 else ""


def _stack(parts: Mapping[str, float], total: float) -> str:
    """The known parts of one time side by side, with a legend below; a part below zero has no place in the bar."""
    drawn = {words: value for words, value in parts.items() if value > 0}
    whole = max(total, sum(drawn.values())) or 1.0
    shapes, x = [], 0.0
    for number, (words, value) in enumerate(drawn.items()):
        width, fill = 640 * value / whole, _FILLS[list(parts).index(words)]
        y = 52 + 24 * number
        shapes.append(f'<rect x="{x:.1f}" y="2" width="{width:.1f}" height="26" fill="{fill}" stroke="#000"/>')
        shapes.append(f'<rect x="0" y="{y - 13}" width="16" height="16" fill="{fill}" stroke="#000"/>')
        shapes.append(f'<text x="24" y="{y}">{_text(words)}: {ms(value)}</text>')
        x += width
    alt = "Mean TTFT by parts: " + ", ".join(f"{words} {_milliseconds(value)}" for words, value in parts.items())
    return _svg(alt, 44 + 24 * len(drawn), shapes, f"Parts of the mean TTFT of {ms(total)}, in the order they happen")


def _causes(evidence: Mapping[str, Any]) -> str:
    parts = []
    if evidence["ranked"]:
        parts.append(
            "<p>Shares are beliefs, from weights of evidence (bits) that were set by hand; no frequencies.</p>"
        )
    for number, row in enumerate(evidence["ranked"], 1):
        parts.append(f"<h3>{number}. {_text(row['cause'])}: {percent(row['posterior'])}</h3>")
        parts.append(f"<p>{_text(row['says'])} Place: {_text(row['place'])}.</p>")
        for key, name in (("for", "Speaks for it"), ("against", "Speaks against it")):
            items = [f"{one['words']} ({one['bits']:+g} bits, {one['item']})" for one in row[key]]
            parts.append(f"<p>{name}:{'' if items else ' nothing'}</p>{_list(items)}")
        parts.append(f"<p>Would decide: {_text(row['next_test'])}</p>")
    if evidence["other"] is not None:
        parts.append(f"<p>None of these: {percent(evidence['other'])}.</p>")
    if evidence["rules"]:
        parts.append("<p>Rules that changed the outcome:</p>" + _list(evidence["rules"]))
    return "\n".join(parts)


def _next(follow: Mapping[str, Any] | None) -> str:
    if follow is None:
        return ""
    decides = "" if follow["decides"] is None else f" It decides on {follow['decides']}."
    return f"<p>{_text(follow['says'] + decides)} Cost: {_text(follow['cost_words'])}.</p>"


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return ""
    rows = [
        (one["words"], "trouble" if one["trouble"] else "", one["item"] or "a note", one["source"]) for one in findings
    ]
    return _table("findings", ("Seen", "Trouble", "Evidence item", "Source"), rows)


def _room(kv: Mapping[str, Any] | None, skew: Mapping[str, Any] | None) -> str:
    parts = []
    if kv is not None:
        most = "not known" if kv["max_concurrency"] is None else f"{kv['max_concurrency']:,}"
        facts = {
            "KV cache of a request": format_bytes(kv["bytes_per_request"]),
            "Requests that memory holds at once": f"{most} ({kv['note']})",
            "Concurrency of the load": kv["asked_concurrency"],
        }
        parts.append(_facts(facts))
    if skew is not None:
        factor = "not known" if skew["step_time_factor"] is None else f"{skew['step_time_factor']:.2f}"
        facts = {"Step time over that of even ranks": factor, "Ranks": skew["ranks"], "Counts": skew["source"]}
        parts.append(_facts(facts) + f"<p>{_text(skew['note'])}.</p>")
    return "\n".join(parts)


def _cost(cost: Mapping[str, Any] | None) -> str:
    if cost is None:
        return ""
    parts = [f"<p><strong>{_text(cost['says'].capitalize())}.</strong> {_text(cost['sentence'])}</p>"]
    if cost["usd_per_hour"] is not None:
        rows = []
        for label, prefix in (("as measured", ""), ("at the floors", "floor_"), ("attainable", "attainable_")):
            pair = [cost[f"{prefix}usd_per_million_{side}"] for side in ("input", "output")]
            rows.append((label, *("not known" if value is None else f"{value:.3g}" for value in pair)))
        head = ("USD per million tokens", "Input", "Output")
        parts.append(_table("cost", head, rows, numbers=2))
        source = cost["price_source"] or "its source was not given"
        parts.append(f"<p>Price: {cost['usd_per_hour']:g} USD per hour for all devices; {_text(source)}.</p>")
    if cost["split_by"] is not None and cost["prefill_share"] is not None:
        words = f"Prefill takes {percent(cost['prefill_share'])} of the device time, split by {cost['split_by']}."
        parts.append(f"<p>{_text(words)}</p>")
    if cost["references"]:
        rows = [
            (
                *(one["what"], f"{one['low']:g} to {one['high']:g} {one['unit']}", one["as_of"]),
                one["source"] + (" (third party)" if one["third_party"] else ""),
            )
            for one in cost["references"]
        ]
        parts.append("<p>Listed prices of these dates, not today's:</p>")
        parts.append(_table("listed prices", ("What", "Range", "As of", "Source"), rows))
    return "\n".join(parts)


def _conditions(result: Mapping[str, Any]) -> str:
    about = {name.replace("_", " "): _plain(value) for name, value in result["conditions"].items() if value is not None}
    ceilings = (result.get("subject") or {}).get("ceilings")
    if ceilings is not None:
        noisy = ", noisy: the floors are rough" if ceilings["noisy"] else ""
        about["ceilings measured"] = (
            f"{ceilings['flops_per_s'] / 1e9:,.1f} GFLOP/s, {ceilings['bytes_per_s'] / 1e9:,.1f} GB/s{noisy}"
        )
    return _table("conditions", ("Condition", "Value"), about.items())


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _provenance(result: Mapping[str, Any]) -> str:
    origin, observation = result.get("provenance") or {}, result.get("observation") or {}
    machine = origin.get("machine") or {}
    facts = {
        "Made": origin.get("made"),
        "By": f"inference-lab {origin['lab_version']}" if "lab_version" in origin else None,
        "From": None if "source" not in origin else _plain(origin["source"]),
        "Measuring machine": f"{machine['cpu']}, {machine['cores']} cores, {machine['system']}" if machine else None,
        "Versions there": ", ".join(f"{k} {v}" for k, v in machine["versions"].items()) if machine else None,
    }
    parts = [_facts(facts)]
    if observation:
        text = json.dumps(observation, indent=1, ensure_ascii=False)
        parts.append(
            "<details><summary>Everything that was observed, as JSON (what --from reads)</summary>"
            f"{preformatted('observation', text)}</details>"
        )
    return "\n".join(part for part in parts if part)
