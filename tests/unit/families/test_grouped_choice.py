"""What a grouped call asks for: sizes that warm-up can list, few kernels for a deployment, kernels off Hopper."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chord_jit import device
from chord_jit.families.grouped import FAMILY
from chord_jit.families.grouped_sizes import size_for, sizes
from chord_jit.schedules.cost import estimate
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.legality import violations
from tests.unit.families.fake_gpu import H200, bf16, machine, weight_of
from tests.unit.families.fake_grouped import LAYOUTS, Written, ask, family, good, zeros
from tests.unit.schedules.problems import KIMI

__all__ = ["family", "machine"]

every_layout = pytest.mark.parametrize("layout", LAYOUTS)
#: Most kernels that the three layouts of one deployment may make a server compile.
MOST_KERNELS = 25


# -- sizes --------------------------------------------------------------------------------------------------------------
@given(st.sampled_from(LAYOUTS), st.floats(0, 2**31 - 1))
def test_a_size_stands_for_half_as_many_rows_at_least(layout, rows):
    size, known = size_for(layout, rows), sizes(layout)
    assert size in known and size_for(layout, size) == size
    assert size >= min(rows, known[-1]) and (size < 2 * rows or size == known[0])


@pytest.mark.parametrize("experts, n, k", [(48, 4096, 7168), (48, 7168, 2048), (16, 3072, 4096), (128, 2048, 96)], ids=str)
@every_layout
def test_neighbouring_sizes_share_a_schedule_where_that_costs_nothing(layout, experts, n, k):
    """Nothing: 3 % by the cost model, where no table knows the GPU. No size has a schedule of its own by accident."""

    def good(one) -> set:
        costs = {schedule: estimate(one, schedule) for schedule in FAMILY.candidates(one)}
        return {schedule for schedule, cost in costs.items() if cost <= 1.03 * min(costs.values())}

    asked = [FAMILY.problem(replace(H200, sms=131), experts, n, k, size, layout=layout) for size in sizes(layout)]
    chosen, fits = [FAMILY.schedule(one) for one in asked], [good(one) for one in asked]
    assert all(one in some for one, some in zip(chosen, fits, strict=True))
    assert all(left == right or left not in some for left, right, some in zip(chosen, chosen[1:], fits[1:], strict=False))


@every_layout
def test_sizes_are_the_powers_of_two(layout):
    known = sizes(layout)
    assert known == [1 << exponent for exponent in range(known[0].bit_length() - 1, known[-1].bit_length())]
    assert (known[0], known[-1]) == {"masked": (1, 256), "offsets": (1, 512), "blocks": (64, 512)}[layout]


def test_a_prefill_of_any_length_shares_its_problems(family):
    for rows in range(128, 128 * 200, 128):
        ask(family, "blocks", {**good("blocks"), "x": bf16(rows, 192), "m_indices": zeros(rows), "out": bf16(rows, 256)})
    assert len(family.launches) == 199 and len(set(family.asked)) <= len(sizes("blocks"))


# -- deployments --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", KIMI)
def test_v36_a_deployment_needs_few_kernels(name):
    model = KIMI[name]
    asked = list(FAMILY.deployment(model, H200))
    pairs = [(one, FAMILY.schedule(one)) for one in asked]
    kernels = {FAMILY.spec(*pair) for pair in pairs}
    print(f"{name}: {len(kernels)} kernels for {len(asked)} problems")
    assert [text for pair in pairs for text in violations(*pair)] == []
    assert len(asked) == len(set(asked)) and 6 <= len(kernels) <= MOST_KERNELS
    projections = {(one.n, one.k, one.layout): (one.experts, one.interleaved, one.swiglu) for one in asked}
    both = ((model.gate_up, (model.local_experts, True, True)), (model.down, (model.local_experts, False, False)))
    assert projections == {(*shape, layout): wanted for layout in LAYOUTS for shape, wanted in both}


@every_layout
def test_v38_no_call_asks_for_what_warm_up_did_not_make(machine, layout):
    model = Deployment(256, 128, 6, 2)
    warmed = set(FAMILY.deployment(model, H200))
    family = Written(machine)
    gate_up, down = weight_of(6, *model.gate_up, interleaved=True), weight_of(6, *model.down)
    for rows in [*range(0, 3000, 7), 5000, 10**6]:
        hint = {"expected_m": max(rows, 1)} if layout == "masked" else {"expected_rows": rows}
        for weight, swiglu in ((gate_up, True), (down, False)):
            out = bf16(768, weight.n // 2 if swiglu else weight.n)
            ask(family, layout, {**good(layout), "x": bf16(768, weight.k), "weight": weight, "swiglu": swiglu, "out": out, **hint})
    assert set(family.asked) <= warmed and len(set(family.asked)) >= 2 * (len(sizes(layout)) - 2)


@pytest.mark.parametrize("arch", sorted(set(device.TARGETS) - {"sm_90a"}))
def test_off_hopper_every_layout_is_served_by_the_m16n8k16_kernel(arch):
    asked = list(FAMILY.deployment(Deployment(256, 128, 6, 2), device.target(arch)))
    assert len(asked) == len(set(asked)) == 2 * sum(len(sizes(layout)) for layout in LAYOUTS)
    for one in asked:
        chosen = FAMILY.schedule(one)
        assert chosen.kernel == "w4a16_mma" and violations(one, chosen) == []
