"""What the stand-ins launch, with kernels that only note it, and that turns take turns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from chord_jit.bench import graphs, stand_ins
from chord_jit.routing.indexed import align_blocks


class Noting:
    """A Triton kernel as it is launched: ``kernel[grid](*tensors, **sizes)``."""

    def __init__(self, name: str, noted: list):
        self.name, self.noted = name, noted

    def __getitem__(self, grid):
        return lambda *given, **sizes: self.noted.append((self.name, grid, given, sizes))


@pytest.fixture
def noted(monkeypatch):
    found: list = []
    made = SimpleNamespace(**{name: Noting(name, found) for name in ("count", "place", "combine")})
    monkeypatch.setattr(stand_ins, "kernels", lambda: made)
    return found


def ids(tokens: int) -> torch.Tensor:
    return torch.zeros(tokens, 8, dtype=torch.int32)


@pytest.mark.parametrize(("tokens", "tile", "warps"), [(1, 64, 4), (20, 256, 16), (64, 512, 16)])
def test_few_ids_take_one_launch_of_one_cta(tokens, tile, warps, noted):
    stand_ins.Rows(ids(tokens), 48, 16).align()
    ((name, grid, _, sizes),) = noted
    assert (name, grid) == ("place", (1,))
    assert sizes == {"SEVERAL": False, "GROUPED": False, "TILE": tile, "EXPERTS": 64, "num_warps": warps}


def test_many_ids_are_counted_by_tiles_first(noted):
    stand_ins.Rows(ids(2048), 48, 1).group()
    assert [(name, grid, sizes["TILE"]) for name, grid, _, sizes in noted] == [("count", (64,), 256), ("place", (64,), 256)]
    assert noted[1][3]["SEVERAL"] and noted[1][3]["GROUPED"]
    counts = noted[0][2][1]
    assert counts is noted[1][2][1] and counts.shape == (64, 48), "what the first launch leaves, the second takes"


@pytest.mark.parametrize(("tokens", "block_m"), [(1, 8), (20, 16), (128, 56), (2048, 128)])
def test_buffers_are_those_of_the_op(tokens, block_m):
    rows, wanted = stand_ins.Rows(ids(tokens), 48, block_m), align_blocks(ids(tokens), block_m, 48)
    assert rows.sorted_ids.shape == wanted.sorted_ids.shape and rows.expert_ids.shape == wanted.expert_ids.shape
    assert rows.padded.shape == (1,) and rows.offsets.shape == (49,) and rows.offsets.dtype is torch.int64
    assert rows.places.shape == (tokens, 8) and rows.sorted_ids.dtype is rows.places.dtype is torch.int32


@pytest.mark.parametrize(("tokens", "grid"), [(1, (1, 28)), (63, (63, 28)), (64, (64, 7)), (2048, (2048, 7))])
def test_few_tokens_are_combined_by_more_ctas(tokens, grid, noted):
    out = torch.empty(tokens, 7168, dtype=torch.bfloat16)
    rows, weights = torch.empty(8 * tokens, 7168, dtype=torch.bfloat16), torch.empty(tokens, 8)
    places = ids(tokens)
    stand_ins.combine(rows, weights, out)
    stand_ins.combine(rows, weights, out, places)
    assert [entry[1] for entry in noted] == [grid, grid]
    assert [entry[3]["PLACED"] for entry in noted] == [False, True] and noted[1][2][2] is places


def test_calls_come_in_turn():
    seen: list[int] = []
    call = graphs.in_turn([lambda place=place: seen.append(place) for place in range(3)])
    for _ in range(4):
        call()
    assert seen == [0, 1, 2, 0]
