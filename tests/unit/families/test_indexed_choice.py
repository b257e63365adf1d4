"""What an indexed problem is served by: always legal, always the same, and few kernels for a deployment."""

import math
from dataclasses import fields, replace
from functools import cache

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chord_jit import api, device, knobs
from chord_jit.errors import OverrideError, UnsupportedDeviceError
from chord_jit.families.indexed import FAMILY, IndexedFamily
from chord_jit.families.indexed_problem import shared_block_m, size_for
from chord_jit.jit import engine
from chord_jit.jit.key import key_of
from chord_jit.schedules.cost import estimate
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule
from tests.unit.families.fake_gpu import H200, bf16, machine, on_gpu, routing_of, weight_of
from tests.unit.schedules.problems import KIMI, SM_COUNTS, problem, problems

__all__ = ["machine"]

#: Most kernels that the indexed calls of one deployment may make a server compile.
MOST_KERNELS = 16
#: Tokens of a step: decode, and prefill up to what warm-up knows.
STEPS = [*range(1, 513), *(round(2 ** (eighth / 8)) for eighth in range(73, 129))]


@given(problems())
def test_every_problem_has_candidates_and_they_are_legal(asked):
    every = FAMILY.candidates(asked)
    assert every and len(set(every)) == len(every) <= 400
    assert [text for one in every for text in violations(asked, one)] == []


@given(problems())
def test_v34_the_choice_is_legal_and_always_the_same(asked):
    chosen = FAMILY.schedule(asked)
    assert violations(asked, chosen) == []
    assert IndexedFamily().schedule(replace(asked)) == chosen


@given(problems(), st.data())
@settings(max_examples=40)
def test_v35_one_cubin_serves_every_expert_row_and_sm_count(asked, data):
    """Fields that a launch can tell the kernel are no part of it, so they are no part of the key."""
    one = data.draw(st.sampled_from(FAMILY.candidates(asked)))
    elsewhere = [
        replace(asked, experts=experts, expected_rows=rows, block_m=block_m, facts=replace(asked.facts, name=name, sms=sms))
        for experts, rows, block_m, name, sms in ((1, 0.0, 0, "one", 78), (1025, 900.0, 128, "another", 132), (48, 3.0, 16, "third", 160))
    ]
    specs = {FAMILY.spec(other, one) for other in (asked, *elsewhere)}
    assert len({key_of(spec).digest for spec in specs}) == len(specs) == 1


CHANGES = {
    "n": dict(n=520), "k": dict(k=640), "interleaved": dict(interleaved=True), "swiglu": dict(interleaved=True, swiglu=True),
    "weighted": dict(weighted=True), "dequant": dict(dequant="scaled"), "arch": dict(facts=device.target("sm_100a")),
}  # fmt: skip


def test_v15_what_the_code_depends_on_is_part_of_the_key():
    base, one = problem(n=512, k=1024), Schedule("w4a16_mma", 8, 128, 256, 3)
    specs = [FAMILY.spec(replace(base, **change), one) for change in ({}, *CHANGES.values())]
    changes = (dict(bm=16), dict(bn=256), dict(bk=512), dict(stages=2), dict(split=2), dict(ctas=2))
    specs += [FAMILY.spec(base, replace(one, **change)) for change in changes]
    assert len({key_of(spec).digest for spec in specs}) == len(specs) == 14
    # A multicast is not this kernel's, and a launch tells it the rest.
    assert {field.name for field in fields(Schedule)} == {"kernel", "cm", "cn"}.union(*changes)
    assert {field.name for field in fields(base)} == {"facts", "experts", "expected_rows", "block_m"} | set(CHANGES) - {"arch"}


@pytest.mark.parametrize("sms", SM_COUNTS)
def test_h20_and_h100_and_b200_choose_for_themselves_among_the_same_kernels(sms):
    asked = problem(sms=sms, experts=48, n=4096, k=7168, rows=0.4)
    assert FAMILY.candidates(asked) == FAMILY.candidates(problem(experts=48, n=4096, k=7168, rows=9.0))


# -- rounded rows -------------------------------------------------------------------------------------------------------
many = st.floats(0, 2**31 - 1) | st.floats(0, 600)


