"""What the assembler says about a kernel, as numbers."""

from __future__ import annotations

import re

_NUMBERS = {
    "registers": r"Used (\d+) registers",
    "barriers": r"used (\d+) barriers",
    "shared_bytes": r"(\d+) bytes smem",
    "stack_bytes": r"(\d+) bytes stack frame",
}
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")
_WARNING = re.compile(r"^ptxas warning\s*: (.*)$|^.*?(\(C75\d\d\).*|Potential Performance Loss.*)$", re.MULTILINE)


def facts(log: str, symbol: str) -> dict[str, object]:
    """Facts of the kernel ``symbol`` from the log of a compile with ``--ptxas-options=-v``.

    ``registers`` per thread; ``stack_bytes``, ``spill_bytes`` (stores and loads added) per thread; ``shared_bytes``:
    static shared memory of a CTA; ``barriers``; ``warnings``: the assembler's, one text each (a serialised WGMMA is
    one). Without a report on ``symbol`` only ``warnings`` is there: unknown is not zero.
    """
    warnings = [first or second for first, second in _WARNING.findall(log)]
    _, found, block = log.partition(f"Function properties for {symbol}\n")
    if not found:
        return {"warnings": warnings}
    block = block.partition("Function properties for ")[0].partition("Compiling entry function ")[0]
    numbers = {name: int(match.group(1)) if (match := re.search(pattern, block)) else 0 for name, pattern in _NUMBERS.items()}
    return {**numbers, "spill_bytes": sum(map(int, _SPILLS.findall(block))), "warnings": warnings}
