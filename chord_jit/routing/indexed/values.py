"""Checked mode: read a routing back and prove every promise that the kernel relies on."""

from __future__ import annotations

import torch

from chord_jit.errors import InputError
from chord_jit.routing.checks import refuse_capture, refuse_first
from chord_jit.routing.indexed.contract import IndexedRouting

_ASKED = "check the values of indexed routing"
_REMEDY = "build the routing with align_blocks, or correct the host's buffers"


def check_values(routing: IndexedRouting) -> None:
    """Prove that the values of ``routing`` keep the contract of ``IndexedRouting``; the error names the first offender.

    Copies the buffers to the host, which waits for their stream: for tests, bring-up and bug reports, not for serving.
    What lies past ``num_tokens_padded`` is not looked at. Raises ``InputError``, and ``CaptureError`` when the current
    stream is being captured.
    """
    refuse_capture(_ASKED, routing.sorted_ids, {"routing": routing})
    padded = int(routing.num_tokens_padded)
    limit = routing.max_blocks * routing.block_m
    if not 0 <= padded <= limit or padded % routing.block_m:
        raise InputError(
            _ASKED, "num_tokens_padded must be a multiple of block_m within the capacity",
            {"num_tokens_padded": padded, "block_m": routing.block_m, "capacity": routing.sorted_ids.numel(), "most": limit}, _REMEDY,
        )
    experts = routing.expert_ids[: padded // routing.block_m].cpu()
    outside = (experts < 0) | (experts >= routing.experts)
    _refuse(outside, "expert_ids must lie in [0, experts)", "block", experts, {"experts": routing.experts})
    ids = routing.sorted_ids[:padded].cpu()
    _check_ids(ids, routing)


def _check_ids(ids: torch.Tensor, routing: IndexedRouting) -> None:
    rows, block_m = routing.routed_rows, routing.block_m
    _refuse(ids < 0, "sorted_ids must not be negative", "slot", ids, {"routed_rows": rows})
    valid = ids < rows
    opens = torch.arange(ids.numel()) % block_m == 0
    after_sentinel = torch.zeros_like(valid)
    after_sentinel[1:] = ~valid[:-1]
    _refuse(
        valid & after_sentinel & ~opens, "a block must hold its valid ids first, then sentinels", "slot", ids,
        {"block_m": block_m, "routed_rows": rows},
    )
    named, order = torch.sort(ids[valid], stable=True)
    again = torch.zeros(ids.numel(), dtype=torch.bool)
    again[valid.nonzero().squeeze(1)[order[1:][named[1:] == named[:-1]]]] = True
    _refuse(again, "a valid id must appear once", "slot", ids, {"routed_rows": rows})


def _refuse(broken: torch.Tensor, rule: str, place: str, values: torch.Tensor, facts: dict[str, int]) -> None:
    refuse_first(_ASKED, broken, rule, place, values, facts, _REMEDY)
