"""A Llama-family decoder to read in one sitting, with its KV cache, weights and generation."""

from helpers.engine.blocks import BlockManager, OutOfBlocks
from helpers.engine.compare_caches import CacheComparison, compare_caches
from helpers.engine.decoder import MODEL_TYPES, Decoder
from helpers.engine.dtypes import TORCH_DTYPES, dtype_name, torch_dtype
from helpers.engine.expert_dumps import read_expert_dump
from helpers.engine.generate import generate, prefill, stream
from helpers.engine.kv_cache import KVCache
from helpers.engine.linear import LAYOUTS, fastest_layout
from helpers.engine.moe import DISPATCHES, MoE, Router, Routing, run_experts
from helpers.engine.paged import PagedKVCache, PagedSequence, PagedView
from helpers.engine.paged_runner import paged_decode_runner
from helpers.engine.quantized_cache import QuantizedKVCache
from helpers.engine.runners import decode_runner, prefill_runner
from helpers.engine.smollm2 import cache_folder, load_smollm2, smollm2_folder
from helpers.engine.tokenizer import Tokenizer, smollm2_tokenizer
from helpers.engine.weights import expected_tensors, free_bytes, largest_that_fits, load_folder, random_decoder

__all__ = [
    "DISPATCHES",
    "LAYOUTS",
    "MODEL_TYPES",
    "TORCH_DTYPES",
    "BlockManager",
    "CacheComparison",
    "Decoder",
    "KVCache",
    "MoE",
    "OutOfBlocks",
    "PagedKVCache",
    "PagedSequence",
    "PagedView",
    "QuantizedKVCache",
    "Router",
    "Routing",
    "Tokenizer",
    "cache_folder",
    "compare_caches",
    "decode_runner",
    "dtype_name",
    "expected_tensors",
    "fastest_layout",
    "free_bytes",
    "generate",
    "largest_that_fits",
    "load_folder",
    "load_smollm2",
    "paged_decode_runner",
    "prefill",
    "prefill_runner",
    "random_decoder",
    "read_expert_dump",
    "run_experts",
    "smollm2_folder",
    "smollm2_tokenizer",
    "stream",
    "torch_dtype",
]
