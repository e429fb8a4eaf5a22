"""What is timed is the same work at every call, on memory that is really there."""

import pytest
import torch

from helpers.accounts import parse_config
from helpers.engine import KVCache, decode_runner, prefill_runner, random_decoder
from helpers.errors import InputError

TINY = parse_config(
    {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 256,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "tiny",
)


def test_a_decode_step_and_a_prefill_do_the_same_work_at_every_call():
    decoder = random_decoder(TINY)
    step = decode_runner(decoder)(16, 2)
    first, second = step(), step()
    assert first.shape == (2, 256)
    assert torch.equal(first, second)
    prefill = prefill_runner(decoder)(16)
    assert torch.equal(prefill(), prefill())
    assert prefill_runner(decoder)(16, 3)().shape == (3, 256)


def test_the_cache_of_a_timed_step_is_written_memory(monkeypatch):
    made = []

    class Watched(KVCache):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr("helpers.engine.runners.KVCache", Watched)
    decode_runner(random_decoder(TINY))(16, 2)
    (cache,) = made
    assert all((tensor != 0).all() for tensor in (*cache.keys, *cache.values))


def test_a_prompt_longer_than_the_models_positions_is_refused():
    with pytest.raises(InputError, match="512"):
        prefill_runner(random_decoder(TINY))(513)
