"""The journal: nothing that was found is lost, nothing foreign is taken in."""

from __future__ import annotations

import json

import pytest

from chord_jit.errors import InputError
from chord_jit.tune import journal
from chord_jit.tune.held import Held, by_contest, in_turn
from chord_jit.tune.journal import Journal, kernel_hashes
from tests.unit.tune.fakes import H200, A, B, C, contest, header, timed

LINES = [{"contest": "x", "at": "started", "schedule": "s"}, {"contest": "x", "at": "checked", "schedule": "s"}]
OWN = kernel_hashes(["w4a16_mma"])


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def test_what_is_appended_is_on_disk_at_once(path):
    written = Journal.create(path, header(), LINES[:1])
    written.append(LINES[1])
    assert [json.loads(line) for line in path.read_text().splitlines()] == [written.header, *LINES]
    assert Journal.read(path).lines == written.lines == LINES


def test_every_append_is_synced(path, monkeypatch):
    synced = []
    monkeypatch.setattr(journal.os, "fsync", synced.append)
    written = Journal.create(path, header())
    written.append(*LINES)
    assert len(synced) == 2


def test_a_torn_last_line_is_ignored_and_cut_off(path):
    Journal.create(path, header(), LINES)
    whole = path.read_bytes()
    for cut in range(1, 30):
        path.write_bytes(whole[:-cut])
        torn = Journal.read(path)
        assert torn.lines == LINES[:1]
        torn.append(LINES[1])
        assert path.read_bytes() == whole


@pytest.mark.parametrize("content", ["", '{"journal": 1', '{"journal": 99}\n', "[1]\n", '{"rows": []}\n'])
def test_what_is_no_journal_is_refused(path, content):
    path.write_text(content)
    with pytest.raises(InputError) as refused:
        Journal.read(path)
    assert refused.value.values["file"] == path and refused.value.remedy


def test_damage_before_the_last_line_is_refused_by_its_number(path):
    Journal.create(path, header(), LINES)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20] + "\n" + lines[2])
    with pytest.raises(InputError, match="line=2"):
        Journal.read(path)


def test_a_file_that_is_there_is_never_overwritten(path):
    path.write_text("mine")
    with pytest.raises(InputError, match="must be new"):
        Journal.create(path, header())
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "changes, kernels, named",
    [
        (dict(gpu="NVIDIA H100"), OWN, "NVIDIA H100 sm_90a 132"),
        (dict(sms=114), OWN, "a GPU like this one"),
        (dict(arch="sm_100a"), OWN, "a GPU like this one"),
        (dict(kernels={"w4a16_mma": "00" * 32}), OWN, "changed=w4a16_mma, its commit=0123abcd"),
        (dict(), {**OWN, "w4a16_wgmma": "00"}, "changed=w4a16_wgmma"),
    ],
)
def test_a_foreign_journal_is_refused(path, changes, kernels, named):
    foreign = Journal.create(path, header(**changes))
    with pytest.raises(InputError) as refused:
        foreign.require(H200, kernels)
    assert named in str(refused.value) and refused.value.remedy


def test_its_own_journal_is_taken_and_without_a_gpu_only_the_kernels_must_agree(path):
    own = Journal.create(path, header())
    own.require(H200, OWN)
    own.header["gpu"] = "NVIDIA H100"
    own.require(None, OWN)
    with pytest.raises(InputError):
        own.require(None, {"w4a16_mma": "00"})


def test_a_kernel_is_its_template_and_the_headers_that_it_reaches(monkeypatch):
    monkeypatch.setattr(journal.headers, "closure", lambda source: {"chord/x.cuh": "0"})
    assert kernel_hashes(["w4a16_mma", "w4a16_mma"]).keys() == {"w4a16_mma"} and kernel_hashes(["w4a16_mma"]) != OWN


# -- what the lines say -------------------------------------------------------------------------------------------------
def test_a_stage_is_known_when_each_entrant_was_timed_or_refused():
    one = contest()
    held = by_contest(timed(one, {A: 3.0, B: 2.0}))[one.name]
    assert held.times(2, one.schedules, 60) is None and held.times(2, [A, B], 59) is None
    held.add({"contest": one.name, "at": "refused", "schedule": str(C), "why": "wrong"})
    assert held.times(2, one.schedules, 60) == {A: 3.0, B: 2.0}
    assert list(held.finals(one, 60)) == [B, A]


def test_times_of_two_runs_are_never_mixed():
    one = contest()
    held = by_contest([*timed(one, {A: 3.0, B: 2.0, C: 1.0}), *timed(one, {A: 30.0, B: 20.0}, turn=7)])[one.name]
    assert held.times(2, [A, B], 60) == {A: 30.0, B: 20.0} and held.times(2, [A, B, C], 60) is None


def test_relative_times_are_of_the_last_stage_that_each_one_reached():
    one = contest()
    held = by_contest([*timed(one, {A: 10.0, B: 11.0, C: 20.0}, stage=0, samples=5), *timed(one, {A: 12.0, B: 6.0})])[one.name]
    assert held.relative(one, 60) == {A: 2.0, B: 1.0, C: 2.0}


def test_a_winner_is_kept_in_the_later_contests_of_its_layer():
    first, second = contest(1), contest(8)
    held = by_contest(timed(first, {A: 3.0, B: 2.0, C: 1.0}))
    assert [(always, finished) for _, always, finished in in_turn([first, second], held, 60)] == [((), True), ((C,), False)]


def test_a_contest_in_which_two_processes_died_is_left_alone():
    one, died = contest(), {"contest": contest().name, "at": "died", "why": "exit code -9"}
    for deaths, finished in ((1, False), (2, True)):
        assert [known for *_, known in in_turn([one], by_contest([died] * deaths), 60)] == [finished]


def test_only_an_open_start_is_blamed():
    held = Held()
    for line, started, turns in (
        ({"at": "started", "schedule": "s"}, "s", False), ({"at": "checked", "schedule": "s"}, None, False),
        ({"at": "turns", "stage": 0}, None, True), ({"at": "reader", "form": "bulk", "us": 1.0}, None, False),
    ):  # fmt: skip
        held.add(line)
        assert (held.started, held.turns) == (started, turns)
