"""Kernels of the indexed family and readers, for every target: no spills, no local memory, the instructions that were meant."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from chord_jit import device
from chord_jit.bench.reader import FORMS
from chord_jit.families.indexed import FAMILY
from chord_jit.jit import engine
from chord_jit.jit.spec import KernelSpec
from chord_jit.jit.warmup import warm_up
from tests.unit.kernels.checks import GATHERED, check, machine_code

#: name, experts, N, K, problem flags: Kimi K2's projections by rank, and shapes that no tile divides.
CASES = (
    ("EP8 gate/up", 48, 4096, 7168, {"interleaved": True, "swiglu": True}),
    ("EP8 gate/up, plain", 48, 4096, 7168, {}),
    ("EP8 down", 48, 7168, 2048, {"weighted": True}),
    ("TP8 gate/up", 384, 512, 7168, {"interleaved": True, "swiglu": True}),
    ("TP8 down", 384, 7168, 256, {"weighted": True}),
    ("ragged", 5, 200, 1344, {"interleaved": True}),
    ("tiny", 1, 8, 64, {"weighted": True}),
)
#: Rows per expert: one token, the decode range, a full block and more, prefill.
ROWS = (0.2, 3.3, 8.0, 30.0, 60.0, 120.0, 500.0)
TARGETS = ("sm_90a", "sm_100a", "sm_103a")
DEQUANTS = ("subnormal", "magic", "scaled")


def specs_of(arch: str, case: tuple) -> list[KernelSpec]:
    """The kernels that the resolver chooses for ``case`` over ``ROWS``."""
    _, experts, n, k, flags = case
    facts = device.target(arch)
    problems = [FAMILY.problem(facts, experts, n, k, rows, **flags) for rows in ROWS]
    return list(dict.fromkeys(FAMILY.spec(problem, FAMILY.schedule(problem)) for problem in problems))


def with_dequant(spec: KernelSpec, dequant: str) -> KernelSpec:
    enumerator = f"chord::Dequant::k{dequant.capitalize()}"
    return KernelSpec(spec.stem, tuple((name, enumerator if name == "kDequant" else value) for name, value in spec.config), spec.arch)


def every_spec() -> Iterable[KernelSpec]:
    for arch in TARGETS:
        for case in CASES:
            yield from specs_of(arch, case)
        for dequant in DEQUANTS:
            yield with_dequant(specs_of(arch, CASES[0])[0], dequant)
    for form in FORMS:
        yield form.spec("sm_90a")


@pytest.fixture(scope="module", autouse=True)
def compiled(private_roots):
    """All of them at once, on every core; a kernel that fails to compile fails its own test below."""
    warm_up(every_spec())


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@pytest.mark.parametrize("arch", TARGETS)
def test_chosen_kernels(arch, case, tmp_path):
    specs = specs_of(arch, case)
    assert specs
    for spec in specs:
        check(spec, tmp_path, GATHERED[spec.stem])


@pytest.mark.parametrize("dequant", DEQUANTS)
@pytest.mark.parametrize("arch", TARGETS)
def test_every_dequantisation(arch, dequant, tmp_path):
    spec = with_dequant(specs_of(arch, CASES[0])[0], dequant)
    assert f"k{dequant.capitalize()}" in str(spec)
    check(spec, tmp_path, GATHERED["w4a16_mma"])


@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
def test_readers(form, tmp_path):
    check(form.spec("sm_90a"), tmp_path, ("UBLKCP",) if form.bulk else (r"LDG\.E\b.*\b128\b",))


def test_the_disassembly_is_read(tmp_path):
    entry = engine.build(specs_of("sm_90a", CASES[0])[0])
    code, local = machine_code(entry, tmp_path)
    assert sum(code.values()) > 500 and code["EXIT"] > 0
    assert list(local) == [entry.symbol]
