"""Why a grouped call is refused: the rules of ``grouped._fits`` and of each layout, one by one, with values and remedy."""

from __future__ import annotations

import torch

from chord_jit.errors import ChordInternalError, InputError, InputTypeError
from chord_jit.families.refusals import check_operands, check_swiglu, on_host
from chord_jit.formats.w4a16_layout import PackedW4A16
from chord_jit.routing.checks import INT32_MAX, check_int
from chord_jit.routing.grouped import LAYOUTS, check_blocks, check_counts, check_offsets

CHOOSE = "choose a kernel for grouped W4A16"
ASKED = {"contiguous": "run contiguous W4A16", "masked": "run masked W4A16"}
_TMA = " as TMA loads need"


def refuse_contiguous(
    x: torch.Tensor, weight: PackedW4A16, m_indices: torch.Tensor | None, offsets: torch.Tensor | None, swiglu: bool
) -> None:
    """Raise ``InputTypeError`` or ``InputError`` for the first rule that the call breaks; returns for one ``on_host`` alone."""
    asked = ASKED["contiguous"]
    check_operands(asked, x, weight, "contiguous", reader=_TMA)
    _check_rows(asked, x.shape[0])
    if (m_indices is None) == (offsets is None):
        raise InputTypeError(
            asked, "exactly one of m_indices and offsets must be given",
            {"m_indices given": m_indices is not None, "offsets given": offsets is not None},
            "pass m_indices for blocks padded to 128 rows, or offsets= for rows without padding",
        )
    if offsets is None:
        check_blocks(asked, m_indices, x.shape[0], x.device)
    else:
        check_offsets(asked, offsets, weight.experts, x.device)
    _refuse_swiglu(asked, x, weight, swiglu)


def refuse_masked(x: torch.Tensor, weight: PackedW4A16, masked_m: torch.Tensor, expected_m: int, swiglu: bool) -> None:
    """Raise ``InputTypeError`` or ``InputError`` for the first rule that the call breaks; returns for one ``on_host`` alone."""
    asked = ASKED["masked"]
    form = "a BF16 matrix [experts * max_m, K] or [experts, max_m, K]"
    check_operands(asked, x, weight, "masked", form=form, dims=(2, 3), reader=_TMA)
    if x.dim() == 3 and x.shape[0] != weight.experts:
        raise InputError(
            asked, "x must have one slice for each expert of the weight", {"x": list(x.shape), "experts": weight.experts},
            "pass x as [experts, max_m, K]",
        )
    rows = x.numel() // weight.k
    _check_rows(asked, rows)
    check_counts(asked, masked_m, rows, weight.experts, x.device)
    check_int(asked, "expected_m", expected_m, 1)
    _refuse_swiglu(asked, x, weight, swiglu)


def check_layout(layout: str) -> None:
    """Refuse what is no layout: ``InputError``."""
    if layout not in LAYOUTS:
        raise InputError(CHOOSE, "the layout must be one of " + ", ".join(LAYOUTS), {"layout": repr(layout)}, "name one of them")


def _check_rows(asked: str, rows: int) -> None:
    if rows > INT32_MAX:
        raise InputError(asked, "the rows of x must fit in int32", {"rows": rows}, "split the rows over several calls")


def _refuse_swiglu(asked: str, x: torch.Tensor, weight: PackedW4A16, swiglu: bool) -> None:
    if swiglu:
        check_swiglu(asked, weight)
    if not on_host(x):
        raise ChordInternalError(asked, "a refused call must break a rule", {"x": list(x.shape), "weight": weight}, "report this call")
