"""The scales of a quantised cache: their number is that of the keys and values."""

import pytest

from helpers.accounts import InputError, kv_bytes, read_config
from helpers.accounts.kv_scales import kv_scale_bytes


@pytest.mark.parametrize(("name", "head_dim"), [("smollm2-135m", 64), ("llama-3.1-8b", 128), ("mistral-7b-v0.1", 128)])
@pytest.mark.parametrize("tokens", [0, 1, 5000])
def test_there_is_one_scale_for_each_head_of_numbers(name, head_dim, tokens):
    model = read_config(name)
    assert kv_scale_bytes(model, tokens) * head_dim == 4 * kv_bytes(model, tokens, "int8")
    assert kv_scale_bytes(model, tokens, "fp16") * 2 == kv_scale_bytes(model, tokens)


def test_latent_attention_and_bad_counts_are_refused():
    with pytest.raises(InputError, match="LatentAttention"):
        kv_scale_bytes(read_config("deepseek-v3"), 10)
    with pytest.raises(InputError, match="tokens"):
        kv_scale_bytes(read_config("smollm2-135m"), -1)
