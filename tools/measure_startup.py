"""Measures cold and warm starts of chord_jit, of a Triton kernel and of humming-kernels on one job, on the same machine in one run.

    python tools/measure_startup.py OUT.json --commit $(git rev-parse HEAD)

Every start is a process of its own with folders of its own and a time limit; one that fails is recorded with its last words and stops
nothing. Needs a GPU for all but ``opening``, ``lookup`` and ``ranks``, and the ``bench`` extra for the other libraries.
Prints the table; OUT.json goes to ``benchmarks/results/startup/`` to stand in ``docs/cache.md``. Exit code 1 when something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tools import record  # noqa: E402
from tools.startup import report  # noqa: E402
from tools.startup.job import Job  # noqa: E402

PARTS = ROOT / "tools" / "startup" / "parts.py"
NOWHERE = "/dev/null/nowhere"
_RANKS, _KERNELS = 8, 24


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json")
    parser.add_argument("--commit", required=True, help="what is measured: git rev-parse HEAD")
    parser.add_argument("--repeat", type=int, default=3, help="processes for each start; default: 3")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds that one process may take; default: 180")
    parser.add_argument("--libraries", nargs="*", default=["ours", "triton", "humming"], choices=("ours", "triton", "humming"))
    parser.add_argument("--ranks", type=int, default=_RANKS, help=f"processes that start together; default: {_RANKS}")
    parser.add_argument("--kernels", type=int, default=_KERNELS, help=f"kernels that each of them wants; default: {_KERNELS}")
    arguments = parser.parse_args(argv)
    # Left behind where a package of others writes what it does not let be removed.
    with tempfile.TemporaryDirectory(prefix="chord-startup-", ignore_cleanup_errors=True) as folder:
        run = measure(arguments, Path(folder))
    record.save(run, arguments.out)
    print(report.block(run))
    parts = [run["opening"], run["lookup"], run["ranks"], *(one for start in run["starts"] for one in start["runs"])]
    return 1 if any("failed" in part for part in parts) else 0


def measure(arguments: argparse.Namespace, folder: Path) -> dict:
    """The whole run."""
    job = Job()
    settings = {"job": asdict(job)}

    def part(name: str, home: Path, **more: object) -> dict:
        return run_part(name, {**settings, **more}, environment(home), arguments.timeout)

    # The first process of a machine reads its libraries from the disk: not what is compared here.
    part("opening", folder / "opening")
    opening = part("opening", folder / "opening")
    starts = []
    for library in arguments.libraries:
        homes = [folder / f"{library}{index}" for index in range(arguments.repeat)]
        name = {"ours": "chord_jit", "triton": "Triton", "humming": "humming-kernels"}[library]
        starts.append({"library": name, "cache": "empty", "runs": [part(library, home) for home in homes]})
        starts.append({"library": name, "cache": "full", "runs": [part(library, home) for home in homes]})
        if library == "ours":
            starts.append({"library": name, "cache": "prebuilt, no compiler", "runs": _prebuilt(arguments, settings, homes)})
    return {
        **record.origin(arguments.commit), "job": asdict(job), "repeat": arguments.repeat, "opening": opening,
        "lookup": part("lookup", folder / "opening"),
        "ranks": ranks(arguments.ranks, arguments.kernels, folder / "ranks", arguments.timeout), "starts": starts,
    }  # fmt: skip


def environment(home: Path, **more: str) -> dict[str, str]:
    """An environment in which whatever is cached lies below ``home``."""
    home.mkdir(parents=True, exist_ok=True)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("CHORD_", "HUMMING_", "TRITON_"))}
    folders = {
        "HOME": "", "XDG_CACHE_HOME": "xdg", "CHORD_CACHE_DIR": "chord", "CHORD_LOCK_DIR": "locks", "TRITON_CACHE_DIR": "triton",
        "HUMMING_CACHE_DIR": "humming", "HUMMING_TMP_DIR": "humming_tmp", "CUDA_CACHE_PATH": "cuda", "TORCH_EXTENSIONS_DIR": "extensions",
    }  # fmt: skip
    return {**kept, **{name: str(home / folder) for name, folder in folders.items()}, **more}


def run_part(name: str, settings: dict, environment: dict[str, str], timeout: float) -> dict:
    """What one part found, with the seconds that its process took in all; ``failed`` with its last words where it found nothing."""
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, str(PARTS), name, json.dumps(settings)], env=environment, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {timeout:g} s"}
    seconds = round(time.perf_counter() - started, 3)
    for line in reversed(done.stdout.splitlines()):
        try:
            return {**json.loads(line), "process_seconds": seconds}
        except (ValueError, TypeError):
            continue
    return {"failed": (done.stderr.strip() or f"exit code {done.returncode}")[-2000:]}


def _prebuilt(arguments: argparse.Namespace, settings: dict, homes: list[Path]) -> list[dict]:
    """With what the first starts left behind as a read-only folder, nothing that can be written, and no compiler."""
    runs = []
    for home in homes:
        folder = home / "prebuilt"
        if not (home / "chord").is_dir():
            return [{"failed": "the starts before left no kernel"}]
        shutil.copytree(home / "chord", folder)
        read_only(folder)
        closed = environment(home, CHORD_PREBUILT=str(folder), CHORD_CACHE_DIR=NOWHERE, CHORD_LOCK_DIR=NOWHERE)
        runs.append(run_part("ours", {**settings, "no_compiler": True}, closed, arguments.timeout))
    return runs


def read_only(folder: Path) -> None:
    """Take every right to write below ``folder`` away."""
    for path in (folder, *folder.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)


def ranks(processes: int, kernels: int, folder: Path, timeout: float) -> dict:
    """``processes`` that start at the same moment with nothing cached and want the same first ``kernels`` kernels of Kimi K2 EP8."""
    specs = _specs(kernels)
    folder.mkdir(parents=True)
    begun = [
        subprocess.Popen(
            [sys.executable, str(PARTS), "rank", json.dumps({"index": index, "folder": str(folder), "specs": specs})],
            env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for index in range(processes)
    ]
    deadline = time.monotonic() + timeout
    try:
        while len(list(folder.glob("ready.*"))) < processes:
            time.sleep(0.01)
            ended = next((one for one in begun if one.poll()), None)
            if ended or time.monotonic() > deadline:
                return {"failed": ended.communicate()[1][-2000:] if ended else f"not ready within {timeout:g} s"}
        (folder / "go").touch()
        found = []
        for one in begun:
            output, said = one.communicate(timeout=max(deadline - time.monotonic(), 1))
            if one.returncode:
                return {"failed": said[-2000:]}
            found.append(json.loads(output.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        return {"failed": f"no result within {timeout:g} s"}
    finally:
        for one in begun:
            one.kill()
            one.communicate()
    return {
        "processes": processes, "kernels": kernels, "compiles": sum(one["compiles"] for one in found),
        "seconds": round(max(one["ended"] for one in found) - min(one["started"] for one in found), 3),
    }  # fmt: skip


def _specs(count: int) -> list[tuple]:
    from chord_jit import plan
    from chord_jit.device import target
    from chord_jit.families.base import deployment_problems
    from chord_jit.schedules.deployment import Deployment

    problems = deployment_problems(Deployment(7168, 2048, 384, 8, ep=8), target("sm_90a"))
    found = dict.fromkeys(spec for spec, *_ in plan.chosen(problems))
    return [(spec.stem, spec.config, spec.arch) for spec in list(found)[:count]]


if __name__ == "__main__":
    sys.exit(main())
