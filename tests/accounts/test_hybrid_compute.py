"""FLOPs of models with a state against torch's own counter: what it sees of the state is matrix products alone.

A decode step in `transformers` updates the state elementwise (unseen) and reads it, in some kinds, with a product; a
prefill works in chunks, whose products with the state are seen in full, beside products within each chunk that the
recurrent form does not have. Both are counted here kind by kind, so that ours is held from two sides.
"""

import pytest

from helpers.accounts import (
    FullAttention,
    GatedDeltaNet,
    KimiDeltaAttention,
    LightningAttention,
    Mamba,
    Mamba2,
    decode_floor,
    decode_flops,
    device,
    kv_bytes,
    parse_config,
    prefill_flops,
    state_bytes,
    weights_read_bytes,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*past_key_values.*:FutureWarning")

_BASE = {
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}
_MAMBA2 = {
    "mamba_n_heads": 12,
    "mamba_d_head": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_DELTA = {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 6,
    "linear_conv_kernel_dim": 4,
}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}

CONFIGS = {
    "jamba": {
        **_BASE,
        "num_hidden_layers": 4,
        "attn_layer_period": 3,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_dt_rank": 5,
    },
    "nemotron_h": {
        **_BASE,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "moe"],
        "mamba_num_heads": 12,
        "mamba_head_dim": 8,
        "n_groups": 2,
        "ssm_state_size": 16,
        "conv_kernel": 4,
        "chunk_size": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "moe_shared_expert_intermediate_size": 20,
        "moe_latent_size": 10,
    },
    "qwen3_next": {**_BASE, **_DELTA, **_MOE, "shared_expert_intermediate_size": 10, "decoder_sparse_step": 2},
    "qwen3_5_text": {**_BASE, **_DELTA},
    "qwen3_5_moe_text": {**_BASE, **_DELTA, **_MOE, "shared_expert_intermediate_size": 10},
    "bamba": {**_BASE, **_MAMBA2, "num_hidden_layers": 3, "attn_layer_indices": [1]},
    "granitemoehybrid": {
        **_BASE,
        **_MAMBA2,
        "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 10,
    },
    "falcon_h1": {**_BASE, **_MAMBA2, "num_hidden_layers": 2, "mamba_d_ssm": 96},
    "lfm2": {**_BASE, "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"], "block_multiple_of": 16},
    "lfm2_moe": {
        **_BASE,
        **_MOE,
        "num_hidden_layers": 2,
        "layer_types": ["conv", "full_attention"],
        "num_dense_layers": 1,
    },
    "minimax": {
        **_BASE,
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "linear_attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "block_size": 8,
    },
    "kimi_linear": {
        **_BASE,
        "head_dim": 4,
        "num_key_value_heads": 6,
        "num_hidden_layers": 2,
        "linear_attn_config": {
            "full_attn_layers": [2],
            "kda_layers": [1],
            "num_heads": 3,
            "head_dim": 8,
            "short_conv_kernel_size": 4,
        },
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4,
        "v_head_dim": 5,
        "num_experts": 4,
        "num_experts_per_token": 2,
        "num_shared_experts": 1,
        "moe_intermediate_size": 12,
        "first_k_dense_replace": 1,
    },
}
CONFIGS = {name: {**config, "model_type": name} for name, config in CONFIGS.items()}

# Of a state element's FLOPs in one decode step, those that transformers spends in products: reading, where it is one.
READ_AS_PRODUCT = {Mamba: 2, Mamba2: 2, LightningAttention: 4, GatedDeltaNet: 0, KimiDeltaAttention: 0}


