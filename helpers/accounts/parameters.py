"""The parameters: total and active, by component."""

from dataclasses import dataclass

from helpers.accounts.inventory import COMPONENTS, inventory
from helpers.accounts.model import Model, MoEFFN


@dataclass(frozen=True)
class Parameters:
    """Parameter counts by component; biases belong to the component of their matrix.

    `head` is 0 where it is tied to the embedding. `active_routed_experts` are those of the experts one token runs;
    `per_layer_embedding` is the part of `embedding` that is only ever looked up, tied or not (Gemma 4).
    """

    embedding: int
    attention: int
    state_mixers: int
    dense_ffn: int
    routed_experts: int
    shared_experts: int
    router: int
    norms: int
    head: int
    active_routed_experts: int
    tied_embeddings: bool
    per_layer_embedding: int = 0

    @property
    def total(self) -> int:
        """All stored parameters, a tied matrix once; multi-token-prediction layers are not counted."""
        return sum(getattr(self, component) for component in COMPONENTS)

    @property
    def active(self) -> int:
        """Parameters one token multiplies: total − inactive experts − the input embedding, which is a look-up.

        A tied matrix still counts once, because the head product uses it. 36.63 B for DeepSeek-V3.
        """
        return self.active_with_embedding - (self.per_layer_embedding if self.tied_embeddings else self.embedding)

    @property
    def active_with_embedding(self) -> int:
        """The other convention: total − inactive experts, input embedding counted. 37.55 B for DeepSeek-V3."""
        return self.total - self.routed_experts + self.active_routed_experts


@dataclass(frozen=True)
class ExpertCounts:
    """How many experts a model has over all its layers, and how many of them one token runs."""

    moe_layers: int
    routed: int
    shared: int
    routed_per_token: int
    shared_per_token: int

    @property
    def total(self) -> int:
        """Routed and shared experts over all layers."""
        return self.routed + self.shared

    @property
    def per_token(self) -> int:
        """Experts one token runs, over all layers: 58 · (8 + 1) = 522 for DeepSeek-V3."""
        return self.routed_per_token + self.shared_per_token


def count_parameters(model: Model) -> Parameters:
    """Parameters of `model` by component: Σ rows · columns + bias over its inventory.

    Equal to the modules `transformers` builds on the meta device, for every supported model_type (tested).
    """
    sums = dict.fromkeys(COMPONENTS, 0)
    active_routed = per_layer_embedding = 0
    for weight in inventory(model):
        if weight.module == "model.embed_tokens_per_layer":
            per_layer_embedding = weight.parameters
        sums[weight.component] += weight.parameters
        if weight.component == "routed_experts":
            active_routed += weight.active_parameters
    return Parameters(
        **sums,
        active_routed_experts=active_routed,
        tied_embeddings=model.tied_embeddings,
        per_layer_embedding=per_layer_embedding,
    )


def expert_counts(model: Model) -> ExpertCounts:
    """Experts of `model`: Σ over its MoE layers (a dense model has none). 14,848 routed for DeepSeek-V3."""
    mixtures = [layer.feed_forward for layer in model.layers if isinstance(layer.feed_forward, MoEFFN)]
    shared = sum(moe.shared_experts for moe in mixtures)
    return ExpertCounts(
        moe_layers=len(mixtures),
        routed=sum(moe.experts for moe in mixtures),
        shared=shared,
        routed_per_token=sum(moe.experts_per_token for moe in mixtures),
        shared_per_token=shared,
    )
