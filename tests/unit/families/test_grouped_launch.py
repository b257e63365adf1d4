"""From a schedule to the driver: the grid, the kernel's parameters in its own order, and whose memory they name."""

from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from chord_jit import device, knobs
from chord_jit.families import grouped_launch
from chord_jit.families.grouped import GroupedFamily
from chord_jit.families.grouped_launch import MMA_PARAMS, WGMMA_PARAMS, prepare
from chord_jit.jit import engine, launch, slots
from chord_jit.schedules import legality, wgmma
from chord_jit.schedules.schedule import Schedule
from tests.unit.families.fake_gpu import H200, STREAM, bf16
from tests.unit.families.fake_grouped import EXPERTS, LAYOUTS, MAX_M, ROWS, K, N, ask, good, tensor_of
from tests.unit.jit.fake_driver import FakeDriver

WGMMA_NAMES = ("x", "weight", "out", "ticket", "joints", "sums", "layout", "segments", "rows", "max_m", "experts")
_EARLY = ("routed_before", "reserved")
MMA_NAMES = ("x", "weight", "out", "row_weights", "ticket", "layout", "segments", "rows", "max_m", "experts", *_EARLY)
PARAMETERS = {"w4a16_wgmma": (WGMMA_NAMES, WGMMA_PARAMS), "w4a16_mma": (MMA_NAMES, MMA_PARAMS)}
WHOLE, CUT = Schedule("w4a16_wgmma", 64, 128, 64, 4), Schedule("w4a16_wgmma", 64, 128, 64, 4, split=2)
FEW, TWICE = Schedule("w4a16_mma", 16, 128, 512, 3), Schedule("w4a16_mma", 8, 128, 256, 3, ctas=2)
PAIR, SHARED = Schedule("w4a16_wgmma", 32, 256, 64, 4, split=2, ctas=2), Schedule("w4a16_wgmma", 64, 128, 64, 4, cn=2, split=2)
every_schedule = pytest.mark.parametrize("schedule", (WHOLE, CUT, PAIR, FEW, TWICE), ids=str)
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
SUMS, SLOT = 0x5000_0000, 0x7000


class Rig:
    """Everything that a launch asks for, written down. ``stream``: the current one of every device."""

    def __init__(self):
        self.driver, self.current, self.stream = FakeDriver(0), 0, STREAM
        self.loads, self.prepared, self.slots, self.sums, self.maps = [], [], [], [], []

    def load(self, spec, index, shared_bytes):
        self.loads.append((spec, index, shared_bytes))
        self.driver.size = PARAMETERS[spec.stem][1].size
        return SimpleNamespace(handle=0x1000 + len(self.loads))

    def slot(self, index, stream):
        self.slots.append((index, stream))
        return SLOT + 0x100 * (stream - STREAM)

    def scratch(self, index, stream, size):
        self.sums.append((index, stream, size))
        return SUMS

    def rows_of(self, address, rows, k, box_rows):
        self.maps.append((address, rows, k, box_rows))
        return bytes([len(self.maps)]) * 128

    @contextmanager
    def guard(self, index):
        before, self.current = self.current, index
        yield
        self.current = before

    def run(self, bound, x, index: int = 0, **changes) -> dict:
        """One launch with numbers that cannot be taken for one another; its parameters by name."""
        given = dict(weight=0xA1 << 32, out=0xA2 << 32, layout=0xA3 << 32, rows=ROWS, segments=55, max_m=77)
        bound(index, x, *{**given, **changes}.values())
        return self.told()

    def told(self) -> dict:
        seen = self.driver.launches[-1]
        names, params = PARAMETERS[self.kernel]
        return dict(zip(names, params.unpack(seen.arguments), strict=True))

    @property
    def kernel(self) -> str:
        return self.loads[-1][0].stem


@pytest.fixture
def rig(monkeypatch) -> Rig:
    rig = Rig()
    monkeypatch.setattr(device, "facts", lambda index: H200)
    monkeypatch.setattr(launch, "driver", rig.driver)
    monkeypatch.setattr(grouped_launch, "_bound", {})
    monkeypatch.setattr(engine, "load", rig.load)
    monkeypatch.setattr(grouped_launch.slots, "prepare", lambda index: rig.prepared.append((index, rig.current)))
    monkeypatch.setattr(grouped_launch.slots, "address", rig.slot)
    monkeypatch.setattr(grouped_launch.scratch, "address", rig.scratch)
    monkeypatch.setattr(grouped_launch.tensor_map, "rows_of", rig.rows_of)
    monkeypatch.setattr(torch.cuda, "device", rig.guard)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: rig.stream, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: rig.current, raising=False)
    return rig


def problem(layout: str = "masked", experts: int = EXPERTS, sms: int = 132, **flags):
    return GroupedFamily().problem(replace(H200, sms=sms), experts, N, 512, 8, layout=layout, **flags)


# -- parameters ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("schedule", (WHOLE, CUT), ids=str)
def test_what_w4a16_wgmma_is_told(rig, schedule):
    x = bf16(ROWS, 512)
    told = rig.run(prepare(problem(), schedule, 0), x)
    assert told == {
        "x": b"\1" * 128, "weight": 0xA1 << 32, "out": 0xA2 << 32, "ticket": SLOT, "joints": SLOT + slots.JOINTS_AT,
        "sums": SUMS if schedule is CUT else 0, "layout": 0xA3 << 32, "segments": 55, "rows": ROWS, "max_m": 77, "experts": EXPERTS,
    }  # fmt: skip
    assert rig.maps == [(x.data_ptr(), ROWS, 512, wgmma.shape(problem(), schedule).box_rows)]


