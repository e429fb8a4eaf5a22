"""The decoder with experts as its feed-forward, against transformers and against itself."""

import pytest
import torch

from helpers.accounts import count_parameters, parse_config, prefill_flops, read_config
from helpers.engine import KVCache, load_folder, random_decoder
from helpers.engine.decoder import check_supported
from helpers.errors import InputError

BASE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
QWEN = {"model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 16}
MOE = {
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {**QWEN, "head_dim": 8, "norm_topk_prob": True},
    "qwen3_moe, gates as they are": {**QWEN, "head_dim": 8, "norm_topk_prob": False},
    "qwen3_moe, every second layer dense": {**QWEN, "decoder_sparse_step": 2, "norm_topk_prob": True, "head_dim": 12},
}


def tiny_moe(kind: str):
    return parse_config({**BASE, **MOE[kind]}, kind)


@pytest.mark.parametrize("kind", MOE)
def test_logits_equal_transformers_on_random_weights(kind, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**BASE, **MOE[kind])
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, experts_implementation="eager")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3 + (1 if parameter.dim() == 1 else 0))
    module.eval().save_pretrained(tmp_path)
    tokens = torch.randint(0, 97, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = module(tokens).logits
    decoder = load_folder(tmp_path)
    assert sum(block.moe is not None for block in decoder.layers) == (1 if "dense" in kind else 3)
    assert (decoder(tokens, logits="all") - wanted).abs().max() < 1e-3 * wanted.abs().max()


@pytest.mark.parametrize("kind", MOE)
def test_cached_decoding_equals_recomputation(kind):
    decoder = random_decoder(tiny_moe(kind))
    tokens = torch.randint(0, 97, (3, 16), generator=torch.Generator().manual_seed(2))
    whole, cache = decoder(tokens, logits="all"), KVCache(decoder.model, 3, 16)
    pieces = [decoder(tokens[:, :9], cache, "all")]
    pieces += [decoder(tokens[:, at : at + 1], cache, "all") for at in range(9, 16)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", MOE)
def test_weights_and_products_are_those_of_the_accounts(kind):
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny_moe(kind)
    assert random_decoder(model, "bf16").weight_nbytes == 2 * count_parameters(model).total
    decoder = random_decoder(model, attention="naive")
    for block in decoder.layers:
        if block.moe is not None:
            block.moe.dispatch = "loop"  # torch counts the FLOPs of plain products alone.
    with FlopCounterMode(display=False) as counter:
        decoder(torch.arange(20)[None])
    square = sum(4 * layer.attention.heads * layer.attention.head_dim * 20 * 20 for layer in model.layers)
    assert counter.get_total_flops() == prefill_flops(model, 20).weights + square


def test_the_layers_tell_how_they_route():
    decoder = random_decoder(tiny_moe("qwen3_moe"))
    counts = torch.zeros(3, 8, dtype=torch.long)
    for index, block in enumerate(decoder.layers):
        block.moe.on_routing = lambda routing, index=index: counts[index].add_(routing.counts(8))
    decoder(torch.arange(40)[None])
    assert counts.sum(1).tolist() == [120, 120, 120]


def test_real_moe_shapes_are_known_and_others_refused_by_name():
    for name in ("mixtral-8x7b", "qwen3-30b-a3b"):
        check_supported(read_config(name))
    for name, reason in (("deepseek-v2-lite", "deepseek_v2"), ("gpt-oss-20b", "gpt_oss")):
        with pytest.raises(InputError, match=reason):
            check_supported(read_config(name))
    with pytest.raises(InputError, match="norm_topk_prob"):
        check_supported(parse_config({**BASE, **MOE["qwen3_moe"], "norm_topk_prob": None}, "odd"))
