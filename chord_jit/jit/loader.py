"""From a verified cubin to a kernel that a device can launch. The only part of the JIT that needs a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from chord_jit.errors import LaunchError, UnsupportedDeviceError
from chord_jit.jit.entry import Entry


@dataclass(frozen=True)
class Kernel:
    """A kernel on a device. ``handle``: CUkernel as an int, for ``cuLaunchKernelEx`` in any context of ``device``.

    ``shared_bytes``: dynamic shared memory that a launch may ask for.
    """

    handle: int
    entry: Entry
    device: int
    shared_bytes: int


def capturing(device: int) -> bool:
    """Whether the current stream of ``device`` records a CUDA graph."""
    import torch

    if not torch.cuda.is_initialized():
        return False
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def load_library(entry: Entry) -> int:
    """Hand the cubin to the driver: CUkernel of its kernel, for every context of the process. Never unloaded."""
    _call(entry, "cuInit", 0)
    library = _call(entry, "cuLibraryLoadData", entry.cubin, None, None, 0, None, None, 0)
    return int(_call(entry, "cuLibraryGetKernel", library, entry.symbol.encode()))


def bind(handle: int, entry: Entry, device: int, shared_bytes: int) -> Kernel:
    """Make the kernel ready on ``device`` now: a lazy load at its first launch could fall into a graph capture."""
    from cuda.bindings import driver

    kernel = driver.CUkernel(handle)
    target = _call(entry, "cuDeviceGet", device)
    if shared_bytes:
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _call(entry, "cuKernelSetAttribute", attribute, shared_bytes, kernel, target)
    _call(entry, "cuCtxPushCurrent", _call(entry, "cuDevicePrimaryCtxRetain", target))
    try:
        _call(entry, "cuKernelGetFunction", kernel)
    finally:
        _call(entry, "cuCtxPopCurrent")
        _call(entry, "cuDevicePrimaryCtxRelease", target)
    return Kernel(handle, entry, device, shared_bytes)


def _call(entry: Entry, name: str, *arguments: object) -> object:
    """One driver call. Raises ``UnsupportedDeviceError`` where the driver lacks it, ``LaunchError`` where it refuses."""
    from cuda.bindings import driver

    try:
        status, *values = getattr(driver, name)(*arguments)
    except RuntimeError as error:
        # The bindings look a function up at its first call.
        raise UnsupportedDeviceError(
            f"load the kernel {entry.symbol}", "the NVIDIA driver must be there and offer every function of CUDA 13",
            {"function": name, "answer": error, "CUDA of the driver": _cuda_of_driver()},
            "install an NVIDIA driver of branch 580 or newer on a machine with a GPU",
        ) from None
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchError(
            f"load the kernel {entry.symbol}", "the driver must accept the cubin on this device",
            {"function": name, "status": status.name, "key": entry.digest[:16]},
            "an earlier asynchronous error surfaces here too: run once with CUDA_LAUNCH_BLOCKING=1",
        )
    return values[0] if values else None


def _cuda_of_driver() -> str:
    """The newest CUDA that the installed driver serves, ``12.4``; ``none`` without a driver."""
    from cuda.bindings import driver

    try:
        status, version = driver.cuDriverGetVersion()
    except RuntimeError:
        return "none"
    return f"{version // 1000}.{version % 1000 // 10}" if status == driver.CUresult.CUDA_SUCCESS else "none"
