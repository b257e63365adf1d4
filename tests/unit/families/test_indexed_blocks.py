"""Routing that does not suit an indexed call: tiles that do not divide its blocks, experts of another weight, ids behind a sentinel."""

from dataclasses import replace

import pytest

from chord_jit import knobs
from chord_jit.errors import InputError, OverrideError
from chord_jit.families.indexed import IndexedFamily
from chord_jit.families.indexed_problem import shared_block_m
from chord_jit.schedules.legality import violations
from tests.unit.families.fake_gpu import H200, bf16, machine, routing_of, weight_of

__all__ = ["machine"]

TOKENS, TOP_K, EXPERTS, N, K = 40, 2, 4, 256, 256


def call(block_m: int, **changes) -> dict:
    """A good call over blocks of that size."""
    return dict(
        x=bf16(TOKENS, K), weight=weight_of(EXPERTS, N, K), routing=routing_of(TOKENS, TOP_K, block_m, EXPERTS), swiglu=False,
        topk_weights=None, expected_rows=None, checked=False, out=bf16(TOKENS * TOP_K, N), **changes,
    )  # fmt: skip


def refused(machine, error: type, given: dict) -> Exception:
    with pytest.raises(error) as caught:
        IndexedFamily().run(**given)
    assert caught.value.asked and caught.value.values and caught.value.remedy
    assert machine.loads == machine.driver.launches == []
    return caught.value


@pytest.mark.parametrize(("bm", "block_m"), [(64, 16), (64, 96), (48, 64), (128, 192), (16, 24)])
def test_a_tile_that_does_not_divide_the_blocks_is_refused(machine, bm, block_m):
    with knobs.scope(CHORD_W4A16_BM=str(bm)):
        error = refused(machine, OverrideError, call(block_m))
    assert f"BM must divide the routing's block_m, got BM={bm} and block_m={block_m}" in error.rule
    assert error.values["CHORD_W4A16_BM"] == bm


@pytest.mark.parametrize(("bm", "block_m"), [(64, 64), (64, 192), (96, 192), (8, 24), (128, 256)])
def test_a_tile_that_divides_them_is_taken(machine, bm, block_m):
    with knobs.scope(CHORD_W4A16_BM=str(bm)):
        IndexedFamily().run(**call(block_m))
    ((spec, *_),) = machine.loads
    assert dict(spec.config)["kBM"] == bm


@pytest.mark.parametrize("experts", [3, 5, 384])
def test_routing_of_another_expert_count_is_refused(machine, experts):
    error = refused(machine, InputError, {**call(64), "routing": routing_of(TOKENS, TOP_K, 64, experts)})
    assert "count the same experts" in error.rule and error.values == {"routing": experts, "weight": EXPERTS}


@pytest.mark.parametrize("block_m", [16, 64])
def test_ids_behind_a_sentinel_are_refused_in_checked_mode_alone(machine, block_m):
    given = call(block_m)
    ids = given["routing"].sorted_ids
    first = int(ids[0])
    ids[0] = TOKENS * TOP_K
    error = refused(machine, InputError, {**given, "checked": True})
    assert "valid ids first, then sentinels" in error.rule and error.values["slot"] == 1 and first < TOKENS * TOP_K
    IndexedFamily().run(**given)
    assert len(machine.driver.launches) == 1


@pytest.mark.parametrize(("variables", "neurons", "rows"), [
    ({"CHORD_W4A16_BK": "128"}, 192, 4), ({"CHORD_W4A16_BM": "48", "CHORD_W4A16_STAGES": "8"}, 2048, 8),
], ids=str)
def test_what_suits_both_projections_alone_suits_them_in_one_block(variables, neurons, rows):
    """Though the block that the other one would take by itself, or what is offered in this one, may be illegal."""
    family = IndexedFamily()
    with knobs.scope(**variables):
        gate_up = family.problem(H200, 48, 2 * neurons, 7168, rows, interleaved=True, swiglu=True)
        down = family.problem(H200, 48, 7168, neurons, rows, weighted=True)
        block_m = shared_block_m(gate_up, down)
        for problem in (replace(gate_up, block_m=block_m), replace(down, block_m=block_m)):
            chosen = family.schedule(problem)
            assert violations(problem, chosen) == []
            assert all(getattr(chosen, name.rpartition("_")[2].lower()) == int(value) for name, value in variables.items())


def test_another_compiler_is_another_kernel(machine):
    """Loaded kernels are known by what their key is made of, and knobs are a part of that."""
    IndexedFamily().run(**call(64))
    IndexedFamily().run(**call(64))
    assert len(machine.loads) == 1
    with knobs.scope(CHORD_COMPILER="nvcc"):
        IndexedFamily().run(**call(64))
    assert len(machine.loads) == 2
