"""One rank's share of a MoE layer: which experts, and which neurons of each."""

from __future__ import annotations

from dataclasses import dataclass

from chord_jit.errors import InputError, InputTypeError
from chord_jit.formats.model_config import ModelShape
from chord_jit.formats.w4a16_layout import GROUP

_ASKED = "cut a MoE layer over ranks"


@dataclass(frozen=True)
class Share:
    """``ep`` ranks share the experts, ``tp`` ranks the neurons of each expert; both in contiguous slices, in the order of ranks.

    ``rank`` = ep_rank * tp + tp_rank, in 0 .. ep * tp - 1: with one of the two at 1 it counts within the other. Raises
    ``InputTypeError`` for what is no integer, ``InputError`` for one out of range.
    """

    ep: int = 1
    tp: int = 1
    rank: int = 0

    def __post_init__(self) -> None:
        given = {"ep": self.ep, "tp": self.tp, "rank": self.rank}
        if any(isinstance(value, bool) or not isinstance(value, int) for value in given.values()):
            raise InputTypeError(_ASKED, "ep, tp and rank must be integers", given, "pass plain integers")
        if self.ep < 1 or self.tp < 1 or not 0 <= self.rank < self.ep * self.tp:
            raise InputError(
                _ASKED, "ep and tp must be at least 1, rank in 0 .. ep * tp - 1", given, "pass rank = ep_rank * tp + tp_rank"
            )

    @property
    def ranks(self) -> int:
        """How many shares make the whole layer."""
        return self.ep * self.tp

    def experts(self, shape: ModelShape) -> range:
        """Global ids of the local experts. Raises ``InputError`` when the ranks cannot have equal shares."""
        if shape.experts % self.ep:
            given = {"experts": shape.experts, "ep": self.ep}
            raise InputError(_ASKED, "ep must divide the number of experts", given, "choose another ep")
        count = shape.experts // self.ep
        first = self.rank // self.tp * count
        return range(first, first + count)

    def neurons(self, shape: ModelShape) -> range:
        """Local neurons of each expert: rows of gate and up, columns of down. Raises ``InputError`` when they would cut a group."""
        if shape.moe_intermediate % (self.tp * GROUP):
            given = {"moe_intermediate_size": shape.moe_intermediate, "tp": self.tp, "group": GROUP}
            rule = f"every rank's neurons must be whole groups of {GROUP}: down's scales run along them"
            raise InputError(_ASKED, rule, given, "choose another tp, or share the experts with ep")
        count = shape.moe_intermediate // self.tp
        first = self.rank % self.tp * count
        return range(first, first + count)
