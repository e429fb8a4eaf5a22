"""Judge a service: is it dear, where is it slow, why, and what to measure next; "cannot tell" is an answer.

An endpoint is probed (or a saved measurement read), the floors of CONFIG on its device are set beside it, and what was
seen is weighed. Without CONFIG there are no floors: the answer says what that leaves open.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from helpers import __version__
from helpers.accounts import device, device_names, kv_bytes, read_config, weight_bytes
from helpers.accounts.causes import TRAITS
from helpers.accounts.evidence import item
from helpers.accounts.expert_load import ExpertLoad, read_expert_load
from helpers.accounts.observation import ROLES, Observation
from helpers.accounts.service_floors import Subject
from helpers.accounts.verdict import verdict
from helpers.commands.ceilings import add_device_arguments, chosen_device_and_dtype
from helpers.commands.judge_text import judge_text
from helpers.commands.measure import add_request_arguments
from helpers.errors import InputError
from helpers.measure.ceilings import Ceilings, as_device, measure_ceilings
from helpers.measure.client import CHAT, COMPLETIONS
from helpers.measure.endpoint import key_from, parse_endpoint
from helpers.measure.machine import machine
from helpers.measure.observe import observation_json, read_observation
from helpers.measure.probe import OPTIONAL, STEPS, ProbePlan, run_probe
from helpers.measure.record import check_target

EXAMPLE = (
    "python -m helpers judge smollm2-135m --this-machine --base-url http://127.0.0.1:8000/v1 "
    "--model smollm2-135m-instruct --concurrency 4"
)

DEFAULT_CONCURRENCY = 4
_LOAD = ("concurrency", "rate", "requests", "direct_url")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``judge``."""
    parser.add_argument(
        "config", nargs="?", metavar="CONFIG", help="config.json, its folder, or a registry name; left out: no floors"
    )
    where = parser.add_argument_group("what runs where")
    where.add_argument("--gpu", metavar="NAME", help='a device of the registry, e.g. "H100 SXM"')
    where.add_argument("--this-machine", action="store_true", help="measure this machine's own ceilings (seconds)")
    where.add_argument("--gpus", type=int, default=1, metavar="N", help="devices that serve this load together (1)")
    where.add_argument("--weights-dtype", metavar="DTYPE", help="default: as the config says; --this-machine: --dtype")
    where.add_argument("--kv-dtype", metavar="DTYPE", help="default: bf16; --this-machine: --dtype")
    add_device_arguments(where)
    load = parser.add_argument_group("the endpoint and the load that is judged")
    load.add_argument("--base-url", metavar="URL", help="as the openai client takes it, ending in /v1")
    load.add_argument("--model", metavar="NAME", help="the model's name at the server")
    pace = load.add_mutually_exclusive_group()
    pace.add_argument("--concurrency", type=int, metavar="C", help=f"closed loop ({DEFAULT_CONCURRENCY})")
    pace.add_argument("--rate", type=float, metavar="R", help="open loop: Poisson arrivals, requests per second")
    load.add_argument("--requests", type=int, metavar="N", help="requests measured (32, or 4 times the concurrency)")
    add_request_arguments(load)
    load.add_argument(
        "--same-prompt", action="store_true", help="send one prompt again and again, to see what it hides"
    )
    load.add_argument("--direct-url", metavar="URL", help="the engine's own port: the load is measured there too")
    load.add_argument("--second-client", action="store_true", help="measure the load from another process too")
    load.add_argument("--quick", action="store_true", help=f"leave out {' and '.join(OPTIONAL)}")
    load.add_argument("--leave-out", action="append", default=[], metavar="STEP", help=f"one of {', '.join(STEPS)}")
    load.add_argument(
        "--from",
        dest="source",
        action="append",
        default=[],
        metavar="[ROLE=]FILE",
        help=f"send nothing: judge a --save file, or logs or JSON of `measure`; roles: {', '.join(ROLES)} (load)",
    )
    known = parser.add_argument_group("what else is known")
    known.add_argument("--claimed-ttft-ms", type=float, metavar="X", help="a TTFT that somebody reports of it")
    known.add_argument("--claimed-by", metavar="WORDS", help="how that one was taken")
    known.add_argument("--usd-per-hour", type=float, metavar="P", help="price of one device")
    known.add_argument("--price-source", metavar="WORDS", help="whose price that is, and of which date")
    known.add_argument("--tpot-target-ms", type=float, metavar="X", help="the TPOT that was promised")
    known.add_argument("--expert-load", metavar="FILE", help="expert counts of the service, as `skew` reads them")
    known.add_argument("--ranks", type=int, metavar="R", help="ranks that hold the experts")
    known.add_argument("--clue", action="append", default=[], metavar="ITEM[=WORDS]", help="evidence seen elsewhere")
    known.add_argument("--trait", action="append", default=[], metavar="NAME", help=f"{', '.join(sorted(TRAITS))}")
    parser.add_argument("--save", metavar="FILE", help="keep what was observed, for --from; never overwritten")
    parser.add_argument("--html", metavar="FILE", help="write the judgement as one page; never overwritten")


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Probe or read, set beside the floors, judge: the JSON object of ``--json``."""
    _check(args)
    subject, ceilings = _subject(args), None
    observation = _observed(args)
    if args.save is not None:
        _write(args.save, json.dumps(observation_json(observation), indent=1, allow_nan=False) + "\n")
        progress(f"observation written to {args.save}")
    notes = ["no CONFIG was given: nothing is set against floors"] if subject is None else list(subject.model.notes)
    if args.this_machine:
        subject, ceilings = _on_this_machine(args, subject)
        if ceilings.noisy:
            notes.append("this machine's ceilings are noisy: the floors are rough")
    judgement = verdict(observation, subject)
    result = {
        **judgement.as_json(),
        "subject": _subject_json(subject, ceilings),
        "observation": observation_json(observation),
        "provenance": {
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "lab_version": __version__,
            "source": list(args.source) or "probe",
            "machine": dataclasses.asdict(machine()),
        },
        "notes": [*notes, *judgement.notes],
    }
    if args.html is not None:
        from helpers.commands.judge_page import page

        _write(args.html, page(result))
        progress(f"page written to {args.html}")
    return result


def to_text(result: dict[str, Any]) -> str:
    """One screen: the sentence first."""
    return judge_text(result)


def _check(args: argparse.Namespace) -> None:
    """Refuses what does not go together before anything is measured."""
    if args.gpu is not None and args.this_machine:
        raise InputError("--gpu and --this-machine exclude each other")
    if args.config is not None and args.gpu is None and not args.this_machine:
        raise InputError("CONFIG needs the device it runs on: --gpu NAME or --this-machine")
    needs_config = {
        "gpu": args.gpu,
        "this-machine": args.this_machine or None,
        "weights-dtype": args.weights_dtype,
        "kv-dtype": args.kv_dtype,
        "usd-per-hour": args.usd_per_hour,
        "expert-load": args.expert_load,
        "tpot-target-ms": args.tpot_target_ms,
    }
    if args.this_machine:
        # Here for its refusals: the ceilings are measured after the probe.
        chosen_device_and_dtype(args)
    if args.config is None:
        for name, value in needs_config.items():
            if value is not None:
                raise InputError(f"--{name} needs CONFIG")
    for name, other in (("price_source", "usd_per_hour"), ("claimed_by", "claimed_ttft_ms"), ("ranks", "expert_load")):
        if getattr(args, name) is not None and getattr(args, other) is None:
            raise InputError(f"--{name.replace('_', '-')} needs --{other.replace('_', '-')}")
    if args.claimed_ttft_ms is not None and not 0 < args.claimed_ttft_ms < 1e9:
        raise InputError(f"--claimed-ttft-ms must be milliseconds above zero, not {args.claimed_ttft_ms}")
    if args.source:
        for name in (*_LOAD, "base_url", "model"):
            if getattr(args, name) is not None:
                raise InputError(f"--from sends nothing: it takes no --{name.replace('_', '-')}")
        for name in ("second_client", "same_prompt", "quick", "leave_out"):
            if getattr(args, name):
                raise InputError(f"--from sends nothing: it takes no --{name.replace('_', '-')}")
    else:
        for name in ("base_url", "model"):
            if not getattr(args, name):
                raise InputError(f"--{name.replace('_', '-')} is missing (or --from FILE, to judge what was measured)")
        key_from(args.key_variable)
    for trait in args.trait:
        if trait not in TRAITS:
            raise InputError(f"--trait {trait!r} is none of {', '.join(sorted(TRAITS))}")
    _clues(args)
    for option in ("save", "html"):
        path = getattr(args, option)
        if path is not None:
            if Path(path).exists():
                raise InputError(f"--{option} {path} exists already, and is never overwritten")
            check_target(path)


def _clues(args: argparse.Namespace) -> dict[str, str]:
    clues = {}
    for clue in args.clue:
        name, _, words = clue.partition("=")
        clues[item(name.strip()).id] = words.strip() or "told on the command line"
    return clues


def _subject(args: argparse.Namespace) -> Subject | None:
    """What is judged, and what that costs; None without CONFIG. What is wrong in it is refused before the probe."""
    if args.config is None:
        return None
    model, kv = read_config(args.config), args.kv_dtype or "bf16"
    weight_bytes(model, args.weights_dtype)
    kv_bytes(model, 1, kv)
    return Subject(
        model=model,
        # With --this-machine any device stands in, until this one's ceilings are measured.
        device=device(args.gpu or device_names()[0]),
        devices=args.gpus,
        weights_dtype=args.weights_dtype,
        kv_dtype=kv,
        usd_per_device_hour=args.usd_per_hour,
        price_source=args.price_source,
        expert_load=_expert_load(args.expert_load),
        ranks=args.ranks,
        tpot_target_ms=args.tpot_target_ms,
    )


def _on_this_machine(args: argparse.Namespace, subject: Subject) -> tuple[Subject, Ceilings]:
    """The subject on this machine's own ceilings, measured now: after the probe, which tells a wrong URL at once."""
    where, dtype = chosen_device_and_dtype(args)
    progress(f"ceilings of {where} in {dtype}")
    ceilings = measure_ceilings(where, dtype, quick=True)
    weights, kv = args.weights_dtype or dtype, args.kv_dtype or dtype
    return dataclasses.replace(subject, device=as_device(ceilings), weights_dtype=weights, kv_dtype=kv), ceilings


