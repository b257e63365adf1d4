"""The W4A16 layout by numbers, and the object that holds a packed weight. ``docs/formats.md`` draws it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from chord_jit.errors import InputError, InputTypeError

#: Consecutive k that share one scale.
GROUP = 32
#: A unit is one A fragment of four k-steps: 16 rows x 64 k, 16 bytes for each of 32 lanes.
UNIT_ROWS, UNIT_K = 16, 64
#: Rows of a block; a panel is the blocks of the same rows, consecutive along k.
PANEL = 128
#: Codes of a block, 8 units of 512 bytes, and the whole block with its 2 x 128 BF16 scales behind them.
CODE_BYTES, BLOCK_BYTES = 4096, 4608
#: Changes whenever the meaning of a byte changes.
LAYOUT_VERSION = 1
#: Calls that a weight may be reserved for.
MODES = ("contiguous", "masked")


@dataclass(frozen=True, eq=False, repr=False)
class PackedW4A16:
    """One packed weight of all local experts; compares and hashes by identity.

    ``data``: uint8 [experts, panels, kblocks, 4608], contiguous, CPU or CUDA. ``n``, ``k``: the logical shape of one
    expert, before padding; gate and up together where ``interleaved``, which says that every 16-row unit holds 8 gate
    rows, then the 8 up rows of the same neurons. ``mode``: the one call that takes it, ``contiguous`` or ``masked``; None,
    the default, serves every call. Raises ``InputError`` when ``data`` does not fit the rest, or for another mode.
    """

    data: torch.Tensor
    n: int
    k: int
    experts: int
    interleaved: bool
    layout_version: int = LAYOUT_VERSION
    mode: str | None = None

    def __post_init__(self):
        if self.mode is not None:
            check_mode("describe a packed W4A16 weight", self.mode)
        if self.layout_version != LAYOUT_VERSION:
            return  # an object of another version is describable, but only ``require_layout`` has a say about it
        want = data_shape(self.experts, self.n, self.k, self.interleaved)
        if self.data.dtype != torch.uint8 or tuple(self.data.shape) != want or not self.data.is_contiguous():
            raise InputError(
                "describe a packed W4A16 weight", "data must be contiguous uint8 [experts, panels, kblocks, 4608]",
                {"dtype": self.data.dtype, "shape": tuple(self.data.shape), "contiguous": self.data.is_contiguous(), "wanted": want},
                "use what pack_w4a16 returns",
            )

    def __repr__(self) -> str:
        mode = "" if self.mode is None else f", mode={self.mode}"
        return f"PackedW4A16(n={self.n}, k={self.k}, experts={self.experts}, interleaved={self.interleaved}, device={self.device}{mode})"

    @property
    def panels(self) -> int:
        """128-row panels of one expert, the last one padded."""
        return panels_of(self.n, self.interleaved)

    @property
    def kblocks(self) -> int:
        """64-k blocks of one panel, the last one padded."""
        return -(-self.k // UNIT_K)

    @property
    def device(self) -> torch.device:
        """Where the bytes lie."""
        return self.data.device

    @cached_property
    def place(self) -> tuple[int, int]:
        """CUDA device index (-1 on the CPU) and address of the bytes, read once: a packed weight keeps its storage."""
        return self.data.get_device(), self.data.data_ptr()

    def __getstate__(self) -> dict[str, object]:
        """Without ``place``: the bytes of a deep copy, or of another process, lie elsewhere."""
        return {name: value for name, value in self.__dict__.items() if name != "place"}

    @property
    def nbytes(self) -> int:
        """Bytes held, padding included."""
        return self.data.numel()


def panels_of(n: int, interleaved: bool) -> int:
    """Panels of ``n`` logical rows: gate and up are each padded to 64 neurons when interleaved, else all rows to 128."""
    return -(-(n // 2) // (PANEL // 2)) if interleaved else -(-n // PANEL)


def data_shape(experts: int, n: int, k: int, interleaved: bool) -> tuple[int, int, int, int]:
    """Shape of the bytes of ``experts`` matrices of ``n`` x ``k``."""
    return experts, panels_of(n, interleaved), -(-k // UNIT_K), BLOCK_BYTES


def require_layout(packed: PackedW4A16) -> None:
    """Refuses what is not a packed weight (``InputTypeError``) and one of another layout version (``InputError``)."""
    if not isinstance(packed, PackedW4A16):
        given = {"type": type(packed).__name__}
        raise InputTypeError("use a packed W4A16 weight", "it must be a PackedW4A16", given, "pack the weight with pack_w4a16 first")
    if packed.layout_version != LAYOUT_VERSION:
        raise InputError(
            "use a packed W4A16 weight", "its layout version must be this library's",
            {"layout_version": packed.layout_version, "wanted": LAYOUT_VERSION}, "pack the weight again from its checkpoint",
        )


def check_mode(asked: str, mode: str) -> None:
    """Refuses what is no mode: ``InputError``."""
    if mode not in MODES:
        raise InputError(
            asked, "the mode must be one of " + " or ".join(MODES), {"mode": repr(mode)},
            "name the call that will take the weight, or pack it with pack_w4a16 to serve every call",
        )


def require_mode(packed: PackedW4A16, call: str) -> None:
    """Refuses a weight that is reserved for another call than ``call``: ``InputError``."""
    if packed.mode not in (None, call):
        raise InputError(
            f"use a packed W4A16 weight in {call}(...)", f"it was packed for {packed.mode}(...) alone", {"mode": packed.mode, "call": call},
            f"call {packed.mode}(...), or pack the weight with pack_w4a16, whose one copy serves every call",
        )
