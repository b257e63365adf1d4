"""``chord cache why|export|import``: keys side by side, and entries in one file."""

from __future__ import annotations

import argparse
import difflib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from chord_jit.cli.arguments import entry
from chord_jit.cli.console import console, write
from chord_jit.errors import CacheError, InputError

_NOW = "asked for now"
_MOST_LINES = 40


def why(arguments: argparse.Namespace) -> int:
    """Every field in which two keys differ, and where their sources do."""
    from chord_jit.jit import compare, record

    store, one = entry(arguments.one)
    text = store.contents(one.digest)[record.SOURCE].decode()
    if arguments.other is None:
        key = compare.asked_now(one.fields)
        if key is None:
            raise InputError(
                f"compare {one.digest[:16]} with what would be asked for now", "this installation must know the kernel and its target",
                {"kernel": one.fields.get("stem"), "arch": one.fields.get("arch")}, "compare two entries: chord cache why A B",
            )
        name, digest, fields, other_text = _NOW, key.digest, key.fields, key.source
    else:
        other_store, other = entry(arguments.other)
        name, digest, fields = other.digest[:12], other.digest, other.fields
        other_text = other_store.contents(digest)[record.SOURCE].decode()
    found = compare.differences(one.fields, fields)
    lines = list(difflib.unified_diff(text.splitlines(), other_text.splitlines(), one.digest[:12], name, lineterm="", n=0))
    if arguments.json:
        body = {"one": one.digest, "other": digest, "now": arguments.other is None, "same": not found}
        write(json.dumps({**body, "differences": [asdict(each) for each in found], "source": lines}, indent=2))
        return 0
    if not found:
        told = "what would be asked for now: a call finds it" if arguments.other is None else "the same entry"
        console().print(f"{one.digest[:12]}: no difference, {told}", soft_wrap=True)
        return 0
    _show(one.digest[:12], name, found)
    if lines:
        write("\n".join(lines[:_MOST_LINES]))
    if len(lines) > _MOST_LINES:
        write(f"... {len(lines) - _MOST_LINES} lines more, see --json")
    return 0


def _show(one: str, other: str, found: list) -> None:
    from rich.table import Table

    table = Table(title=f"{len(found)} differences", title_justify="left")
    for column in ("field", one, other):
        table.add_column(column, overflow="fold")
    for each in found:
        label = f"{each.field}: {each.name}" if each.name else each.field
        table.add_row(label, *("not there" if text is None else text for text in (each.one, each.other)))
    console().print(table)


def export(arguments: argparse.Namespace) -> int:
    """One archive of the named entries, or of every whole one. 1 when a damaged entry had to be left out."""
    from chord_jit.jit import archive
    from chord_jit.jit.store import stores

    if arguments.kernels:
        named = [entry(prefix) for prefix in arguments.kernels]
        chosen = {item.digest: store for store, item in named}
    else:
        chosen = {folder.name: store for store in reversed(stores()) for folder in store.folders()}
    contents, damaged = {}, []
    for digest, store in chosen.items():
        try:
            contents[digest] = store.contents(digest)
        except CacheError as error:
            damaged.append(f"{digest[:16]}: {error.values['problem']}")
    if not contents:
        roots = ", ".join(str(store.root) for store in stores())
        raise InputError(
            f"export to {arguments.file}", "there must be at least one whole entry", {"searched": roots, "damaged": len(damaged)},
            "warm up first: chord warmup CONFIG",
        )
    archive.export(contents, arguments.file)
    size = arguments.file.stat().st_size
    if arguments.json:
        write(json.dumps({"file": str(arguments.file), "entries": sorted(contents), "bytes": size, "left_out": damaged}, indent=2))
    else:
        console().print(f"{arguments.file}: {len(contents)} entries, {size / 1024:.0f} KiB", soft_wrap=True)
        for problem in damaged:
            console().print(f"left out {problem}", soft_wrap=True)
    return 1 if damaged else 0


def bring(arguments: argparse.Namespace) -> int:
    """The entries of an archive, all or none; what this installation or this GPU will not ask for is a notice."""
    from chord_jit.jit import archive
    from chord_jit.jit.store import user_store

    store = user_store()
    done = archive.load(arguments.file, store)
    notices = list(_notices(done.keys, done.made_by))
    if arguments.json:
        body = {"root": str(store.root), "new": list(done.new), "present": list(done.present)}
        write(json.dumps({**body, "made_by": done.made_by, "notices": notices}, indent=2))
    else:
        console().print(f"{store.root}: {len(done.new)} new entries, {len(done.present)} were there", soft_wrap=True)
        for notice in notices:
            console().print(f"notice: {notice}", soft_wrap=True)
    return 0


def _notices(keys: tuple[Mapping[str, str], ...], made_by: str):
    from chord_jit import device
    from chord_jit.jit import compare
    from chord_jit.version import VERSION

    if made_by != VERSION:
        yield f"made by chord_jit {made_by}, this is {VERSION}"
    reasons: Counter[str] = Counter()
    for fields in keys:
        now = compare.asked_now(fields)
        if now is None:
            reasons[f"{fields.get('stem')} for {fields.get('arch')} is not known here"] += 1
            continue
        labels = {each.field: (each.one, each.other) for each in compare.differences(fields, now.fields) if each.field != "source"}
        if labels:
            reasons["; ".join(_told(label, *texts) for label, texts in labels.items())] += 1
    here = device.current()
    if here is not None:
        reasons.update(f"made for {fields.get('arch')}, the GPU here is {here.arch}" for fields in keys if fields.get("arch") != here.arch)
    for reason, count in reasons.items():
        yield f"{count} entries will not be asked for: {reason}"


def _told(label: str, one: str | None, other: str | None) -> str:
    return f"other {label}" if label in ("headers", "config", "flags") else f"{label} {one}, here {other}"
