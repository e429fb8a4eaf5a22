"""Start-up logs read and compared: the lines are those that engines print, the figures those of real runs.

Sources: issues of vllm-project/vllm named beside each, and start-up logs in public repositories; lines that do not
matter here are left out.
"""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.accounts import (
    GIB,
    MIB,
    FullAttention,
    InputError,
    Mamba2,
    VllmSettings,
    compare_log,
    read_config,
    read_log,
)

# vLLM 0.8, V0 engine: Phi-4 in 4 bits on an A100.
V0 = """
INFO 07-02 17:08:01 [model_runner.py:1146] Model loading took 8.6253 GB and 7.670299 seconds
INFO 07-02 17:08:07 [worker.py:267] Memory profiling takes 5.35 seconds
INFO 07-02 17:08:07 [worker.py:267] the current vLLM instance can use total_gpu_memory (79.15GiB) x \
gpu_memory_utilization (0.70) = 55.09GiB
INFO 07-02 17:08:07 [worker.py:267] model weights take 8.63GiB; non_torch_memory takes 0.09GiB; PyTorch activation \
peak memory takes 1.16GiB; the rest of the memory reserved for KV Cache is 45.21GiB.
INFO 07-02 17:08:07 [executor_base.py:111] # cuda blocks: 14815, # CPU blocks: 1966
INFO 07-02 17:08:07 [executor_base.py:116] Maximum concurrency for 512 tokens per request: 462.97x
"""
# vLLM issue 10517: Llama-3.1-8B on a 3090.
V0_LLAMA = """
INFO 11-21 03:11:30 model_runner.py:1077] Loading model weights took 14.9888 GB
INFO 11-21 03:11:31 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB
INFO 11-21 03:11:31 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO 11-21 03:11:31 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
"""
# V1: Qwen3-235B-A22B in FP8 over four L40S with expert parallelism.
V1 = """
(EngineCore_DP0 pid=1944) INFO 09-24 20:53:01 [core.py:75] Initializing a V1 LLM engine (v0.10.2) with config: \
model='Qwen/Qwen3-235B-A22B', dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=4, kv_cache_dtype=auto
(Worker_TP3_EP3 pid=2081) INFO 09-24 20:53:41 [gpu_worker.py:298] Available KV cache memory: 10.65 GiB
(Worker_TP0_EP0 pid=2078) INFO 09-24 20:53:41 [gpu_worker.py:298] Available KV cache memory: 10.94 GiB
(EngineCore_DP0 pid=1944) INFO 09-24 20:53:41 [kv_cache_utils.py:864] GPU KV cache size: 238,208 tokens
(EngineCore_DP0 pid=1944) INFO 09-24 20:53:41 [kv_cache_utils.py:868] Maximum concurrency for 32,768 tokens per \
request: 7.27x
"""
GEMMA = """
WARNING [kv_cache_utils.py:971] Add 8 padding layers, may waste at most 15.38% KV cache memory
INFO [gpu_worker.py:276] Available KV cache memory: 109.86 GiB
INFO [kv_cache_utils.py:849] GPU KV cache size: 205,696 tokens
INFO [kv_cache_utils.py:853] Maximum concurrency for 4,096 tokens per request: 50.05x
"""
# SGLang: Qwen2.5-0.5B on an 80 GB card.
SGLANG = """
[2026-02-04 11:30:29] Load weight end. elapsed=0.38 s, type=Qwen2ForCausalLM, dtype=torch.bfloat16, avail mem=77.45 \
GB, mem usage=0.98 GB.
[2026-02-04 11:30:29] Using KV cache dtype: torch.bfloat16
[2026-02-04 11:30:29] KV Cache is allocated. #tokens: 20480, K size: 0.12 GB, V size: 0.12 GB
[2026-02-04 11:30:29] Memory pool end. avail mem=77.12 GB
[2026-02-04 11:30:31] max_total_num_tokens=20480, chunked_prefill_size=8192, max_prefill_tokens=16384, context_len=32768
"""
# TensorRT-LLM: a Llama-3-8B with an 8-bit cache on a 32 GB card.
TENSORRT = """
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 31.84 GiB, available: 17.83 GiB
[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 8219
[TensorRT-LLM][INFO] Number of tokens per block: 32.
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008).
"""
LLAMACPP = """
load_tensors:   CPU_Mapped model buffer size =   281.81 MiB
load_tensors:        CUDA0 model buffer size =  4403.49 MiB
llama_context: n_ctx         = 8192
llama_kv_cache: size =  544.00 MiB (  8192 cells,  32 layers,  1/1 seqs), K (q8_0):  272.00 MiB, V (q8_0):  272.00 MiB
"""
GPT_OSS = """
llama_kv_cache_unified_iswa: creating non-SWA KV cache, size = 131072 cells
llama_kv_cache_unified: size = 3072.00 MiB (131072 cells,  12 layers,  1/1 seqs), K (f16): 1536.00 MiB, V (f16): \
1536.00 MiB
llama_kv_cache_unified_iswa: creating     SWA KV cache, size = 768 cells
llama_kv_cache_unified: size =   18.00 MiB (   768 cells,  12 layers,  1/1 seqs), K (f16):    9.00 MiB, V (f16):    \
9.00 MiB
"""
OLD_LLAMACPP = """
llama_kv_cache_init: kv_size = 8192, offload = 1, type_k = 'f16', type_v = 'f16', n_layer = 32, can_shift = 1
llama_new_context_with_model: KV self size  = 1024.00 MiB, K (f16):  512.00 MiB, V (f16):  512.00 MiB
"""


