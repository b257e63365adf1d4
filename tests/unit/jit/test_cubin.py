"""Reading a cubin's symbols and an assembler's report."""

from __future__ import annotations

import pytest

from chord_jit.jit import elf, report
from tests.toy.fake import LOG, cubin

WHOLE = cubin("chord_a", "chord_b", payload=b"x" * 100)

#: name, bytes, what the complaint says
BROKEN = (
    ("empty", b"", "ELF header"),
    ("text", b"#include", "ELF header"),
    ("ptx", b".version 9.0\n.target sm_90a", "ELF header"),
    ("magic only", WHOLE[:4], "end inside"),
    ("cut in the header", WHOLE[:60], "end inside"),
    ("cut in the sections", WHOLE[:-1], "end inside"),
    ("host machine", WHOLE[:18] + b"\x3e\x00" + WHOLE[20:], "no 64-bit CUDA image"),
    ("32 bits", WHOLE[:4] + b"\x01" + WHOLE[5:], "no 64-bit CUDA image"),
    ("big endian", WHOLE[:5] + b"\x02" + WHOLE[6:], "no 64-bit CUDA image"),
    ("sections elsewhere", WHOLE[:40] + b"\xff" * 7 + WHOLE[47:], "end inside"),
)


def test_v33_global_functions_only():
    assert elf.kernels(WHOLE) == ["chord_a", "chord_b"]
    assert elf.kernels(cubin()) == []


@pytest.mark.parametrize("name, image, complaint", BROKEN, ids=[case[0] for case in BROKEN])
def test_what_is_no_cubin(name, image, complaint):
    with pytest.raises(ValueError, match=complaint):
        elf.kernels(image)


def test_every_cut_is_noticed():
    for size in range(len(WHOLE)):
        with pytest.raises(ValueError):
            elf.kernels(WHOLE[:size])


def test_facts_of_the_kernel_among_others():
    assert report.facts(LOG.format(symbol="chord_a"), "chord_a") == {
        "registers": 40, "barriers": 2, "shared_bytes": 1024, "stack_bytes": 16, "spill_bytes": 32, "warnings": [],
    }
    assert report.facts(LOG.format(symbol="chord_a"), "other")["registers"] == 255


def test_absent_numbers_are_zero_but_an_absent_report_is_not():
    log = "ptxas info    : Function properties for chord_a\nptxas info    : Used 8 registers\n"
    facts = report.facts(log, "chord_a")
    assert (facts["registers"], facts["shared_bytes"], facts["spill_bytes"]) == (8, 0, 0)
    assert report.facts(log, "chord_b") == {"warnings": []}
    assert report.facts(log, "chord_") == {"warnings": []}


def test_warnings_of_the_assembler():
    log = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to x\n"
        "x.cu(3): warning #177-D: variable was declared but never referenced\n"
        "ptxas warning : Registers are spilled to local memory in function 'chord_a'\n"
    )
    warnings = report.facts(log, "chord_a")["warnings"]
    assert len(warnings) == 2 and "C7510" in warnings[0] and warnings[1].startswith("Registers are spilled")
