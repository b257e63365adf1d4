"""Writes docs/performance.md and its pictures from the newest results: python tools/make_performance.py [--check]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from chord_jit.bench import document, plot, results  # noqa: E402

PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the page is out of step")
    arguments = parser.parse_args()
    newest = results.newest(RESULTS)
    page = document.performance(newest)
    if arguments.check:
        return 0 if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page else 1
    PAGE.write_text(page, encoding="utf-8")
    for case_set, result in newest.items():
        plot.draw(result, PAGE.parent / document.PICTURE.format(case_set=case_set))
    print(f"{PAGE.relative_to(ROOT)}: {', '.join(newest) or 'no results'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
