"""Rows on the CPU: groups, moves and sums against loops; what is refused. The kernels' own tests are in tests/gpu."""

from __future__ import annotations

import ctypes

import pytest
import torch

from chord_jit.errors import InputError, InputTypeError
from chord_jit.rows import route
from chord_jit.rows.combine import combine_rows
from chord_jit.rows.move import move_rows
from tests.gpu.tensors import moved

pytestmark = pytest.mark.usefixtures("reference_backend")
NAN = float("nan")


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


@pytest.fixture
def ids() -> torch.Tensor:
    """Experts -1 .. 7 of five, two out of range."""
    return torch.randint(-1, 8, (11, 3))


EXPERT_MAP = torch.tensor([4, -1, 0, 1, 9, 2, -1, 3], dtype=torch.int32)


def local_of(ids: torch.Tensor, expert_map: torch.Tensor | None) -> list[int]:
    """What each id names: a local expert in 0 .. 4, or anything else."""
    return [-1 if i < 0 else i if expert_map is None else int(expert_map[i]) for i in ids.flatten().tolist()]


@pytest.mark.parametrize("expert_map", [None, EXPERT_MAP], ids=["local", "map"])
def test_groups_are_the_ids_of_each_expert_in_their_order(ids, expert_map):
    offsets, rows = route.groups(ids, 5, expert_map=expert_map)
    local = local_of(ids, expert_map)
    wanted = [i for expert in range(5) for i, owner in enumerate(local) if owner == expert]
    assert offsets.dtype is torch.int64 and rows.dtype is torch.int32 and rows.shape == ids.shape
    assert offsets.tolist() == [sum(owner < stop for owner in local if 0 <= owner < 5) for stop in range(6)]
    assert [rows.flatten().tolist().index(row) for row in range(len(wanted))] == wanted
    assert (rows >= 0).sum() == len(wanted)


@pytest.mark.parametrize("expert_map", [None, EXPERT_MAP], ids=["local", "map"])
def test_ids_of_local_experts_have_the_row_of_their_number(ids, expert_map):
    """And no other ids have one; they are the ids that the blocks name."""
    routing, rows = route.blocks(ids, 8, 5, expert_map=expert_map)
    used = routing.sorted_ids[: int(routing.num_tokens_padded)]
    named = set(used[used < ids.numel()].tolist())
    assert rows.dtype is torch.int32 and rows.flatten().tolist() == [i if i in named else -1 for i in range(ids.numel())]
    assert named == {i for i, owner in enumerate(local_of(ids, expert_map)) if 0 <= owner < 5}


def test_no_ids(ids):
    offsets, rows = route.groups(ids[:0], 5)
    assert offsets.tolist() == [0] * 6 and rows.shape == (0, 3)
    assert route.blocks(ids[:0], 8, 5)[1].shape == (0, 3)


@pytest.mark.parametrize(
    "expert_map", [torch.tensor([2, 7, 0, 7, -1, 7]).int()[::2], torch.tensor([1]).int().expand(3)], ids=["entries apart", "one for all"]
)
def test_the_kernel_is_given_ids_and_map_without_strides(expert_map, monkeypatch):
    ids, read = torch.tensor([[0, 9], [2, 9]], dtype=torch.int32)[:, :1], []

    def enqueue(kernel, index, ids_at, map_at, *_):
        read.append([(ctypes.c_int32 * size).from_address(at)[:] for at, size in ((ids_at, 2), (map_at, 3))])

    monkeypatch.setattr(route.kernels, "enqueue", enqueue)
    route._launch(ids, 3, expert_map, torch.empty(2, 1, dtype=torch.int32), 1, 2, None, None)
    assert read == [[ids.flatten().tolist(), expert_map.tolist()]]