def _by_quantity(rows):
    return {row.quantity: row for row in rows}


def test_every_line_of_a_v0_log_is_read():
    facts = read_log(V0)
    assert facts.engine == "vllm"
    assert facts.get("weights_bytes") == 8.6253 * GIB
    assert facts.get("total_bytes") == 79.15 * GIB
    assert facts.get("utilisation") == 0.7
    assert facts.get("granted_bytes") == 55.09 * GIB
    assert (facts.get("non_torch_bytes"), facts.get("activation_bytes")) == (0.09 * GIB, 1.16 * GIB)
    assert facts.get("kv_bytes") == 45.21 * GIB
    assert (facts.get("blocks"), facts.get("concurrency_tokens"), facts.get("concurrency")) == (14_815, 512, 462.97)


def test_a_v0_log_agrees_with_its_model_but_for_the_weights_in_4_bits():
    rows = _by_quantity(compare_log(read_log(V0), read_config("phi-4")))
    for quantity in ("KV pool the budget leaves", "blocks in the pool", "requests of 512 tokens at once"):
        assert rows[quantity].matches, quantity
        assert rows[quantity].reason == ""
    assert not rows["weights"].matches
    assert "fewer bits" in rows["weights"].reason
    halved = _by_quantity(compare_log(read_log(V0), read_config("phi-4"), weights_dtype="int4"))
    assert 1 < halved["weights"].ratio < 1.3


def test_the_profiling_line_of_early_vllm_is_read():
    # vLLM 0.6, Llama-3.1-8B on an RTX 3090: github.com/vllm-project/vllm/issues/10517
    facts = read_log(
        "Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB "
        "memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB "
        "gpu_memory_utilization=0.90\n"
        "# GPU blocks: 1952, # CPU blocks: 2048\n"
    )
    read = [facts.get(name) for name in ("total_bytes", "non_torch_bytes", "kv_bytes", "utilisation", "blocks")]
    assert read == [23.58 * GIB, 0.35 * GIB, 3.81 * GIB, 0.9, 1952]
    rows = {row.quantity: row for row in compare_log(facts, read_config("llama-3.1-8b"))}
    assert rows["blocks in the pool"].matches


def test_the_weights_line_that_says_gb_and_means_gib():
    rows = _by_quantity(compare_log(read_log(V0_LLAMA), read_config("llama-3.1-8b")))
    assert rows["weights"].matches
    assert round(rows["weights"].predicted / GIB, 4) == 14.9888
    assert rows["requests of 20,000 tokens at once"].matches


