"""``chord pack SRC DST``: a checkpoint's experts in the packed form, for one rank or all of them, to be loaded without conversion."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from chord_jit.cli.arguments import positive
from chord_jit.cli.console import console, counting, write

if TYPE_CHECKING:
    from chord_jit.formats.packed_write import Packed

_MOST_LAYERS = 10_000


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("pack", help="write a checkpoint's experts in the packed form, loaded by mapping")
    parser.add_argument("source", metavar="SRC", type=Path, help="folder of a compressed-tensors INT4 checkpoint")
    parser.add_argument("target", metavar="DST", type=Path, help="folder to make, or to go on with")
    parser.add_argument("--ep", type=positive, default=1, help="ranks that share the experts")
    parser.add_argument("--tp", type=positive, default=1, help="ranks that share each expert's neurons")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=0, help="whose share: ep_rank * tp + tp_rank; default: %(default)s")
    which.add_argument("--all-ranks", action="store_true", help="every rank's share, each in a folder of its own in DST")
    parser.add_argument("--layers", type=layers, nargs="+", metavar="L", help="layers, as 3 or 5-8; default: all MoE layers")
    parser.add_argument("--separate", action="store_true", help="leave gate and up rows apart: without it they are interleaved, for SwiGLU")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def layers(text: str) -> range:
    """``7`` or ``5-8``."""
    first, dash, last = text.partition("-")
    try:
        found = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a layer or first-last, not {text!r}") from None
    if not found or found.start < 0 or found.stop > _MOST_LAYERS:
        raise argparse.ArgumentTypeError(f"must be layers in rising order, below {_MOST_LAYERS}, not {text!r}")
    return found


def run(arguments: argparse.Namespace) -> int:
    """Packs, and prints what was written and what was there."""
    started = time.perf_counter()
    ranks = arguments.ep * arguments.tp
    if arguments.all_ranks:
        from chord_jit.formats.packed_ranks import rank_name

        done = [_pack(arguments, arguments.target / rank_name(rank, ranks), rank) for rank in range(ranks)]
    else:
        done = [_pack(arguments, arguments.target, arguments.rank)]
    seconds = time.perf_counter() - started
    if arguments.json:
        rows = [{"path": str(one.folder), "written": one.written, "present": one.present, "bytes": one.bytes} for one in done]
        write(json.dumps({"ep": arguments.ep, "tp": arguments.tp, "folders": rows, "seconds": round(seconds, 3)}, indent=2))
        return 0
    for one in done:
        told = f"{len(one.written)} layers written, {len(one.present)} were there, {one.bytes / 2**20:.1f} MiB in all"
        console().print(f"{one.folder}: {told}", soft_wrap=True)
    console().print(f"packed in {seconds:.1f} s")
    return 0


def _pack(arguments: argparse.Namespace, target: Path, rank: int) -> Packed:
    from chord_jit.formats.packed_write import pack_checkpoint

    asked = None if arguments.layers is None else [layer for part in arguments.layers for layer in part]
    with counting(f"experts of rank {rank}") as progress:
        return pack_checkpoint(
            arguments.source, target, layers=asked, ep=arguments.ep, tp=arguments.tp, rank=rank, interleave=not arguments.separate,
            progress=progress,
        )  # fmt: skip
