"""Expert parallelism computes what one device computes, and its slowest rank sets the step."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from helpers.accounts import contiguous
from helpers.engine.expert_parallel import ExpertParallel, _failure, check_ranks, main, run_expert_parallel
from helpers.engine.moe import run_experts
from helpers.engine.moe_skew import draw_routing, random_experts, zipf_popularity
from helpers.errors import InputError

SAME_AS_ONE_DEVICE = """
import torch, torch.distributed as dist
from helpers.accounts import Placement, contiguous, strided
from helpers.engine.expert_parallel import ExpertParallel
from helpers.engine.moe import Router, run_experts
from helpers.engine.moe_skew import random_experts

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, ranks, weights = dist.get_rank(), dist.get_world_size(), random_experts(6, 16, 8)

def random_router(seed):
    return Router(torch.randn(6, 16, generator=torch.Generator().manual_seed(seed)), 2)

# In the last round rank 1 has no tokens of its own, and all of the other's go to the last expert.
last = torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 1.0])
rounds = [(12, random_router(0)), (5, random_router(1)), (0 if rank else 9, Router(torch.zeros(6, 16), 1, bias=last))]
worst = torch.zeros(())
uneven, empty = Placement(((4,), (2, 0, 5, 3, 1))), Placement(((), (0, 1, 2, 3, 4, 5)))
for placement in (contiguous(6, ranks), strided(6, ranks), uneven, empty):
    for tokens, router in rounds:
        x = torch.randn(tokens, 16, generator=torch.Generator().manual_seed(rank + 10))
        routing = router(x)
        got, times = ExpertParallel(placement, lambda ids: [w[ids] for w in weights])(x, routing)
        if tokens:
            worst = torch.maximum(worst, (got - run_experts(x, routing, *weights, "loop")).abs().max())
        rows = torch.tensor([times.rows, routing.experts.numel()])
        dist.all_reduce(rows)
        assert rows[0] == rows[1], rows
dist.all_reduce(worst, dist.ReduceOp.MAX)
if rank == 0:
    print("worst", worst.item(), flush=True)
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.slow
def test_two_ranks_compute_what_one_device_computes(tmp_path):
    script = tmp_path / "same.py"
    script.write_text(SAME_AS_ONE_DEVICE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    worst = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("worst")]
    assert len(worst) == 1 and worst[0] < 1e-6


def test_one_rank_computes_the_layer(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        weights = random_experts(6, 16, 8)
        x, routing = torch.randn(7, 16), draw_routing(zipf_popularity(6, 1.0), 7, 2)
        layer = ExpertParallel(contiguous(6, 1), lambda ids: [w[ids] for w in weights])
        got, times = layer(x, routing)
        torch.testing.assert_close(got, run_experts(x, routing, *weights, "loop"), atol=1e-6, rtol=1e-5)
        assert (times.rows, times.touched) == (14, int((routing.counts(6) > 0).sum()))
        with pytest.raises(InputError, match="on one of 1 ranks"):
            ExpertParallel(contiguous(6, 2), lambda ids: [w[ids] for w in weights])
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
def test_the_emulated_step_is_a_straight_line_of_the_hottest_rank():
    result = run_expert_parallel(
        4, experts=64, experts_per_token=6, hidden=16, width=16, tokens=256, emulate="0.05,0.05", alphas="0,0.5,1,2,inf"
    )
    assert (result["ranks"], result["emulated"]) == (4, "0.05,0.05")
    runs = {(run["alpha"], run["placement"]): run for run in result["runs"]}
    line = [runs[alpha, "contiguous"] for alpha in (0.0, 0.5, 1.0, 2.0, "inf")]
    ratios, steps = torch.tensor([[run["max_over_mean"], run["step_s"]] for run in line], dtype=torch.float64).T
    assert torch.corrcoef(torch.stack((ratios, steps)))[0, 1] > 0.9
    assert steps[-1] > 2 * steps[0]
    assert runs[2.0, "strided"]["max_over_mean"] < 0.6 * runs[2.0, "contiguous"]["max_over_mean"]
    for run in line:
        assert sum(part["rows"] for part in run["by_rank"]) == 4 * 256 * 6


@pytest.mark.slow
def test_token_skew_alone_does_not_slow_an_emulated_memory_bound_step():
    result = run_expert_parallel(
        4, experts=64, experts_per_token=6, hidden=16, width=16, tokens=8, emulate="2,0.002", alphas="0,inf", steps=9
    )
    even, collapsed = (
        next(run for run in result["runs"] if (run["alpha"], run["placement"]) == (alpha, "contiguous"))
        for alpha in (0.0, "inf")
    )
    assert collapsed["max_over_mean"] == 4 > 2 * even["max_over_mean"]
    assert max(part["touched"] for part in collapsed["by_rank"]) == 6 < max(p["touched"] for p in even["by_rank"])
    assert collapsed["step_s"] < even["step_s"]


def test_what_would_hide_the_straggler_is_refused():
    with pytest.raises(InputError, match="hide the straggler"):
        check_ranks(1000, emulated=False)
    check_ranks(1000, emulated=True)
    with pytest.raises(InputError, match="2 ranks or more"):
        run_expert_parallel(1)


def test_a_program_that_no_torchrun_started_says_so(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(SystemExit, match=r"^error: start this program with torchrun"):
        main([])


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("--alphas=x", "--alphas"),
        ("--alphas=0,-1", "--alphas"),
        ("--alphas=nan", "--alphas"),
        ("--emulate=1", "--emulate"),
        ("--emulate=-1,0", "--emulate"),
        ("--emulate=inf,0", "--emulate"),
        ("--steps=0", "--steps"),
        ("--tokens=-1", "--tokens"),
        ("--experts-per-token=17", "more than --experts"),
        ("--placements=contiguous,packed", "'packed' is not known"),
    ],
)
def test_settings_that_make_no_experiment_are_refused_before_ranks_meet(word, named):
    with pytest.raises(SystemExit, match=rf"^error: .*{named}"):
        main([word])


