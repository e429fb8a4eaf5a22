"""Expert parallelism for real: tokens travel to the ranks that hold their experts, and back.

A program for torchrun; it prints one JSON object, from rank 0:

    torchrun --nproc-per-node 2 -m helpers.engine.expert_parallel --alphas 0,1,inf

Over several hosts, start it on each with torchrun's --nnodes and --rdzv-endpoint. gloo on CPUs, NCCL on GPUs. With
``--emulate MS_PER_EXPERT,MS_PER_TOKEN`` the tokens still travel, but the experts are a pause of the length that a
device of these speeds would take: for more ranks than cores, where real ones would lend each other their core and hide
the straggler. `run_expert_parallel` starts it from a notebook.
"""

import argparse
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from helpers.accounts import PLACEMENTS, InputError, Placement, max_over_mean
from helpers.accounts.units import positive_int
from helpers.engine.moe import Routing, run_experts
from helpers.engine.moe_skew import draw_routing, random_experts, zipf_popularity

_CONDITIONS = ("experts", "experts_per_token", "hidden", "width", "tokens")
_PORT_FREE = ("--standalone", "--nnodes", "1")


@dataclass(frozen=True)
class RankTimes:
    """One rank's part in a step: rows it ran, experts it touched, and seconds of each phase (medians over steps)."""

    rank: int
    rows: int
    touched: int
    dispatch_s: float
    compute_s: float
    combine_s: float
    compute_cpu_s: float


