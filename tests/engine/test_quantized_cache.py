"""The quantised cache: error bounds of each format, bytes of the account, and what it does to real text."""

import pytest
import torch

from helpers.accounts import kv_bytes, parse_config
from helpers.accounts.kv_scales import kv_scale_bytes
from helpers.engine import KVCache, QuantizedKVCache, compare_caches, random_decoder
from helpers.engine.compare_caches import CacheComparison
from helpers.engine.cuda_graph import GraphedStep
from helpers.engine.quantized_cache import STORES, predicted_nbytes, scaled
from helpers.errors import InputError
from tests.engine.conftest import tiny_config

DECODER = random_decoder(parse_config(tiny_config("qwen3"), "qwen3"), layout="output-major")


@pytest.fixture(scope="session")
def english(shared, tokenizer):
    """The tokens of a passage of Shakespeare."""
    text = (shared / "facts" / "text" / "tinyshakespeare.txt").read_text(encoding="utf-8")
    return tokenizer.encode(text[100_000:101_000])[:128]


@pytest.fixture(scope="session")
def comparison(smollm2, english):
    return compare_caches(smollm2, english)


def stored_error(x, store):
    """|what comes back − x| as a share of the largest of its head."""
    cache = QuantizedKVCache(DECODER.model, x.shape[0], x.shape[1], store=store)
    keys, values = cache.append(0, cache.span(torch.zeros(x.shape[:2])), x, -x)
    torch.testing.assert_close(keys, -values)
    wanted = x.transpose(1, 2)
    return (keys - wanted).abs() / wanted.abs().amax(-1, keepdim=True)


# int8: half a step of 1/127. fp8: 3 mantissa bits, so half of 1/8 of a power of two, largest below 448 at 256 · 1/16.
@pytest.mark.parametrize(
    ("store", "bound"), [("int8", 0.5 / 127), ("fp8", 16 / 448), ("bf16", 2**-8), ("fp16", 2**-11)]
)
def test_what_is_read_back_is_within_half_a_step_of_each_head(store, bound):
    attention = DECODER.model.layers[0].attention
    x = torch.randn(3, 40, attention.kv_heads, attention.head_dim, generator=torch.Generator().manual_seed(0))
    # Heads and tokens of very different size, as real keys are: one scale for all would lose the small ones.
    x *= torch.logspace(-3, 3, 40)[None, :, None, None]
    error = stored_error(x, store)
    assert bound / 4 < error.max() <= bound * 1.001


def test_a_head_of_zeros_comes_back_as_zeros():
    attention = DECODER.model.layers[0].attention
    cache = QuantizedKVCache(DECODER.model, 1, 2)
    zeros = torch.zeros(1, 2, attention.kv_heads, attention.head_dim)
    keys, _ = cache.append(0, cache.span(torch.zeros(1, 2)), zeros, zeros)
    assert torch.equal(keys, torch.zeros_like(keys))


def test_a_scale_belongs_to_one_head_of_one_token():
    numbers, scale = scaled(torch.tensor([[[1.0, -2.0], [30.0, 10.0]]]), 100.0)
    torch.testing.assert_close(scale, torch.tensor([[[0.02], [0.3]]]))
    torch.testing.assert_close(numbers, torch.tensor([[[50.0, -100.0], [100.0, 100 / 3]]]))


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_allocated_bytes_are_the_accounts_scales_counted(store, dtype):
    cache = QuantizedKVCache(DECODER.model, 3, 50, dtype, store=store)
    assert cache.nbytes == 3 * predicted_nbytes(DECODER.model, 50, store)
    scales = kv_scale_bytes(DECODER.model, 50) if store in ("int8", "fp8") else 0
    assert cache.nbytes == 3 * (kv_bytes(DECODER.model, 50, store) + scales)


@pytest.mark.parametrize("store", STORES)
def test_decoding_in_pieces_equals_one_pass(store):
    tokens = torch.randint(0, 97, (2, 20), generator=torch.Generator().manual_seed(1))
    caches = [QuantizedKVCache(DECODER.model, 2, 20, store=store) for _ in range(2)]
    whole = DECODER(tokens, caches[0], "all")
    pieces = [DECODER(tokens[:, :7], caches[1], "all"), DECODER(tokens[:, 7:15], caches[1], "all")]
    pieces += [DECODER(tokens[:, at : at + 1], caches[1], "all") for at in range(15, 20)]
    # A last bit of a number can fall on the other side of a rounding step: not the 1e-5 of the other caches.
    torch.testing.assert_close(torch.cat(pieces, 1), whole, atol=2e-2, rtol=2e-2)
    assert not torch.equal(whole, DECODER(tokens, logits="all"))


