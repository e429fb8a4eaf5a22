"""Capacity: how many requests fit in memory at once, by each engine's own rule, with every term of the account."""

from dataclasses import dataclass

from helpers.accounts.devices import Device
from helpers.accounts.inventory import check_tp
from helpers.accounts.kv import kv_bytes
from helpers.accounts.kv_llamacpp import LlamaCppSettings, llamacpp_kv_bytes
from helpers.accounts.kv_vllm import VllmSettings, default_batched_tokens, vllm_layout
from helpers.accounts.memory import weight_bytes
from helpers.accounts.model import FullAttention, LatentAttention, Model
from helpers.accounts.state import state_bytes
from helpers.accounts.units import bytes_of, count, positive_int
from helpers.errors import InputError

ENGINES = ("ideal", "hf", "vllm", "sglang", "tensorrt-llm", "llamacpp")
"""Engines whose rule of sharing memory `max_concurrency` knows."""

# --gpu-memory-utilization of vLLM and free_gpu_memory_fraction of TensorRT-LLM, as their documentation states them;
# SGLang computes its mem-fraction-static from the card and the flags, so it must be given.
_DEFAULT_UTILISATION = {"ideal": 1.0, "hf": 1.0, "vllm": 0.9, "tensorrt-llm": 0.9, "llamacpp": 1.0}
_WITHOUT_ROTARY = ("jamba", "nemotron_h")
_ONE_GROUP = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True)
class Capacity:
    """The terms of `max_concurrency`, in bytes over all GPUs.

    The pool is what is left of the visible memory when the other terms are taken off; it is cut into units (bytes,
    blocks, tokens or slots, as the engine does) of `unit_bytes`, of which a request takes `units_per_request`.
    """

    engine: str
    gpus: int
    visible_bytes: int
    withheld_bytes: int
    weight_bytes: int
    draft_weight_bytes: int
    rotary_bytes: int
    non_torch_bytes: int
    activation_bytes: int
    cuda_graph_bytes: int
    unit: str
    unit_bytes: int
    units_per_request: int
    mean_units_per_request: int | None
    notes: tuple[str, ...]

    @property
    def terms(self) -> tuple[tuple[str, int], ...]:
        """Name and signed bytes of every term in order; they sum to `pool_bytes`."""
        taken = (
            ("not granted to the engine", self.withheld_bytes),
            ("weights", self.weight_bytes),
            ("weights of the draft", self.draft_weight_bytes),
            ("rotary table", self.rotary_bytes),
            ("outside the framework", self.non_torch_bytes),
            ("activation peak", self.activation_bytes),
            ("CUDA graphs", self.cuda_graph_bytes),
        )
        return (("visible memory", self.visible_bytes), *((name, -size) for name, size in taken))

    @property
    def pool_bytes(self) -> int:
        """What the cache gets: Σ terms; negative where the rest does not fit."""
        return sum(size for _, size in self.terms)

    @property
    def free_bytes(self) -> int:
        """What the weights leave of the visible memory; negative where they do not fit."""
        return self.visible_bytes - self.weight_bytes - self.draft_weight_bytes

    @property
    def weights_fit(self) -> bool:
        """Whether the weights alone fit."""
        return self.free_bytes >= 0

    @property
    def units(self) -> int:
        """Whole units in the pool."""
        return max(self.pool_bytes, 0) // self.unit_bytes

    @property
    def bytes_per_request(self) -> int:
        """Bytes one request of the maximum length takes, rounded up to whole units."""
        return self.units_per_request * self.unit_bytes

    @property
    def concurrency(self) -> float:
        """Requests of the maximum length at once, as a ratio: what vLLM prints as "Maximum concurrency"."""
        return self.units / self.units_per_request

    @property
    def max_concurrency(self) -> int:
        """Whole requests of the maximum length at once; 0 where the weights do not fit."""
        return self.units // self.units_per_request

    @property
    def mean_concurrency(self) -> int | None:
        """Whole requests at once where they are of the mean length; None where no mean length was given."""
        return None if self.mean_units_per_request is None else self.units // self.mean_units_per_request


