"""Figures that can be read by everyone: labelled axes, markers and line styles besides colour, alt text, a text line.

Each function returns a matplotlib figure; `show_figure` puts it into the notebook.
"""

import base64
import html
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from helpers.errors import InputError

STYLE = {
    "figure.figsize": (8.0, 4.5),
    "figure.dpi": 100,
    "font.size": 12,
    "axes.grid": True,
    "grid.alpha": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 8.0,
}
# Okabe-Ito colours, told apart with colour blindness; always paired with a marker, a dash pattern and a hatch.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))
HATCHES = ("", "//", "..", "xx", "\\\\", "++")


def show_figure(fig: Figure, alt: str, summary: str = "") -> None:
    """Show `fig` with alt text that survives in JupyterLab and in every HTML export, and print a line under it.

    alt: what the picture shows, one sentence. summary: what to read off it, one line (default: the alt text). Both are
    stored as text and compared by nbval; the picture itself is not (tests/notebooks/nbval-sanitize.txt), so in a figure
    of measured values write only what holds on every machine. The figure is closed.
    """
    image = image_html(fig, alt)
    alt, summary = " ".join(alt.split()), " ".join((summary or alt).split())
    if InteractiveShell.initialized():  # outside a notebook there is nothing to show it in, and the line must do
        display({"text/html": image, "text/plain": f"[figure: {alt}]"}, raw=True)
    print(f"Figure: {summary}")


def image_html(fig: Figure, alt: str) -> str:
    """`fig` as an HTML image with alt text; the figure is closed. InputError where the alt text is missing."""
    alt = " ".join(alt.split())
    if len(alt) < 10:
        raise InputError(f"a figure needs alt text that says what it shows, not {alt!r}")
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=100, bbox_inches="tight")
    plt.close(fig)
    picture = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt, quote=True)}" src="data:image/png;base64,{picture}">'


@dataclass(frozen=True)
class Point:
    """A measured or predicted phase on the roofline: FLOPs per byte, and FLOP/s achieved."""

    label: str
    intensity_flops_per_byte: float
    flops_per_s: float


def roofline_figure(device, dtype: str, points: Sequence[Point], title: str = "") -> Figure:
    """The roofline of `device` (an `accounts.Device`) in `dtype`, with `points` on it, both axes logarithmic.

    The roof is min(peak FLOP/s, bandwidth × intensity); the ridge point is peak / bandwidth, in FLOPs per byte.
    """
    if dtype not in device.flops_per_s:
        raise InputError(f"device {device.name!r} has no FLOP/s for dtype {dtype!r}")
    peak, bandwidth = device.flops_per_s[dtype], device.bandwidth_bytes_per_s
    for point in points:
        if not (point.intensity_flops_per_byte > 0 and point.flops_per_s > 0):
            raise InputError(f"point {point.label!r} is not positive: it has no place on logarithmic axes")
    ridge = peak / bandwidth
    low = min([ridge / 30, *(p.intensity_flops_per_byte / 3 for p in points)])
    high = max([ridge * 30, *(p.intensity_flops_per_byte * 3 for p in points)])
    intensity = np.geomspace(low, high, 200)
    with mpl.rc_context(STYLE):
        fig, ax = plt.subplots()
        ax.plot(intensity, np.minimum(peak, bandwidth * intensity), color="black", label="roof")
        ax.axvline(ridge, color="black", linestyle=":", label=f"ridge point {ridge:.3g} FLOP/byte")
        for point, (colour, marker) in zip(points, itertools.cycle(zip(COLOURS, MARKERS, strict=True)), strict=False):
            at = (point.intensity_flops_per_byte, point.flops_per_s)
            ax.plot(*at, marker=marker, color=colour, linestyle="none", label=point.label, markersize=10)
        ax.set(xscale="log", yscale="log", xlabel="Arithmetic intensity (FLOP/byte)", ylabel="Compute rate (FLOP/s)")
        ax.set_title(title or f"Roofline of {device.name}, {dtype}")
        ax.legend(fontsize=10, loc="lower right")
    return fig


@dataclass(frozen=True)
class Series:
    """One line of a sweep: `y` over `x`, with an optional band from `low` to `high` (quartiles of repeats)."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


def lines_figure(
    series: Sequence[Series],
    xlabel: str,
    ylabel: str,
    title: str = "",
    logx: bool = False,
    logy: bool = False,
) -> Figure:
    """Lines with a spread band each; `xlabel` and `ylabel` name the unit, as in "Context (tokens)"."""
    _require_unit(xlabel), _require_unit(ylabel)
    with mpl.rc_context(STYLE):
        fig, ax = plt.subplots()
        looks = itertools.cycle(zip(COLOURS, MARKERS, DASHES, strict=True))
        for line, (colour, marker, dash) in zip(series, looks, strict=False):
            if len(line.x) != len(line.y):
                raise InputError(f"series {line.label!r} has {len(line.x)} x values and {len(line.y)} y values")
            ax.plot(line.x, line.y, color=colour, marker=marker, linestyle=dash, label=line.label)
            if line.low is not None and line.high is not None:
                ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
        ax.set(xlabel=xlabel, ylabel=ylabel, title=title)
        if logx:
            ax.set_xscale("log", base=2)
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        if logy:
            ax.set_yscale("log")
        elif all(value >= 0 for line in series for value in line.y):
            ax.set_ylim(bottom=0)
        ax.legend(fontsize=10)
    return fig


def bars_figure(bars: Mapping[str, Mapping[str, float]], ylabel: str, title: str = "", stacked: bool = False) -> Figure:
    """Bars, grouped or stacked: ``{"Llama-3.1-8B": {"weights": 16.1, "KV cache": 1.3}, …}`` (bar -> part -> value)."""
    _require_unit(ylabel)
    parts = list(dict.fromkeys(part for values in bars.values() for part in values))
    if not parts:
        raise InputError("a bar figure needs at least one value")
    positions = np.arange(len(bars))
    width = 0.6 if stacked else 0.8 / len(parts)
    with mpl.rc_context(STYLE):
        fig, ax = plt.subplots()
        base = np.zeros(len(bars))
        looks = itertools.cycle(zip(COLOURS, HATCHES, strict=True))
        for number, (part, (colour, hatch)) in enumerate(zip(parts, looks, strict=False)):
            heights = np.array([values.get(part, 0.0) for values in bars.values()])
            shift = 0 if stacked else (number - (len(parts) - 1) / 2) * width
            look = {"color": colour, "hatch": hatch, "edgecolor": "white"}
            ax.bar(positions + shift, heights, width, bottom=base if stacked else 0, label=part, **look)
            base = base + heights
        ax.set_xticks(positions, list(bars))
        ax.set(ylabel=ylabel, title=title)
        ax.grid(axis="x", visible=False)
        if len(parts) > 1:
            ax.legend(fontsize=10)
    return fig


def _require_unit(label: str) -> None:
    if not label.rstrip().endswith(")"):
        raise InputError(f"axis label {label!r} names no unit: write it as 'Context (tokens)'")
