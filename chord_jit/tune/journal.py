"""What a tuning run has found so far: JSON lines in a file, so that a run that is cut short loses nothing but its last step.

The first line is the header: where and with what the rest was measured. Then one line for each thing that happened, by
contest and schedule: ``started`` (its first launch comes next), ``checked`` (it is right), ``refused`` (why), ``turns``
(a stage's samples come next), ``timed`` (a schedule's samples in a stage, and its error against FP64), ``reader`` (a
read-only kernel's time), ``died`` (a process did, during turns). A line is on disk when ``append`` returns. A last line
without its end was torn by a kill; it is ignored, and cut off before anything is appended.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from chord_jit import assets
from chord_jit.device import DeviceFacts
from chord_jit.errors import InputError
from chord_jit.jit import headers

SCHEMA = 1


def kernel_hashes(stems: Iterable[str]) -> dict[str, str]:
    """What decides what each kernel computes and how fast: its template and every project header that it reaches."""
    found = {}
    for stem in sorted(set(stems)):
        source = (assets.folder("templates") / f"{stem}.cu.j2").read_text(encoding="utf-8")
        found[stem] = hashlib.sha256(json.dumps([source, headers.closure(source)]).encode()).hexdigest()
    return found


def header(facts: DeviceFacts, driver: str, kernels: Mapping[str, str], command: str, commit: str) -> dict:
    """The first line of a journal of measurements on a GPU of these facts."""
    gpu = {"gpu": facts.name, "arch": facts.arch, "sms": facts.sms, "driver": driver}
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"journal": SCHEMA, **gpu, "kernels": dict(kernels), "commit": commit, "command": command, "date": date}


class Journal:
    """``header``: the first line. ``lines``: the others, in the order of the file."""

    def __init__(self, path: Path, header: dict, lines: list[dict]):
        self.path, self.header, self.lines = path, header, lines

    @classmethod
    def create(cls, path: Path, header: dict, lines: Iterable[dict] = ()) -> Journal:
        """A new file that begins with ``lines``. Raises ``InputError`` where there is one already."""
        content = "".join(f"{json.dumps(line)}\n" for line in (header, *lines))
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(content)
                _sync(file)
        except OSError as problem:
            raise InputError(
                "start a tuning journal",
                "the file must be new and its folder writable",
                {"file": path, "error": problem.strerror},
                "name another file with --out, or continue this one with --resume",
            ) from None
        return cls(path, header, list(lines))

    @classmethod
    def read(cls, path: Path) -> Journal:
        """A journal on disk. Raises ``InputError`` for what is none, or is damaged before its last line."""
        try:
            whole = path.read_bytes()
        except OSError as problem:
            given = {"file": path, "error": problem.strerror}
            raise InputError("resume a tuning run", "its journal must be readable", given, "name the file that --out wrote") from None
        lines = []
        for number, line in enumerate(whole.split(b"\n")[:-1], 1):
            try:
                lines.append(dict(json.loads(line)))
            except (ValueError, TypeError):
                raise InputError(
                    "resume a tuning run",
                    "every line of its journal but the last must be whole",
                    {"file": path, "line": number},
                    "cut the file off before that line, or start anew",
                ) from None
        if not lines or lines[0].get("journal") != SCHEMA:
            raise InputError(
                "resume a tuning run",
                "the file must begin with the header of a tuning journal of this version",
                {"file": path, "version": lines[0].get("journal") if lines else None, "wanted": SCHEMA},
                "start anew with --out",
            )
        return cls(path, lines[0], lines[1:])

    def require(self, facts: DeviceFacts | None, kernels: Mapping[str, str]) -> None:
        """Refuse, with ``InputError``, a journal of other ``kernels``, or of another GPU than ``facts`` (None: no GPU here)."""
        own = tuple(self.header[name] for name in ("gpu", "arch", "sms"))
        if facts is not None and own != (facts.name, facts.arch, facts.sms):
            raise InputError(
                "resume a tuning run",
                "its journal must come from a GPU like this one",
                {"journal": " ".join(map(str, own)), "here": f"{facts.name} {facts.arch} {facts.sms}"},
                "resume where it began, or start anew with --out",
            )
        changed = sorted(stem for stem, value in kernels.items() if self.header["kernels"].get(stem) != value)
        if changed:
            raise InputError(
                "resume a tuning run",
                "its journal must come from the same kernels: templates and headers",
                {"changed": ", ".join(changed), "its commit": self.header["commit"]},
                "check out that commit, or start anew with --out",
            )

    def append(self, *lines: Mapping[str, object]) -> None:
        """Add lines; they are on disk on return."""
        with self.path.open("r+b") as file:
            _cut_torn_line(file)
            file.write("".join(f"{json.dumps(line)}\n" for line in lines).encode())
            _sync(file)
        self.lines += [dict(line) for line in lines]


def _cut_torn_line(file) -> None:
    file.seek(-1, os.SEEK_END)
    if file.read(1) != b"\n":
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)


def _sync(file) -> None:
    file.flush()
    os.fsync(file.fileno())
