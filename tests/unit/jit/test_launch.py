"""What reaches the driver: the struct byte for byte, the right stream, and never another thread's arguments."""

import random
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cuda.bindings import driver

from chord_jit.errors import LaunchError
from chord_jit.jit import launch
from chord_jit.jit.launch import Launch, resident_clusters
from tests.unit.jit.fake_driver import FakeDriver, Seen

PARAMS = struct.Struct("<3Q2i")
GRID = (132, 1, 1)
#: Every byte different, the largest values, negative ints.
VALUES = [
    (0x0102030405060708, 0x1112131415161718, 0x2122232425262728, 0x31323334, 0x41424344),
    (2**64 - 1, 1, 2**63, 2**31 - 1, -(2**31)),
    (0, 0, 0, 0, -1),
]


@pytest.fixture
def fake(monkeypatch):
    fake = FakeDriver(PARAMS.size)
    monkeypatch.setattr(launch, "driver", fake)
    return fake


def new(cluster: int = 1) -> Launch:
    return Launch(0xABC, GRID, 384, cluster, 169000, PARAMS)


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_driver_gets_the_struct_and_the_configuration(fake, values):
    new()(0x77, *values)
    assert fake.launches == [Seen(0xABC, 0x77, GRID, (384, 1, 1), 169000, 0, False, PARAMS.pack(*values))]


@pytest.mark.parametrize("cluster, seen", [(1, 0), (2, 2), (8, 8)])
def test_v40_a_cluster_is_an_attribute_of_the_launch(fake, cluster, seen):
    new(cluster)(0, *VALUES[0])
    assert fake.launches[0].cluster == seen


@pytest.mark.parametrize("cluster", [1, 2])
def test_an_early_start_is_another_attribute(fake, cluster):
    alone = new(cluster)
    overlapping = alone.early()
    for enqueue in (alone, overlapping, alone):
        enqueue(7, *VALUES[0])
    assert [(seen.early, seen.cluster > 1) for seen in fake.launches] == [(False, cluster > 1), (True, cluster > 1), (False, cluster > 1)]
    assert {seen.arguments for seen in fake.launches} == {PARAMS.pack(*VALUES[0])} and overlapping.ctas == alone.ctas


def test_v42_each_call_writes_its_own_values_and_stream(fake):
    enqueue = new()
    streams = [0, 5, 5, 0, 2**64 - 1, 5]
    values = [[random.getrandbits(63) for _ in range(3)] + [random.getrandbits(31) for _ in range(2)] for _ in streams]
    for stream, these in zip(streams, values, strict=True):
        enqueue(stream, *these)
    assert [seen.stream for seen in fake.launches] == streams
    assert [seen.arguments for seen in fake.launches] == [PARAMS.pack(*these) for these in values]


def test_two_launches_share_nothing(fake):
    first, second = new(), Launch(0xDEF, (7, 1, 1), 256, 2, 99, PARAMS)
    first(1, *VALUES[0])
    second(2, *VALUES[1])
    first(1, *VALUES[2])
    assert [seen.function for seen in fake.launches] == [0xABC, 0xDEF, 0xABC]
    assert [seen.grid for seen in fake.launches] == [GRID, (7, 1, 1), GRID]
    assert [seen.arguments for seen in fake.launches] == [PARAMS.pack(*VALUES[index]) for index in (0, 1, 2)]


def test_threads_inside_the_driver_together_never_see_each_other(fake):
    """Both write their arguments before either has been read to the end: the driver runs without the GIL."""
    enqueue, rounds = new(), 20
    meeting = threading.Barrier(2, timeout=20)
    fake.inside = lambda: meeting.wait() and None

    def run(mine: int) -> None:
        for turn in range(rounds):
            enqueue(mine, mine, turn, mine, turn, mine)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(run, mine) for mine in (11, 22)]:
            done.result()
    assert fake.torn == []
    wanted = {(mine, PARAMS.pack(mine, turn, mine, turn, mine)) for mine in (11, 22) for turn in range(rounds)}
    assert {(seen.stream, seen.arguments) for seen in fake.launches} == wanted and len(fake.launches) == 2 * rounds


