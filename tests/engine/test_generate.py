"""Generation against transformers, and its options against their definitions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine import generate, random_decoder, stream
from helpers.engine.generate import choose
from helpers.errors import InputError


@pytest.fixture(scope="module")
def decoder(tiny_model):
    return random_decoder(tiny_model("qwen3"), seed=3)


def test_greedy_text_equals_transformers_for_32_tokens(smollm2, reference, tokenizer):
    ids = tokenizer.encode("Once upon a time, there was a machine that")
    with torch.no_grad():
        wanted = reference.generate(
            torch.tensor([ids]), max_new_tokens=32, min_new_tokens=32, do_sample=False, use_cache=True
        )[0, len(ids) :]
    got = generate(smollm2, [ids], 32)[0]
    assert got == wanted.tolist()
    assert tokenizer.decode(got) == tokenizer.decode(wanted.tolist()) != ""


def test_the_real_model_answers_a_question(smollm2, tokenizer):
    prompts = [tokenizer.chat("What is the capital of France?"), tokenizer.chat("What is 2 + 2?", system="Be brief.")]
    end = tokenizer.token("<|im_end|>")
    together = generate(smollm2, prompts, 24, stop_tokens=[end])
    assert "Paris" in tokenizer.decode(together[0])
    assert end not in together[0]
    assert together == [generate(smollm2, [prompt], 24, stop_tokens=[end])[0] for prompt in prompts]


def test_greedy_generation_is_repeated_argmax_without_a_cache(decoder):
    prompt = [3, 1, 4]
    tokens = list(prompt)
    for _ in range(10):
        tokens.append(int(decoder(torch.tensor([tokens])).argmax()))
    assert generate(decoder, [prompt], 10)[0] == tokens[3:]


def test_stream_yields_the_steps_of_generate(decoder):
    prompts = [[1, 2, 3], [4]]
    steps = list(stream(decoder, prompts, 6))
    assert [list(row) for row in zip(*steps, strict=True)] == generate(decoder, prompts, 6)


def test_a_row_that_stops_says_nothing_more_while_the_other_goes_on(decoder):
    prompts = [[1, 2, 3], [4]]
    free = generate(decoder, prompts, 8)
    stop = next(token for token in free[0] if token not in free[1])
    stopped = generate(decoder, prompts, 8, stop_tokens=[stop])
    assert stopped[0] == free[0][: free[0].index(stop)]
    assert stopped[1] == free[1]


def test_generation_ends_when_every_row_has_stopped(decoder):
    first = generate(decoder, [[1, 2, 3]], 1)[0][0]
    assert list(stream(decoder, [[1, 2, 3]], 50, stop_tokens=[first])) == []


def test_sampling_repeats_with_its_seed_and_varies_without(decoder):
    one, same, other = (generate(decoder, [[1, 2]], 20, temperature=1.0, seed=seed) for seed in (1, 1, 2))
    assert one == same != other


def test_sampling_follows_the_softmax():
    logits = torch.tensor([[1.0, 2.0, 0.0]]).expand(20000, 3)
    drawn = choose(logits, 0.5, 1.0, torch.Generator().manual_seed(0))
    share = torch.bincount(drawn, minlength=3) / 20000
    torch.testing.assert_close(share, torch.softmax(logits[0] / 0.5, -1), atol=0.015, rtol=0)


@settings(max_examples=50, deadline=None)
@given(
    logits=st.lists(st.floats(-4, 4, width=32), min_size=2, max_size=12),
    top_p=st.floats(0.05, 1.0),
    seed=st.integers(0, 1000),
)
def test_top_p_draws_only_from_the_smallest_sufficient_set(logits, top_p, seed):
    row = torch.tensor([logits])
    token = int(choose(row, 1.0, top_p, torch.Generator().manual_seed(seed)))
    probabilities = torch.softmax(row[0], -1)
    more_likely = probabilities[probabilities > probabilities[token]].sum()
    assert more_likely < top_p + 1e-6


def test_tiny_top_p_is_greedy(decoder):
    assert generate(decoder, [[1, 2]], 12, temperature=1.0, top_p=1e-6) == generate(decoder, [[1, 2]], 12)


@pytest.mark.parametrize(
    ("prompts", "options", "reason"),
    [
        ([], {}, "no prompt"),
        ([[1], []], {}, "prompt 1 is empty"),
        ([[97]], {}, "token id 97"),
        ([[-1]], {}, "token id -1"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens"),
        ([[1]], {"max_new_tokens": 2.5}, "max_new_tokens"),
        ([[1]], {"max_new_tokens": 500}, "max_position_embeddings 128"),
        ([[1]], {"temperature": -1.0}, "temperature"),
        ([[1]], {"temperature": float("nan")}, "temperature"),
        ([[1]], {"top_p": 0.0}, "top_p"),
        ([[1]], {"top_p": 1.5}, "top_p"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(decoder, prompts, options, reason):
    with pytest.raises(InputError, match=reason):
        generate(decoder, prompts, **{"max_new_tokens": 4, **options})
