"""The skew sliders: what is predicted adds up, has the signs the course teaches, and changes when a slider moves."""

import math

import pytest
from matplotlib import pyplot as plt

from helpers.errors import InputError
from helpers.lab.skew_widget import (
    ALPHAS,
    BATCHES,
    LAYERS,
    PACKED,
    RANKS,
    SkewQuestion,
    predict_skew,
    show_skew,
    skew_figure,
    to_text,
    v3_expert_floor,
)


def reading(_tokens):
    """Every expert that runs costs a second, whatever its tokens: reading binds."""
    return 1.0


def computing(tokens):
    """Every token costs a second: compute binds."""
    return float(tokens)


def test_where_reading_binds_concentration_is_faster_on_one_device_and_on_ranks():
    found = predict_skew(SkewQuestion(alpha=math.inf, tokens=64), reading)
    assert (found.distinct, found.device_s, max(found.by_rank_s)) == (8, 8.0, 8.0)
    assert found.even_device_s == 64 and max(found.even_by_rank_s) == 16


def test_where_compute_binds_the_hottest_rank_does_the_work_of_all():
    found = predict_skew(SkewQuestion(alpha=math.inf, tokens=64, ranks=4), computing)
    assert found.device_s == found.even_device_s == sum(found.by_rank_s) == 64 * 8
    assert found.by_rank_s == (512.0, 0.0, 0.0, 0.0)
    spread = predict_skew(SkewQuestion(alpha=math.inf, tokens=64, ranks=4, placement=PACKED), computing)
    assert spread.by_rank_s == (128.0,) * 4


@pytest.mark.parametrize("experts_per_token", [1, 8])
def test_one_token_touches_its_own_experts_alone(experts_per_token):
    found = predict_skew(SkewQuestion(tokens=1, experts_per_token=experts_per_token), reading)
    assert found.distinct == found.even_distinct == experts_per_token


def test_a_placement_that_is_not_known_is_refused():
    with pytest.raises(InputError, match="alphabetical"):
        predict_skew(SkewQuestion(placement="alphabetical"), reading)


def test_every_choice_of_the_sliders_has_an_answer():
    for experts, k in LAYERS.values():
        for ranks in RANKS:
            for placement in ("contiguous", "strided", PACKED):
                found = predict_skew(SkewQuestion(experts, k, ALPHAS[3], BATCHES[2], ranks, placement), reading)
                assert sum(found.counts) == BATCHES[2] * k and len(found.by_rank_s) == ranks


def test_the_text_names_the_null_and_both_signs():
    found = predict_skew(SkewQuestion(alpha=math.inf, tokens=64), v3_expert_floor())
    text = to_text(found)
    assert "a perfect gate 1." in text and "0.50 times an even gate's" in text
    fig, alt = skew_figure(found)
    plt.close(fig)
    assert "64 experts" in alt


def test_a_moved_slider_replaces_the_answer():
    widget = show_skew(reading)
    assert widget.clock.value == "measured on this machine"
    before = widget.text
    widget.alpha.value = math.inf
    assert widget.question.alpha == math.inf and widget.text != before
    assert widget.text.count("one device") == 1
    measured = widget.text
    widget.clock.value = "floor, DeepSeek-V3 expert on H100 SXM"
    assert widget.text != measured
    assert repr(widget).startswith("[skew: run this cell first")
