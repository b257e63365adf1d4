"""Programs in processes of their own: compute-sanitizer over small calls, and layouts that break their promises.

Under the tool torch allocates without its cache, so that each buffer ends where it ends.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import broken_case, small_case, small_grouped_case, small_layer_case, small_resident_case

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = shutil.which("compute-sanitizer")
#: Program and tool. Broken layouts make kernels write a row twice, which is no race to look for; of the resident ones their file tells.
RUNS = [
    ("small_case", "memcheck"), ("small_case", "racecheck"), ("small_grouped_case", "memcheck"), ("small_grouped_case", "racecheck"),
    ("small_layer_case", "memcheck"), ("small_layer_case", "racecheck"), ("small_resident_case", "memcheck"), ("broken_case", "memcheck"),
]  # fmt: skip
KERNELS = [*small_case.CALLS, *small_resident_case.CALLS, *small_grouped_case.CALLS, *broken_case.CALLS]
#: Seconds for a program: starting Python, torch and the tool takes most of it.
MOST = 300


class Started(dict):
    """Processes by program and tool, each begun when it is first asked for."""

    def __missing__(self, asked: tuple[str, str | None]) -> subprocess.Popen:
        program, tool = asked
        environment, command = dict(os.environ), [sys.executable, "-m", f"tests.gpu.{program}"]
        if tool:
            environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
            command = [SANITIZER, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "99", *command]
        self[asked] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return self[asked]


@pytest.fixture(scope="module")
def runs(gpu):
    """All of them at once, or this one's where workers of pytest-xdist share them; broken layouts also without a tool.

    A layer's kernels are compiled here first.
    """
    small_layer_case.main(gpu)
    started = Started()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        for asked in [("broken_case", None), *(RUNS if SANITIZER else ())]:
            started[asked]
    yield started
    for run in started.values():
        run.kill()
        run.wait()


def output_of(run: subprocess.Popen) -> str:
    """What the program printed; a failure that shows its end where it does not finish."""
    try:
        return run.communicate(timeout=MOST)[0]
    except subprocess.TimeoutExpired:
        run.kill()
        pytest.fail(f"not finished after {MOST} s; its last lines:\n{run.communicate()[0][-2000:]}")


def test_broken_layouts_write_nothing_outside_and_every_launch_ends(runs):
    """A launch that never ends cannot be ended within this process; the last line names it."""
    run = runs["broken_case", None]
    output = output_of(run)
    assert run.returncode == 0 and output.count("fine") >= 6 * len(broken_case.CALLS), f"exit status {run.returncode}:\n{output[-4000:]}"


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not on PATH")
@pytest.mark.parametrize("program, tool", RUNS)
def test_v47_sanitizer_finds_nothing(program, tool, runs):
    output = output_of(runs[program, tool])
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer cannot attach to this device")
    assert runs[program, tool].returncode == 0, f"exit status {runs[program, tool].returncode}:\n{output[-4000:]}"