def test_threads_that_are_switched_anywhere_never_mix_arguments(fake):
    enqueue = new()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda mine: [enqueue(mine, mine, mine, mine, mine, mine) for _ in range(200)], range(1, 5)))
    finally:
        sys.setswitchinterval(before)
    assert fake.torn == [] and len(fake.launches) == 800
    assert all(seen.arguments == PARAMS.pack(*[seen.stream] * 5) for seen in fake.launches)


def test_a_refused_launch_says_what_it_was(fake):
    fake.status = driver.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_VALUE") as caught:
        new(2)(3, *VALUES[0])
    shown = {"status": "CUDA_ERROR_INVALID_VALUE", "grid": GRID, "block": 384, "cluster": 2, "shared_bytes": 169000}
    assert caught.value.values == shown and "CUDA_LAUNCH_BLOCKING" in caught.value.remedy


@pytest.fixture
def bare_thread(fake, monkeypatch):
    """The fake driver refuses for want of a context until the primary context of device 1 is made current."""
    fake.status = driver.CUresult.CUDA_ERROR_INVALID_CONTEXT

    def set_current(context: str) -> None:
        assert context == "primary context of device 1"
        fake.status = driver.CUresult.CUDA_SUCCESS

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    fake.cuDeviceGet = lambda index: (driver.CUresult.CUDA_SUCCESS, f"device {index}")
    fake.cuDevicePrimaryCtxRetain = lambda device: (driver.CUresult.CUDA_SUCCESS, f"primary context of {device}")
    fake.cuCtxSetCurrent = set_current
    return fake


def test_a_thread_without_a_context_gets_the_device_of_torch(bare_thread):
    new()(0, *VALUES[0])
    assert [seen.arguments for seen in bare_thread.launches] == [PARAMS.pack(*VALUES[0])] * 2  # the first was refused
    bare_thread.status = driver.CUresult.CUDA_ERROR_INVALID_CONTEXT
    assert resident_clusters(0xABC, 384, 3, 150000) == bare_thread.clusters


def test_a_context_that_cannot_be_had_is_a_refused_launch(bare_thread):
    bare_thread.cuCtxSetCurrent = lambda context: None
    with pytest.raises(LaunchError, match="CUDA_ERROR_INVALID_CONTEXT"):
        new()(0, *VALUES[0])


def test_after_a_refused_launch_the_next_one_works(fake):
    enqueue = new()
    enqueue(1, *VALUES[0])
    fake.status = driver.CUresult.CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    with pytest.raises(LaunchError):
        enqueue(2, *VALUES[1])
    fake.status = driver.CUresult.CUDA_SUCCESS
    enqueue(2, *VALUES[2])
    enqueue(1, *VALUES[0])
    assert [(seen.stream, seen.arguments) for seen in fake.launches[2:]] == [(2, PARAMS.pack(*VALUES[2])), (1, PARAMS.pack(*VALUES[0]))]


@pytest.mark.parametrize("values", [VALUES[0][:4], (*VALUES[0], 1), (*VALUES[0][:4], 2**31), ("x", *VALUES[0][1:])], ids=str)
def test_what_does_not_fit_the_struct_never_reaches_the_driver(fake, values):
    enqueue = new()
    with pytest.raises(struct.error):
        enqueue(1, *values)
    assert fake.launches == []
    enqueue(1, *VALUES[0])
    assert fake.launches[0].arguments == PARAMS.pack(*VALUES[0])


def test_resident_clusters_asks_for_the_cluster_that_will_be_launched(fake):
    fake.clusters = 41
    assert resident_clusters(0xABC, 384, 3, 150000) == 41
    assert fake.queries == [(0xABC, Seen(0xABC, 0, (3, 1, 1), (384, 1, 1), 150000, 3, False, b""))]


@pytest.mark.parametrize("status, clusters", [("CUDA_ERROR_INVALID_CLUSTER_SIZE", 0), ("CUDA_SUCCESS", 0), ("CUDA_ERROR_INVALID_VALUE", 5)])
def test_a_cluster_that_fits_nowhere_is_refused(fake, status, clusters):
    fake.status, fake.clusters = getattr(driver.CUresult, status), clusters
    with pytest.raises(LaunchError, match=f"status={status}, block=384, cluster=8, shared_bytes=150000"):
        resident_clusters(0xABC, 384, 8, 150000)
