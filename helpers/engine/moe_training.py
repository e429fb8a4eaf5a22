"""Train tiny MoE language models on bytes, on a CPU, under five gates: what a gate's skew costs in quality.

All see the same text in the same order for a seed, and all but the dense one have the same parameters:

``dense``  no experts: one SwiGLU of the size a token's k experts have together
``fixed``  the gate always takes the same k experts: total collapse, as a control
``none``   the gate is trained by the loss alone
``aux``    with an auxiliary loss α · E · Σ f_i P_i (Switch Transformers, arXiv:2101.03961)
``bias``   loss-free: a bias on the choice follows the loads of the step before (arXiv:2408.15664)

What must hold in every seed: dense and fixed alike lose, none keeps most of the gain, aux and bias have all of it; and
the other way round for skew, fixed > none > aux and bias. By how much hangs on the text, the length and the size.

The text is on any machine with Python: its manual, its library's source, and generated sums. Nothing is downloaded.
"""

import argparse
import hashlib
import importlib.util
import json
import platform
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

from helpers.engine.moe import Router, run_experts
from helpers.errors import InputError

REGIMES = ("dense", "fixed", "none", "aux", "bias")
TRAFFICS = ("prose", "code", "sums")
RECORD = Path(__file__).parents[1] / "data" / "moe_training.json"

_BYTES_EACH = 240_000
_HELD_OUT = 24_000
_MODULES = ("argparse", "calendar", "configparser", "difflib", "mailbox", "optparse", "statistics", "textwrap")


@dataclass(frozen=True)
class Shape:
    """Sizes of the tiny model. One expert is `width` wide; the dense block is experts_per_token · width."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    experts: int = 16
    experts_per_token: int = 2
    width: int = 32
    context: int = 64
    batch: int = 16


@dataclass(frozen=True)
class TrainingRun:
    """One trained model: its loss in nats per byte on held-out text, and how its gate spreads each kind of text.

    `loss_curve` holds (step, training loss averaged since the last). `counts` maps ``mix`` and each of `TRAFFICS` to
    assignments on held-out text, [layers][experts]; empty for the dense model.
    """

    regime: str
    seed: int
    steps: int
    validation_loss: float
    loss_curve: tuple[tuple[int, float], ...]
    counts: dict[str, list[list[int]]]


def training_text() -> dict[str, bytes]:
    """Text of each of `TRAFFICS`, equally long: Python's manual, its library's source, generated sums.

    Raises InputError on a Python without them (some minimal installations).
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError("this Python lacks pydoc_data, the manual that the prose is taken from") from error
    prose = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    code = b""
    for name in _MODULES:
        found = importlib.util.find_spec(name)
        if found is None or not found.has_location or not found.origin.endswith(".py"):
            raise InputError(f"this Python lacks the source of its module {name}, which the code is taken from")
        code += Path(found.origin).read_bytes()
    generator = random.Random(0)
    sums = "".join(
        f"{a} {sign} {b} = {a + b if sign == '+' else a - b}\n"
        for a, b, sign in (
            (generator.randrange(1000), generator.randrange(1000), generator.choice("+-")) for _ in range(20_000)
        )
    ).encode()
    texts = dict(zip(TRAFFICS, (prose, code, sums), strict=True))
    for name, text in texts.items():
        if len(text) < _BYTES_EACH:
            raise InputError(f"this Python holds only {len(text)} bytes of {name}, {_BYTES_EACH} are needed")
    return {name: text[:_BYTES_EACH] for name, text in texts.items()}


