"""One entry per model_type: its defaults, and how its keys become layers.

Everything here mirrors the configuration and modelling classes of `transformers` 5 (huggingface/transformers,
src/transformers/models/<model_type>); the tests compare both. Keys decide, never names. A family of architectures
is one module; this one merges their tables.
"""

from collections.abc import Mapping

from helpers.accounts.architectures import compressed, dense, gemma, hybrid, latent, moe, variants, wrappers
from helpers.accounts.architectures.reading import LARGEST_DEPTH, Architecture

__all__ = ["ARCHITECTURES", "FLAT", "LARGEST_DEPTH", "WRAPPERS", "Architecture"]

ARCHITECTURES: Mapping[str, Architecture] = {
    **dense.ENTRIES,
    **variants.ENTRIES,
    **gemma.ENTRIES,
    **moe.ENTRIES,
    **latent.ENTRIES,
    **compressed.ENTRIES,
    **hybrid.ENTRIES,
}
"""How to read each supported model_type."""

WRAPPERS: Mapping[str, frozenset[str]] = {**wrappers.WRAPPERS, **hybrid.WRAPPERS}
"""Multimodal model_types whose text_config is read alone, with their keys that concern the rest."""

FLAT: Mapping[str, str] = wrappers.FLAT
"""Of those, the ones whose files may hold the language model's keys at the top, with the model_type they stand for."""
