"""The paged cache against recomputation and the contiguous cache, and its blocks against what is held."""

from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from helpers.accounts import TraceRequest, kv_bytes, kv_bytes_per_token, parse_config, simulate_admission
from helpers.engine import KVCache, OutOfBlocks, PagedKVCache, paged_decode_runner, random_decoder
from helpers.errors import InputError
from tests.engine.conftest import TINY, tiny_config

DECODER = random_decoder(parse_config(tiny_config("qwen2"), "qwen2"), layout="output-major")
BLOCKS, BLOCK_TOKENS = 16, 4


def assert_close(got, wanted):
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


class AnyCourse(RuleBasedStateMachine):
    """Sequences come, grow in chunks and in ragged batches, fork and go; every logit equals recomputation."""

    def __init__(self):
        super().__init__()
        self.cache = PagedKVCache(DECODER.model, BLOCKS, BLOCK_TOKENS)
        self.running = []

    def call(self, chosen, tokens):
        lengths, free = [sequence.length for sequence in chosen], self.cache.free_blocks
        try:
            got = DECODER(tokens, self.cache.view(chosen), logits="all")
        except OutOfBlocks as refusal:
            assert refusal.needed > refusal.free == free == self.cache.free_blocks
            assert [sequence.length for sequence in chosen] == lengths
            return
        for row, sequence in enumerate(chosen):
            assert sequence.tokens[lengths[row] :] == tokens[row].tolist()
            wanted = DECODER(torch.tensor([sequence.tokens]), logits="all")
            assert_close(got[row], wanted[0, lengths[row] :])

    # Of two token ids only, so that prompts often begin alike.
    @rule(prompt=st.lists(st.integers(5, 6), min_size=1, max_size=18), pieces=st.integers(1, 3))
    def a_request_comes_and_is_prefilled_in_pieces(self, prompt, pieces):
        sequence = self.cache.new_sequence(prompt)
        assert sequence.tokens == prompt[: sequence.cached_tokens] and sequence.cached_tokens < len(prompt)
        self.running.append(sequence)
        for piece in torch.tensor([prompt[sequence.length :]]).tensor_split(pieces, dim=1):
            if piece.numel():
                self.call([sequence], piece)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), count=st.sampled_from([1, 1, 1, 3]))
    def some_sequences_grow_in_one_batch(self, data, count):
        chosen = data.draw(st.lists(st.sampled_from(self.running), min_size=1, max_size=5, unique=True))
        self.call(chosen, torch.tensor([[(7 * row + at) % 97 for at in range(count)] for row in range(len(chosen))]))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_sequence_forks(self, data):
        parent = data.draw(st.sampled_from(self.running))
        free = self.cache.free_blocks
        self.running.append(self.cache.fork(parent))
        assert self.cache.free_blocks == free

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.integers(0, 9))
    def a_sequence_takes_blocks_ahead(self, data, tokens):
        sequence = data.draw(st.sampled_from(self.running))
        needed, free = self.cache.blocks_needed(tokens, sequence), self.cache.free_blocks
        if needed > free:
            with pytest.raises(OutOfBlocks):
                self.cache.extend(sequence, tokens)
            needed = 0
        else:
            self.cache.extend(sequence, tokens)
        assert self.cache.free_blocks == free - needed

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_sequence_ends(self, data):
        sequence = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.cache.free(sequence)
        with pytest.raises(InputError):
            self.cache.free(sequence)

    @invariant()
    def each_block_is_counted_once_for_each_sequence_that_holds_it(self):
        held = Counter(block for sequence in self.running for block in sequence.blocks)
        assert [self.cache.manager.references(block) for block in range(BLOCKS)] == [held[b] for b in range(BLOCKS)]
        assert self.cache.free_blocks == BLOCKS - len(held)
        assert self.cache.used_nbytes == kv_bytes(DECODER.model, len(held) * BLOCK_TOKENS, "fp32")


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("attention", ["fused", "naive"])
def test_ragged_decoding_equals_the_contiguous_cache(tiny_model, kind, attention):
    decoder = random_decoder(tiny_model(kind), attention=attention, layout="output-major")
    cache = PagedKVCache(decoder.model, 20)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, 97, (1, length), generator=generator) for length in (1, 16, 40, 17)]
    sequences = [cache.new_sequence(prompt[0].tolist()) for prompt in prompts]
    contiguous = [KVCache(decoder.model, 1, 60) for _ in prompts]
    for prompt, sequence, own in zip(prompts, sequences, contiguous, strict=True):
        assert_close(decoder(prompt, cache.view([sequence])), decoder(prompt, own))
    for _ in range(17):
        tokens = torch.randint(0, 97, (4, 1), generator=generator)
        wanted = torch.cat([decoder(token[None], own) for token, own in zip(tokens, contiguous, strict=True)])
        assert_close(decoder(tokens, cache.view(sequences)), wanted)
    assert [sequence.length for sequence in sequences] == [own.length for own in contiguous] == [18, 33, 57, 34]


