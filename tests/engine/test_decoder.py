"""The decoder against transformers on real and on random weights, and against itself."""

import pytest
import torch

from helpers.accounts import count_parameters, parse_config, prefill_flops, read_config
from helpers.engine import LAYOUTS, Decoder, KVCache, load_folder, prefill, random_decoder
from helpers.engine.cuda_graph import READ_STEP, GraphedStep, slots_read
from helpers.engine.decoder import rope_frequencies
from helpers.errors import InputError
from tests.engine.conftest import TINY, tiny_config

PROMPTS = (
    "The two accounts of inference are",
    "def fibonacci(n: int) -> int:\n    # 12345\n",
    "预填充受算力限制,解码受带宽限制。",
)


@pytest.mark.parametrize("prompt", PROMPTS)
def test_logits_equal_transformers_on_the_real_model(smollm2, reference, tokenizer, prompt):
    tokens = torch.tensor([tokenizer.encode(prompt)])
    with torch.no_grad():
        wanted = reference(tokens).logits
    got = smollm2(tokens, logits="all")
    assert got.shape == wanted.shape
    assert (got - wanted).abs().max() < 1e-3
    assert wanted.std() > 1


def test_logits_equal_transformers_on_random_weights(tiny_folder):
    folder, module = tiny_folder
    tokens = torch.randint(0, 97, (2, 100), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = module(tokens).logits
    got = load_folder(folder)(tokens, logits="all")
    assert (got - wanted).abs().max() < 1e-3 * wanted.abs().max()


def test_bf16_stays_near_fp32(tiny_folder):
    folder, _ = tiny_folder
    tokens = torch.randint(0, 97, (1, 20), generator=torch.Generator().manual_seed(1))
    exact, rounded = load_folder(folder)(tokens), load_folder(folder, "bf16")(tokens)
    assert rounded.dtype == torch.bfloat16
    assert (exact - rounded.float()).norm() < 0.1 * exact.norm()


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("attention", ["fused", "naive"])
def test_cached_decoding_equals_recomputation(tiny_model, kind, attention):
    decoder = random_decoder(tiny_model(kind), attention=attention)
    tokens = torch.randint(0, 97, (3, 24), generator=torch.Generator().manual_seed(2))
    whole = decoder(tokens, logits="all")
    cache = KVCache(decoder.model, 3, 24)
    # A prompt in two chunks, then token by token.
    pieces = [decoder(tokens[:, :7], cache, "all"), decoder(tokens[:, 7:19], cache, "all")]
    pieces += [decoder(tokens[:, at : at + 1], cache, "all") for at in range(19, 24)]
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=1e-5, rtol=1e-4)
    assert cache.length == 24


def test_cached_decoding_equals_recomputation_on_the_real_model(smollm2, tokenizer):
    ids = tokenizer.encode(PROMPTS[0] + " " + PROMPTS[2])
    tokens = torch.tensor([ids])
    whole = smollm2(tokens, logits="all")
    cache = KVCache(smollm2.model, 1, len(ids))
    steps = [smollm2(tokens[:, :8], cache), *(smollm2(tokens[:, at : at + 1], cache) for at in range(8, len(ids)))]
    assert (torch.stack(steps, 1) - whole[:, 7:]).abs().max() < 1e-3


@pytest.mark.parametrize("attention", ["fused", "naive"])
@pytest.mark.parametrize("kind", TINY)
def test_batch_rows_of_different_length_equal_single_rows(tiny_model, kind, attention):
    decoder = random_decoder(tiny_model(kind), attention=attention)
    prompts = [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3], [8, 9, 7, 9, 3]]
    together, cache = prefill(decoder, prompts, max_new_tokens=2)
    next_together = decoder(torch.tensor([[11], [12], [13]]), cache)
    for row, prompt in enumerate(prompts):
        alone, own_cache = prefill(decoder, [prompt], max_new_tokens=2)
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=1e-4)
        next_alone = decoder(torch.tensor([[11 + row]]), own_cache)
        torch.testing.assert_close(next_together[row], next_alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", TINY)
def test_naive_attention_equals_fused(tiny_model, kind):
    decoder = random_decoder(tiny_model(kind))
    tokens = torch.randint(0, 97, (2, 33), generator=torch.Generator().manual_seed(3))
    fused = decoder(tokens, logits="all")
    decoder.attention = "naive"
    torch.testing.assert_close(decoder(tokens, logits="all"), fused, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "output-major"])