@given(many)
def test_a_size_lies_within_a_quarter_octave_of_its_rows(rows):
    size = size_for(rows)
    assert size_for(size) == size
    if rows <= 8:
        assert size == rows
    elif rows <= 512:
        assert abs(math.log2(size / rows)) <= 0.25 + 1e-12 and 8 <= size <= 512
    else:
        assert size == 512


@given(many, many)
def test_more_rows_have_no_smaller_size(one, other):
    less, more = sorted((one, other))
    assert size_for(less) <= size_for(more)


def test_few_sizes_stand_for_all_counts_above_eight():
    assert len({size_for(rows / 7) for rows in range(57, 100_000)}) == 13


@pytest.mark.parametrize("block_m", [0, 128])
def test_sizes_of_prefill_share_schedules_and_sizes_of_decode_share_none(block_m):
    """Each count of decode takes what is cheapest for it; from 64 rows on, or with a block given from 11 on, neighbours share."""

    def cheapest(one):
        every = FAMILY.candidates(one)
        limit = 1.03 * min(estimate(one, other) for other in every)
        return [other for other in every if estimate(one, other) <= limit]

    before = None
    for rows in (1.5, 3, 8, *(2 ** (half / 2) for half in range(7, 19))):
        one = problem(sms=131, experts=32, n=4096, k=7168, rows=rows, block_m=block_m)
        chosen, good = FAMILY.schedule(one), cheapest(one)
        assert chosen in good
        if rows <= 8 or rows < 64 and not block_m:
            assert chosen == good[0]
        elif rows > 64:
            assert chosen == before or before not in good
        before = chosen


# -- deployments --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", KIMI)
def test_v36_a_deployment_needs_few_kernels(name):
    model = KIMI[name]
    asked = list(FAMILY.deployment(model, H200))
    pairs = [(one, FAMILY.schedule(one)) for one in asked]
    kernels = {FAMILY.spec(*pair) for pair in pairs}
    print(f"{name}: {len(kernels)} kernels for {len(asked)} problems")
    assert [text for pair in pairs for text in violations(*pair)] == []
    assert 8 <= len(kernels) <= MOST_KERNELS and {schedule.kernel for _, schedule in pairs} >= {"w4a16_mma", "w4a16_wgmma"}
    # Each count of tokens up to 8 rows an expert, then 13 sizes at most.
    exact = 8 * model.experts // model.top_k
    assert len(asked) == len(set(asked)) and 3 * exact < len(asked) <= 3 * (exact + 13)
    assert max(one.expected_rows for one in asked) == 512
    projections = {(one.n, one.k): (one.experts, one.interleaved, one.swiglu) for one in asked}
    assert projections == {model.gate_up: (model.local_experts, True, True), model.down: (model.local_experts, False, False)}


@pytest.mark.parametrize("ranks", [dict(tp=2), dict(ep=2)], ids=str)
def test_v38_no_step_asks_for_what_warm_up_did_not_make(machine, monkeypatch, ranks):
    """Each step as a server makes it: block size, routing, gate/up, then down with and without routing weights."""
    monkeypatch.setattr(FAMILY, "schedule", cache(FAMILY.schedule))
    model, asked = Deployment(128, 64, 8, 2, **ranks), set()
    warmed = set(FAMILY.deployment(model, H200))
    family, experts = IndexedFamily(), model.local_experts
    monkeypatch.setattr(family, "schedule", lambda one: asked.add(one) or FAMILY.candidates(one)[0])
    gate_up, down = weight_of(experts, *model.gate_up, interleaved=True), weight_of(experts, *model.down)
    options = dict(expected_rows=None, checked=False)
    for tokens in STEPS:
        block_m = api.block_m_for(gate_up, tokens * model.top_k / model.experts, swiglu=True)
        routing = routing_of(tokens, model.top_k, block_m, experts, ranks=model.ep)
        hidden, rows = bf16(tokens, model.hidden), tokens * model.top_k
        inner = bf16(rows, down.k)
        family.run(hidden, gate_up, routing, swiglu=True, topk_weights=None, out=inner, **options)
        for weights in (None, on_gpu(torch.rand(rows))):
            family.run(inner, down, routing.for_down(), swiglu=False, topk_weights=weights, out=bf16(rows, down.n), **options)
    assert len(machine.driver.launches) == 3 * len(STEPS)
    assert asked == warmed


