"""The real model, fetched at most once per machine, and its reference implementation."""

import pytest
import torch

from helpers.accounts import parse_config
from helpers.engine import Tokenizer, load_folder


@pytest.fixture(scope="session")
def smollm2(smollm2_path):
    """SmolLM2, fp32, on the CPU, in fixed layouts: what is computed does not hang on a measurement."""
    return load_folder(smollm2_path, layout="input-split")


@pytest.fixture(scope="session")
def tokenizer(smollm2_path):
    return Tokenizer(smollm2_path)


@pytest.fixture(scope="session")
def reference(smollm2_path):
    """transformers' implementation with the same weights."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32).eval()


TINY = {
    "llama-untied": {
        "model_type": "llama",
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    "llama3-rope": {
        "model_type": "llama",
        "num_key_value_heads": 4,
        "head_dim": 8,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "llama-biases": {"model_type": "llama", "num_key_value_heads": 1, "attention_bias": True},
    "qwen2": {"model_type": "qwen2", "num_key_value_heads": 2, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 24},
    "mistral": {"model_type": "mistral", "num_key_value_heads": 2, "head_dim": 10, "sliding_window": None},
}
"""Small configs that between them use every option the decoder has."""


def tiny_config(kind: str) -> dict:
    """A whole config.json of `TINY`."""
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": 97,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        **TINY[kind],
    }


@pytest.fixture(scope="session")
def tiny_model():
    """From a name of `TINY` to its `Model`."""
    return lambda kind: parse_config(tiny_config(kind), kind)


@pytest.fixture(params=TINY)
def tiny_folder(request, tmp_path):
    """A checkpoint that transformers wrote for each tiny config, every weight random, and the module it holds."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(AutoConfig.for_model(**tiny_config(request.param)), dtype=torch.float32)
    with torch.no_grad():
        for parameter in module.parameters():
            # Norms and biases too, which initialise to one and zero and would hide a fault.
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1 if parameter.dim() == 1 else 0))
    module.eval().save_pretrained(tmp_path)
    return tmp_path, module