@pytest.mark.parametrize("kind", ["qwen2", "llama-untied"])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_every_layout_computes_the_same(tiny_model, kind, layout, count):
    tokens = torch.randint(0, 97, (2, count), generator=torch.Generator().manual_seed(4))
    wanted = random_decoder(tiny_model(kind), layout="output-major")(tokens, logits="all")
    got = random_decoder(tiny_model(kind), layout=layout)(tokens, logits="all")
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)


def test_last_logits_are_the_last_of_all(tiny_model):
    decoder = random_decoder(tiny_model("qwen3"))
    tokens = torch.arange(12).view(2, 6)
    torch.testing.assert_close(decoder(tokens), decoder(tokens, logits="all")[:, -1])


@pytest.mark.parametrize("kind", TINY)
def test_weights_and_cache_hold_the_bytes_of_the_account(tiny_model, kind):
    from helpers.accounts import kv_bytes

    model = tiny_model(kind)
    decoder = random_decoder(model, "bf16")
    assert decoder.weight_nbytes == 2 * count_parameters(model).total
    assert KVCache(model, 3, 50, "bf16").nbytes == 3 * kv_bytes(model, 50, "bf16")


def test_real_model_holds_the_bytes_of_the_account(smollm2):
    assert smollm2.weight_nbytes == 4 * count_parameters(read_config("smollm2-135m")).total


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("logits", ["last", "all"])
def test_products_counted_by_torch_are_the_compute_account(tiny_model, kind, logits):
    from torch.utils.flop_counter import FlopCounterMode

    model = tiny_model(kind)
    # Naive attention: torch counts the products of its whole T × T square, the account only the causal half.
    decoder = random_decoder(model, attention="naive")
    tokens = torch.zeros(1, 20, dtype=torch.long)
    cache = KVCache(model, 1, 20)
    with FlopCounterMode(display=False) as counter:
        decoder(tokens, cache, logits)
    account = prefill_flops(model, 20, logits=logits)
    square = sum(4 * layer.attention.heads * layer.attention.head_dim * 20 * 20 for layer in model.layers)
    assert counter.get_total_flops() == account.weights + square
    assert account.attention == square * 21 / 40


def test_products_of_the_real_model_are_the_compute_account(smollm2):
    from torch.utils.flop_counter import FlopCounterMode

    smollm2.attention = "naive"
    try:
        with FlopCounterMode(display=False) as counter:
            smollm2(torch.zeros(1, 24, dtype=torch.long))
    finally:
        smollm2.attention = "fused"
    square = 30 * 4 * 9 * 64 * 24 * 24
    assert counter.get_total_flops() == prefill_flops(smollm2.model, 24).weights + square


@pytest.mark.parametrize("kind", TINY)
@pytest.mark.parametrize("padding", [None, [0, 5]])
def test_the_step_recorded_as_a_cuda_graph_computes_the_decode_step(tiny_model, kind, padding):
    decoder = random_decoder(tiny_model(kind))
    prompt = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(5))
    caches = [KVCache(decoder.model, 2, 40) for _ in range(2)]
    for cache in caches:
        cache.reset(padding)
        decoder(prompt, cache)
    with torch.inference_mode():
        recorded = GraphedStep(decoder, batch=2)
        recorded.tokens.copy_(torch.tensor([[7], [8]]))
        recorded.slot.fill_(caches[1].length)
        # It reads slots that are not filled yet, as a graph of fixed size does.
        got = recorded.step(caches[1], end=40)
    wanted = decoder(torch.tensor([[7], [8]]), caches[0])
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(caches[1].keys[0], caches[0].keys[0])


def test_a_graph_reads_the_filled_slots_and_few_more():
    assert slots_read(1, 4096) == READ_STEP
    assert slots_read(READ_STEP, 4096) == READ_STEP
    assert slots_read(READ_STEP + 1, 4096) == 2 * READ_STEP
    assert slots_read(600, 700) == 700


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_graph_decoding_equals_eager_on_the_gpu(tiny_model):
    tokens = torch.randint(0, 97, (2, 10), device="cuda")
    outputs = []
    for cuda_graph in (False, True):
        decoder = random_decoder(tiny_model("qwen3"), "bf16", "cuda", cuda_graph=cuda_graph)
        cache = KVCache(decoder.model, 2, 20, "bf16", "cuda")
        decoder(tokens, cache)
        outputs.append(torch.stack([decoder(tokens[:, at : at + 1], cache) for at in range(10)]))
    torch.testing.assert_close(outputs[0], outputs[1], atol=2e-2, rtol=2e-2)


