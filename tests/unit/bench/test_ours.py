"""Schedules as text, forced schedules, and the list of kernels that a run compiles."""

from __future__ import annotations

import pytest

from chord_jit import device, knobs
from chord_jit.bench import ours, run
from chord_jit.bench.cases import CASES
from chord_jit.errors import InputError
from chord_jit.families.indexed import FAMILY
from chord_jit.schedules.schedule import Schedule

FACTS = device.target("sm_90a")
GATE_UP_20 = next(case for case in CASES["decode"] if case.name == "ep8_gate_up_20")
WIDE = Schedule("w4a16_mma", 8, 128, 512, 3)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("w4a16_mma 16x128x512 s3", Schedule("w4a16_mma", 16, 128, 512, 3)),
        ("  w4a16_mma  8x256x256 s2 cn1 ctas1 ", Schedule("w4a16_mma", 8, 256, 256, 2)),
        ("w4a16_mma 8x128x256 s4 cm2 cn3 ctas2", Schedule("w4a16_mma", 8, 128, 256, 4, cm=2, cn=3, ctas=2)),
    ],
)
def test_a_schedule_is_read_as_it_prints(text, schedule):
    assert ours.parse(text) == schedule
    assert ours.parse(str(schedule)) == schedule


@pytest.mark.parametrize("text", ["", "w4a16_mma", "w4a16_mma 16x128 s3", "w4a16_mma 16x128x512", "w4a16_mma 8x8x8 s3 warp4", "8x8x8 s3"])
def test_other_text_is_refused(text):
    with pytest.raises(InputError, match="must look like"):
        ours.parse(text)


def test_overrides_force_the_schedule_through_the_public_resolver():
    for schedule in (WIDE, Schedule("w4a16_mma", 16, 128, 256, 3, ctas=2)):
        with knobs.scope(**ours.overrides(schedule)):
            assert ours.chosen(GATE_UP_20, FACTS, swiglu=False)[1] == schedule


def test_a_fixed_schedule_is_taken_or_refused():
    assert ours.chosen(GATE_UP_20, FACTS, swiglu=True, family=ours.Fixed(WIDE)) == (
        FAMILY.problem(FACTS, 48, 4096, 7168, 160 / 48, block_m=8, interleaved=True, swiglu=True), WIDE,
    )
    with pytest.raises(InputError, match="BM must be 8 or 16"):
        ours.chosen(GATE_UP_20, FACTS, swiglu=False, family=ours.Fixed(Schedule("w4a16_mma", 24, 128, 512, 3)))


def test_a_run_compiles_readers_and_both_forms_of_gated_layers():
    specs = run.specs(CASES["decode"], FACTS)
    assert {spec.arch for spec in specs} == {"sm_90a"}
    fields = [dict(spec.config) for spec in specs if spec.stem == "w4a16_mma"]
    assert {(field["kN"], field["kSwiglu"]) for field in fields} == {(4096, False), (4096, True), (7168, False)}
    assert len({spec for spec in specs if spec.stem == "read_floor"}) == 7
