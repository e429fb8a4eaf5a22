"""A mixture-of-experts layer: a router picks k of E experts for each token, and three ways to run what it picked.

Shapes: T tokens, H hidden, E experts, k experts per token, F width of one expert. Expert weights are stacked as
`transformers` stacks them: gate_up [E, 2F, H], down [E, H, F]. Tokens in a batch go different ways, so a product over
all of them does not exist; the three ways to dispatch compute the same sum:

``loop``     one expert after another, over its own tokens: the reference, easy to read
``grouped``  tokens sorted by expert, then one grouped product (`F.grouped_mm`) over all: no padding, no loop
``padded``   every expert gets a buffer of equal capacity, then one batched product: what skew is dear for
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from helpers.errors import InputError

DISPATCHES = ("grouped", "loop", "padded")
"""The ways to run the experts."""


@dataclass(frozen=True)
class Routing:
    """Which experts each token goes to, [T, k] ids, and with which gate weight, [T, k]."""

    experts: torch.Tensor
    gates: torch.Tensor

    def counts(self, experts: int) -> torch.Tensor:
        """Assignments of each of `experts` experts, [E]."""
        return torch.bincount(self.experts.flatten(), minlength=experts)


@dataclass(frozen=True)
class Router:
    """The gate: scores of all experts, the best k, their weights.

    `weight` [E, H]. `score` is ``softmax`` over all experts (Mixtral, Qwen3-MoE) or ``sigmoid`` of each (DeepSeek-V3).
    `normalize` makes a token's k weights add up to 1; `scale` multiplies them. `bias` [E] is added to the scores for
    the choice ALONE, never to the weight: loss-free balancing (arXiv:2408.15664). With `groups`, only the experts of
    the `top_groups` groups whose two best scores add up highest can be chosen (DeepSeek-V3, node-limited routing).
    """

    weight: torch.Tensor
    experts_per_token: int
    score: str = "softmax"
    normalize: bool = True
    scale: float = 1.0
    bias: torch.Tensor | None = None
    groups: int = 1
    top_groups: int = 1

    def __post_init__(self) -> None:
        experts = self.weight.shape[0]
        if self.score not in ("softmax", "sigmoid"):
            raise InputError(f"score {self.score!r} is not known: choose 'softmax' or 'sigmoid'")
        if not 1 <= self.experts_per_token <= experts:
            raise InputError(
                f"experts_per_token ({self.experts_per_token}) must lie between 1 and the {experts} experts"
            )
        if experts % self.groups or not 1 <= self.top_groups <= self.groups:
            raise InputError(f"{self.top_groups} of {self.groups} groups cannot be chosen from {experts} experts")
        if self.top_groups * (experts // self.groups) < self.experts_per_token:
            raise InputError(f"{self.top_groups} groups hold fewer than {self.experts_per_token} experts")

    @property
    def experts(self) -> int:
        """How many experts it chooses from."""
        return self.weight.shape[0]

    def scores(self, x: torch.Tensor) -> torch.Tensor:
        """Score of every expert for tokens [T, H], [T, E], in fp32."""
        # Mixtral and Qwen multiply in the weights' dtype, DeepSeek-V3 in fp32: a near tie is decided by it.
        if self.score == "sigmoid":
            return F.linear(x.float(), self.weight.float()).sigmoid()
        return F.linear(x, self.weight).softmax(-1, dtype=torch.float32)

    def choose(self, scores: torch.Tensor) -> Routing:
        """The k best experts of each token by scores [T, E], and their gate weights."""
        ranked = scores if self.bias is None else scores + self.bias
        if self.groups > 1:
            grouped = ranked.unflatten(-1, (self.groups, -1))
            best = grouped.topk(min(2, grouped.shape[-1]), dim=-1).values.sum(-1).topk(self.top_groups, dim=-1).indices
            kept = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter_(-1, best, True)
            ranked = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
        experts = ranked.topk(self.experts_per_token, dim=-1).indices
        gates = scores.gather(-1, experts)
        if self.normalize:
            gates = gates / (gates.sum(-1, keepdim=True) + 1e-20)
        return Routing(experts, gates * self.scale)

    def __call__(self, x: torch.Tensor) -> Routing:
        """Route tokens [T, H]."""
        return self.choose(self.scores(x))


class MoE:
    """y = Σ over a token's k experts of gate · expert(x), plus `shared`(x) where there is one; expert is SwiGLU.

    Called with x [..., H], returns [..., H]. `dispatch` is one of `DISPATCHES`; ``grouped`` falls back to ``loop``
    where `F.grouped_mm` does not take the widths (see `grouped_fits`). `shared` computes the shared experts.
    `on_routing`, where set, is called with each `Routing`: that is how a service counts its experts.

    Raises InputError for weights that do not fit one another or an unknown dispatch.
    """

    def __init__(
        self,
        router: Router,
        gate_up: torch.Tensor,
        down: torch.Tensor,
        shared: Callable[[torch.Tensor], torch.Tensor] | None = None,
        dispatch: str = "grouped",
    ) -> None:
        experts, width, hidden = gate_up.shape
        if width % 2 or down.shape != (experts, hidden, width // 2) or router.weight.shape != (experts, hidden):
            raise InputError(
                f"router {list(router.weight.shape)}, gate_up {list(gate_up.shape)} and down {list(down.shape)} do not "
                "fit: they are [E, H], [E, 2F, H] and [E, H, F]"
            )
        check_dispatch(dispatch)
        self.router, self.gate_up, self.down, self.shared, self.dispatch = router, gate_up, down, shared, dispatch
        self.on_routing: Callable[[Routing], None] | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.reshape(-1, x.shape[-1])
        routing = self.router(tokens)
        if self.on_routing is not None:
            self.on_routing(routing)
        y = run_experts(tokens, routing, self.gate_up, self.down, self.dispatch)
        if self.shared is not None:
            y = y + self.shared(tokens)
        return y.view(x.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of router and routed experts; those of `shared` belong to it."""
        bias = 0 if self.router.bias is None else self.router.bias.nbytes
        return self.router.weight.nbytes + bias + self.gate_up.nbytes + self.down.nbytes


