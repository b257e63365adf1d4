"""What must be reached on an H200, as data, and the verdicts on a measured row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """What one case must reach, each against a time of the same run; ``None`` where nothing is asked.

    ``reader``: share of the reader, at least. ``ratio``: the peer's best over ours, at least. ``cublas``: share of cuBLAS's
    rate, at least. ``equal``: ours over ours on equally many equal rows, at most. ``over_us``, ``over``: microseconds that a whole
    layer takes beyond its two products timed alone, and its time over theirs, at most.
    """

    reader: float | None = None
    ratio: float | None = None
    cublas: float | None = None
    equal: float | None = None
    over_us: float | None = None
    over: float | None = None


def _decode(layer: str, shares: tuple[int, ...], ratios: tuple[float | None, ...]) -> dict[str, Target]:
    tokens = (1, 2, 4, 8, 20, 30, 40, 50)
    return {f"{layer}_{count}": Target(share / 100, ratio) for count, share, ratio in zip(tokens, shares, ratios, strict=True)}


def _grouped(layer: str, ratios: tuple[float, ...], shares: Mapping[int, int]) -> dict[str, Target]:
    """``ratios`` at 8 to 64 masked and 128 to 512 contiguous rows per expert; ``shares`` of cuBLAS in percent by rows."""
    found = {}
    for rows, ratio in zip((8, 16, 32, 64, 128, 256, 512), ratios, strict=True):
        share = shares[rows] / 100 if rows in shares else None
        found[f"{layer}_{'masked' if rows <= 64 else 'offsets'}_{rows}"] = Target(ratio=ratio, cublas=share)
    return found


def _prefill(layer: str, ratios: tuple[float, ...]) -> dict[str, Target]:
    sizes = (1024, 2048, 4096, 8192, 16384)
    return {f"{layer}_prefill_{size}": Target(ratio=ratio) for size, ratio in zip(sizes, ratios, strict=True)}


TARGETS: dict[str, Target] = {
    **_decode("ep8_gate_up", (88, 92, 94, 94, 95, 95, 94, 92), (1.08, 1.06, 1.08, 1.10, 1.12, 1.18, 1.22, 1.22)),
    **_decode("ep8_down", (82, 90, 93, 94, 95, 95, 93, 91), (1.08, 1.15, 1.17, 1.14, 1.13, 1.22, 1.22, 1.19)),
    **_decode("tp8_gate_up", (85,) * 8, (None,) * 8),
    **_prefill("ep8_gate_up", (1.18, 1.20, 1.15, 1.15, 1.15)),
    **_prefill("ep8_down", (1.18, 1.20, 1.15, 1.15, 1.15)),
    **_prefill("tp8_gate_up", (1.15, 1.18, 1.15, 1.15, 1.15)),
    **_prefill("tp8_down", (1.15, 1.25, 1.45, 1.70, 1.80)),
    **_grouped("ep8_gate_up", (1.10, 1.17, 1.20, 1.20, 1.07, 1.13, 1.09), {64: 75, 128: 95, 256: 102, 512: 103}),
    **_grouped("ep8_down", (1.08, 1.20, 1.24, 1.24, 1.12, 1.17, 1.12), {}),
    **{f"ep8_{layer}_ragged_{rows}": Target(ratio=1.10, equal=1.12) for layer in ("gate_up", "down") for rows in (128, 256, 512)},
    **{f"ep8_{layer}_ragged_{rows}": Target(ratio=1.10) for layer in ("gate_up", "down") for rows in (16, 32, 64)},
    **{
        f"ep{ranks}_{layer}_{rows}": Target(ratio=1.0)
        for ranks in (16, 32)
        for layer in ("gate_up", "down")
        for rows in ("masked_16", "masked_64", "offsets_128", "offsets_512")
    },
    # At most 0.80 of the peer's time.
    **{f"ep8_layer_{tokens}": Target(ratio=1.25, over_us=8.0) for tokens in (1, 8, 20, 50)},
    **{f"ep8_layer_{tokens}": Target(ratio=1.25, over=1.05) for tokens in (128, 512, 2048)},
}

#: Relative L2 error against FP64, at most, without and with SwiGLU, by the kernel that computed it: those on WGMMA round each
#: weight to BF16, w4a16_mma rounds none.
ERROR_LIMITS = {"w4a16_mma": (1.8e-3, 2.5e-3), "w4a16_wgmma": (2.5e-3, 3.0e-3), "w4a16_resident": (2.5e-3, 3.0e-3)}
#: The same of a whole layer: the limits of both products and one more rounding to BF16, which add up as independent errors do.
LAYER_ERROR_LIMIT = 4.5e-3
#: A result with more error than this is another result, ours or the peer's: it gets no time.
WRONG_ABOVE = 1e-2
#: Samples whose 90th percentile is more than this times the 10th waited for the host: the machine was busy with something else.
DISTURBED = 2
HOST_LIMITS_US = {"indexed": 15.0, "grouped": 20.0}
#: A run is void when its reader is slower than this at this many bytes, or as many whole experts as come near.
READER_BAR_TBPS = 4.1
READER_BAR_BYTES = 760_000_000


def bar_experts(expert_bytes: int) -> int:
    """How many experts of this size the bar of the reader is read over."""
    return round(READER_BAR_BYTES / expert_bytes)


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
    """The peer's fastest median: its default counts as one of its own configurations.

    Disturbed samples never stand for the peer: ``None`` where there are no others.
    """
    timed = [row["variants"][name]["us"] for name in ("peer_default", "peer_best") if median(row, name) is not None]
    return min((us["median"] for us in timed if us["p90"] <= DISTURBED * us["p10"]), default=None)


def peer_time(row: Mapping) -> float | None:
    """``peer_best``, less what our stand-ins around its kernels take beyond our own kernels: they may not cost the peer more than us.

    Only where its form has our steps, ids aligned to blocks.
    """
    best, configuration = peer_best(row), row["variants"].get("peer_best", {}).get("configuration") or ""
    if best is None or kind(row) != "layer" or not configuration.startswith("indexed"):
        return best
    pairs = ((median(row, theirs), median(row, own)) for theirs, own in (("peer_align", "route"), ("peer_combine", "combine")))
    return best - sum(max(theirs - own, 0.0) for theirs, own in pairs if None not in (theirs, own))


def tflops(row: Mapping, variant: str) -> float | None:
    """Rate of a variant; of cuBLAS over its own operations, of every other over the row's."""
    us = median(row, variant)
    return None if us is None else row["variants"][variant].get("flops", row["flops"]) / us / 1e6


