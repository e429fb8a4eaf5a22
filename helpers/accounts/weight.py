"""One weight of a model, and the components that weights are sorted into."""

from dataclasses import dataclass

COMPONENTS = (
    "embedding",
    "attention",
    "state_mixers",
    "dense_ffn",
    "routed_experts",
    "shared_experts",
    "router",
    "norms",
    "head",
)


@dataclass(frozen=True)
class Weight:
    """One weight of the checkpoint, or `copies` alike (the experts of a layer), of which a token uses `active_copies`.

    A matrix has `rows` outputs and `columns` inputs; a plain vector has one row and `is_matrix` False. `bias` is the
    number of bias elements beside the matrix. `module` is its name in a Hugging Face checkpoint. `is_convolution`: one
    filter of `columns` taps for each of `rows` channels, multiplied like a matrix but no linear layer.
    """

    component: str
    module: str
    rows: int
    columns: int
    bias: int = 0
    copies: int = 1
    active_copies: int = 1
    is_matrix: bool = True
    is_convolution: bool = False

    @property
    def elements_per_copy(self) -> int:
        """Parameters of one copy, bias included."""
        return self.rows * self.columns + self.bias

    @property
    def parameters(self) -> int:
        """Parameters of all copies."""
        return self.copies * self.elements_per_copy

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses."""
        return self.active_copies * self.elements_per_copy

    @property
    def flops_per_token(self) -> int:
        """2 · rows · columns · active copies: one multiply and one add per element of a matrix product."""
        return 2 * self.rows * self.columns * self.active_copies if self.is_matrix else 0
