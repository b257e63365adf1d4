"""Which way the rows of a layer take."""

from __future__ import annotations

import pytest

from chord_jit.rows import pipeline
from tests.unit.layers.random_layer import random_layer


@pytest.mark.parametrize(
    "arch, neurons, rows, way",
    [
        ("sm_90a", 2048, 255, "indexed"), ("sm_90a", 2048, 256, "contiguous"), ("sm_90a", 1024, 4000, "indexed"),
        ("sm_90a", 4096, 341.3, "contiguous"), ("sm_100a", 2048, 4000, "indexed"), ("sm_90a", 2048, 0.2, "indexed"),
    ],
)  # fmt: skip
def test_many_rows_of_wide_experts_lie_together_on_hopper(arch, neurons, rows, way):
    assert pipeline.way_for(arch, neurons, rows) == way


def test_weights_on_the_cpu_are_taken_as_on_hopper(seed):
    weights = random_layer(1, 32, 2048)
    assert [pipeline.way_of(weights, rows) for rows in (1, 300)] == ["indexed", "contiguous"]
