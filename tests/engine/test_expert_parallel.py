"""Expert parallelism computes what one device computes, and its slowest rank sets the step."""

import json
import subprocess
import sys

import pytest
import torch

from helpers.accounts import contiguous
from helpers.engine.expert_parallel import ExpertParallel, check_ranks, run_expert_parallel
from helpers.engine.moe import run_experts
from helpers.engine.moe_skew import draw_routing, random_experts, zipf_popularity
from helpers.errors import InputError

SAME_AS_ONE_DEVICE = """
import torch, torch.distributed as dist
from helpers.accounts import contiguous, strided
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
for place in (contiguous, strided):
    for tokens, router in rounds:
        x = torch.randn(tokens, 16, generator=torch.Generator().manual_seed(rank + 10))
        routing = router(x)
        got, times = ExpertParallel(place(6, ranks), lambda ids: [w[ids] for w in weights])(x, routing)
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


@pytest.mark.slow
def test_two_ranks_compute_what_one_device_computes(tmp_path):
    script = tmp_path / "same.py"
    script.write_text(SAME_AS_ONE_DEVICE)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    worst = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("worst")]
    assert len(worst) == 1 and worst[0] < 1e-5


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
