"""Host time: long calls get short batches, so that draining the queue stays cheap."""

from __future__ import annotations

import pytest

from chord_jit.bench import host


def test_the_first_calls_after_a_drain_are_not_counted(monkeypatch):
    clock, calls = [0], [0]

    def call():
        calls[0] += 1
        clock[0] += 50_000 if calls[0] <= host._LEAD_CALLS else 9_000

    monkeypatch.setattr(host.torch.cuda, "synchronize", lambda: calls.__setitem__(0, 0))
    monkeypatch.setattr(host.time, "perf_counter_ns", lambda: clock[0])
    assert host.host_time(call, 2000.0).median == 9.0


@pytest.mark.parametrize(("gpu_us", "batch"), [(10.0, 100), (200.0, 100), (400.0, 50), (2000.0, 20)])
def test_a_batch_drains_in_little_time(gpu_us, batch, monkeypatch):
    called, drained = [], []
    monkeypatch.setattr(host.torch.cuda, "synchronize", lambda: drained.append(len(called)))
    spread = host.host_time(lambda: called.append(None), gpu_us, batches=3)
    assert drained == [turn * (host._LEAD_CALLS + batch) for turn in range(4)]
    assert spread.samples == 3 and 0 < spread.median < 100
