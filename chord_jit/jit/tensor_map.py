"""TMA descriptors of activation matrices.

A descriptor is a pure function of address, shape and box, so it may be kept for as long as the process lives: a matrix that
later comes to lie at the same address with the same shape has the same descriptor. None is ever found by its address alone.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from cuda.bindings import driver

from chord_jit.errors import LaunchError

BYTES = 128
_COLUMNS = 64  # 128 bytes of BF16: one line of the 128-byte swizzle


@lru_cache(maxsize=4096)
def rows_of(address: int, rows: int, k: int, box_rows: int) -> bytes:
    """Descriptor of a contiguous BF16 matrix [rows, k] read in boxes of ``box_rows`` x 64, 128-byte swizzle, zeros outside.

    ``address``: 16-byte aligned; ``k``: a multiple of 8. Raises ``LaunchError`` when the driver refuses.
    """
    status, found = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, address,
        [driver.cuuint64_t(k), driver.cuuint64_t(rows)], [driver.cuuint64_t(2 * k)],
        [driver.cuuint32_t(_COLUMNS), driver.cuuint32_t(box_rows)], [driver.cuuint32_t(1), driver.cuuint32_t(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE, driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
    if status:
        raise LaunchError(
            "describe activations to the tensor copy engine", "the driver must accept the descriptor",
            {"status": status.name, "rows": rows, "K": k, "box rows": box_rows, "address % 16": address % 16}, "report this call",
        )
    return ctypes.string_at(found.getPtr(), BYTES)