def test_a_v1_log_names_its_version_ranks_and_smallest_pool():
    facts = read_log(V1)
    assert facts.words == {
        "version": "0.10.2",
        "model": "Qwen/Qwen3-235B-A22B",
        "dtype": "bfloat16",
        "kv_dtype": "auto",
        "tp": "4",
    }
    assert facts.get("kv_bytes") == 10.65 * GIB
    assert any("smallest" in note for note in facts.notes)
    rows = _by_quantity(compare_log(facts, read_config("qwen3-235b-a22b")))
    assert rows["tokens printed"].matches
    assert rows["tokens printed"].reason == ""
    assert rows["requests of 32,768 tokens at once"].matches


def test_the_rank_with_the_least_memory_explains_fewer_tokens():
    # vLLM issue 13061: 8.69 GiB on the rank that printed, 81,536 tokens over both.
    text = "INFO Available KV cache memory: 8.69 GiB\nINFO GPU KV cache size: 81,536 tokens"
    model = read_config("llama-3.1-8b")
    model = replace(model, layers=model.layers[:1] * 48)
    row = _by_quantity(compare_log(read_log(text), model, tp=2))["tokens printed"]
    assert not row.matches
    assert row.ratio == pytest.approx(1 / 1.164, rel=0.005)
    assert "rank with the least free memory" in row.reason
    alone = "INFO Available KV cache memory: 8.69 GiB\nINFO GPU KV cache size: 30,000 tokens"
    assert _by_quantity(compare_log(read_log(alone), model))["tokens printed"].reason == "unexplained"


def test_the_tokens_that_gemma_prints_are_called_no_capacity():
    rows = _by_quantity(compare_log(read_log(GEMMA), read_config("gemma-3-27b")))
    assert rows["padding layers"].matches
    tokens = rows["tokens printed"]
    assert tokens.matches
    assert "no capacity" in tokens.reason
    assert rows["requests of 4,096 tokens at once"].matches


def test_a_newer_server_that_prints_concurrency_times_length():
    text = """INFO Available KV cache memory: 10.56 GiB
    INFO GPU KV cache size: 188,347 tokens, Maximum concurrency for 65,536 tokens per request: 2.87x"""
    settings = VllmSettings(max_batched_tokens=4096)
    rows = _by_quantity(compare_log(read_log(text), read_config("gemma-3-27b"), "fp8", vllm=settings))
    assert rows["tokens printed"].matches
    assert "no capacity" in rows["tokens printed"].reason


def test_another_dtype_of_the_cache_is_named_as_the_reason():
    text = "Available KV cache memory: 10.55 GiB\nGPU KV cache size: 230,528 tokens"
    model = read_config("qwen3-30b-a3b")
    row = _by_quantity(compare_log(read_log(text), model))["tokens printed"]
    assert "half as large" in row.reason
    assert _by_quantity(compare_log(read_log(text), model, "fp8"))["tokens printed"].matches


def test_a_request_that_does_not_fit_is_compared_with_what_it_needs(shared):
    text = """ValueError: To serve at least one request with the models's max seq len (1048576), (24.00 GiB KV cache is
    needed, which is larger than the available KV cache memory (9.97 GiB)."""
    text = " ".join(text.split())
    model = read_config(shared / "facts" / "configs" / "meta-llama--Llama-4-Scout-17B-16E-Instruct.json")
    row = _by_quantity(compare_log(read_log(text), model, tp=8))["one request, needed"]
    assert not row.matches
    assert "no hybrid cache manager" in row.reason
    whole = VllmSettings(hybrid_manager=False)
    assert _by_quantity(compare_log(read_log(text), model, tp=8, vllm=whole))["one request, needed"].matches


def test_the_estimated_maximum_length():
    text = (
        "(5.62 GiB KV cache is needed, which is larger than the available KV cache memory (2.4 GiB). Based on the "
        "available memory, the estimated maximum model length is 17472."
    )
    text = "max seq len (40960), " + text
    rows = _by_quantity(compare_log(read_log(text), read_config("qwen3-8b")))
    assert rows["one request, needed"].matches
    assert rows["longest request that fits"].matches