def _expert_load(path: str | None) -> ExpertLoad | None:
    if path is None:
        return None
    if Path(path).suffix in (".npy", ".npz", ".pt"):
        from helpers.engine.expert_dumps import read_expert_dump

        load = read_expert_dump([path])
    else:
        load = read_expert_load(path)
    if not isinstance(load, ExpertLoad):
        raise InputError(f"--expert-load {path} holds only logged balancedness, no counts")
    return load


def _observed(args: argparse.Namespace) -> Observation:
    """What the probe sees, or what the files hold, with what the command line tells besides."""
    observation = _from_files(args.source) if args.source else _probed(args)
    claimed = {}
    if args.claimed_ttft_ms is not None:
        claimed = {"claimed_ttft_ms": args.claimed_ttft_ms, "claimed_by": args.claimed_by}
    return dataclasses.replace(
        observation,
        clues=observation.clues | _clues(args),
        traits=observation.traits | frozenset(args.trait),
        **claimed,
    )


def _from_files(sources: Sequence[str]) -> Observation:
    runs, notes, merged = [], [], {}
    for source in sources:
        role, equals, path = source.partition("=")
        if not equals or role not in ROLES:
            role, path = None, source
        one = read_observation(path)
        if role is not None and len(one.runs) != 1:
            raise InputError(f"--from {source}: the file holds {len(one.runs)} runs, which have their roles already")
        runs += [dataclasses.replace(run, role=role or run.role) for run in one.runs]
        notes += one.notes
        merged |= {
            name: getattr(one, name)
            for name in ("clues", "traits", "claimed_ttft_ms", "claimed_by")
            if getattr(one, name)
        }
    return Observation(tuple(runs), notes=tuple(dict.fromkeys(notes)), **merged)


