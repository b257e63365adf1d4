"""One rank's share of a MoE model: what warm-up and the tables are asked about."""

from __future__ import annotations

from dataclasses import dataclass

from chord_jit.errors import InputError


@dataclass(frozen=True)
class Deployment:
    """A MoE layer of a model, cut over ``tp`` or ``ep`` ranks.

    ``hidden``, ``intermediate`` (of one routed expert), ``experts``, ``top_k``: of the whole model.
    """

    hidden: int
    intermediate: int
    experts: int
    top_k: int
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name, whole, ranks in (("intermediate", self.intermediate, self.tp), ("experts", self.experts, self.ep)):
            if ranks < 1 or whole % ranks:
                raise InputError(
                    "cut a MoE layer over ranks", f"{name} must divide evenly", {name: whole, "ranks": ranks}, "choose another tp or ep"
                )

    @property
    def local_experts(self) -> int:
        """Experts of one rank."""
        return self.experts // self.ep

    @property
    def gate_up(self) -> tuple[int, int]:
        """N and K of one rank's gate/up projection."""
        return 2 * self.intermediate // self.tp, self.hidden

    @property
    def down(self) -> tuple[int, int]:
        """N and K of one rank's down projection."""
        return self.hidden, self.intermediate // self.tp
