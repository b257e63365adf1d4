"""compute-sanitizer over a few small calls; torch allocates without its cache, so that each buffer ends where it ends."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chord_jit import knobs, warm_up
from tests.gpu.small_case import CASES
from tests.gpu.workload import problem_of

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = shutil.which("compute-sanitizer")
TOOLS = ("memcheck", "racecheck")


@pytest.fixture(scope="module")
def runs(gpu):
    """Both tools at once, each with the small calls as its program."""
    for case, overrides in CASES:
        with knobs.scope(**overrides):
            warm_up([problem_of(case, gpu)])
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    started = {}
    for tool in TOOLS:
        options = ["--tool", tool, "--report-api-errors", "no", "--error-exitcode", "99"]
        command = [SANITIZER, *options, sys.executable, "-m", "tests.gpu.small_case"]
        started[tool] = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    yield started
    for run in started.values():
        run.kill()
        run.wait()


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not on PATH")
@pytest.mark.parametrize("tool", TOOLS)
def test_sanitizer_finds_nothing(tool, runs):
    output, _ = runs[tool].communicate(timeout=300)
    if "Device not supported" in output:
        pytest.skip("compute-sanitizer cannot attach to this device")
    assert runs[tool].returncode == 0, output[-4000:]
