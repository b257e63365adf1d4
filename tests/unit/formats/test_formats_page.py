"""The examples of docs/formats.md do what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.S)


def test_the_page_has_an_example():
    assert len(EXAMPLES) == 1


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("draw", range(5))
def test_example(example, draw):
    exec(compile(example, str(PAGE), "exec"), {})
