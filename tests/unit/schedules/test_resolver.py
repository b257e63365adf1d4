"""Override, table, cost model: which one decides, and what an override may not do."""

from dataclasses import asdict, replace
from itertools import product

import pytest

from chord_jit import knobs
from chord_jit.errors import ChordInternalError, OverrideError
from chord_jit.families.indexed import FAMILY
from chord_jit.schedules import resolver, table
from chord_jit.schedules.cost import estimate
from chord_jit.schedules.legality import violations
from tests.unit.schedules.problems import problem, schedule

FREE = problem()
TILES = [schedule(8, 128, 512, 3), schedule(8, 256, 128, 3), schedule(16, 128, 512, 2), schedule(16, 512, 64, 4)]
VARIABLES = {name: f"CHORD_W4A16_{name.upper()}" for name in ("bm", "bn", "bk", "cm", "cn", "stages", "split", "ctas")}


def overrides(**fields) -> dict[str, str]:
    return {VARIABLES[name]: str(value) for name, value in fields.items()}


def resolve(costs=(1.0, 2.0, 3.0, 4.0), *, found=None, illegal=(), candidates=TILES):
    """The choice among ``TILES`` at these costs; legality refuses ``illegal`` besides what it always refuses."""
    prices = dict(zip(TILES, costs, strict=True))
    return resolver.resolve(
        FREE, table=lambda _: found, candidates=lambda _: candidates, cost=lambda _, one: prices[one],
        violations=lambda asked, one: ["not today"] if one in illegal else violations(asked, one),
    )  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """One measured schedule for whatever is asked: no candidate, so only the table can have named it."""
    row = schedule(16, 256, 128, 5)
    assert violations(FREE, row) == [] and row not in FAMILY.candidates(FREE)
    monkeypatch.setattr(table, "find", lambda *_, **__: row)
    return row


# -- who decides --------------------------------------------------------------------------------------------------------
def test_the_table_comes_before_the_cost_model():
    measured = schedule(8, 1024, 64, 2)
    assert resolve(found=measured) == measured


def test_v55_an_illegal_row_is_passed_over():
    assert resolve(found=TILES[3], illegal=TILES[3:]) == TILES[0]


def test_the_cheapest_candidate_wins_wherever_it_stands():
    for order in ((1, 2, 3, 4), (4, 1, 2, 3), (4, 3, 1, 2), (4, 3, 2, 1)):
        assert resolve(order) == TILES[order.index(1)]


def test_equal_costs_go_to_the_first_candidate():
    assert resolve((2, 1, 1, 1)) == TILES[1] and resolve((1, 1, 1, 1)) == TILES[0]


def test_no_candidate_at_all_is_our_fault_and_says_so():
    with pytest.raises(ChordInternalError, match="must have a legal schedule"):
        resolve(candidates=[])


def test_an_override_comes_before_the_table():
    with knobs.scope(**overrides(bm=16)):
        assert resolve(found=TILES[0]) == TILES[2]
    assert resolve(found=TILES[0]) == TILES[0]


def test_an_override_that_no_candidate_has_is_laid_over_the_measured_schedule():
    with knobs.scope(**overrides(stages=5)):
        assert resolve(found=TILES[3]) == replace(TILES[3], stages=5)


def test_without_a_row_it_is_laid_over_the_cheapest():
    with knobs.scope(**overrides(stages=5)):
        assert resolve((3, 1, 2, 4)) == replace(TILES[1], stages=5)


def test_where_that_is_illegal_the_cheapest_that_it_leaves_legal_is_taken():
    """The two larger tiles have no room for five stages."""
    with knobs.scope(**overrides(stages=5)):
        assert resolve((2, 3, 1, 4)) == replace(TILES[1], stages=5)
        assert resolve((2, 4, 1, 3), found=TILES[0]) == replace(TILES[3], stages=5)


def test_it_is_never_laid_over_an_illegal_row():
    """Else the variables would be blamed for a rule that they do not break."""
    with knobs.scope(**overrides(stages=4, split=2)):
        assert resolve((1, 2, 3, 4), found=TILES[2], illegal=[TILES[2]]) == replace(TILES[0], stages=4, split=2)