def quotient(above: float | None, below: float | None) -> float | None:
    """``above / below``; ``None`` where either is not known."""
    return None if above is None or below is None else above / below


def products(row: Mapping) -> float | None:
    """Microseconds of a whole layer's two products, each timed alone; each of the two samples holds the cost of a launch."""
    times = [median(row, name) for name in ("gate_up", "down")]
    return None if None in times else sum(times)


def over_products(row: Mapping) -> float | None:
    """Microseconds that a whole layer takes beyond its two products."""
    ours, alone = median(row, "ours"), products(row)
    return None if None in (ours, alone) else ours - alone


def _error_limit(row: Mapping, name: str, variant: Mapping) -> float:
    """A call that was refused has no schedule, and an infinite error that passes no limit."""
    if kind(row) == "layer":
        return LAYER_ERROR_LIMIT
    kernel = variant.get("schedule", "").partition(" ")[0]
    return ERROR_LIMITS.get(kernel, ERROR_LIMITS["w4a16_mma"])[name == "ours_swiglu"]


def kind(row: Mapping) -> str:
    """``AnyCase.kind`` of a result row; rows that were recorded before there were kinds have their family's."""
    return row.get("kind", row["family"])


def verdicts(row: Mapping) -> list[Verdict]:
    """Every rule that applies to a result row. A row whose ``ours`` was not timed has failed its check: no verdict but that."""
    found = [
        Verdict(f"error of {name}", variant["error"], _error_limit(row, name, variant), least=False)
        for name, variant in row["variants"].items()
        if name.startswith("ours")
    ]
    ours = median(row, "ours")
    if ours is None:
        return found
    target = TARGETS.get(row["case"], Target())
    host = row["host_us"]["median"] if row.get("host_us") else None
    rules = (
        ("share of the reader", quotient(median(row, "reader"), ours), target.reader, True),
        ("peer's best / ours", quotient(peer_time(row), ours), target.ratio, True),
        ("share of cuBLAS", quotient(tflops(row, "ours"), tflops(row, "cublas")), target.cublas, True),
        ("ragged / equal rows", quotient(ours, median(row, "ours_equal")), target.equal, False),
        ("SwiGLU fused / unfused", quotient(median(row, "ours_swiglu"), ours), 1.0, False),
        ("us beyond the two products", over_products(row), target.over_us, False),
        ("layer / its two products", quotient(ours, products(row)), target.over, False),
        ("host us of a warm call", host, HOST_LIMITS_US.get(row["family"]), False),
    )
    return found + [Verdict(rule, value, bound, least) for rule, value, bound, least in rules if None not in (value, bound)]
