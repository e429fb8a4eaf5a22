"""A Llama-family decoder to read in one sitting, with its KV cache, weights and generation."""

from helpers.engine.decoder import MODEL_TYPES, Decoder
from helpers.engine.dtypes import TORCH_DTYPES, dtype_name, torch_dtype
from helpers.engine.generate import generate, prefill, stream
from helpers.engine.kv_cache import KVCache
from helpers.engine.linear import LAYOUTS, fastest_layout
from helpers.engine.runners import decode_runner, prefill_runner
from helpers.engine.smollm2 import cache_folder, load_smollm2, smollm2_folder
from helpers.engine.tokenizer import Tokenizer, smollm2_tokenizer
from helpers.engine.weights import expected_tensors, free_bytes, largest_that_fits, load_folder, random_decoder

__all__ = [
    "LAYOUTS",
    "MODEL_TYPES",
    "TORCH_DTYPES",
    "Decoder",
    "KVCache",
    "Tokenizer",
    "cache_folder",
    "decode_runner",
    "dtype_name",
    "expected_tensors",
    "fastest_layout",
    "free_bytes",
    "generate",
    "largest_that_fits",
    "load_folder",
    "load_smollm2",
    "prefill",
    "prefill_runner",
    "random_decoder",
    "smollm2_folder",
    "smollm2_tokenizer",
    "stream",
    "torch_dtype",
]
