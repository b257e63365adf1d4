"""A W4A16 GEMM of routed rows in Triton, written as one writes it: the job that start-up times of other libraries are set against."""

from __future__ import annotations

import triton
import triton.language as tl

BLOCK_M, BLOCK_N, BLOCK_K, GROUP = 16, 64, 128, 32


@triton.jit
def _kernel(
    x, words, scale, out, sorted_ids, expert_ids, padded, rows, top_k, n, k,
    block_m: tl.constexpr, block_n: tl.constexpr, block_k: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    if block * block_m >= tl.load(padded):
        return
    expert = tl.load(expert_ids + block).to(tl.int64)
    ids = tl.load(sorted_ids + block * block_m + tl.arange(0, block_m))
    valid = (ids < rows)[:, None]
    features = expert * n + tl.program_id(1) * block_n + tl.arange(0, block_n)
    sums = tl.zeros((block_m, block_n), dtype=tl.float32)
    for start in range(0, k, block_k):
        ks = start + tl.arange(0, block_k)
        rows_of_x = tl.load(x + (ids // top_k)[:, None] * k + ks[None, :], mask=valid, other=0.0)
        packed = tl.load(words + features[None, :] * (k // 8) + (ks // 8)[:, None])
        codes = (packed >> ((ks % 8) * 4)[:, None]) & 15
        scales = tl.load(scale + features[None, :] * (k // group) + (ks // group)[:, None])
        sums = tl.dot(rows_of_x, ((codes - 8).to(tl.float32) * scales.to(tl.float32)).to(tl.bfloat16), sums)
    columns = tl.program_id(1) * block_n + tl.arange(0, block_n)
    tl.store(out + ids[:, None].to(tl.int64) * n + columns[None, :], sums.to(tl.bfloat16), mask=valid)


def indexed(x, words, scale, sorted_ids, expert_ids, padded, top_k: int, out) -> None:
    """``out[i] = x[i // top_k] @ W[expert of i].T``: words int32 [E, N, K/8], low nibble first; scale BF16 [E, N, K/32].

    Blocks of 16 ids by expert; ids past the last are padding. N divides by 64, K by 128.
    """
    n, k = scale.shape[1], x.shape[1]
    grid = (expert_ids.shape[0], n // BLOCK_N)
    _kernel[grid](
        x, words, scale, out, sorted_ids, expert_ids, padded, out.shape[0], top_k, n, k, BLOCK_M, BLOCK_N, BLOCK_K, GROUP
    )  # fmt: skip
