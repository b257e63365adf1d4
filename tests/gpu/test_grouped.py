"""Grouped values of every case against both references, between fences, with poison wherever nothing is promised."""

from dataclasses import replace

import pytest
import torch

import chord_jit
from chord_jit.schedules.schedule import Schedule
from tests.gpu.compare import assert_close, assert_right
from tests.gpu.counts import rows_for
from tests.gpu.grouped_cases import CASES, CUT, MIXED, MMA, MORE, PAIRS, QUICK, TALL, GroupedCase, shaped
from tests.gpu.grouped_workload import LAYOUTS, build, forced, work_of
from tests.gpu.tensors import bits, generator_of

EVERY = dict(
    n={128, 384, 512, 768, 1536, 4096, 7168}, k={64, 192, 256, 1344, 2048, 7168}, experts={1, 8, 48, 384, 1025},
    layout=set(LAYOUTS), draw={"random", "equal", "ragged", "first", "last", "alternate", "one", "hot"},
)  # fmt: skip

#: 0 to 200 rows of an expert at once.
RISING = [shaped(layout, 201, 100) for layout in LAYOUTS]
RISING_BY = [(case, how) for case in RISING for how in (None, MMA)] + [(RISING[1], CUT), (RISING[2], TALL)]

#: Narrower than a tile and shorter than a stage, with cut tiles where the schedule cuts; 36 columns a side leave 8-byte stores.
PADDED = GroupedCase(150, 72, 96, "offsets", 20, "ragged")
PADDED_BY = [
    (PADDED, CUT), (replace(PADDED, layout="masked", **MIXED), CUT), (replace(PADDED, layout="blocks", **PAIRS), CUT),
    (PADDED, MMA), (replace(PADDED, layout="masked", **PAIRS), MMA), (replace(PADDED, layout="blocks", **MIXED), MMA),
]  # fmt: skip

#: One tile an expert, whose last waves are cut.
WAVES = [(GroupedCase(300, 128, k, "masked", 25), CUT) for k in (64, 192, 1344)]


def named(calls: list[tuple[GroupedCase, Schedule | None]]) -> list:
    return [pytest.param(call, id=f"{call[0]}-{call[1] or 'chosen'}") for call in calls]


@pytest.mark.parametrize("case", CASES)
def test_v47_v50_values(case, gpu, seed):
    work = build(case, gpu, seed)
    assert_right(work.fenced_call(), work)


@pytest.mark.parametrize("field", EVERY)
def test_v47_every_value_has_a_case(field):
    assert EVERY[field] <= {getattr(case, field) for case in QUICK + MORE}


@pytest.mark.quick
@pytest.mark.parametrize("call", named(RISING_BY))
def test_every_number_of_rows(call, gpu, seed):
    """Every fill of a tile, every number of tiles, experts without rows at the start."""
    case, schedule = call
    work = work_of(case, torch.arange(201, device=gpu), generator_of(gpu, seed))
    with forced(schedule):
        assert_right(work.fenced_call(checked=True), work)


@pytest.mark.quick
@pytest.mark.parametrize("call", named(PADDED_BY))
def test_v51_padding_on_both_axes(call, gpu, seed):
    case, schedule = call
    work = build(case, gpu, seed)
    with forced(schedule):
        assert_right(work.fenced_call(), work)


@pytest.mark.quick
@pytest.mark.parametrize("call", named(WAVES))
def test_every_length_of_the_last_waves(call, gpu, seed):
    """Fewer tiles than SMs, whole waves, and cut waves of every length around them."""
    case, schedule = call
    generator = generator_of(gpu, seed)
    counts = torch.randint(1, 51, (300,), generator=generator, device=gpu)
    work = work_of(case, counts, generator)
    exact, sms = work.expected(), work.problem.facts.sms
    with forced(schedule):
        for tiles in (1, 2, 3, 33, 66, sms - 1, sms, sms + 1, sms + 7, sms + 66, 2 * sms - 1, 2 * sms, 2 * sms + 1, 299, 300):
            some = work.recounted(torch.where(torch.arange(300, device=gpu) < tiles, counts, 0), generator)
            out, owned = some.fenced_call(), some.owned
            try:
                assert_close(out[owned], exact[owned], "wgmma")
            except AssertionError as error:
                pytest.fail(f"{tiles} tiles on {sms} SMs: {error}")


@pytest.mark.quick
def test_masked_takes_three_dimensions(gpu, seed):
    work = build(shaped("masked", 8), gpu, seed)
    flat, solid = work.fenced_call(), torch.zeros(len(work.x), 1024, dtype=torch.bfloat16, device=gpu)
    assert chord_jit.masked(work.x.view(8, -1, 768), work.weight, work.values, 64, out=solid) is solid
    assert torch.equal(bits(solid)[work.owned], bits(flat)[work.owned]) and not solid[~work.owned].any()


@pytest.mark.parametrize("layout", ["offsets", "blocks"])
def test_contiguous_without_a_hint_expects_the_mean(layout, gpu, seed):
    work = build(shaped(layout, 8, 64, "equal", room=0), gpu, seed)
    out = work.fenced_call(expected_rows=None)
    assert_right(out, replace(work, hint=len(work.x) / 8))


def test_rows_without_room_end_with_the_last_expert():
    """What ``room=0`` is for: the largest count is max_m, and x holds no row behind the last expert's."""
    counts = torch.tensor([3, 0, 130])
    assert [rows_for(layout, counts, 0) for layout in LAYOUTS] == [390, 133, 384]
