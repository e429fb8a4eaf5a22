"""Start-up logs of vLLM, SGLang, TensorRT-LLM and llama.cpp: the sizes they state, read from pasted lines.

Wordings are those the engines print, V0 and V1 of vLLM included. SGLang, old vLLM and PyTorch write "GB" and mean
GiB; it is read so. What the sizes say about a model is in `helpers.accounts.logcheck`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from helpers.accounts.units import GIB, MIB
from helpers.errors import InputError

_LARGEST_TEXT = 20_000_000
_LARGEST_NUMBER = 10**15
_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"


@dataclass(frozen=True)
class Reading:
    """One figure of a log: its value (bytes for sizes) and half a unit of its last printed digit."""

    value: float
    half_unit: float = 0.0

    def agrees(self, other: float) -> bool:
        """Whether `other` would print as this figure, give or take a rounding in the last digit."""
        return abs(self.value - other) <= 2 * self.half_unit + 1e-9


@dataclass(frozen=True)
class CellLine:
    """One cache line of llama.cpp; `k_bytes` and `v_bytes` 0 where the line does not tell them apart."""

    cells: int | None
    layers: int | None
    streams: int
    size: Reading
    k_type: str | None = None
    v_type: str | None = None
    k_bytes: float = 0.0
    v_bytes: float = 0.0


@dataclass(frozen=True)
class LogFacts:
    """What a start-up log states. `figures` maps a name to its reading; bytes are those of one rank.

    Names: weights_bytes, draft_weights_bytes, total_bytes, utilisation, granted_bytes, non_torch_bytes,
    activation_bytes, cuda_graph_bytes, available_bytes, kv_bytes, second_kv_bytes, blocks, block_tokens,
    attention_block_tokens, tokens, concurrency, concurrency_tokens, needed_bytes, needed_tokens,
    longest_tokens, padding_layers, max_batched_tokens, state_bytes, state_sequences. `words` maps model, version,
    dtype, kv_dtype, tp and pp to what the log says; `caches` are llama.cpp's cache lines in order.
    """

    engine: str
    figures: Mapping[str, Reading]
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    caches: tuple[CellLine, ...] = ()
    notes: tuple[str, ...] = ()

    def get(self, name: str) -> float | None:
        """The value of figure `name`, None where the log does not state it."""
        reading = self.figures.get(name)
        return None if reading is None else reading.value


@dataclass(frozen=True)
class _Rule:
    """One wording: the engine that uses it, a pattern, and the figure each group gives with its unit in bytes."""

    engine: str
    pattern: re.Pattern[str]
    figures: tuple[tuple[str, float | None], ...]


def _rule(engine: str, pattern: str, *figures: tuple[str, float | None]) -> _Rule:
    return _Rule(engine, re.compile(pattern.replace("NUM", _NUMBER)), figures)


# None: the unit stands in the next group. "GB" is GiB here (vLLM's and SGLang's own division is by 1 << 30).
_RULES = (
    _rule("vllm", r"Loading model weights took NUM (GiB|GB|MiB)", ("weights_bytes", None)),
    _rule("vllm", r"Model loading took NUM (GiB|GB|MiB)", ("weights_bytes", None)),
    _rule("vllm", r"model weights take NUM\s?(GiB|GB|MiB)", ("weights_bytes", None)),
    _rule(
        "vllm",
        r"total_gpu_memory \(NUM\s?GiB\) x gpu_memory_utilization \(NUM\) = NUM\s?GiB",
        ("total_bytes", GIB),
        ("utilisation", 1),
        ("granted_bytes", GIB),
    ),
    _rule("vllm", r"non_torch_memory takes NUM\s?GiB", ("non_torch_bytes", GIB)),
    _rule("vllm", r"PyTorch activation peak memory takes NUM\s?GiB", ("activation_bytes", GIB)),
    _rule("vllm", r"memory reserved for KV Cache is NUM\s?GiB", ("kv_bytes", GIB)),
    _rule(
        "vllm",
        r"Memory profiling results: total_gpu_memory=NUMGiB .*non_torch_memory=NUMGiB kv_cache_size=NUMGiB "
        r"gpu_memory_utilization=NUM",
        ("total_bytes", GIB),
        ("non_torch_bytes", GIB),
        ("kv_bytes", GIB),
        ("utilisation", 1),
    ),
    _rule(
        "vllm",
        r"Free memory on device (?:\S+ )?\(\S+?/NUM GiB\)",
        ("total_bytes", GIB),
    ),
    _rule("vllm", r"Desired GPU memory utilization is \(NUM, NUM GiB\)", ("utilisation", 1), ("granted_bytes", GIB)),
    _rule(
        "vllm",
        r"Actual usage(?: is|:) NUM GiB for (?:weight|consumed)",
        ("weights_bytes", GIB),
    ),
    _rule("vllm", r"NUM GiB for peak activation", ("activation_bytes", GIB)),
    _rule("vllm", r"NUM GiB for non-torch memory", ("non_torch_bytes", GIB)),
    _rule("vllm", r"NUM GiB for CUDAGraph memory", ("cuda_graph_bytes", GIB)),
    _rule("vllm", r"Graph capturing finished in \S+ secs?, took NUM GiB", ("cuda_graph_bytes", GIB)),
    _rule("vllm", r"Available KV cache memory: NUM GiB", ("kv_bytes", GIB)),
    _rule("vllm", r"reserved NUM GiB memory for KV Cache", ("kv_bytes", GIB)),
    _rule("vllm", r"Current kv cache memory in use is NUM bytes", ("kv_bytes", 1)),
    _rule("vllm", r"# (?:GPU|cuda|CUDA) blocks: NUM", ("blocks", 1)),
    _rule("vllm", r"num_gpu_blocks is: NUM", ("blocks", 1)),
    _rule("vllm", r"GPU KV cache size: NUM tokens", ("tokens", 1)),
    _rule(
        "vllm",
        r"Maximum concurrency for NUM tokens per request: NUM\s?x",
        ("concurrency_tokens", 1),
        ("concurrency", 1),
    ),
    _rule(
        "vllm",
        r"max seq len \(NUM\), \(?NUM GiB KV cache is needed",
        ("needed_tokens", 1),
        ("needed_bytes", GIB),
    ),
    _rule("vllm", r"available KV cache memory \(NUM GiB\)", ("kv_bytes", GIB)),
    _rule("vllm", r"estimated maximum model length is (\d+)", ("longest_tokens", 1)),
    _rule("vllm", r"Add NUM padding layers", ("padding_layers", 1)),
    _rule("vllm", r"Setting attention block size to NUM tokens", ("attention_block_tokens", 1)),
    _rule("vllm", r"[Cc]hunked prefill is enabled with max_num_batched_tokens=(\d+)", ("max_batched_tokens", 1)),
    _rule("vllm", r"Forcing kv cache block size to NUM", ("block_tokens", 1)),
    _rule("sglang", r"KV Cache is allocated\.[^\n]*?#tokens: NUM", ("tokens", 1)),
    _rule("sglang", r"max_total_num_tokens=(\d+)", ("tokens", 1)),
    _rule("sglang", r"mem_fraction_static=NUM", ("utilisation", 1)),
    _rule("sglang", r"Mamba Cache is allocated\.[^\n]*?max_mamba_cache_size: (\d+)", ("state_sequences", 1)),
    _rule("tensorrt-llm", r"tokens per block[:=]\s?(\d+)", ("block_tokens", 1)),
    _rule("tensorrt-llm", r"Allocate NUM bytes for k/v cache", ("kv_bytes", 1)),
    _rule("tensorrt-llm", r"Using NUM tokens in paged KV cache", ("tokens", 1)),
    _rule(
        "tensorrt-llm",
        r"Memory usage when calculating max tokens in paged kv cache: total: NUM GiB, available: NUM GiB",
        ("total_bytes", GIB),
        ("available_bytes", GIB),
    ),
)

# Whole-server figures: all ranks print the same one, so two different ones come from two servers.
_ONE_VALUE = frozenset({"blocks", "tokens", "concurrency", "concurrency_tokens", "utilisation", "block_tokens"})
_COUNTS = frozenset({"concurrency_tokens", "needed_tokens", "block_tokens", "max_batched_tokens", "state_sequences"})
_WORDS = {
    "vllm": (
        ("version", r"LLM [Ee]ngine \(v?([\w.+-]+)\)"),
        ("version", r"vLLM (?:API server )?version ([\w.+-]+)"),
        ("model", r"with config: model='([^']+)'"),
        ("dtype", r"[ ,(]dtype=torch\.(\w+)"),
        ("kv_dtype", r"kv_cache_dtype=([\w.]+)"),
        ("tp", r"tensor_parallel_size=(\d+)"),
        ("pp", r"pipeline_parallel_size=(\d+)"),
    ),
    "sglang": (
        ("model", r"model_path='([^']+)'"),
        ("dtype", r"Load weight end[^\n]*?dtype=torch\.(\w+)"),
        ("kv_dtype", r"KV cache dtype: torch\.(\w+)"),
        ("tp", r"\btp_size=(\d+)"),
        ("pp", r"\bpp_size=(\d+)"),
    ),
    "tensorrt-llm": (("version", r"TensorRT-LLM version: ([\w.+-]+)"),),
    "llamacpp": (("version", r"build: (\d+)"), ("model", r"general\.name str\s+= (.+)")),
}


def read_log(text: str) -> LogFacts:
    """The sizes that the pasted start-up lines of one server state.

    vLLM (V0 and V1), SGLang, TensorRT-LLM or llama.cpp, told apart by their wordings; other lines are passed over.
    Ranks print their own memory: the smallest pool counts, and the notes say so.

    Raises InputError where nothing is recognised, where two engines speak, or where one figure has two values.
    """
    if not isinstance(text, str):
        raise InputError("a log must be text")
    if len(text) > _LARGEST_TEXT:
        raise InputError(f"the log is longer than {_LARGEST_TEXT:,} characters: give its start-up lines")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found: dict[str, dict[str, list[Reading]]] = {}
    for rule in _RULES:
        for match in rule.pattern.finditer(text):
            for name, reading in _readings(rule, match):
                found.setdefault(rule.engine, {}).setdefault(name, []).append(reading)
    for engine, special in _SPECIAL.items():
        for name, readings in special(text).items():
            found.setdefault(engine, {}).setdefault(name, []).extend(readings)
    caches, state = _cell_lines(text), _state_lines(text)
    if caches or state:
        found.setdefault("llamacpp", {})
    if not found:
        raise InputError(
            "no size of a start-up log was recognised (known: vLLM, SGLang, TensorRT-LLM, llama.cpp lines on weights, "
            "KV cache, blocks or tokens)"
        )
    if len(found) > 1:
        raise InputError(f"the log mixes lines of {' and '.join(sorted(found))}: give the start-up of one server")
    engine, figures = next(iter(found.items()))
    settled, notes = _settle(engine, figures)
    settled |= state
    words = _words(engine, text)
    return LogFacts(engine, MappingProxyType(settled), MappingProxyType(words), caches, tuple(notes))


def _readings(rule: _Rule, match: re.Match[str]) -> list[tuple[str, Reading]]:
    groups = list(match.groups())
    result = []
    for name, unit in rule.figures:
        text = groups.pop(0)
        if unit is None:
            unit = MIB if groups.pop(0) == "MiB" else GIB
        result.append((name, _reading(text, unit)))
    return result


def _reading(text: str, unit: float) -> Reading:
    value, decimals = float(text.replace(",", "") or "nan"), len(text.partition(".")[2])
    if not abs(value) < _LARGEST_NUMBER:
        raise InputError(f"the log states a size of {text[:40]!r}, which is no real one")
    whole = decimals == 0 and unit == 1
    return Reading(value * unit, 0.0 if whole else unit / 2 / 10**decimals)


def _settle(engine: str, figures: dict[str, list[Reading]]) -> tuple[dict[str, Reading], list[str]]:
    """One reading per name: the finest where they agree; of pools the smallest; else a refusal."""
    settled, notes = {}, []
    for name, readings in figures.items():
        finest = min(readings, key=lambda reading: (reading.half_unit, reading.value))
        apart = [r for r in readings if abs(r.value - finest.value) > r.half_unit + finest.half_unit + 1e-9]
        if apart and name in _ONE_VALUE:
            values = ", ".join(f"{value:,.10g}" for value in sorted({r.value for r in readings})[:3])
            raise InputError(f"the log states {name} with different values ({values}): give the start-up of one server")
        if (
            name in ("weights_bytes", "total_bytes")
            and max(r.value for r in apart or [finest]) > 1.25 * finest.value > 0
        ):
            raise InputError(f"the log states {name} with very different values: give the start-up of one server")
        if apart and name == "kv_bytes":
            finest = min(readings, key=lambda reading: reading.value)
            notes.append("the ranks print different pools: the smallest sets the blocks of all")
        if finest.value < 1 and name in _COUNTS:
            raise InputError(f"the log states {name} {finest.value:g}: the server cannot have started")
        settled[name] = finest
    return settled, notes


def _words(engine: str, text: str) -> dict[str, str]:
    words: dict[str, str] = {}
    for name, pattern in _WORDS[engine]:
        match = re.search(pattern, text)
        if match and name not in words:
            words[name] = match.group(1).strip()[:200]
    return words


def _sglang_sizes(text: str) -> dict[str, list[Reading]]:
    """Pools and weights by rank: of two lines of one rank the second is the draft model's."""
    pools = _by_rank(text, r"KV Cache is allocated\.[^\n]*", lambda line: _sum_of(line, r"(?:KV|[KV]) size: NUM GB"))
    weights = _by_rank(text, r"Load weight end[^\n]*", lambda line: _sum_of(line, r"mem usage=NUM GB"))
    states = _by_rank(
        text, r"Mamba Cache is allocated\.[^\n]*", lambda line: _sum_of(line, r"(?:conv|ssm)_state size: NUM\s?GB")
    )
    return {
        **_first_and_second(pools, "kv_bytes", "second_kv_bytes"),
        **_first_and_second(weights, "weights_bytes", "draft_weights_bytes"),
        **_first_and_second(states, "state_bytes", "second_state_bytes"),
    }


