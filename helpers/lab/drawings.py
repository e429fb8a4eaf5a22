"""Drawings that explain a term; they show no data."""

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from helpers.lab.figures import COLOURS, STYLE

GREY = "#CCCCCC"


def request_timeline() -> Figure:
    """One request on a time axis without scale: queue, prefill, decode steps, with TTFT and TPOT marked."""
    first_token, step, steps = 6.0, 1.2, 5
    decode = [(first_token + step * index, step - 0.1) for index in range(steps)]
    phases = (
        ("queue", [(0, 2)], GREY, "//"),
        ("prefill", [(2, first_token - 2.1)], COLOURS[0], ""),
        ("decode steps", decode, COLOURS[1], ".."),
    )
    spans = ((0, first_token, "TTFT"), (first_token + 2 * step, first_token + 3 * step, "TPOT"))
    with mpl.rc_context(STYLE):
        fig, ax = plt.subplots(figsize=(8, 2.6))
        for label, bars, colour, hatch in phases:
            ax.broken_barh(bars, (0, 1), facecolor=colour, hatch=hatch, edgecolor="white", label=label)
        for start, end, name in spans:
            ax.annotate("", (start, 1.35), (end, 1.35), arrowprops={"arrowstyle": "<->"})
            ax.text((start + end) / 2, 1.5, name, ha="center")
        ax.set(ylim=(0, 2.1), xticks=[], yticks=[], xlabel="Time since the request was sent (not to scale)")
        ax.spines["left"].set_visible(False)
        ax.legend(ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.2), frameon=False)
    return fig
