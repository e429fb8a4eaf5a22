"""How many requests run at once: the simulation against a plain one, the arithmetic, and real traces."""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.accounts import InputError
from helpers.accounts.admission import expected_running, simulate_admission
from helpers.accounts.lengths import length_distribution
from helpers.accounts.trace import TraceRequest, read_trace

CACHE_TOKENS = 500_000
"""About what an 80 GB card has left beside an 8 B model in bf16, at 128 KiB a token."""


def plain_simulation(requests, cache_tokens, block_tokens):
    """The rules of `simulate_admission`, token by token: steps, Σ running, Σ tokens, most, preempted, finished."""
    blocks = cache_tokens // block_tokens
    waiting = [[r.prompt_tokens, r.output_tokens] for r in requests]
    running, step, running_sum, tokens_sum, most, preempted, finished = [], 0, 0, 0, 0, 0, 0

    def used():
        return sum(-(-one["tokens"] // block_tokens) for one in running)

    while waiting:
        finished += sum(one["left"] == 0 for one in running)
        running = [one for one in running if one["left"] > 0]
        index = 0
        while index < len(running):
            one = running[index]
            grown = one["tokens"] % block_tokens == 0
            while grown and used() == blocks and index < len(running):
                victim = running.pop()
                preempted += 1
                waiting.insert(0, [victim["tokens"] + (not victim["grown"]), victim["left"]])
            if index < len(running):
                one["tokens"] += 1
                one["grown"] = True
                index += 1
        while waiting and used() + -(-waiting[0][0] // block_tokens) <= blocks:
            prompt, output = waiting.pop(0)
            running.append({"tokens": prompt, "left": output})
        for one in running:
            one["left"] -= 1
            one["grown"] = False
        most = max(most, len(running))
        if waiting:
            step += 1
            running_sum += len(running)
            tokens_sum += sum(one["tokens"] for one in running)
    return step, running_sum, tokens_sum, most, preempted, finished


REQUESTS = st.lists(st.builds(TraceRequest, st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=25)


@settings(max_examples=300, deadline=None)
@given(REQUESTS, st.integers(1, 30), st.integers(0, 40))
def test_the_simulation_equals_a_plain_one_token_by_token(requests, block_tokens, spare):
    longest = max(request.cache_tokens for request in requests)
    cache_tokens = -(-longest // block_tokens) * block_tokens + spare
    found = simulate_admission(requests, cache_tokens, block_tokens)
    steps, running, tokens, most, preempted, finished = plain_simulation(requests, cache_tokens, block_tokens)
    assert (found.steps, found.most_running, found.preempted, found.finished) == (steps, most, preempted, finished)
    if steps:
        assert found.mean_running * steps == pytest.approx(running)
        assert found.mean_tokens_held * steps == pytest.approx(tokens)
        assert 0 < found.tokens_held_share <= 1


@settings(max_examples=100, deadline=None)
@given(REQUESTS, st.integers(1, 20))
def test_the_expected_number_is_the_mean_of_blocks_over_all_steps(requests, block_tokens):
    steps = sum(request.output_tokens for request in requests)
    held = sum(
        -(-(request.prompt_tokens + step) // block_tokens)
        for request in requests
        for step in range(request.output_tokens)
    )
    found = expected_running(requests, 1000, block_tokens)
    assert found == pytest.approx(1000 // block_tokens * steps / held)


def test_one_block_as_long_as_the_longest_is_a_contiguous_cache():
    requests = [TraceRequest(10, 5)] * 100
    found = simulate_admission(requests, 1000, block_tokens=100)
    assert (found.mean_running, found.most_running, found.preempted) == (10, 10, 0)
    assert expected_running(requests, 1000, block_tokens=100) == 10
    # Each holds 10 to 14 tokens of its 100, all in step.
    assert found.tokens_held_share == pytest.approx(0.12, rel=0.02)


def test_growth_beyond_the_cache_preempts_the_youngest():
    requests = [TraceRequest(8, 9)] * 4
    found = simulate_admission(requests, 24, block_tokens=8)
    # Three enter. In step 1 the first needs a second block and takes that of the third; the second, with none to take
    # but its own, gives up too.
    assert (found.most_running, found.preempted) == (3, 2)
    assert plain_simulation(requests, 24, 8)[4] == 2


SERVICES = {
    "azure-conversation": "AzureLLMInferenceTrace_conv.csv",
    "azure-code": "AzureLLMInferenceTrace_code.csv",
    "mooncake-conversation": "mooncake_conversation_trace.jsonl",
}


@cache
def whole_trace(shared, name):
    """The public trace of one service, read once."""
    return read_trace(shared / "facts" / "traces" / SERVICES[name])


@pytest.fixture(scope="module", params=SERVICES)
def service(request, shared):
    """The name of a service and its whole trace."""
    return request.param, whole_trace(shared, request.param)


def test_on_whole_real_traces_the_arithmetic_meets_the_simulation(service):
    _, trace = service
    found = simulate_admission(trace, CACHE_TOKENS)
    assert found.mean_running == pytest.approx(expected_running(trace, CACHE_TOKENS), rel=0.05)
    assert found.tokens_held_share > 0.95


def test_paging_fits_several_times_the_requests_of_a_contiguous_cache(service):
    _, trace = service
    longest = max(request.cache_tokens for request in trace)
    contiguous = expected_running(trace, CACHE_TOKENS, longest)
    assert contiguous == CACHE_TOKENS // longest
    assert simulate_admission(trace, CACHE_TOKENS).mean_running > 3 * contiguous


def test_requests_drawn_from_the_quantiles_stand_for_the_whole_trace(service):
    name, trace = service
    drawn = length_distribution(name).sample(20_000)
    assert expected_running(drawn, CACHE_TOKENS) == pytest.approx(expected_running(trace, CACHE_TOKENS), rel=0.1)


def test_what_cannot_run_is_refused():
    for account in (simulate_admission, expected_running):
        with pytest.raises(InputError, match="no request"):
            account([], 100)
        with pytest.raises(InputError, match="request of 101 tokens does not fit: the cache has 6 blocks of 16"):
            account([TraceRequest(1, 1), TraceRequest(100, 2)], 100)
        for cache_tokens, block_tokens in ((0, 16), (100, 0), (1.5, 16), (100, True)):
            with pytest.raises(InputError):
                account([TraceRequest(1, 1)], cache_tokens, block_tokens)
