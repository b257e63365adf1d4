"""Draws of rows per expert, and layouts of them whose unpromised memory is filled with what does most harm if it is read."""

from __future__ import annotations

import torch

from chord_jit.routing.grouped import BLOCK, offsets_of

#: Entries before and behind a layout's own: odd, so that the layout is aligned to one entry and no more.
_BESIDE = 129


def draw(name: str, experts: int, rows: int, generator: torch.Generator) -> torch.Tensor:
    """Rows per expert, int64 [experts], ``rows`` on average (fewer where some have none).

    random: each row goes anywhere. equal: the same everywhere. ragged: evenly spread over 0 .. 2 * rows. first, last: ragged
    with none at the first or last quarter. alternate: ragged with none at every other one. one: all rows on one expert. hot: half of all
    rows on one. none: no rows.
    """
    where, total = generator.device, experts * rows
    if name in ("random", "hot"):
        owners = torch.randint(0, experts, (total,), generator=generator, device=where)
        if name == "hot":
            owners[: total // 2] = owners[-1].item()
        return torch.bincount(owners, minlength=experts)
    counts = torch.randint(0, 2 * rows + 1, (experts,), generator=generator, device=where)
    few = max(1, experts // 4)
    if name == "equal":
        counts.fill_(rows)
    elif name == "first":
        counts[:few] = 0
    elif name == "last":
        counts[-few:] = 0
    elif name == "alternate":
        counts[::2] = 0
    elif name in ("one", "none"):
        only = torch.randint(0, experts, (1,), generator=generator, device=where)
        counts.zero_()[only] = total if name == "one" else 0
    elif name != "ragged":
        raise ValueError(name)
    return counts


def rows_for(layout: str, counts: torch.Tensor, room: int) -> int:
    """Rows of x that hold ``counts``, and more that nobody owns: ``room`` for each expert, behind all rows, or blocks of padding."""
    if layout == "masked":
        return len(counts) * max(int(counts.max()) + room, 1)
    if layout == "offsets":
        return int(counts.sum()) + room
    return (int(_blocks(counts).sum()) + room) * BLOCK


def values_of(layout: str, counts: torch.Tensor, rows: int, generator: torch.Generator) -> torch.Tensor:
    """The tensor that tells a kernel about ``counts`` in ``rows`` rows of x, between entries of garbage that looks valid.

    Blocks: experts in any order, padding that is left over anywhere before, between and behind them.
    """
    if layout == "masked":
        assert int(counts.max()) * len(counts) <= rows, "a count passes max_m"
        return _beside(counts.int(), rows // len(counts), generator)
    if layout == "offsets":
        assert int(counts.sum()) <= rows, "counts pass the rows of x"
        return _beside(offsets_of(counts), rows, generator)
    return _beside(_blocks_in_any_order(counts, rows, generator), len(counts), generator)


def owners_of(layout: str, values: torch.Tensor, rows: int, experts: int) -> torch.Tensor:
    """The expert of each row of x, int64 [rows], -1 where it is nobody's."""
    if layout == "blocks":
        return values.long()
    row = torch.arange(rows, device=values.device)
    if layout == "offsets":
        owners = torch.searchsorted(values, row, right=True) - 1
        return owners.masked_fill(owners == experts, -1)
    max_m = rows // experts
    return torch.where(row % max_m < values[row // max_m], row // max_m, -1)


def _blocks(counts: torch.Tensor) -> torch.Tensor:
    return (counts + BLOCK - 1) // BLOCK


def _blocks_in_any_order(counts: torch.Tensor, rows: int, generator: torch.Generator) -> torch.Tensor:
    where, experts, blocks = counts.device, len(counts), _blocks(counts)
    spare = rows // BLOCK - int(blocks.sum())
    assert spare >= 0, "the blocks of all experts pass the rows of x"
    gaps = torch.bincount(torch.randint(0, experts + 1, (spare,), generator=generator, device=where), minlength=experts + 1)
    order = torch.randperm(experts, generator=generator, device=where)
    owners = torch.full((2 * experts + 1,), -1, device=where)
    owners[1::2] = order
    lengths = torch.empty_like(owners)
    lengths[::2], lengths[1::2] = gaps, blocks[order]
    starts = torch.cumsum(lengths, 0) - lengths
    owner, start = owners.repeat_interleave(lengths), starts.repeat_interleave(lengths)
    ahead = (torch.arange(len(owner), device=where) - start) * BLOCK
    valid = torch.where(owner >= 0, counts[owner.clamp(min=0)] - ahead, 0)
    inside = torch.arange(BLOCK, device=where) < valid[:, None]
    return torch.where(inside, owner[:, None], -1).int().flatten()


def _beside(values: torch.Tensor, limit: int, generator: torch.Generator) -> torch.Tensor:
    shape = (len(values) + 2 * _BESIDE,)
    buffer = torch.randint(0, max(limit, 1), shape, dtype=values.dtype, generator=generator, device=values.device)
    inside = buffer[_BESIDE : _BESIDE + len(values)]
    return inside.copy_(values)
