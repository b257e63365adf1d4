"""What measuring tools write down alike: a run's origin, its file, the newest one, and the words of a page."""

from __future__ import annotations

import json

import pytest

from tools import record

RUN = {
    "schema": record.SCHEMA, "date": "2026-12-01T10:00:00+00:00", "commit": "0123456789abcdef",
    "machine": {"gpu": "NVIDIA H200", "driver": "580.1", "cores": 16, "python": "3.11.7"}, "versions": {"torch": "2.11.0", "triton": "3.6"},
}  # fmt: skip


def test_a_run_is_saved_with_its_origin_and_found_again(tmp_path):
    run = {**record.origin("abc"), "found": [1.5]}
    record.save(run, tmp_path / "new" / "folder" / "run.json")
    assert record.newest(tmp_path / "new" / "folder") == run
    assert run["schema"] == record.SCHEMA and run["commit"] == "abc" and run["date"].endswith("+00:00") and "torch" in run["versions"]


def test_the_newest_is_so_by_its_date_and_of_this_schema(tmp_path):
    assert record.newest(tmp_path) is None
    for name, date, schema in (("a", "2026-12-02", record.SCHEMA), ("b", "2026-12-01", record.SCHEMA), ("c", "2026-12-03", -1)):
        (tmp_path / f"{name}.json").write_text(json.dumps({**RUN, "date": date, "schema": schema}))
    assert record.newest(tmp_path)["date"] == "2026-12-02"


@pytest.mark.parametrize("answer", ["", "no devices were found", OSError("no such program")])
def test_a_gpu_that_is_not_there_is_none(answer, monkeypatch):
    def asked(*words, **more):
        if isinstance(answer, OSError):
            raise answer
        return record.subprocess.CompletedProcess(words, 0, stdout=answer)

    monkeypatch.setattr(record.subprocess, "run", asked)
    found = record.machine()
    assert (found["gpu"], found["driver"]) == ("none", "none") and found["cores"] >= 1


def test_provenance_tells_what_the_run_holds():
    assert record.provenance(RUN) == (
        "NVIDIA H200, driver 580.1, 16 cores, Python 3.11.7; torch 2.11.0, triton 3.6; commit\n0123456789ab, 2026-12-01."
    )
    bare = {**RUN, "machine": {"gpu": "NVIDIA H200", "driver": "580.1"}, "versions": {"torch": "2.11.0"}}
    assert record.provenance(bare) == "NVIDIA H200, driver 580.1; torch 2.11.0; commit\n0123456789ab, 2026-12-01."
