"""What cases launch, and the hash that sees it and nothing else."""

from __future__ import annotations

import shutil

import pytest

from chord_jit import assets, device, knobs
from chord_jit.bench import kernels, ours
from chord_jit.bench.cases import CASES
from chord_jit.errors import OverrideError
from chord_jit.schedules.schedule import parse

FACTS = device.target("sm_90a")
DECODE, GROUPED = CASES["decode"], CASES["grouped"]


def test_a_run_compiles_readers_and_both_forms_of_gated_layers():
    specs = kernels.specs(DECODE, FACTS)
    assert {spec.arch for spec in specs} == {"sm_90a"}
    fields = [dict(spec.config) for spec in specs if spec.stem == "w4a16_mma"]
    assert {(field["kN"], field["kSwiglu"]) for field in fields} == {(4096, False), (4096, True), (7168, False)}
    assert len({spec for spec in specs if spec.stem == "read_floor"}) == 7


def test_a_run_compiles_what_companions_launch():
    (paired,) = [case for case in GROUPED if case.name == "ep8_gate_up_offsets_128"]
    alone = type(paired)(paired.layer, paired.layout, paired.mean)
    assert len(kernels.specs([paired], FACTS)) == len(kernels.specs([alone], FACTS)) + 1


@pytest.fixture
def patched(tmp_path):
    """Changes a file of the include or template folder, within the test."""

    def patch(name: str):
        folder, _, rest = name.partition("/")
        copy = tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(assets.folder(folder) / rest, copy)
        copy.write_text(copy.read_text() + "\n// changed\n")
        return assets.scope(tmp_path)

    return patch


@pytest.mark.parametrize(
    ("name", "decode", "grouped"),
    [
        ("include/chord/kernels/w4a16_mma.cuh", True, False),
        ("templates/w4a16_mma.cu.j2", True, False),
        ("include/chord/kernels/w4a16_wgmma.cuh", False, True),
        ("templates/w4a16_wgmma.cu.j2", False, True),
        ("include/chord/kernels/read_floor.cuh", True, True),
        ("include/chord/ptx.cuh", True, True),
    ],
)
def test_the_hash_sees_the_kernels_that_are_launched_and_no_others(name, decode, grouped, patched):
    mma_free = [case for case in GROUPED if ours.chosen(case, FACTS, swiglu=False)[1].kernel == "w4a16_wgmma"][-3:]
    before = kernels.fingerprint(DECODE, FACTS), kernels.fingerprint(mma_free, FACTS)
    with patched(name):
        after = kernels.fingerprint(DECODE, FACTS), kernels.fingerprint(mma_free, FACTS)
    assert [one != other for one, other in zip(before, after, strict=True)] == [decode, grouped]
    assert before == (kernels.fingerprint(DECODE, FACTS), kernels.fingerprint(mma_free, FACTS))


@pytest.mark.parametrize("name", ["include/chord/kernels/route_rows.cuh", "templates/combine_rows.cu.j2"])
def test_the_hash_of_a_whole_layer_sees_the_kernels_around_its_products(name, patched):
    layers = CASES["layer"][:1]
    before = kernels.fingerprint(layers, FACTS), kernels.fingerprint(DECODE[:1], FACTS)
    with patched(name):
        assert kernels.fingerprint(layers, FACTS) != before[0] and kernels.fingerprint(DECODE[:1], FACTS) == before[1]


def test_the_hash_sees_another_schedule():
    before = kernels.fingerprint(DECODE, FACTS)
    with knobs.scope(**ours.overrides(parse("w4a16_mma 8x128x512 s3"))):
        assert kernels.fingerprint(DECODE, FACTS) != before


def test_a_refused_call_has_no_kernel_and_stops_nobody(monkeypatch):
    chosen = ours.chosen

    def refuse_one(case, facts, *, swiglu):
        if case.name == "ep8_down_50":
            raise OverrideError("choose", "no such tile")
        return chosen(case, facts, swiglu=swiglu)

    before, launched = kernels.fingerprint(DECODE, FACTS), len(kernels.specs(DECODE, FACTS))
    monkeypatch.setattr(kernels.ours, "chosen", refuse_one)
    assert len(kernels.specs(DECODE, FACTS)) == launched - 1
    assert kernels.fingerprint(DECODE, FACTS) != before


def test_parts_do_not_run_together():
    assert len({kernels.digest(parts) for parts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"", b"abc"])}) == 4