def _counted(model, tokens, **kwargs):
    """FLOPs torch counts in one forward pass, apart from rotary tables; and those of convolutions among them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        output = model(input_ids=torch.ones(1, tokens, dtype=torch.long), **kwargs)
    counts = counter.get_flop_counts()
    rotary = sum(sum(ops.values()) for name, ops in counts.items() if name.endswith("rotary_emb"))
    convolutions = sum(flops for op, flops in counts["Global"].items() if "convolution" in str(op))
    return counter.get_total_flops() - rotary, convolutions, output


def _states(model):
    return [layer.state for layer in model.layers if layer.state is not None]


def _taps(model):
    """FLOPs of one output of every convolution: 2 · channels · kernel."""
    return sum(2 * one.conv_channels * one.conv_kernel for one in _states(model) if one.conv_channels)


def _chunked(mixer, tokens, chunk):
    """FLOPs of the products of transformers' chunked prefill of `tokens` (whole chunks): with the state, and within."""
    elements = mixer.recurrent_elements
    if isinstance(mixer, Mamba):  # A scan token by token: the reading alone is a product.
        return 2 * elements * tokens
    if isinstance(mixer, Mamba2):  # One chunk: CB and its product with x; the state carried from chunk to chunk.
        within = 2 * tokens * chunk * mixer.heads * (mixer.state_size + mixer.head_dim)
        return mixer.flops_per_token * tokens + within + 2 * 2**2 * elements
    if isinstance(mixer, GatedDeltaNet):  # KKᵀ, QKᵀ and the product with the corrected values.
        within = 2 * tokens * chunk * mixer.value_heads * (2 * mixer.key_head_dim + mixer.value_head_dim)
    elif isinstance(mixer, KimiDeltaAttention):  # The solved system with keys and values, and with the values.
        within = 2 * tokens * chunk * 3 * mixer.width
    elif isinstance(mixer, LightningAttention):  # QKᵀ and PV.
        within = 2 * tokens * chunk * 2 * mixer.width
    else:
        return 0
    return mixer.flops_per_token * tokens + within


@pytest.mark.parametrize("name", CONFIGS)
def test_a_prefill_in_chunks_has_the_flops_torch_counts(name, build):
    model = parse_config(CONFIGS[name], name)
    # The delta rule's chunk is 64 tokens in transformers, that of the others a key.
    chunk = 64 if isinstance(_states(model)[0], GatedDeltaNet | KimiDeltaAttention) else 8
    counted, convolutions, _ = _counted(build(CONFIGS[name], device="cpu"), chunk, use_cache=False, logits_to_keep=1)
    ours = prefill_flops(model, chunk, causal=False)
    assert ours.state == chunk * sum(mixer.flops_per_token for mixer in _states(model))
    # transformers convolves the kernel − 1 padded positions after the last token as well, and drops them.
    padded = sum(2 * m.conv_channels * m.conv_kernel * (m.conv_kernel - 1) for m in _states(model) if m.conv_channels)
    assert convolutions == chunk * _taps(model) + padded
    products = sum(_chunked(mixer, chunk, chunk) for mixer in _states(model))
    assert counted - padded - products == ours.total - ours.state


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decode_step_has_the_flops_torch_counts(name, build):
    model = parse_config(CONFIGS[name], name)
    reference = build(CONFIGS[name], device="cpu")
    _, _, output = _counted(reference, 8, use_cache=True)
    cache = getattr(output, "cache", None) or output.past_key_values
    argument = "cache" if "cache" in output else "past_key_values"
    counted, convolutions, _ = _counted(reference, 1, **{argument: cache})
    latent = "expanded" if name == "kimi_linear" else "absorbed"
    ours = decode_flops(model, 9, latent)
    # The window holds the newest input too, so that transformers computes two outputs and drops one.
    assert convolutions == 2 * _taps(model)
    seen = sum(READ_AS_PRODUCT.get(type(m), 0) * m.recurrent_elements for m in _states(model))
    # transformers caches MLA's latent and expands all of it again in every step.
    again = prefill_flops(model, 1, past_tokens=8).attention - ours.attention if latent == "expanded" else 0
    assert counted - _taps(model) - again - seen == ours.total - ours.state


@pytest.mark.parametrize("name", CONFIGS)
def test_the_state_costs_the_same_for_every_token_and_attention_alone_grows(name):
    model = parse_config(CONFIGS[name], name)
    assert decode_flops(model, 1).state == decode_flops(model, 100_000).state
    one, many = prefill_flops(model, 1), prefill_flops(model, 1000, past_tokens=5)
    assert (many.state, many.layers) == (1000 * one.state, 1000 * one.layers)
    attends = any(isinstance(layer.attention, FullAttention) for layer in model.layers) or name == "kimi_linear"
    assert (decode_flops(model, 100_000).attention > decode_flops(model, 1).attention) == attends


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1", "lfm2"])
def test_a_decode_step_reads_and_writes_the_state_of_every_sequence(name):
    model, h100 = parse_config({**CONFIGS[name], "dtype": "bfloat16"}, name), device("h100-sxm")
    floor = decode_floor(model, 10, 3, h100)
    assert floor.bytes == weights_read_bytes(model, 3) + 3 * (kv_bytes(model, 10) + 2 * state_bytes(model))
    assert state_bytes(model) > 0
