"""Writes what documents restate: docs/env.md (knobs), the table of docs/errors.md (errors), and what was measured: the README's
block, the start-up times of docs/cache.md, the load of a layer in docs/formats.md and the cost model's choices in docs/schedules.md.

    python tools/make_docs.py            write
    python tools/make_docs.py --check    exit 1 when a page is behind the code
"""

from __future__ import annotations

import argparse
import inspect
import sys
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from chord_jit import errors, knobs  # noqa: E402
from chord_jit.bench import document, results  # noqa: E402
from tools import record  # noqa: E402
from tools.cost_model import report as cost_model  # noqa: E402
from tools.layer_load import report as layer_load  # noqa: E402
from tools.startup import report as startup  # noqa: E402

ENV_HEAD = """# Environment variables

Made by `tools/make_docs.py` from `chord_jit/knobs.py`: change that file, not this one.

A variable that is unset or blank has its default. The environment is read once, at the first use; a value that does not
parse is an error that names the variable, the value and the rule. The schedule variables go through the same legality
check as a row of a schedule table: an illegal one is an error too, never a silent fallback. Entries in `CHORD_CACHE_DIR`
lie in a versioned subfolder of their own, since other software uses that variable as well.
"""


def env_page() -> str:
    """The whole of docs/env.md."""
    parts = [ENV_HEAD]
    for group, members in groupby(knobs.KNOBS, key=lambda knob: knob.group):
        parts.append(f"\n## {group}\n\n| variable | default | meaning |\n| --- | --- | --- |\n")
        for knob in members:
            default = "none" if knob.default is None else f"`{knob.default}`"
            parts.append(f"| `{knob.name}` | {default} | {knob.doc} |\n")
    return "".join(parts)


def errors_table() -> str:
    """The table of docs/errors.md: every class of the tree, its bases and its first line of documentation."""
    lines = ["| error | also a | raised when |", "| --- | --- | --- |"]
    for name, member in vars(errors).items():
        if inspect.isclass(member) and issubclass(member, errors.ChordError) and member is not errors.ChordError:
            bases = ", ".join(f"`{base.__name__}`" for base in member.__bases__)
            lines.append(f"| `{name}` | {bases} | {inspect.getdoc(member).splitlines()[0]} |")
    return "\n".join(lines)


def between_marks(current: str, name: str, text: str) -> str:
    """``current`` with ``text`` between the marks of ``name``."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    head, opened, rest = current.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (opened and closed):
        raise SystemExit(f"the marks {begin} and {end} are missing")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def pages() -> dict[Path, str]:
    """Every generated page and what it should hold."""
    errors_path, cache, formats, schedules = (ROOT / "docs" / f"{name}.md" for name in ("errors", "cache", "formats", "schedules"))
    readme = ROOT / "README.md"
    runs = ROOT / "benchmarks" / "results"
    measured = document.measured(results.newest(runs))
    return {
        ROOT / "docs" / "env.md": env_page(),
        errors_path: between_marks(errors_path.read_text(), "errors", errors_table()),
        cache: between_marks(cache.read_text(), "startup", startup.block(record.newest(runs / "startup"))),
        formats: between_marks(formats.read_text(), "layer_load", layer_load.block(record.newest(runs / "layer_load"))),
        schedules: between_marks(schedules.read_text(), "cost_model", cost_model.block(record.newest(runs / "cost_model"))),
        readme: between_marks(readme.read_text(), "measured", measured),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    behind = [path for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    for path in behind:
        if not check:
            path.write_text(pages()[path])
        print(f"{'behind the code' if check else 'written'}: {path.relative_to(ROOT)}")
    return int(check and bool(behind))


if __name__ == "__main__":
    sys.exit(main())
