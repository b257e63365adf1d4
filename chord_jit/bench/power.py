"""What NVML says of a GPU: driver, clocks, power limit, and the energy of one launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from cuda.bindings import nvml

from chord_jit.bench.timing import back_to_back

_CLOCK_READINGS = 16


@dataclass(frozen=True)
class Sustained:
    """One call launched back to back: microseconds, millijoules and watts, and the SM clock under that load."""

    us: float
    mj: float
    watts: float
    sm_mhz: int


class Meter:
    """NVML's view of one CUDA device. Raises ``nvml.NvmlError`` where the driver refuses a query."""

    def __init__(self, device: torch.device):
        nvml.init_v2()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        self._handle = nvml.device_get_handle_by_uuid(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def facts(self) -> dict[str, object]:
        """Driver version, highest clocks in MHz and the enforced power limit in watts."""
        return {
            "driver": nvml.system_get_driver_version(),
            "max_sm_mhz": nvml.device_get_max_clock_info(self._handle, nvml.ClockType.CLOCK_SM),
            "memory_mhz": nvml.device_get_clock_info(self._handle, nvml.ClockType.CLOCK_MEM),
            "power_limit_w": nvml.device_get_enforced_power_limit(self._handle) / 1000,
        }

    def sustained(self, call: Callable[[], None], seconds: float = 0.7) -> Sustained:
        """Energy of ``call`` over ``seconds`` of launches in a row. The counter is good to about 10 % over 0.7 s."""
        call()
        estimate = back_to_back(call, 20)
        launches = max(_CLOCK_READINGS, math.ceil(seconds * 1e6 / estimate))
        every = launches // _CLOCK_READINGS
        clocks: list[int] = []
        counted = 0

        def counting() -> None:
            nonlocal counted
            call()
            counted += 1
            if counted % every == 0:
                clocks.append(nvml.device_get_clock_info(self._handle, nvml.ClockType.CLOCK_SM))

        before = nvml.device_get_total_energy_consumption(self._handle)
        us = back_to_back(counting, launches)
        spent = nvml.device_get_total_energy_consumption(self._handle) - before
        # The first readings may fall before the queue is deep and the clock has settled.
        settled = clocks[len(clocks) // 2 :]
        return Sustained(round(us, 3), round(spent / launches, 3), round(1e3 * spent / launches / us, 1), sum(settled) // len(settled))
