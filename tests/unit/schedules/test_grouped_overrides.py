"""``CHORD_W4A16_*`` on grouped problems, which two kernels can serve: honoured where any rule allows it, refused by name."""

from dataclasses import asdict, replace

import pytest

from chord_jit import knobs
from chord_jit.errors import OverrideError
from chord_jit.families.grouped import FAMILY
from chord_jit.schedules import table
from chord_jit.schedules.cost import estimate
from chord_jit.schedules.legality import violations
from tests.unit.schedules.problems import LAYOUTS, grouped, wgmma_schedule

VARIABLES = {name: f"CHORD_W4A16_{name.upper()}" for name in ("bm", "bn", "bk", "cm", "cn", "stages", "split", "ctas")}
FEW, MANY = grouped(rows=1, layout="masked"), grouped(rows=256)
every_problem = pytest.mark.parametrize("asked", (FEW, MANY), ids=("few", "many"))


def overridden(asked, **fields):
    with knobs.scope(**{VARIABLES[name]: str(value) for name, value in fields.items()}):
        return FAMILY.schedule(asked)


def test_the_two_problems_go_to_different_kernels():
    assert (FAMILY.schedule(FEW).kernel, FAMILY.schedule(MANY).kernel) == ("w4a16_mma", "w4a16_wgmma")


@every_problem
@pytest.mark.parametrize("field", VARIABLES)
def test_each_variable_alone_is_honoured(asked, field):
    for value in sorted({getattr(one, field) for one in FAMILY.candidates(asked)}):
        chosen = overridden(asked, **{field: value})
        agreeing = [one for one in FAMILY.candidates(asked) if getattr(one, field) == value]
        assert getattr(chosen, field) == value and violations(asked, chosen) == []
        assert estimate(asked, chosen) <= 1.1 * min(estimate(asked, one) for one in agreeing)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_variables_together_name_one_schedule(layout):
    asked = grouped(layout=layout)
    for one in FAMILY.candidates(asked)[::41]:
        assert overridden(asked, **{name: value for name, value in asdict(one).items() if name != "kernel"}) == one


@every_problem
@pytest.mark.parametrize("fields", [
    dict(bm=64, bn=128, stages=7, bk=64), dict(bm=32, bn=512, bk=64, stages=4), dict(bm=8, stages=5), dict(bn=512, bk=256, stages=2),
], ids=str)
def test_what_no_candidate_has_is_laid_over_whatever_makes_it_legal(asked, fields):
    """Of either kernel, whichever the problem would have gone to."""
    assert not [one for one in FAMILY.candidates(asked) if asdict(one) | fields == asdict(one)]
    chosen = overridden(asked, **fields)
    assert asdict(chosen) | fields == asdict(chosen) and violations(asked, chosen) == []


def test_the_measured_row_comes_first_there(monkeypatch):
    row = wgmma_schedule(64, 256, 64, 4)
    monkeypatch.setattr(table, "find", lambda kernel, **_: row if kernel == "w4a16_wgmma" else None)
    assert overridden(MANY, stages=7) == replace(row, stages=7)


REFUSED = {
    "BM": (dict(bm=24), "w4a16_mma: BM must be 8 or 16, got 24", r"w4a16_wgmma: BM must be one of "),
    "BN": (dict(bn=100), "w4a16_mma: BN must be a multiple of 128, got 100", "w4a16_wgmma: BN must be one of 128, 256, 512, got 100"),
    "BK": (dict(bk=96), "w4a16_mma: BK must be a multiple of 64, got 96", "w4a16_wgmma: BK must be 64, 128 or 256, got 96"),
    "CM": (dict(cm=2), "w4a16_mma: CM and CN must be 1", "w4a16_wgmma: CM "),
    "CN": (dict(cn=4), "w4a16_mma: CM and CN must be 1", "w4a16_wgmma: CM "),
    "STAGES": (dict(stages=17), "w4a16_mma: STAGES must lie in 2..16, got 17", "w4a16_wgmma: STAGES must lie in 2..16, got 17"),
    "SPLIT": (dict(split=9), "w4a16_mma: SPLIT must lie in 1..8, got 9", "w4a16_wgmma: SPLIT must be 1 or 2"),
    "shared memory": (dict(bm=256, stages=16), "w4a16_mma: BM must be 8 or 16", "w4a16_wgmma: "),
    "two at once": (dict(bm=24, ctas=3), "BM must be 8 or 16, got 24, CTAS must be 1 or 2, got 3", "CTAS must be 1, or 2 at BM=16"),
}


@every_problem
@pytest.mark.parametrize("fields, mma, wgmma", REFUSED.values(), ids=REFUSED)
def test_v57_an_illegal_override_names_variable_value_and_the_rule_of_each_kernel(asked, fields, mma, wgmma):
    with pytest.raises(OverrideError) as caught:
        overridden(asked, **fields)
    assert mma in caught.value.rule and wgmma in caught.value.rule
    assert caught.value.values == {VARIABLES[name]: value for name, value in fields.items()}
    assert FAMILY.schedule(asked)


def test_blocks_are_not_cut():
    with pytest.raises(OverrideError, match="BM must divide the blocks of 128 rows or be two of them, got 96"):
        overridden(grouped(layout="blocks"), bm=96, bn=256)
    assert overridden(grouped(layout="offsets"), bm=96, bn=256).bm == 96


def test_off_hopper_one_kernel_is_left_to_refuse():
    asked = grouped(arch="sm_100a", layout="masked")
    assert overridden(asked, bm=8).kernel == "w4a16_mma"
    with pytest.raises(OverrideError) as caught:
        overridden(asked, bm=64)
    assert caught.value.rule == "BM must be 8 or 16, got 64"