def max_concurrency(
    model: Model,
    context: int,
    device: Device,
    gpus: int | None = None,
    tp: int = 1,
    weights_dtype: str | None = None,
    kv_dtype: str = "bf16",
    engine: str = "ideal",
    utilisation: float | None = None,
    activation_bytes: int | None = None,
    non_torch_bytes: int | None = None,
    cuda_graph_bytes: int | None = None,
    mean_context: int | None = None,
    draft: Model | None = None,
    vllm: VllmSettings | None = None,
    llamacpp: LlamaCppSettings | None = None,
    tokens_per_block: int = 32,
) -> Capacity:
    """At most how many requests of `context` tokens `gpus` devices hold beside one copy of the weights.

    Within a group of `tp` devices heads are split (what cannot be split is held by each); under ``ideal`` and
    ``llamacpp`` the gpus / tp groups share the layers. `gpus` None means `tp`. The pool of each engine:

    * ``ideal``, ``hf``: visible − weights, by the byte;
    * ``vllm``: utilisation · visible − weights − rotary table − reserves, in blocks (`vllm_layout`);
    * ``sglang``: utilisation (mem-fraction-static) · visible − weights, by the token; reserves live in the rest;
    * ``tensorrt-llm``: utilisation · (visible − weights − reserves), in blocks of `tokens_per_block`;
    * ``llamacpp``: visible − weights − reserves, in slots of `context` padded tokens.

    `vllm` None: its defaults on `device`. Reserves are bytes per GPU: `activation_bytes` (peak of the largest batch),
    `non_torch_bytes`, `cuda_graph_bytes`. They depend on the server's flags and have no default: one that is not given
    counts as 0, and the notes say that the result is then an upper bound. `mean_context`: the mean length of real
    requests, for `Capacity.mean_concurrency`. `draft`: a speculative draft model, whose weights and cache are held too.

    Raises InputError for what the engine's rule does not cover, naming it.
    """
    positive_int(context, "context")
    check_tp(model, tp)
    gpus = tp if gpus is None else positive_int(gpus, "gpus")
    if gpus % tp:
        raise InputError(f"gpus ({gpus}) must be a multiple of tp ({tp})")
    if device.visible_memory_bytes is None:
        raise InputError(f"device {device.name} has no visible-memory figure in the registry: capacity is unknown")
    if engine not in ENGINES:
        raise InputError(f"engine {str(engine)[:40]!r} is not known; choose one of {', '.join(ENGINES)}")
    if engine in _ONE_GROUP and gpus != tp:
        raise InputError(
            f"engine {engine} is counted for one tensor-parallel group: gpus ({gpus}) must equal tp ({tp})"
        )
    share = _utilisation(engine, utilisation)
    reserves = {"activation": activation_bytes, "non_torch": non_torch_bytes, "cuda_graph": cuda_graph_bytes}
    notes = _check_reserves(engine, reserves)
    reserved = {f"{name}_bytes": gpus * (size or 0) for name, size in reserves.items()}
    models = [model] if draft is None else [model, draft]
    if engine == "vllm" and vllm is None:
        vllm = VllmSettings(max_batched_tokens=default_batched_tokens(device))
    weights = [tp * weight_bytes(one, weights_dtype if one is model else None, tp).total for one in models]
    rotary = tp * sum(rotary_table_bytes(one) for one in models) if engine == "vllm" else 0
    unit, unit_bytes, per_request = _unit(engine, models, context, kv_dtype, tp, vllm, llamacpp, tokens_per_block)
    mean = None
    if mean_context is not None:
        if positive_int(mean_context, "mean_context") > context:
            raise InputError(f"mean_context ({mean_context}) is longer than context ({context}), the longest request")
        _, mean_unit, mean = _unit(engine, models, mean_context, kv_dtype, tp, vllm, llamacpp, tokens_per_block)
        # A slot of llama.cpp is as long as the longest request, however long the requests are.
        mean = per_request if mean_unit != unit_bytes else mean
    visible = gpus * device.visible_memory_bytes
    base = visible
    if engine == "tensorrt-llm":
        base -= sum(weights) + sum(reserved.values())
    if tp > 1 and engine in _ONE_GROUP:
        notes.append("the rank with the least free memory sets the pool of all: ranks are taken to be alike here")
    return Capacity(
        engine=engine,
        gpus=gpus,
        visible_bytes=visible,
        withheld_bytes=max(base, 0) - int(max(base, 0) * share),
        weight_bytes=weights[0],
        draft_weight_bytes=sum(weights[1:]),
        rotary_bytes=rotary,
        **reserved,
        unit=unit,
        unit_bytes=unit_bytes,
        units_per_request=per_request,
        mean_units_per_request=mean,
        notes=tuple(notes),
    )


