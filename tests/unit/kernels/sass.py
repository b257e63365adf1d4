"""Reads the machine code of a cubin with the tools of the CUDA wheels."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9]*(?:\.[A-Za-z0-9_]+)*)", re.MULTILINE)
_USAGE = re.compile(r"Function (\w+):\s*\n?\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")


def tool(name: str) -> Path:
    """``nvdisasm`` or ``cuobjdump`` of the installed wheel (extra ``test``)."""
    places = [Path(folder) / "cu13" / "bin" / name for folder in find_spec("nvidia").submodule_search_locations]
    found = [place for place in places if place.is_file()]
    assert found, f"{name} is not installed: pip install nvidia-cuda-{name} (searched {places})"
    return found[0]


def _output(name: str, *arguments: object) -> str:
    result = subprocess.run([tool(name), *map(str, arguments)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def instructions(cubin: Path) -> Counter[str]:
    """How often each instruction, with its modifiers, stands in ``cubin``."""
    return Counter(_INSTRUCTION.findall(_output("nvdisasm", "-c", cubin)))


def local_bytes(cubin: Path) -> dict[str, int]:
    """Stack and local memory per thread of each kernel in ``cubin``, added."""
    return {match[1]: int(match[3]) + int(match[5]) for match in _USAGE.finditer(_output("cuobjdump", "-res-usage", cubin))}
