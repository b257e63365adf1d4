"""A driver whose types are the real ones and whose launches are written down instead of made."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from cuda.bindings import driver


@dataclass(frozen=True)
class Seen:
    """What one launch would have read. ``cluster``: 0 where the launch names none; ``early``: it may start before its turn."""

    function: int
    stream: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    cluster: int
    early: bool
    arguments: bytes


class FakeDriver:
    """``size``: bytes of a kernel's one parameter, unless ``sizes`` names another by function. ``inside``: runs within
    every launch, as other threads could.

    ``status``: what launches and queries answer. ``clusters``: what the occupancy query answers.
    """

    def __init__(self, size: int, inside: Callable[[], None] = lambda: None):
        self.size, self.inside = size, inside
        self.sizes: dict[int, int] = {}
        self.status, self.clusters = driver.CUresult.CUDA_SUCCESS, 16
        self.launches: list[Seen] = []
        self.torn: list[tuple[Seen, Seen]] = []
        self.queries: list[tuple[int, Seen]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(driver, name)

    def cuLaunchKernelEx(self, config, function, pointers: int, extra: int) -> tuple:
        before = self._read(config, function, pointers)
        self.inside()
        after = self._read(config, function, pointers)
        self.launches.append(before)
        if before != after:
            self.torn.append((before, after))
        return (self.status,)

    def cuOccupancyMaxActiveClusters(self, function, config) -> tuple:
        self.queries.append((int(function), self._read(config, function, 0)))
        return self.status, self.clusters

    def _read(self, config, function, pointers: int) -> Seen:
        size = self.sizes.get(int(function), self.size)
        arguments = ctypes.string_at(ctypes.c_void_p.from_address(pointers).value, size) if pointers else b""
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        return Seen(int(function), int(config.hStream), grid, block, config.sharedMemBytes, *_attributes(config), arguments)


def _attributes(config) -> tuple[int, bool]:
    """Cluster size and whether the launch may start early; any other attribute is an error."""
    known, values = driver.CUlaunchAttributeID, {attribute.id: attribute.value for attribute in config.attrs[: config.numAttrs]}
    cluster = values.pop(known.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, None)
    early = values.pop(known.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, None)
    if values:
        raise AssertionError(f"a launch carries {list(values)}")
    shape = cluster and cluster.clusterDim
    if shape and (shape.y, shape.z) != (1, 1):
        raise AssertionError(f"a cluster of {shape.x}x{shape.y}x{shape.z}")
    return shape.x if shape else 0, bool(early and early.programmaticStreamSerializationAllowed)
