"""Enqueue a loaded kernel: every argument in one by-value struct, prepacked per thread.

A warm launch writes the struct and calls the driver once. Nothing is shared between threads: the packed struct, the
pointer array and the launch configuration are thread-local, because the driver reads them while the GIL is released.
"""

from __future__ import annotations

import copy
import ctypes
import struct
import threading

from cuda.bindings import driver

from chord_jit.errors import LaunchError

_NO_CONTEXT = driver.CUresult.CUDA_ERROR_INVALID_CONTEXT


class _Frame:
    """One thread's launch configuration and argument buffer."""

    def __init__(self, grid: tuple[int, int, int], block: int, cluster: int, shared: int, size: int, early: bool):
        self.arguments = ctypes.create_string_buffer(size)
        self._pointers = (ctypes.c_void_p * 1)(ctypes.addressof(self.arguments))
        self.pointers = ctypes.addressof(self._pointers)
        self.stream = 0
        self.config = _configuration(grid, block, cluster, shared, early)


def _configuration(grid: tuple[int, int, int], block: int, cluster: int, shared: int, early: bool = False) -> driver.CUlaunchConfig:
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block, 1, 1
    config.sharedMemBytes = shared
    config.hStream = driver.CUstream(0)
    attributes = []
    if cluster > 1:
        attributes.append(_attribute("CLUSTER_DIMENSION"))
        dim = attributes[-1].value.clusterDim
        dim.x, dim.y, dim.z = cluster, 1, 1
    if early:
        attributes.append(_attribute("PROGRAMMATIC_STREAM_SERIALIZATION"))
        attributes[-1].value.programmaticStreamSerializationAllowed = 1
    if attributes:
        config.attrs, config.numAttrs = attributes, len(attributes)
    return config


def _attribute(name: str) -> driver.CUlaunchAttribute:
    attribute = driver.CUlaunchAttribute()
    attribute.id = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return attribute


def _adopt_context() -> None:
    """Make the primary context of torch's current device current in this thread.

    A thread that has made no CUDA call of its own has none, and a launch on the NULL stream takes the thread's.
    """
    import torch

    device = driver.cuDeviceGet(torch.cuda.current_device())[1]
    driver.cuCtxSetCurrent(driver.cuDevicePrimaryCtxRetain(device)[1])


def resident_clusters(handle: int, block: int, cluster: int, shared: int) -> int:
    """Clusters of ``cluster`` CTAs of a loaded kernel that the current device runs at once. Raises ``LaunchError``."""
    config = _configuration((cluster, 1, 1), block, cluster, shared)
    status, clusters = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(handle), config)
    if status == _NO_CONTEXT:
        _adopt_context()
        status, clusters = driver.cuOccupancyMaxActiveClusters(driver.CUfunction(handle), config)
    if status or not clusters:
        raise LaunchError(
            "size a grid of clusters", "at least one cluster must fit the device",
            {"status": status.name, "block": block, "cluster": cluster, "shared_bytes": shared}, "choose a smaller cluster",
        )
    return clusters


class Launch:
    """A kernel bound to its grid, block, cluster and shared memory; calling it enqueues the kernel. ``ctas``: of the grid.

    ``handle``: CUkernel as an int. ``params``: the layout of the kernel's one ``__grid_constant__`` struct, 8-byte fields first so
    that C and ``struct`` agree without padding. The device of the stream must be torch's current one.
    """

    def __init__(self, handle: int, grid: tuple[int, int, int], block: int, cluster: int, shared: int, params: struct.Struct):
        self.ctas = grid[0] * grid[1] * grid[2]
        self._function = driver.CUfunction(handle)
        self._shape = (grid, block, cluster, shared, params.size, False)
        self._pack = params.pack_into
        self._local = threading.local()

    def early(self) -> Launch:
        """The same, but the kernel may start while the launch before it on the stream still runs (``include/chord/grid.cuh``): only
        for a kernel that waits for that one by itself.
        """
        other = copy.copy(self)
        other._shape, other._local = (*self._shape[:-1], True), threading.local()
        return other

    def __call__(self, stream: int, *values: int) -> None:
        """Enqueue on ``stream`` (a CUstream as an int). Raises ``LaunchError`` when the driver refuses."""
        try:
            frame = self._local.frame
        except AttributeError:
            frame = self._local.frame = _Frame(*self._shape)
        self._pack(frame.arguments, 0, *values)
        if stream != frame.stream:
            frame.config.hStream = driver.CUstream(stream)
            frame.stream = stream
        status = driver.cuLaunchKernelEx(frame.config, self._function, frame.pointers, 0)[0]
        if status == _NO_CONTEXT:
            _adopt_context()
            status = driver.cuLaunchKernelEx(frame.config, self._function, frame.pointers, 0)[0]
        if status:
            self._refuse(status)

    def _refuse(self, status: driver.CUresult) -> None:
        grid, block, cluster, shared, *_ = self._shape
        raise LaunchError(
            "launch a kernel", "the driver must accept the launch",
            {"status": status.name, "grid": grid, "block": block, "cluster": cluster, "shared_bytes": shared},
            "an earlier asynchronous error surfaces here too: run once with CUDA_LAUNCH_BLOCKING=1",
        )
