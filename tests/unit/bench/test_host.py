"""Host time: long calls get short batches, so that draining the queue stays cheap."""

from __future__ import annotations

import pytest

from chord_jit.bench import host


@pytest.mark.parametrize(("gpu_us", "batch"), [(10.0, 100), (200.0, 100), (400.0, 50), (2000.0, 20)])
def test_a_batch_drains_in_little_time(gpu_us, batch, monkeypatch):
    called, drained = [], []
    monkeypatch.setattr(host.torch.cuda, "synchronize", lambda: drained.append(len(called)))
    spread = host.host_time(lambda: called.append(None), gpu_us, batches=3)
    assert drained == [20, 20 + batch, 20 + 2 * batch, 20 + 3 * batch]
    assert spread.samples == 3 and 0 < spread.median < 100
