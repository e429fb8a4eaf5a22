"""Quantised weights: what a quantization_config says about bits, scales, zero points and modules left alone."""

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from helpers.accounts.inventory import Weight
from helpers.accounts.keys import Keys
from helpers.accounts.units import bytes_of

# Routers are kept in full precision by every engine and published checkpoint, whatever the ignore list says.
_QUANTISED = ("attention", "state_mixers", "dense_ffn", "routed_experts", "shared_experts")
_FP32, _HALF, _ONE_BYTE = 4, 2, 1


@dataclass(frozen=True)
class Scheme:
    """How the weights of a model are stored.

    A quantised matrix takes `bits` per element and one group of scales (`scale_bytes`, plus `zero_point_bits`) per
    block of `block_rows` × `block_columns` (None: the whole side), plus `bytes_per_matrix` (static scales) and
    `bytes_per_column` (GPTQ's group index). `bits` None: nothing is quantised. Only linear layers are ever
    quantised; `skipped` names those left alone, `experts_only` leaves all but routed experts alone. `dtype` is
    the format of the quantised numbers, `unquantised_dtype` that of the rest. `experts` says how routed experts are
    stored where that differs, `fp32` names modules kept in fp32.
    """

    dtype: str
    unquantised_dtype: str
    bits: int | None = None
    block_rows: int | None = 1
    block_columns: int | None = None
    scale_bytes: int = 0
    zero_point_bits: int = 0
    bytes_per_matrix: int = 0
    bytes_per_column: int = 0
    skipped: tuple[str, ...] = ()
    experts_only: bool = False
    experts: "Scheme | None" = None
    fp32: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeightCost:
    """Bytes of a weight: `values` and the `scales` (zero points, group index) beside them."""

    values: int
    scales: int

    @property
    def total(self) -> int:
        """Both."""
        return self.values + self.scales


def weight_cost(weight: Weight, scheme: Scheme, copies: int) -> WeightCost:
    """Bytes that `copies` copies of `weight` take under `scheme`."""
    if scheme.experts is not None and weight.component == "routed_experts":
        scheme = scheme.experts
    if not _is_quantised(weight, scheme):
        dtype = "fp32" if scheme.fp32 and _covers(scheme.fp32)(weight.module) else scheme.unquantised_dtype
        return WeightCost(copies * bytes_of(weight.elements_per_copy, dtype), 0)
    rows, columns = weight.rows, weight.columns
    blocks = _blocks(rows, scheme.block_rows) * _blocks(columns, scheme.block_columns)
    values = _bytes(rows * columns * scheme.bits) + bytes_of(weight.bias, scheme.unquantised_dtype)
    scales = blocks * scheme.scale_bytes + _bytes(blocks * scheme.zero_point_bits)
    scales += scheme.bytes_per_matrix + columns * scheme.bytes_per_column
    return WeightCost(copies * values, copies * scales)


def _is_quantised(weight: Weight, scheme: Scheme) -> bool:
    if scheme.bits is None or not weight.is_matrix or weight.is_convolution or weight.component not in _QUANTISED:
        return False
    if scheme.experts_only and weight.component != "routed_experts":
        return False
    return not _covers(scheme.skipped)(weight.module)