def _by_rank(text: str, pattern: str, read: Callable[[str], Reading | None]) -> dict[str, list[Reading]]:
    by_rank: dict[str, list[Reading]] = {}
    for match in re.finditer(r"[^\n]*" + pattern, text):
        reading = read(match.group())
        if reading is not None:
            rank = re.search(r"\b(?:DP\d+ )?TP\d+(?: EP\d+)?\b", match.group())
            by_rank.setdefault(rank.group() if rank else "", []).append(reading)
    return by_rank


def _first_and_second(by_rank: dict[str, list[Reading]], first: str, second: str) -> dict[str, list[Reading]]:
    result: dict[str, list[Reading]] = {}
    for readings in by_rank.values():
        if len(readings) > 2:
            raise InputError(f"the log states {first} {len(readings)} times for one rank: give one start-up")
        for name, reading in zip((first, second), readings, strict=False):
            result.setdefault(name, []).append(reading)
    return result


def _sum_of(line: str, pattern: str) -> Reading | None:
    parts = [_reading(text, GIB) for text in re.findall(pattern.replace("NUM", _NUMBER), line)]
    if not parts:
        return None
    return Reading(sum(part.value for part in parts), sum(part.half_unit for part in parts))


def _tensorrt_sizes(text: str) -> dict[str, list[Reading]]:
    """The last pool counts: PyTorch-backend servers first allocate a small one to measure themselves."""
    pools = re.findall(rf"Allocated {_NUMBER} GiB for max tokens in paged KV cache \((\d+)\)", text)
    blocks = re.findall(r"(?:primary blocks[:=] ?|KV cache primary pool: )(\d+)", text)
    weights = re.findall(r"Loaded engine size: (\d+) MiB", text)
    result: dict[str, list[Reading]] = {}
    if pools:
        result["kv_bytes"] = [_reading(pools[-1][0], GIB)]
        result["tokens"] = [Reading(float(pools[-1][1]))]
    if blocks:
        result["blocks"] = [Reading(float(blocks[-1]))]
    if weights:
        result["weights_bytes"] = [_reading(weights[-1], MIB)]
    return result


