"""How many CTAs of a kernel one SM holds at a time, from numbers that are known without a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from chord_jit.device import DeviceFacts

#: Of an SM of every target that chord_jit has (compute capability 9.0, 10.0, 10.3).
_WARPS, _CTAS, _PARTITIONS, _PARTITION_REGISTERS = 64, 32, 4, 16384
_REGISTER_STEP, _SHARED_STEP, _SHARED_RESERVED = 256, 128, 1024


@dataclass(frozen=True)
class Occupancy:
    """``ctas`` of an SM, ``warps`` of them, ``part`` of the warps that an SM can hold; ``limits``: CTAs by each resource alone."""

    ctas: int
    warps: int
    part: float
    limits: dict[str, int]

    @property
    def limited_by(self) -> str:
        """The resources that allow no more."""
        return ", ".join(name for name, ctas in self.limits.items() if ctas == self.ctas)


def occupancy(facts: DeviceFacts, registers: int, threads: int, shared_bytes: int) -> Occupancy:
    """Of a kernel that is launched with ``threads`` a CTA, ``registers`` a thread, ``shared_bytes`` a CTA (static and dynamic).

    Registers are those at the launch: warps that exchange registers later (setmaxnreg) share what was given then.
    """
    warps = -(-threads // 32)
    a_warp = max(_round(registers * 32, _REGISTER_STEP), 1)
    # Warps are spread over the partitions, and each has registers of its own.
    by_registers = _PARTITION_REGISTERS // a_warp * _PARTITIONS // warps
    limits = {
        "registers": by_registers,
        "shared memory": facts.shared_per_sm // (_round(shared_bytes, _SHARED_STEP) + _SHARED_RESERVED),
        "threads": _WARPS // warps,
        "CTAs": _CTAS,
    }
    ctas = min(limits.values())
    return Occupancy(ctas, ctas * warps, ctas * warps / _WARPS, limits)


def _round(value: int, step: int) -> int:
    return -(-value // step) * step