class TinyModel(torch.nn.Module):
    """A byte language model: two layers of attention and experts.

    The embedding adds up those of a byte and the three before it, which spares the first layer from learning to look
    back: without it a run of this length shows when that is learned, not what the gate costs.
    """

    def __init__(self, shape: Shape, regime: str, seed: int) -> None:
        super().__init__()
        self.shape, self.regime = shape, regime
        generator = torch.Generator().manual_seed(seed)
        d, experts = shape.hidden, 1 if regime == "dense" else shape.experts
        width = shape.width * (shape.experts_per_token if regime == "dense" else 1)

        def normal(*size: int, std: float) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(size, generator=generator) * std)

        self.bytes = normal(4, 256, d, std=0.3)
        self.positions = normal(shape.context, d, std=0.1)
        self.qkv = torch.nn.ParameterList(normal(3 * d, d, std=d**-0.5) for _ in range(shape.layers))
        self.output = torch.nn.ParameterList(normal(d, d, std=0.5 * d**-0.5) for _ in range(shape.layers))
        self.gates = torch.nn.ParameterList(normal(experts, d, std=d**-0.5) for _ in range(shape.layers))
        self.gate_up = torch.nn.ParameterList(normal(experts, 2 * width, d, std=d**-0.5) for _ in range(shape.layers))
        self.down = torch.nn.ParameterList(
            normal(experts, d, width, std=0.5 * width**-0.5) for _ in range(shape.layers)
        )
        self.head = normal(256, d, std=d**-0.5)
        self.choice_bias = [torch.zeros(experts) for _ in range(shape.layers)]
        if regime == "fixed":
            for bias in self.choice_bias:
                bias[shape.experts_per_token :] = -torch.inf

    def forward(
        self, tokens: torch.Tensor, on_layer: Callable[[int, torch.Tensor, torch.Tensor], None] | None = None
    ) -> torch.Tensor:
        """Logits [B, T, 256] of bytes [B, T]; `on_layer(layer, scores, chosen experts)` sees each gate."""
        (batch, count), shape = tokens.shape, self.shape
        back = F.pad(tokens, (3, 0))
        x = self.positions[:count] + sum(F.embedding(back[:, 3 - j : 3 - j + count], self.bytes[j]) for j in range(4))
        for layer in range(shape.layers):
            q, k, v = (
                part.view(batch, count, shape.heads, -1).transpose(1, 2)
                for part in F.linear(_norm(x), self.qkv[layer]).chunk(3, -1)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
            x = x + F.linear(mixed, self.output[layer])
            x = x + self._experts(layer, _norm(x).view(-1, shape.hidden), on_layer).view(x.shape)
        return F.linear(_norm(x), self.head)

    def _experts(self, layer: int, x: torch.Tensor, on_layer: Callable | None) -> torch.Tensor:
        gate_up, down = self.gate_up[layer], self.down[layer]
        if self.regime == "dense":
            gate, up = F.linear(x, gate_up[0]).chunk(2, -1)
            return F.linear(F.silu(gate) * up, down[0])
        router = Router(self.gates[layer], self.shape.experts_per_token, bias=self.choice_bias[layer])
        scores = router.scores(x)
        routing = router.choose(scores)
        if on_layer is not None:
            on_layer(layer, scores, routing.experts)
        return run_experts(x, routing, gate_up, down)


def train(
    regime: str,
    seed: int = 0,
    steps: int = 600,
    shape: Shape | None = None,
    aux_weight: float = 0.01,
    bias_rate: float = 0.01,
    learning_rate: float = 8e-3,
    texts: dict[str, bytes] | None = None,
) -> TrainingRun:
    """Train one tiny model and measure it on held-out text; the same seed sees the same text whatever the regime.

    `aux_weight` is α of ``aux``, `bias_rate` the step of ``bias``. About 15 s for 600 steps on one core. Raises
    InputError for an unknown regime.
    """
    if regime not in REGIMES:
        raise InputError(f"regime {regime!r} is not known; choose one of {', '.join(REGIMES)}")
    shape = shape or Shape()
    kinds = [
        torch.frombuffer(bytearray(text), dtype=torch.uint8).long() for text in (texts or training_text()).values()
    ]
    held = [text[-_HELD_OUT:] for text in kinds]
    kinds = [text[:-_HELD_OUT] for text in kinds]
    model = TinyModel(shape, regime, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
    warm_up = min(20, steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(
            (step + 1) / warm_up, 0.1 + 0.45 * (1 + torch.cos(torch.tensor(torch.pi * step / steps)).item())
        ),
    )
    order = torch.Generator().manual_seed(1000 + seed)
    curve, since = [], []
    for step in range(1, steps + 1):
        tokens = _batch(kinds, shape, order)
        gates: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        logits = model(tokens[:, :-1], lambda layer, *seen, gates=gates: gates.__setitem__(layer, seen))
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        since.append(loss.item())
        if regime == "aux":
            loss = loss + aux_weight * sum(auxiliary_loss(*seen) for seen in gates.values()) / shape.layers
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if regime == "bias":
            for layer, (_, experts) in gates.items():
                load = torch.bincount(experts.flatten(), minlength=shape.experts).float()
                model.choice_bias[layer] += bias_rate * (load.mean() - load).sign()
        if step % max(1, steps // 24) == 0 or step == steps:
            curve.append((step, round(sum(since) / len(since), 4)))
            since = []
    validation, counts = _measure(model, held)
    return TrainingRun(regime, seed, steps, validation, tuple(curve), counts)


def auxiliary_loss(scores: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """E · Σ f_i P_i: f_i the share of assignments of expert i, P_i its mean score; 1 where both are even.

    `scores` [T, E] from a softmax, `experts` [T, k] the ids chosen (arXiv:2101.03961, equation 4, for top-k).
    """
    count = scores.shape[1]
    shares = torch.bincount(experts.flatten(), minlength=count) / experts.numel()
    return count * (shares * scores.mean(0)).sum()


@torch.inference_mode()
def _measure(model: TinyModel, held: Sequence[torch.Tensor]) -> tuple[float, dict[str, list[list[int]]]]:
    """Loss over all held-out text, and the load of the experts for each kind of it."""
    shape = model.shape
    losses, counts = [], {}
    for name, text in zip(TRAFFICS, held, strict=True):
        load = torch.zeros(shape.layers, shape.experts, dtype=torch.long)

        def count(layer: int, _: torch.Tensor, experts: torch.Tensor, load: torch.Tensor = load) -> None:
            load[layer] += torch.bincount(experts.flatten(), minlength=shape.experts)

        windows = text[: len(text) // (shape.context + 1) * (shape.context + 1)].view(-1, shape.context + 1)
        for tokens in windows.split(64):
            logits = model(tokens[:, :-1], count)
            losses.append((F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).item(), len(tokens)))
        counts[name] = load.tolist()
    total = sum(loss * weight for loss, weight in losses) / sum(weight for _, weight in losses)
    if model.regime == "dense":
        return round(total, 4), {}
    # Equally long texts, so their sum is the even mix.
    mix = [[sum(loads) for loads in zip(*layer, strict=True)] for layer in zip(*counts.values(), strict=True)]
    return round(total, 4), {"mix": mix, **counts}


def _batch(kinds: Sequence[torch.Tensor], shape: Shape, order: torch.Generator) -> torch.Tensor:
    """`batch` windows of context + 1 bytes, each kind of text in turn."""
    rows = []
    for row in range(shape.batch):
        text = kinds[row % len(kinds)]
        start = int(torch.randint(len(text) - shape.context - 1, (), generator=order))
        rows.append(text[start : start + shape.context + 1])
    return torch.stack(rows)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:])


def recorded_runs() -> tuple[tuple[TrainingRun, ...], dict]:
    """The runs shipped with the course, and where and how they were trained. Raises InputError where there are none."""
    if not RECORD.is_file():
        raise InputError(
            f"{RECORD.name} is not there: train live, or write it with python -m helpers.engine.moe_training"
        )
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    runs = tuple(
        TrainingRun(**{**run, "loss_curve": tuple(map(tuple, run["loss_curve"]))}) for run in record.pop("runs")
    )
    return runs, record


def main(words: Sequence[str] | None = None) -> None:
    """Train every regime over the seeds, and write the record: python -m helpers.engine.moe_training --help."""
    parser = argparse.ArgumentParser(description="Train the tiny MoE models and write their record.")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--regimes", default=",".join(REGIMES))
    parser.add_argument("--out", type=Path, default=RECORD)
    args = parser.parse_args(words)
    torch.set_num_threads(1)
    texts, runs = training_text(), []
    for seed in map(int, args.seeds.split(",")):
        for regime in args.regimes.split(","):
            runs.append(train(regime, seed, args.steps, texts=texts))
            print(regime, seed, runs[-1].validation_loss, file=sys.stderr, flush=True)
    about = {
        "about": "Tiny MoE byte models, helpers.engine.moe_training; losses in nats per byte on held-out text.",
        "shape": asdict(Shape()),
        "text_sha256": hashlib.sha256(b"".join(texts.values())).hexdigest(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    lines = ",\n".join("  " + json.dumps(asdict(run)) for run in runs)
    args.out.write_text(json.dumps(about, indent=1)[:-2] + ',\n "runs": [\n' + lines + "\n ]\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
