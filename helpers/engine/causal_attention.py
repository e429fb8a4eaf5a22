"""Causal attention of a prompt of some hundred tokens on a CPU, by blocks of queries: products a BLAS is fast at.

torch's own CPU kernel (`F.scaled_dot_product_attention`) multiplies the queries of one head in blocks: 64 of them below
768 tokens, too few to be fast, 256 from there on. At 512 tokens of SmolLM2 it reached 0.37 of the GEMM ceiling of two
AVX2 cores. Here the G query heads that read one kv head are rows of one product, and one batched product serves all kv
heads: 0.48 to 0.51. (Only pairs of query and key up to the diagonal are counted as work.)
"""

import math

import torch
import torch.nn.functional as F

BLOCK = 64
"""Queries of a block: more of them waste work above the diagonal, fewer make the products small."""

SHORTEST, LONGEST = 256, 767
"""Prompts, in tokens, for which this was not slower than torch's kernel; beyond, a block's scores outgrow the cache."""

MOST_THREADS = 4
"""With more threads than that torch's kernel is taken, which splits finer; only 1 and 2 threads were timed."""


def in_blocks(queries: torch.Tensor) -> bool:
    """Is `attend_causal` the kernel to take for queries [B, T, H, D]: fp32, on few CPU threads, of middle length."""
    few = queries.device.type == "cpu" and torch.get_num_threads() <= MOST_THREADS
    return few and queries.dtype == torch.float32 and SHORTEST <= queries.shape[1] <= LONGEST


def attend_causal(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """softmax(Q Kᵀ / √D) V where query t reads keys up to t: [B, T, H, D] on [B, K, T, D] gives [B, T, H·D].

    G = H / K: query heads h·G to h·G + G − 1 read kv head h. Held are the scores of one block: B · H · `BLOCK` · T.
    """
    batch, count, heads, head_dim = queries.shape
    kv_heads, groups = keys.shape[1], heads // keys.shape[1]
    # MKL hands a batched product to its threads item by item: with three kv heads, two threads would work for one
    # round and one of them for a second. So the queries of each kv head are dealt to so many items that all threads
    # are busy; each item has its own copy of the keys and values, which costs far less.
    threads = torch.get_num_threads()
    shares = threads // math.gcd(batch * kv_heads, threads)
    rows = BLOCK // shares
    block, blocks, items = rows * shares, -(-count // (rows * shares)), batch * kv_heads * shares
    if count % block:
        # Filled up with queries whose results are dropped, so that every block has one shape.
        queries = F.pad(queries, (0, 0, 0, 0, 0, blocks * block - count))
    queries = queries.view(batch, blocks, shares, rows, kv_heads, groups, head_dim).permute(1, 0, 4, 2, 5, 3, 6)
    queries = queries.reshape(blocks, items, groups * rows, head_dim)
    keys, values = (
        tensor[:, :, None].expand(-1, -1, shares, -1, -1).reshape(items, count, head_dim) for tensor in (keys, values)
    )
    mixed, unread = torch.empty_like(queries), queries.new_empty(1)
    future = queries.new_full((block, block), -math.inf).triu(1).view(shares, 1, rows, block)
    for index in range(blocks):
        # Keys beyond the block are left out; of the rest only its own lie partly in the future.
        start, end = index * block, min(index * block + block, count)
        scores = torch.baddbmm(unread, queries[index], keys[:, :end].mT, beta=0, alpha=head_dim**-0.5)
        scores.view(-1, shares, groups, rows, end)[..., start:] += future[..., : end - start]
        torch.softmax(scores, -1, out=scores)
        torch.bmm(scores, values[:, :end], out=mixed[index])
    mixed = mixed.view(blocks, batch, kv_heads, shares, groups, rows, head_dim).permute(1, 0, 3, 5, 2, 4, 6)
    return mixed.reshape(batch, blocks * block, heads * head_dim)[:, :count]
