"""docs/routing.md says what the code does: its examples run, and its picture is a real buffer."""

import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "routing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_examples_run_in_the_order_of_the_page():
    names = {}
    for example in EXAMPLES[:2]:
        exec(example, names)
    names.update({field: getattr(names["routing"], field) for field in ("sorted_ids", "expert_ids", "num_tokens_padded")})
    exec(EXAMPLES[2], names)
    assert (names["routing"].routed_rows, names["routing"].global_experts) == (6, 8)


def test_the_picture_is_the_first_example():
    names = {}
    exec(EXAMPLES[0], names)
    routing = names["routing"]
    drawn = re.search(r"^sorted_ids +(.*)$", PAGE, re.MULTILINE)[1].replace(" ", "")
    padded = int(routing.num_tokens_padded)
    real = "".join("·" if slot >= routing.routed_rows else str(slot) for slot in routing.sorted_ids[:padded].tolist())
    assert drawn.rstrip("?") == real
    assert f"num_tokens_padded = [{padded}]" in PAGE and f"{routing.sorted_ids.numel()} slots" in PAGE
