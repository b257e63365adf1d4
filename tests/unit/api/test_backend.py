"""CHORD_BACKEND=reference: CPU tensors are checked as a kernel's are and computed in FP64; tensors on a GPU take kernels in any case."""

from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit import knobs
from chord_jit.errors import InputError, InputTypeError, OverrideError
from chord_jit.families import host
from tests.unit.families.fake_gpu import bf16, machine, on_gpu, routing_of, shifted, weight_of
from tests.unit.families.fake_grouped import LAYOUTS, family, good
from tests.unit.ops.calls import EXPERTS, KINDS, POISON, K, N, assert_rounded, make, weights_for

__all__ = ["family", "machine"]


# -- values -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("swiglu", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_result_is_the_references_rounded_once(reference_backend, kind, swiglu, seed):
    call = make(kind, 20, seed, swiglu=swiglu)
    assert_rounded(call.eager(checked=True), call, others=0)
    out = call.poisoned_out()
    assert call.eager(out=out) is out
    assert_rounded(out, call, others=POISON)


def test_routing_weights_and_hints_are_taken(reference_backend, seed):
    call = make("indexed", 20, seed, topk_weights=weights_for(20, seed), expected_rows=3)
    assert_rounded(call.eager(), call, others=0)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_stays_in_its_row(reference_backend, kind, seed):
    call = make(kind, 20, seed)
    clean = call.eager()
    row = int(call.exact().isfinite().all(1).nonzero()[-1])
    call.x[row // (2 if kind == "indexed" else 1)] = float("nan")
    dirty = call.eager()
    touched = dirty.isnan().any(1)
    assert bool(touched[row]) and int(touched.sum()) <= 2 and torch.equal(dirty[~touched], clean[~touched])


def test_rows_of_masked_in_three_dimensions_are_flat_in_the_result(reference_backend, seed):
    call = make("masked", 5, seed)
    assert torch.equal(chord_jit.masked(call.x.view(EXPERTS, 5, K), call.weight, **call.given), call.eager())


def test_zero_tokens_are_an_empty_result_on_the_cpu_too(reference_backend, seed):
    assert make("indexed", 0, seed).eager().shape == (0, N)
    weight, empty = make("masked", 1, seed).weight, torch.zeros(0, K).bfloat16()
    assert chord_jit.masked(empty, weight, torch.zeros(EXPERTS, dtype=torch.int32), 1).shape == (0, N)
    assert chord_jit.contiguous(empty, weight, torch.zeros(0, dtype=torch.int32)).shape == (0, N)


def test_a_block_size_is_chosen_as_on_an_h200(reference_backend, machine, seed):
    weight, there = make("indexed", 1, seed).weight, weight_of(EXPERTS, N, K, True)
    for rows in (0.5, 9, 500):
        assert chord_jit.block_m_for(weight, rows, swiglu=True) == chord_jit.block_m_for(there, rows, swiglu=True)


# -- refusals -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("backend", [None, "kernels"])
@pytest.mark.parametrize("kind", KINDS)
def test_without_the_knob_the_cpu_is_refused_and_the_knob_named(kind, backend, seed):
    with knobs.scope(CHORD_BACKEND=backend), pytest.raises(InputError, match="one CUDA device") as caught:
        make(kind, 5, seed).eager()
    assert "CHORD_BACKEND=reference in tests" in caught.value.remedy


def test_another_backend_is_refused_by_name():
    with pytest.raises(OverrideError, match="must be one of kernels, reference") as caught, knobs.scope(CHORD_BACKEND="cpu"):
        pass
    assert "CHORD_BACKEND" in str(caught.value)


REFUSED = {
    "x float32": (InputTypeError, "BF16 matrix", lambda c: dict(x=c["x"].float())),
    "x too narrow": (InputError, "as wide as the weight's K", lambda c: dict(x=c["x"][:, :32].contiguous())),
    "x off alignment": (InputError, "16-byte aligned", lambda c: dict(x=torch.zeros(6 * K + 8).bfloat16()[1 : 1 + 6 * K].view(6, K))),
    "x of fewer rows": (InputError, "activation rows x top_k", lambda c: dict(x=c["x"][:3])),
    "no routing": (InputTypeError, "must be an IndexedRouting", lambda c: dict(routing=None)),
    "another layout": (InputError, "layout version", lambda c: dict(weight=replace(c["weight"], layout_version=7))),
    "another call's": (InputError, r"for masked\(...\) alone", lambda c: dict(weight=replace(c["weight"], mode="masked"))),
    "weights bf16": (InputError, "topk_weights must be", lambda c: dict(topk_weights=weights_for(6, 0).bfloat16())),
    "a negative hint": (InputError, "expected_rows must lie in", lambda c: dict(expected_rows=-1)),
    "out float32": (InputError, "out must be", lambda c: dict(out=torch.zeros(12, N))),
    "out on a GPU": (InputError, "out must be", lambda c: dict(out=bf16(12, N))),
    "x on a GPU": (InputError, "one CUDA device", lambda c: dict(x=on_gpu(c["x"]))),
    "weight on a GPU": (InputError, "one CUDA device", lambda c: dict(weight=weight_of(EXPERTS, N, K, True))),
}


@pytest.mark.parametrize("error, rule, change", REFUSED.values(), ids=REFUSED)
def test_the_rules_of_a_kernel_hold(reference_backend, error, rule, change, seed):
    call = make("indexed", 6, seed)
    good_call = dict(x=call.x, weight=call.weight, **call.given)
    with pytest.raises(error, match=rule):
        chord_jit.indexed(**{**good_call, **change(good_call)})


def test_swiglu_over_rows_that_are_not_interleaved_is_refused(reference_backend, seed):
    call = make("masked", 6, seed, swiglu=True)
    with pytest.raises(InputError, match="packed interleaved"):
        chord_jit.masked(call.x, replace(call.weight, interleaved=False), **call.given)


def test_values_that_break_the_contract_are_always_refused(reference_backend, seed):
    """Trusted calls of a kernel would read past the weight."""
    call = make("indexed", 6, seed)
    call.given["routing"].expert_ids.fill_(EXPERTS)
    with pytest.raises(InputError, match="expert in use must exist"):
        call.eager()
    with pytest.raises(InputError, match="expert_ids must lie in"):
        call.eager(checked=True)
    call = make("masked", 6, seed)
    call.given["masked_m"].fill_(7)
    with pytest.raises(InputError, match="masked_m"):
        call.eager()


# -- never by accident --------------------------------------------------------------------------------------------------
@pytest.fixture
def no_reference(monkeypatch):
    for name in ("indexed", "contiguous", "masked"):
        monkeypatch.setattr(host, name, lambda *given, **options: pytest.fail("the reference was asked"))


def test_an_indexed_call_on_a_gpu_launches_kernels_in_any_case(reference_backend, no_reference, machine):
    x, weight, routing = bf16(6, 192), weight_of(8, 256, 192), routing_of(6, 3, 16, 8)
    chord_jit.indexed(x, weight, routing, out=bf16(18, 256))
    assert len(machine.driver.launches) == 1
    with pytest.raises(InputError, match="16-byte aligned"):
        chord_jit.indexed(shifted(x), weight, routing)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_grouped_call_on_a_gpu_launches_kernels_in_any_case(reference_backend, no_reference, family, layout):
    (family.masked if layout == "masked" else family.contiguous)(**good(layout))
    assert len(family.launches) == 1
