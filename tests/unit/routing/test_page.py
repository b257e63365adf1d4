"""docs/routing.md says what the code does: its examples run, and its picture is a real buffer."""

import re
from pathlib import Path

import torch

from chord_jit.routing.grouped import blocks_of, offsets_of

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "routing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_examples_run_in_the_order_of_the_page():
    names = {}
    for example in EXAMPLES[:2]:
        exec(example, names)
    names.update({field: getattr(names["routing"], field) for field in ("sorted_ids", "expert_ids", "num_tokens_padded")})
    exec(EXAMPLES[2], names)
    assert (names["routing"].routed_rows, names["routing"].global_experts) == (6, 8)
    exec(EXAMPLES[3], names)
    assert len(EXAMPLES) == 4


def test_the_picture_is_the_first_example():
    names = {}
    exec(EXAMPLES[0], names)
    routing = names["routing"]
    drawn = re.search(r"^sorted_ids +(.*)$", PAGE, re.MULTILINE)[1].replace(" ", "")
    padded = int(routing.num_tokens_padded)
    real = "".join("·" if slot >= routing.routed_rows else str(slot) for slot in routing.sorted_ids[:padded].tolist())
    assert drawn.rstrip("?") == real
    assert f"num_tokens_padded = [{padded}]" in PAGE and f"{routing.sorted_ids.numel()} slots" in PAGE


def test_the_pictures_of_grouped_rows_are_the_last_example():
    counts = torch.tensor([3, 0, 130, 1])
    assert f"offsets = {offsets_of(counts).tolist()}" in PAGE and f"masked_m = {counts.tolist()}" in PAGE
    starts = [int(start) for start in re.search(r"^row +(0 +3 +128.*)$", PAGE, re.MULTILINE)[1].split()]
    changes = (blocks_of(counts).diff() != 0).nonzero().flatten().add(1).tolist()
    assert starts == sorted({0, 128, 256, 384, 512, *changes})