def _blocks(side: int, block: int | None) -> int:
    return 1 if block is None else -(-side // block)


def _bytes(bits: int) -> int:
    return -(-bits // 8)


@lru_cache(maxsize=64)
def _covers(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """A test whether `ignore` or `modules_to_not_convert` covers a module or one it stands in.

    An entry is a name or a run of its dotted parts, a ``*`` pattern, or a regular expression after ``re:``. In a
    multimodal checkpoint the names begin with ``language_model.`` (Gemma-3) or ``model.language_model.`` (Qwen3.5).
    """
    literal = frozenset(entry for entry in patterns if "*" not in entry and not entry.startswith("re:"))
    others = [
        re.compile(entry[3:] if entry.startswith("re:") else fnmatch.translate(entry))
        for entry in patterns
        if entry not in literal
    ]

    def covers(module: str) -> bool:
        first, *rest = module.split(".")
        return any(matches(parts) for parts in (["language_model", first, *rest], [first, "language_model", *rest]))

    def matches(parts: list[str]) -> bool:
        ends = range(1, len(parts) + 1)
        if any(".".join(parts[start:end]) in literal for end in ends for start in range(end)):
            return True
        names = [".".join(parts[start:end]) for end in ends for start in (0, 1) if start < end]
        return any(pattern.match(name) for pattern in others for name in names)

    return lru_cache(maxsize=100_000)(covers)


def read_scheme(config: Mapping[str, Any], unquantised_dtype: str, name: str) -> Scheme:
    """The scheme a quantization_config describes: fp8, fbgemm_fp8, modelopt, compressed-tensors, awq, gptq or mxfp4.

    `unquantised_dtype` is the format of what is left alone: embedding, head, router, norms, biases and the modules
    the config names. Raises InputError for another quant_method, an unknown key or value, naming it.
    """
    keys = Keys(config, f"{name}: quantization_config")
    method = keys.text("quant_method")
    if method not in _METHODS:
        raise keys.refuse(
            "quant_method",
            f"{method[:40]!r} is not known (known: {', '.join(_METHODS)}); give --weights-dtype instead",
        )
    if "expert_dtype" in config and method != "fp8":
        raise keys.refuse("quant_method", f"is {method}, but deepseek_v4 is known in fp8 alone; give --weights-dtype")
    scheme = _METHODS[method](keys, unquantised_dtype)
    keys.refuse_unread()
    return scheme


def _fp8(keys: Keys, unquantised: str) -> Scheme:
    keys.one_of("fmt", [None, "e4m3", "float8_e4m3fn"], "but only e4m3 is known")
    keys.ignore(["scale_fmt", "dequantize"])
    if "expert_dtype" in keys.values:
        return _deepseek_v4(keys, unquantised)
    static = _static_activations(keys)
    keys.defaults = {"weight_block_size": None}
    block = keys.raw("weight_block_size")
    if block is None:
        rows = columns = None
    else:
        if not isinstance(block, list) or len(block) != 2 or not all(type(side) is int and side > 0 for side in block):
            raise keys.refuse("weight_block_size", f"must be two positive whole numbers, not {block!r}")
        rows, columns = block
    return Scheme(
        "fp8",
        unquantised,
        bits=8,
        block_rows=rows,
        block_columns=columns,
        scale_bytes=_FP32,
        bytes_per_matrix=_FP32 if static else 0,
        skipped=_patterns(keys, "modules_to_not_convert", "ignored_layers"),
    )


# What DeepSeek-V4 keeps out of its fp8 without saying so in its quantization_config: the compressors' projections and
# the indexer's scorer in bf16; hyper-connections, positions and sinks in fp32. As its safetensors headers show.
_V4_UNQUANTISED = (
    "compressor.kv_proj",
    "compressor.gate_proj",
    "indexer.kv_proj",
    "indexer.gate_proj",
    "scorer.weights_proj",
)
_V4_FP32 = ("attn_hc", "ffn_hc", "hc_head", "position_bias", "sinks")


def _deepseek_v4(keys: Keys, unquantised: str) -> Scheme:
    """fp8 with experts in a format of their own; with fp4 experts (one e8m0 scale per 32) all scales are one byte.

    Source: tensor shapes and types in github.com/NVIDIA-NeMo/Automodel issue 2034; to the byte against
    metadata.total_size of model.safetensors.index.json of deepseek-ai/DeepSeek-V4-Flash.
    """
    # Where it is missing, engines differ: vLLM takes fp4, and published fp8 conversions leave it out too.
    keys.one_of("expert_dtype", ["fp4", "fp8"], "but deepseek_v4 must state fp4 or fp8; give --weights-dtype")
    keys.one_of("weight_block_size", [[128, 128]], "but deepseek_v4 is known with blocks of 128 × 128 alone")
    keys.one_of("activation_scheme", [None, "dynamic"], "which is not known for deepseek_v4")
    skipped = (*_V4_UNQUANTISED, *_patterns(keys, "modules_to_not_convert", "ignored_layers"))
    fp4 = keys.values["expert_dtype"] == "fp4"
    if fp4 and keys.values.get("scale_fmt") != "ue8m0":
        raise keys.refuse("scale_fmt", "must be ue8m0 where expert_dtype is fp4")
    return Scheme(
        "fp8",
        unquantised,
        bits=8,
        block_rows=128,
        block_columns=128,
        scale_bytes=_ONE_BYTE if fp4 else _FP32,
        skipped=skipped,
        experts=Scheme("int4", unquantised, 4, 1, 32, _ONE_BYTE) if fp4 else None,
        fp32=_V4_FP32,
    )


def _fbgemm_fp8(keys: Keys, unquantised: str) -> Scheme:
    # One fp32 scale per output row (FBGEMM's rowwise fp8, as in Llama-3.1-405B-FP8).
    keys.ignore(["activation_scale_ub"])
    return Scheme("fp8", unquantised, 8, scale_bytes=_FP32, skipped=_patterns(keys, "modules_to_not_convert"))


def _static_activations(keys: Keys) -> bool:
    keys.one_of("activation_scheme", [None, "dynamic", "static"], "which is not known")
    return keys.values.get("activation_scheme") == "static"


def _modelopt(keys: Keys, unquantised: str) -> Scheme:
    keys.ignore(["producer", "kv_cache_scheme", "kv_cache_quant_algo", "config_groups", "group_size"])
    skipped = _ignored(keys, "ignore", "exclude_modules")
    algorithm = keys.text("quant_algo")
    if algorithm == "FP8":
        # One fp32 scale for the weights and one for the inputs.
        return Scheme("fp8", unquantised, 8, None, None, scale_bytes=_FP32, bytes_per_matrix=_FP32, skipped=skipped)
    if algorithm == "NVFP4":
        return _nvfp4(unquantised, skipped)
    raise keys.refuse("quant_algo", f"is {algorithm[:40]!r}; known are FP8 and NVFP4")


def _nvfp4(unquantised: str, skipped: tuple[str, ...]) -> Scheme:
    # One fp8 scale per 16 numbers, and two fp32 scales (weights, inputs) per matrix.
    return Scheme("int4", unquantised, 4, 1, 16, _ONE_BYTE, bytes_per_matrix=2 * _FP32, skipped=skipped)


_COMPRESSED_FORMATS = (
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "pack-quantized",
)


def _compressed_tensors(keys: Keys, unquantised: str) -> Scheme:
    # Sparse formats (marlin-24) store less than their bits say.
    keys.one_of("format", [None, *_COMPRESSED_FORMATS], "which is not known")
    keys.ignore(["kv_cache_scheme", "quantization_status", "global_compression_ratio", "version"])
    keys.one_of("sparsity_config", [None, {}], "but sparse weights are not known")
    keys.one_of("transform_config", [None, {}], "but transforms are not known")
    skipped = _ignored(keys, "ignore")
    groups = keys.object("config_groups")
    if len(groups) != 1:
        raise keys.refuse("config_groups", f"has {len(groups)} groups; exactly one is known")
    group_name, group = next(iter(groups.items()))
    if not isinstance(group, dict):
        raise keys.refuse("config_groups", "must hold objects")
    inner = Keys(group, f"{keys.where}: {str(group_name)[:40]}", {"format": None})
    if inner.raw("targets") != ["Linear"]:
        raise inner.refuse("targets", 'must be ["Linear"]: other targets are not known')
    inner.ignore(["input_activations", "output_activations", "format"])
    weights = Keys(
        inner.object("weights"),
        f"{keys.where}: weights",
        {"group_size": None, "block_structure": None, "symmetric": True},
    )
    inner.refuse_unread()
    return _compressed_weights(weights, unquantised, skipped)


def _compressed_weights(weights: Keys, unquantised: str, skipped: tuple[str, ...]) -> Scheme:
    bits, strategy, kind = weights.size("num_bits", largest=8), weights.text("strategy"), weights.text("type")
    symmetric, group, block = (
        weights.flag("symmetric"),
        weights.size_or_none("group_size"),
        weights.raw("block_structure"),
    )
    if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8), ("float", 4)):
        raise weights.refuse("num_bits", f"{bits} of type {kind[:20]!r} is not known")
    scales = ["torch.float8_e4m3fn"] if (kind, bits) == ("float", 4) else ["torch.bfloat16", "torch.float16"]
    weights.one_of("scale_dtype", [None, *scales], "which is not known")
    weights.ignore(["actorder", "dynamic", "observer", "observer_kwargs", "zp_dtype"])
    weights.refuse_unread()
    if (kind, bits) == ("float", 4):
        if strategy != "tensor_group" or group != 16:
            raise weights.refuse("strategy", "of 4-bit floats must be tensor_group with group_size 16")
        return _nvfp4(unquantised, skipped)
    sides = {"tensor": (None, None), "channel": (1, None), "group": (1, group)}
    if (
        strategy == "block"
        and isinstance(block, list)
        and len(block) == 2
        and all(type(s) is int and s > 0 for s in block)
    ):
        sides["block"] = tuple(block)
    if strategy not in sides or (strategy == "group" and group is None):
        raise weights.refuse("strategy", f"is {strategy[:40]!r}, or its group_size or block_structure is missing")
    rows, columns = sides[strategy]
    return Scheme(
        "fp8" if kind == "float" else f"int{bits}",
        unquantised,
        bits,
        rows,
        columns,
        scale_bytes=_HALF,
        zero_point_bits=0 if symmetric else bits,
        skipped=skipped,
    )


def _awq(keys: Keys, unquantised: str) -> Scheme:
    keys.ignore(["backend", "do_fuse", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"])
    keys.one_of("version", ["gemm", "GEMM", "gemv", "GEMV"], "which is not known")
    bits, group = _integer_bits(keys)
    zero_point = keys.flag("zero_point")
    return Scheme(
        f"int{bits}",
        unquantised,
        bits,
        1,
        group,
        _HALF,
        zero_point_bits=bits if zero_point else 0,
        skipped=_patterns(keys, "modules_to_not_convert"),
    )


_GPTQ_HARMLESS = (
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "damp_percent",
    "dataset",
    "desc_act",
    "exllama_config",
    "is_marlin_format",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "pad_token_id",
    "quantizer",
    "static_groups",
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
)


def _gptq(keys: Keys, unquantised: str) -> Scheme:
    keys.ignore(_GPTQ_HARMLESS)
    keys.one_of("checkpoint_format", [None, "gptq", "gptq_v2"], "which is not known")
    keys.one_of("lm_head", [None, False], "but a quantised head is not known")
    keys.one_of("modules_in_block_to_quantize", [None], "which is not known")
    keys.one_of("dynamic", [None, {}], "but rules per module are not known")
    bits, group = _integer_bits(keys)
    # GPTQ files carry packed zero points even when symmetric, and one int32 group index per input.
    return Scheme(f"int{bits}", unquantised, bits, 1, group, _HALF, bits, bytes_per_column=4)


def _integer_bits(keys: Keys) -> tuple[int, int | None]:
    bits = keys.size(keys.alias("bits", "w_bit"))
    if bits not in (4, 8):
        raise keys.refuse("bits", f"is {bits}; known are 4 and 8")
    key = keys.alias("group_size", "q_group_size")
    if keys.raw(key) == -1:
        return bits, None
    return bits, keys.size(key)


def _mxfp4(keys: Keys, unquantised: str) -> Scheme:
    # OCP Microscaling: one 8-bit exponent per 32 numbers (opencompute.org, MX v1.0); transformers converts the
    # experts alone.
    keys.ignore(["dequantize"])
    skipped = _patterns(keys, "modules_to_not_convert")
    return Scheme("int4", unquantised, 4, 1, 32, _ONE_BYTE, skipped=skipped, experts_only=True)


def _ignored(keys: Keys, *names: str) -> tuple[str, ...]:
    """The modules left alone by a method that quantises every linear layer not named, the head included."""
    patterns = _patterns(keys, *names)
    if not _covers(patterns)("lm_head"):
        raise keys.refuse(names[0], "does not leave lm_head alone, and a quantised head is not known")
    return patterns


def _patterns(keys: Keys, *names: str) -> tuple[str, ...]:
    """The modules left alone, under whichever of `names` is present."""
    keys.read.update(names)
    found: list[str] = []
    for name in names:
        value = keys.values.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise keys.refuse(name, "must be a list of module names")
        for item in value:
            if re.search(r"experts\.\d", item):
                raise keys.refuse(name, f"treats single experts apart ({item[:60]!r}), which is not known")
            try:
                re.compile(item[3:] if item.startswith("re:") else "")
            except re.error:
                raise keys.refuse(name, f"holds {item[:60]!r}, which is not a regular expression") from None
        found += value
    return tuple(found)


_METHODS = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "modelopt": _modelopt,
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
}
