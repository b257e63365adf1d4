"""Scratch memory: one buffer for each stream that only grows, and nothing kept of a capture."""

import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from chord_jit.jit import scratch

CALLER = "the caller's stream"


class FakeTorch:
    """As much of torch as scratch asks for. ``made``: size and device of every buffer, in order; ``alive``: those not freed;
    ``by``: whether the calling thread made it, and the stream that was current there.
    """

    uint8 = "uint8"

    def __init__(self):
        self.capturing, self.made, self.alive, self.by = False, [], set(), []
        self._caller, self._here = threading.get_ident(), threading.local()
        self.cuda = SimpleNamespace(current_stream=lambda device: self._stream(), stream=self._on)
        self._C = SimpleNamespace(_cuda_isCurrentStreamCapturing=lambda: self.capturing)

    def device(self, kind, index):
        return (kind, index)

    def _stream(self):
        return getattr(self._here, "stream", CALLER if threading.get_ident() == self._caller else "another thread's")

    @contextmanager
    def _on(self, stream):
        self._here.stream = stream
        yield
        del self._here.stream

    def empty(self, size, *, dtype, device):
        assert dtype == self.uint8 and device[0] == "cuda"
        self.made.append((size, device[1]))
        self.by.append((threading.get_ident() == self._caller, self._stream()))
        return Buffer(self, 0x1000 * len(self.made), size)


class Buffer:
    def __init__(self, torch, address, size):
        self.torch, self.address, self.size = torch, address, size
        torch.alive.add(address)

    def data_ptr(self):
        return self.address

    def numel(self):
        return self.size

    def __del__(self):
        self.torch.alive.discard(self.address)


@pytest.fixture
def torch(monkeypatch):
    torch = FakeTorch()
    monkeypatch.setattr(scratch, "torch", torch)
    monkeypatch.setattr(scratch, "_buffers", {})
    monkeypatch.setattr(scratch, "_replaced", [])
    return torch


def test_a_stream_keeps_its_buffer(torch):
    assert [scratch.address(0, 7, size) for size in (100, 100, 40, 100)] == [0x1000] * 4
    assert torch.made == [(100, 0)]


def test_what_lasts_is_allocated_by_another_thread_on_the_callers_stream(torch):
    """The calling thread's allocations may go to a pool that a CUDA graph tree or an engine's sleep mode empties."""
    scratch.address(0, 7, 100)
    torch.capturing = True
    scratch.address(0, 7, 100)
    assert torch.by == [(False, CALLER), (True, CALLER)]


def test_streams_and_devices_share_nothing(torch):
    taken = [scratch.address(device, stream, 64) for device, stream in ((0, 0), (0, 7), (1, 0), (1, 7))]
    assert len(set(taken)) == 4 and torch.made == [(64, 0), (64, 0), (64, 1), (64, 1)]
    assert [scratch.address(device, stream, 64) for device, stream in ((0, 0), (0, 7), (1, 0), (1, 7))] == taken


def test_threads_that_share_a_stream_never_free_what_one_of_them_was_told(torch, monkeypatch):
    """The first thread to ask for little is overtaken by one that asks for more, while its own buffer is being made."""
    make, told = scratch._allocate_lasting, []

    def overtaken(device, size):
        if size == 10 and not told:
            other = threading.Thread(target=lambda: told.append(scratch.address(0, 7, 20)))
            other.start()
            other.join(timeout=0.2)
            told.append(other)
        return make(device, size)

    monkeypatch.setattr(scratch, "_allocate_lasting", overtaken)
    mine = scratch.address(0, 7, 10)
    next(one for one in told if isinstance(one, threading.Thread)).join()
    theirs = next(one for one in told if isinstance(one, int))
    assert {mine, theirs} <= torch.alive and scratch.address(0, 7, 20) == theirs


def test_v54_a_larger_request_replaces_the_buffer_and_frees_nothing_that_a_launch_may_still_be_told_of(torch):
    small = scratch.address(0, 7, 100)
    large = scratch.address(0, 7, 101)
    assert large != small and torch.alive == {small, large}
    assert scratch.address(0, 7, 100) == scratch.address(0, 7, 101) == large


def test_v45_each_captured_launch_gets_memory_of_the_graphs_pool_and_keeps_none(torch):
    eager = scratch.address(0, 7, 100)
    torch.capturing = True
    captured = [scratch.address(0, 7, 50) for _ in range(3)]
    assert eager not in captured and torch.made[1:] == [(50, 0)] * 3 and torch.alive == {eager}
    torch.capturing = False
    assert scratch.address(0, 7, 100) == eager


def test_v45_a_stream_first_seen_in_a_capture_gets_its_own_when_eager(torch):
    torch.capturing = True
    captured = scratch.address(0, 7, 100)
    torch.capturing = False
    assert scratch.address(0, 7, 100) != captured and len(torch.alive) == 1
