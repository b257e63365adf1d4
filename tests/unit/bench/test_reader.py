"""The read-only kernels: they compile for every target, fit an SM, and agree with their host side on the arguments."""

from __future__ import annotations

import pytest

from chord_jit import device
from chord_jit.bench import reader
from chord_jit.bench.cases import CASES, Layer
from chord_jit.bench.reader import FORMS, ReaderForm
from chord_jit.jit import engine

BULK = next(form for form in FORMS if form.panels)
LOADS = next(form for form in FORMS if not form.bulk)


def name(form: ReaderForm) -> str:
    return form.name


@pytest.mark.parametrize("arch", list(device.TARGETS))
@pytest.mark.parametrize("form", (BULK, LOADS), ids=name)
def test_compiles_without_spills(form, arch):
    facts = engine.build(form.spec(arch)).facts
    assert (facts["spill_bytes"], facts["stack_bytes"], facts["warnings"]) == (0, 0, [])
    assert facts["registers"] <= 65536 // (form.threads * min(form.ctas, 2048 // form.threads))


@pytest.mark.parametrize("form", FORMS, ids=name)
def test_fits_as_many_ctas_as_it_asks_for(form):
    facts = device.target("sm_90a")
    assert form.shared_bytes <= facts.shared_bytes
    if form.bulk:
        assert form.ctas * (form.shared_bytes + 1024) <= facts.shared_per_sm
        assert form.chunk % 128 == 0


def test_the_fixed_set_holds_what_the_bar_names():
    ring = {(form.order, form.panels) for form in FORMS if form.bulk and form.ctas == 1 and form.stages == 6 and form.chunk >= 32 << 10}
    assert {("contiguous", False), ("strided", False), ("dynamic", True)} <= ring
    assert LOADS in FORMS
    assert len({form.name for form in FORMS}) == len(FORMS)


@pytest.mark.parametrize("form", FORMS, ids=name)
@pytest.mark.parametrize("case", [cases[-1] for cases in CASES.values() if isinstance(cases[-1].layer, Layer)], ids=lambda case: case.name)
def test_runs_tile_an_expert(form, case):
    panel = case.layer.expert_bytes // -(-case.layer.n // 128)
    run = form.run_bytes(panel)
    assert run % 16 == 0 and case.layer.expert_bytes % 16 == 0
    assert (run == panel) == form.panels
    assert -(-case.layer.expert_bytes // run) * case.active < 2**31


def test_arguments_have_the_size_that_the_kernel_asserts():
    assert reader._PARAMS.size == 48 + 2 * reader._MAX_ACTIVE
    assert max(case.active for cases in CASES.values() for case in cases) <= reader._MAX_ACTIVE
