"""A start-up log beside the account of its model: each logged figure, the prediction, and the reason for a gap."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from helpers.accounts.capacity import rotary_table_bytes
from helpers.accounts.enginelogs import CellLine, LogFacts, Reading
from helpers.accounts.kv import held_tokens, kv_bytes
from helpers.accounts.kv_llamacpp import LlamaCppSettings, llamacpp_cache
from helpers.accounts.kv_vllm import PACKED_MLA, VllmLayout, VllmSettings, vllm_layout
from helpers.accounts.memory import weight_bytes
from helpers.accounts.model import LatentAttention, Model
from helpers.accounts.state import state_bytes
from helpers.accounts.units import GIB
from helpers.errors import InputError

_CLOSE = 0.005
_GIB_PER_GB = 2**30 / 10**9

_KV_DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "fp8": "fp8",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    PACKED_MLA: PACKED_MLA,
    "f16": "fp16",
    "bf16": "bf16",
    "f32": "fp32",
    "q8_0": "q8_0",
    "q4_0": "q4_0",
}


@dataclass(frozen=True)
class Comparison:
    """One logged figure beside its prediction; `unit` is ``bytes``, ``tokens``, ``blocks``, ``layers`` or ``×``.

    `predicted` None: the account does not know this figure. `matches`: equal within the printed digits, or within
    0.5 %. `reason` says what explains a gap, "unexplained"
    where none of the known reasons does, or what a matching figure does not mean; empty otherwise.
    """

    quantity: str
    unit: str
    logged: float
    predicted: float | None
    matches: bool
    reason: str

    @property
    def ratio(self) -> float | None:
        """logged / predicted; None where there is no prediction above zero."""
        return self.logged / self.predicted if self.predicted else None


def compare_log(
    facts: LogFacts,
    model: Model,
    kv_dtype: str | None = None,
    weights_dtype: str | None = None,
    tp: int | None = None,
    draft: Model | None = None,
    vllm: VllmSettings | None = None,
    llamacpp: LlamaCppSettings | None = None,
) -> tuple[Comparison, ...]:
    """Every figure of `facts` that follows from `model`, beside the prediction.

    `kv_dtype` and `tp` None: as the log states, else the model's own format and one rank. The prediction of blocks,
    tokens and concurrency starts from the logged pool; that of the pool from the logged budget.

    Raises InputError where the log states nothing that can be predicted, contradicts `tp` or `kv_dtype`, or is of a
    pipeline, whose ranks hold different layers.
    """
    if facts.words.get("pp", "1") != "1":
        raise InputError(f"the log is of a pipeline of {facts.words['pp'][:9]} stages, and what one holds is not known")
    tp = _said(facts.words, "tp", None if tp is None else str(tp), {}) or "1"
    dtype = _said(facts.words, "kv_dtype", kv_dtype, _KV_DTYPES) or _model_dtype(facts, model)
    ranks = int(tp)
    rows = [*_weights(facts, model, draft, weights_dtype, ranks), *_budget(facts)]
    if facts.engine == "vllm":
        rows += _vllm(facts, model, dtype, ranks, _settings(facts, vllm), draft)
    elif facts.engine == "llamacpp":
        rows += _llamacpp(facts, model, kv_dtype, llamacpp or LlamaCppSettings())
    else:
        rows += _by_token(facts, model, dtype, ranks, draft)
    if not rows:
        raise InputError("the log states no figure that can be predicted from a model")
    return tuple(rows)


def _said(words: Mapping[str, str], name: str, given: str | None, names: Mapping[str, str]) -> str | None:
    """What the log says of `name`, in our words; refused where `given` contradicts it; `given` where it is silent."""
    said = words.get(name)
    said = None if said in (None, "auto") else names.get(said, said)
    if said is None or given is None or said == given:
        return given or said
    if {said, given} <= {"bf16", "fp16"} or {said, given} <= {"fp8", PACKED_MLA}:
        return given
    raise InputError(f"the log says {name} {said[:40]!r}, which contradicts {given!r}")


def _model_dtype(facts: LogFacts, model: Model) -> str:
    return _KV_DTYPES.get(facts.words.get("dtype", ""), model.weights_dtype)


def _settings(facts: LogFacts, given: VllmSettings | None) -> VllmSettings:
    given = given or VllmSettings()
    block, batched = facts.get("block_tokens"), facts.get("max_batched_tokens")
    return VllmSettings(
        block_size=int(block or given.block_size),
        max_batched_tokens=int(batched or given.max_batched_tokens),
        hybrid_manager=given.hybrid_manager,
        state_blocks=given.state_blocks,
    )


def _row(quantity: str, unit: str, logged: Reading, predicted: float, explain: str = "") -> Comparison:
    ratio = logged.value / predicted if predicted else float("inf")
    matches = logged.agrees(predicted) or abs(ratio - 1) <= _CLOSE
    return Comparison(quantity, unit, logged.value, predicted, matches, "" if matches else explain or "unexplained")


def _weights(
    facts: LogFacts, model: Model, draft: Model | None, weights_dtype: str | None, tp: int
) -> Iterator[Comparison]:
    for name, one in (("weights", model), ("draft_weights", draft)):
        logged = facts.figures.get(f"{name}_bytes")
        if logged is None or one is None:
            continue
        predicted = weight_bytes(one, weights_dtype if one is model else None, tp).total
        if facts.engine == "vllm":
            predicted += rotary_table_bytes(one)
        row = _row(name.replace("_", " "), "bytes", logged, predicted, _weights_reason(logged.value / predicted, one))
        if row.reason == "unexplained" and facts.engine == "sglang" and 0 < logged.value - predicted < GIB / 2:
            row = replace(row, reason="SGLang prints the fall of free memory, buffers of its libraries included")
        yield row


def _weights_reason(ratio: float, model: Model) -> str:
    if abs(ratio * _GIB_PER_GB - 1) <= _CLOSE or abs(ratio / _GIB_PER_GB - 1) <= _CLOSE:
        return "GB and GiB taken for each other"
    if abs(ratio - 2) <= 0.05:
        return "twice: stored in fp32, or not divided over the ranks"
    if abs(ratio - 0.5) <= 0.02:
        return "half: stored in 8 bits"
    if ratio < 0.9:
        return "stored in fewer bits than assumed: give --weights-dtype, or the config of the quantised checkpoint"
    left_out = [note for note in model.notes if "left out" in note or "not counted" in note]
    if 1 < ratio < 1.25 and left_out:
        return f"more than the account counts ({left_out[0]})"
    if 1 < ratio < 1.02:
        return "buffers and padded matrices of the engine"
    return "unexplained"


def _budget(facts: LogFacts) -> Iterator[Comparison]:
    """The pool as what the logged budget leaves: granted − weights − reserves."""
    pool, weights = facts.figures.get("kv_bytes"), facts.figures.get("weights_bytes")
    if facts.engine == "tensorrt-llm":
        available, pool = facts.figures.get("available_bytes"), facts.figures.get("kv_bytes")
        if available and pool and available.value > 0:
            reason = f"the pool is {pool.value / available.value:.3f} of what is left: another free_gpu_memory_fraction"
            yield _row("KV pool, 0.9 of what is left", "bytes", pool, 0.9 * available.value, reason)
        return
    if facts.engine != "vllm" or pool is None or weights is None or "non_torch_bytes" not in facts.figures:
        return
    if "activation_bytes" not in facts.figures:
        return
    granted = facts.figures.get("granted_bytes")
    if granted is None:
        total, share = facts.get("total_bytes"), facts.get("utilisation")
        if total is None or share is None:
            return
        granted = Reading(total * share, 0.0)
    parts = [weights, facts.figures["non_torch_bytes"], facts.figures["activation_bytes"]]
    predicted = granted.value - sum(part.value for part in parts)
    half = granted.half_unit + sum(part.half_unit for part in parts) + pool.half_unit
    graphs = facts.get("cuda_graph_bytes") or 0.0
    if graphs and abs(predicted - graphs - pool.value) < abs(predicted - pool.value):
        # Newer versions profile the graphs before they size the pool; older ones capture them after.
        predicted -= graphs
    yield _row("KV pool the budget leaves", "bytes", Reading(pool.value, half), predicted)


def _vllm(
    facts: LogFacts, model: Model, dtype: str, tp: int, settings: VllmSettings, draft: Model | None
) -> Iterator[Comparison]:
    layout = vllm_layout(model, dtype, tp, settings, draft)
    grown = facts.figures.get("attention_block_tokens")
    if grown:
        yield _row("attention block", "tokens", grown, layout.smallest_block_tokens)
    if "padding_layers" in facts.figures:
        yield _row("padding layers", "layers", facts.figures["padding_layers"], layout.padding_layers)
    pool, blocks = facts.figures.get("kv_bytes"), facts.figures.get("blocks")
    if pool and blocks:
        low, high = layout.num_blocks(pool.value - pool.half_unit), layout.num_blocks(pool.value + pool.half_unit)
        fit = min(max(blocks.value, low), high) if low <= blocks.value <= high else layout.num_blocks(pool.value)
        yield _row("blocks in the pool", "blocks", blocks, fit, _count_reason(blocks.value / (fit or 1), tp, layout))
    counted = blocks.value if blocks else layout.num_blocks(pool.value) if pool else None
    yield from _vllm_tokens(facts, layout, counted, exact=blocks is not None, tp=tp)
    needed, at = facts.figures.get("needed_bytes"), facts.get("needed_tokens")
    if needed and at:
        yield _row(
            "one request, needed",
            "bytes",
            needed,
            layout.request_blocks(int(at)) * layout.block_bytes,
            _need_reason(needed.value, int(at), model, dtype, tp),
        )
    longest = facts.figures.get("longest_tokens")
    if longest and pool:
        fits = layout.longest_request(layout.num_blocks(pool.value))
        yield _row("longest request that fits", "tokens", longest, fits)


def _vllm_tokens(
    facts: LogFacts, layout: VllmLayout, blocks: float | None, exact: bool, tp: int
) -> Iterator[Comparison]:
    tokens, ratio = facts.figures.get("tokens"), facts.figures.get("concurrency")
    at = facts.get("concurrency_tokens")
    no_capacity = (
        "" if layout.is_capacity else ("the printed tokens are no capacity: groups of layers hold requests differently")
    )
    if blocks is not None and tokens:
        styles = [layout.printed_tokens(int(blocks))]
        if at:
            styles.append(layout.printed_tokens(int(blocks), int(at)))
        predicted = min(styles, key=lambda style: abs(style - tokens.value))
        row = _row(
            "tokens printed", "tokens", tokens, predicted, _count_reason(tokens.value / (predicted or 1), tp, layout)
        )
        yield replace(row, reason=no_capacity) if row.matches else row
    if blocks is None and tokens and layout.is_capacity:
        blocks = tokens.value / layout.smallest_block_tokens
    if ratio and at and blocks is not None:
        predicted = layout.max_concurrency(int(blocks), int(at))
        reason = _count_reason(ratio.value / (predicted or 1), tp, layout)
        yield _row(f"requests of {int(at):,} tokens at once", "×", ratio, predicted, reason)


def _count_reason(ratio: float, tp: int, layout: VllmLayout | None) -> str:
    """Why fewer or more fit than the account says."""
    for factor, text in (
        (
            0.5,
            "half: elements twice as large as assumed (--kv-dtype), or MLA billed as keys and values (early vLLM)",
        ),
        (2.0, "twice: elements half as large as assumed (--kv-dtype)"),
        (_GIB_PER_GB, "GB and GiB taken for each other"),
        (1 / _GIB_PER_GB, "GB and GiB taken for each other"),
    ):
        if abs(ratio / factor - 1) <= 0.01:
            return text
    if layout is not None and any(group.kind == "state" for group in layout.groups):
        return "pages of state live in the pool; how many a request holds depends on prefix caching (state_blocks)"
    if tp > 1 and 0.8 <= ratio < 1:
        return "the rank with the least free memory sets the blocks of all, while each prints its own"
    if layout is not None and not layout.is_capacity:
        return "windowed layers hold up to max_num_batched_tokens beside their window: it is not in the log"
    if 0.95 <= ratio < 1:
        return "rounded down to whole blocks, or a smaller pool on another rank"
    return "unexplained"


def _need_reason(needed: float, tokens: int, model: Model, dtype: str, tp: int) -> str:
    whole = vllm_layout(model, dtype, tp, VllmSettings(hybrid_manager=False))
    if abs(needed / (whole.request_blocks(tokens) * whole.block_bytes) - 1) <= _CLOSE:
        return "every layer is counted as if it kept all tokens (no hybrid cache manager)"
    return "unexplained"


def _by_token(facts: LogFacts, model: Model, dtype: str, tp: int, draft: Model | None) -> Iterator[Comparison]:
    """SGLang and TensorRT-LLM: pool = tokens · bytes per token."""
    tokens = facts.get("tokens")
    block, blocks = facts.get("block_tokens"), facts.get("blocks")
    if tokens is None and block and blocks:
        tokens = block * blocks
    for name, one in (("kv_bytes", model), ("second_kv_bytes", draft)):
        pool = facts.figures.get(name)
        if pool is None or not tokens:
            continue
        if one is None:
            reason = "a second cache, of a draft model that was not given"
            yield Comparison("second KV pool", "bytes", pool.value, None, False, reason)
            continue
        predicted = _token_bytes(one, int(tokens), dtype, tp)
        if predicted is None:
            reason = f"how {facts.engine} divides its pool among windowed layers is not known here"
            yield Comparison("KV pool", "bytes", pool.value, None, False, reason)
            continue
        label = "KV pool of the printed tokens" if name == "kv_bytes" else "second KV pool, of the draft"
        yield _row(label, "bytes", pool, predicted, _pool_reason(pool.value / predicted, one, dtype, tp))
    state, sequences = facts.figures.get("state_bytes"), facts.get("state_sequences")
    if state and sequences:
        # SGLang keeps one slot more than it counts, for padding, and the recurrent state in fp32 (as ``ideal``).
        slots = int(sequences) + 1
        yield _row(f"state of {slots} slots", "bytes", state, slots * state_bytes(model, tp=tp))


def _token_bytes(model: Model, tokens: int, dtype: str, tp: int) -> int | None:
    """Bytes of `tokens` tokens in layers that keep every token; None where some do not."""
    attentions = [layer.attention for layer in model.layers if layer.attention is not None]
    if any(not isinstance(a, LatentAttention) and held_tokens(a, 2**40) < 2**40 for a in attentions):
        return None
    if dtype == PACKED_MLA or any(isinstance(a, LatentAttention) and a.indexer is not None for a in attentions):
        layout = vllm_layout(model, dtype, tp, VllmSettings(block_size=1, hybrid_manager=False))
        return layout.attention_blocks(tokens) * layout.block_bytes
    return kv_bytes(model, tokens, dtype, tp)


def _pool_reason(ratio: float, model: Model, dtype: str, tp: int) -> str:
    latent = [layer.attention for layer in model.layers if isinstance(layer.attention, LatentAttention)]
    if latent and dtype == "fp8":
        packed = _token_bytes(model, 4096, PACKED_MLA, tp) / _token_bytes(model, 4096, "fp8", tp)
        if abs(ratio / packed - 1) <= _CLOSE:
            return f"the packed FP8 latent ({PACKED_MLA}: scales and a bf16 rotary part)"
    return _count_reason(1 / ratio, tp, None) if ratio > 0 else "unexplained"


def _llamacpp(facts: LogFacts, model: Model, kv_dtype: str | None, settings: LlamaCppSettings) -> Iterator[Comparison]:
    for line in facts.caches:
        yield from _cell_row(line, model, kv_dtype, settings, facts)
    state, sequences = facts.figures.get("state_bytes"), facts.get("state_sequences")
    if state and sequences:
        predicted = int(sequences) * state_bytes(model, engine="llamacpp")
        yield _row(f"state of {int(sequences)} sequences", "bytes", state, predicted)


def _cell_row(
    line: CellLine, model: Model, kv_dtype: str | None, settings: LlamaCppSettings, facts: LogFacts
) -> Iterator[Comparison]:
    if line.cells is None:
        return
    type_k, type_v = (_KV_DTYPES.get(logged or "") or kv_dtype or "fp16" for logged in (line.k_type, line.v_type))
    candidates = []
    for latent in ("latent", "latent_with_values", "expanded"):
        own = LlamaCppSettings(ubatch=settings.ubatch, padding=1, swa_full=True, type_v=type_v, latent=latent)
        cache = llamacpp_cache(model, line.cells, type_k, own)
        for name, part in (("every token", cache.full), ("windows", cache.windowed)):
            if part.layers and line.layers in (None, part.layers):
                candidates.append((name, latent, part.total * line.streams))
    if not candidates:
        reason = f"{line.layers} layers with such a cache are not in the model: a draft, or another model"
        yield Comparison(f"cache of {line.cells:,} cells", "bytes", line.size.value, None, False, reason)
        return
    name, latent, predicted = min(candidates, key=lambda candidate: abs(candidate[2] - line.size.value))
    row = _row(f"cache of {line.cells:,} cells, layers that keep {name}", "bytes", line.size, predicted)
    mla = any(isinstance(layer.attention, LatentAttention) for layer in model.layers)
    if row.matches and mla and latent != settings.latent:
        row = replace(row, reason=f"this build caches MLA {latent.replace('_', ' ')}, not {settings.latent}")
    yield row