@pytest.mark.parametrize("activate", [False, True])
def test_rows_go_to_each_of_their_destinations_below_the_limit(activate):
    x, out = bf16(4, 32 if activate else 16), torch.full((9, 16), NAN).bfloat16()
    to = torch.tensor([[3, 0], [-1, 5], [8, 9], [6, -7]], dtype=torch.int32)
    assert move_rows(x, out, activate=activate, destinations=to, limit=torch.tensor([7]) if activate else None) is out
    value = torch.nn.functional.silu(x.double()[:, :16]) * x.double()[:, 16:] if activate else x.double()
    wanted = {3: 0, 0: 0, 5: 1, 6: 3} | ({} if activate else {8: 2})
    for row in range(9):
        if row in wanted:
            assert torch.allclose(out[row].double(), value[wanted[row]], rtol=2**-8)
        else:
            assert out[row].isnan().all()


def test_rows_without_destinations_go_nowhere():
    out = torch.full((4, 16), NAN).bfloat16()
    move_rows(bf16(4, 16), out, destinations=torch.empty(4, 0, dtype=torch.int32))
    assert out.isnan().all()


def test_rows_past_a_count_are_neither_read_nor_written():
    x, out = bf16(6, 16), torch.full((6, 16), NAN).bfloat16()
    x[1], x[5] = NAN, float("inf")
    move_rows(x, out, counts=torch.tensor([1, 3, 0][:2], dtype=torch.int32))
    assert torch.equal(out[[0, 3, 4]], x[[0, 3, 4]]) and out[[1, 2]].isnan().all()
    before = out.clone()
    move_rows(x, out, counts=torch.tensor([0, -1], dtype=torch.int32))
    assert torch.equal(out.view(torch.int16), before.view(torch.int16))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("added", [False, True])
def test_a_sum_reads_named_rows_alone(weighted, added):
    x, rows = bf16(7, 8), torch.tensor([[2, 5], [-1, 0], [-1, -9]], dtype=torch.int32)
    x[[1, 3, 4, 6]] = NAN
    weights = torch.rand(3, 2) if weighted else None
    addend = bf16(3, 8) if added else None
    out = torch.empty(3, 8).bfloat16()
    combine_rows(x, rows, out, weights=weights, addend=addend)
    for token in range(3):
        total = addend[token].double() if added else torch.zeros(8).double()
        for j, row in enumerate(rows[token].tolist()):
            if row >= 0:
                total = total + x[row].double() * (weights[token, j].double() if weighted else 1)
        assert torch.allclose(out[token].double(), total, rtol=2**-8, atol=2**-12)


def test_what_does_not_fit_is_refused():
    x, out, rows = bf16(4, 16), bf16(4, 16), torch.zeros(4, 2, dtype=torch.int32)
    for given, options, error in (
        ((x, out), {"activate": True}, InputError),
        ((x.float(), out), {}, InputTypeError),
        ((x, out[:, :8]), {}, InputError),
        ((x, out), {"destinations": rows[:3]}, InputError),
        ((x, out), {"destinations": rows.long()}, InputTypeError),
        ((x, out), {"limit": torch.tensor(3)}, InputError),
        ((x, out), {"counts": torch.zeros(3, dtype=torch.int32)}, InputError),
        ((x, out), {"counts": torch.zeros(0, dtype=torch.int32)}, InputError),
    ):
        with pytest.raises(error):
            move_rows(*given, **options)
    for options, error in (
        ({"rows": rows[:2]}, InputError),
        ({"rows": rows.long()}, InputTypeError),
        ({"weights": torch.zeros(4, 2).double()}, InputTypeError),
        ({"addend": out[:2]}, InputError),
        ({"addend": moved(out)}, InputError),
        ({"x": bf16(4, 24)}, InputError),
        ({"out": out.t()}, InputError),
    ):
        with pytest.raises(error):
            combine_rows(**{"x": x, "rows": rows, "out": out, **options})


def test_a_cpu_tensor_needs_the_reference_backend():
    from chord_jit import knobs

    with knobs.scope(CHORD_BACKEND=""), pytest.raises(InputError, match="CHORD_BACKEND=reference"):
        move_rows(bf16(2, 8), bf16(2, 8))
