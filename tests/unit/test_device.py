"""Facts of the GPUs of a machine: each one's own, and a target only for the capability that it was made for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from chord_jit import device
from chord_jit.errors import UnsupportedDeviceError

SERVED = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}
#: Neighbours of those: older, of the same major version, newer, of the next one.
OTHERS = ((8, 0), (8, 9), (9, 1), (10, 1), (10, 7), (11, 0), (12, 0), (12, 1))


@pytest.fixture
def gpus(monkeypatch):
    """Capabilities of the machine's GPUs by index, of which the first is current."""
    gpus = []

    def properties(index):
        major, minor = gpus[index]
        return SimpleNamespace(
            name=f"GPU {index}", major=major, minor=minor, multi_processor_count=100 + index, shared_memory_per_block_optin=232448,
            shared_memory_per_multiprocessor=233472, L2_cache_size=60 << 20,
        )

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", properties)
    device.facts.cache_clear()
    yield gpus
    device.facts.cache_clear()


def test_v31_every_gpu_has_its_own_target(gpus):
    gpus += SERVED
    found = [device.facts(index) for index in (2, 0, 1)]
    assert [(facts.arch, facts.name, facts.sms) for facts in found] == [
        ("sm_103a", "GPU 2", 102), ("sm_90a", "GPU 0", 100), ("sm_100a", "GPU 1", 101),
    ]


@pytest.mark.parametrize("capability", OTHERS, ids=str)
def test_v29_v30_a_neighbouring_capability_is_served_by_no_target(gpus, capability):
    gpus += [capability, (9, 0)]
    with pytest.raises(UnsupportedDeviceError, match="match a target exactly") as caught:
        device.facts(0)
    assert caught.value.values == {"capability": f"{capability[0]}.{capability[1]}", "known": "9.0, 10.0, 10.3"}
    assert device.current() is None and device.facts(1).arch == "sm_90a"


def test_every_target_has_its_capability():
    assert device.ARCH_OF_CAPABILITY == SERVED and sorted(device.TARGETS) == sorted(SERVED.values())
