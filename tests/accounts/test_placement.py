"""Placements of experts on ranks: what they hold, and what they are worth on real routing of another day."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import (
    InputError,
    Placement,
    contiguous,
    distinct_experts,
    max_over_mean,
    packed,
    rank_distinct_experts,
    rank_loads,
    rank_seconds,
    strided,
)

# deepseek-ai/EPLB README: two layers of 12 experts, 4 replicas, 8 GPUs.
EPLB_EXAMPLE = (
    (90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86),
    (20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27),
)


def test_contiguous_and_strided_hold_what_they_say():
    assert contiguous(6, 3).ranks == ((0, 1), (2, 3), (4, 5))
    assert strided(6, 3).ranks == ((0, 3), (1, 4), (2, 5))


def test_the_wrong_placement_gives_another_load():
    counts = [10, 10, 1, 1]
    assert rank_loads(counts, contiguous(4, 2)) == [20, 2]
    assert rank_loads(counts, strided(4, 2)) == [11, 11]


@st.composite
def _packings(draw):
    ranks = draw(st.integers(1, 8))
    experts = draw(st.integers(ranks, 40))
    replicas = -experts % ranks + ranks * draw(st.integers(0, 2))
    counts = draw(st.lists(st.integers(0, 1000), min_size=experts, max_size=experts))
    return counts, ranks, replicas


@given(_packings())
def test_a_packed_placement_holds_every_expert_in_equal_slots(case):
    counts, ranks, replicas = case
    try:
        placement = packed(counts, ranks, replicas)
    except InputError as error:
        assert "without repeats" in str(error)
        return
    assert {len(slots) for slots in placement.ranks} == {(len(counts) + replicas) // ranks}
    assert sum(placement.copies) == len(counts) + replicas
    assert min(placement.copies) >= 1
    assert sum(rank_loads(counts, placement)) == pytest.approx(sum(counts))


@pytest.mark.parametrize("counts", EPLB_EXAMPLE)
def test_packing_with_replicas_evens_the_published_example(counts):
    placement = packed(counts, 8, 4)
    assert max_over_mean(rank_loads(counts, placement)) < 1.2
    assert max_over_mean(rank_loads(counts, contiguous(12, 4))) > 1.2


def test_replicas_go_to_the_hottest_expert():
    placement = packed([100, 1, 1, 1], 3, 2)
    assert placement.copies == (3, 1, 1, 1)
    assert max_over_mean(rank_loads([100, 1, 1, 1], placement)) < 1.05


def test_more_replicas_than_ranks_can_part_are_refused():
    with pytest.raises(InputError, match="without repeats"):
        packed([5, 1], 2, 4)


@pytest.mark.parametrize(("experts", "ranks"), [(10, 4), (4, 8), (8, 0)])
def test_ranks_that_do_not_divide_the_experts_are_refused(experts, ranks):
    for place in (contiguous, strided):
        with pytest.raises(InputError):
            place(experts, ranks)


def test_impossible_placements_are_refused():
    with pytest.raises(InputError, match="expert 1 is held by no rank"):
        Placement(((0,), (2,)))
    with pytest.raises(InputError, match="rank 0 holds an expert twice"):
        Placement(((0, 0), (1, 2)))
    with pytest.raises(InputError, match="for 4 experts, the counts are of 3"):
        rank_loads([1, 2, 3], contiguous(4, 2))


def test_the_ranks_touch_the_experts_of_the_layer_between_them():
    counts = [50, 30, 10, 5, 4, 1]
    parts = rank_distinct_experts(counts, 1, 20, contiguous(6, 3))
    assert sum(parts) == pytest.approx(distinct_experts(counts, 1, 20))
    assert parts[0] > parts[1] > parts[2]


def test_the_hottest_rank_by_tokens_need_not_be_the_hottest_by_experts():
    counts = [97, 0, 1, 1, 0, 1]
    placement = contiguous(6, 2)
    tokens, touched = rank_loads(counts, placement), rank_distinct_experts(counts, 1, 200, placement)
    assert tokens[0] > tokens[1] and touched[0] > touched[1]
    counts = [98, 0, 0, 1, 1, 1]
    tokens, touched = rank_loads(counts, placement), rank_distinct_experts(counts, 1, 200, placement)
    assert tokens[0] > tokens[1] and touched[0] < touched[1]


def test_the_time_of_a_rank_is_the_sum_over_its_experts_and_an_idle_expert_is_free():
    def seconds(tokens):
        assert tokens > 0
        return 1 + 0.1 * tokens

    assert rank_seconds([10, 0, 5, 5], contiguous(4, 2), seconds) == pytest.approx([2, 3])
    assert rank_seconds([10, 0, 5, 5], contiguous(4, 1), seconds) == pytest.approx([5])
    # Concentrated routing of as many tokens is faster on one device and slower on two.
    even, skewed = [5, 5, 5, 5], [19, 1, 0, 0]
    assert sum(rank_seconds(skewed, contiguous(4, 1), seconds)) < sum(rank_seconds(even, contiguous(4, 1), seconds))
    assert max(rank_seconds(skewed, contiguous(4, 2), seconds)) > max(rank_seconds(even, contiguous(4, 2), seconds))


def test_packing_helps_the_traffic_it_was_computed_on_and_no_other(shared):
    np = pytest.importorskip("numpy")
    with np.load(shared / "facts" / "moe-data" / "esft_deepseek_v2_lite_topk_ids.npz", allow_pickle=False) as file:
        ids = {task: file[task] for task in ("translation", "intent")}

    def counts(task, half):
        tokens = ids[task].shape[1] // 2
        part = ids[task][:, :tokens] if half == 0 else ids[task][:, tokens:]
        return [np.bincount(layer.ravel(), minlength=64).tolist() for layer in part]

    def hottest(served, placements):
        ratios = [max_over_mean(rank_loads(row, p)) for row, p in zip(served, placements, strict=True)]
        return sum(ratios) / len(ratios)

    served = counts("translation", 1)
    assert hottest(served, [contiguous(64, 8)] * 26) == pytest.approx(1.68, abs=0.03)
    assert hottest(served, [packed(row, 8) for row in counts("translation", 0)]) == pytest.approx(1.04, abs=0.02)
    assert hottest(served, [packed(row, 8) for row in counts("intent", 0)]) > 1.4


def test_a_replica_takes_half_of_the_tokens_and_is_touched_less_often():
    # Top-1 of two experts, used by 3 and 1 of 4 tokens; the first is held by both ranks.
    placement = Placement(((0, 1), (0,)))
    hot, cold = 1 - (1 - 0.75 / 2) ** 8, 1 - (1 - 0.25) ** 8
    assert rank_distinct_experts([3, 1], 1, 8, placement) == pytest.approx([hot + cold, hot])
