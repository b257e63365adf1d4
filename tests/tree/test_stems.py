"""One stem, one kernel: a template has its header and its page, and a table where a family chooses among its schedules."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path

import pytest

from chord_jit import device
from chord_jit.families.base import FAMILIES, family
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.legality import violations

ROOT = Path(__file__).resolve().parents[2]
STEMS = sorted(path.name.removesuffix(".cu.j2") for path in (ROOT / "templates").glob("*.cu.j2"))
TABLES = sorted((ROOT / "chord_jit" / "schedules" / "tables").glob("*.json"))
SM_COUNTS = (78, 114, 132, 148, 160)
DEPLOYMENTS = (Deployment(7168, 2048, 384, 8, ep=8), Deployment(7168, 2048, 384, 8, tp=8), Deployment(1024, 192, 6, 2))


def scheduled_stems() -> set[str]:
    """Kernels that some family chooses schedules of."""
    facts = device.target("sm_90a")
    shapes = {}
    for name, model in product(FAMILIES, DEPLOYMENTS):
        shapes |= {(name, getattr(one, "n", None), getattr(one, "k", None)): one for one in family(name).deployment(model, facts)}
    choices = [list(family(name).candidates(problem)) for (name, *_), problem in shapes.items()]
    return {schedule.kernel for candidates in choices if len(candidates) > 1 for schedule in candidates}


@pytest.mark.parametrize("stem", STEMS)
def test_a_stem_has_its_header_and_its_page(stem):
    assert (ROOT / "include" / "chord" / "kernels" / f"{stem}.cuh").is_file()
    assert (ROOT / "docs" / "kernels" / f"{stem}.md").is_file()
    assert len((ROOT / "templates" / f"{stem}.cu.j2").read_text().splitlines()) <= 20, "a template only fills Config"


def test_no_header_or_table_without_a_template():
    assert sorted(path.stem for path in (ROOT / "include" / "chord" / "kernels").glob("*.cuh")) == STEMS
    assert {path.stem for path in TABLES} == scheduled_stems() <= set(STEMS)


@pytest.mark.parametrize("sms", SM_COUNTS)
@pytest.mark.parametrize("arch", sorted(device.TARGETS))
@pytest.mark.parametrize("name", FAMILIES)
def test_v34_v37_whatever_is_chosen_is_legal(name, arch, sms):
    facts = dataclasses.replace(device.target(arch), sms=sms)
    for model in DEPLOYMENTS:
        problems = list(family(name).deployment(model, facts))
        assert problems
        for problem in problems:
            assert violations(problem, family(name).schedule(problem)) == []
