"""What an engine does around the peer's GEMMs with compiled ops of its own, which no package offers: stand-ins in Triton.

``align`` stands for vLLM's ``moe_align_block_size``, ``group`` for ``moe_prepare_scatter``, ``combine`` for
``moe_fused_mul_sum`` and ``moe_unpermute``. Up to 512 ids one CTA counts and places them, one launch as vLLM has for small
inputs; beyond, tiles are counted and then placed, two launches as vLLM has. No position depends on timing.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace

import torch

from chord_jit.routing.indexed.align import capacity_of

NAMES = "align, group and combine in Triton for vLLM's moe_align_block_size, moe_prepare_scatter and moe_fused_mul_sum"
_ALONE, _TILE = 512, 256
_LEAST_IDS = 64


class Rows:
    """Buffers and launches for ids int32 [tokens, top_k], all of local experts or -1, and one block size.

    ``align()`` fills ``sorted_ids`` int32 [capacity] (an absent row is ``tokens * top_k``), ``expert_ids`` int32 [blocks] and
    ``padded`` int32 [1], slots in use. ``group()``, for blocks of 1: ``offsets`` int64 [experts + 1], rows of each expert, and
    ``places`` int32 [tokens, top_k], the row of each id, as many as there are ids for one that goes nowhere.
    """

    def __init__(self, ids: torch.Tensor, experts: int, block_m: int):
        self.ids, self.experts, self.block_m, self.total = ids, experts, block_m, ids.numel()
        self.tiles = 1 if self.total <= _ALONE else _up(self.total, _TILE)
        capacity = capacity_of(self.total, block_m, experts)
        self.blocks = _up(capacity, block_m)

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=ids.device)

        self.sorted_ids, self.expert_ids, self.padded = empty(capacity), empty(self.blocks), empty(1)
        self.offsets, self.places, self._counts = empty(experts + 1, dtype=torch.int64), empty(*ids.shape), empty(self.tiles, experts)

    def align(self) -> None:
        """Blocks of one expert each."""
        self._launch(grouped=False)

    def group(self) -> None:
        """Rows of an expert together, none between."""
        self._launch(grouped=True)

    def _launch(self, grouped: bool) -> None:
        experts = max(16, _power(self.experts))
        tile = max(_LEAST_IDS, _power(self.total)) if self.tiles == 1 else _TILE
        sizes = {"TILE": tile, "EXPERTS": experts, "num_warps": min(16, max(4, tile * experts // 1024))}
        made = kernels()
        if self.tiles > 1:
            made.count[(self.tiles,)](self.ids, self._counts, self.total, self.experts, **sizes)
        made.place[(self.tiles,)](
            self.ids, self._counts, self.sorted_ids, self.expert_ids, self.padded, self.offsets, self.places, self.total, self.experts,
            self.block_m, self.blocks, self.tiles, SEVERAL=self.tiles > 1, GROUPED=grouped, **sizes,
        )  # fmt: skip


def combine(rows: torch.Tensor, topk_weights: torch.Tensor, out: torch.Tensor, places: torch.Tensor | None = None) -> None:
    """``out[t] = sum over k of topk_weights[t, k] * rows[t * top_k + k]``, or of ``rows[places[t, k]]``, in FP32, in order.

    ``rows``: BF16 [tokens * top_k, hidden]; ``topk_weights``: FP32 [tokens, top_k]; ``out``: BF16 [tokens, hidden].
    """
    tokens, hidden = out.shape
    columns, warps = (256, 1) if tokens < 64 else (1024, 4)
    kernels().combine[(tokens, _up(hidden, columns))](
        rows, topk_weights, places if places is not None else topk_weights, out, hidden,
        TOP_K=topk_weights.shape[1], COLUMNS=columns, PLACED=places is not None, num_warps=warps,
    )  # fmt: skip


def _up(value: int, step: int) -> int:
    return -(-value // step)


def _power(value: int) -> int:
    """The least power of two that is no smaller: sizes of Triton's tensors are powers of two."""
    return 1 << (value - 1).bit_length()


