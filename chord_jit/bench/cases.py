"""What is timed: every set of cases by name."""

from __future__ import annotations

from chord_jit.bench.any_case import AnyCase
from chord_jit.bench.grouped_cases import GROUPED_SETS, GroupedCase, Ragged
from chord_jit.bench.indexed_cases import EP8_DRAWS, INDEXED_SETS, SMOKE_DRAWS, Case, Draw, PrefillCase, find_seed
from chord_jit.bench.layers import SMOKE, Layer
from chord_jit.bench.whole_cases import WHOLE_SETS, WholeCase, WholeLayer
from chord_jit.errors import InputError

__all__ = [
    "CASES", "EP8_DRAWS", "SMOKE", "SMOKE_DRAWS", "AnyCase", "Case", "Draw", "GroupedCase", "Layer", "PrefillCase", "Ragged", "WholeCase",
    "WholeLayer", "find_seed", "select",
]  # fmt: skip


CASES: dict[str, tuple[AnyCase, ...]] = {**INDEXED_SETS, **GROUPED_SETS, **WHOLE_SETS}


def select(case_set: str, sizes: tuple[int, ...] = (), layers: tuple[str, ...] = ()) -> tuple[AnyCase, ...]:
    """The cases of a set, all or those of the given sizes and layers. Raises ``InputError`` for what the set lacks."""
    if case_set not in CASES:
        raise InputError("select bench cases", "the set must be known", {"cases": case_set, "known": ", ".join(CASES)}, "name a known set")
    cases = CASES[case_set]
    _refuse_unknown(case_set, "size", sizes, {case.size for case in cases})
    _refuse_unknown(case_set, "layer", layers, {case.layer.name for case in cases})
    return tuple(case for case in cases if (not sizes or case.size in sizes) and (not layers or case.layer.name in layers))


def _refuse_unknown(case_set: str, what: str, wanted: tuple, known: set) -> None:
    unknown = sorted(set(wanted) - known)
    if unknown:
        raise InputError(
            "select bench cases", f"the set must hold every {what}", {"cases": case_set, what: unknown, "known": sorted(known)},
            "choose among the known ones",
        )