def _llamacpp_weights(text: str) -> dict[str, list[Reading]]:
    sizes = re.findall(rf"(?:load_tensors|llm_load_tensors):\s+\S+ (?:model )?buffer size =\s*{_NUMBER} MiB", text)
    parts = [_reading(size, MIB) for size in sizes]
    if not parts:
        return {}
    return {"weights_bytes": [Reading(sum(p.value for p in parts), sum(p.half_unit for p in parts))]}


_SPECIAL: dict[str, Callable[[str], dict[str, list[Reading]]]] = {
    "sglang": _sglang_sizes,
    "tensorrt-llm": _tensorrt_sizes,
    "llamacpp": _llamacpp_weights,
}

_CELLS = re.compile(
    rf"llama_kv_cache\w*:\s+size =\s*{_NUMBER} MiB "
    r"\(\s*(\d+) cells,\s*(\d+) layers(?:,\s*(\d+)(?:/(\d+))? seqs)?[^)]*\)"
    rf"(?:,\s*K \((\w+)\):?\s*{_NUMBER}(?: MiB)?,\s*V \((\w+)\):?\s*{_NUMBER})?"
)
_SELF_SIZE = re.compile(
    rf"KV self size\s*=\s*{_NUMBER} MiB(?:,\s*K \((\w+)\):\s*{_NUMBER} MiB,\s*V \((\w+)\):\s*{_NUMBER} MiB)?"
)
_OLD_CELLS = re.compile(r"llama_kv_cache\w*:\s+(?:kv_)?size = (\d+),[^\n]*?n_layer = (\d+)")
_STATE = re.compile(
    rf"llama_memory_recurrent: size =\s*{_NUMBER} MiB "
    r"\(\s*(\d+) cells?,\s*(\d+) layers(?:,\s*(\d+) seqs\s*(?:(\d+) rs_seq)?)?"
)


