"""Ticket slots: one for each stream, a new one for each captured launch site, and never one for two."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from types import SimpleNamespace

import pytest

from chord_jit import knobs
from chord_jit.errors import CaptureError
from chord_jit.jit import slots
from chord_jit.schedules import wgmma

BASE = {0: 0x7000_0000, 1: 0x9000_0000}
#: Bytes of a slot, as the documentation of CHORD_CAPTURE_SLOTS has it.
STRIDE = 192


class FakeTorch:
    """As much of torch as slots ask for. ``capturing``: whether the current stream records a graph."""

    uint8 = "uint8"

    def __init__(self):
        self.capturing, self.zeroed, self.waits, self.zeroed_by = False, [], 0, set()
        asks = lambda: self.capturing  # noqa: E731
        self.cuda = SimpleNamespace(is_current_stream_capturing=asks, current_stream=lambda device: SimpleNamespace(synchronize=self.wait))
        self._C = SimpleNamespace(_cuda_isCurrentStreamCapturing=asks)

    def device(self, kind, index):
        return (kind, index)

    def wait(self):
        self.waits += 1

    def zeros(self, size, *, dtype, device):
        assert dtype == self.uint8 and device[0] == "cuda"
        self.zeroed.append((size, device[1]))
        self.zeroed_by.add(get_ident())
        return SimpleNamespace(data_ptr=lambda: BASE[device[1]])


@pytest.fixture
def torch(monkeypatch):
    torch = FakeTorch()
    monkeypatch.setattr(slots, "torch", torch)
    monkeypatch.setattr(slots, "_pools", {})
    with knobs.scope(CHORD_CAPTURE_SLOTS="8"):
        yield torch


def test_counters_are_zeroed_once_and_waited_for(torch):
    for _ in range(3):
        slots.prepare(0)
    assert torch.zeroed == [(8 * STRIDE, 0)] and torch.waits == 1


def test_counters_are_no_allocation_of_the_calling_thread(torch):
    """Which may go to a pool that a CUDA graph tree or an engine's sleep mode empties."""
    slots.prepare(0)
    assert len(torch.zeroed_by) == 1 and get_ident() not in torch.zeroed_by


def test_threads_that_prepare_together_allocate_once(torch):
    meeting = Barrier(2, timeout=20)
    torch.cuda.is_current_stream_capturing = lambda: meeting.wait() < 0
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(slots.prepare, [0, 0]))
    assert torch.zeroed == [(8 * STRIDE, 0)]


def test_the_pool_is_as_large_as_the_knob_says(torch):
    with knobs.scope(CHORD_CAPTURE_SLOTS=None):
        slots.prepare(0)
    assert torch.zeroed == [(32768 * STRIDE, 0)]


def test_a_stream_keeps_its_slot_and_no_other_gets_it(torch):
    slots.prepare(0)
    taken = [slots.address(0, stream) for stream in (0, 7, 0x55AA, 7, 0, 0x55AA)]
    assert taken == [BASE[0] + STRIDE * index for index in (0, 1, 2, 1, 0, 2)]


def test_v45_a_captured_site_gets_a_new_slot_each_time(torch):
    slots.prepare(0)
    eager = slots.address(0, 7)
    torch.capturing = True
    captured = [slots.address(0, 7) for _ in range(4)]
    torch.capturing = False
    assert len({eager, *captured}) == 5 and slots.address(0, 7) == eager
    torch.capturing = True
    assert slots.address(0, 7) not in {eager, *captured}


def test_v45_a_stream_first_seen_in_a_capture_gets_another_slot_when_eager(torch):
    slots.prepare(0)
    torch.capturing = True
    captured = slots.address(0, 7)
    torch.capturing = False
    assert slots.address(0, 7) != captured


def test_devices_have_pools_of_their_own(torch):
    slots.prepare(0)
    slots.prepare(1)
    assert (slots.address(0, 7), slots.address(1, 7)) == (BASE[0], BASE[1])
    assert torch.zeroed == [(8 * STRIDE, 0), (8 * STRIDE, 1)]


def test_a_used_up_pool_says_so_and_still_serves_known_streams(torch):
    slots.prepare(0)
    eager = slots.address(0, 1)
    torch.capturing = True
    taken = {slots.address(0, 1) for _ in range(7)}
    assert {eager, *taken} == {BASE[0] + STRIDE * index for index in range(8)}
    for capturing, stream in ((True, 1), (False, 2)):
        torch.capturing = capturing
        with pytest.raises(CaptureError, match="CHORD_CAPTURE_SLOTS=8") as caught:
            slots.address(0, stream)
        assert "CHORD_CAPTURE_SLOTS" in caught.value.remedy
    assert slots.address(0, 1) == eager


def test_the_first_call_on_a_device_must_not_be_captured(torch):
    torch.capturing = True
    with pytest.raises(CaptureError, match="device=0") as caught:
        slots.prepare(0)
    assert "warm_up" in caught.value.remedy and torch.zeroed == []
    torch.capturing = False
    slots.prepare(0)
    torch.capturing = True
    slots.prepare(0)
    assert torch.zeroed == [(8 * STRIDE, 0)]


def test_v54_a_slot_holds_its_ticket_and_the_joints_of_the_widest_launch(torch):
    """Two bits for each warpgroup of a launch, in words of 16 joints, as ``chord::Joint`` finds them."""
    slots.prepare(0)
    first, second = slots.address(0, 1), slots.address(0, 2)
    last_word = (wgmma.MAX_JOINTS - 1) // 16
    assert slots.JOINTS_AT >= 4 and slots.JOINTS_AT % 4 == 0
    assert first + slots.JOINTS_AT + 4 * last_word + 4 <= second
    assert second - first == STRIDE and (STRIDE % 64, first % 4) == (0, 0)
    (knob,) = (knob for knob in knobs.KNOBS if knob.name == "CHORD_CAPTURE_SLOTS")
    assert f"{STRIDE} B" in knob.doc


def test_threads_never_share_a_slot(torch):
    with knobs.scope(CHORD_CAPTURE_SLOTS="4000"), ThreadPoolExecutor(8) as threads:
        list(threads.map(slots.prepare, [0] * 8))
        eager = list(threads.map(lambda stream: slots.address(0, stream), range(1000)))
        torch.capturing = True
        captured = list(threads.map(lambda stream: slots.address(0, stream), range(1000)))
    assert len({*eager, *captured}) == 2000 and len(torch.zeroed) == 1
