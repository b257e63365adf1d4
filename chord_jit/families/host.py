"""Calls over tensors on the CPU, computed by the FP64 references and rounded to BF16: for tests and bring-up.

Taken with ``CHORD_BACKEND=reference`` alone (``refusals.on_host``), after the checks of a kernel's call; a tensor on a GPU never
comes here. Routings are always checked by value. Rows that nobody names keep what ``out`` held, and are zero without ``out``.
"""

from __future__ import annotations

from functools import partial

import torch

from chord_jit.families import grouped_refusals, indexed_refusals
from chord_jit.families.refusals import check_hint, out_fits, refuse_out
from chord_jit.formats.w4a16_layout import PackedW4A16
from chord_jit.reference import grouped as _grouped
from chord_jit.reference import indexed as _indexed
from chord_jit.routing.indexed import IndexedRouting, check_values

#: A NaN that no arithmetic makes: what marks the rows that a reference left alone.
_UNTOUCHED = 0x7FF8_C0DE_0000_0001


def indexed(
    x: torch.Tensor, weight: PackedW4A16, routing: IndexedRouting, *, swiglu: bool, topk_weights: torch.Tensor | None,
    expected_rows: float | None, checked: bool, out: torch.Tensor | None,
) -> torch.Tensor:
    """See ``api.indexed``."""
    out = _result(indexed_refusals.ASKED, out, "routed rows", routing.routed_rows, weight, swiglu)
    _check_hint(indexed_refusals.CHOOSE, expected_rows)
    if checked:
        check_values(routing)
    return _fill(out, partial(_indexed.indexed, x, weight, routing, swiglu=swiglu, topk_weights=topk_weights))


def contiguous(
    x: torch.Tensor, weight: PackedW4A16, m_indices: torch.Tensor | None, *, offsets: torch.Tensor | None, swiglu: bool,
    expected_rows: float | None, out: torch.Tensor | None,
) -> torch.Tensor:
    """See ``api.contiguous``."""
    _check_hint(grouped_refusals.CHOOSE, expected_rows)
    out = _result(grouped_refusals.ASKED["contiguous"], out, "rows of x", x.shape[0], weight, swiglu)
    return _fill(out, partial(_grouped.contiguous, x, weight, m_indices, offsets=offsets, swiglu=swiglu))


def masked(
    x: torch.Tensor, weight: PackedW4A16, masked_m: torch.Tensor, expected_m: int, *, swiglu: bool, out: torch.Tensor | None
) -> torch.Tensor:
    """See ``api.masked``."""
    x = x.view(-1, weight.k)
    out = _result(grouped_refusals.ASKED["masked"], out, "rows of x", x.shape[0], weight, swiglu)
    return _fill(out, partial(_grouped.masked, x, weight, masked_m, expected_m, swiglu=swiglu))


def _check_hint(asked: str, expected_rows: float | None) -> None:
    if expected_rows is not None:
        check_hint(asked, expected_rows)


def _result(asked: str, out: torch.Tensor | None, unit: str, rows: int, weight: PackedW4A16, swiglu: bool) -> torch.Tensor:
    """``out``, checked as a kernel's is, or zeros where it is None."""
    shape = (rows, weight.n // 2 if swiglu else weight.n)
    if out is None:
        return torch.zeros(shape, dtype=torch.bfloat16)
    if not out_fits(out, shape, -1):
        refuse_out(asked, out, unit, shape, weight.device)
    return out


@torch.no_grad()
def _fill(out: torch.Tensor, reference: partial) -> torch.Tensor:
    """What the reference computes, rounded once to BF16, in its rows of ``out``."""
    marks = torch.full(out.shape, _UNTOUCHED, dtype=torch.int64)
    exact = reference(out=marks.view(torch.float64))
    return out.copy_(torch.where(marks == _UNTOUCHED, out, exact.bfloat16()))
