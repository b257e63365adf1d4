"""``chord inspect KERNEL``: registers, spills, shared memory, occupancy, instructions and main loop of cached kernels."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from chord_jit.cli.arguments import entry, positive
from chord_jit.cli.console import console, write
from chord_jit.errors import ChordError, InputError

if TYPE_CHECKING:
    from chord_jit.jit.catalog import Item
    from chord_jit.jit.store import Store
    from chord_jit.schedules.schedule import Schedule

_LINES, _INSTRUCTIONS = 40, 12


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("inspect", help="what the compiler made of a kernel of the cache")
    parser.add_argument(
        "kernel", metavar="KERNEL",
        help="first digits of an entry's key, as chord cache list shows them, or a schedule: every kernel made with it",
    )
    parser.add_argument("--lines", type=positive, default=_LINES, help=f"most lines of the main loop to show; default: {_LINES}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Prints what is known. Without nvdisasm everything but the machine code."""
    by_schedule = " " in arguments.kernel.strip()
    bodies = [_body(store, item) for store, item in (_made_with(arguments.kernel) if by_schedule else [entry(arguments.kernel)])]
    if arguments.json:
        write(json.dumps({"schedule": arguments.kernel, "kernels": bodies} if by_schedule else bodies[0], indent=2))
    else:
        for body in bodies:
            _show(body, arguments.lines)
    return 0


def schedule_of(stem: str, config: Mapping[str, int | bool | str]) -> Schedule | None:
    """The schedule that ``families.kernels.spec`` made these fields of; None for a kernel without one. CM is in no kernel."""
    from chord_jit.formats.w4a16_layout import PANEL, UNIT_K
    from chord_jit.schedules.schedule import Schedule

    try:
        # Where rows stay in shared memory (w4a16_resident) a stage is one panel over whole K, and a CTA has its SM to itself.
        blocks = config.get("kStageBlocks", -(-config["kK"] // UNIT_K))
        return Schedule(
            stem, config["kBM"], config.get("kPanels", 1) * PANEL, blocks * UNIT_K, config["kStages"],
            cn=config.get("kShare", 1), split=2 if config.get("kCuts") else config.get("kSplit", 1), ctas=config.get("kCtas", 1),
        )  # fmt: skip
    except (KeyError, TypeError):
        return None


def _made_with(text: str) -> list[tuple[Store, Item]]:
    """Every kernel made with the schedule that prints as ``text``, and the first store that has it. Raises ``InputError``."""
    from chord_jit.jit import compare
    from chord_jit.jit.store import stores
    from chord_jit.schedules.schedule import parse

    wanted, searched = parse(text), stores()
    found: dict[str, tuple[Store, Item]] = {}
    for store in searched:
        for item in store.items():
            if not item.problem:
                spec = compare.spec_of(item.fields)
                if schedule_of(spec.stem, dict(spec.config)) == wanted:
                    found.setdefault(item.digest, (store, item))
    if not found:
        raise InputError(
            f"find kernels made with {wanted}", "at least one whole entry must have this schedule",
            {"searched": ", ".join(str(store.root) for store in searched)}, "chord warmup lists the schedules of a deployment",
        )
    return list(found.values())


def _body(store: Store, item: Item) -> dict[str, object]:
    from chord_jit.jit import compare, record, sass

    spec = compare.spec_of(item.fields)
    cubin = store.contents(item.digest)[record.CUBIN]
    body = {
        "digest": item.digest, "stem": spec.stem, "arch": spec.arch, "config": dict(spec.config), "symbol": item.symbol,
        "cubin_bytes": len(cubin), "compiler": f"{item.fields['compiler']} {item.fields['compiler version']}", "facts": dict(item.facts),
        "occupancy": _occupancy(spec.arch, dict(spec.config), item.facts),
    }  # fmt: skip
    try:
        code = sass.disassemble(cubin)
        loop = asdict(code.loop) if code.loop else None
        body |= {"instructions": dict(code.counts.most_common()), "loop": loop, "sass": list(code.excerpt), "no_sass": ""}
    except ChordError as error:
        body |= {"instructions": {}, "loop": None, "sass": [], "no_sass": str(error)}
    return body


def _occupancy(arch: str, config: dict, facts) -> dict[str, object] | None:
    """None where the compiler's report or the config lacks a number."""
    from chord_jit import device
    from chord_jit.jit.occupancy import occupancy

    known = (facts.get("registers"), config.get("kThreads"), facts.get("shared_bytes"))
    if arch not in device.TARGETS or not all(isinstance(number, int) for number in known):
        return None
    registers, threads, static = known
    shared = static + config.get("kSharedBytes", 0)
    found = occupancy(device.target(arch), registers, threads, shared)
    return {"threads": threads, "shared_bytes": shared, **asdict(found), "limited_by": found.limited_by}


def _show(body: dict, lines: int) -> None:
    from rich.table import Table

    table = Table(title=f"{body['stem']} {body['arch']} {body['digest'][:16]}", title_justify="left", show_header=False)
    facts, held = body["facts"], body["occupancy"]
    rows = {
        "config": " ".join(f"{name}={value}" for name, value in body["config"].items()),
        "compiler": f"{body['compiler']}, cubin of {body['cubin_bytes'] / 1024:.0f} KiB",
        "registers": f"{facts.get('registers', '?')} a thread, {facts.get('barriers', '?')} barriers",
        "spills": f"{facts.get('spill_bytes', '?')} bytes a thread, stack {facts.get('stack_bytes', '?')} bytes",
        "warnings": "; ".join(facts.get("warnings", ())) or "none",
    }
    if held:
        rows["shared memory"] = f"{held['shared_bytes']} bytes a CTA"
        ctas = f"{held['ctas']} CTAs of {held['threads']} threads an SM"
        rows["occupancy"] = f"{ctas}, {held['part']:.0%} of its warps; limited by {held['limited_by']}"
    if body["instructions"]:
        most = list(body["instructions"].items())[:_INSTRUCTIONS]
        total = sum(body["instructions"].values())
        rows["instructions"] = f"{total}: " + ", ".join(f"{name} {count}" for name, count in most)
    for name, value in rows.items():
        table.add_row(name, value)
    console().print(table)
    if body["no_sass"]:
        write(body["no_sass"])
    elif body["loop"]:
        write(f"main loop, {len(body['sass'])} lines, {body['loop']['tensor']} of them tensor-core instructions:")
        write("\n".join(body["sass"][:lines]))
        if len(body["sass"]) > lines:
            write(f"... {len(body['sass']) - lines} lines more: --lines, --json")