def check_dispatch(dispatch: str) -> None:
    """Raises InputError for a dispatch that is not one of `DISPATCHES`."""
    if dispatch not in DISPATCHES:
        raise InputError(f"dispatch {dispatch!r} is not known: choose one of {', '.join(DISPATCHES)}")


def grouped_fits(gate_up: torch.Tensor, down: torch.Tensor) -> bool:
    """Whether `F.grouped_mm` takes these experts: it wants rows of 16 bytes' multiples, and a torch that has it."""
    return hasattr(F, "grouped_mm") and all(w.shape[-1] * w.element_size() % 16 == 0 for w in (gate_up, down))


def run_experts(
    x: torch.Tensor, routing: Routing, gate_up: torch.Tensor, down: torch.Tensor, dispatch: str = "grouped"
) -> torch.Tensor:
    """Σ over each token's experts of gate · expert(x): x [T, H] gives [T, H]. Raises InputError as `MoE` does."""
    check_dispatch(dispatch)
    if dispatch == "grouped" and not grouped_fits(gate_up, down):
        dispatch = "loop"
    return {"grouped": _run_grouped, "loop": _run_loop, "padded": _run_padded}[dispatch](x, routing, gate_up, down)


def run_one_expert(x: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """One expert, SwiGLU, over its tokens: x [M, H] with gate_up [2F, H] and down [H, F] gives [M, H]."""
    gate, up = F.linear(x, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)


def _run_loop(x: torch.Tensor, routing: Routing, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    # Each token's k results lie side by side and are added in the order of its choice, whatever expert ran first.
    results = x.new_zeros(*routing.experts.shape, x.shape[-1])
    for expert in routing.experts.unique().tolist():
        tokens, choice = torch.where(routing.experts == expert)
        results[tokens, choice] = run_one_expert(x[tokens], gate_up[expert], down[expert])
    return _combine(results, routing)


def _run_grouped(x: torch.Tensor, routing: Routing, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    tokens, k = routing.experts.shape
    sorted_experts, order = routing.experts.flatten().sort(stable=True)
    # Where the tokens of each expert end. On the device, without asking the CPU: a CUDA graph can record it.
    ids = torch.arange(gate_up.shape[0], device=x.device)
    ends = torch.searchsorted(sorted_experts, ids, right=True, out_int32=True)
    gate, up = F.grouped_mm(x[order // k], gate_up.transpose(1, 2), offs=ends).chunk(2, -1)
    out = F.grouped_mm(F.silu(gate) * up, down.transpose(1, 2), offs=ends)
    return _combine(out[order.argsort()].view(tokens, k, -1), routing)


def _run_padded(x: torch.Tensor, routing: Routing, gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """Capacity is the load of the hottest expert, so that no token is dropped: E · capacity rows for T · k of use."""
    (tokens, k), experts = routing.experts.shape, gate_up.shape[0]
    counts = routing.counts(experts)
    sorted_experts, order = routing.experts.flatten().sort(stable=True)
    starts = counts.cumsum(0) - counts
    place = torch.arange(tokens * k, device=x.device) - starts[sorted_experts]
    buffer = x.new_zeros(experts, int(counts.max()), x.shape[-1])
    buffer[sorted_experts, place] = x[order // k]
    gate, up = torch.bmm(buffer, gate_up.transpose(1, 2)).chunk(2, -1)
    out = torch.bmm(F.silu(gate) * up, down.transpose(1, 2))[sorted_experts, place]
    return _combine(out[order.argsort()].view(tokens, k, -1), routing)


def _combine(results: torch.Tensor, routing: Routing) -> torch.Tensor:
    """Σ gate · result of the k choices: [T, k, H] gives [T, H]."""
    return (results * routing.gates[..., None].to(results.dtype)).sum(1)
