"""Checked mode: read a layout back and prove every promise that the kernel relies on; errors name the first offender.

Each check copies its tensor to the host, which waits for its stream: for tests, bring-up and bug reports, not for
serving. All raise ``InputError``, and ``CaptureError`` when the current stream is being captured.
"""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.routing.checks import refuse_capture, refuse_first
from chord_jit.routing.grouped.contract import BLOCK

_REMEDY = "correct the host's counts, or compute the layout from them with chord_jit.routing.grouped"


def check_block_values(m_indices: torch.Tensor, experts: int) -> None:
    """Prove that ``m_indices`` names experts block by block: valid rows first, one expert's blocks adjacent and full but the last.

    A block of padding alone may stand before, between and behind the experts, not within the rows of one.
    """
    asked = "check the values of m_indices"
    refuse_capture(asked, m_indices, {"m_indices": list(m_indices.shape)})
    rows = m_indices.cpu().long()
    facts = {"experts": experts}

    def refuse(broken: torch.Tensor, rule: str) -> None:
        refuse_first(asked, broken.flatten(), rule, "row", rows, facts, _REMEDY)

    refuse((rows < -1) | (rows >= experts), "m_indices must hold an expert of the weight, or -1 on padding")
    blocks = rows.view(-1, BLOCK)
    valid = blocks >= 0
    refuse(_later(valid[:, 1:] & ~valid[:, :-1]), "a block must hold its valid rows first, then padding")
    owner = blocks[:, 0]
    refuse(valid & (blocks != owner[:, None]), "a block of 128 rows must hold rows of one expert")
    cut = ~valid[:, -1] & (owner >= 0)
    cut[:-1] &= owner[:-1] == owner[1:]
    cut[-1:] = False
    refuse(cut[:, None] & ~valid, "padding must stand at the end of an expert's rows")
    opens = owner >= 0
    opens[1:] &= owner[1:] != owner[:-1]
    named, order = torch.sort(owner[opens], stable=True)
    again = torch.zeros_like(valid)
    again[opens.nonzero().squeeze(1)[order[1:][named[1:] == named[:-1]]], 0] = True
    refuse(again, "the blocks of one expert must be adjacent")


def check_offset_values(offsets: torch.Tensor, rows: int) -> None:
    """Prove that ``offsets`` begins at 0, never decreases and stays within ``rows``."""
    asked = "check the values of offsets"
    refuse_capture(asked, offsets, {"offsets": list(offsets.shape)})
    bounds = offsets.cpu()
    if int(bounds[0]):
        raise InputError(asked, "offsets must begin at 0", {"offsets[0]": int(bounds[0])}, _REMEDY)
    refuse_first(asked, _later(bounds[1:] < bounds[:-1]), "offsets must not decrease", "entry", bounds, {"rows": rows}, _REMEDY)
    refuse_first(asked, bounds > rows, "offsets must not pass the rows of x", "entry", bounds, {"rows": rows}, _REMEDY)


def check_count_values(masked_m: torch.Tensor, max_m: int) -> None:
    """Prove that every count of ``masked_m`` lies in 0 .. ``max_m``."""
    asked = "check the values of masked_m"
    refuse_capture(asked, masked_m, {"masked_m": list(masked_m.shape)})
    counts = masked_m.cpu()
    wrong = (counts < 0) | (counts > max_m)
    refuse_first(asked, wrong, "masked_m must lie in 0 .. max_m", "expert", counts, {"max_m": max_m}, _REMEDY)


def _later(broken: torch.Tensor) -> torch.Tensor:
    """What was found between neighbours of the last dimension, at the later one of each pair."""
    return torch.nn.functional.pad(broken, (1, 0))
