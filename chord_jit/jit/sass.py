"""The machine code of a cubin, through nvdisasm: how often each instruction stands in it, and its main loop."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from chord_jit import knobs
from chord_jit.errors import ToolchainError
from chord_jit.jit import places

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(@!?U?P\w+\s+)?([A-Z][A-Z0-9]*)\b")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_TENSOR = re.compile(r"\b(?:HGMMA|QGMMA|IGMMA|HMMA|QMMA|IMMA|OMMA|UTC\w*MMA)\b")


@dataclass(frozen=True)
class Loop:
    """A backward branch and all lines from its target on. ``tensor``: its tensor-core instructions."""

    first: int
    last: int
    tensor: int


@dataclass(frozen=True)
class Listing:
    """``lines``: as nvdisasm prints them. ``counts``: instruction without modifiers to how often. ``loop``: see ``main_loop``."""

    lines: tuple[str, ...]
    counts: Counter[str]
    loop: Loop | None

    @property
    def excerpt(self) -> tuple[str, ...]:
        """The lines of the main loop."""
        return self.lines[self.loop.first : self.loop.last + 1] if self.loop else ()


def disassemble(cubin: bytes) -> Listing:
    """The listing of a cubin. Raises ``ToolchainError`` where nvdisasm is missing or fails."""
    with tempfile.TemporaryDirectory(prefix="chord-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        tool = find()
        try:
            done = subprocess.run([tool, "-c", path], capture_output=True, text=True, timeout=120)
            problem = done.stderr.strip() if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
    if problem:
        raise ToolchainError(
            "disassemble a kernel", "nvdisasm must read it", {"nvdisasm": tool, "problem": problem}, "install one as new as the compiler"
        )
    return listing(done.stdout)


def find() -> Path:
    """nvdisasm. Raises ``ToolchainError`` that names each place that was searched."""
    searched = places.nvdisasm_candidates(places.toolkits(knobs.read("CUDA_HOME")))
    found = next((path for path in searched if path.is_file()), None)
    if found is None:
        raise ToolchainError(
            "disassemble a kernel", "nvdisasm must be installed", {"searched": ", ".join(map(str, searched))},
            'pip install "nvidia-cuda-nvdisasm>=13.0"',
        )
    return found


def listing(text: str) -> Listing:
    """The parts of what nvdisasm printed."""
    lines = tuple(text.splitlines())
    found = [_INSTRUCTION.match(line) for line in lines]
    return Listing(lines, Counter(match[2] for match in found if match), main_loop(lines))


def main_loop(lines: tuple[str, ...]) -> Loop | None:
    """Of the innermost loops with tensor-core instructions the one with most of them, then the longest; without any, the longest."""
    labels = {match[1]: at for at, line in enumerate(lines) if (match := _LABEL.match(line))}
    conditional, always = [], []
    for at, line in enumerate(lines):
        match = _INSTRUCTION.match(line)
        target = _TARGET.search(line) if match and match[2] == "BRA" else None
        first = labels.get(target[1], at) if target else at
        if first < at:
            loop = Loop(first, at, sum(bool(_TENSOR.search(inner)) for inner in lines[first : at + 1]))
            (conditional if match[1] else always).append(loop)
    # The slow half of a wait lies behind the kernel and jumps back without a condition: that spans loops, and is none.
    for loops in (conditional, always):
        busy = [one for one in loops if one.tensor]
        inner = [one for one in busy if not any(_inside(other, one) for other in busy)]
        if inner:
            return max(inner, key=lambda one: (one.tensor, one.last - one.first))
    return max(conditional, key=lambda one: one.last - one.first, default=None)


def _inside(one: Loop, other: Loop) -> bool:
    return other != one and other.first <= one.first and one.last <= other.last
