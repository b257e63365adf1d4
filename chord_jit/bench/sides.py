"""The one place that tells families apart: what a family's cases need to be called, checked and handed to the peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from chord_jit.bench import grouped, indexed
from chord_jit.bench.any_case import AnyCase
from chord_jit.device import DeviceFacts
from chord_jit.families.base import Family
from chord_jit.formats.w4a16 import PackedW4A16
from chord_jit.schedules.schedule import Schedule


class Inputs(Protocol):
    """One call's inputs. ``x``: BF16 activations; ``active``: experts with rows."""

    case: AnyCase
    x: torch.Tensor
    active: tuple[int, ...]

    def empty_output(self, features: int) -> torch.Tensor:
        """BF16, one row for each row that a call may be given, filled with NaN so that an unwritten element shows."""

    def exact(self, weight: PackedW4A16, *, swiglu: bool) -> torch.Tensor:
        """The FP64 result in the shape of the output; NaN in rows that no call may write."""

    def peer_arguments(self, block_m: int) -> dict:
        """What the peer's launch is told of the rows, for a configuration of this block size."""


class Side(Protocol):
    """A family as the bench sees it. ``family``: what a public call goes to."""

    family: Family

    def inputs(self, case: AnyCase, generator: torch.Generator) -> Inputs:
        """Fresh activations over the case's fixed rows."""

    def fixed(self, schedule: Schedule) -> Family:
        """The family with one schedule for every problem; it raises ``InputError`` where that is illegal."""

    def free_problem(self, case: AnyCase, facts: DeviceFacts, *, swiglu: bool) -> object:
        """The problem of ``case`` while what its inputs are built with may still follow the schedule."""

    def chosen(self, case: AnyCase, facts: DeviceFacts, *, swiglu: bool, family: Family) -> tuple[object, Schedule]:
        """The problem that a call on ``case`` poses, its inputs built for it, and the schedule it gets."""

    def public_call(self, problem: object, weight: PackedW4A16, inputs: Inputs, out: torch.Tensor) -> Callable[[], object]:
        """What a user calls, checks included."""

    def family_call(
        self, family: Family, problem: object, weight: PackedW4A16, inputs: Inputs, out: torch.Tensor
    ) -> Callable[[], object]:
        """The same call on ``family``."""


SIDES: dict[str, Side] = {"indexed": indexed.SIDE, "grouped": grouped.SIDE}


def of(case: AnyCase) -> Side:
    """The side of a case's family."""
    return SIDES[case.family]
