"""The calculator of notebook 03 as sliders and lists; what it computes is in `helpers.lab.calculator`."""

import ipywidgets

from helpers.accounts import device_names, model_names
from helpers.errors import InputError
from helpers.lab import calculator, figures

_TP = (1, 2, 4, 8, 16)


class CalculatorWidget(ipywidgets.VBox):
    """Sliders and lists above the answer; `question` is what they say now.

    Whatever the accounts refuse is shown as one sentence, and no number beside it.
    """

    def __init__(self, start: calculator.Question) -> None:
        wide = {"style": {"description_width": "9em"}, "layout": ipywidgets.Layout(width="27em")}
        self.model = ipywidgets.Dropdown(
            options=[*model_names(), calculator.PASTED], value=start.model, description="Model", **wide
        )
        self.context = ipywidgets.SelectionSlider(
            options=[(f"{tokens:,}", tokens) for tokens in calculator.CONTEXTS],
            value=start.context,
            description="Context (tokens)",
            continuous_update=False,
            **wide,
        )
        self.kv_dtype = ipywidgets.Dropdown(
            options=calculator.KV_DTYPES, value=start.kv_dtype, description="KV dtype", **wide
        )
        self.tp = ipywidgets.Dropdown(options=_TP, value=start.tp, description="Ranks (TP)", **wide)
        self.gpu = ipywidgets.Dropdown(options=device_names(), value=start.gpu, description="Card", **wide)
        self.utilisation = ipywidgets.FloatSlider(
            value=start.utilisation,
            min=0.5,
            max=1.0,
            step=0.05,
            readout_format=".2f",
            description="Utilisation",
            continuous_update=False,
            **wide,
        )
        self.engine = ipywidgets.Dropdown(options=calculator.ENGINES, value=start.engine, description="Engine", **wide)
        self.pasted = ipywidgets.Textarea(
            value=start.pasted,
            placeholder="the text of a config.json; then click outside this box",
            description="Your config.json",
            continuous_update=False,
            style=wide["style"],
            layout=ipywidgets.Layout(width="54em", max_width="100%", height="6em"),
        )
        self._answer = ipywidgets.Output()
        self._knobs = (self.model, self.context, self.kv_dtype, self.tp, self.gpu, self.utilisation, self.engine)
        knobs = ipywidgets.Box(self._knobs, layout=ipywidgets.Layout(flex_flow="row wrap"))
        super().__init__([knobs, self.pasted, self._answer])
        for knob in self._knobs:
            knob.observe(self._show, "value")
        self.pasted.observe(self._take_pasted, "value")
        self._show()

    def __repr__(self) -> str:
        # What a stored notebook shows in the place of the sliders.
        return "[calculator: run this cell first, then move its sliders]"

    @property
    def question(self) -> calculator.Question:
        """What the sliders and lists ask."""
        return calculator.Question(
            model=self.model.value,
            context=self.context.value,
            kv_dtype=self.kv_dtype.value,
            tp=self.tp.value,
            gpu=self.gpu.value,
            utilisation=round(self.utilisation.value, 4),
            engine=self.engine.value,
            pasted=self.pasted.value,
        )

    @property
    def text(self) -> str:
        """The words that are shown: the answer, or the refusal."""
        return "".join(part["text"] for part in self._answer.outputs if part["output_type"] == "stream")

    def _take_pasted(self, _change: object) -> None:
        if self.pasted.value.strip() and self.model.value != calculator.PASTED:
            self.model.value = calculator.PASTED  # which shows the answer
        else:
            self._show()

    def _show(self, _change: object = None) -> None:
        # Set as a whole, and not printed: the old answer is replaced in one step.
        self._answer.outputs = self._outputs()

    def _outputs(self) -> tuple[dict, ...]:
        try:
            answer = calculator.calculate(self.question)
            fig, alt = calculator.curve_figure(answer)
        except InputError as error:
            return ({"output_type": "stream", "name": "stdout", "text": f"refused: {error}\n"},)
        image = {"text/html": figures.image_html(fig, alt), "text/plain": f"[figure: {alt}]"}
        return (
            {"output_type": "stream", "name": "stdout", "text": calculator.to_text(answer) + "\n"},
            {"output_type": "display_data", "data": image, "metadata": {}},
        )


def show_calculator(model: str = "llama-3.1-8b") -> CalculatorWidget:
    """The calculator, set to `model` at first; the last line of a cell shows it."""
    return CalculatorWidget(calculator.Question(model))
