"""Packed folders of several ranks, side by side: their names, and whether together they are a whole model."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from chord_jit.formats.packed_index import INDEX, PackedIndex, Packing, read_index
from chord_jit.formats.share import Share

#: Ranks that are missing and named: an index may claim any number of them.
_NAMED = 16


def rank_name(rank: int, ranks: int) -> str:
    """Name of one rank's folder."""
    return f"rank-{rank:05d}-of-{ranks:05d}"


def rank_folders(folder: Path) -> list[Path]:
    """Folders within ``folder`` that hold an index and are named as ranks are."""
    return sorted(path.parent for path in folder.glob(f"rank-*/{INDEX}"))


def rank_problems(folders: Sequence[Path]) -> list[str]:
    """Why ``folders``, those of ``rank_folders``, are not every rank of one packing, each under its own name. Raises as ``read_index``."""
    found = {folder.name: read_index(folder) for folder in folders}
    of = {name: index.packing.share for name, index in found.items()}
    counts = sorted({share.ranks for share in of.values()})
    problems = [f"folders of {' and of '.join(map(str, counts))} ranks lie side by side"] if len(counts) > 1 else []
    for count in counts:
        problems += _missing(count, found.keys())
        problems += _strangers({name: index for name, index in found.items() if of[name].ranks == count})
    named = {name: rank_name(share.rank, share.ranks) for name, share in of.items()}
    return problems + [f"{name}: its index is of {right}" for name, right in named.items() if name != right]


def _missing(ranks: int, names: Collection[str]) -> list[str]:
    missing = (rank for rank in range(ranks) if rank_name(rank, ranks) not in names)
    problems = [f"rank {rank} of {ranks}: not there" for rank in islice(missing, _NAMED)]
    return problems + ["more ranks: not there"] * (next(missing, None) is not None)


def _strangers(found: Mapping[str, PackedIndex]) -> Iterator[str]:
    """Those that are not packed as the first is, or are meant to hold other layers."""
    first, *_ = found
    for name, index in found.items():
        if _common(index.packing) != _common(found[first].packing):
            yield f"{name}: packed otherwise than {first}"
        elif index.wanted != found[first].wanted:
            yield f"{name}: meant to hold other layers than {first}"


def _common(packing: Packing) -> Packing:
    """What all ranks of a packing have in common."""
    return replace(packing, share=Share(packing.share.ep, packing.share.tp))
