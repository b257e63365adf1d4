"""Every kind of legal schedule computes the same thing: a sample that holds each tile with each residency and depth."""

from dataclasses import asdict

import pytest

from chord_jit import knobs
from chord_jit.families.indexed import FAMILY
from chord_jit.jit.warmup import warm_up
from tests.gpu.cases import Case
from tests.gpu.compare import assert_right
from tests.gpu.workload import build, problem_of

CASES = [
    Case(8, 512, 1344, 21, 3, 16, "dropped", weighted=True),
    Case(8, 1024, 704, 21, 3, 16, "hot", interleaved=True, swiglu=True),
]


def fields(schedule) -> dict[str, int]:
    return {name: value for name, value in asdict(schedule).items() if name != "kernel"}


def sample(problem) -> list:
    """Candidates, taken in order, until every tile and every value of every other field has been shown by one."""
    seen, taken = set(), []
    for schedule in FAMILY.candidates(problem):
        tile = (schedule.bm, schedule.bn, schedule.bk)
        shows = {tile, *(item for item in fields(schedule).items() if item[0] not in ("bm", "bn", "bk"))}
        if not shows <= seen:
            seen |= shows
            taken.append(schedule)
    return taken


@pytest.mark.parametrize("case", CASES, ids=str)
def test_schedules_agree(case, gpu, seed):
    problem, work = problem_of(case, gpu), build(case, gpu, seed)
    schedules = sample(problem)
    assert len(schedules) >= 8 and {schedule.bm for schedule in schedules} == {8, 16}
    report = warm_up([FAMILY.spec(problem, schedule) for schedule in schedules])
    assert not report.failed, str(report)
    wrong = []
    for schedule in schedules:
        with knobs.scope(**{f"CHORD_W4A16_{name.upper()}": str(value) for name, value in fields(schedule).items()}):
            assert FAMILY.schedule(problem) == schedule
            try:
                assert_right(work.fenced_call(), work)
            except AssertionError as error:
                wrong.append(f"{schedule}: {error}")
    assert not wrong, "\n".join(wrong)
