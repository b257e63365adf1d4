"""Facts of a GPU that choices depend on: cached for devices, nominal for targets that are not at hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from chord_jit.errors import UnsupportedDeviceError

#: Compute capability to compile target. The match is exact: a neighbour's cubin is never served.
ARCH_OF_CAPABILITY = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a"}


@dataclass(frozen=True)
class DeviceFacts:
    """What the resolver may know of a GPU. ``shared_bytes``: most shared memory one CTA may opt in to.

    ``shared_per_sm``: shared memory of one SM, 1 KiB of which every resident CTA loses to the system.
    """

    name: str
    arch: str
    sms: int
    shared_bytes: int = 232448
    shared_per_sm: int = 233472
    l2_bytes: int = 60 << 20


#: Nominal facts by target, for schedules and cubins made where no such GPU is present.
TARGETS = {
    "sm_90a": DeviceFacts("NVIDIA H200", "sm_90a", 132),
    "sm_100a": DeviceFacts("NVIDIA B200", "sm_100a", 148, l2_bytes=126 << 20),
    "sm_103a": DeviceFacts("NVIDIA B300", "sm_103a", 148, l2_bytes=126 << 20),
}


def target(arch: str) -> DeviceFacts:
    """Nominal facts of a compile target. Raises ``UnsupportedDeviceError`` for an unknown one."""
    if arch not in TARGETS:
        raise UnsupportedDeviceError(
            f"choose a kernel for {arch}", "the architecture must be a known target", {"known": ", ".join(TARGETS)},
            "name one of the known targets",
        )
    return TARGETS[arch]


@lru_cache(maxsize=None)
def facts(index: int) -> DeviceFacts:
    """Facts of CUDA device ``index``, -1 being the CPU. Raises ``UnsupportedDeviceError`` where chord_jit has no kernels for it."""
    import torch

    if index < 0 or not torch.cuda.is_available():
        raise UnsupportedDeviceError(
            "run a kernel", "a CUDA device must be present and hold the tensors", {"device": index},
            "use chord_jit.reference on the CPU, or warm up problems of device.target(arch) to compile for another machine",
        )
    properties = torch.cuda.get_device_properties(index)
    capability = (properties.major, properties.minor)
    if capability not in ARCH_OF_CAPABILITY:
        known = ", ".join(f"{major}.{minor}" for major, minor in ARCH_OF_CAPABILITY)
        raise UnsupportedDeviceError(
            f"run a kernel on {properties.name}", "the compute capability must match a target exactly",
            {"capability": f"{capability[0]}.{capability[1]}", "known": known}, "run on a listed GPU",
        )
    return DeviceFacts(
        name=properties.name,
        arch=ARCH_OF_CAPABILITY[capability],
        sms=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,
        shared_per_sm=properties.shared_memory_per_multiprocessor,
        l2_bytes=properties.L2_cache_size,
    )


def current() -> DeviceFacts | None:
    """Facts of the current CUDA device; None without a GPU, and with one that chord_jit has no kernels for."""
    import torch

    try:
        return facts(torch.cuda.current_device()) if present() else None
    except UnsupportedDeviceError:
        return None


def present() -> bool:
    """Whether a CUDA device can be used in this process."""
    import torch

    return torch.cuda.is_available()
