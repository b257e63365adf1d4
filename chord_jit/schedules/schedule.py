"""The choice: how a kernel tiles a problem. The request is a family's ``Problem``; both are frozen."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chord_jit.errors import InputError

#: Fields that a schedule prints by name, and only where they are not 1.
_NAMED = ("cm", "cn", "split", "ctas")
_TEXT = re.compile(rf"(?P<kernel>\w+) (?P<bm>\d+)x(?P<bn>\d+)x(?P<bk>\d+) s(?P<stages>\d+)(?P<rest>( ({'|'.join(_NAMED)})\d+)*)")


@dataclass(frozen=True, order=True)
class Schedule:
    """Tile and pipeline of one kernel.

    ``bm``: token rows of a tile. ``bn``: output features of a tile. ``bk``: K extent of one ring stage. ``stages``:
    depth of the ring. ``cm``, ``cn``: cluster along tokens and outputs (multicast). ``split``: CTAs that share K of one
    tile: of any tile, as a cluster (w4a16_mma); of the last waves' tiles (w4a16_wgmma). ``ctas``: resident CTAs per SM.
    """

    kernel: str
    bm: int
    bn: int
    bk: int
    stages: int
    cm: int = 1
    cn: int = 1
    split: int = 1
    ctas: int = 1

    def __str__(self) -> str:
        parts = [f"{self.kernel} {self.bm}x{self.bn}x{self.bk} s{self.stages}"]
        parts += [f"{name}{value}" for name in _NAMED if (value := getattr(self, name)) > 1]
        return " ".join(parts)


def parse(text: str) -> Schedule:
    """The schedule that prints as ``text``, e.g. ``w4a16_mma 16x128x256 s3 ctas2``. Raises ``InputError``."""
    found = _TEXT.fullmatch(" ".join(text.split()))
    if not found:
        raise InputError(
            "read a schedule", f"it must look like 'KERNEL BMxBNxBK sSTAGES' and then any of {', '.join(_NAMED)}", {"text": repr(text)},
            "write it as a schedule prints itself: 'w4a16_mma 16x128x256 s3 ctas2'",
        )
    tile = {name: int(found[name]) for name in ("bm", "bn", "bk", "stages")}
    rest = dict(re.fullmatch(r"([a-z]+)(\d+)", part).groups() for part in found["rest"].split())
    return Schedule(found["kernel"], **tile, **{name: int(value) for name, value in rest.items()})
