"""``chord bench``: our kernels against a read-only kernel and against a peer, on the GPU at hand."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from chord_jit import device, knobs
from chord_jit.cli.arguments import positive
from chord_jit.cli.console import bar, console, write

#: Sets of single calls, which can be tuned as well, and all sets.
CALL_SETS = ("decode", "tp8", "prefill", "prefill_tp8", "grouped", "ragged", "ragged_few", "ep", "smoke", "smoke_grouped")
CASE_SETS = (*CALL_SETS, "layer")


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("bench", help="time the kernels against a read-only kernel and a peer, on a GPU")
    parser.add_argument("--cases", choices=CASE_SETS, default="decode", help="which set (default: %(default)s)")
    parser.add_argument(
        "--tokens", "--rows", dest="sizes", type=int, nargs="+", default=[], metavar="N",
        help="only these tokens, or rows per expert, of the set",
    )  # fmt: skip
    parser.add_argument("--layers", nargs="+", default=[], metavar="NAME", help="only these layers of the set")
    parser.add_argument("--rounds", type=positive, default=500, metavar="N", help="most samples of a variant (default: %(default)s)")
    parser.add_argument("--flush", choices=("write", "read"), default="write", help="how L2 is evicted; read runs are no evidence")
    parser.add_argument("--schedule", metavar="TEXT", help="force this schedule, e.g. 'w4a16_mma 16x128x512 s3'; such a run is no evidence")
    parser.add_argument("--no-peer", action="store_true", help="leave the peer out; such a run is no evidence")
    parser.add_argument("--no-energy", action="store_true", help="skip the energy loops, 0.7 s a variant")
    parser.add_argument("--commit", default="unknown", metavar="HASH", help="commit of the tree, recorded in the result")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write the result as JSON into this folder")
    parser.add_argument("--json", action="store_true", help="print the result as JSON instead of the table")


def run(arguments: argparse.Namespace) -> int:
    """Prints the table. 0 when everything was measured, 1 when something failed, 2 without a GPU or for bad arguments."""
    if not device.present():
        sys.stderr.write("chord bench: a GPU is needed to time kernels, and torch finds none here; nothing was measured\n")
        return 2
    from chord_jit.bench import ours, peers, report, results, targets
    from chord_jit.bench.cases import select
    from chord_jit.bench.run import Request
    from chord_jit.schedules.schedule import parse

    peer = not arguments.no_peer
    if peer and not peers.available():
        sys.stderr.write(f"chord bench: {peers.NAME} is not installed (pip install '.[bench]', in the checkout): no peer, not evidence\n")
        peer = False
    schedule = parse(arguments.schedule) if arguments.schedule else None
    request = Request(
        arguments.cases, select(arguments.cases, tuple(arguments.sizes), tuple(arguments.layers)), arguments.rounds, peer,
        not arguments.no_energy, arguments.flush, arguments.commit, command(arguments), str(schedule or ""),
    )  # fmt: skip

    def keep(result: dict) -> None:
        """After each case, so that a run that is cut short leaves what it measured."""
        if arguments.out:
            results.save(result, arguments.out)

    with knobs.scope(**ours.overrides(schedule)) if schedule else nullcontext():
        result = _with_progress(request, keep)
    if arguments.json:
        write(json.dumps(result, indent=1))
    else:
        console().print(report.table(result))
    if arguments.out:
        sys.stderr.write(f"wrote {results.save(result, arguments.out)}\n")
    return 1 if result["failures"] or any(targets.median(row, "ours") is None for row in result["rows"]) else 0


def command(arguments: argparse.Namespace) -> str:
    """The command as a document quotes it: what decides the numbers, no places."""
    words = ["chord", "bench", "--cases", arguments.cases]
    words += ["--tokens", *map(str, arguments.sizes)] if arguments.sizes else []
    words += ["--layers", *arguments.layers] if arguments.layers else []
    words += ["--rounds", str(arguments.rounds)]
    words += ["--flush", arguments.flush] if arguments.flush != "write" else []
    words += ["--schedule", arguments.schedule] if arguments.schedule else []
    words += [flag for flag, given in (("--no-peer", arguments.no_peer), ("--no-energy", arguments.no_energy)) if given]
    return shlex.join(words)


def _with_progress(request, keep: Callable[[dict], None]) -> dict:
    from chord_jit.bench.run import run as run_cases

    with bar() as progress:
        task = progress.add_task("starting", total=len(request.cases))

        def show(text: str, done: int, total: int) -> None:
            progress.update(task, description=text, completed=done, total=total)
            if not sys.stderr.isatty():
                sys.stderr.write(f"{done}/{total} {text}\n")

        result = run_cases(request, show, keep)
        progress.update(task, description="measured", completed=len(request.cases))
    return result
