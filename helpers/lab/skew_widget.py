"""What a gate's skew does, with sliders: the load of the experts, what a step reads, and its time on 1 and R devices.

The numbers come from `predict_skew`, a function without widgets.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import ipywidgets
import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from helpers.accounts import (
    PLACEMENTS,
    contiguous,
    device,
    effective_experts,
    expected_distinct_experts,
    expert_floor_seconds,
    max_over_mean,
    null_max_over_mean,
    packed,
    rank_seconds,
    read_config,
)
from helpers.engine.moe_skew import draw_routing, zipf_popularity
from helpers.errors import InputError
from helpers.lab import figures

LAYERS: Mapping[str, tuple[int, int]] = {
    "Mixtral-8x7B, top-2 of 8": (8, 2),
    "OLMoE-1B-7B, top-8 of 64": (64, 8),
    "Qwen3-30B-A3B, top-8 of 128": (128, 8),
    "DeepSeek-V3, top-8 of 256": (256, 8),
}
"""Experts and experts per token of a layer, by model."""

ALPHAS = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf"))
BATCHES = (1, 4, 16, 64, 256, 1024, 4096)
RANKS = (2, 4, 8)
PACKED = "packed on these counts"

Clock = Callable[[float], float]


@dataclass(frozen=True)
class SkewQuestion:
    """A layer of `experts`, a gate of skew `alpha` (popularity ∝ rank^−alpha; inf: all tokens to the same k), a step of
    `tokens` tokens, and `ranks` that hold the experts by `placement` (contiguous, strided, or PACKED)."""

    experts: int = 64
    experts_per_token: int = 8
    alpha: float = 1.0
    tokens: int = 64
    ranks: int = 4
    placement: str = "contiguous"


@dataclass(frozen=True)
class SkewPrediction:
    """What `predict_skew` says of one step of one layer; the fields `even_…` are those of a gate without skew.

    `counts` [E] tokens of each expert; `distinct` experts they touch; `device_s` seconds on one device that holds all
    experts, `by_rank_s` [R] seconds of each rank. Sending tokens between ranks is not in it.
    """

    question: SkewQuestion
    counts: tuple[int, ...]
    distinct: int
    even_distinct: float
    device_s: float
    even_device_s: float
    by_rank_s: tuple[float, ...]
    even_by_rank_s: tuple[float, ...]


def predict_skew(question: SkewQuestion, expert_seconds: Clock) -> SkewPrediction:
    """Draw one step's routing (always the same for a question) and add up t(M) = `expert_seconds` over the experts.

    Raises InputError for a placement that is not known, or ranks that do not divide the experts.
    """
    experts, ranks = question.experts, question.ranks
    if question.placement not in (*PLACEMENTS, PACKED):
        raise InputError(f"placement {question.placement!r} is not known: {', '.join((*PLACEMENTS, PACKED))}")

    def step(alpha: float) -> tuple[tuple[int, ...], float, tuple[float, ...]]:
        routing = draw_routing(zipf_popularity(experts, alpha), question.tokens, question.experts_per_token)
        counts = tuple(routing.counts(experts).tolist())
        place = (
            packed(counts, ranks) if question.placement == PACKED else PLACEMENTS[question.placement](experts, ranks)
        )
        (alone,) = rank_seconds(counts, contiguous(experts, 1), expert_seconds)
        return counts, alone, tuple(rank_seconds(counts, place, expert_seconds))

    counts, device_s, by_rank_s = step(question.alpha)
    _, even_device_s, even_by_rank_s = step(0.0)
    return SkewPrediction(
        question=question,
        counts=counts,
        distinct=sum(map(bool, counts)),
        even_distinct=expected_distinct_experts(experts, question.experts_per_token, question.tokens),
        device_s=device_s,
        even_device_s=even_device_s,
        by_rank_s=by_rank_s,
        even_by_rank_s=even_by_rank_s,
    )


def to_text(found: SkewPrediction) -> str:
    """The prediction in lines for people, each beside the same without skew."""
    asked = found.question
    null = null_max_over_mean(asked.experts, asked.experts_per_token, asked.tokens)
    hottest, even_hottest = max(found.by_rank_s), max(found.even_by_rank_s)
    rows = (
        ("max/mean of the experts", f"{max_over_mean(found.counts):8.2f}", f"a perfect gate {null:.2f}"),
        ("effective experts", f"{effective_experts(found.counts):8.1f}", f"of {asked.experts}"),
        ("distinct experts of the step", f"{found.distinct:8d}", f"even {found.even_distinct:.1f}"),
        ("one device", f"{found.device_s * 1e3:8.3f} ms", _against(found.device_s, found.even_device_s)),
        (f"{asked.ranks} ranks, the hottest", f"{hottest * 1e3:8.3f} ms", _against(hottest, even_hottest)),
    )
    alpha = "all to the same" if asked.alpha == float("inf") else f"alpha {asked.alpha:g}"
    title = f"top-{asked.experts_per_token} of {asked.experts}, {asked.tokens} tokens, {alpha}, {asked.placement}"
    return "\n".join([title, *(f"  {name:<29}{value:<12} ({beside})" for name, value, beside in rows)])


def _against(seconds: float, even_s: float) -> str:
    return f"{seconds / even_s:.2f} times an even gate's {even_s * 1e3:.3f} ms"


def skew_figure(found: SkewPrediction) -> tuple[Figure, str]:
    """Tokens of each expert on the left, seconds of each rank on the right, each with its mean; and the alt text."""
    asked, mean = found.question, sum(found.counts) / len(found.counts)
    with mpl.rc_context(figures.STYLE):
        fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(2, 1), layout="constrained")
        left.bar(range(len(found.counts)), found.counts, width=1.0, color=figures.COLOURS[0], edgecolor="white")
        left.axhline(mean, color="black", linestyle="--", label="mean")
        left.set(xlabel="Expert (number)", ylabel="Load (tokens)")
        milliseconds = [seconds * 1e3 for seconds in found.by_rank_s]
        right.bar(range(asked.ranks), milliseconds, color=figures.COLOURS[1], hatch="//", edgecolor="white")
        right.axhline(sum(milliseconds) / asked.ranks, color="black", linestyle="--", label="mean")
        right.set(xlabel="Rank (number)", ylabel="Predicted time (ms)", xticks=range(asked.ranks))
        left.legend(fontsize=10), right.legend(fontsize=10)
    return fig, f"Load of {asked.experts} experts, and the predicted time of each of {asked.ranks} ranks."


class SkewWidget(ipywidgets.VBox):
    """Sliders above a prediction; `clocks` are the t(M) to choose from, by name."""

    def __init__(self, clocks: Mapping[str, Clock]) -> None:
        wide = {"style": {"description_width": "9em"}, "layout": ipywidgets.Layout(width="34em")}
        slide = {**wide, "continuous_update": False}
        self.clocks = dict(clocks)
        self.alpha = ipywidgets.SelectionSlider(
            options=[("all to the same" if alpha == float("inf") else f"{alpha:g}", alpha) for alpha in ALPHAS],
            value=0.0,
            description="Skew (alpha)",
            **slide,
        )
        self.tokens = ipywidgets.SelectionSlider(
            options=[(f"{tokens:,}", tokens) for tokens in BATCHES], value=64, description="Step (tokens)", **slide
        )
        self.layer = ipywidgets.Dropdown(
            options=list(LAYERS.items()), value=(64, 8), description="Gate (k of E)", **wide
        )
        self.ranks = ipywidgets.Dropdown(options=RANKS, value=4, description="Ranks (EP)", **wide)
        self.placement = ipywidgets.Dropdown(options=(*PLACEMENTS, PACKED), description="Placement", **wide)
        self.clock = ipywidgets.Dropdown(options=list(self.clocks), description="One expert's t(M)", **wide)
        self._answer = ipywidgets.Output()
        knobs = (self.alpha, self.tokens, self.layer, self.ranks, self.placement, self.clock)
        super().__init__([ipywidgets.Box(knobs, layout=ipywidgets.Layout(flex_flow="row wrap")), self._answer])
        for knob in knobs:
            knob.observe(self._show, "value")
        self._show()

    def __repr__(self) -> str:
        # What a stored notebook shows in the place of the sliders.
        return "[skew: run this cell first, then move its sliders]"

    @property
    def question(self) -> SkewQuestion:
        """What the sliders and lists ask."""
        experts, experts_per_token = self.layer.value
        return SkewQuestion(
            experts, experts_per_token, self.alpha.value, self.tokens.value, self.ranks.value, self.placement.value
        )

    @property
    def text(self) -> str:
        """The words that are shown."""
        return "".join(part["text"] for part in self._answer.outputs if part["output_type"] == "stream")

    def _show(self, _change: object = None) -> None:
        found = predict_skew(self.question, self.clocks[self.clock.value])
        fig, alt = skew_figure(found)
        image = {"text/html": figures.image_html(fig, alt), "text/plain": f"[figure: {alt}]"}
        # Set as a whole, and not printed: the old answer is replaced in one step.
        self._answer.outputs = (
            {"output_type": "stream", "name": "stdout", "text": to_text(found) + "\n"},
            {"output_type": "display_data", "data": image, "metadata": {}},
        )


def show_skew(measured: Clock | None = None) -> SkewWidget:
    """The sliders; the last line of a cell shows them. `measured` is this machine's t(M), chosen at first where given.

    Always there: the floor of one DeepSeek-V3 expert on an H100.
    """
    clocks = {} if measured is None else {"measured on this machine": measured}
    return SkewWidget({**clocks, "floor, DeepSeek-V3 expert on H100 SXM": v3_expert_floor()})


def v3_expert_floor(gpu: str = "H100 SXM") -> Clock:
    """t(M) of one routed expert of DeepSeek-V3 at the fp8 ceilings of `gpu`."""
    model = read_config("deepseek-v3")
    return expert_floor_seconds(model.hidden_size, model.layers[-1].feed_forward.expert_width, device(gpu), "fp8")