@pytest.mark.parametrize("hidden, inner, rows", [(1024, 384, 32), (2048, 384, 16), (7168, 2048, 8)])
def test_the_block_size_for_both_projections_is_the_one_that_warm_up_makes(machine, hidden, inner, rows):
    """Down's own tile with routing weights can be another than without: the first two are such sizes."""
    model = Deployment(hidden, inner, 8, 2)
    gate_up, down = weight_of(8, *model.gate_up, interleaved=True), weight_of(8, *model.down)
    made = {one.block_m for one in FAMILY.deployment(model, H200) if one.swiglu and one.expected_rows == rows}
    assert made == {api.block_m_for(gate_up, rows, swiglu=True, down=down)}


# -- architectures and dequantisation -----------------------------------------------------------------------------------
@pytest.mark.parametrize("arch, dequant", [("sm_90a", "Subnormal"), ("sm_100a", "Magic"), ("sm_103a", "Magic")])
def test_dequantisation_follows_the_architecture(arch, dequant):
    asked = problem(arch=arch)
    assert dict(FAMILY.spec(asked, FAMILY.schedule(asked)).config)["kDequant"] == f"chord::Dequant::k{dequant}"


@pytest.mark.parametrize("arch", sorted(device.TARGETS))
@pytest.mark.parametrize("dequant", ["subnormal", "magic", "scaled"])
def test_dequantisation_follows_the_knob(arch, dequant):
    with knobs.scope(CHORD_W4A16_DEQUANT=dequant):
        asked = problem(arch=arch)
    assert asked.dequant == dequant
    assert dict(FAMILY.spec(asked, FAMILY.schedule(asked)).config)["kDequant"] == f"chord::Dequant::k{dequant.capitalize()}"


def test_an_unknown_dequantisation_is_refused():
    with pytest.raises(OverrideError, match="must be one of subnormal, magic, scaled"), knobs.scope(CHORD_W4A16_DEQUANT="exact"):
        pytest.fail("the value was taken")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120a", ""])
def test_v29_an_unknown_architecture_is_refused_before_a_compile(arch):
    with pytest.raises(UnsupportedDeviceError, match="must be a known target"):
        device.target(arch)
    asked = replace(problem(), facts=replace(H200, arch=arch))
    with pytest.raises(UnsupportedDeviceError, match="sm_90a, sm_100a, sm_103a"):
        engine.build(FAMILY.spec(asked, FAMILY.schedule(asked)))


@given(problems())
def test_off_hopper_four_warps_do(asked):
    """Eight warps spill there."""
    assume(asked.facts.arch != "sm_90a")
    assert {dict(FAMILY.spec(asked, one).config)["kThreads"] for one in FAMILY.candidates(asked)} == {(4 + 4) * 32}


@pytest.mark.parametrize("rows", [0.5, 8, 21.3, 42.7, 85.3, 341.3])
def test_one_block_serves_both_projections(rows):
    """Measured gate/up keeps its own block; down gets a schedule for it, whatever its own would have been."""
    gate_up = FAMILY.problem(H200, 384, 512, 7168, rows, interleaved=True, swiglu=True)
    down = FAMILY.problem(H200, 384, 7168, 256, rows, weighted=True)
    block_m = shared_block_m(gate_up, down)
    assert block_m == FAMILY.schedule(gate_up).bm
    for asked in (gate_up, down):
        assert block_m % FAMILY.schedule(replace(asked, block_m=block_m)).bm == 0


def test_an_unmeasured_pair_takes_the_block_that_costs_less():
    gate_up = FAMILY.problem(H200, 16, 1536, 2048, 43, interleaved=True, swiglu=True)
    down = FAMILY.problem(H200, 16, 2048, 768, 43, weighted=True)
    own, other = FAMILY.schedule(gate_up).bm, FAMILY.schedule(down).bm
    costs = {}
    for block_m in (own, other):
        asked = [replace(problem, block_m=block_m) for problem in (gate_up, down)]
        costs[block_m] = sum(estimate(problem, FAMILY.schedule(problem)) for problem in asked)
    assert own != other and costs[other] * 1.1 < costs[own]
    assert shared_block_m(gate_up, down) == other
