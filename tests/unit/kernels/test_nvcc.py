"""Every template for every target with nvcc as well: NVRTC compiles them in the tests beside this one."""

from __future__ import annotations

import shutil

import pytest

from chord_jit import assets, device, knobs
from chord_jit.bench.reader import FORMS
from chord_jit.families.grouped import FAMILY as GROUPED
from chord_jit.families.indexed import FAMILY as INDEXED
from chord_jit.jit import elf, engine, toolchain
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.warmup import warm_up
from chord_jit.rows.kernels import ALL
from chord_jit.schedules.schedule import Schedule

SHAPE = (8, 512, 1024)


def specs() -> list[KernelSpec]:
    """A kernel of each template for each target that it serves."""
    made = [FORMS[0].spec(arch) for arch in device.TARGETS]
    made += [kinds[0].spec(arch) for kinds in ALL.values() for arch in device.TARGETS]
    for facts in device.TARGETS.values():
        problem = INDEXED.problem(facts, *SHAPE, 4.0, interleaved=True, swiglu=True)
        made.append(INDEXED.spec(problem, INDEXED.schedule(problem)))
    hopper, many = device.target("sm_90a"), Schedule("w4a16_wgmma", 64, 128, 64, 4)
    made.append(GROUPED.spec(GROUPED.problem(hopper, *SHAPE, 256.0, layout="offsets", interleaved=True, swiglu=True), many))
    made.append(INDEXED.spec(INDEXED.problem(hopper, *SHAPE, 256.0, interleaved=True, swiglu=True), many))
    return [*made, INDEXED.spec(INDEXED.problem(hopper, 8, 512, 256, 256.0), Schedule("w4a16_resident", 64, 128, 256, 4))]


@pytest.fixture(scope="module")
def by_nvcc(private_roots):
    with knobs.scope(CHORD_COMPILER="nvcc"):
        if toolchain.discover().missing or not shutil.which("g++"):
            pytest.skip("no nvcc with a host compiler here")
        warm_up(specs())
        yield


@pytest.mark.parametrize("spec", specs(), ids=lambda spec: f"{spec.stem}-{spec.arch}")
def test_v25_v33_nvcc_accepts_what_nvrtc_accepts(by_nvcc, spec):
    """The assembler may add functions of its own, ``$__internal_0_$__cuda_sm20_div_u64``: the kernel is found by its name."""
    entry = engine.build(spec)
    assert entry.symbol == spec.symbol and elf.kernels(entry.cubin).count(spec.symbol) == 1


def test_v25_every_template_is_compiled():
    assert {spec.stem for spec in specs()} == {path.name.removesuffix(".cu.j2") for path in assets.folder("templates").glob("*.cu.j2")}