# -- what neighbouring sizes share --------------------------------------------------------------------------------------
def share(*good: str) -> str:
    """What is taken at each size, of schedules named by letters; ``good``: the letters that do for a size, the best first."""
    found = resolver.shared(range(len(good)), lambda size: [*good[size]])
    return "".join(found[size] for size in range(len(good)))


def test_neighbours_share_what_is_good_for_all_of_them():
    assert share("ab", "bc", "b", "cb") == "bbbb"
    assert share("a", "b", "a") == "aba" and share("ab", "ca", "cd") == "aac" and share() == ""


def test_of_what_all_could_take_the_first_ones_favourite_is_taken():
    assert share("abc", "cba") == "aa" and share("cba", "abc") == "cc"


def test_what_sizes_share_is_asked_for_behind_the_table_and_only_without_an_override():
    options = dict(candidates=lambda _: TILES, violations=violations, cost=lambda _, one: TILES.index(one), model=lambda _: TILES[2])
    assert resolver.resolve(FREE, table=lambda _: TILES[1], **options) == TILES[1]
    assert resolver.resolve(FREE, table=lambda _: None, **options) == TILES[2]
    assert resolver.resolve(FREE, table=lambda _: None, **{**options, "model": lambda _: None}) == TILES[0]
    with knobs.scope(**overrides(bm=8)):
        assert resolver.resolve(FREE, table=lambda _: None, **options) == TILES[0]


# -- the real family ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("field, value", [
    (field, value) for field in VARIABLES for value in sorted({getattr(one, field) for one in FAMILY.candidates(FREE)})
])
def test_each_variable_alone_is_honoured(field, value):
    with knobs.scope(**overrides(**{field: value})):
        chosen = FAMILY.schedule(FREE)
    agreeing = [one for one in FAMILY.candidates(FREE) if getattr(one, field) == value]
    assert getattr(chosen, field) == value and violations(FREE, chosen) == []
    assert estimate(FREE, chosen) <= 1.1 * min(estimate(FREE, one) for one in agreeing)


@pytest.mark.parametrize("one", FAMILY.candidates(FREE)[::17], ids=str)
def test_all_variables_together_name_one_schedule(one, measured):
    """Of one kernel: where both could serve, as at 16x256x128, it is still free."""
    fields = {name: value for name, value in asdict(one).items() if name != "kernel"}
    named = [other for other in FAMILY.candidates(FREE) if replace(other, kernel=one.kernel) == one]
    with knobs.scope(**overrides(**fields)):
        chosen = FAMILY.schedule(FREE)
    assert chosen in named and (len(named) == 1 or estimate(FREE, chosen) <= 1.1 * min(estimate(FREE, other) for other in named))
    assert FAMILY.schedule(FREE) == measured


@pytest.mark.parametrize("bm, block_m", [(8, 0), (16, 0), (8, 24), (16, 48)])
def test_v57_the_token_tile_alone_is_enough(bm, block_m):
    with knobs.scope(**overrides(bm=bm)):
        assert FAMILY.schedule(replace(FREE, block_m=block_m)).bm == bm


@pytest.mark.parametrize("stages", range(1, 41))
def test_v57_a_depth_is_honoured_or_refused_by_name(stages):
    try:
        with knobs.scope(**overrides(stages=stages)):
            chosen = FAMILY.schedule(FREE)
    except OverrideError as error:
        assert error.values == {"CHORD_W4A16_STAGES": stages} and f"CHORD_W4A16_STAGES={stages}" in str(error)
        rules = rules_of(error)
        assert set(rules) == {one.kernel for one in FAMILY.candidates(FREE)}
        if not 2 <= stages <= 16:
            assert set(rules.values()) == {f"STAGES must lie in 2..16, got {stages}"}
        else:
            assert all(rule.startswith("shared memory must fit") for rule in rules.values())
            assert stages not in {one.stages for one in FAMILY.candidates(FREE)}
    else:
        assert 2 <= stages <= 16 and chosen.stages == stages and violations(FREE, chosen) == []


