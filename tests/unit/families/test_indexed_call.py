"""An indexed call from its tensors to the driver: what is packed, what is remembered, what is asked again."""

from dataclasses import asdict, replace

import pytest
import torch

from chord_jit import device, knobs
from chord_jit.errors import CaptureError, InputError, LaunchError, OverrideError
from chord_jit.families import indexed
from chord_jit.families.indexed import FAMILY, IndexedFamily
from chord_jit.families.indexed_launch import ANYTHING, PRODUCT, ROUTING
from chord_jit.jit import engine, slots
from chord_jit.schedules import resident, wgmma
from chord_jit.schedules.legality import mma_shape
from chord_jit.schedules.schedule import Schedule
from tests.unit.families.fake_gpu import H200, STREAM, SUMS, TICKET, bf16, machine, on_gpu, routing_of, weight_of

__all__ = ["machine"]

TOKENS, TOP_K, EXPERTS, N, K = 6, 3, 8, 256, 192
BUFFERS = ("sorted_ids", "expert_ids", "num_tokens_padded")
WHOLE = Schedule("w4a16_mma", 8, 128, 256, 2)
SPLIT = Schedule("w4a16_mma", 8, 128, 256, 2, split=3)
GATHERED, CUT = Schedule("w4a16_wgmma", 16, 256, 64, 3), Schedule("w4a16_wgmma", 16, 256, 64, 3, split=2)
RESIDENT = Schedule("w4a16_resident", 32, 128, K, 3)


@pytest.fixture
def family(machine) -> IndexedFamily:
    """A family that has made no call yet."""
    return IndexedFamily()


@pytest.fixture
def call() -> dict:
    """The arguments of a good call."""
    return dict(
        x=bf16(TOKENS, K), weight=weight_of(EXPERTS, N, K), routing=routing_of(TOKENS, TOP_K, 16, EXPERTS), swiglu=False, topk_weights=None,
        expected_rows=None, checked=False, out=bf16(TOKENS * TOP_K, N),
    )  # fmt: skip


def forced(schedule: Schedule):
    """Within the block, this schedule is what every problem gets."""
    fields = {name: value for name, value in asdict(schedule).items() if name != "kernel"}
    return knobs.scope(**{f"CHORD_W4A16_{name.upper()}": str(value) for name, value in fields.items()})