def _cell_lines(text: str) -> tuple[CellLine, ...]:
    lines = []
    for size, cells, layers, _, streams, k_type, key, v_type, value in _CELLS.findall(text):
        lines.append(_cell_line(size, int(cells), int(layers), int(streams or 1), k_type, key, v_type, value))
    if lines:
        return tuple(lines)
    old = _OLD_CELLS.search(text)
    context = re.search(r"n_ctx\s+= (\d+)", text)
    for size, k_type, key, v_type, value in _SELF_SIZE.findall(text):
        cells = int(old.group(1)) if old else int(context.group(1)) if context else None
        layers = int(old.group(2)) if old else None
        lines.append(_cell_line(size, cells, layers, 1, k_type, key, v_type, value))
    return tuple(lines)


def _cell_line(
    size: str, cells: int | None, layers: int | None, streams: int, k_type: str, key: str, v_type: str, value: str
) -> CellLine:
    return CellLine(
        cells,
        layers,
        streams,
        _reading(size, MIB),
        k_type or None,
        v_type or None,
        _reading(key, MIB).value if key else 0.0,
        _reading(value, MIB).value if value else 0.0,
    )


def _state_lines(text: str) -> dict[str, Reading]:
    lines = _STATE.findall(text)
    if not lines:
        return {}
    if len(set(lines)) > 1:
        raise InputError("the log states the recurrent state twice: give the start-up of one server")
    size, cells, _, sequences, rollback = lines[0]
    # With speculative decoding every sequence keeps its last states too, to go back to.
    copies = int(sequences or cells) * (1 + int(rollback or 0))
    return {"state_bytes": _reading(size, MIB), "state_sequences": Reading(float(copies))}
