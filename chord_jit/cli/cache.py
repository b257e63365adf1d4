"""``chord cache list|verify|clear``: what the cubin cache holds, whether it is whole, and emptying it."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chord_jit.cli.console import console, write
from chord_jit.errors import InputError

if TYPE_CHECKING:
    from chord_jit.jit.store import Store


@dataclass(frozen=True)
class Row:
    """One entry folder. ``whole``: every byte matches its checksum and its key."""

    digest: str
    whole: bool
    stem: str
    arch: str
    config: str
    registers: object
    spill_bytes: object
    size: int


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("cache", help="list, verify or clear the cubin cache")
    parser.add_argument("action", choices=("list", "verify", "clear"))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--yes", action="store_true", help="clear: really remove the entries")


def run(arguments: argparse.Namespace) -> int:
    """Does one action on the root that ``CHORD_CACHE_DIR`` names. ``verify`` returns 1 when an entry is damaged."""
    from chord_jit.jit.store import user_store

    store = user_store()
    root = store.root
    if arguments.action == "clear":
        return _clear(store, arguments)
    rows = list(_rows(store))
    damaged = sum(not row.whole for row in rows)
    if arguments.json:
        write(json.dumps({"root": str(root), "damaged": damaged, "entries": [vars(row) for row in rows]}, indent=2))
    elif arguments.action == "list":
        _show(root, rows)
    else:
        console().print(f"{root}: {len(rows)} entries, {damaged} damaged", soft_wrap=True)
    return 1 if damaged and arguments.action == "verify" else 0


def _rows(store: Store) -> Iterator[Row]:
    from chord_jit.jit.record import RECORD

    for folder in store.folders():
        entry = store.find(folder.name)
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        if entry is None:
            yield Row(folder.name, False, "?", "?", "?", None, None, size)
            continue
        key = json.loads((folder / RECORD).read_bytes())["key"]
        config = " ".join(re.sub(r": \w+ = ", "=", line) for line in key["config"].splitlines())
        facts = entry.facts
        yield Row(folder.name, True, key["stem"], key["arch"], config, facts.get("registers"), facts.get("spill_bytes"), size)


def _show(root: Path, rows: list[Row]) -> None:
    from rich.table import Table

    table = Table(title=f"{root}: {len(rows)} entries", title_justify="left")
    for column in ("key", "kernel", "arch", "config", "registers", "spills", "KiB"):
        table.add_column(column, overflow="fold")
    for row in rows:
        state = row.stem if row.whole else "[bold red]damaged"
        table.add_row(row.digest[:12], state, row.arch, row.config, str(row.registers), str(row.spill_bytes), f"{row.size / 1024:.0f}")
    console().print(table)


def _clear(store: Store, arguments: argparse.Namespace) -> int:
    root, folders = store.root, list(store.folders())
    if not arguments.yes:
        raise InputError(
            f"clear {root}", "removing entries needs --yes", {"entries": len(folders)}, "look with chord cache list, then add --yes"
        )
    for folder in folders:
        store.remove(folder)
    if arguments.json:
        write(json.dumps({"root": str(root), "removed": len(folders)}))
    else:
        console().print(f"{root}: removed {len(folders)} entries", soft_wrap=True)
    return 0
