"""What holds for every kernel that is shipped: no spills, no local memory, no complaint of the assembler, the instructions meant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from chord_jit.jit import engine
from chord_jit.jit.entry import Entry
from chord_jit.jit.spec import KernelSpec
from tests.unit.kernels import sass

#: What each kernel is made of: its product, its copies, the barriers that join both.
MEANT = {
    "w4a16_mma": (r"HMMA\.16816\.F32\.BF16", "UBLKCP", "SYNCS"),
    "w4a16_wgmma": (r"HGMMA\.64x\d+x16\.F32\.BF16", r"UTMALDG\.2D", "UBLKCP", "SYNCS", r"STSM\.16\.MT88", "USETMAXREG"),
}
#: The same where rows are gathered: by copies of 16 bytes, as the tensor copies of Hopper cannot.
_GATHERING = (r"HGMMA\.64x\d+x16\.F32\.BF16", "LDGSTS", "UBLKCP", "SYNCS", r"STSM\.16\.MT88", "USETMAXREG")
GATHERED = {"w4a16_mma": MEANT["w4a16_mma"], "w4a16_wgmma": _GATHERING, "w4a16_resident": _GATHERING}


def machine_code(entry: Entry, folder: Path) -> tuple[Counter[str], dict[str, int]]:
    """How often each instruction stands in the cubin of ``entry``, and the local memory of its kernels."""
    path = folder / "kernel.cubin"
    path.write_bytes(entry.cubin)
    return sass.instructions(path), sass.local_bytes(path)


def check(spec: KernelSpec, folder: Path, expected: Iterable[str]) -> Counter[str]:
    """The instructions of ``spec``, which must hold those ``expected``."""
    entry = engine.build(spec)
    facts = entry.facts
    assert (facts["spill_bytes"], facts["stack_bytes"], facts["warnings"]) == (0, 0, []), f"{spec}: {facts}"
    code, local = machine_code(entry, folder)
    assert local == {spec.symbol: 0}, spec
    assert not [name for name in code if name.startswith(("STL", "LDL"))], spec
    for wanted in expected:
        assert any(re.match(wanted, name) for name in code), f"{spec} has no {wanted}"
    return code
