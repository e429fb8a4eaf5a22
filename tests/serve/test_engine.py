"""Batched answers equal those of `helpers.engine.generate`, one prompt at a time without a batch."""

import pytest
import torch

from helpers.accounts import parse_config
from helpers.engine import generate, random_decoder
from helpers.serve import Engine, Options, Overloaded, Stopped

PROMPTS = [[1, 2, 3], [7] * 40, [5, 6] * 9, [900], list(range(100, 133)), [5, 6] * 9 + [4], [7] * 33]

WAYS = {
    "plain": {},
    "one at a time": {"max_batch": 1},
    "whole prompts": {"prefill_chunk": 0},
    "small chunks": {"prefill_chunk": 5},
    "few blocks": {"kv_blocks": 20, "block_tokens": 4},
    "few blocks, small chunks, drafts": {"kv_blocks": 20, "block_tokens": 4, "prefill_chunk": 7, "speculate": 4},
    "drafts": {"speculate": 3},
    "no sharing": {"prefix_caching": False},
    "blocks of one token": {"block_tokens": 1, "kv_blocks": 300},
}


@pytest.fixture(scope="module")
def alone(tiny):
    return [generate(tiny, [prompt], 16)[0] for prompt in PROMPTS]


@pytest.mark.parametrize("way", WAYS)
def test_ragged_concurrent_answers_equal_those_alone(tiny, bytes_tokenizer, collected, until_idle, alone, way):
    engine = Engine(tiny, bytes_tokenizer, Options(**WAYS[way]))
    requests = [collected(prompt, max_tokens=16, temperature=0.0) for prompt in PROMPTS]
    for request in requests:
        engine.submit(request)
        engine.step()  # They arrive while others run.
    until_idle(engine)
    assert [request.answer for request in requests] == alone
    assert [request.said for request in requests] == [bytes_tokenizer.decode(answer) for answer in alone]
    assert engine.cache.free_blocks == engine.cache.blocks
    assert (engine.scheduler.preemptions > 0) == way.startswith("few blocks")
    drafted = sum(request.drafted_tokens for request in requests)
    assert (drafted > 0) == ("drafts" in way)


def test_repetition_is_drafted_right_and_saves_steps(tiny, bytes_tokenizer, collected, until_idle):
    # A greedy random model soon repeats itself, which is what look-up finds.
    prompt, steps, count = [3, 4, 5], {}, 100
    for speculate in (0, 4):
        engine = Engine(tiny, bytes_tokenizer, Options(speculate=speculate))
        request = collected(prompt, max_tokens=count)
        engine.submit(request)
        steps[speculate] = len(until_idle(engine))
        assert request.answer == generate(tiny, [prompt], count)[0]
    assert 0 < request.accepted_tokens <= request.drafted_tokens
    assert steps[4] == steps[0] - request.accepted_tokens


def test_a_seed_means_the_same_answer_alone_and_in_a_batch(tiny, bytes_tokenizer, collected, until_idle):
    sampling = {"max_tokens": 20, "temperature": 1.0, "top_p": 0.9, "seed": 7}
    answers = []
    for others in (0, 3):
        engine = Engine(tiny, bytes_tokenizer)
        request = collected([1, 2], **sampling)
        for other in [collected([9] * (n + 1), max_tokens=5, temperature=1.0, seed=n) for n in range(others)]:
            engine.submit(other)
        engine.submit(request)
        until_idle(engine)
        answers.append(request.answer)
    assert answers[0] == answers[1] == generate(tiny, [[1, 2]], 20, temperature=1.0, top_p=0.9, seed=7)[0]


def test_without_a_seed_answers_vary(tiny, bytes_tokenizer, collected, until_idle):
    engine = Engine(tiny, bytes_tokenizer)
    requests = [collected([1], max_tokens=20, temperature=1.0) for _ in range(2)]
    for request in requests:
        engine.submit(request)
    until_idle(engine)
    assert requests[0].answer != requests[1].answer


class Ending:
    """The byte tokenizer with one token that ends an answer."""

    def __init__(self, tokenizer, end: int) -> None:
        self.end, self.encode, self.vocab_size = end, tokenizer.encode, tokenizer.vocab_size
        self.plain = tokenizer

    def decode(self, tokens, keep_special=False):
        return self.plain.decode([token for token in tokens if keep_special or token != self.end])

    def token(self, text):
        return self.end if text == "<|im_end|>" else self.plain.token(text)