def test_state_pages_are_read_and_reproduced(shared):
    model = read_config(shared / "facts" / "configs" / "Qwen--Qwen3.5-27B.json")
    text = """INFO [config.py:422] Setting attention block size to 1568 tokens to ensure that attention page size is \
>= mamba page size.
    INFO Available KV cache memory: 4.99 GiB
    INFO GPU KV cache size: 302,921 tokens
    INFO Maximum concurrency for 131,072 tokens per request: 2.31x"""
    facts = read_log(text)
    twice = _by_quantity(compare_log(facts, model, "fp8", tp=2, vllm=VllmSettings(state_blocks=2)))
    assert all(row.matches for row in twice.values())
    assert len(twice) == 3
    once = _by_quantity(compare_log(facts, model, "fp8", tp=2))
    assert "state" in once["tokens printed"].reason
    assert not once["tokens printed"].matches


def test_an_sglang_log_adds_keys_and_values():
    facts = read_log(SGLANG)
    assert (facts.engine, facts.get("tokens")) == ("sglang", 20_480)
    assert facts.get("kv_bytes") == pytest.approx(0.24 * GIB)
    rows = _by_quantity(compare_log(facts, read_config("qwen2.5-0.5b")))
    assert rows["KV pool of the printed tokens"].matches
    assert "fall of free memory" in rows["weights"].reason


def test_a_latent_that_every_rank_holds_whole_in_an_sglang_log():
    # GLM-4.7-Flash, 47 layers of 512 + 64, over two cards.
    text = "[2026-03-11 13:53:23 TP0] KV Cache is allocated. #tokens: 383872, KV size: 19.36 GB"
    deepseek = read_config("deepseek-v3")
    model = replace(deepseek, layers=deepseek.layers[:1] * 47)
    assert compare_log(read_log(text), model, tp=2)[0].matches


def test_sglang_ranks_say_the_same_and_a_second_pool_is_the_drafts():
    pools = """[TP0] KV Cache is allocated. #tokens: 1000, K size: 0.08 GB, V size: 0.08 GB
    [TP1] KV Cache is allocated. #tokens: 1000, K size: 0.08 GB, V size: 0.08 GB
    [TP0] KV Cache is allocated. #tokens: 1000, K size: 0.03 GB, V size: 0.03 GB
    [TP1] KV Cache is allocated. #tokens: 1000, K size: 0.03 GB, V size: 0.03 GB"""
    facts = read_log(pools)
    assert facts.get("kv_bytes") == 0.16 * GIB
    assert facts.get("second_kv_bytes") == 0.06 * GIB
    target, draft = read_config("llama-3.1-70b"), read_config("llama-3.2-3b")
    rows = _by_quantity(compare_log(facts, target, tp=2, draft=draft))
    assert rows["KV pool of the printed tokens"].matches
    assert rows["second KV pool, of the draft"].matches
    missing = _by_quantity(compare_log(facts, target, tp=2))["second KV pool"]
    assert "second cache" in missing.reason


def test_the_packed_latent_is_named_where_plain_fp8_is_assumed():
    # DeepSeek-V3.2 on SGLang before its log counted the indexer: 54.52 GB for 1,462,784 tokens.
    text = "KV Cache is allocated. #tokens: 1462784, KV size: 54.52 GB"
    model = read_config("deepseek-v3")
    row = _by_quantity(compare_log(read_log(text), model, "fp8"))["KV pool of the printed tokens"]
    assert "packed FP8 latent" in row.reason
    packed = _by_quantity(compare_log(read_log(text), model, "fp8_ds_mla"))["KV pool of the printed tokens"]
    assert packed.matches