@pytest.mark.parametrize("schedule", (FEW, TWICE), ids=str)
def test_what_w4a16_mma_is_told(rig, schedule):
    x = bf16(ROWS, 512)
    told = rig.run(prepare(problem(), schedule, 0), x)
    assert told == {
        "x": x.data_ptr(), "weight": 0xA1 << 32, "out": 0xA2 << 32, "row_weights": 0, "ticket": SLOT, "layout": 0xA3 << 32,
        "segments": 55, "rows": ROWS, "max_m": 77, "experts": EXPERTS, "routed_before": 0, "reserved": 0,
    }  # fmt: skip
    assert rig.maps == rig.sums == []


@every_schedule
@pytest.mark.parametrize("sms", [78, 132, 160])
def test_v54_the_grid_fills_the_gpu_once(rig, schedule, sms):
    asked = problem(sms=sms)
    rig.run(prepare(asked, schedule, 0), bf16(ROWS, 512))
    (seen,) = rig.driver.launches
    sizes = (wgmma.shape if schedule.kernel == "w4a16_wgmma" else legality.mma_shape)(asked, schedule)
    assert (seen.grid, seen.block, seen.cluster) == ((sms * schedule.ctas, 1, 1), (sizes.threads, 1, 1), 0)
    assert seen.shared == sizes.shared_bytes == rig.loads[0][2]
    wanted = [(0, STREAM, schedule.bm * schedule.bn * 4 * sms * schedule.ctas)] if schedule in (CUT, PAIR) else []
    assert rig.sums == wanted, "a tile of FP32 sums for each CTA, and only where tiles are cut"


@every_schedule
def test_v42_each_launch_uses_the_stream_and_the_slot_of_its_moment(rig, schedule):
    bound = prepare(problem(), schedule, 0)
    for stream in (STREAM, STREAM + 3, STREAM):
        rig.stream = stream
        assert rig.run(bound, bf16(ROWS, 512))["ticket"] == SLOT + 0x100 * (stream - STREAM)
    streams = [STREAM, STREAM + 3, STREAM]
    assert [seen.stream for seen in rig.driver.launches] == streams and rig.slots == [(0, stream) for stream in streams]
    assert [stream for _, stream, _ in rig.sums] == (streams if schedule in (CUT, PAIR) else [])


@pytest.mark.parametrize("resident, clusters", [(100, 66), (66, 66), (41, 41)])
def test_a_grid_of_clusters_is_resident_at_once(rig, resident, clusters):
    rig.driver.clusters = resident
    rig.run(prepare(problem(), SHARED, 0), bf16(ROWS, 512))
    (seen,) = rig.driver.launches
    assert (seen.grid, seen.cluster) == ((2 * clusters, 1, 1), 2)
    assert rig.sums == [(0, STREAM, 64 * 128 * 4 * 2 * clusters)]
    ((handle, asked),) = rig.driver.queries
    assert (handle, asked.cluster, asked.shared, asked.block) == (seen.function, 2, seen.shared, seen.block)


# -- what is remembered -------------------------------------------------------------------------------------------------
@every_schedule
def test_a_kernel_is_loaded_once_for_each_device(rig, schedule):
    bound = [prepare(problem(), schedule, index) for index in (0, 1, 0, 1)]
    assert bound[0] is bound[2] and bound[1] is bound[3] and bound[0] is not bound[1]
    assert [index for _, index, _ in rig.loads] == [0, 1]
    assert rig.prepared == [(0, 0), (1, 1)], "counters are allocated with their own device current"


@every_schedule
def test_weights_of_other_expert_counts_share_a_kernel_and_not_its_number(rig, schedule):
    for experts in (EXPERTS, 1025):
        asked = problem(experts=experts)
        assert rig.run(prepare(asked, schedule, 0), bf16(ROWS, 512))["experts"] == experts
    (first, *_), (second, *_) = rig.loads
    assert first == second


@every_schedule
def test_layouts_are_kernels_of_their_own(rig, schedule):
    for layout in LAYOUTS:
        prepare(problem(layout), schedule, 0)
    assert [dict(spec.config)["kRows"] for spec, *_ in rig.loads] == [f"chord::RowSource::k{layout.capitalize()}" for layout in LAYOUTS]


def test_a_refused_load_is_not_remembered(rig, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(engine, "load", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            prepare(problem(), WHOLE, 0)
    rig.run(prepare(problem(), WHOLE, 0), bf16(ROWS, 512))
    assert len(rig.loads) == len(rig.driver.launches) == 1


# -- a whole call -------------------------------------------------------------------------------------------------------
@every_layout
@pytest.mark.parametrize("kernel, tile", [("w4a16_wgmma", dict(BM="64", BN="128", BK="64", STAGES="4")), ("w4a16_mma", dict(BM="8"))])
def test_from_the_tensors_to_the_driver(rig, layout, kernel, tile):
    call = good(layout)
    with knobs.scope(**{f"CHORD_W4A16_{name}": value for name, value in tile.items()}):
        family = GroupedFamily()
        for _ in range(2):
            assert ask(family, layout, call) is call["out"]
    assert rig.kernel == kernel and len(rig.loads) == 1 and len(rig.driver.launches) == 2
    told = rig.told()
    assert (told["weight"], told["out"]) == (call["weight"].data.data_ptr(), call["out"].data_ptr())
    assert told["layout"] == tensor_of(layout, call).data_ptr() and (told["rows"], told["experts"]) == (ROWS, EXPERTS)
    assert told["segments"] == (ROWS // 128 if layout == "blocks" else EXPERTS) and told["max_m"] == (MAX_M if layout == "masked" else 0)
    if kernel == "w4a16_wgmma":
        assert {asked[:3] for asked in rig.maps} == {(call["x"].data_ptr(), ROWS, K)}
    else:
        assert told["x"] == call["x"].data_ptr()
