"""One stem, one kernel: a template has its header and its page, and a table where a family chooses among its schedules."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import pytest

from chord_jit import device
from chord_jit.families.base import FAMILIES, family
from chord_jit.schedules.deployment import Deployment
from chord_jit.schedules.legality import violations
from chord_jit.schedules.schedule import Schedule

ROOT = Path(__file__).resolve().parents[2]
STEMS = sorted(path.name.removesuffix(".cu.j2") for path in (ROOT / "templates").glob("*.cu.j2"))
TABLES = sorted((ROOT / "chord_jit" / "schedules" / "tables").glob("*.json"))
SM_COUNTS = (78, 114, 132, 148, 160)
DEPLOYMENTS = (Deployment(7168, 2048, 384, 8, ep=8), Deployment(7168, 2048, 384, 8, tp=8), Deployment(1024, 192, 6, 2))
ROW_FIELDS = {"arch", "sms", "n", "k", "experts", "rows_lo", "rows_hi", "swiglu", "schedule", "us", "commit"}


def scheduled_stems() -> set[str]:
    """Kernels that some family chooses schedules of."""
    facts = device.target("sm_90a")
    problems = [(family(name), next(iter(family(name).deployment(DEPLOYMENTS[0], facts)))) for name in FAMILIES]
    return {schedule.kernel for owner, problem in problems for schedule in owner.candidates(problem)}


def rows_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["rows"]


@pytest.mark.parametrize("stem", STEMS)
def test_a_stem_has_its_header_and_its_page(stem):
    assert (ROOT / "include" / "chord" / "kernels" / f"{stem}.cuh").is_file()
    assert (ROOT / "docs" / "kernels" / f"{stem}.md").is_file()
    assert len((ROOT / "templates" / f"{stem}.cu.j2").read_text().splitlines()) <= 20, "a template only fills Config"


def test_no_header_or_table_without_a_template():
    assert sorted(path.stem for path in (ROOT / "include" / "chord" / "kernels").glob("*.cuh")) == STEMS
    assert {path.stem for path in TABLES} == scheduled_stems() <= set(STEMS)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_rows_are_complete_sorted_and_do_not_overlap(path):
    rows = rows_of(path)
    assert all(row.keys() == ROW_FIELDS and row["us"] > 0 and row["commit"] for row in rows)
    keys = [(*(row[name] for name in ("arch", "sms", "n", "k", "experts", "swiglu")), row["rows_lo"], row["rows_hi"]) for row in rows]
    assert keys == sorted(keys)
    for first, second in pairwise(keys):
        assert first[-2] <= first[-1] and (first[:-2] != second[:-2] or first[-1] < second[-2])


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_row_is_legal(path):
    indexed = family("indexed")
    for row in rows_of(path):
        schedule = Schedule(path.stem, **row["schedule"])
        for sms in {row["sms"], *SM_COUNTS}:
            facts = dataclasses.replace(device.target(row["arch"]), sms=sms)
            rows_per_expert = row["rows_hi"] / row["experts"]
            problem = indexed.problem(
                facts, row["experts"], row["n"], row["k"], rows_per_expert, interleaved=row["swiglu"], swiglu=row["swiglu"]
            )
            assert violations(problem, schedule) == [], row


@pytest.mark.parametrize("sms", SM_COUNTS)
@pytest.mark.parametrize("arch", sorted(device.TARGETS))
@pytest.mark.parametrize("name", FAMILIES)
def test_whatever_is_chosen_is_legal(name, arch, sms):
    facts = dataclasses.replace(device.target(arch), sms=sms)
    for model in DEPLOYMENTS:
        problems = list(family(name).deployment(model, facts))
        assert problems
        for problem in problems:
            assert violations(problem, family(name).schedule(problem)) == []
