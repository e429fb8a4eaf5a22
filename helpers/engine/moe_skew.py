"""Routing of a chosen skew, and what the course times on it: one expert, and a whole layer under each dispatch."""

import math
from collections.abc import Callable, Sequence

import torch

from helpers.engine.dtypes import torch_dtype
from helpers.engine.moe import Routing, check_dispatch, run_experts, run_one_expert
from helpers.errors import InputError


def zipf_popularity(experts: int, alpha: float) -> torch.Tensor:
    """Popularity of each expert ∝ rank^(−alpha), [E]: 0 is even; with inf the first experts get everything."""
    if not alpha >= 0:
        raise InputError(f"alpha must be zero or more, not {alpha}")
    ranks = torch.arange(1, experts + 1, dtype=torch.float64)
    # Infinity times log 1 would be no number. 1e6 already leaves no chance to any but the first.
    return (-min(alpha, 1e6) * ranks.log()).exp() if alpha < math.inf else (ranks == 1).double()


def lognormal_popularity(experts: int, sigma: float, seed: int = 0) -> torch.Tensor:
    """Popularity of each expert exp(sigma · normal), [E]: the form that fitted counts of DeepSeek-V3 best.

    Source: deepseek-ai/DeepEP issue 393 (MMLU-Pro).
    """
    if not sigma >= 0:
        raise InputError(f"sigma must be zero or more, not {sigma}")
    return (sigma * torch.randn(experts, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).exp()


def draw_routing(
    popularity: Sequence[float] | torch.Tensor, tokens: int, experts_per_token: int, seed: int = 0
) -> Routing:
    """`tokens` tokens that each choose k different experts at random by `popularity` [E], with equal gate weights.

    By Gumbel noise: the top k of log popularity + noise is a draw without replacement. An expert of popularity 0 is
    chosen only where fewer than k others are left, in the order of the experts. As an expert takes a token at most
    once, max/mean ends at E/k however skewed the popularity.

    Raises InputError where the popularities are not k or more numbers, none negative, one above zero.
    """
    popularity = torch.as_tensor(popularity, dtype=torch.float64)
    good = popularity.dim() == 1 and bool((popularity >= 0).all()) and 0 < float(popularity.sum()) < math.inf
    if not good or not 1 <= experts_per_token <= popularity.numel():
        raise InputError(
            f"{experts_per_token} experts cannot be drawn by the popularity {str(popularity.tolist())[:60]}"
        )
    uniform = torch.rand(
        tokens, popularity.numel(), generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).clamp_(1e-300, 1 - 1e-16)
    gumbel = -(-uniform.log()).log()
    # Without popularity: below every finite score, earlier experts first, without noise.
    last = -1e9 - torch.arange(popularity.numel(), dtype=torch.float64)
    scores = torch.where(popularity > 0, popularity.log() + gumbel, last)
    experts = scores.topk(experts_per_token, dim=-1).indices
    return Routing(experts, torch.full(experts.shape, 1 / experts_per_token))


def random_experts(
    experts: int,
    hidden: int,
    width: int,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """gate_up [E, 2F, H] and down [E, H, F] with normal weights that keep the size of what goes through."""
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        out = torch.empty(shape, dtype=torch_dtype(dtype), device=device)
        return out.normal_(0, shape[-1] ** -0.5, generator=generator)

    return normal(experts, 2 * width, hidden), normal(experts, hidden, width)


def expert_runner(gate_up: torch.Tensor, down: torch.Tensor, tokens: int) -> Callable[[], object]:
    """A call that runs ONE expert over `tokens` tokens: t(M). Each call takes the next expert of the layer in turn.

    So that its weights come from memory, as in a layer, and not from the cache of the call before: the layer must be
    several times larger than the cache.
    """
    x = torch.randn(tokens, gate_up.shape[-1], device=gate_up.device).to(gate_up.dtype)
    at = 0

    @torch.inference_mode()
    def call() -> torch.Tensor:
        nonlocal at
        at = (at + 1) % gate_up.shape[0]
        return run_one_expert(x, gate_up[at], down[at])

    return call


def layer_runner(
    gate_up: torch.Tensor, down: torch.Tensor, routing: Routing, dispatch: str = "grouped"
) -> Callable[[], object]:
    """A call that runs the experts of a whole layer on `routing`, random tokens; the router itself is not in it."""
    check_dispatch(dispatch)
    device, tokens = gate_up.device, routing.experts.shape[0]
    x = torch.randn(tokens, gate_up.shape[-1], device=device).to(gate_up.dtype)
    routing = Routing(routing.experts.to(device), routing.gates.to(device))

    @torch.inference_mode()
    def call() -> torch.Tensor:
        return run_experts(x, routing, gate_up, down, dispatch)

    return call


def distinct_in_batches(
    experts: torch.Tensor, batch: int, draws: int = 200, seed: int = 0, sequence_of: torch.Tensor | None = None
) -> list[float]:
    """Mean number of distinct experts that `batch` real tokens touch in one step, for each layer: D(B) measured.

    `experts` [layers, tokens, k] are recorded top-k ids; each of `draws` steps takes `batch` different tokens at
    random. With `sequence_of` [tokens], the sequence of each token, a step takes one token of each of `batch`
    different sequences, as a decode step does.

    Raises InputError where there are fewer tokens, or sequences, than the batch.
    """
    if experts.dim() != 3:
        raise InputError(f"experts must be top-k ids [layers, tokens, k], not of shape {list(experts.shape)}")
    generator, largest = torch.Generator().manual_seed(seed), int(experts.max())
    groups = None
    if sequence_of is not None:
        groups = [torch.where(sequence_of == sequence)[0] for sequence in sequence_of.unique()]
    available = experts.shape[1] if groups is None else len(groups)
    if not 1 <= batch <= available:
        raise InputError(
            f"a batch of {batch} cannot be drawn from {available} {'tokens' if groups is None else 'sequences'}"
        )
    distinct = torch.zeros(experts.shape[0])
    touched = torch.zeros(experts.shape[0], largest + 1)
    for _ in range(draws):
        chosen = torch.randperm(available, generator=generator)[:batch]
        if groups is not None:
            members = [groups[index] for index in chosen.tolist()]
            chosen = torch.stack([m[torch.randint(len(m), (), generator=generator)] for m in members])
        touched.zero_().scatter_(1, experts[:, chosen].flatten(1).long(), 1)
        distinct += touched.sum(1)
    return (distinct / draws).tolist()
