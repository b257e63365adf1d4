"""Packed experts against the checkpoint that they are said to come from, code for code."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import torch

from chord_jit.formats.expert_reader import ExpertReader
from chord_jit.formats.moe_weights import MoEWeights
from chord_jit.formats.w4a16 import PackedW4A16, unpack_expert


def sample(layer: int, experts: range, count: int | None) -> Mapping[int, int]:
    """Global ids of the experts to compare, by their local ones: ``count`` of them, or all (None). The layer's number draws them,
    so that every run takes the same.
    """
    local = range(len(experts))
    some = local if count is None or count >= len(local) else sorted(random.Random(layer).sample(local, count))
    return {number: experts[number] for number in some}


def differences(weights: MoEWeights, reader: ExpertReader, chosen: Mapping[int, int]) -> Iterator[tuple[int, str]]:
    """Global expert and what differs, for each matrix of ``chosen`` that is not the source's, bit for bit."""
    for local, expert in chosen.items():
        for packed, projections in ((weights.gate_up, ("gate", "up")), (weights.down, ("down",))):
            yield from ((expert, what) for what in _matrices(packed, local, reader, expert, projections))


def _matrices(packed: PackedW4A16, local: int, reader: ExpertReader, expert: int, projections: tuple[str, ...]) -> Iterator[str]:
    codes, scale = unpack_expert(packed, local)
    count = len(projections)
    for proj, some, factors in zip(projections, codes.chunk(count), scale.chunk(count), strict=True):
        words, wanted = reader.matrix(expert, proj)
        wrong = int((_words(some) != words).sum()), int((factors.view(torch.int16) != wanted.view(torch.int16)).sum())
        if any(wrong):
            yield f"{proj} differs from the source in {wrong[0]} words of eight codes and {wrong[1]} scales"


def _words(codes: torch.Tensor) -> torch.Tensor:
    """Codes [N, K] as the words [N, K/8] of a checkpoint."""
    return (codes[:, 1::2] << 4).bitwise_or_(codes[:, 0::2]).view(torch.int32)