@pytest.mark.parametrize("store", ["int8", "fp8"])
def test_the_step_recorded_as_a_cuda_graph_serves_it_too(store):
    prompt = torch.randint(0, 97, (2, 9), generator=torch.Generator().manual_seed(5))
    caches = [QuantizedKVCache(DECODER.model, 2, 40, store=store) for _ in range(2)]
    for cache in caches:
        cache.reset([0, 5])
        DECODER(prompt, cache)
    with torch.inference_mode():
        recorded = GraphedStep(DECODER, batch=2)
        recorded.tokens.copy_(torch.tensor([[7], [8]]))
        recorded.slot.fill_(caches[1].length)
        got = recorded.step(caches[1], end=40)
    torch.testing.assert_close(got, DECODER(torch.tensor([[7], [8]]), caches[0]), atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("store", STORES)
def test_on_the_gpu_a_graph_of_the_quantised_step_equals_the_eager_step(store):
    tokens = torch.randint(0, 97, (2, 10), device="cuda")
    outputs = []
    for cuda_graph in (False, True):
        decoder = random_decoder(DECODER.model, "bf16", "cuda", cuda_graph=cuda_graph)
        cache = QuantizedKVCache(decoder.model, 2, 20, "bf16", "cuda", store=store)
        decoder(tokens, cache)
        outputs.append(torch.stack([decoder(tokens[:, at : at + 1], cache) for at in range(10)]))
    torch.testing.assert_close(outputs[0], outputs[1], atol=2e-2, rtol=2e-2)


def test_on_real_text_fewer_bits_change_more_and_none_of_it_much(comparison):
    own, bf16, int8, fp8 = comparison.rows
    assert (own.store, own.logit_change_max, own.kl_max, own.top1_agreement) == ("fp32", 0, 0, 1)
    assert 0 < bf16.kl_mean < int8.kl_mean < fp8.kl_mean < 0.05
    assert bf16.top1_agreement >= int8.top1_agreement >= fp8.top1_agreement > 0.85
    assert fp8.top1_agreement < 1
    for row in (bf16, int8, fp8):
        assert abs(row.perplexity / own.perplexity - 1) < 0.03
        assert row.logit_change_max > 0


def test_real_perplexity_is_that_of_transformers(comparison, reference, english):
    with torch.no_grad():
        ids = torch.tensor([english])
        loss = reference(ids, labels=ids).loss.item()
    assert torch.tensor(comparison.rows[0].perplexity).log().item() == pytest.approx(loss, abs=1e-4)


def test_bytes_a_token_of_the_real_model(comparison):
    # 30 layers · 2 · 3 kv heads = 180 vectors of 64 numbers.
    assert [row.nbytes / comparison.tokens for row in comparison.rows] == [180 * 256, 180 * 128, 180 * 68, 180 * 68]
    assert all(row.nbytes == row.predicted_nbytes for row in comparison.rows)


def test_the_decoders_own_dtype_is_compared_once_and_the_clock_is_handed_both_steps():
    decoder = random_decoder(DECODER.model, "bf16", layout="output-major")
    calls = []

    def clock(step, own_step, device):
        assert step().shape == own_step().shape == (1, 97)
        calls.append(device)
        return "twice as long"

    found = compare_caches(decoder, list(range(30)), paired=clock, chunk=7)
    assert [row.store for row in found.rows] == ["bf16", "int8", "fp8"]
    assert [row.decode_times for row in found.rows] == [None, "twice as long", "twice as long"]
    assert calls == ["cpu", "cpu"]
    assert "int8  decode step: twice as long" in found.to_text()


def test_the_chunk_changes_nothing_that_is_reported():
    tokens = torch.randint(0, 97, (40,), generator=torch.Generator().manual_seed(2)).tolist()
    a, b = (compare_caches(DECODER, tokens, ("fp8",), chunk=chunk).row("fp8") for chunk in (3, 100))
    for name in ("logit_change_max", "kl_mean", "kl_max", "perplexity"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=0.1)


def test_an_emulated_format_is_said_to_be_one(monkeypatch):
    monkeypatch.setattr("helpers.engine.quantized_cache.casts_e4m3", lambda device_type: False)
    found = compare_caches(DECODER, [1, 2, 3], ("int8", "fp8"))
    assert [row.emulated for row in found.rows] == [False, False, True]
    assert "fp8   is emulated" in found.to_text()


def test_senseless_comparisons_and_stores_are_refused():
    with pytest.raises(InputError, match="'int3'"):
        QuantizedKVCache(DECODER.model, 1, 4, store="int3")
    with pytest.raises(InputError, match="two tokens, not 1"):
        compare_caches(DECODER, [1])
    with pytest.raises(InputError, match="'int8' was not compared"):
        CacheComparison("m", 2, compare_caches(DECODER, [1, 2], ("bf16",)).rows).row("int8")


def test_the_plain_cache_is_read_in_place_without_a_copy():
    cache = KVCache(DECODER.model, 1, 4)
    attention = DECODER.model.layers[0].attention
    new = torch.ones(1, 2, attention.kv_heads, attention.head_dim)
    keys, _ = cache.append(0, cache.span(torch.zeros(1, 2)), new, new)
    assert keys.data_ptr() == cache.keys[0].data_ptr()