#: Variables, the routing's block_m, and the rule of each kernel; where block_m leaves one kernel no candidate, of the other alone.
REFUSED = {
    "BN": (dict(bn=100), 0, "BN must be a multiple of 128, got 100", "BN must be one of 128, 256, 512, got 100"),
    "BK": (dict(bk=100), 0, "BK must be a multiple of 64, got 100", "BK must be 64, 128 or 256, got 100"),
    "BM": (dict(bm=24), 0, "BM must be 8 or 16, got 24", "BM must be one of"),
    "BM over block_m": (dict(bm=16), 8, "BM must divide the routing's block_m, got BM=16 and block_m=8", None),
    "BM beside block_m": (dict(bm=16), 24, "BM must divide the routing's block_m, got BM=16 and block_m=24", None),
    "CM": (
        dict(cm=2), 0, "CM and CN must be 1 (this kernel shares nothing by multicast), got CM=2, CN=1",
        "CM must be 1 and CN 1 or 2 (two CTAs share rows by multicast), got CM=2, CN=1",
    ),
    "CN": (
        dict(cn=2), 0, "CM and CN must be 1 (this kernel shares nothing by multicast), got CM=1, CN=2",
        "CN must be 1 on indexed rows (gathered rows reach one CTA), got 2",
    ),
    "SPLIT": (
        dict(split=9), 0, "SPLIT must lie in 1..8, got 9", "SPLIT must be 1 or 2 (2 cuts the tiles of the last waves along K), got 9",
    ),
    "CTAS": (dict(ctas=3), 0, "CTAS must be 1 or 2, got 3", "CTAS must be 1, or 2 at BM=16 and BN=256 (registers), got 3"),
    "warps": (
        dict(bm=8, bn=128, bk=128), 0, "BN/128 * BK/64 must be 4 or 8 warps, got 2",
        "BM must be one of 32, 64, 128, 192, 256 at BN=128, got 8",
    ),
    "shared memory": (
        dict(bn=128, bk=512, stages=16), 0, "shared memory must fit 1 CTA(s) an SM, got", "BK must be 64, 128 or 256, got 512",
    ),
    "rows of WGMMA": (
        dict(bm=64, bn=256, stages=16), 0, "BM must be 8 or 16, got 64", "shared memory must fit 1 CTA(s) an SM, got",
    ),
    "two at once": (dict(bm=24, split=9), 0, "BM must be 8 or 16, got 24, SPLIT must lie in 1..8, got 9", "BM must be one of"),
}  # fmt: skip


def rules_of(error: OverrideError) -> dict[str, str]:
    """The rules that each kernel breaks, of an error that names several."""
    return dict(part.split(": ", 1) for part in error.rule.split("; "))


@pytest.mark.parametrize("fields, block_m, mma, wgmma", REFUSED.values(), ids=REFUSED)
def test_v57_an_illegal_override_names_variable_value_and_rule(fields, block_m, mma, wgmma):
    with knobs.scope(**overrides(**fields)), pytest.raises(OverrideError) as caught:
        FAMILY.schedule(replace(FREE, block_m=block_m))
    rules = rules_of(caught.value) if wgmma else {"w4a16_mma": caught.value.rule}
    assert rules["w4a16_mma"].startswith(mma) and isinstance(caught.value, ValueError)
    assert wgmma is None or rules["w4a16_wgmma"].startswith(wgmma)
    assert caught.value.values == {VARIABLES[name]: value for name, value in fields.items()} and caught.value.remedy
    for name, value in fields.items():
        assert f"{VARIABLES[name]}={value}" in str(caught.value)


def test_what_one_kernel_refuses_the_other_may_take():
    """Each of these once had no kernel that takes it: too few warps, a tall tile, a K stage of the other kernel."""
    for fields, kernel in ((dict(bn=128, bk=128), "w4a16_wgmma"), (dict(bm=64), "w4a16_wgmma"), (dict(bk=512), "w4a16_mma")):
        with knobs.scope(**overrides(**fields)):
            assert FAMILY.schedule(FREE).kernel == kernel


@pytest.mark.parametrize("name, text", list(product(VARIABLES.values(), ["0", "-8", "x", "8.0", "1e1"])))
def test_v57_what_is_no_positive_integer_is_refused_when_it_is_read(name, text):
    with pytest.raises(OverrideError) as caught, knobs.scope(**{name: text}):
        pytest.fail("the value was taken")
    assert caught.value.values == {name: repr(text)} and caught.value.rule in ("must be an integer", "must be at least 1")


def test_a_refused_override_leaves_nothing_behind():
    before = FAMILY.schedule(FREE)
    with knobs.scope(**overrides(ctas=3)), pytest.raises(OverrideError):
        FAMILY.schedule(FREE)
    assert FAMILY.schedule(FREE) == before