def _probed(args: argparse.Namespace) -> Observation:
    plan = plan_of(args)
    requests, prompt, output = plan.most_sent()
    will = (
        f"up to {requests} requests with {prompt} prompt tokens and {output} output tokens to {' and '.join(plan.urls)}"
    )
    if not args.yes and not all(parse_endpoint(url).loopback for url in plan.urls):
        raise InputError(f"this would send {will}, which may cost money: add --yes to do it")
    progress(f"sending {will}, in {len(plan.steps())} steps: {', '.join(plan.steps())}")
    return run_probe(
        plan, key_variable=args.key_variable, ca_file=args.ca_file, timeout_s=args.timeout, progress=progress
    )


def plan_of(args: argparse.Namespace) -> ProbePlan:
    """The probe of the options."""
    concurrency = args.concurrency
    if concurrency is None and args.rate is None:
        concurrency = DEFAULT_CONCURRENCY
    return ProbePlan(
        base_url=args.base_url,
        model=args.model,
        concurrency=concurrency,
        rate=args.rate,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        requests=args.requests,
        direct_url=args.direct_url,
        second_client=args.second_client,
        leave_out=(*args.leave_out, *(OPTIONAL if args.quick else ())),
        same_prompt=args.same_prompt,
        lone_requests=3 if args.quick else 5,
        warmup=args.warmup,
        seed=args.seed,
        path=CHAT if args.endpoint == "chat" else COMPLETIONS,
        temperature=args.temperature,
        ignore_eos=not args.no_ignore_eos,
    )


def _subject_json(subject, ceilings) -> dict[str, Any] | None:
    if subject is None:
        return None
    return {
        "model": subject.model.name,
        "device": subject.device.name,
        "device_source": subject.device.source,
        "devices": subject.devices,
        "weights_dtype": subject.weights_dtype or "as the config says",
        "kv_dtype": subject.kv_dtype,
        "ceilings": None
        if ceilings is None
        else {"flops_per_s": ceilings.flops_per_s, "bytes_per_s": ceilings.bytes_per_s, "noisy": ceilings.noisy},
    }


def _write(path: str, text: str) -> None:
    """Whole or not at all."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error})") from error
    finally:
        temporary.unlink(missing_ok=True)


def progress(line: str) -> None:
    print(f"judge: {line}", file=sys.stderr, flush=True)
