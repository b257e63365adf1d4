"""Row kernels on the GPU against their torch twins on the CPU: ids grouped, rows moved, results combined."""

from __future__ import annotations

import pytest
import torch

from chord_jit import knobs
from chord_jit.errors import InputError
from chord_jit.routing.indexed import align_blocks, check_values
from chord_jit.rows import route
from chord_jit.rows.combine import combine_rows
from chord_jit.rows.move import move_rows
from tests.gpu.launches import capture
from tests.gpu.tensors import POISON, bits, poisoned

#: Tokens, top_k, local experts, block, experts of the map (0: none): one id, one CTA and many, few experts and the most.
SHAPES = [
    (1, 1, 1, 8, 0), (1, 8, 48, 16, 0), (50, 8, 48, 16, 0), (37, 8, 48, 64, 384), (128, 8, 384, 16, 0), (1024, 8, 48, 128, 384),
    (1025, 8, 48, 48, 0), (2048, 8, 384, 64, 0), (3000, 8, 1025, 8, 0), (65536, 8, 48, 128, 384), (511, 16, 2048, 8, 0),
]  # fmt: skip


def draw(tokens: int, top_k: int, experts: int, mapped: int, where: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Ids with duplicates, -1 and some out of range; a map that keeps ``experts`` of ``mapped`` experts."""
    whole = mapped or experts
    ids = torch.randint(-1, whole + 2, (tokens, top_k), device=where)
    if not mapped:
        return ids, None
    expert_map = torch.full((mapped,), -1, dtype=torch.int32, device=where)
    expert_map[torch.randperm(mapped, device=where)[:experts]] = torch.randperm(experts, device=where).int()
    return ids, expert_map


def assert_same_blocks(found, wanted) -> None:
    used = int(wanted.num_tokens_padded)
    assert int(found.num_tokens_padded) == used and found.sorted_ids.shape == wanted.sorted_ids.shape
    end = min(used, wanted.sorted_ids.numel())
    assert torch.equal(found.sorted_ids[:end].cpu(), wanted.sorted_ids[:end])
    blocks = used // wanted.block_m
    assert torch.equal(found.expert_ids[:blocks].cpu(), wanted.expert_ids[:blocks])
    assert (found.top_k, found.routed_rows, found.experts, found.global_experts) == (
        wanted.top_k, wanted.routed_rows, wanted.experts, wanted.global_experts,
    )  # fmt: skip


@pytest.mark.quick
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_are_those_of_torch(gpu, shape, dtype, seed):
    tokens, top_k, experts, block_m, mapped = shape
    ids, expert_map = draw(tokens, top_k, experts, mapped, gpu)
    there = None if expert_map is None else expert_map.cpu()
    wanted = align_blocks(ids.cpu(), block_m, experts, expert_map=there)
    for _ in range(3):
        routing, rows = route.blocks(ids.to(dtype), block_m, experts, expert_map=expert_map)
        assert_same_blocks(routing, wanted)
        check_values(routing)
        assert torch.equal(rows.cpu(), route.blocks(ids.cpu(), block_m, experts, expert_map=there)[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_groups_are_those_of_torch(gpu, shape, dtype, seed):
    tokens, top_k, experts, _, mapped = shape
    ids, expert_map = draw(tokens, top_k, experts, mapped, gpu)
    offsets, rows = route.groups(ids.to(dtype), experts, expert_map=expert_map)
    wanted = route.groups(ids.cpu(), experts, expert_map=None if expert_map is None else expert_map.cpu())
    assert torch.equal(offsets.cpu(), wanted[0]) and torch.equal(rows.cpu(), wanted[1])


@pytest.mark.parametrize("tokens", [7, 4000])
def test_extreme_ids(gpu, tokens, seed):
    """Everything on one expert, nothing anywhere, ids beyond 32 bits."""
    ids = torch.full((tokens, 8), 5, device=gpu)
    assert_same_blocks(route.blocks(ids, 16, 48)[0], align_blocks(ids.cpu(), 16, 48))
    for value in (-1, 48, 2**40 + 5, -(2**40)):
        ids.fill_(value)
        routing, rows = route.blocks(ids, 16, 48)
        assert int(routing.num_tokens_padded) == 0 and (rows == -1).all()
        offsets, rows = route.groups(ids, 48)
        assert not offsets.any() and (rows == -1).all()


def test_replay_follows_the_ids(gpu, seed):
    ids = torch.zeros(1200, 8, dtype=torch.int64, device=gpu)
    kept = {}

    def step() -> None:
        kept["blocks"], kept["groups"] = route.blocks(ids, 32, 64), route.groups(ids, 64)

    graph = capture(step)
    for _ in range(3):
        ids.copy_(torch.randint(-1, 66, ids.shape, device=gpu))
        graph.replay()
        assert_same_blocks(kept["blocks"][0], align_blocks(ids.cpu(), 32, 64))
        wanted = route.groups(ids.cpu(), 64)
        assert torch.equal(kept["groups"][0].cpu(), wanted[0]) and torch.equal(kept["groups"][1].cpu(), wanted[1])


def test_too_much_is_refused(gpu, no_launch):
    with pytest.raises(InputError, match="at most 2048"):
        route.blocks(torch.zeros(4, 2, dtype=torch.int32, device=gpu), 8, 2049)
    with pytest.raises(InputError, match="ids"):
        route.groups(torch.zeros(1 << 20, 9, dtype=torch.int32, device=gpu), 8)


@pytest.mark.parametrize("activate", [False, True])
@pytest.mark.parametrize("columns", [8, 1024, 2056, 7168])
@pytest.mark.parametrize("form", ["plain", "limit", "own row or none", "scatter", "counts"])
def test_moves_are_those_of_torch(gpu, form, columns, activate, seed):
    rows, out_rows = 96, 96
    x = torch.randn(rows, columns * (1 + activate), device=gpu).bfloat16()
    options = {}
    if form == "limit":
        options = {"limit": torch.tensor([37], device=gpu)}
    elif form == "own row or none":
        own = torch.arange(rows, device=gpu)
        options = {"destinations": torch.where(torch.rand(rows, device=gpu) < 0.4, own, -1).int()}
    elif form == "scatter":
        rows, out_rows = 24, 100
        x = x[:rows]
        to = torch.randperm(out_rows, device=gpu)[: rows * 4].view(rows, 4)
        options = {"destinations": to.int(), "limit": torch.tensor([80], device=gpu)}
    elif form == "counts":
        options = {"counts": torch.tensor([24, 0, 7, -3], dtype=torch.int32, device=gpu)}
    out = poisoned(out_rows, columns, where=gpu)
    wanted = out.cpu()
    assert move_rows(x, out, activate=activate, **options) is out
    with knobs.scope(CHORD_BACKEND="reference"):
        move_rows(x.cpu(), wanted, activate=activate, **{name: value.cpu() for name, value in options.items()})
    untouched = bits(wanted) == POISON
    assert torch.equal(bits(out).cpu() == POISON, untouched) and not untouched.all()
    found, right = out.cpu().float()[~untouched], wanted.float()[~untouched]
    assert torch.allclose(found, right, rtol=2**-7, atol=1e-6) if activate else torch.equal(found, right)


@pytest.mark.parametrize("hidden", [8, 2056, 7168])
@pytest.mark.parametrize("top_k", [1, 6, 8, 9, 22])
@pytest.mark.parametrize("tokens", [1, 300])
def test_sums_are_those_of_torch(gpu, tokens, top_k, hidden, seed):
    x = torch.randn(tokens * top_k, hidden, device=gpu).bfloat16()
    rows = torch.randperm(tokens * top_k, device=gpu).int().view(tokens, top_k)
    rows[torch.rand(tokens, top_k, device=gpu) < 0.3] = -1
    unnamed = torch.ones(tokens * top_k, dtype=torch.bool, device=gpu)
    unnamed[rows[rows >= 0].long()] = False
    x[unnamed] = float("nan")
    weights, addend = torch.rand(tokens, top_k, device=gpu), torch.randn(tokens, hidden, device=gpu).bfloat16()
    for options in ({}, {"weights": weights}, {"addend": addend}, {"weights": weights, "addend": addend}):
        out, wanted = poisoned(tokens, hidden, where=gpu), torch.empty(tokens, hidden, dtype=torch.bfloat16)
        combine_rows(x, rows, out, **options)
        with knobs.scope(CHORD_BACKEND="reference"):
            combine_rows(x.cpu(), rows.cpu(), wanted, **{name: value.cpu() for name, value in options.items()})
        assert torch.allclose(out.cpu().float(), wanted.float(), rtol=2**-7, atol=1e-5)
        again = combine_rows(x, rows, poisoned(tokens, hidden, where=gpu), **options)
        assert torch.equal(bits(out), bits(again))


def test_a_sum_may_go_where_its_addend_lies(gpu, seed):
    x, rows = torch.randn(32, 64, device=gpu).bfloat16(), torch.arange(32, device=gpu).int().view(8, 4)
    addend = torch.randn(8, 64, device=gpu).bfloat16()
    wanted = combine_rows(x, rows, torch.empty_like(addend), addend=addend)
    assert torch.equal(combine_rows(x, rows, addend, addend=addend), wanted)


def test_rows_beyond_32_bit_offsets(gpu, seed):
    """x and out of more than 2^31 elements: the last rows are moved and summed right."""
    rows, columns = 300_000, 7168
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device=gpu)
    x[-3:] = torch.randn(3, columns, device=gpu).bfloat16()
    out = torch.empty_like(x)
    to = torch.full((rows,), -1, dtype=torch.int32, device=gpu)
    to[-3:] = torch.tensor([rows - 1, 0, rows - 2], device=gpu).int()
    move_rows(x, out, destinations=to)
    assert torch.equal(out[[rows - 1, 0, rows - 2]], x[-3:])
    named = torch.tensor([[rows - 1, rows - 3]], dtype=torch.int32, device=gpu)
    total = combine_rows(x, named, torch.empty(1, columns, dtype=torch.bfloat16, device=gpu))
    assert torch.equal(total[0], (x[-1].float() + x[-3].float()).bfloat16())
