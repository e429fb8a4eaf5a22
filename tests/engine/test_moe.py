"""The MoE layer: three dispatches that agree, routers against transformers' blocks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine.moe import DISPATCHES, MoE, Router, Routing, grouped_fits, run_experts, run_one_expert
from helpers.errors import InputError


def random_experts(experts: int, hidden: int, width: int, dtype=torch.float32, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    gate_up = torch.randn(experts, 2 * width, hidden, generator=generator) * hidden**-0.5
    down = torch.randn(experts, hidden, width, generator=generator) * width**-0.5
    return gate_up.to(dtype), down.to(dtype)


def by_hand(x, routing, gate_up, down):
    """Token by token, choice by choice."""
    out = torch.zeros_like(x)
    for token, (experts, gates) in enumerate(zip(routing.experts.tolist(), routing.gates.tolist(), strict=True)):
        for expert, gate in zip(experts, gates, strict=True):
            out[token] += gate * run_one_expert(x[token : token + 1], gate_up[expert], down[expert])[0]
    return out


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_every_dispatch_computes_the_sum_over_the_chosen_experts(data):
    experts, tokens = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 12))
    k = data.draw(st.integers(1, experts))
    hidden, width = data.draw(st.sampled_from([(16, 8), (20, 12), (10, 7)]))
    gate_up, down = random_experts(experts, hidden, width)
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    # Skewed: some experts get all, some none.
    scores = torch.randn(tokens, experts, generator=generator) + torch.linspace(0, 4, experts)
    routing = Router(torch.zeros(experts, hidden), k).choose(scores.softmax(-1))
    x = torch.randn(tokens, hidden, generator=generator)
    wanted = by_hand(x, routing, gate_up, down)
    for dispatch in DISPATCHES:
        torch.testing.assert_close(run_experts(x, routing, gate_up, down, dispatch), wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 50.0])
def test_the_grouped_product_equals_the_loop_at_a_real_shape_of_skew(alpha):
    gate_up, down = random_experts(64, 64, 32)
    generator = torch.Generator().manual_seed(0)
    noise = -(-torch.rand(256, 64, generator=generator).clamp(1e-9, 1 - 1e-9).log()).log()
    experts = (noise - alpha * torch.arange(1, 65).log()).topk(8).indices
    routing = Routing(experts, torch.full((256, 8), 1 / 8))
    x = torch.randn(256, 64, generator=generator)
    assert grouped_fits(gate_up, down)
    loop, grouped, padded = (run_experts(x, routing, gate_up, down, d) for d in ("loop", "grouped", "padded"))
    torch.testing.assert_close(grouped, loop, atol=1e-6, rtol=0)
    torch.testing.assert_close(padded, loop, atol=1e-6, rtol=0)


def test_bf16_stays_near_fp32():
    gate_up, down = random_experts(8, 32, 16)
    router = Router(torch.randn(8, 32, generator=torch.Generator().manual_seed(1)), 2)
    x = torch.randn(20, 32, generator=torch.Generator().manual_seed(2))
    routing, exact = router(x), MoE(router, gate_up, down)(x)
    rounded = run_experts(x.bfloat16(), routing, gate_up.bfloat16(), down.bfloat16())
    assert rounded.dtype == torch.bfloat16
    assert (rounded.float() - exact).norm() < 0.02 * exact.norm()


def test_widths_the_grouped_product_refuses_are_run_by_the_loop():
    gate_up, down = random_experts(4, 10, 6)
    assert not grouped_fits(gate_up, down)
    x, router = torch.randn(5, 10), Router(torch.randn(4, 10), 2)
    torch.testing.assert_close(MoE(router, gate_up, down)(x), by_hand(x, router(x), gate_up, down), atol=1e-6, rtol=0)


def transformers_block(module_name: str, class_name: str, config):
    import importlib

    module = importlib.import_module(f"transformers.models.{module_name}.modeling_{module_name}")
    config._experts_implementation = "eager"
    torch.manual_seed(3)
    block = getattr(module, class_name)(config).eval()
    with torch.no_grad():
        for tensor in (*block.parameters(), *block.buffers()):
            tensor.copy_(torch.randn_like(tensor) * 0.4)
    return block


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_it_equals_the_mixtral_block(dispatch):
    from transformers import MixtralConfig

    config = MixtralConfig(hidden_size=32, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2)
    block = transformers_block("mixtral", "MixtralSparseMoeBlock", config)
    router = Router(block.gate.weight, 2)
    compare(block, MoE(router, block.experts.gate_up_proj, block.experts.down_proj, dispatch=dispatch))


@pytest.mark.parametrize("normalize", [True, False])
def test_it_equals_the_qwen3_moe_block(normalize):
    from transformers import Qwen3MoeConfig

    config = Qwen3MoeConfig(
        hidden_size=32, moe_intermediate_size=16, num_experts=8, num_experts_per_tok=3, norm_topk_prob=normalize
    )
    block = transformers_block("qwen3_moe", "Qwen3MoeSparseMoeBlock", config)
    router = Router(block.gate.weight, 3, normalize=normalize)
    compare(block, MoE(router, block.experts.gate_up_proj, block.experts.down_proj))


@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
def test_it_equals_the_deepseek_v3_block_with_bias_groups_and_shared_experts(groups):
    from transformers import DeepseekV3Config

    config = DeepseekV3Config(
        hidden_size=32,
        moe_intermediate_size=16,
        n_routed_experts=16,
        n_shared_experts=2,
        num_experts_per_tok=4,
        n_group=groups[0],
        topk_group=groups[1],
        routed_scaling_factor=2.5,
        norm_topk_prob=True,
        hidden_act="silu",
    )
    block = transformers_block("deepseek_v3", "DeepseekV3MoE", config)
    router = Router(
        block.gate.weight, 4, "sigmoid", True, 2.5, block.gate.e_score_correction_bias, groups[0], groups[1]
    )
    moe = MoE(router, block.experts.gate_up_proj, block.experts.down_proj, shared=block.shared_experts)
    compare(block, moe)


def compare(block, moe):
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        wanted = block(x)
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        got = moe(x)
    assert wanted.std() > 0.1
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_the_bias_chooses_and_never_enters_the_gate_weight():
    scores = torch.tensor([[0.6, 0.5, 0.1]])
    weight = torch.zeros(3, 4)
    plain = Router(weight, 1, "sigmoid", normalize=False).choose(scores)
    pushed = Router(weight, 1, "sigmoid", normalize=False, bias=torch.tensor([0.0, 0.0, 0.7])).choose(scores)
    assert (plain.experts.item(), pushed.experts.item()) == (0, 2)
    assert pushed.gates.item() == pytest.approx(0.1)


def test_a_token_never_chooses_outside_its_groups():
    router = Router(torch.zeros(8, 4), 2, "sigmoid", groups=4, top_groups=1)
    scores = torch.rand(100, 8, generator=torch.Generator().manual_seed(0))
    groups = router.choose(scores).experts // 2
    assert (groups[:, 0] == groups[:, 1]).all()


def test_gates_add_up_where_they_are_normalised():
    scores = torch.rand(50, 8, generator=torch.Generator().manual_seed(0)).softmax(-1)
    assert torch.allclose(Router(torch.zeros(8, 4), 3).choose(scores).gates.sum(-1), torch.ones(50))
    assert (Router(torch.zeros(8, 4), 3, normalize=False).choose(scores).gates.sum(-1) < 1).all()


def test_a_hook_counts_the_assignments_of_each_token():
    gate_up, down = random_experts(6, 16, 8)
    moe, seen = MoE(Router(torch.randn(6, 16), 2), gate_up, down), []
    moe.on_routing = lambda routing: seen.append(routing.counts(6))
    moe(torch.randn(3, 5, 16))
    moe(torch.randn(1, 16))
    assert [int(counts.sum()) for counts in seen] == [30, 2]


def test_the_padded_dispatch_multiplies_the_hottest_load_for_every_expert():
    from torch.utils.flop_counter import FlopCounterMode

    gate_up, down = random_experts(8, 16, 8)
    x = torch.randn(32, 16)
    flops = {}
    for name, expert in (("even", torch.arange(32) % 8), ("skewed", torch.zeros(32, dtype=torch.long))):
        with FlopCounterMode(display=False) as counter:
            run_experts(x, Routing(expert[:, None], torch.ones(32, 1)), gate_up, down, "padded")
        flops[name] = counter.get_total_flops()
    assert flops["skewed"] == 8 * flops["even"]


def test_gradients_reach_router_and_experts_through_the_grouped_product():
    gate_up, down = (w.requires_grad_() for w in random_experts(4, 16, 8))
    weight = torch.randn(4, 16, requires_grad=True)
    loss = MoE(Router(weight, 2), gate_up, down)(torch.randn(10, 16)).square().sum()
    grouped = torch.autograd.grad(loss, (weight, gate_up, down))
    assert all(grad.abs().sum() > 0 for grad in grouped)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Router(torch.zeros(4, 8), 5), "experts_per_token"),
        (lambda: Router(torch.zeros(4, 8), 1, "tanh"), "tanh"),
        (lambda: Router(torch.zeros(4, 8), 1, groups=3), "groups"),
        (lambda: Router(torch.zeros(8, 8), 4, groups=4, top_groups=1), "fewer than 4"),
        (lambda: MoE(Router(torch.zeros(4, 8), 1), *random_experts(5, 8, 4)), "do not fit"),
        (lambda: MoE(Router(torch.zeros(4, 8), 1), *random_experts(4, 8, 4), dispatch="magic"), "magic"),
    ],
)
def test_what_does_not_fit_is_refused(make, named):
    with pytest.raises(InputError, match=named):
        make()