def test_state_slots_of_an_sglang_log():
    # Granite-4.0-H-Micro: 36 Mamba-2 layers of 64 heads, 4 attention layers of 8 KV heads of 64.
    text = """[TP0] Mamba Cache is allocated. max_mamba_cache_size: 38, conv_state size: 0.03GB, ssm_state size: 2.74GB
    [TP0] KV Cache is allocated. #tokens: 399740, K size: 1.52 GB, V size: 1.52 GB"""
    base = read_config("llama-3.1-8b")
    mamba = replace(base.layers[0], attention=None, state=Mamba2(64, 64, 1, 128, 4))
    attention = replace(base.layers[0], attention=FullAttention(32, 8, 64))
    model = replace(base, layers=(mamba,) * 36 + (attention,) * 4)
    rows = _by_quantity(compare_log(read_log(text), model))
    assert set(rows) == {"state of 39 slots", "KV pool of the printed tokens"}
    assert all(row.matches for row in rows.values())


def test_a_tensorrt_log_counts_its_last_pool():
    facts = read_log(TENSORRT)
    assert (facts.engine, facts.get("tokens"), facts.get("block_tokens")) == ("tensorrt-llm", 263_008, 32)
    assert facts.get("blocks") == 8219
    rows = _by_quantity(compare_log(facts, read_config("llama-3.1-8b"), "fp8"))
    assert rows["KV pool of the printed tokens"].matches
    assert rows["KV pool, 0.9 of what is left"].matches
    # Servers of the PyTorch backend first allocate a small pool to measure themselves.
    trial = "[MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).\n"
    assert read_log(trial + TENSORRT).get("tokens") == 263_008


def test_llama_cpp_lines_are_exact_in_every_wording():
    model = read_config("llama-3.1-8b")
    facts = read_log(LLAMACPP)
    assert facts.get("weights_bytes") == pytest.approx((281.81 + 4403.49) * MIB)
    row = next(row for row in compare_log(facts, model) if row.quantity.startswith("cache"))
    assert (row.logged, row.predicted) == (544 * MIB, 544 * MIB)
    old = next(iter(compare_log(read_log(OLD_LLAMACPP), model)))
    assert old.logged == old.predicted == 1024 * MIB
    both = compare_log(read_log(GPT_OSS), read_config("gpt-oss-20b"))
    assert [row.predicted / MIB for row in both] == [3072, 18]
    assert all(row.matches for row in both)


def test_llama_cpp_caches_of_another_model_are_told():
    row = next(iter(compare_log(read_log(OLD_LLAMACPP), read_config("llama-3.2-3b"))))
    assert "another model" in row.reason


def test_an_expanded_latent_is_told_from_a_whole_one():
    text = (
        "llama_kv_cache: size = 4320.00 MiB (  2048 cells,  27 layers,  8/8 seqs), K (f16): 2592.00, V (f16): 1728.00"
    )
    row = next(iter(compare_log(read_log(text), read_config("deepseek-v2-lite"))))
    assert row.matches
    assert "expanded" in row.reason


def test_recurrent_state_of_llama_cpp_with_and_without_rollback(shared):
    model = read_config(shared / "facts" / "configs" / "Qwen--Qwen3.5-27B.json")
    for line, sequences in (
        ("llama_memory_recurrent: size =  149.62 MiB (     1 cells,  64 layers,  1 seqs  0 rs_seq), R (f32)", 1),
        ("llama_memory_recurrent: size =  448.88 MiB (     1 cells,  64 layers,  1 seqs  2 rs_seq), R (f32)", 3),
        ("llama_memory_recurrent: size =  598.50 MiB (     4 cells,  64 layers,  4 seqs), R (f32): 22.50 MiB", 4),
    ):
        row = next(iter(compare_log(read_log(line), model)))
        assert row.quantity == f"state of {sequences} sequences"
        assert row.matches


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no size"),
        ("INFO: Started server process [1]", "no size"),
        (V0 + LLAMACPP, "mixes lines of llamacpp and vllm"),
        (V0 + V0_LLAMA, "different values"),
        (GEMMA + "INFO GPU KV cache size: 66,112 tokens", "tokens with different values"),
        (SGLANG + SGLANG.replace("20480", "30720"), "tokens with different values"),
        ("\n".join([SGLANG] * 3), "times for one rank"),
        (7, "text"),
        ("Maximum concurrency for 0 tokens per request: 1.00x", "concurrency_tokens 0"),
        ("GPU KV cache size: " + "9" * 400 + " tokens", "no real one"),
    ],
)
def test_a_log_that_says_nothing_or_contradicts_itself_is_refused(text, named):
    with pytest.raises(InputError, match=named):
        read_log(text)


