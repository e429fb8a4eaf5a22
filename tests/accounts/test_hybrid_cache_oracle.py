"""State and KV cache against what `transformers` allocates: few layers, small widths, real heads and state sizes."""

from dataclasses import replace

import pytest

from helpers.accounts import kv_bytes, parse_config, state_bytes

pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")

_SMALL = {
    "hidden_size": 64,
    "intermediate_size": 16,
    "vocab_size": 64,
    "max_position_embeddings": 1024,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
_DELTA = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128}

# Heads, head sizes, state sizes and kernels as in the HF config.json of the models named.
CASES = {
    # hidden 4096 · expand 2 = 8192 channels, here 64 · 128.
    "ai21labs/Jamba-v0.1": {
        "model_type": "jamba",
        "num_hidden_layers": 2,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 1,
        "num_experts_per_tok": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 128,
        "mamba_dt_rank": 256,
    },
    "nvidia/Nemotron-H-56B-Base-8K": {
        "model_type": "nemotron_h",
        "hybrid_override_pattern": "M-*",
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "mamba_num_heads": 256,
        "mamba_head_dim": 64,
        "n_groups": 8,
        "ssm_state_size": 256,
        "conv_kernel": 4,
        "chunk_size": 16,
    },
    "Qwen/Qwen3-Next-80B-A3B-Instruct": {
        **_DELTA,
        "model_type": "qwen3_next",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    "Qwen/Qwen3.5-27B": {
        **_DELTA,
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
    },
    "Qwen/Qwen3.5-35B-A3B": {
        **_DELTA,
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 2,
        "layer_types": ["linear_attention", "full_attention"],
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 2,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 8,
        "shared_expert_intermediate_size": 8,
    },
    # hidden 4096 · expand 2 = 128 heads of 64, here 64 · 128.
    "ibm-ai-platform/Bamba-9B": {
        "model_type": "bamba",
        "num_hidden_layers": 2,
        "attn_layer_indices": [1],
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "mamba_n_heads": 128,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 128,
        "mamba_chunk_size": 16,
    },
    # Attention and Mamba-2 side by side in every layer; sizes of no published model.
    "falcon_h1, every layer both": {
        "model_type": "falcon_h1",
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "mamba_d_ssm": 1536,
        "mamba_n_heads": 24,
        "mamba_d_head": 64,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_chunk_size": 16,
    },
    "LiquidAI/LFM2-1.2B": {
        "model_type": "lfm2",
        "hidden_size": 2048,
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "conv_L_cache": 3,
        "block_multiple_of": 16,
    },
    "MiniMaxAI/MiniMax-Text-01": {
        "model_type": "minimax",
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "linear_attention"],
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
        "block_size": 16,
    },
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": {
        "model_type": "kimi_linear",
        "num_hidden_layers": 2,
        "linear_attn_config": {
            "full_attn_layers": [2],
            "kda_layers": [1],
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_experts": 2,
        "num_experts_per_token": 1,
        "num_shared_experts": 1,
        "moe_intermediate_size": 8,
        "first_k_dense_replace": 1,
    },
}


def _held_bytes(cache, index):
    """Bytes of every tensor that the cache of one layer holds."""
    import torch

    tensors = []
    if index < len(cache.layers):
        layer = cache.layers[index]
        tensors += [getattr(layer, name, None) for name in ("keys", "values")]
        for name in ("conv_states", "recurrent_states"):
            tensors += (getattr(layer, name, None) or {}).values()
    # MiniMax keeps its linear states apart.
    tensors += getattr(cache, "linear_cache", [])[index : index + 1]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


# A delta rule and a Mamba run with the unit tests, the rest with the slow ones.
_QUICK = {"Qwen/Qwen3-Next-80B-A3B-Instruct", "ai21labs/Jamba-v0.1"}
_NAMES = [name if name in _QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize("name", _NAMES)
def test_each_layer_holds_what_transformers_allocates_whatever_the_length(name, build):
    import torch

    config = {**_SMALL, **CASES[name]}
    model = parse_config(config, name)
    reference = build(config, device="cpu", dtype=torch.bfloat16)
    # Shorter than the convolution's window, and longer.
    for tokens in (2, 20):
        with torch.no_grad():
            output = reference(torch.ones(1, tokens, dtype=torch.long), use_cache=True)
            cache = getattr(output, "cache", None) or output.past_key_values
            argument = "cache" if "cache" in output else "past_key_values"
            reference(torch.ones(1, 1, dtype=torch.long), **{argument: cache})
        for index, layer in enumerate(model.layers):
            alone = replace(model, layers=(layer,))
            expected = kv_bytes(alone, tokens + 1, engine="hf") + state_bytes(alone, engine="hf")
            assert _held_bytes(cache, index) == expected, (tokens, index)
    assert state_bytes(model, engine="hf") > 0
