"""``chord verify PATH``: whether what ``chord pack`` wrote is still what it wrote, and what its source says."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from chord_jit.cli.arguments import positive
from chord_jit.cli.console import console, counting, write


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("verify", help="check every byte of a packed checkpoint; exit code 1 when one is wrong")
    parser.add_argument("path", metavar="PATH", type=Path, help="folder of chord pack: of one rank, or of all of them")
    parser.add_argument("--source", metavar="SRC", type=Path, help="compare codes and scales with this checkpoint, which it was made of")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument("--experts", type=positive, default=2, metavar="N", help="experts a layer to compare; default: %(default)s")
    amount.add_argument("--all-experts", action="store_true", help="compare every expert")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints each problem. 1 when there is one, 2 when there is nothing to check."""
    from chord_jit.formats.packed_check import Checked, verify_packed
    from chord_jit.formats.packed_index import INDEX
    from chord_jit.formats.packed_ranks import rank_folders, rank_problems

    ranks = rank_folders(arguments.path)
    own = not ranks or (arguments.path / INDEX).exists()
    together = rank_problems(ranks) + ["it holds an index of its own beside folders of ranks"] * own if ranks else []
    found = {}
    for folder in [arguments.path] * own + ranks:
        with counting(f"layers of {folder.name}") as progress:
            sample = None if arguments.all_experts else arguments.experts
            found[folder] = verify_packed(folder, source=arguments.source, sample=sample, progress=progress)
    if together:
        alone = found.get(arguments.path, Checked(0, 0, 0, ()))
        found[arguments.path] = replace(alone, problems=(*alone.problems, *together))
    wrong = sum(len(checked.problems) for checked in found.values())
    if arguments.json:
        rows = [
            {"path": str(folder), "layers": one.layers, "bytes": one.bytes, "experts_compared": one.compared, "problems": one.problems}
            for folder, one in found.items()
        ]
        write(json.dumps({"whole": not wrong, "folders": rows}, indent=2))
        return 1 if wrong else 0
    for folder, one in found.items():
        compared = f", {one.compared} experts as in the source" if arguments.source and not one.problems else ""
        state = f"{len(one.problems)} problems" if one.problems else f"every byte right{compared}"
        console().print(f"{folder}: {one.layers} layers, {one.bytes / 2**20:.1f} MiB, {state}", soft_wrap=True)
        for problem in one.problems:
            console().print(f"  {problem}", soft_wrap=True)
    return 1 if wrong else 0
