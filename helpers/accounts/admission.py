"""How many requests run at once when the cache is handed out in blocks, and a contiguous cache as one block each.

A request holds ceil(tokens / block_tokens) blocks and grows by a token a step. With blocks of 16 that is what it
needs now; with one block as long as the longest request allowed, it is a contiguous cache, reserved in full from the
first token on. So both are the same account with another `block_tokens`.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from helpers.accounts.trace import TraceRequest
from helpers.accounts.units import positive_int
from helpers.errors import InputError


@dataclass(frozen=True)
class Admission:
    """What `simulate_admission` saw while requests were waiting.

    `mean_running` and `most_running`: requests at once, over steps. `preempted`: how often a request lost its blocks
    and began again. `mean_tokens_held`: over steps, of `cache_tokens` in all. `finished`: requests that ended.
    """

    block_tokens: int
    cache_tokens: int
    steps: int
    mean_running: float
    most_running: int
    preempted: int
    mean_tokens_held: float
    finished: int

    @property
    def tokens_held_share(self) -> float:
        """Share of the cache that holds keys and values, not reservations or the rest of a block."""
        return self.mean_tokens_held / self.cache_tokens


def expected_running(requests: Sequence[TraceRequest], cache_tokens: int, block_tokens: int = 16) -> float:
    """Requests at once by arithmetic: blocks ÷ the blocks that a running request holds on average.

    The average is over steps, so a request counts once for each token it generates:
    N = floor(cache_tokens / block_tokens) · Σ steps ÷ Σ_requests Σ_steps ceil(tokens / block_tokens).
    What the simulation comes to over a long run, but for what whole requests leave free and preemption repeats.

    Raises InputError as `simulate_admission` does.
    """
    blocks = _blocks(requests, cache_tokens, block_tokens)
    steps = sum(request.output_tokens for request in requests)
    held = sum(
        _sum_of_blocks(request.cache_tokens, block_tokens) - _sum_of_blocks(request.prompt_tokens - 1, block_tokens)
        for request in requests
    )
    return float(Fraction(blocks * steps, held))


def simulate_admission(requests: Sequence[TraceRequest], cache_tokens: int, block_tokens: int = 16) -> Admission:
    """Run `requests` in their order through a cache of `cache_tokens` tokens that is always asked for.

    At each step the first waiting requests enter while the blocks of their prompts are free; every running request
    then holds one token more. Where no block is left for it, the request that entered last gives up its blocks and
    returns to the front of the queue, to be computed again with what it has generated (as vLLM preempts). A step stands
    for one decode step of all; prefill takes no step of its own. What happens after the queue is empty is left out.

    Raises InputError where there is no request, or one alone is larger than the cache.
    """
    blocks = _blocks(requests, cache_tokens, block_tokens)
    waiting = deque((request.prompt_tokens, request.output_tokens) for request in requests)
    # A request ends at a step known when it enters, and takes a block each `block_tokens` steps: both are looked up by
    # step, so that a step costs only what changes in it.
    running: dict[int, _Running] = {}  # In the order of entry.
    ends: dict[int, list[int]] = {}
    grows: defaultdict[int, set[int]] = defaultdict(set)
    free, step, entered, preempted, finished = blocks, 0, 0, 0, 0
    tokens_held, running_sum, tokens_sum, most = 0, 0, 0, 0
    while waiting:
        for number in ends.pop(step, ()):
            if (ended := running.pop(number, None)) is not None:
                grows[ended.phase(block_tokens)].discard(number)
                free += ended.blocks
                tokens_held -= ended.tokens(step - 1)
                finished += 1
        # The requests that need a block in this step, the oldest first; the youngest of all makes room.
        for number in sorted(grows[step % block_tokens]):
            if number not in running:
                continue
            while free == 0:
                victim, lost = running.popitem()
                grows[lost.phase(block_tokens)].discard(victim)
                free += lost.blocks
                tokens_held -= lost.tokens(step - 1)
                preempted += 1
                # It goes on where it was, but what it generated is prompt now, to be computed again.
                done = lost.tokens(step - 1) - lost.prompt + 1
                waiting.appendleft((lost.prompt + done, lost.output - done))
                if victim == number:
                    break
            else:
                running[number].blocks += 1
                free -= 1
        tokens_held += len(running)
        while waiting and (needed := -(-waiting[0][0] // block_tokens)) <= free:
            prompt, output = waiting.popleft()
            free -= needed
            new = _Running(prompt, output, step, needed)
            running[entered] = new
            ends.setdefault(step + output, []).append(entered)
            grows[new.phase(block_tokens)].add(entered)
            tokens_held += prompt
            entered += 1
        if waiting:
            step += 1
            running_sum += len(running)
            tokens_sum += tokens_held
            most = max(most, len(running))
    most = max(most, len(running))
    return Admission(
        block_tokens=block_tokens,
        cache_tokens=cache_tokens,
        steps=step,
        mean_running=running_sum / step if step else float(len(running)),
        most_running=most,
        preempted=preempted,
        mean_tokens_held=tokens_sum / step if step else float(tokens_held),
        finished=finished,
    )


@dataclass
class _Running:
    """A request in the cache: it entered at step `since` with `prompt` tokens and has `output` to generate."""

    prompt: int
    output: int
    since: int
    blocks: int

    def tokens(self, step: int) -> int:
        """Tokens held in the step."""
        return self.prompt + step - self.since

    def phase(self, block_tokens: int) -> int:
        """Its steps modulo `block_tokens` in which it starts a block: those before which it holds whole blocks."""
        return (self.since - self.prompt + 1) % block_tokens


def _blocks(requests: Sequence[TraceRequest], cache_tokens: int, block_tokens: int) -> int:
    blocks = positive_int(cache_tokens, "cache_tokens") // positive_int(block_tokens, "block_tokens")
    if not requests:
        raise InputError("there is no request to admit")
    longest = max(request.cache_tokens for request in requests)
    if -(-longest // block_tokens) > blocks:
        raise InputError(
            f"a request of {longest:,} tokens does not fit: the cache has {blocks:,} blocks of {block_tokens:,} tokens"
        )
    return blocks


def _sum_of_blocks(tokens: int, block_tokens: int) -> int:
    """Σ ceil(n / block_tokens) for n from 1 to `tokens`."""
    full, rest = divmod(tokens, block_tokens)
    return block_tokens * full * (full + 1) // 2 + rest * (full + 1)
