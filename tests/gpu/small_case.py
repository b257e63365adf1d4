"""A few small calls in a process of their own, for compute-sanitizer: padding, dropped ids, SwiGLU, a ring that wraps."""

from dataclasses import replace

import torch

from chord_jit import knobs
from tests.gpu.cases import Case
from tests.gpu.compare import assert_right
from tests.gpu.workload import build

CASES = [
    (Case(3, 72, 96, 5, 2, 8, "dropped"), {}),
    (Case(3, 72, 352, 5, 2, 16, "random", interleaved=True, swiglu=True), {}),
    (Case(3, 128, 1344, 20, 2, 16, "hot", weighted=True), dict(CHORD_W4A16_BM="8", CHORD_W4A16_STAGES="2")),
]


def main(where: torch.device) -> None:
    for case, overrides in CASES:
        work = build(case, where, 7)
        work = replace(work, x=work.x.clone())  # no fences: the tool shall see each buffer's own end
        with knobs.scope(**overrides):
            assert_right(work.call(), work)


if __name__ == "__main__":
    main(torch.device("cuda", 0))