@functools.cache
def kernels() -> SimpleNamespace:
    """The kernels by name: ``count``, ``place`` and ``combine``."""
    import triton
    import triton.language as tl

    # No size of the next two is specialised: a handful of compiled kernels serves every case.
    @triton.jit(do_not_specialize=["total", "experts"])
    def count(ids, counts, total, experts, TILE: tl.constexpr, EXPERTS: tl.constexpr):
        i = tl.program_id(0) * TILE + tl.arange(0, TILE)
        expert = tl.arange(0, EXPERTS)
        own = tl.load(ids + i, mask=i < total, other=-1)
        hot = (own[:, None] == expert[None, :]).to(tl.int32)
        tl.store(counts + tl.program_id(0) * experts + expert, tl.sum(hot, 0), mask=expert < experts)

    @triton.jit(do_not_specialize=["total", "experts", "block_m", "blocks", "tiles"])
    def place(
        ids, counts, sorted_ids, expert_ids, padded, offsets, places, total, experts, block_m, blocks, tiles,
        SEVERAL: tl.constexpr, GROUPED: tl.constexpr, TILE: tl.constexpr, EXPERTS: tl.constexpr,
    ):  # fmt: skip
        tile = tl.program_id(0)
        i = tile * TILE + tl.arange(0, TILE)
        expert = tl.arange(0, EXPERTS)
        few = tl.arange(0, 16)
        own = tl.load(ids + i, mask=i < total, other=-1)
        hot = (own[:, None] == expert[None, :]).to(tl.int32)
        before = tl.cumsum(hot, 0) - hot
        if SEVERAL:
            sums, earlier = tl.zeros((EXPERTS,), tl.int32), tl.zeros((EXPERTS,), tl.int32)
            for first in range(0, tiles, 16):
                other = first + few
                held = (other < tiles)[:, None] & (expert < experts)[None, :]
                every = tl.load(counts + other[:, None] * experts + expert[None, :], mask=held, other=0)
                sums += tl.sum(every, 0)
                earlier += tl.sum(tl.where((other < tile)[:, None], every, 0), 0)
            before += earlier[None, :]
        else:
            sums = tl.sum(hot, 0)
        wide = (sums + block_m - 1) // block_m * block_m
        ends = tl.cumsum(wide, 0)
        slot = tl.sum(hot * ((ends - wide)[None, :] + before), 1)
        if GROUPED:
            tl.store(places + i, tl.where(own >= 0, slot, total), mask=i < total)
            if tile == 0:
                tl.store(offsets + expert + 1, ends.to(tl.int64), mask=expert < experts)
                tl.store(offsets + expert, (ends - wide).to(tl.int64), mask=expert == 0)
        else:
            tl.store(sorted_ids + slot, i, mask=own >= 0)
            for first in range(0, block_m, 16):
                pad = (ends - wide + sums)[:, None] + (first + few)[None, :]
                mine = (expert % tiles == tile)[:, None] & (pad < ends[:, None])
                tl.store(sorted_ids + pad, tl.zeros((EXPERTS, 16), tl.int32) + total, mask=mine)
            for first in range(tile * 16, blocks, tiles * 16):
                block = first + few
                owner = tl.sum((ends[None, :] <= (block * block_m)[:, None]).to(tl.int32), 1)
                tl.store(expert_ids + block, owner, mask=block * block_m < tl.sum(wide, 0))
            if tile == 0:
                tl.store(padded, tl.sum(wide, 0))

    # That hidden is a multiple of 16 is what lets a thread load 16 bytes at once.
    @triton.jit
    def combine(rows, weights, places, out, hidden, TOP_K: tl.constexpr, COLUMNS: tl.constexpr, PLACED: tl.constexpr):
        token = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
        inside = column < hidden
        total = tl.zeros((COLUMNS,), dtype=tl.float32)
        for k in tl.static_range(TOP_K):
            row = token * TOP_K + k
            weight = tl.load(weights + row)
            if PLACED:
                row = tl.load(places + row).to(tl.int64)
            total += weight * tl.load(rows + row * hidden + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + token * hidden + column, total.to(tl.bfloat16), mask=inside)

    return SimpleNamespace(count=count, place=place, combine=combine)
