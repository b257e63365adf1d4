"""The start-up comparison: what of it runs without a GPU, what it makes of a part that fails, and its block in the cache page."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

from tools import make_docs, measure_startup, record
from tools.startup import report
from tools.startup.job import WRONG_ABOVE, Data, Job

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"job": {"experts": 2, "n": 128, "k": 256}}
STEPS = ("torch", "cuda", "import", "prepare", "first", "second")


def one(first: float, error: float = 0.002, **more) -> dict:
    return {"ms": dict(zip(STEPS, (900.0, 200.0, 60.0, 30.0, first, 0.1), strict=True)), "error": error, **more}


RUN = {
    "schema": record.SCHEMA, "date": "2026-12-01T10:00:00+00:00", "commit": "0123456789abcdef", "repeat": 3,
    "machine": {"gpu": "NVIDIA H200", "driver": "580.1", "cores": 16, "python": "3.11.7"}, "versions": {"torch": "2.11.0", "triton": "3.6"},
    "job": {"experts": 8, "n": 4096, "k": 7168, "tokens": 8, "top_k": 2},
    "opening": {"ms": {"first": 12.3}, "origin": "hit"},
    "lookup": {"resolve_us": 1.5, "handle_us": 0.5, "audit_events": 0, "system_calls": 0},
    "ranks": {"processes": 8, "kernels": 24, "compiles": 24, "seconds": 9.5},
    "starts": [
        {"library": "chord_jit", "cache": "empty", "runs": [one(1500.0, compiles=1), one(1400.0, compiles=1), one(1600.0, compiles=1)]},
        {"library": "chord_jit", "cache": "full", "runs": [one(25.0, compiles=0), {"failed": "too slow"}, one(27.0, compiles=0)]},
        {"library": "Triton", "cache": "empty", "runs": [one(20.0, error=0.5)]},
        {"library": "humming-kernels", "cache": "empty", "runs": [{"failed": "ImportError: no | such\nmodule"}]},
    ],
}  # fmt: skip


def run(name: str, tmp_path, **more) -> dict:
    return measure_startup.run_part(name, {**SMALL, **more}, measure_startup.environment(tmp_path), 120)


def test_a_process_opens_a_cache_that_another_filled(tmp_path):
    cold, warm = run("opening", tmp_path), run("opening", tmp_path)
    assert (cold["origin"], warm["origin"]) == ("compiled", "hit")
    assert cold["ms"]["first"] > warm["ms"]["first"] > 0 and warm["process_seconds"] * 1e3 > sum(warm["ms"].values())
    found = run("lookup", tmp_path)
    assert not found["on_gpu"] and found["audit_events"] == 0 and found["system_calls"] in (0, "unknown")
    assert 0 < found["handle_us"] < 100 and 0 < found["resolve_us"] < 100


def test_processes_that_start_together_compile_each_kernel_once(tmp_path, monkeypatch):
    specs = measure_startup._specs(2)
    monkeypatch.setattr(measure_startup, "_specs", lambda count: specs[:count])
    found = measure_startup.ranks(3, 2, tmp_path / "ranks", 120)
    assert (found["processes"], found["kernels"], found["compiles"]) == (3, 2, 2) and found["seconds"] > 0


def test_a_part_that_cannot_run_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert "CUDA" in run("ours", tmp_path)["failed"]
    assert "KeyError" in run("no_such_part", tmp_path)["failed"]


def test_the_prebuilt_start_gets_the_kernels_of_the_full_one_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "chord" / "3f").mkdir(parents=True)
    (tmp_path / "chord" / "3f" / "kernel").write_text("x")
    seen = []

    def note(name, settings, environment, timeout):
        seen.append((name, settings, environment))
        return one(1.0)

    monkeypatch.setattr(measure_startup, "run_part", note)
    arguments = SimpleNamespace(timeout=1.0)
    assert measure_startup._prebuilt(arguments, SMALL, [tmp_path]) == [one(1.0)]
    ((name, settings, environment),) = seen
    folder = Path(environment["CHORD_PREBUILT"])
    assert name == "ours" and settings["no_compiler"] and (folder / "3f" / "kernel").read_text() == "x"
    assert environment["CHORD_CACHE_DIR"] == environment["CHORD_LOCK_DIR"] == measure_startup.NOWHERE
    assert all(path.stat().st_mode & 0o222 == 0 for path in (folder, *folder.rglob("*")))
    assert "failed" in measure_startup._prebuilt(arguments, SMALL, [tmp_path / "empty"])[0]


def test_a_part_that_takes_too_long_is_ended(tmp_path):
    found = measure_startup.run_part("opening", SMALL, measure_startup.environment(tmp_path), 0.05)
    assert found == {"failed": "no result within 0.05 s"}


def test_the_environment_holds_no_cache_of_the_caller(tmp_path, monkeypatch):
    for name in ("CHORD_PREBUILT", "TRITON_HOME", "HUMMING_CACHE_DIR", "HOME"):
        monkeypatch.setenv(name, "/elsewhere")
    made = measure_startup.environment(tmp_path, CHORD_CACHE_DIR="/dev/null/x")
    assert "/elsewhere" not in made.values() and made["CHORD_CACHE_DIR"] == "/dev/null/x"


def test_hidden_compilers_are_not_found(tmp_path):
    """The prebuilt start's own precaution, in a process that could compile."""
    code = (
        "from tools.startup.parts import hide_compilers; hide_compilers(); from chord_jit.jit import toolchain;"
        "print(len(toolchain.discover().missing))"
    )
    done = measure_startup.subprocess.run(
        [measure_startup.sys.executable, "-c", code], cwd=ROOT, env=measure_startup.environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout.strip() == "5", done.stderr


def test_a_wrong_result_shows():
    data = Data(Job(2, 128, 256, 4, 2), "cpu")
    right = data.x.new_empty(8, 128)
    codes = (data.words[..., None] >> torch.arange(8, dtype=torch.int32) * 4 & 15).flatten(2).float() - 8
    weights = codes * data.scale.float().repeat_interleave(32, 2)
    for row, expert in enumerate(data.ids.flatten().tolist()):
        right[row] = data.x[row // 2].float() @ weights[expert].T
    assert data.error(right) < 0.005 < WRONG_ABOVE
    assert data.error(right.flip(0)) > WRONG_ABOVE and data.error(data.out) == float("inf")
    ids, owners, padded = data.blocks(16)
    for slot, row in enumerate(ids.tolist()):
        assert row == 8 or data.ids.flatten()[row] == owners[slot // 16]
    assert sorted(row for row in ids.tolist() if row < 8) == list(range(8)) and padded.tolist() == [len(ids)] == [len(owners) * 16]


def test_the_table_shows_medians_failures_and_wrong_results():
    lines = report.table(RUN).splitlines()[2:]
    assert lines[0] == "| chord_jit | empty | 900.0 | 200.0 | 60.0 | 30.0 | 1500.0 | 0.1 |"
    assert lines[1] == "| chord_jit | full | 900.0 | 200.0 | 60.0 | 30.0 | 26.0 | 0.1 (1 of 3 failed) |"
    assert "wrong result: relative error 0.5" in lines[2] and "failed: ImportError: no / such module" in lines[3]
    assert {line.count("|") for line in report.table(RUN).splitlines()} == {9}
    text = report.block(RUN)
    for told in ("NVIDIA H200", "0123456789ab,", "24 compiles", "0 system calls", "12.3 ms", "empty: 1, full: 0", "N=4096"):
        assert told in text
    assert "ranks: failed: nobody came" in report.block({**RUN, "ranks": {"failed": "nobody came"}})


def test_the_page_holds_the_newest_run_or_says_that_there_is_none(tmp_path):
    assert record.newest(tmp_path) is None and report.block(None) == report.NOTHING
    page = (ROOT / "docs" / "cache.md").read_text()
    kept = record.newest(ROOT / "benchmarks" / "results" / "startup")
    assert make_docs.between_marks(page, "startup", report.block(kept)) == page
