"""What must be reached on an H200, as data, and the verdicts on a measured row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """``share``: of the reader in the same run, at least. ``ratio``: the peer's best over ours in the same run, at least."""

    share: float
    ratio: float | None = None


def _by_tokens(tokens: tuple[int, ...], shares: tuple[int, ...], ratios: tuple[float, ...]) -> dict[int, Target]:
    return {count: Target(share / 100, ratio) for count, share, ratio in zip(tokens, shares, ratios, strict=True)}


_EP8 = (1, 2, 4, 8, 20, 30, 40, 50)

TARGETS: dict[str, dict[int, Target]] = {
    "ep8_gate_up": _by_tokens(_EP8, (88, 92, 94, 94, 95, 95, 94, 92), (1.08, 1.06, 1.08, 1.10, 1.12, 1.18, 1.22, 1.22)),
    "ep8_down": _by_tokens(_EP8, (82, 90, 93, 94, 95, 95, 93, 91), (1.08, 1.15, 1.17, 1.14, 1.13, 1.22, 1.22, 1.19)),
    "tp8_gate_up": {tokens: Target(0.85) for tokens in _EP8},
}

#: Relative L2 error against FP64, at most.
ERROR_LIMITS = {"ours": 1.8e-3, "ours_swiglu": 2.5e-3}
#: A result with more error than this is another result, ours or the peer's: it gets no time.
WRONG_ABOVE = 1e-2
HOST_LIMIT_US = 15.0
#: A run is void when its reader is slower than this at this many bytes, or as many whole experts as come near.
READER_BAR_TBPS = 4.1
READER_BAR_BYTES = 760_000_000


@dataclass(frozen=True)
class Verdict:
    """One rule on one row: ``value`` against ``bound``; ``least`` tells which side is good."""

    rule: str
    value: float
    bound: float
    least: bool

    @property
    def passed(self) -> bool:
        return self.value >= self.bound if self.least else self.value <= self.bound

    def __str__(self) -> str:
        return f"{self.rule} {self.value:.4g} ({'at least' if self.least else 'at most'} {self.bound:.4g})"


def median(row: Mapping, variant: str) -> float | None:
    """Median microseconds of a variant of a result row, ``None`` where it was not timed."""
    found = row["variants"].get(variant)
    return found["us"]["median"] if found and found.get("us") else None


def peer_best(row: Mapping) -> float | None:
    """The peer's fastest median: its default counts as one of its own configurations."""
    times = [time for name in ("peer_default", "peer_best") if (time := median(row, name)) is not None]
    return min(times, default=None)


def verdicts(row: Mapping) -> list[Verdict]:
    """Every rule that applies to a result row. A row whose ``ours`` was not timed has failed its check: no verdict but that."""
    found = [
        Verdict(f"error of {name}", row["variants"][name]["error"], limit, least=False)
        for name, limit in ERROR_LIMITS.items()
        if name in row["variants"]
    ]
    ours, fused = median(row, "ours"), median(row, "ours_swiglu")
    if ours is None:
        return found
    target = TARGETS.get(row["layer"], {}).get(row["tokens"])
    if target:
        found.append(Verdict("share of the reader", median(row, "reader") / ours, target.share, least=True))
        best = peer_best(row)
        if target.ratio is not None and best is not None:
            found.append(Verdict("peer's best / ours", best / ours, target.ratio, least=True))
    if fused is not None:
        found.append(Verdict("SwiGLU fused / unfused", fused / ours, 1.0, least=False))
    if row.get("host_us"):
        found.append(Verdict("host us of a warm call", row["host_us"]["median"], HOST_LIMIT_US, least=False))
    return found