def test_a_failure_is_told_in_one_sentence():
    assert _failure("noise\nerror: 5 experts do not divide\nerror: again\n") == "5 experts do not divide"
    assert _failure("usage: x\nexpert_parallel.py: error: unrecognized arguments: --a\n") == (
        "unrecognized arguments: --a"
    )
    killed = "[rank0]: RuntimeError: Connection closed by peer\n[0]:\n  rank : 1\n  exitcode  : -9 (pid: 7)\n====\n"
    assert _failure(killed) == "a rank ended with exit code -9 (RuntimeError: Connection closed by peer)"
    assert _failure("out of\nports") == "out of ports"


@pytest.mark.slow
def test_two_nodes_work_together_but_share_the_cores_of_one_machine():
    port = free_port()

    def nodes(ranks_each, *words):
        launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", f"--nproc-per-node={ranks_each}"]
        launch += [f"--master-port={port}", "--master-addr=127.0.0.1"]
        program = ["-m", "helpers.engine.expert_parallel", "--hidden=16", "--width=16", "--tokens=8", "--alphas=0"]
        started = [
            subprocess.Popen(
                [*launch, f"--node-rank={node}", *program, "--steps=1", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in range(2)
        ]
        return [process.communicate(timeout=120) for process in started]

    (first, _), (second, _) = nodes(1, "--emulate=0,0")
    result = json.loads(first)
    assert (result["ranks"], second) == (2, "")
    assert all(sum(part["rows"] for part in run["by_rank"]) == 2 * 8 * 2 for run in result["runs"])
    cores = len(os.sched_getaffinity(0))
    if cores <= 8 and not torch.cuda.is_available():
        # Each node alone would have cores enough.
        assert any("hide the straggler" in err for _, err in nodes(cores // 2 + 1))


@pytest.mark.slow
def test_the_programs_own_refusal_reaches_the_caller():
    with pytest.raises(InputError, match="do not divide evenly"):
        run_expert_parallel(2, experts=5, experts_per_token=1, hidden=8, width=8, tokens=4, emulate="0,0")


@pytest.mark.slow
def test_the_program_prints_one_json_object():
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = "-m helpers.engine.expert_parallel --hidden=16 --width=16 --tokens=8 --alphas=0 --steps=1 --emulate=0,0"
    done = subprocess.run([*launch, *words.split()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert [run["placement"] for run in result["runs"]] == ["contiguous", "strided"]
    assert all(sum(part["rows"] for part in run["by_rank"]) == 2 * 8 * 2 for run in result["runs"])