class ExpertParallel:
    """The experts of one layer spread over the ranks of a process group by `placement`, without replicas.

    `local_experts(ids)` gives gate_up and down of the experts with these ids, those of this rank. Called with this
    rank's x [T, H] and its routing, it returns y [T, H]: what one device with all experts would compute.
    """

    def __init__(
        self,
        placement: Placement,
        local_experts: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
        pause_s: Callable[[int, int], float] | None = None,
    ) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        if len(placement.ranks) != self.ranks or max(placement.copies) > 1:
            raise InputError(f"the placement must hold each expert once, on one of {self.ranks} ranks")
        self.owner, self.slot = torch.empty(placement.experts).long(), torch.empty(placement.experts).long()
        for rank, experts in enumerate(placement.ranks):
            self.owner[list(experts)] = rank
            self.slot[list(experts)] = torch.arange(len(experts))
        self.gate_up, self.down = local_experts(torch.tensor(placement.ranks[self.rank], dtype=torch.long))
        self.owner, self.slot = self.owner.to(self.gate_up.device), self.slot.to(self.gate_up.device)
        self.pause_s = pause_s

    @torch.inference_mode()
    def __call__(self, x: torch.Tensor, routing: Routing) -> tuple[torch.Tensor, RankTimes]:
        k, started = routing.experts.shape[1], self._now()
        assigned = routing.experts.flatten()
        order = self.owner[assigned].argsort(stable=True)
        sent = torch.bincount(self.owner[assigned], minlength=self.ranks)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        to, frm = sent.tolist(), received.tolist()
        rows = self._exchange(x[order // k], to, frm)
        slots = self._exchange(self.slot[assigned[order]], to, frm)
        dispatched, cpu = self._now(), time.process_time()
        touched = int(slots.unique().numel())
        if self.pause_s is not None:
            time.sleep(self.pause_s(touched, len(rows)))
            out = rows
        else:
            alone = Routing(slots[:, None], torch.ones(len(slots), 1, device=x.device))
            out = run_experts(rows, alone, self.gate_up, self.down) if len(rows) else rows
        computed, cpu = self._now(), time.process_time() - cpu
        back = self._exchange(out, frm, to)
        results = torch.empty_like(back)
        results[order] = back
        y = (results.view(-1, k, x.shape[1]) * routing.gates[..., None].to(x.dtype)).sum(1)
        combined = self._now()
        times = (dispatched - started, computed - dispatched, combined - computed)
        return y, RankTimes(self.rank, len(rows), touched, *times, cpu)

    def _exchange(self, values: torch.Tensor, to: Sequence[int], frm: Sequence[int]) -> torch.Tensor:
        """Send the next to[r] rows to each rank r, and receive frm[r] from it."""
        out = values.new_empty(sum(frm), *values.shape[1:])
        dist.all_to_all_single(out, values.contiguous(), list(frm), list(to))
        return out

    def _now(self) -> float:
        if self.gate_up.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter()


def run_expert_parallel(ranks: int, timeout_s: float = 120, **options: object) -> dict:
    """Start this program on `ranks` processes of this machine and return its result; `options` as its own, by name.

    ``run_expert_parallel(4, emulate="0.05,0.02", alphas="0,1,inf")``. One thread per rank. Raises InputError with the
    program's own sentence where it refuses (such as more ranks than cores without `emulate`), or after `timeout_s`.
    """
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    _at_least_two(ranks)
    check_ranks(ranks, "emulate" in options)
    launch = [sys.executable, "-m", "torch.distributed.run", *_PORT_FREE, "--nproc-per-node", str(ranks)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*launch, "-m", "helpers.engine.expert_parallel", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        # torchrun hands SIGTERM on to its ranks.
        process.terminate()
        process.communicate()
        raise InputError(f"expert parallelism on {ranks} ranks did not end within {timeout_s:g} s") from error
    if process.returncode:
        raise InputError(f"expert parallelism on {ranks} ranks failed: {_failure(err)}")
    return json.loads(next(line for line in out.splitlines() if line.startswith("{")))


def _failure(err: str) -> str:
    """One sentence of what torchrun printed: the program's own refusal, or how the first rank to fail ended."""
    if said := re.search(r"^(?:\S+: )?error: (.+)$", err, re.MULTILINE):
        return said[1]
    if ended := re.search(r"exitcode\s*: (-?[0-9]+)", err):
        raised = re.findall(r"^\[rank[0-9]+\]: (\w+Error: .+)$", err, re.MULTILINE)
        return f"a rank ended with exit code {ended[1]}" + (f" ({raised[-1][:200]})" if raised else "")
    return " ".join(err.split())[-300:]


def on_gpus(ranks: int) -> bool:
    """Whether this machine has a GPU for each of its `ranks`; otherwise they run on its cores, with gloo."""
    return torch.cuda.device_count() >= ranks


def check_ranks(ranks: int, emulated: bool) -> None:
    """Raises InputError for more ranks of one machine with real compute than it has GPUs, or else cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not emulated and not on_gpus(ranks) and ranks > cores:
        raise InputError(
            f"{ranks} ranks on {cores} cores would lend each other their core and hide the straggler: "
            "emulate the device time (--emulate)"
        )


def _at_least_two(ranks: int) -> None:
    if ranks < 2:
        raise InputError(f"expert parallelism needs 2 ranks or more, not {ranks}")


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--experts-per-token", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=512, help="tokens per rank")
    parser.add_argument("--alphas", default="0,1,inf", help="Zipf exponents of the skews, comma-separated")
    parser.add_argument("--placements", default="contiguous,strided")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--emulate", metavar="MS_PER_EXPERT,MS_PER_TOKEN")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Every skew under every placement: a step's wall time, and what each rank did in it."""
    args = _arguments(words)
    try:
        settings = _settings(args)
        if "LOCAL_WORLD_SIZE" not in os.environ:
            raise InputError("start this program with torchrun, which tells each process its rank")
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    on_gpu = on_gpus(int(os.environ["LOCAL_WORLD_SIZE"]))
    torch.set_num_threads(1)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
        result = _measure(args, *settings, device)
        if dist.get_rank() == 0:
            print(json.dumps(result), flush=True)
    except InputError as error:
        raise SystemExit(f"error: {error}") from error
    finally:
        dist.destroy_process_group()


def _settings(args: argparse.Namespace) -> tuple[list[float], list[str], Callable[[int, int], float] | None]:
    """Skews, names of placements and pause of checked arguments; refused before the ranks wait for each other."""
    for name in (*_CONDITIONS, "steps"):
        positive_int(getattr(args, name), f"--{name.replace('_', '-')}")
    if args.experts_per_token > args.experts:
        raise InputError(f"--experts-per-token ({args.experts_per_token}) is more than --experts ({args.experts})")
    try:
        alphas = [float(part) for part in args.alphas.split(",")]
    except ValueError:
        alphas = [math.nan]
    if not all(alpha >= 0 for alpha in alphas):
        raise InputError(f"--alphas takes numbers, zero or more, or inf, not {args.alphas!r}")
    names = args.placements.split(",")
    if unknown := [name for name in names if name not in PLACEMENTS]:
        raise InputError(f"placement {unknown[0]!r} is not known; choose of {', '.join(PLACEMENTS)}")
    if args.emulate is None:
        return alphas, names, None
    try:
        per_expert, per_token = (float(part) for part in args.emulate.split(","))
    except ValueError:
        per_expert = per_token = math.nan
    if not (0 <= per_expert < math.inf and 0 <= per_token < math.inf):
        raise InputError(f"--emulate takes MS_PER_EXPERT,MS_PER_TOKEN, not {args.emulate!r}")
    return alphas, names, lambda touched, rows: (per_expert * touched + per_token * rows) / 1000


def _ranks_of_this_machine() -> int:
    hosts: list = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    return hosts.count(socket.gethostname())


def _measure(
    args: argparse.Namespace,
    alphas: Sequence[float],
    placements: Sequence[str],
    pause_s: Callable[[int, int], float] | None,
    device: torch.device,
) -> dict:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    _at_least_two(ranks)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Two torchruns on one machine, as two nodes, share its cores all the same.
    check_ranks(_ranks_of_this_machine(), pause_s is not None)
    # Every rank draws the same weights and keeps its own.
    weights = random_experts(args.experts, args.hidden, args.width, device=device, seed=1)
    x = torch.randn(args.tokens, args.hidden, generator=torch.Generator().manual_seed(rank)).to(device)
    runs = []
    for alpha in alphas:
        routing = draw_routing(zipf_popularity(args.experts, alpha), args.tokens, args.experts_per_token, seed=rank)
        routing = Routing(routing.experts.to(device), routing.gates.to(device))
        for name in placements:
            placement = PLACEMENTS[name](args.experts, ranks)
            layer = ExpertParallel(placement, lambda ids: [w[ids] for w in weights], pause_s)
            shown = alpha if alpha < math.inf else "inf"
            runs.append({"alpha": shown, "placement": name, **_steps(layer, x, routing, args.steps)})
    return {
        "ranks": ranks,
        "backend": dist.get_backend(),
        "emulated": args.emulate,
        "conditions": {name: getattr(args, name) for name in _CONDITIONS},
        "steps": args.steps,
        "runs": runs,
    }


def _steps(layer: ExpertParallel, x: torch.Tensor, routing: Routing, steps: int) -> dict:
    taken, walls = [], []
    for _ in range(steps + 2):
        dist.barrier()
        started = layer._now()
        _, times = layer(x, routing)
        dist.barrier()
        walls.append(layer._now() - started)
        taken.append(asdict(times))
    # The first two steps warm up.
    mine = {key: statistics.median(step[key] for step in taken[2:]) for key in taken[0]}
    everyone: list = [None] * layer.ranks
    dist.all_gather_object(everyone, mine)
    return {
        "step_s": statistics.median(walls[2:]),
        "steps_s": walls[2:],
        "max_over_mean": max_over_mean([part["rows"] for part in everyone]),
        "by_rank": everyone,
    }


if __name__ == "__main__":
    main()
