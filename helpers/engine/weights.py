"""Weights for the decoder: random ones in a model's shape, or a folder of safetensors."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from helpers.accounts import Model, MoEFFN, format_bytes, kv_bytes, read_config, weight_bytes
from helpers.engine.decoder import Decoder, check_supported
from helpers.engine.dtypes import dtype_name, torch_dtype
from helpers.engine.moe_weights import expert_tensors
from helpers.errors import InputError

SHAPES = ("llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b", "smollm2-135m")
"""The shapes `largest_that_fits` chooses from, largest first: registry names of `helpers.accounts`."""

RANDOM_STD = 0.02
"""Standard deviation of random matrices, as Llama-family models are initialised with."""


def expected_tensors(model: Model) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the model's checkpoint, as Hugging Face names them."""
    hidden, shapes = model.hidden_size, {"model.embed_tokens.weight": (model.vocab_size, model.hidden_size)}
    for index, layer in enumerate(model.layers):
        prefix, attention, ffn = f"model.layers.{index}", layer.attention, layer.feed_forward
        query_width, kv_width = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        for name, rows in (("q_proj", query_width), ("k_proj", kv_width), ("v_proj", kv_width)):
            shapes[f"{prefix}.self_attn.{name}.weight"] = (rows, hidden)
            if attention.qkv_bias:
                shapes[f"{prefix}.self_attn.{name}.bias"] = (rows,)
        shapes[f"{prefix}.self_attn.o_proj.weight"] = (hidden, query_width)
        if attention.output_bias:
            shapes[f"{prefix}.self_attn.o_proj.bias"] = (hidden,)
        if attention.qk_norm:
            shapes[f"{prefix}.self_attn.q_norm.weight"] = (attention.head_dim,)
            shapes[f"{prefix}.self_attn.k_norm.weight"] = (attention.head_dim,)
        if isinstance(ffn, MoEFFN):
            shapes |= expert_tensors(model, ffn, prefix)
        else:
            shapes[f"{prefix}.mlp.gate_proj.weight"] = (ffn.width, hidden)
            shapes[f"{prefix}.mlp.up_proj.weight"] = (ffn.width, hidden)
            shapes[f"{prefix}.mlp.down_proj.weight"] = (hidden, ffn.width)
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not model.tied_embeddings:
        shapes["lm_head.weight"] = (model.vocab_size, hidden)
    return shapes


def random_decoder(
    model: Model | str,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    seed: int = 0,
    **options,
) -> Decoder:
    """A decoder in the shape of `model` (or of a registry name) with random weights: right for speed, not for text.

    Matrices are normal with standard deviation `RANDOM_STD`, norms one, biases normal; the same seed, device and dtype
    give the same weights. `options` go to `Decoder`. Raises InputError for a model the decoder does not compute, or one
    larger than the device's free memory.
    """
    model = read_config(model) if isinstance(model, str) else model
    check_supported(model)
    needed, free = weight_bytes(model, dtype_name(dtype)).total, free_bytes(device)
    if free is not None and needed > free:
        raise InputError(
            f"{model.name} in {dtype_name(dtype)} takes {format_bytes(needed)}, "
            f"{format_bytes(free)} are free on {device}"
        )
    shapes = expected_tensors(model)
    generator = torch.Generator(device).manual_seed(seed)

    def tensor(name: str) -> torch.Tensor:
        if "norm" in name:
            return torch.ones(shapes[name])
        out = torch.empty(shapes[name], dtype=torch_dtype(dtype), device=device)
        return out.normal_(0, RANDOM_STD, generator=generator)

    return Decoder(model, tensor, dtype, device, **options)


def load_folder(
    path: str | os.PathLike,
    dtype: torch.dtype | str = torch.float32,
    device: torch.device | str = "cpu",
    **options,
) -> Decoder:
    """A decoder with the weights of a local checkpoint folder: config.json and safetensors, one file or sharded.

    `options` go to `Decoder`. Raises InputError, naming it, for a missing, unexpected or misshapen tensor, a file that
    is not readable safetensors, quantised weights, or a model the decoder does not compute.
    """
    folder = Path(path).expanduser()
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} holds no config.json")
    model = read_config(folder)
    check_supported(model)
    if model.quantization is not None:
        raise InputError(f"{folder / 'config.json'} has a quantization_config: this decoder reads plain weights only")
    files = _files_by_tensor(folder)
    expected = expected_tensors(model)
    # Some checkpoints repeat the tied embedding as lm_head, and old ones store RoPE's frequencies: both are recomputed.
    redundant = {name for name in files if name.endswith("rotary_emb.inv_freq")}
    redundant |= {"lm_head.weight"} if model.tied_embeddings else set()
    if missing := sorted(expected.keys() - files.keys()):
        raise InputError(f"{folder} lacks the tensor {missing[0]}{_and_more(missing)}")
    if unexpected := sorted(files.keys() - expected.keys() - redundant):
        raise InputError(f"{folder} holds a tensor the decoder would ignore: {unexpected[0]}{_and_more(unexpected)}")

    def tensor(name: str) -> torch.Tensor:
        with _open(files[name]) as file:
            found = file.get_tensor(name)
        if tuple(found.shape) != expected[name]:
            raise InputError(
                f"{files[name]}: {name} has shape {list(found.shape)}, the config asks for {list(expected[name])}"
            )
        if not found.is_floating_point() or found.dtype.itemsize < 2:
            raise InputError(f"{files[name]}: {name} is {found.dtype}, this decoder reads fp32, bf16 and fp16 weights")
        return found

    return Decoder(model, tensor, dtype, device, **options)


def largest_that_fits(
    device: torch.device | str = "cpu", dtype: torch.dtype | str = torch.bfloat16, context: int = 8192
) -> Model:
    """The largest of `SHAPES` whose weights and KV cache of `context` tokens take at most 80 % of the free memory.

    On a CPU the choice starts at llama-3.2-1b: larger ones fit many a machine but take minutes a lesson. Raises
    InputError where even the smallest does not fit.
    """
    free = free_bytes(device)
    names = SHAPES if torch.device(device).type != "cpu" else SHAPES[-2:]
    for name in names:
        model, format_name = read_config(name), dtype_name(dtype)
        needed = weight_bytes(model, format_name).total + kv_bytes(model, context, format_name)
        if free is None or needed <= 0.8 * free:
            return model
    raise InputError(f"{names[-1]} needs {format_bytes(needed)}, {format_bytes(free)} are free on {device}")


def free_bytes(device: torch.device | str) -> int | None:
    """Bytes of memory free on the device; None where the system does not say."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _files_by_tensor(folder: Path) -> Mapping[str, Path]:
    """Which file of the folder holds each tensor."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{index} is not a safetensors index: it has no readable weight_map") from error
        # An index names files of its own folder; a path out of it is no checkpoint's.
        if outside := [name for name in names if Path(name).name != name]:
            raise InputError(f"{index} names a file outside its folder: {outside[0]}")
        files = [folder / name for name in sorted(names)]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError(f"{folder} holds no safetensors file")
    found: dict[str, Path] = {}
    for file in files:
        with _open(file) as content:
            found.update(dict.fromkeys(content.keys(), file))
    return found


def _open(file: Path):
    try:
        return safe_open(file, framework="pt")
    except FileNotFoundError as error:
        raise InputError(f"{file} is missing") from error
    except (SafetensorError, OSError) as error:
        raise InputError(f"{file} is not a readable safetensors file ({error})") from error


def _and_more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