def test_real_text_is_continued_as_in_the_contiguous_cache(smollm2, tokenizer):
    ids = tokenizer.encode("The two accounts of inference are compute and bandwidth, and the second one binds.")
    cache = PagedKVCache(smollm2.model, 8, block_tokens=4)
    sequence = cache.new_sequence(ids)
    # In three pieces, the last of which is one token.
    for piece in (ids[:5], ids[5:-1], ids[-1:]):
        got = smollm2(torch.tensor([piece]), cache.view([sequence]))
    torch.testing.assert_close(got, smollm2(torch.tensor([ids])), atol=1e-3, rtol=1e-3)


def test_each_token_adds_the_bytes_of_the_account_to_a_contiguous_cache_and_whole_blocks_to_a_paged_one():
    contiguous, paged = KVCache(DECODER.model, 1, 40), PagedKVCache(DECODER.model, 10, BLOCK_TOKENS)
    sequence = paged.new_sequence()
    for token in range(10):
        before = contiguous.held_nbytes
        for cache in (contiguous, paged.view([sequence])):
            DECODER(torch.tensor([[token]]), cache)
        assert contiguous.held_nbytes - before == kv_bytes_per_token(DECODER.model, token, "fp32")
        assert contiguous.held_nbytes == kv_bytes(DECODER.model, token + 1, "fp32")
        assert paged.used_nbytes == kv_bytes(DECODER.model, -(-(token + 1) // BLOCK_TOKENS) * BLOCK_TOKENS, "fp32")


def test_as_many_requests_enter_as_the_account_of_admission_says():
    requests = [TraceRequest(prompt, output) for prompt, output in ((30, 9), (3, 4), (17, 20), (9, 1), (40, 2))] * 2
    cache = PagedKVCache(DECODER.model, 24, BLOCK_TOKENS, prefix_caching=False)
    entered = 0
    for request in requests:
        sequence = cache.new_sequence()
        try:
            DECODER(torch.zeros(1, request.prompt_tokens, dtype=torch.long), cache.view([sequence]))
        except OutOfBlocks:
            break
        entered += 1
    assert 0 < entered < len(requests)
    assert simulate_admission(requests[: entered + 1], 24 * BLOCK_TOKENS, BLOCK_TOKENS).most_running == entered


def test_bytes_are_those_of_the_account_for_blocks_in_use():
    cache = PagedKVCache(DECODER.model, 10, 16, "bf16")
    assert cache.nbytes == kv_bytes(DECODER.model, 160, "bf16")
    assert cache.used_nbytes == 0
    sequence = cache.new_sequence()
    cache.extend(sequence, 33)
    assert cache.used_nbytes == kv_bytes(DECODER.model, 48, "bf16")
    cache.free(sequence)
    assert cache.used_nbytes == 0


def test_an_equal_prompt_start_is_computed_once_even_after_its_owner_ended():
    cache = PagedKVCache(DECODER.model, 10, BLOCK_TOKENS)
    prompt = list(range(11))
    first = cache.new_sequence(prompt)
    DECODER(torch.tensor([prompt]), cache.view([first]))
    second = cache.new_sequence([*prompt, 60])
    assert second.cached_tokens == 8
    assert second.blocks == first.blocks[:2]
    cache.free(first)
    cache.free(second)
    assert cache.free_blocks == 10
    third = cache.new_sequence(prompt[:8])
    # Not both blocks: the last prompt token must be computed for its logits.
    assert third.cached_tokens == 4
    assert_close(DECODER(torch.tensor([prompt[4:8]]), cache.view([third])), DECODER(torch.tensor([prompt[:8]])))


def test_equal_blocks_after_a_different_start_are_not_shared():
    cache = PagedKVCache(DECODER.model, 10, BLOCK_TOKENS)
    first = cache.new_sequence()
    DECODER(torch.tensor([[1, 1, 1, 1, 2, 2, 2, 2]]), cache.view([first]))
    assert cache.new_sequence([1, 1, 1, 1, 2, 2, 2, 2, 3]).cached_tokens == 8
    assert cache.new_sequence([9, 9, 9, 9, 2, 2, 2, 2, 3]).cached_tokens == 0
    assert cache.new_sequence([2, 2, 2, 2, 3]).cached_tokens == 0


def test_generated_tokens_are_found_too_and_nothing_is_without_prefix_caching():
    for prefix_caching, cached in ((True, 4), (False, 0)):
        cache = PagedKVCache(DECODER.model, 4, BLOCK_TOKENS, prefix_caching=prefix_caching)
        sequence = cache.new_sequence([1, 2])
        for token in (1, 2, 3, 4):
            DECODER(torch.tensor([[token]]), cache.view([sequence]))
        assert cache.new_sequence([1, 2, 3, 4, 5]).cached_tokens == cached


def test_a_fork_copies_one_block_when_it_writes_and_the_last_writer_none():
    cache = PagedKVCache(DECODER.model, 4, BLOCK_TOKENS)
    parent = cache.new_sequence()
    DECODER(torch.tensor([[1, 2, 3, 4, 5, 6]]), cache.view([parent]))
    children = [cache.fork(parent), cache.fork(parent)]
    assert cache.free_blocks == 2
    assert [cache.blocks_needed(1, sequence) for sequence in (parent, *children)] == [1, 1, 1]
    # Three write one shared block: two copies, which is all that is free.
    DECODER(torch.tensor([[7], [8], [9]]), cache.view([parent, *children]))
    assert cache.free_blocks == 0
    assert len({sequence.blocks[1] for sequence in (parent, *children)}) == 3
    assert len({sequence.blocks[0] for sequence in (parent, *children)}) == 1
    for sequence, token in zip((parent, *children), (7, 8, 9), strict=True):
        got = DECODER(torch.tensor([[10]]), cache.view([sequence]))
        assert_close(got, DECODER(torch.tensor([[1, 2, 3, 4, 5, 6, token, 10]])))


def test_exhaustion_changes_nothing_and_work_goes_on_after_a_sequence_ended():
    cache = PagedKVCache(DECODER.model, 3, BLOCK_TOKENS)
    long, short = cache.new_sequence(), cache.new_sequence()
    DECODER(torch.tensor([[1] * 8]), cache.view([long]))
    DECODER(torch.tensor([[2] * 4]), cache.view([short]))
    with pytest.raises(OutOfBlocks, match="2 blocks of KV cache are needed, 0 are free"):
        DECODER(torch.tensor([[3], [4]]), cache.view([long, short]))
    assert (long.length, short.length, len(long.blocks), len(short.blocks)) == (8, 4, 2, 1)
    cache.free(short)
    assert_close(DECODER(torch.tensor([[3]]), cache.view([long])), DECODER(torch.tensor([[1] * 8 + [3]])))


def test_the_timed_step_is_the_same_at_every_call_and_at_its_context():
    step = paged_decode_runner(DECODER, BLOCK_TOKENS)(9, 3)
    first = step()
    assert first.shape == (3, 97)
    assert torch.equal(step(), first)
    # Each row reads its own blocks.
    assert not torch.equal(first[0], first[1])
    # A context of one has no past: the logits are those of a first token.
    logits = paged_decode_runner(DECODER, BLOCK_TOKENS)(1, 1)()
    fresh = DECODER(torch.arange(97)[:, None])
    assert (logits - fresh).abs().amax(1).min() < 1e-5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_ragged_decoding_equals_the_contiguous_cache_on_the_gpu(tiny_model):
    decoder = random_decoder(tiny_model("qwen3"), device="cuda")
    cache = PagedKVCache(decoder.model, 20, device="cuda")
    prompts = [torch.randint(0, 97, (1, length), device="cuda") for length in (1, 16, 40)]
    sequences = [cache.new_sequence(prompt[0].tolist()) for prompt in prompts]
    contiguous = [KVCache(decoder.model, 1, 60, device="cuda") for _ in prompts]
    for prompt, sequence, own in zip(prompts, sequences, contiguous, strict=True):
        torch.testing.assert_close(decoder(prompt, cache.view([sequence])), decoder(prompt, own), atol=1e-4, rtol=1e-4)
    sequences.append(cache.fork(sequences[2]))
    for _ in range(17):
        tokens = torch.randint(0, 97, (4, 1), device="cuda")
        wanted = torch.cat([decoder(tokens[row : row + 1], contiguous[row]) for row in range(3)])
        got = decoder(tokens, cache.view(sequences))
        torch.testing.assert_close(got[:3], wanted, atol=1e-4, rtol=1e-4)


def test_views_and_caches_that_make_no_sense_are_refused():
    cache = PagedKVCache(DECODER.model, 3)
    other = PagedKVCache(DECODER.model, 3).new_sequence()
    sequence = cache.new_sequence()
    with pytest.raises(InputError, match="not in this cache"):
        cache.view([other])
    with pytest.raises(InputError, match="twice"):
        cache.view([sequence, sequence])
    with pytest.raises(InputError, match="at least one"):
        cache.view([])
    view = cache.view([sequence])
    with pytest.raises(InputError, match="batch 1"):
        DECODER(torch.tensor([[1], [2]]), view)
    cache.free(sequence)
    with pytest.raises(InputError, match="freed"):
        DECODER(torch.tensor([[1]]), view)
    with pytest.raises(InputError, match="freed"):
        cache.fork(sequence)
    for blocks, block_tokens in ((0, 16), (4, 0), (2.5, 16), (True, 16)):
        with pytest.raises(InputError, match="block"):
            PagedKVCache(DECODER.model, blocks, block_tokens)
    with pytest.raises(InputError, match="bf16"):
        wide = PagedKVCache(DECODER.model, 3, dtype="bf16")
        DECODER(torch.tensor([[1]]), wide.view([wide.new_sequence()]))
