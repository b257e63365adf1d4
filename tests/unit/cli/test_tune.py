"""``chord tune`` from its arguments to the tables, with stand-ins for the compiler, the GPU and the measuring process."""

from __future__ import annotations

import argparse
import json
import os
import sys
from types import SimpleNamespace

import pytest

from chord_jit import cli, device, knobs
from chord_jit.bench.cases import select
from chord_jit.cli import tune
from chord_jit.jit import compiler
from chord_jit.schedules import table
from chord_jit.schedules.schedule import parse
from chord_jit.tune import build, session, write
from chord_jit.tune.contest import contests
from chord_jit.tune.held import by_contest
from chord_jit.tune.journal import Journal
from tests.toy.fake import FakeCompiler
from tests.unit.tune.fakes import timed

H200 = device.target("sm_90a")
A, B, BAD = "w4a16_mma 8x128x512 s3", "w4a16_mma 16x128x512 s3", "w4a16_mma 24x128x512 s3"
SMOKE = ("--cases", "smoke", "--schedules", A, B)
MODEL = {"hidden_size": 1024, "moe_intermediate_size": 512, "n_routed_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": 3}
#: A row of the smoke case's problem, held by the table of the other schedule.
OLD = {
    "arch": "sm_90a", "sms": 132, "layout": "indexed", "n": 512, "k": 1024, "experts": 16, "swiglu": False, "rows_lo": 0, "rows_hi": 100,
    "schedule": {"bm": 8, "bn": 128, "bk": 512, "stages": 3}, "us": 9.0, "at_rows": 32, "commit": "aaaaaaa", "gpu": "NVIDIA H200",
}  # fmt: skip


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tune.add_parser(parser.add_subparsers())
    return parser.parse_args(["tune", *words])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Tables of this test alone: one row, and an empty table."""
    folder = tmp_path / "tables"
    folder.mkdir()
    table.load.cache_clear()
    monkeypatch.setattr(table, "FOLDER", folder)
    write.write({"w4a16_mma": [OLD], "w4a16_wgmma": []}, folder)
    monkeypatch.setattr(write.write, "__defaults__", (folder,))
    yield folder
    table.load.cache_clear()


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Runs the command with a compiler that needs no CUDA; gives exit code, standard output and error."""
    fake = FakeCompiler(tmp_path / "ledger")
    monkeypatch.setattr(device, "current", lambda: None)

    def run(*argv: str):
        with knobs.scope(CHORD_CACHE_DIR=str(tmp_path / "root")), compiler.scope(fake):
            code = cli.main(["tune", *argv])
        return code, *capsys.readouterr()

    run.fake = fake
    return run


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose measuring process knows the times: ``us`` by schedule; ``starts`` counts the processes."""
    gpu = SimpleNamespace(us={A: 10.0, B: 8.0}, starts=[], facts=H200)

    def start(arguments, path):
        gpu.starts.append(path)
        journal = Journal.read(path)
        held = by_contest(journal.lines)
        for one in contests(select("smoke"), gpu.facts, given=[parse(text) for text in (A, B)], candidates=False):
            right = [schedule for schedule in one.schedules if str(schedule) not in held[one.name].refused]
            journal.append(*timed(one, {schedule: gpu.us[str(schedule)] for schedule in right}))
        return SimpleNamespace(poll=lambda: 0, returncode=0)

    monkeypatch.setattr(device, "current", lambda: gpu.facts)
    monkeypatch.setattr(tune, "_worker", start)
    monkeypatch.setattr(session, "driver", lambda: "580.1")
    monkeypatch.setattr(build.engine, "build", lambda spec, pool=None: SimpleNamespace(facts={"spill_bytes": 0}, origin="hit"))
    return gpu


# -- compiling ----------------------------------------------------------------------------------------------------------
def test_compile_only_fills_the_cache_without_a_gpu(run):
    code, out, progress = run("--cases", "smoke", "--swiglu", "also", "--most", "3", "--compile-only", "--json")
    first = json.loads(out)
    assert code == 0 and first["failed"] == 0 and first["compiled"] == len(run.fake.compiles()) == 6 and "6/6" in progress
    code, out, _ = run("--cases", "smoke", "--swiglu", "also", "--most", "3", "--compile-only", "--jobs", "1")
    assert code == 0 and "0 compiled, 6 found" in out and len(run.fake.compiles()) == 6


def test_compile_only_for_another_target_and_for_a_model(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    words = ("--model", str(tmp_path), "--ep", "2", "--layout", "indexed", "--most", "2", "--arch", "sm_100a", "--compile-only")
    code, out, _ = run(*words, "--layers", "tp1_ep2_down", "--tokens", "4", "8")
    assert code == 0 and 2 <= len(run.fake.compiles()) <= 4 and "0 failed" in out


@pytest.mark.filterwarnings("ignore::chord_jit.jit.notices.CacheWarning")
def test_compile_only_needs_a_cache_to_fill(run, tmp_path):
    (tmp_path / "root").write_text("no folder")
    code, out, error = run(*SMOKE, "--compile-only")
    assert (code, out) == (2, "") and "the cache must be writable" in error and run.fake.compiles() == []


# -- without a GPU ------------------------------------------------------------------------------------------------------
def test_without_a_gpu_and_without_a_journal_there_is_nothing_to_do(run):
    code, out, error = run("--cases", "smoke")
    assert (code, out) == (2, "") and "a GPU is needed" in error and "--compile-only" in error


def test_a_journal_is_decided_and_written_where_there_is_no_gpu(run, gpu, folder, tmp_path, monkeypatch):
    path = str(tmp_path / "run.jsonl")
    assert run(*SMOKE, "--out", path, "--commit", "0123abcd")[0] == 0
    monkeypatch.setattr(device, "current", lambda: None)
    code, out, error = run(*SMOKE, "--resume", path, "--write")
    assert code == 0 and "wrote w4a16_mma.json" in error and len(gpu.starts) == 1
    (row,) = json.loads((folder / "w4a16_mma.json").read_text())["rows"]
    assert row == {**OLD, "schedule": {**OLD["schedule"], "bm": 16}, "us": 8.0, "commit": "0123abcd"}


def test_what_no_journal_holds_and_no_gpu_can_measure_is_said(run, gpu, folder, tmp_path, monkeypatch):
    path = str(tmp_path / "run.jsonl")
    run(*SMOKE, "--out", path)
    monkeypatch.setattr(device, "current", lambda: None)
    code, out, error = run(*SMOKE, "--swiglu", "also", "--resume", path)
    assert code == 1 and "1 of 2 cases measured" in error and "not measured" in out


# -- with a GPU ---------------------------------------------------------------------------------------------------------
def test_winners_are_printed_and_the_tables_stay(run, gpu, folder):
    before = (folder / "w4a16_mma.json").read_bytes()
    code, out, error = run(*SMOKE)
    assert code == 0 and out.index(B) < out.index(A) and "(in the table)" in out and "1 of 1 cases measured" in error
    assert [line[:11] for line in out.splitlines() if line[0] in "+-"] == ["- w4a16_mma", "+ w4a16_mma"]
    assert (folder / "w4a16_mma.json").read_bytes() == before


def test_the_report_as_json(run, gpu, folder):
    code, out, _ = run(*SMOKE, "--json")
    report = json.loads(out)
    (one,) = report["contests"]
    assert code == 0 and one["schedules"][B]["us"] == 8.0 and one["held"] == A and one["finished"]
    assert [change["change"] for change in report["changes"]] == ["-", "+"]
    assert report["header"]["command"] == f"chord tune --cases smoke --schedules '{A}' '{B}' --rounds 60"


def test_noise_changes_nothing(run, gpu, folder):
    gpu.us = {A: 10.0, B: 9.95}
    code, out, _ = run(*SMOKE, "--write", "--commit", "0123abcd")
    assert code == 0 and "the tables stay as they are" in out
    assert json.loads((folder / "w4a16_mma.json").read_text())["rows"] == [OLD]


def test_what_is_illegal_is_refused_with_the_rule_before_anything_is_measured(run, gpu, folder):
    code, out, _ = run(*SMOKE, BAD)
    assert code == 0 and f"refused  {BAD}: BM must be 8 or 16, got 24" in out


def test_kernels_with_local_memory_do_not_compete(run, gpu, folder, monkeypatch):
    monkeypatch.setattr(build.engine, "build", lambda spec, pool=None: SimpleNamespace(facts={"spill_bytes": 32}, origin="hit"))
    code, out, error = run(*SMOKE)
    assert code == 1 and "0 of 1 cases measured" in error
    assert f"refused  {A} and 1 more: the compiler gave it 32 bytes of local memory" in out


def test_a_finished_journal_starts_no_process(run, gpu, folder, tmp_path):
    path = tmp_path / "run.jsonl"
    run(*SMOKE, "--out", str(path))
    before = path.read_bytes()
    assert run(*SMOKE, "--resume", str(path))[0] == 0
    assert len(gpu.starts) == 1 and path.read_bytes() == before


def test_a_copy_goes_on_and_the_original_stays(run, gpu, folder, tmp_path):
    first, second = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    run(*SMOKE, "--out", str(first))
    first.write_bytes(b"".join(first.read_bytes().splitlines(keepends=True)[:-1]))
    before = first.read_bytes()
    assert run(*SMOKE, "--resume", str(first), "--out", str(second))[0] == 0
    assert first.read_bytes() == before and second.read_bytes().startswith(before) and gpu.starts == [first, second]


@pytest.mark.parametrize("facts, changes, named", [
    (device.DeviceFacts("NVIDIA H20", "sm_90a", 78), {}, "NVIDIA H20 sm_90a 78"),
    (H200, {"kernels": {"w4a16_mma": "0" * 64}}, "changed=w4a16_mma"),
])
def test_a_foreign_journal_is_refused(run, gpu, folder, tmp_path, facts, changes, named):
    path = tmp_path / "run.jsonl"
    run(*SMOKE, "--out", str(path))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(lines[0]), **changes}), *lines[1:]]) + "\n")
    gpu.facts = facts
    code, out, error = run(*SMOKE, "--resume", str(path))
    assert (code, out) == (2, "") and named in error and "remedy:" in error


# -- arguments ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("words, named", [
    ((*SMOKE, "--write"), "--commit $(git rev-parse --short HEAD)"),
    ((*SMOKE, "--write", "--commit", "main"), "hexadecimal"),
    (("--cases", "smoke", "--layers", "gate"), "known=['smoke_gate_up']"),
    (("--cases", "smoke", "--rows", "3"), "known=[4]"),
    (("--cases", "smoke", "--layout", "masked"), "some case must be left"),
    (("--cases", "smoke", "--schedules", "fast"), "must look like"),
    (("--cases", "smoke", "--model", "config.json"), "exclude each other"),
    (("--model", "no/such/config.json"), "must exist"),
    (("--cases", "smoke", "--resume", "no/such.jsonl"), "must be readable"),
])
def test_bad_input_is_refused_before_anything_is_measured(run, gpu, words, named):
    code, out, error = run(*words)
    assert (code, out) == (2, "") and named in error and gpu.starts == []


@pytest.mark.parametrize("words", [("--rounds", "0"), ("--cases", "absent"), ("--swiglu", "never"), ("--layout", "blocks")])
def test_bad_arguments_are_refused(words, capsys):
    with pytest.raises(SystemExit) as refused:
        parsed(*words)
    assert refused.value.code == 2 and capsys.readouterr().err


@pytest.mark.parametrize("words, wanted", [
    ((), "chord tune --cases decode --rounds 60"),
    (("--cases", "grouped", "ep", "--tokens", "8", "--swiglu", "--out", "/somewhere", "--jobs", "3"),
     "chord tune --cases grouped ep --rows 8 --swiglu only --rounds 60"),
    (("--model", "/somewhere/config.json", "--ep", "8", "--layout", "masked", "--most", "20", "--readers", "--rounds", "7"),
     "chord tune --model config.json --tp 1 --ep 8 --layout masked --most 20 --readers --rounds 7"),
])
def test_the_recorded_command_decides_the_numbers_and_names_no_place(words, wanted):
    assert tune.command(parsed(*words)) == wanted


def test_the_measuring_process_gets_the_same_cases(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(tune.subprocess, "Popen", lambda command, env: started.append((command, env)))
    tune._worker(parsed("--cases", "smoke", "--rows", "4", "--swiglu", "also", "--schedules", A, "--candidates", "--companions"), tmp_path)
    ((command, environment),) = started
    assert command[1:5] == ["-P", "-m", "chord_jit", "tune"]
    assert environment["PYTHONPATH"] == os.pathsep.join(path or os.getcwd() for path in sys.path)
    again = parsed(*command[5:])
    assert again.worker and again.resume == tmp_path and tune.command(again) == (
        f"chord tune --cases smoke --rows 4 --swiglu also --schedules '{A}' --candidates --companions --rounds 60"
    )
