"""What storing the KV cache in fewer bits costs: bytes, the change in the logits, and the time of a decode step."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from helpers.engine.decoder import Decoder
from helpers.engine.dtypes import dtype_name
from helpers.engine.kv_cache import KVCache
from helpers.engine.quantized_cache import QuantizedKVCache, predicted_nbytes
from helpers.errors import InputError


@dataclass(frozen=True)
class CacheRow:
    """One way to store the cache, against the decoder's own dtype on the same text.

    `nbytes` allocated and `predicted_nbytes` by the accounts, for all tokens. Over all positions: `logit_change_max`,
    the largest |difference| of a logit; `kl_mean` and `kl_max` in nats, KL(own dtype ‖ this); `top1_agreement`, the
    share where both put the same token first; `perplexity` of the text, exp(mean −log p). `decode_times`: what the
    given clock says of a decode step on this cache against one on the decoder's own, None where none was given.
    """

    store: str
    nbytes: int
    predicted_nbytes: int
    logit_change_max: float
    kl_mean: float
    kl_max: float
    top1_agreement: float
    perplexity: float
    emulated: bool = False
    decode_times: object | None = None


@dataclass(frozen=True)
class CacheComparison:
    """`rows` over `tokens` tokens of one text; the first is the decoder's own dtype."""

    model: str
    tokens: int
    rows: tuple[CacheRow, ...]

    def row(self, store: str) -> CacheRow:
        """The row of one store. Raises InputError where it was not compared."""
        for row in self.rows:
            if row.store == store:
                return row
        raise InputError(f"{store!r} was not compared: {', '.join(row.store for row in self.rows)} were")

    def to_text(self) -> str:
        """The comparison as a table for people, one line for each store."""
        lines = ["store   B/token  of own  max |Δlogit|  KL mean   KL max  same top-1  perplexity"]
        own = self.rows[0].nbytes
        for row in self.rows:
            lines.append(
                f"{row.store:5} {row.nbytes / self.tokens:9,.0f}  {row.nbytes / own:6.3f}  "
                f"{row.logit_change_max:12.4f}  {row.kl_mean:7.1e}  {row.kl_max:7.1e}  {row.top1_agreement:10.2%}  "
                f"{row.perplexity:10.4f}"
            )
        timed = [row for row in self.rows if row.decode_times is not None]
        lines += [f"{row.store:5} decode step: {_text(row.decode_times)}" for row in timed]
        lines += [f"{row.store:5} is emulated: this device has no cast to fp8" for row in self.rows if row.emulated]
        return "\n".join(lines)


def compare_caches(
    decoder: Decoder,
    tokens: Sequence[int],
    stores: Sequence[str] = ("bf16", "int8", "fp8"),
    paired: Callable | None = None,
    chunk: int = 128,
) -> CacheComparison:
    """Run `tokens` of a real text through `decoder` with its own KV cache and with each of `stores`.

    Every position reads what the cache gives back for all tokens up to its own, as in decoding. `paired`: a clock such
    as `helpers.measure.paired`, called with two decode steps at this context (the store's, the own one) and the device.
    `chunk` tokens are computed at once. Raises InputError for fewer than two tokens or an unknown store.
    """
    if len(tokens) < 2:
        raise InputError(f"a comparison needs a text of at least two tokens, not {len(tokens)}")
    own_name = dtype_name(decoder.dtype)
    names = [own_name, *(store for store in stores if store != own_name)]
    caches = [_cache(decoder, len(tokens), name) for name in names]
    sums = [_Sums() for _ in names]
    text = torch.tensor([list(tokens)], device=decoder.device)
    for start in range(0, len(tokens), chunk):
        piece = text[:, start : start + chunk]
        following = text[0, start + 1 : start + 1 + chunk]
        own = decoder(piece, caches[0], "all")[0].float()
        sums[0].add(own, own, following)
        for cache, total in zip(caches[1:], sums[1:], strict=True):
            total.add(decoder(piece, cache, "all")[0].float(), own, following)
    rows = []
    for name, cache, total in zip(names, caches, sums, strict=True):
        times = None
        if paired is not None and cache is not caches[0]:
            step, own_step = _decode_step(decoder, cache, text), _decode_step(decoder, caches[0], text)
            times = paired(step, own_step, device=str(decoder.device))
        rows.append(
            CacheRow(
                store=name,
                nbytes=cache.nbytes,
                predicted_nbytes=predicted_nbytes(
                    decoder.model, len(tokens), name if cache is not caches[0] else own_name
                ),
                logit_change_max=total.change,
                kl_mean=total.kl / len(tokens),
                kl_max=total.kl_max,
                top1_agreement=total.same / len(tokens),
                perplexity=math.exp(total.loss / (len(tokens) - 1)),
                emulated=getattr(cache, "emulated", False),
                decode_times=times,
            )
        )
    return CacheComparison(decoder.model.name, len(tokens), tuple(rows))


class _Sums:
    """The sums over positions behind a `CacheRow`."""

    def __init__(self) -> None:
        self.change = self.kl = self.kl_max = self.loss = 0.0
        self.same = 0

    def add(self, logits: torch.Tensor, own: torch.Tensor, following: torch.Tensor) -> None:
        """Count positions with logits [T, vocab] and those of the own dtype; `following`: the tokens that came."""
        log_p, own_log_p = logits.log_softmax(-1), own.log_softmax(-1)
        # Never below zero but for rounding.
        kl = (own_log_p.exp() * (own_log_p - log_p)).sum(-1).clamp(min=0)
        self.change = max(self.change, (logits - own).abs().max().item())
        self.kl += kl.sum().item()
        self.kl_max = max(self.kl_max, kl.max().item())
        self.same += (logits.argmax(-1) == own.argmax(-1)).sum().item()
        self.loss -= log_p[: len(following)].gather(1, following[:, None]).sum().item()


def _cache(decoder: Decoder, max_tokens: int, store: str) -> KVCache:
    about = (decoder.model, 1, max_tokens, decoder.dtype, decoder.device)
    return KVCache(*about) if store == dtype_name(decoder.dtype) else QuantizedKVCache(*about, store=store)


def _decode_step(decoder: Decoder, cache: KVCache, text: torch.Tensor) -> Callable[[], object]:
    """The last token of `text` decoded again and again, after all the others."""

    def step():
        cache.length = text.shape[1] - 1
        return decoder(text[:, -1:], cache)

    step()
    return step


def _text(times: object) -> str:
    return times.to_text() if hasattr(times, "to_text") else str(times)
