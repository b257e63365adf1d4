"""Many kernels at once, in processes that see no GPU, from any kind of script."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from chord_jit.device import target
from chord_jit.errors import CompileError, InputError, ToolchainError
from chord_jit.families import base
from chord_jit.jit import counters, engine, warmup
from chord_jit.jit.warmup import warm_up
from chord_jit.jit.workers import Pool
from tests.toy.family import ASSETS, FAMILY, spec
from tests.toy.fixtures import forget
from tests.toy.processes import ROOT

SPECS = [spec(scale) for scale in range(4)]


def test_only_misses_are_compiled_and_the_report_counts(fake):
    engine.build(SPECS[0])
    seen = []
    report = warm_up([*SPECS, SPECS[1]], jobs=2, progress=lambda done, total, one: seen.append((done, total, one)))
    assert (report.compiled, report.hit, report.failed, report.errors) == (3, 1, 0, ())
    assert [(done, total) for done, total, _ in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)] and {one for *_, one in seen} == set(SPECS)
    assert len(fake.compiles()) == 4 and report.seconds > 0
    assert str(report).startswith("4 kernels in") and "3 compiled, 1 found, 0 failed" in str(report)


def test_v20_v36_the_second_run_starts_no_process(fake, monkeypatch):
    warm_up(SPECS, jobs=2)
    forget()
    monkeypatch.setattr(subprocess, "Popen", None)
    report = warm_up(SPECS)
    assert (report.compiled, report.hit) == (0, 4) and counters.counters().compiles == 0


def test_compiles_happen_elsewhere_and_see_no_gpu(fake):
    warm_up(SPECS, jobs=2)
    pids, _, visible = zip(*(line.split(" ") for line in fake.compiles()), strict=True)
    assert str(os.getpid()) not in pids and set(visible) == {""}
    assert 1 <= len(set(pids)) <= 2


@pytest.mark.parametrize("jobs", [0, -1, 1.5, "2"])
def test_jobs_that_are_no_number_of_processes(fake, jobs):
    with pytest.raises(InputError, match=f"jobs={jobs}"):
        warm_up(SPECS, jobs=jobs)


def test_nothing_to_do(fake):
    report = warm_up([])
    assert (report.compiled, report.hit, report.failed) == (0, 0, 0) and fake.compiles() == []


@dataclass(frozen=True)
class Picky:
    """Refuses the kernels with scale 1 and works for the others."""

    inner: object

    def compile(self, request):
        behaviour = "refuse" if "kScale = 1;" in request.source else "good"
        return replace(self.inner, behaviour=behaviour).compile(request)


def test_a_refused_kernel_does_not_stop_the_others(fake, monkeypatch):
    monkeypatch.setattr(warmup.compiler, "current", lambda: Picky(fake))
    report = warm_up(SPECS, jobs=2)
    assert (report.compiled, report.failed) == (3, 1)
    ((failed, error),) = report.errors
    assert failed == SPECS[1] and isinstance(error, CompileError) and error.log == "line 1: no"
    assert str(failed) in str(report) and "line 1: no" in str(report)


def test_a_worker_that_dies_is_an_error_and_the_next_one_works(fake):
    with Pool(replace(fake, behaviour="die")) as pool:
        for _ in range(2):
            with pytest.raises(ToolchainError, match="exit status=-9"):
                engine.build(spec(), pool)
    assert engine.build(spec()).origin == "compiled"


def test_an_interrupted_warm_up_leaves_no_process(fake):
    started = []

    def interrupt(done, total, one):
        raise KeyboardInterrupt

    original = Pool.compile

    class Watched(Pool):
        def compile(self, request):
            result = original(self, request)
            started.extend(worker._process for worker in list(_drain(self)))
            return result

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(warmup, "Pool", Watched)
        warm_up(SPECS, jobs=1, progress=interrupt)
    assert started and all(process.poll() is not None for process in started)


def _drain(pool):
    workers = []
    while not pool._idle.empty():
        workers.append(pool._idle.get())
    for worker in workers:
        pool._idle.put(worker)
    return workers


#: how the script reaches the interpreter: as a file without a guard, from standard input, as an argument
@pytest.mark.parametrize("way", ["file", "stdin", "argument"])
def test_works_from_any_script_with_the_real_compiler(tmp_path, way):
    script = (
        "from pathlib import Path\nfrom chord_jit import assets\nfrom chord_jit.jit import counters\n"
        f"from chord_jit.jit.warmup import warm_up\nfrom tests.toy.family import spec\nwith assets.scope(Path({str(ASSETS)!r})):\n"
        "    report = warm_up([spec(1), spec(2)], jobs=2)\nprint(report.compiled, report.failed, counters.counters().compiles)\n"
    )
    (tmp_path / "script.py").write_text(script)
    command = {"file": [str(tmp_path / "script.py")], "stdin": ["-"], "argument": ["-c", script]}[way]
    done = subprocess.run(
        [sys.executable, *command], input=script if way == "stdin" else None, capture_output=True, text=True, cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "CHORD_CACHE_DIR": str(tmp_path / "cache"), "CHORD_LOCK_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2 0 2\n"


def test_a_family_of_the_tests_needs_no_change_to_the_package(place, monkeypatch):
    """Registered from outside, it is scheduled, rendered, compiled by the real compiler, cached and warmed up."""
    monkeypatch.setitem(base.FAMILIES, "toy", "tests.toy.family")
    family = base.family("toy")
    problems = list(family.deployment(None, target("sm_90a")))
    specs = [family.spec(problem, family.schedule(problem)) for problem in problems]
    assert family is FAMILY and len(set(specs)) == 3
    assert warm_up(specs).compiled == 3
    forget()
    assert [engine.build(one).origin for one in specs] == ["hit"] * 3
    assert len(place.entries()) == 3
