"""``chord cache list|verify|clear``: what the cubin cache holds, whether it is whole, and emptying it."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chord_jit.cli.console import console, write
from chord_jit.errors import CacheError, InputError

_DIGEST = re.compile(r"[0-9a-f]{64}")


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
    from chord_jit.jit.roots import cache_root

    root = cache_root()
    if arguments.action == "clear":
        return _clear(root, arguments)
    rows = list(_rows(root))
    damaged = sum(not row.whole for row in rows)
    if arguments.json:
        write(json.dumps({"root": str(root), "damaged": damaged, "entries": [vars(row) for row in rows]}, indent=2))
    elif arguments.action == "list":
        _show(root, rows)
    else:
        console().print(f"{root}: {len(rows)} entries, {damaged} damaged", soft_wrap=True)
    return 1 if damaged and arguments.action == "verify" else 0


def _folders(root: Path) -> Iterator[Path]:
    return (folder for folder in sorted(root.glob("??/*")) if _DIGEST.fullmatch(folder.name) and folder.is_dir())


def _rows(root: Path) -> Iterator[Row]:
    from chord_jit.jit.store import Store

    store = Store(root)
    for folder in _folders(root):
        entry = store.find(folder.name)
        size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
        if entry is None:
            yield Row(folder.name, False, "?", "?", "?", None, None, size)
            continue
        key = json.loads((folder / "entry.json").read_bytes())["key"]
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


def _clear(root: Path, arguments: argparse.Namespace) -> int:
    folders = list(_folders(root))
    if not arguments.yes:
        raise InputError(
            f"clear {root}", "removing entries needs --yes", {"entries": len(folders)}, "look with chord cache list, then add --yes"
        )
    for folder in folders:
        _remove(root, folder)
    if arguments.json:
        write(json.dumps({"root": str(root), "removed": len(folders)}))
    else:
        console().print(f"{root}: removed {len(folders)} entries", soft_wrap=True)
    return 0


def _remove(root: Path, folder: Path) -> None:
    """Out of sight at once, then file by file: another process never meets half an entry."""
    doomed = root / ".staging" / f"cleared.{uuid.uuid4().hex}"
    try:
        doomed.parent.mkdir(mode=0o700, exist_ok=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        raise CacheError(f"remove {folder}", "the entry must be removable", {"error": error}, "check who owns the folder") from None
