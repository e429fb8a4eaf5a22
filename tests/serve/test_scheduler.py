"""The scheduler on a decoder whose answers are known: whatever the load, every answer right and no block lost."""

import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.serve import ByteTokenizer, Engine, Options, Stopped

REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 6),  # Arrives so many steps after the one before.
        st.lists(st.integers(0, 4), min_size=1, max_size=20),
        st.integers(1, 12),  # Tokens to generate.
        st.one_of(st.none(), st.none(), st.integers(0, 8)),  # Leaves so many steps after arriving.
    ),
    min_size=1,
    max_size=8,
)


def test_every_answer_is_right_in_order_and_frees_its_blocks_under_any_load(fake, collected):
    preempted, hits, right = 0, 0, 0

    # The drawn loads alone sometimes reach none of what is counted below: this one reaches all.
    @example(
        plan=[(0, [0, 1] * 9, 12, None)] * 4 + [(6, [0, 1] * 9, 12, None)],
        max_batch=4,
        chunk=8,
        block_tokens=4,
        spare_blocks=6,
        speculate=2,
        prefix_caching=True,
    )
    @settings(max_examples=80, deadline=None)
    @given(
        plan=REQUESTS,
        max_batch=st.integers(1, 4),
        chunk=st.sampled_from([0, 1, 3, 8]),
        block_tokens=st.sampled_from([1, 4]),
        spare_blocks=st.integers(0, 6),
        speculate=st.sampled_from([0, 2]),
        prefix_caching=st.booleans(),
    )
    def run(plan, max_batch, chunk, block_tokens, spare_blocks, speculate, prefix_caching):
        nonlocal preempted, hits, right
        largest = max(len(prompt) + count for _, prompt, count, _ in plan)
        blocks = -(-largest // block_tokens) + spare_blocks
        engine = Engine(
            fake,
            ByteTokenizer(),
            Options(
                max_batch=max_batch,
                max_queue=8,
                prefill_chunk=chunk,
                kv_blocks=blocks,
                block_tokens=block_tokens,
                prefix_caching=prefix_caching,
                speculate=speculate,
            ),
        )
        requests, leaves, first_tokens, at, clock = [], {}, [], 0, 0
        arrivals = []
        for gap, prompt, count, leave in plan:
            at += gap
            request = collected(prompt, max_tokens=count)
            arrivals.append((at, request))
            requests.append(request)
            if leave is not None:
                leaves[request] = at + leave
        while clock <= at or engine.scheduler.busy:
            for when, request in arrivals:
                if when == clock:
                    engine.submit(request)
            for request, when in leaves.items():
                if when == clock:
                    engine.cancel(request)
            step = engine.step()
            if engine.scheduler.busy:
                assert step.prefill or step.decode, "a step that does nothing while somebody waits"
            assert len(engine.scheduler.running) <= max_batch
            present = [requests.index(r) for r in (*engine.scheduler.running, *engine.scheduler.waiting)]
            assert present == sorted(present), "somebody overtook an older request"
            prefilled = sum(count for _, count in step.prefill)
            assert prefilled <= chunk if chunk else len(step.prefill) <= 1
            first_tokens += [r for r in requests if r.outputs and r not in first_tokens]
            clock += 1
            assert clock < 1500, "no progress"
        assert engine.cache.free_blocks == blocks
        for request in requests:
            if request.finish_reason == "abort":
                assert request in leaves
                continue
            assert request.answer == fake.answer(request.prompt, request.sampling.max_tokens)
            assert [output.last for output in request.outputs] == [False] * (len(request.outputs) - 1) + [True]
            assert request.outputs[-1].finish_reason == "length"
            assert request.outputs[-1].output_tokens == request.sampling.max_tokens
            assert request.said == ByteTokenizer().decode(request.answer)
        # First come, first served: first tokens in order of arrival (several may come in one step).
        stamps = [r.times.token_s[0] for r in requests if r.times.token_s]
        assert stamps == sorted(stamps)
        preempted += engine.scheduler.preemptions
        hits += sum(r.cached_tokens or 0 for r in requests)
        right += sum(r.accepted_tokens for r in requests)

    run()
    # The examples did reach what they are meant to try.
    assert preempted > 0 and hits > 0 and right > 0


def engine_of(fake, **options):
    return Engine(fake, ByteTokenizer(), Options(**options))


def test_a_whole_prompt_keeps_the_others_waiting_and_a_chunk_does_not(fake, collected):
    longest = {}
    for chunk in (0, 4):
        engine = engine_of(fake, prefill_chunk=chunk)
        first, second = collected([1], max_tokens=30), collected([2] * 40, max_tokens=1)
        engine.submit(first)
        engine.step()
        engine.submit(second)
        computed = []
        while engine.scheduler.busy:
            step = engine.step()
            computed.append(sum(count for _, count in step.prefill))
            assert first in step.decode or first.finish_reason
        longest[chunk] = max(computed)
    assert longest == {0: 40, 4: 4}


def test_a_chunk_reaches_over_several_short_prompts(fake, collected):
    engine = engine_of(fake, prefill_chunk=8)
    requests = [collected([token] * 3) for token in range(4)]
    for request in requests:
        engine.submit(request)
    step = engine.step()
    assert [(requests.index(request), count) for request, count in step.prefill] == [(0, 3), (1, 3), (2, 2)]


def test_a_short_request_does_not_overtake_a_long_one_that_waits_for_blocks(fake, collected):
    engine = engine_of(fake, kv_blocks=8, block_tokens=4)
    running, long, short = collected([1] * 16, max_tokens=12), collected([2] * 20), collected([3])
    engine.submit(running)
    engine.step()
    engine.submit(long)
    engine.submit(short)
    engine.step()
    assert list(engine.scheduler.waiting) == [long, short]


def test_a_newcomer_that_would_soon_be_preempted_is_not_let_in(fake, collected, until_idle):
    engine = engine_of(fake, kv_blocks=4, block_tokens=4, prefix_caching=False)
    first, second = collected([1] * 4, max_tokens=9), collected([2] * 8, max_tokens=4)
    engine.submit(first)
    engine.step()
    engine.step()
    # Two blocks are free and two are what the second needs; but the first will want one of them.
    assert engine.cache.free_blocks == 2
    engine.submit(second)
    engine.step()
    assert list(engine.scheduler.waiting) == [second]
    until_idle(engine)
    assert engine.scheduler.preemptions == 0


def test_the_last_to_come_is_preempted_and_the_oldest_never(fake, collected, until_idle):
    engine = engine_of(fake, kv_blocks=10, block_tokens=1, prefix_caching=False)
    requests = [collected([token] * 2, max_tokens=8) for token in range(4)]
    for request in requests:
        engine.submit(request)
    until_idle(engine)
    assert requests[0].preemptions == 0
    assert engine.scheduler.preemptions == sum(request.preemptions for request in requests) > 0
    assert [request.answer for request in requests] == [fake.answer(r.prompt, 8) for r in requests]


def test_requests_that_begin_alike_share_blocks(fake, collected, until_idle):
    engine = engine_of(fake, block_tokens=4)
    one, other = collected([1, 2, 3, 4] * 4), collected([1, 2, 3, 4] * 4)
    engine.submit(one)
    until_idle(engine)
    engine.submit(other)
    until_idle(engine)
    # The last token is left to compute: its logits are wanted.
    assert (one.cached_tokens, other.cached_tokens) == (0, 12)
    assert one.answer == other.answer


def test_a_failing_decoder_tells_those_who_run_and_the_engine_lives_on(fake, collected):
    engine = engine_of(fake, max_batch=1)
    engine.start()
    try:
        fake.fails = True
        ended = threading.Event()
        bad = collected([1])
        keep = bad.listener
        bad.listener = lambda output: (keep(output), ended.set())
        engine.submit(bad)
        assert ended.wait(20)
        assert "planted" in bad.outputs[-1].error
        fake.fails = False
        ended.clear()
        good = collected([1], max_tokens=3)
        good_keep = good.listener
        good.listener = lambda output: (good_keep(output), output.last and ended.set())
        engine.submit(good)
        assert ended.wait(20)
        assert good.answer == fake.answer([1], 3)
        assert engine.cache.free_blocks == engine.cache.blocks
    finally:
        engine.stop()


def test_stopping_tells_everybody_and_takes_nobody_new(fake, collected):
    engine = engine_of(fake)
    request = collected([1], max_tokens=4000)
    engine.submit(request)
    engine.start()
    engine.stop()
    assert "shutting down" in request.outputs[-1].error
    assert engine.cache.free_blocks == engine.cache.blocks
    with pytest.raises(Stopped):
        engine.submit(collected([1]))
    engine.stop()
