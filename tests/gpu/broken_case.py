"""Layouts that break every promise, in a process of their own: nothing is written outside of the output, and every launch ends.

Values are the host's word in trusted mode, so which rows come out is not asked: only where the kernels read and write.
"""

from __future__ import annotations

import sys

import torch

from tests.gpu.grouped_cases import CUT, MMA, TALL, shaped
from tests.gpu.grouped_workload import LAYOUTS, build, forced
from tests.gpu.tensors import assert_fences, fenced_out, generator_of

INT32, INT64 = torch.iinfo(torch.int32), torch.iinfo(torch.int64)
EXPERTS = 12
CALLS = [
    (shaped(layout, EXPERTS), schedule)
    for layout in LAYOUTS
    for schedule in (CUT, MMA, TALL)
    if (layout, schedule) != ("offsets", TALL)
]


def broken(layout: str, rows: int, good: torch.Tensor, generator: torch.Generator) -> dict[str, list[int]]:
    """Values of a layout by what is wrong with them."""
    noise = torch.randint(INT32.min, INT32.max, (len(good),), generator=generator, device=good.device).tolist()
    if layout == "masked":
        max_m = rows // EXPERTS
        return {
            "above max_m": [max_m + 1] * EXPERTS,
            "far above": [INT32.max] * EXPERTS,
            "negative": [-1, max_m] * (EXPERTS // 2),
            "far below": [INT32.min] * EXPERTS,
            "all rows each": [rows] * EXPERTS,
            "noise": noise,
        }
    if layout == "offsets":
        return {
            "decreasing": [rows, rows // 2, rows // 4, *range(EXPERTS - 2)[::-1]],
            "behind the rows": [0, 1, rows + 1, rows + 500, *[2 * rows] * (EXPERTS - 3)],
            "negative": [*[-rows, 5, -7, 9] * (EXPERTS // 4), rows],
            "extreme": [*[INT64.min, INT64.max] * (EXPERTS // 2), INT64.min],
            "all rows again and again": [*[0, rows] * (EXPERTS // 2), 0],
            "beyond 32 bits": [0, 2**32 + 1, 2**32 + 2, *[2**33 + 7] * (EXPERTS - 3), 2**40],
            "noise": noise,
        }
    return {
        "unknown experts": [EXPERTS, INT32.max, -2, INT32.min] * (rows // 4),
        "one unknown": [*good.tolist()[:-1], EXPERTS],
        "another expert each row": [row % EXPERTS for row in range(rows)],
        "one expert everywhere": [EXPERTS - 1] * rows,
        "padding in front": [-1 if row % 128 < 64 else 3 for row in range(rows)],
        "nothing but holes": [2 if row % 2 else -1 for row in range(rows)],
        "noise": noise,
        "noise that looks valid": [value % (EXPERTS + 1) - 1 for value in noise],
    }


def main(where: torch.device) -> int:
    failed = 0
    for case, schedule in CALLS:
        work, generator = build(case, where, 11), generator_of(where, 11)
        for what, values in broken(case.layout, len(work.x), work.values, generator).items():
            print(f"{case.layout}, {what}, by {schedule}", end=" ", flush=True)
            before = torch.tensor(values, dtype=work.values.dtype, device=where)
            work.values.copy_(before)
            buffer, out = fenced_out(len(work.x), work.columns, where)
            with forced(schedule):
                work.call(out=out)
            torch.cuda.synchronize()
            try:
                assert_fences(buffer)
                assert torch.equal(work.values, before), "wrote into the layout"
                print("fine")
            except AssertionError as error:
                failed += 1
                print(f"FAILED: {error}")
    return failed


if __name__ == "__main__":
    sys.exit(main(torch.device("cuda", 0)))
