"""Figures: alt text, units, a look that does not rest on colour, and refusals."""

from types import SimpleNamespace

import matplotlib

matplotlib.use("agg")

import pytest
from matplotlib import pyplot as plt

from helpers.errors import InputError
from helpers.lab import figures

H100 = SimpleNamespace(name="H100", flops_per_s={"bf16": 989.4e12}, bandwidth_bytes_per_s=3.35e12)
LINES = [
    figures.Series("batch 1", [1, 2, 4], [1.0, 2.0, 3.0], [0.5, 1.5, 2.5], [1.5, 2.5, 3.5]),
    figures.Series("batch 8", [1, 2, 4], [2.0, 3.0, 5.0]),
]


def test_show_figure_gives_an_image_with_alt_text_and_a_printed_line(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(figures.InteractiveShell, "initialized", lambda: True)
    monkeypatch.setattr(figures, "display", lambda data, raw: shown.append((data, raw)))
    fig = figures.lines_figure(LINES, "Context (tokens)", "Step time (ms)")
    figures.show_figure(fig, 'Step time, "two" lines\nover <context>.', "longer is slower")
    ((data, raw),) = shown
    assert raw
    assert data["text/html"].startswith(
        '<img alt="Step time, &quot;two&quot; lines over &lt;context&gt;." src="data:image/png;base64,iVBOR'
    )
    assert data["text/plain"].startswith("[figure: Step time")
    assert capsys.readouterr().out == "Figure: longer is slower\n"
    assert not plt.fignum_exists(fig.number)


def test_a_figure_without_alt_text_is_refused():
    fig = figures.lines_figure(LINES, "Context (tokens)", "Step time (ms)")
    with pytest.raises(InputError, match="a figure needs alt text"):
        figures.show_figure(fig, " plot ")
    plt.close(fig)


def test_lines_differ_by_marker_and_dash_and_carry_their_band():
    fig = figures.lines_figure(LINES, "Context (tokens)", "Step time (ms)", logx=True)
    (ax,) = fig.axes
    assert len({(line.get_marker(), line.get_linestyle()) for line in ax.lines}) == 2
    assert len(ax.collections) == 1
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("Context (tokens)", "Step time (ms)")
    assert ax.get_ylim()[0] == 0
    plt.close(fig)


def test_the_roof_bends_at_the_ridge_point_and_the_points_lie_where_they_belong():
    points = [figures.Point("prefill", 400, 7e14), figures.Point("decode", 1, 3e12)]
    fig = figures.roofline_figure(H100, "bf16", points)
    (ax,) = fig.axes
    roof, ridge, prefill, decode = ax.lines
    for intensity, rate in zip(*roof.get_data(), strict=True):
        assert rate == pytest.approx(min(989.4e12, 3.35e12 * intensity))
    assert ridge.get_xdata()[0] == pytest.approx(989.4 / 3.35)
    assert (prefill.get_xdata()[0], prefill.get_ydata()[0]) == (400, 7e14)
    assert prefill.get_marker() != decode.get_marker()
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    plt.close(fig)


@pytest.mark.parametrize("stacked", [True, False])
def test_bars_show_every_value_with_a_hatch_for_each_part(stacked):
    bars = {"A": {"weights": 16.0, "KV": 1.0}, "B": {"weights": 3.0, "KV": 5.0}}
    fig = figures.bars_figure(bars, "Memory (GB)", stacked=stacked)
    (ax,) = fig.axes
    assert [bar.get_height() for bar in ax.patches] == [16.0, 3.0, 1.0, 5.0]
    assert len({bar.get_hatch() for bar in ax.patches}) == 2
    assert [bar.get_y() for bar in ax.patches] == ([0, 0, 16.0, 3.0] if stacked else [0, 0, 0, 0])
    plt.close(fig)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(InputError, match="no FLOP/s for dtype 'fp8'"):
        figures.roofline_figure(H100, "fp8", [])
    with pytest.raises(InputError, match="point 'idle' is not positive"):
        figures.roofline_figure(H100, "bf16", [figures.Point("idle", 1, 0)])
    with pytest.raises(InputError, match="'Context' names no unit"):
        figures.lines_figure(LINES, "Context", "Step time (ms)")
    with pytest.raises(InputError, match="3 x values and 1 y values"):
        figures.lines_figure([figures.Series("a", [1, 2, 3], [1])], "Context (tokens)", "Time (s)")
    with pytest.raises(InputError, match="at least one value"):
        figures.bars_figure({}, "Memory (GB)")
    plt.close("all")
