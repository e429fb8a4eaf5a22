"""The experts of a checkpoint: how Hugging Face names them, and the `MoE` layer they become."""

from collections.abc import Callable

import torch

from helpers.accounts import Model, MoEFFN
from helpers.engine.moe import MoE, Router
from helpers.errors import InputError

# Router, then gate, up and down of expert {}; as the checkpoints on the hub and save_pretrained name them.
_NAMES = {
    "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts.{}.", ("w1", "w3", "w2")),
    "qwen3_moe": ("mlp.gate", "mlp.experts.{}.", ("gate_proj", "up_proj", "down_proj")),
}


def check_experts(model: Model, ffn: MoEFFN, refuse: str) -> None:
    """Raises InputError, starting with `refuse`, where the experts of `model` are more than a router and SwiGLUs."""
    if model.model_type not in _NAMES:
        raise InputError(f"{refuse}its feed-forward is MoEFFN in model_type {model.model_type!r}")
    extras = ("shared_experts", "expert_bias", "router_bias", "latent_width", "beside", "router_scales")
    if any(getattr(ffn, name) for name in extras) or not ffn.gated:
        raise InputError(f"{refuse}its experts have biases, shared experts or other additions")
    if ffn.normalize_gates is None:
        raise InputError(f"{refuse}its config does not say whether gate weights are normalised (norm_topk_prob)")


def expert_tensors(model: Model, ffn: MoEFFN, prefix: str) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the experts of the layer `prefix`."""
    router, expert, (gate, up, down) = _NAMES[model.model_type]
    shapes = {f"{prefix}.{router}.weight": (ffn.experts, model.hidden_size)}
    for index in range(ffn.experts):
        of_expert = f"{prefix}.{expert.format(index)}"
        shapes |= {f"{of_expert}{name}.weight": (ffn.expert_width, model.hidden_size) for name in (gate, up)}
        shapes[f"{of_expert}{down}.weight"] = (model.hidden_size, ffn.expert_width)
    return shapes


def load_experts(model: Model, ffn: MoEFFN, prefix: str, load: Callable[[str], torch.Tensor]) -> MoE:
    """The MoE layer `prefix` with its weights from ``load(name)``, experts stacked."""
    router, expert, (gate, up, down) = _NAMES[model.model_type]
    router_weight = load(f"{prefix}.{router}.weight")
    like = {"dtype": router_weight.dtype, "device": router_weight.device}
    # Filled in place: a list of all experts beside their stack would hold the layer twice.
    gate_up = torch.empty(ffn.experts, 2 * ffn.expert_width, model.hidden_size, **like)
    downs = torch.empty(ffn.experts, model.hidden_size, ffn.expert_width, **like)
    for index in range(ffn.experts):
        of_expert = f"{prefix}.{expert.format(index)}"
        gate_up[index, : ffn.expert_width] = load(f"{of_expert}{gate}.weight")
        gate_up[index, ffn.expert_width :] = load(f"{of_expert}{up}.weight")
        downs[index] = load(f"{of_expert}{down}.weight")
    return MoE(Router(router_weight, ffn.experts_per_token, normalize=ffn.normalize_gates), gate_up, downs)
