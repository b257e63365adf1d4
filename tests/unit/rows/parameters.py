"""What each row kernel is told, by name: its parameter struct as the kernel reads it."""

from __future__ import annotations

BF16, INTS = "__nv_bfloat16", "int"
#: Pointers, then numbers, in the order of each parameter struct.
LAYOUTS = {
    "route_rows": (
        {
            "ids": INTS, "expert_map": INTS, "sorted_ids": INTS, "expert_ids": INTS, "padded": INTS, "offsets": "int64_t", "rows": INTS,
            "chunks": INTS,
        },
        ("total", "experts", "map_size", "block_m", "capacity", "wide", "phase", "reserved"),
    ),
    "move_rows": (
        {"x": BF16, "out": BF16, "destinations": INTS, "limit": "int64_t", "counts": INTS},
        ("rows", "out_rows", "vectors", "each", "block", "activate"),
    ),
    "combine_rows": (
        {"x": BF16, "rows": INTS, "weights": "float", "addend": BF16, "out": BF16},
        ("tokens", "vectors", "top_k"),
    ),
}  # fmt: skip