def test_options_that_contradict_the_log_are_refused():
    with pytest.raises(InputError, match="tp '4'"):
        compare_log(read_log(V1), read_config("qwen3-235b-a22b"), tp=2)
    said = V1.replace("kv_cache_dtype=auto", "kv_cache_dtype=fp8_e4m3")
    with pytest.raises(InputError, match="kv_dtype 'fp8'"):
        compare_log(read_log(said), read_config("qwen3-235b-a22b"), "bf16")


def test_colours_of_a_terminal_do_not_hide_a_line():
    assert read_log("\x1b[1;36mINFO\x1b[0m GPU KV cache size: \x1b[1m66,112\x1b[0m tokens").get("tokens") == 66_112


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    try:
        facts = read_log(text + "\nINFO GPU KV cache size: 66,112 tokens")
    except InputError:
        return
    assert facts.figures["tokens"].value == 66_112


@given(st.lists(st.sampled_from((V0 + V1 + SGLANG + TENSORRT + LLAMACPP + GPT_OSS).splitlines()), max_size=12))
def test_any_mixture_of_lines_is_compared_or_refused(lines):
    model = read_config("llama-3.1-8b")
    try:
        rows = compare_log(read_log("\n".join(lines)), model)
    except InputError:
        return
    assert rows
    assert all(row.matches or row.reason for row in rows)


@given(
    text=st.sampled_from([V0, V1, GEMMA, SGLANG, TENSORRT, LLAMACPP, OLD_LLAMACPP]),
    name=st.sampled_from(["llama-3.1-8b", "gemma-3-27b", "deepseek-v3"]),
    random=st.randoms(use_true_random=False),
)
def test_numbers_of_any_kind_in_a_log_are_compared_or_refused(text, name, random):
    choices = ["0", "1", "-1", "", "9" * 30, "x"]
    mangled = re.sub(r"\d+", lambda match: random.choice([match.group()] * 6 + choices), text)
    try:
        rows = compare_log(read_log(mangled), read_config(name))
    except InputError:
        return
    assert all(row.matches or row.reason for row in rows)


def test_pools_of_windowed_layers_that_are_not_known_are_said_to_be_so():
    row = _by_quantity(compare_log(read_log(SGLANG), read_config("gemma-3-27b")))["KV pool"]
    assert (row.predicted, row.ratio, row.matches) == (None, None, False)
    assert "windowed layers" in row.reason


def test_the_first_tensorrt_llm_wording_agrees_with_llama_2():
    # NVIDIA/TensorRT-LLM issue 1400: Llama-2-7B in fp16 on an A100.
    log = """[TensorRT-LLM][INFO] Allocate 69524783104 bytes for k/v cache.
[TensorRT-LLM][INFO] Using 132608 tokens in paged KV cache."""
    (row,) = compare_log(read_log(log), read_config("llama-2-7b"))
    assert row.logged == row.predicted == 69_524_783_104


@pytest.mark.parametrize("words", ["with config: tensor_parallel_size=1, pipeline_parallel_size=2,", ""])
def test_the_log_of_a_pipeline_is_refused(words):
    facts = read_log(f"{words}\nModel loading took 7.4951 GiB\nGPU KV cache size: 442,768 tokens")
    if words:
        with pytest.raises(InputError, match="pipeline of 2"):
            compare_log(facts, read_config("llama-3.1-8b"))
    else:
        assert compare_log(facts, read_config("llama-3.1-8b"))


def test_a_terminal_s_colours_line_ends_and_prefixes_change_nothing():
    plain = read_log(V1)
    dressed = "\r\n".join(f"\x1b[1;36mvllm-1  | {line}\x1b[0;0m" for line in V1.splitlines())
    assert read_log(dressed) == plain
