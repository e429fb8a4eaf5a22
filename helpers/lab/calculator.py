"""The KV calculator of notebook 03 without its widgets: a question, the answer with every term named, and a figure."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from helpers.accounts import (
    Capacity,
    Device,
    Model,
    bytes_of,
    device,
    format_bytes,
    kv_bytes,
    kv_bytes_per_token,
    max_concurrency,
    parse_config_text,
    read_config,
    state_bytes,
    weight_bytes,
)
from helpers.errors import InputError
from helpers.lab import figures

PASTED = "the config.json pasted below"
"""The choice of a model that stands for the text in `Question.pasted`."""

ENGINES = ("ideal", "vllm")
KV_DTYPES = ("bf16", "fp16", "fp8", "int8", "q8_0", "q4_0")
CONTEXTS = tuple(2**power for power in range(10, 18))
COMPARED = ("llama-3.1-70b", "gemma-3-27b", "qwen3-next-80b-a3b", "deepseek-v3")
"""Models drawn beside the chosen one: grouped, sliding windows, fixed state, latent attention."""

_WIDTH = 30


@dataclass(frozen=True)
class Question:
    """What is asked: a registry name (or PASTED and the text of a config.json), a request, and a server.

    `context` in tokens; `tp` ranks of `gpu` work together; `utilisation` is the share of its visible memory that
    the engine may use; `engine` is one of ENGINES.
    """

    model: str
    context: int = 8192
    kv_dtype: str = "bf16"
    tp: int = 1
    gpu: str = "H100 SXM"
    utilisation: float = 0.9
    engine: str = "ideal"
    pasted: str = ""


@dataclass(frozen=True)
class Answer:
    """What `calculate` found, in bytes of one rank; `capacity` None where the visible memory of the card is unknown."""

    question: Question
    model: Model
    gpu: Device
    weight_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_request: int
    state_bytes_per_request: int
    capacity: Capacity | None


def calculate(question: Question) -> Answer:
    """The account of `question`, the same as the command ``account`` gives for it.

    Raises InputError, in one sentence, for whatever the accounts refuse.
    """
    model = model_of(question)
    sizes = (question.kv_dtype, question.tp, question.engine)
    gpu = device(question.gpu)
    capacity = None
    if gpu.visible_memory_bytes is not None:
        capacity = max_concurrency(
            model,
            question.context,
            gpu,
            tp=question.tp,
            kv_dtype=question.kv_dtype,
            engine=question.engine,
            utilisation=question.utilisation,
        )
    return Answer(
        question=question,
        model=model,
        gpu=gpu,
        weight_bytes=weight_bytes(model, None, question.tp).total,
        kv_bytes_per_token=kv_bytes_per_token(model, question.context, *sizes),
        kv_bytes_per_request=kv_bytes(model, question.context, *sizes),
        state_bytes_per_request=state_bytes(model, tp=question.tp, engine=question.engine),
        capacity=capacity,
    )


def model_of(question: Question) -> Model:
    """The model asked about. Raises InputError for a config that is not understood, naming the key."""
    if question.model != PASTED:
        return read_config(question.model)
    if not question.pasted.strip():
        raise InputError("no config.json is pasted yet: paste its text, or choose a model of the list")
    return parse_config_text(question.pasted, "the pasted config", "the pasted config")


def hidden_size_bytes(model: Model, tokens: int, dtype: str = "bf16") -> int:
    """KV bytes by the popular formula 2 · layers · hidden size · bytes per element · tokens, which is right for MHA."""
    return bytes_of(2 * len(model.layers) * model.hidden_size * tokens, dtype)


def request_bytes(model: Model, lengths: Sequence[int], dtype: str = "bf16") -> tuple[int, ...]:
    """Bytes of one request at each of `lengths` tokens, KV cache and state, whole and without rounding."""
    state = state_bytes(model)
    return tuple(kv_bytes(model, tokens, dtype) + state for tokens in lengths)


def to_text(answer: Answer) -> str:
    """The answer as a table for people: each term with its sign, GB beside GiB, the notes at the end."""
    question, capacity = answer.question, answer.capacity
    ranks = question.tp
    simple = hidden_size_bytes(answer.model, question.context, question.kv_dtype)
    rows = [
        ("by 2·layers·hidden·bytes", f"{format_bytes(simple)} a request"),
        ("one card holds" if ranks == 1 else f"each of the {ranks} ranks holds", ""),
        ("  weights", format_bytes(answer.weight_bytes)),
        ("  KV cache, the next token", format_bytes(answer.kv_bytes_per_token)),
        (f"  KV cache, {question.context:,} tokens", format_bytes(answer.kv_bytes_per_request)),
    ]
    if answer.state_bytes_per_request:
        rows.append(("  state of fixed size", format_bytes(answer.state_bytes_per_request)))
    if capacity is not None:
        rows += _capacity_rows(capacity, question)
    title = f"{answer.model.name}, KV cache in {question.kv_dtype}, {question.tp} × {answer.gpu.name}"
    if question.engine != "ideal":
        title += f", engine {question.engine}"
    lines = [title, *(f"  {label:<{_WIDTH}}{value}".rstrip() for label, value in rows)]
    notes = [*answer.model.notes, *(capacity.notes if capacity is not None else ())]
    if capacity is None:
        notes.append(f"no visible-memory figure is known for {answer.gpu.name}: how many requests fit is not given")
    return "\n".join([*lines, *(f"note: {note}" for note in notes)])


def _capacity_rows(capacity: Capacity, question: Question) -> list[tuple[str, str]]:
    (first, visible), *taken = capacity.terms
    rows = [("all together", ""), (f"  {first}", format_bytes(visible))]
    rows += [(f"  − {name}", format_bytes(-size)) for name, size in taken if size]
    rows.append(("  = left for the cache", format_bytes(capacity.pool_bytes)))
    each = format_bytes(capacity.bytes_per_request)
    if capacity.unit != "byte":
        each += f", {capacity.units_per_request:,} {capacity.unit}s"
    rows.append(("  a request takes", each))
    fit = "" if capacity.weights_fit else "; the weights do not fit"
    rows.append(("  requests at once", f"at most {capacity.max_concurrency:,}{fit}"))
    return rows


def curve_figure(answer: Answer) -> tuple[Figure, str]:
    """Bytes of one request against its length for the chosen model and those of COMPARED, and the alt text.

    One whole copy of the cache, without rounding; both axes logarithmic.
    """
    question = answer.question
    chosen = answer.model
    models = [chosen, *(read_config(name) for name in COMPARED if name != chosen.name)]
    lines = [
        figures.Series(
            f"{model.name} (chosen)" if model is chosen else model.name,
            CONTEXTS,
            [size / 1e9 for size in request_bytes(model, CONTEXTS, question.kv_dtype)],
        )
        for model in models
    ]
    fig = figures.lines_figure(
        lines,
        "Length of the request (tokens)",
        "KV cache and state (GB)",
        f"One request, {question.kv_dtype}",
        logx=True,
        logy=True,
    )
    return fig, f"Bytes of one request against its length for {', '.join(model.name for model in models)}."