def rotary_table_bytes(model: Model) -> int:
    """Bytes of the table of cosines and sines that vLLM keeps beside the weights, on every rank.

    positions · rotary width · bytes per element, one table per distinct width: 131072 · 128 · 2 B = 32 MiB for
    Llama-3.1-8B, the difference between its parameters and the 14.9888 GiB that vLLM logs. Stretched tables (YaRN)
    and a second base (Gemma-3's local one) are not counted; 0 for models without rotary positions.
    """
    if model.model_type in _WITHOUT_ROTARY:
        return 0
    widths = set()
    for layer in model.layers:
        attention = layer.attention
        if isinstance(attention, LatentAttention):
            widths.add(attention.qk_rope_head_dim)
        elif isinstance(attention, FullAttention):
            widths.add(int(attention.head_dim * model.decoder.partial_rotary_factor))
    return sum(bytes_of(model.max_position_embeddings * width, model.weights_dtype) for width in widths)


def _utilisation(engine: str, utilisation: float | None) -> float:
    if utilisation is None:
        if engine not in _DEFAULT_UTILISATION:
            raise InputError(f"engine {engine} has no fixed default share of memory: give utilisation")
        return _DEFAULT_UTILISATION[engine]
    if engine == "llamacpp":
        raise InputError("engine llamacpp takes no share of memory: leave utilisation out")
    if isinstance(utilisation, bool) or not isinstance(utilisation, int | float) or not 0 < utilisation <= 1:
        raise InputError(f"utilisation must be a share above 0 and at most 1, not {str(utilisation)[:40]!r}")
    return float(utilisation)


def _check_reserves(engine: str, reserves: dict[str, int | None]) -> list[str]:
    for name, size in reserves.items():
        if size is not None:
            count(size, f"{name}_bytes")
            if engine == "sglang":
                raise InputError(f"{name}_bytes: SGLang takes it out of the share it leaves, 1 − mem-fraction-static")
    missing = [name for name, size in reserves.items() if size is None]
    if engine == "sglang" or not missing:
        return []
    if engine == "ideal" and len(missing) == len(reserves):
        return ["an upper bound: engines also reserve memory for activations, buffers and CUDA graphs"]
    return [
        f"an upper bound: {', '.join(name.replace('_', '-') for name in missing)} memory is not given, counted as 0"
    ]


def _unit(
    engine: str,
    models: list[Model],
    context: int,
    kv_dtype: str,
    tp: int,
    vllm: VllmSettings | None,
    llamacpp: LlamaCppSettings | None,
    tokens_per_block: int,
) -> tuple[str, int, int]:
    """The unit the pool is cut into: its name, its bytes over the group of GPUs, and how many a request takes."""
    if engine == "vllm":
        layout = vllm_layout(models[0], kv_dtype, tp, vllm, draft=models[1] if len(models) > 1 else None)
        return "block", tp * layout.block_bytes, layout.request_blocks(context)
    if engine == "llamacpp":
        caches = sum(llamacpp_kv_bytes(one, context, kv_dtype, tp, llamacpp) for one in models)
        states = sum(state_bytes(one, tp=tp, engine="llamacpp") for one in models)
        return "slot", caches + states, 1
    if engine in ("sglang", "tensorrt-llm"):
        check_layers(engine, models)
        tokens = 1 if engine == "sglang" else positive_int(tokens_per_block, "tokens_per_block")
        size = tp * sum(kv_bytes(one, tokens, kv_dtype, tp) for one in models)
        return ("token" if engine == "sglang" else "block"), size, -(-context // tokens)
    request = sum(
        kv_bytes(one, context, kv_dtype, tp, engine) + state_bytes(one, tp=tp, engine=engine) for one in models
    )
    return "byte", 1, tp * request


def check_layers(engine: str, models: list[Model]) -> None:
    """InputError where `engine` (``sglang``, ``tensorrt-llm``) shares its pool in a way that is not known here.

    Both give windowed, sparse and state layers pools of their own, whose shares depend on the server's flags.
    """
    for model in models:
        for layer in model.layers:
            a = layer.attention
            plain = isinstance(a, FullAttention) and not (a.window or a.chunk or a.shares_kv)
            plain = plain or (isinstance(a, LatentAttention) and a.indexer is None)
            if not plain or layer.state is not None:
                raise InputError(f"{model.name}: engine {engine} is known for full and plain latent attention only")
