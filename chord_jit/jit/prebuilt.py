"""Why a folder of prebuilt kernels does not have the one that was asked for, when it was made for something else."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from chord_jit.jit import compare
from chord_jit.jit.notices import once
from chord_jit.jit.store import Store

#: Fields that differ from kernel to kernel of one installation.
_OWN = ("config", "source")


def explain(store: Store, fields: Mapping[str, str]) -> None:
    """One notice for each root that is absent, of another version or for another architecture; none where it just lacks the kernel."""
    problem = _absent(store) or (_mismatch(store, fields) if store.kind in ("prebuilt", "wheel") else "")
    if problem:
        once(f"miss {store.root} {problem}", f"kernel cache: {store.root}: {problem}.")


def _absent(store: Store) -> str:
    if store.root.is_dir():
        return ""
    parent = store.root.parent
    if not parent.is_dir():
        return f"the {store.kind} folder is not there"
    others = sorted(path.name for path in parent.glob("chord_jit-v*"))
    return f"no entries of this layout; the folder has {', '.join(others) or 'none of any other'}"


def _mismatch(store: Store, fields: Mapping[str, str]) -> str:
    made_for = _made_for(store.root, store.trusted)
    same_target = [other for other in made_for if other["arch"] == fields["arch"]]
    if made_for and not same_target:
        there = ", ".join(sorted({other["arch"] for other in made_for}))
        return f"its kernels are for {there}, none for {fields['arch']}"
    alike = [other for other in same_target if other["stem"] == fields["stem"]]
    here = {label: text for label, text in fields.items() if label not in _OWN}
    if not alike or here in alike:
        return ""
    changes = min((compare.differences(other, here) for other in alike), key=len)
    # A field of several lines, as the headers, is named once.
    shown = [change.field if change.name else f"{change.field} ({change.one} there, {change.other} here)" for change in changes]
    return f"its kernels were made with other versions of {', '.join(dict.fromkeys(shown))}"


@lru_cache(maxsize=16)
def _made_for(root: Path, trusted: bool) -> tuple[dict[str, str], ...]:
    """What the kernels there have in common, each once. Read once in a process: such a folder does not change."""
    found: list[dict[str, str]] = []
    for item in Store(root, "prebuilt", trusted).items():
        common = {label: text for label, text in item.fields.items() if label not in _OWN}
        if common and common not in found:
            found.append(common)
    return tuple(found)
