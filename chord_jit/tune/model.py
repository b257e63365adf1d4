"""Cases of a model that is in no set: one rank's two projections, in every layout that an engine may hand over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from chord_jit.bench.cases import AnyCase, Case, Draw, GroupedCase, Layer
from chord_jit.schedules.deployment import Deployment

#: Sizes that are measured where none are named: tokens of a decode step, or rows per expert.
SIZES = {"indexed": (1, 2, 4, 8, 16, 32, 64), "masked": (1, 4, 8, 16, 32, 64, 128), "contiguous": (16, 64, 128, 256, 512)}


def layers_of(model: Deployment) -> tuple[Layer, Layer]:
    """gate/up and down as one rank holds them."""
    ranks = f"tp{model.tp}_ep{model.ep}"
    source = f"hidden {model.hidden}, expert intermediate {model.intermediate}, {model.experts} experts, top {model.top_k}, {ranks}"
    return (
        Layer(f"{ranks}_gate_up", model.local_experts, *model.gate_up, True, False, source),
        Layer(f"{ranks}_down", model.local_experts, *model.down, False, True, source),
    )


def cases_of(model: Deployment, layouts: Sequence[str], sizes: Sequence[int] = ()) -> Iterator[AnyCase]:
    """Every layer in every layout at every size. Indexed: each token's picks fall on local experts, as in the decode set."""
    for layer in layers_of(model):
        for layout in layouts:
            for size in sizes or SIZES[layout]:
                if layout == "indexed":
                    yield Case(layer, draw_of(size, layer.experts, min(model.top_k, layer.experts)))
                else:
                    yield GroupedCase(layer, "masked" if layout == "masked" else "offsets", size)


def draw_of(tokens: int, experts: int, picks: int) -> Draw:
    """The first draw of that many tokens, with the counts that follow from it."""
    draw = Draw(tokens, experts, seed=0, active=0, busiest=0, picks=picks)
    counts = draw.rows_per_expert()
    return replace(draw, active=int((counts > 0).sum()), busiest=int(counts.max()))