def test_an_end_token_ends_the_answer_unless_told_to_ignore_it(tiny, bytes_tokenizer, collected, until_idle):
    free = generate(tiny, [[1, 2]], 12)[0]
    end = free[5]
    engine = Engine(tiny, Ending(bytes_tokenizer, end))
    ended, ignored = collected([1, 2], max_tokens=12), collected([1, 2], max_tokens=12, ignore_eos=True)
    at_least = collected([1, 2], max_tokens=12, min_tokens=9)
    for request in (ended, ignored, at_least):
        engine.submit(request)
    until_idle(engine)
    first = free.index(end)
    # The end token was generated, so it counts; it has no text.
    assert ended.answer == free[: first + 1] and ended.finish_reason == "stop"
    assert ended.said == bytes_tokenizer.decode(free[:first])
    assert ignored.answer == free and ignored.finish_reason == "length"
    assert end not in at_least.answer[:9] and len(at_least.answer) >= 9


@pytest.mark.parametrize("speculate", [0, 4])
def test_a_stop_string_ends_the_answer_before_it(tiny, bytes_tokenizer, collected, until_idle, speculate):
    text = bytes_tokenizer.decode(generate(tiny, [[1, 2]], 40)[0])
    stop = text[20:23]
    engine = Engine(tiny, bytes_tokenizer, Options(speculate=speculate))
    request = collected([1, 2], max_tokens=40, stop=(stop,))
    engine.submit(request)
    until_idle(engine)
    assert request.finish_reason == "stop"
    assert request.said == text[: text.index(stop)]


def test_more_than_the_batch_and_the_queue_hold_is_refused(tiny, bytes_tokenizer, collected, until_idle):
    engine = Engine(tiny, bytes_tokenizer, Options(max_batch=2, max_queue=1))
    for _ in range(3):
        engine.submit(collected([1]))
    with pytest.raises(Overloaded):
        engine.submit(collected([1]))
    until_idle(engine)
    engine.submit(collected([1]))
    until_idle(engine)


def test_times_are_in_order_and_one_for_each_token(tiny, bytes_tokenizer, collected, until_idle):
    engine = Engine(tiny, bytes_tokenizer, Options(max_batch=1, prefill_chunk=2))
    requests = [collected([1, 2, 3, 4], max_tokens=5) for _ in range(2)]
    for request in requests:
        engine.submit(request)
    until_idle(engine)
    for request in requests:
        times = request.times
        assert times.queued_s < times.prefill_start_s < times.token_s[0]
        assert times.token_s == sorted(times.token_s) and len(times.token_s) == 5
    # The second waited for the first.
    assert requests[1].times.prefill_start_s > requests[0].times.token_s[-1]


def test_the_engine_computes_with_the_threads_of_its_maker(tiny, bytes_tokenizer, collected):
    seen = []
    engine = Engine(tiny, bytes_tokenizer)
    request = collected([1], max_tokens=1)
    request.listener = lambda output: seen.append(torch.get_num_threads())
    engine.submit(request)
    engine.start()
    while engine._unfinished:
        pass
    engine.stop()
    assert seen == [torch.get_num_threads()]


def test_a_request_must_fit_positions_blocks_and_window(tiny_config, bytes_tokenizer):
    windowed = parse_config(tiny_config | {"model_type": "mistral", "sliding_window": 40}, "windowed")
    engine = Engine(random_decoder(windowed, layout="output-major"), bytes_tokenizer)
    assert engine.max_tokens == 40
    assert Engine(engine.decoder, bytes_tokenizer, Options(kv_blocks=2)).max_tokens == 32


def test_a_loop_that_breaks_leaves_nobody_waiting(tiny, bytes_tokenizer, collected):
    engine = Engine(tiny, bytes_tokenizer)
    request = collected([1], max_tokens=400)
    engine.submit(request)

    def broken(*_):
        raise KeyError("planted")

    engine.step = engine._report = broken
    with pytest.raises(KeyError):
        engine._run()
    assert request.outputs[-1].error == "the engine has stopped"
    with pytest.raises(Stopped):
        engine.submit(collected([1]))
