"""The book-keeping of blocks: each free or counted, none handed out twice."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.engine import BlockManager, OutOfBlocks


def test_blocks_are_handed_out_once_until_there_is_none():
    manager = BlockManager(3)
    assert {manager.allocate() for _ in range(3)} == {0, 1, 2}
    with pytest.raises(OutOfBlocks, match="1 blocks of KV cache are needed, 0 are free") as refusal:
        manager.allocate()
    assert (refusal.value.needed, refusal.value.free) == (1, 0)


def test_a_shared_block_is_free_after_its_last_release_and_cannot_be_freed_again():
    manager = BlockManager(1)
    block = manager.allocate()
    manager.share(block)
    manager.release(block)
    assert (manager.references(block), manager.free_blocks) == (1, 0)
    manager.release(block)
    assert (manager.references(block), manager.free_blocks) == (0, 1)
    with pytest.raises(ValueError, match="block 0 is free already"):
        manager.release(block)
    assert manager.free_blocks == 1


def test_a_freed_block_is_found_by_content_until_it_is_handed_out_again():
    manager = BlockManager(2)
    block = manager.allocate()
    manager.register(block, b"text")
    manager.release(block)
    assert manager.find(b"text") == block
    manager.share(block)
    assert (manager.references(block), manager.free_blocks) == (1, 1)
    manager.release(block)
    assert {manager.allocate(), manager.allocate()} == {0, 1}
    assert manager.find(b"text") is None


def test_the_block_that_is_longest_free_is_handed_out_first():
    manager = BlockManager(3)
    blocks = [manager.allocate() for _ in range(3)]
    for block in (blocks[2], blocks[0], blocks[1]):
        manager.release(block)
    assert [manager.allocate() for _ in range(3)] == [blocks[2], blocks[0], blocks[1]]


def test_equal_content_in_two_blocks_stays_with_the_first():
    manager = BlockManager(2)
    first, second = manager.allocate(), manager.allocate()
    manager.register(first, b"same")
    manager.register(second, b"same")
    assert manager.find(b"same") == first
    manager.release(second)
    assert manager.allocate() == second
    assert manager.find(b"same") == first


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "release", "register"]), st.integers(0, 5))))
def test_every_block_is_free_or_counted_after_any_course_of_events(events):
    manager, held, content = BlockManager(6), Counter(), {}
    for event, number in events:
        if event == "allocate":
            if sum(count > 0 for count in held.values()) == 6:
                with pytest.raises(OutOfBlocks):
                    manager.allocate()
                continue
            block = manager.allocate()
            assert held[block] == 0
            held[block] = 1
            content = {digest: where for digest, where in content.items() if where != block}
        elif event == "share" and held[number]:
            manager.share(number)
            held[number] += 1
        elif event == "release":
            if held[number]:
                manager.release(number)
                held[number] -= 1
            else:
                with pytest.raises(ValueError):
                    manager.release(number)
        elif event == "register" and held[number]:
            digest = bytes([number % 3])
            manager.register(number, digest)
            if digest not in content and number not in content.values():
                content[digest] = number
        assert [manager.references(block) for block in range(6)] == [held[block] for block in range(6)]
        assert manager.free_blocks == sum(held[block] == 0 for block in range(6))
        assert all(manager.find(digest) == block for digest, block in content.items())
