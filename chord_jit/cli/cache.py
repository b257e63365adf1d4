"""``chord cache``: what the cubin caches hold, whether it is whole, why two entries differ, and moving or removing entries."""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from chord_jit.cli.arguments import size
from chord_jit.cli.console import console, write
from chord_jit.errors import InputError

if TYPE_CHECKING:
    from chord_jit.jit.catalog import Item
    from chord_jit.jit.store import Store

_ONE = "first digits of an entry's key, enough to tell it from the others"


def add_parser(subparsers) -> None:
    parser = subparsers.add_parser("cache", help="list, verify, compare, move or remove the kernels of the cubin cache")
    actions = parser.add_subparsers(dest="action", required=True)

    def add(name: str, help: str) -> argparse.ArgumentParser:
        action = actions.add_parser(name, help=help)
        action.add_argument("--json", action="store_true", help="print one JSON object")
        return action

    add("list", "every entry of every root")
    add("verify", "check every byte of every entry; exit code 1 when one is damaged")
    why = add("why", "in which fields two keys differ, or one from what would be asked for now")
    why.add_argument("one", metavar="A", help=_ONE)
    why.add_argument("other", metavar="B", nargs="?", help=_ONE + "; default: the key of the same kernel under this installation")
    prune = add("prune", "remove the least recently used entries of the user's root")
    prune.add_argument("--max-bytes", type=size, required=True, metavar="N", help="what may stay, with K, M, G or T; 0 removes every entry")
    export = add("export", "write entries into one archive")
    export.add_argument("file", type=Path, metavar="FILE", help="the archive to make")
    export.add_argument("kernels", metavar="A", nargs="*", help=_ONE + "; default: all entries of all roots")
    bring = add("import", "add the entries of an archive to the user's root")
    bring.add_argument("file", type=Path, metavar="FILE", help="an archive of chord cache export")
    clear = add("clear", "remove every entry of the user's root")
    clear.add_argument("--yes", action="store_true", help="really remove them")


def run(arguments: argparse.Namespace) -> int:
    """Does one action. ``verify`` returns 1 when an entry is damaged, ``export`` when one had to be left out."""
    from chord_jit.cli import cache_moves

    actions = {
        "list": _list, "verify": _list, "prune": _prune, "clear": _clear, "why": cache_moves.why, "export": cache_moves.export,
        "import": cache_moves.bring,
    }  # fmt: skip
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    from chord_jit.jit.store import stores

    thorough = arguments.action == "verify"
    found = [(store, list(store.verify() if thorough else store.items())) for store in stores()]
    damaged = sum(bool(item.problem) for _, items in found for item in items)
    if arguments.json:
        roots = [{"path": str(store.root), "kind": store.kind, "entries": len(items), "bytes": _bytes(items)} for store, items in found]
        rows = [_row(store, item) for store, items in found for item in items]
        write(json.dumps({"root": str(found[0][0].root), "roots": roots, "damaged": damaged, "entries": rows}, indent=2))
        return 1 if damaged and thorough else 0
    for store, items in found:
        if arguments.action == "list" and items:
            _show(store, items)
        bad = sum(bool(item.problem) for item in items)
        checked = "" if not thorough else ", every byte right" if not bad else f", {bad} damaged"
        console().print(f"{store.root} ({store.kind}): {len(items)} entries, {_bytes(items) / 1024:.0f} KiB{checked}", soft_wrap=True)
        for item in items if thorough else ():
            if item.problem:
                console().print(f"damaged {item.folder}: {item.problem}", soft_wrap=True)
    return 1 if damaged and thorough else 0


def _bytes(items: Iterable[Item]) -> int:
    return sum(item.size for item in items)


def _row(store: Store, item: Item) -> dict[str, object]:
    return {
        "digest": item.digest, "root": store.kind, "whole": not item.problem, "problem": item.problem,
        "stem": item.fields.get("stem", "?"), "arch": item.fields.get("arch", "?"), "config": config_of(item),
        "registers": item.facts.get("registers"), "spill_bytes": item.facts.get("spill_bytes"), "size": item.size,
        "last_used": item.last_used,
    }  # fmt: skip


def config_of(item: Item) -> str:
    """The compile-time fields of an entry on one line."""
    return " ".join(re.sub(r": \w+ = ", "=", line) for line in item.fields.get("config", "?").splitlines())


def _show(store: Store, items: list[Item]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{store.root} ({store.kind})", title_justify="left")
    for column in ("key", "kernel", "arch", "config", "registers", "spills", "KiB", "last used"):
        table.add_column(column, overflow="fold")
    for item in items:
        row = _row(store, item)
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.last_used))
        state = row["stem"] if row["whole"] else Text("damaged", style="bold red")
        numbers = (str(row["registers"]), str(row["spill_bytes"]), f"{item.size / 1024:.0f}")
        table.add_row(item.digest[:12], state, row["arch"], row["config"], *numbers, used)
    console().print(table)


def _prune(arguments: argparse.Namespace) -> int:
    from chord_jit.jit.store import user_store

    store = user_store()
    pruned = store.prune(arguments.max_bytes)
    if arguments.json:
        write(json.dumps({"root": str(store.root), **vars(pruned)}))
    else:
        done = f"removed {pruned.entries} entries ({pruned.freed / 1024:.0f} KiB) and {pruned.swept} leftovers"
        console().print(f"{store.root}: {done}; {pruned.kept / 1024:.0f} KiB stay", soft_wrap=True)
    return 0


def _clear(arguments: argparse.Namespace) -> int:
    from chord_jit.jit.store import user_store

    store = user_store()
    folders = list(store.folders())
    if not arguments.yes:
        raise InputError(
            f"clear {store.root}", "removing entries needs --yes", {"entries": len(folders)}, "look with chord cache list, then add --yes"
        )
    for folder in folders:
        store.remove(folder)
    if arguments.json:
        write(json.dumps({"root": str(store.root), "removed": len(folders)}))
    else:
        console().print(f"{store.root}: removed {len(folders)} entries", soft_wrap=True)
    return 0