# -- what the kernel is told --------------------------------------------------------------------------------------------
def test_every_parameter_is_the_tensors_own(machine, family, call):
    assert family.run(**call) is call["out"]
    routing = call["routing"]
    (told,) = machine.calls
    assert told == {
        "x": call["x"].data_ptr(), "weight": call["weight"].data.data_ptr(), "out": call["out"].data_ptr(), "row_weights": 0,
        "ticket": TICKET, "sorted_ids": routing.sorted_ids.data_ptr(), "expert_ids": routing.expert_ids.data_ptr(),
        "padded": routing.num_tokens_padded.data_ptr(), "id_capacity": routing.sorted_ids.numel(),
        "block_capacity": -(-routing.sorted_ids.numel() // 16), "routed_rows": 18, "top_k": 3, "experts": 8,
        "sub_blocks": 16 // dict(machine.loads[0][0].config)["kBM"], "routed_before": 0, "reserved": 0,
    }  # fmt: skip
    assert machine.driver.launches[0].stream == STREAM


def test_a_call_that_knows_the_launch_before_starts_early(machine, family, call):
    for after in (ANYTHING, ROUTING, PRODUCT):
        family.run(**call, after=after)
    assert [launch.early for launch in machine.driver.launches] == [False, True, True]
    assert [told["routed_before"] for told in machine.calls] == [0, 0, 1]


@pytest.mark.parametrize("schedule, sums", [(GATHERED, 0), (CUT, SUMS)], ids=str)
def test_every_parameter_of_the_gathering_kernel_is_the_tensors_own(machine, family, call, schedule, sums):
    weights, routing = on_gpu(torch.rand(TOKENS, TOP_K)), routing_of(TOKENS, TOP_K, 32, EXPERTS)
    with forced(schedule):
        family.run(**{**call, "topk_weights": weights, "routing": routing})
    (told,) = machine.calls
    assert told == {
        "x": call["x"].data_ptr(), "row_weights": weights.data_ptr(), "weight": call["weight"].data.data_ptr(),
        "out": call["out"].data_ptr(), "ticket": TICKET, "joints": TICKET + slots.JOINTS_AT, "sums": sums,
        "sorted_ids": routing.sorted_ids.data_ptr(), "expert_ids": routing.expert_ids.data_ptr(),
        "padded": routing.num_tokens_padded.data_ptr(), "id_capacity": routing.sorted_ids.numel(),
        "block_capacity": -(-routing.sorted_ids.numel() // 32), "routed_rows": 18, "top_k": 3, "experts": 8, "sub_blocks": 2,
    }  # fmt: skip
    (seen,) = machine.driver.launches
    shape = wgmma.shape(FAMILY.problem(H200, EXPERTS, N, K, 1.0), schedule)
    assert (seen.stream, seen.grid, seen.block, seen.shared) == (STREAM, (132, 1, 1), (shape.threads, 1, 1), shape.shared_bytes)
    assert machine.sums == ([(0, STREAM, 132 * shape.sums_bytes)] if sums else [])


def test_every_parameter_of_the_resident_kernel_is_the_tensors_own(machine, family, call):
    weights, routing = on_gpu(torch.rand(TOKENS, TOP_K)), routing_of(TOKENS, TOP_K, 64, EXPERTS)
    with forced(RESIDENT):
        family.run(**{**call, "topk_weights": weights, "routing": routing})
    (told,), (loaded,) = machine.calls, machine.loads
    assert loaded[0].stem == "w4a16_resident" and told == {
        "x": call["x"].data_ptr(), "row_weights": weights.data_ptr(), "weight": call["weight"].data.data_ptr(),
        "out": call["out"].data_ptr(), "ticket": TICKET, "sorted_ids": routing.sorted_ids.data_ptr(),
        "expert_ids": routing.expert_ids.data_ptr(), "padded": routing.num_tokens_padded.data_ptr(),
        "id_capacity": routing.sorted_ids.numel(), "block_capacity": -(-routing.sorted_ids.numel() // 64), "routed_rows": 18, "top_k": 3,
        "experts": 8, "sub_blocks": 2,
    }  # fmt: skip
    (seen,) = machine.driver.launches
    shape = resident.shape(FAMILY.problem(H200, EXPERTS, N, K, 1.0), RESIDENT)
    assert (seen.stream, seen.grid, seen.block, seen.shared) == (STREAM, (132, 1, 1), (shape.threads, 1, 1), shape.shared_bytes)
    assert seen.cluster == 0 and machine.sums == [], "no tile is cut"


def test_both_kernels_serve_one_packed_weight(machine, family):
    """Few rows per expert and many, without another packing."""
    weight, tiles = weight_of(EXPERTS, N, K), []
    for tokens in (2, 4000):
        family.run(
            bf16(tokens, K), weight, routing_of(tokens, TOP_K, 256, EXPERTS), swiglu=False, topk_weights=None, expected_rows=None,
            checked=False, out=bf16(tokens * TOP_K, N),
        )  # fmt: skip
        tiles.append(machine.loads[-1][0].stem)
    assert tiles == ["w4a16_mma", "w4a16_wgmma"] and {told["weight"] for told in machine.calls} == {weight.data.data_ptr()}


@pytest.mark.parametrize("schedule", [GATHERED, RESIDENT], ids=str)
def test_routing_weights_make_no_other_gathering_kernel(machine, family, call, schedule):
    call["routing"] = routing_of(TOKENS, TOP_K, 32, EXPERTS)
    with forced(schedule):
        family.run(**call)
        family.run(**{**call, "topk_weights": on_gpu(torch.rand(TOKENS, TOP_K))})
    assert len(machine.loads) == 1 and machine.calls[0]["row_weights"] == 0 != machine.calls[1]["row_weights"]


@pytest.mark.parametrize("shape", [(TOKENS, TOP_K), (TOKENS * TOP_K,)], ids=str)
def test_routing_weights_are_passed_and_make_another_kernel(machine, family, call, shape):
    weights = on_gpu(torch.rand(*shape))
    family.run(**call)
    family.run(**{**call, "topk_weights": weights})
    assert [told["row_weights"] for told in machine.calls] == [0, weights.data_ptr()]
    assert [dict(spec.config)["kWeighted"] for spec, *_ in machine.loads] == [False, True]


def test_swiglu_halves_the_output(machine, family, call):
    fused = {**call, "weight": weight_of(EXPERTS, N, K, interleaved=True), "swiglu": True, "out": bf16(TOKENS * TOP_K, N // 2)}
    family.run(**fused)
    assert dict(machine.loads[0][0].config)["kSwiglu"] is True
    with pytest.raises(InputError, match=r"wanted=\[18, 128\]"):
        family.run(**{**fused, "out": call["out"]})


@pytest.mark.parametrize("block_m, bm, sub_blocks", [(8, 8, 1), (16, 16, 1), (16, 8, 2), (48, 16, 3), (128, 8, 16)])
def test_a_block_of_the_routing_is_cut_into_token_tiles(machine, family, call, block_m, bm, sub_blocks):
    with forced(replace(WHOLE, bm=bm)):
        family.run(**{**call, "routing": routing_of(TOKENS, TOP_K, block_m, EXPERTS)})
    assert machine.calls[0]["sub_blocks"] == sub_blocks


@pytest.mark.parametrize("schedule, resident, grid, cluster", [
    (WHOLE, 16, 132, 0), (replace(WHOLE, ctas=2), 16, 264, 0),
    (SPLIT, 41, 123, 3), (SPLIT, 99, 132, 3), (replace(SPLIT, ctas=2), 99, 264, 3),
], ids=str)
def test_the_grid_fills_the_gpu_once(machine, family, call, schedule, resident, grid, cluster):
    machine.driver.clusters = resident
    with forced(schedule):
        family.run(**{**call, "x": bf16(TOKENS, 1344), "weight": weight_of(EXPERTS, N, 1344)})
    (seen,) = machine.driver.launches
    (loaded,) = machine.loads
    shape = mma_shape(FAMILY.problem(H200, EXPERTS, N, 1344, 1.0), schedule)
    assert (seen.grid, seen.block, seen.cluster) == ((grid, 1, 1), (shape.threads, 1, 1), cluster)
    assert seen.shared == loaded[2] == shape.shared_bytes
    assert [query.cluster for _, query in machine.driver.queries] == ([schedule.split] if cluster else [])


def test_a_cluster_that_the_gpu_cannot_hold_is_refused(machine, family, call):
    machine.driver.clusters = 0
    with forced(SPLIT), pytest.raises(LaunchError, match="at least one cluster"):
        family.run(**{**call, "x": bf16(TOKENS, 1344), "weight": weight_of(EXPERTS, N, 1344)})
    assert machine.driver.launches == []


@pytest.mark.parametrize("current, guards", [(1, []), (0, [1])])
def test_v42_the_launch_happens_on_the_tensors_device(machine, family, current, guards):
    machine.current = current
    on_one = dict(
        x=on_gpu(bf16(TOKENS, K), 1), weight=weight_of(EXPERTS, N, K, index=1), routing=routing_of(TOKENS, TOP_K, 16, EXPERTS, index=1),
        swiglu=False, topk_weights=None, expected_rows=None, checked=False, out=on_gpu(bf16(TOKENS * TOP_K, N), 1),
    )  # fmt: skip
    family.run(**on_one)
    assert machine.slots == [(1, None, 1), (1, STREAM + 1, 1)], "slots were prepared or taken while another device was current"
    machine.guards.clear()
    family.run(**on_one)
    assert machine.guards == guards and machine.current == current
    assert [index for _, index, _ in machine.loads] == [1] and [seen.stream for seen in machine.driver.launches] == [STREAM + 1] * 2


# -- what is remembered -------------------------------------------------------------------------------------------------
def test_a_warm_call_neither_chooses_nor_loads(machine, family, call, monkeypatch):
    family.run(**call)
    monkeypatch.setattr(family, "schedule", None)
    monkeypatch.setattr(family, "prepare", None)
    other = {**call, "x": bf16(TOKENS, K), "weight": weight_of(EXPERTS, N, K), "out": bf16(TOKENS * TOP_K, N)}
    family.run(**other)
    assert machine.calls[1]["x"] == other["x"].data_ptr() and machine.calls[1]["weight"] == other["weight"].data.data_ptr()
    assert len(machine.loads) == 1


CHANGES = {
    "tokens": lambda call: dict(x=bf16(9, K), routing=routing_of(9, TOP_K, 16, EXPERTS), out=bf16(27, N)),
    "ranks": lambda call: dict(routing=routing_of(TOKENS, TOP_K, 16, EXPERTS, ranks=4)),
    "block_m": lambda call: dict(routing=routing_of(TOKENS, TOP_K, 8, EXPERTS)),
    "hint": lambda call: dict(expected_rows=7.5),
    "N": lambda call: dict(weight=weight_of(EXPERTS, 128, K), out=bf16(18, 128)),
    "K": lambda call: dict(weight=weight_of(EXPERTS, N, 320), x=bf16(TOKENS, 320)),
    "experts": lambda call: dict(weight=weight_of(9, N, K), routing=routing_of(TOKENS, TOP_K, 16, 9)),
    "interleaved": lambda call: dict(weight=weight_of(EXPERTS, N, K, interleaved=True)),
    "weighted": lambda call: dict(topk_weights=on_gpu(torch.rand(TOKENS, TOP_K))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_call_that_may_want_another_schedule_chooses_anew(machine, family, call, monkeypatch, change):
    asked = []
    monkeypatch.setattr(family, "schedule", lambda problem: asked.append(problem) or FAMILY.schedule(problem))
    other = {**call, **change(call)}
    for each in (call, other, call, other):
        family.run(**each)
    assert len(asked) == 2 and asked[0] != asked[1]


def test_expected_rows_are_those_of_the_whole_model_unless_hinted(machine, family, call, monkeypatch):
    asked = []
    monkeypatch.setattr(family, "schedule", lambda problem: asked.append(problem) or FAMILY.schedule(problem))
    family.run(**{**call, "routing": routing_of(TOKENS, TOP_K, 16, EXPERTS, ranks=4)})
    family.run(**{**call, "expected_rows": 5})
    assert [problem.expected_rows for problem in asked] == [18 / 32, 5]
    assert {(problem.experts, problem.n, problem.k, problem.block_m) for problem in asked} == {(EXPERTS, N, K, 16)}


@pytest.mark.parametrize("stride", [1, K + 2, 2 * K])
def test_v44_one_row_may_have_any_stride(machine, family, call, stride):
    x = on_gpu(torch.zeros(2 * K, dtype=torch.bfloat16).as_strided((1, K), (stride, 1)))
    family.run(**{**call, "x": x, "routing": routing_of(1, TOP_K, 16, EXPERTS), "out": bf16(TOP_K, N)})
    assert machine.calls[0]["x"] == x.data_ptr()


def test_v31_the_target_is_the_one_of_the_tensors_device(machine, family, call, monkeypatch):
    """Of two unlike GPUs neither the first nor the current one decides."""
    archs = ("sm_100a", "sm_90a")
    monkeypatch.setattr(indexed.device, "facts", lambda index: device.target(archs[index]))
    for index, current in ((0, 1), (1, 0), (1, 1)):
        machine.current = current
        there = replace(call["routing"], **{name: on_gpu(getattr(call["routing"], name), index) for name in BUFFERS})
        tensors = dict(x=on_gpu(call["x"], index), out=on_gpu(call["out"], index), weight=weight_of(EXPERTS, N, K, index=index))
        family.run(**{**call, **tensors, "routing": there})
        assert (machine.loads[-1][0].arch, machine.loads[-1][1]) == (archs[index], index)


def test_v38_token_counts_share_a_kernel(machine, family):
    weight = weight_of(EXPERTS, N, K)
    with forced(WHOLE):
        for tokens in range(1, 30):
            family.run(
                bf16(tokens, K), weight, routing_of(tokens, TOP_K, 8, EXPERTS), swiglu=False, topk_weights=None, expected_rows=None,
                checked=False, out=bf16(tokens * TOP_K, N),
            )  # fmt: skip
    assert len(machine.loads) == 1 and [told["routed_rows"] for told in machine.calls] == [3 * tokens for tokens in range(1, 30)]


def test_v39_what_is_remembered_is_bounded(machine, family, call, monkeypatch):
    monkeypatch.setattr(indexed, "_MAX_PLANS", 8)
    for step in range(50):
        family.run(**{**call, "expected_rows": step / 10})
        assert len(family._plans) <= 8
    assert len(machine.driver.launches) == 50 and len(machine.loads) <= 4


def test_a_changed_knob_is_heard_by_the_next_call(machine, family, call):
    family.run(**call)
    with forced(replace(WHOLE, stages=3)):
        family.run(**call)
    family.run(**call)
    first, other, again = (machine.loads[seen.function - 0x1001][0] for seen in machine.driver.launches)
    assert dict(other.config)["kStages"] == 3 and first == again != other


# -- what stops a call --------------------------------------------------------------------------------------------------
def test_v48_zero_rows_launch_nothing(machine, family, call):
    out = bf16(0, N)
    assert family.run(**{**call, "x": bf16(0, K), "routing": routing_of(0, TOP_K, 16, EXPERTS), "out": out}) is out
    assert machine.driver.launches == machine.loads == machine.slots == []


def test_an_illegal_override_stops_the_call_and_the_next_one_works(machine, family, call):
    with knobs.scope(CHORD_W4A16_SPLIT="9"), pytest.raises(OverrideError, match="CHORD_W4A16_SPLIT=9"):
        family.run(**call)
    assert machine.loads == machine.driver.launches == []
    family.run(**call)
    assert len(machine.driver.launches) == 1


def test_v40_a_cold_call_under_capture_leaves_nothing_behind(machine, family, call, monkeypatch):
    def refuse(*_):
        raise CaptureError("load a kernel", "it must be loaded before", {}, "warm up")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "load", refuse)
        for _ in range(2):
            with pytest.raises(CaptureError):
                family.run(**call)
    assert machine.driver.launches == []
    family.run(**call)
    assert len(machine.loads) == len(machine.driver.launches) == 1


def test_a_used_up_slot_pool_stops_the_launch(machine, family, call, monkeypatch):
    def refuse(*_):
        raise CaptureError("take a ticket slot", "every site holds one", {}, "raise CHORD_CAPTURE_SLOTS")

    monkeypatch.setattr(slots, "address", refuse)
    with pytest.raises(CaptureError):
        family.run(**call)
    assert machine.driver.launches == []