def test_cache_is_reused_after_reset(tiny_model):
    decoder = random_decoder(tiny_model("llama-untied"))
    cache = KVCache(decoder.model, 1, 10)
    first = decoder(torch.tensor([[1, 2, 3]]), cache)
    cache.reset()
    assert cache.length == 0
    torch.testing.assert_close(decoder(torch.tensor([[1, 2, 3]]), cache), first)


REFUSED = {
    "deepseek-v2-lite": "model_type 'deepseek_v2'",
    "gemma-2-9b": "model_type 'gemma2'",
    "gpt-oss-20b": "model_type 'gpt_oss'",
}


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_models_it_does_not_compute_are_refused_by_name(name, reason):
    with pytest.raises(InputError, match=reason) as refusal:
        random_decoder(name)
    assert name in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 4.0}}, "low_freq_factor"),
        ({"hidden_act": "gelu"}, "gelu"),
    ],
)
def test_options_it_does_not_compute_are_refused(change, reason):
    with pytest.raises(InputError, match=reason):
        random_decoder(parse_config({**tiny_config("llama-untied"), **change}, "odd"))


def test_a_request_beyond_the_sliding_window_is_refused_and_one_within_is_computed():
    config = {**tiny_config("mistral"), "sliding_window": 16}
    decoder = random_decoder(parse_config(config, "windowed"))
    assert decoder(torch.zeros(1, 16, dtype=torch.long)).shape == (1, 97)
    with pytest.raises(InputError, match="sliding window of 16"):
        decoder(torch.zeros(1, 17, dtype=torch.long))


def test_calls_that_do_not_fit_are_refused(tiny_model):
    decoder = random_decoder(tiny_model("qwen2"))
    cache = KVCache(decoder.model, 2, 4)
    with pytest.raises(InputError, match="holds 4 tokens, 5 were asked for"):
        decoder(torch.zeros(2, 5, dtype=torch.long), cache)
    with pytest.raises(InputError, match="batch 2"):
        decoder(torch.zeros(1, 2, dtype=torch.long), cache)
    with pytest.raises(InputError, match="'first'"):
        decoder(torch.zeros(2, 2, dtype=torch.long), cache, logits="first")
    with pytest.raises(InputError, match=r"\[5\]"):
        decoder(torch.zeros(5, dtype=torch.long), cache)
    with pytest.raises(InputError, match="qwen3 in bf16"):
        decoder(torch.zeros(2, 2, dtype=torch.long), KVCache(tiny_model("qwen3"), 2, 4, "bf16"))
    decoder.attention = "paged"
    with pytest.raises(InputError, match="'paged'"):
        decoder(torch.zeros(2, 2, dtype=torch.long), cache)
    assert cache.length == 0


@pytest.mark.parametrize(("batch", "tokens"), [(0, 4), (1, 0), (1, -3), (1.0, 4), (True, 4), (1, 129)])
def test_impossible_caches_are_refused(tiny_model, batch, tokens):
    with pytest.raises(InputError):
        KVCache(tiny_model("qwen2"), batch, tokens)


def test_unknown_dtype_and_layout_are_refused(tiny_model):
    with pytest.raises(InputError, match="int8"):
        random_decoder(tiny_model("qwen2"), torch.int8)
    with pytest.raises(InputError, match="diagonal"):
        random_decoder(tiny_model("qwen2"), layout="diagonal")


def test_llama3_frequencies_equal_transformers(shared):
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    path = shared / "facts" / "configs" / "meta-llama--Meta-Llama-3.1-8B.json"
    wanted, scale = ROPE_INIT_FUNCTIONS["llama3"](AutoConfig.from_pretrained(path), device="cpu")
    assert scale == 1.0
    torch.testing.assert_close(rope_frequencies(read_config(path)), wanted)


def test_a_decoder_takes_its_weights_from_any_function(tiny_model):
    from helpers.engine import expected_tensors

    model = tiny_model("qwen2")
    shapes = expected_tensors(model)
    asked = []

    def zeros(name):
        asked.append(name)
        return torch.zeros(shapes[name])

    decoder = Decoder(model, zeros)
    assert sorted(asked) == sorted(shapes)
    assert decoder(torch.tensor([[1, 2]])).abs().max() == 0
