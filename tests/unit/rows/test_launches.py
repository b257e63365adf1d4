"""What the row kernels are told, on a GPU that is not there, and what a layer's products are told of the launch before them."""

from __future__ import annotations

import pytest
import torch

from chord_jit import knobs
from chord_jit.errors import InputError
from chord_jit.families.indexed_launch import PRODUCT, ROUTING
from chord_jit.rows import pipeline, route
from chord_jit.rows.combine import combine_rows
from chord_jit.rows.move import move_rows
from tests.unit.families.fake_gpu import H200, STREAM, bf16, machine, on_gpu
from tests.unit.layers.random_layer import random_layer

__all__ = ["machine"]


def ints(*shape: int) -> torch.Tensor:
    return on_gpu(torch.zeros(shape, dtype=torch.int32))


def told(machine) -> dict[str, int]:
    """The parameters of the only launch."""
    (call,) = machine.calls
    return call


@pytest.mark.parametrize("given", [True, False])
def test_a_combination(machine, given):
    x, rows, out = bf16(40, 64), ints(5, 3), bf16(5, 64)
    weights, addend = (on_gpu(torch.zeros(5, 3)), bf16(5, 64)) if given else (None, None)
    assert combine_rows(x, rows, out, weights=weights, addend=addend) is out
    assert told(machine) == {
        "x": x.data_ptr(), "rows": rows.data_ptr(), "weights": weights.data_ptr() if given else 0,
        "addend": addend.data_ptr() if given else 0, "out": out.data_ptr(), "tokens": 5, "vectors": 8, "top_k": 3,
    }  # fmt: skip
    (launch,) = machine.driver.launches
    assert (launch.stream, launch.grid, launch.early) == (STREAM, (16 * H200.sms, 1, 1), True)


@pytest.mark.parametrize("given", [True, False])
def test_a_move(machine, given):
    x, out = bf16(6, 128), bf16(9, 64 if given else 128)
    options = {"destinations": ints(6, 4), "limit": on_gpu(torch.zeros(1, dtype=torch.int64)), "counts": ints(2)} if given else {}
    assert move_rows(x, out, activate=given, **options) is out
    addresses = {name: options[name].data_ptr() if given else 0 for name in ("destinations", "limit", "counts")}
    sizes = {"vectors": 8, "each": 4, "block": 3, "activate": 1} if given else {"vectors": 16, "each": 1, "block": 6, "activate": 0}
    assert told(machine) == {"x": x.data_ptr(), "out": out.data_ptr(), **addresses, "rows": 6, "out_rows": 9, **sizes}
    assert not machine.driver.launches[0].early


def test_a_row_kernel_is_loaded_once_until_a_knob_changes(machine):
    for _ in range(3):
        combine_rows(bf16(40, 64), ints(5, 3), bf16(5, 64))
    assert len(machine.loads) == 1
    with knobs.scope(CHORD_COMPILER="nvcc"):
        combine_rows(bf16(40, 64), ints(5, 3), bf16(5, 64))
    assert len(machine.loads) == 2


def test_few_ids_are_one_ctas(machine):
    ids, expert_map, rows, offsets = on_gpu(torch.zeros(4, 2, dtype=torch.int64)), ints(9), ints(4, 2), ints(6)
    route._launch(ids, 5, expert_map, rows, 1, 8, None, offsets)
    assert told(machine) == {
        "ids": ids.data_ptr(), "expert_map": expert_map.data_ptr(), "sorted_ids": 0, "expert_ids": 0, "padded": 0,
        "offsets": offsets.data_ptr(), "rows": rows.data_ptr(), "chunks": 0, "total": 8, "experts": 5, "map_size": 9, "block_m": 1,
        "capacity": 8, "wide": 1, "phase": 0, "reserved": 0,
    }  # fmt: skip
    assert machine.driver.launches[0].grid == (1, 1, 1)


@pytest.mark.parametrize(("tokens", "experts"), [(4, 2049), (8388481, 8)])
def test_more_than_the_kernel_counts_is_refused(machine, tokens, experts):
    ids = on_gpu(torch.zeros(1, 1, dtype=torch.int32).expand(tokens, 1))
    with pytest.raises(InputError, match="2048 local experts and 8388480 ids"):
        route._launch(ids, experts, None, ints(tokens, 1), 8, 8, None, None)
    assert not machine.driver.launches


def test_many_ids_are_counted_and_then_placed_by_the_counts(machine):
    ids, rows, blocks = ints(1025, 2), ints(1025, 2), (ints(2400), ints(150), ints(1))
    route._launch(ids, 10, None, rows, 16, 2400, blocks, None)
    counted, placed = machine.calls
    assert counted | {"phase": 2} == placed and counted["phase"] == 1
    assert counted["wide"] == counted["expert_map"] == counted["map_size"] == counted["offsets"] == 0
    assert [counted[name] for name in ("sorted_ids", "expert_ids", "padded")] == [buffer.data_ptr() for buffer in blocks]
    assert counted["chunks"] and not machine.sums
    assert [launch.grid for launch in machine.driver.launches] == [(128, 1, 1)] * 2


def test_a_call_between_the_two_launches_of_another_has_counts_of_its_own(machine):
    """As another thread of the same stream can make it: a launch gives up the GIL."""
    ids, rows, blocks = ints(1025, 2), ints(1025, 2), (ints(2400), ints(150), ints(1))

    def other():
        machine.driver.inside = lambda: None
        route._launch(ids, 10, None, rows, 16, 2400, blocks, None)

    machine.driver.inside = other
    route._launch(ids, 10, None, rows, 16, 2400, blocks, None)
    told = [(call["phase"], call["chunks"]) for call in machine.calls]
    (inner_count, inner), (inner_place, same), (outer_count, outer), (outer_place, still) = told
    assert (inner_count, inner_place, outer_count, outer_place) == (1, 2, 1, 2)
    assert inner == same != outer == still


def test_products_follow_what_they_are_told(reference_backend, monkeypatch, seed):
    """gate/up starts while the routing is still being written, down while gate/up runs: nothing may come in between."""
    seen = []

    def noted(name, call):
        return lambda *given, **options: seen.append((name, options.get("after"))) or call(*given, **options)

    monkeypatch.setattr(pipeline.route, "blocks", noted("blocks", pipeline.route.blocks))
    monkeypatch.setattr(pipeline.indexed.FAMILY, "run", noted("product", pipeline.indexed.FAMILY.run))
    monkeypatch.setattr(pipeline, "combine_rows", noted("combine", combine_rows))
    weights, ids = random_layer(4, 64, 32), torch.zeros(3, 2, dtype=torch.int32)
    pipeline.run(torch.randn(3, 64).bfloat16(), weights, ids, torch.rand(3, 2), 2)
    assert seen == [("blocks", None), ("product", ROUTING), ("product", PRODUCT), ("combine", None)]
