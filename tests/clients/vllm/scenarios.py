"""What vLLM does with a layer of ours, in a process of its own: ``python scenarios.py TREE RESULT``. One function a scenario.

RESULT is JSON: the scenario's name to "" or its traceback. The reference backend computes, so no GPU is needed.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest import mock

import torch

from tests.clients.vllm.checks import Step, Weights, check
from tests.clients.vllm.engine import Engine, Layer

EXPERTS, LOCAL, HIDDEN, NEURONS, TOP_K = 16, 4, 256, 128, 4
SHAPE = {"experts": EXPERTS, "hidden": HIDDEN, "neurons": NEURONS, "top_k": TOP_K}


def share() -> torch.Tensor:
    """The local experts of a rank that has four of sixteen, not in their order."""
    expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
    expert_map[[3, 9, 4, 14]] = torch.arange(LOCAL, dtype=torch.int32)
    return expert_map


def loaded(engine: Engine, config: object, expert_map: torch.Tensor | None = None, seed: int = 0) -> tuple[Layer, Weights]:
    weights = Weights.random(config.num_local_experts, HIDDEN, NEURONS, seed=seed)
    layer = engine.layer(config, expert_map=expert_map)
    layer.load(weights.codes, weights.scales)
    return layer, weights


def run(layer: Layer, step: Step) -> torch.Tensor:
    return layer.method.apply(layer, step.x, step.weights, step.ids, None, None)


def steps(tokens: tuple[int, ...], dtype: torch.dtype = torch.int32) -> list[Step]:
    """Random steps, and for each a copy with ids that go nowhere and all ids of a token on one expert."""
    found = []
    for count in tokens:
        found.append(Step.random(count, HIDDEN, EXPERTS, TOP_K, dtype=dtype, seed=count))
        odd = Step.random(count, HIDDEN, EXPERTS, TOP_K, dtype=dtype, seed=count + 1)
        odd.ids[::3, 1] = -1
        odd.ids[1::3] = 3
        found.append(odd)
    return found


def selection(engine: Engine) -> None:
    """vLLM's oracle picks Humming's classes for our deployments on Hopper, and Marlin where it did before."""
    whole, rank = {**SHAPE, "local": EXPERTS}, {**SHAPE, "local": LOCAL, "ep": 4}
    assert engine.layer(engine.moe_config(**whole)).chosen == "HummingIndexedExperts"
    assert engine.layer(engine.moe_config(**rank)).chosen == "HummingGroupedExperts"
    if engine.backend == "auto":
        assert "Marlin" in engine.layer(engine.moe_config(**rank, all2all="deepep_low_latency")).chosen
    with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE="indexed"):
        assert engine.layer(engine.moe_config(**rank)).chosen == "HummingIndexedExperts"
    with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE="grouped_masked"):
        assert engine.layer(engine.moe_config(**rank, all2all="deepep_low_latency")).chosen == "BatchedHummingGroupedExperts"


def conversion(engine: Engine) -> None:
    """The parameters that vLLM keeps are our bytes, all of them and no others, and the configs say that they are ours."""
    from chord_jit import unpack_w4a16
    from chord_jit.integrations.vllm.layer import ServedLayer

    layer, weights = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    assert sorted(name for name, _ in layer.named_parameters()) == ["w13_weight", "w2_weight"]
    for name, config in layer.humming_configs.items():
        assert isinstance(config, ServedLayer) and (config.pad_shape_n, config.pad_shape_k) == (0, 0)
        codes, scales = unpack_w4a16(config.packed(getattr(layer, f"{name}_weight")))
        words = (codes.view(*codes.shape[:2], -1, 8).long() << torch.arange(0, 32, 4)).sum(-1)
        assert torch.equal(words.int(), weights.codes[name]) and torch.equal(scales, weights.scales[name])


def tp_indexed(engine: Engine) -> None:
    layer, weights = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    assert layer.chosen == "HummingIndexedExperts"
    for step in [*steps((1, 7, 32, 200)), *steps((5,), torch.int64)]:
        check(run(layer, step), step.exact(weights))


def ep_grouped(engine: Engine) -> None:
    layer, weights = loaded(engine, engine.moe_config(**SHAPE, local=LOCAL, ep=4), share())
    assert layer.chosen == "HummingGroupedExperts"
    for step in steps((1, 7, 32, 200)):
        check(run(layer, step), step.exact(weights, share()))


def ep_indexed(engine: Engine) -> None:
    """With an expert map, above and below the size from which vLLM scatters the activated rows."""
    with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE="indexed"):
        layer, weights = loaded(engine, engine.moe_config(**SHAPE, local=LOCAL, ep=4), share())
        assert layer.chosen == "HummingIndexedExperts"
        for step in steps((1, 7, 66, 67, 200)):
            # Tokens of none of this rank's experts come out as vLLM's own combination leaves them: zero.
            check(run(layer, step), step.exact(weights, share()))


def ll_masked(engine: Engine) -> None:
    """Rows as low-latency dispatch leaves them: each expert's first ones count, the others are stale."""
    capacity, counts = 12, torch.tensor([0, 12, 5, 1], dtype=torch.int32)
    config = engine.moe_config(**SHAPE, local=LOCAL, ep=4, all2all="deepep_low_latency")
    with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE="grouped_masked"):
        # Dispatch and combination are DeepEP's: the experts alone are vLLM's part of this layer.
        with mock.patch.object(type(engine.layer(config).method), "_setup_kernel"):
            layer, weights = loaded(engine, config)
        assert layer.chosen == "BatchedHummingGroupedExperts"
        experts = layer.method.experts_cls(
            moe_config=config, quant_config=layer.method.get_fused_moe_quant_config(layer), max_num_tokens=capacity // 4, num_dispatchers=4
        )
        x = torch.randn(LOCAL, capacity, HIDDEN).bfloat16()
        for expert, count in enumerate(counts.tolist()):
            x[expert, count:] = torch.nan
        ids = torch.zeros(3, TOP_K, dtype=torch.int64)
        first, second, shape = experts._workspace_shapes(capacity, TOP_K, config.activation)
        out = torch.full(shape, torch.nan, dtype=torch.bfloat16)
        spaces = [torch.full(size, torch.nan, dtype=torch.bfloat16) for size in (first, second)]
        meta = engine.kernel.ExpertTokensMetadata(expert_num_tokens=counts, expert_num_tokens_cpu=None)
        experts.apply(
            out, x, layer.w13_weight, layer.w2_weight, torch.ones(3, TOP_K), ids, config.activation, EXPERTS, None, None, None, *spaces,
            meta, False,
        )  # fmt: skip
        for expert, count in enumerate(counts.tolist()):
            if count:
                check(out[expert, :count], weights.expert(x[expert, :count], expert))


def stale_workspaces(engine: Engine) -> None:
    """What an earlier step left in the workspaces, NaN here, reaches no result."""
    for config, expert_map in (
        (engine.moe_config(**SHAPE, local=EXPERTS), None), (engine.moe_config(**SHAPE, local=LOCAL, ep=4), share()),
    ):  # fmt: skip
        layer, weights = loaded(engine, config, expert_map)
        for step in steps((33,)):
            run(layer, step)
            from vllm.v1.worker.workspace import current_workspace_manager

            for space in current_workspace_manager().get_simultaneous(((1 << 16,), torch.bfloat16), ((1 << 16,), torch.bfloat16)):
                space.fill_(torch.nan)
            check(run(layer, step), step.exact(weights, expert_map))


def no_tokens(engine: Engine) -> None:
    """Experts without a row, as a data-parallel rank meets them: a step without tokens, and calls without rows in every layout."""
    import vllm.utils.humming as facade

    layer, _ = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    assert run(layer, Step.random(0, HIDDEN, EXPERTS, TOP_K)).shape == (0, HIDDEN)
    config, out = layer.humming_configs["w13"], torch.empty(0, 2 * NEURONS, dtype=torch.bfloat16)
    x, none = torch.empty(0, HIDDEN, dtype=torch.bfloat16), torch.empty(0, dtype=torch.int32)
    layouts = (
        {"sorted_ids": none, "expert_ids": none, "num_tokens_padded": torch.zeros(1, dtype=torch.int32), "top_k": TOP_K},
        {"expert_layout": torch.zeros(EXPERTS + 1, dtype=torch.int64)}, {"expert_layout": torch.zeros(EXPERTS, dtype=torch.int32)},
    )  # fmt: skip
    for layout in layouts:
        assert facade.humming_forward(config, x, layer.w13_weight, outputs=out, valid_shape_m=0, **layout) is out


def one_block_size(engine: Engine) -> None:
    """vLLM groups the ids once for both projections: their block sizes agree in every interval, and intervals cover all sizes."""
    layer, _ = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    experts = layer.method.moe_kernel.fused_experts
    assert experts.w13_tuning_config == experts.w2_tuning_config
    bounds = [entry[:2] for entry in experts.w13_tuning_config]
    assert bounds[0][0] < 0 and bounds[-1][1] == 1 << 30
    assert all(before[1] == after[0] < after[1] for before, after in zip(bounds, bounds[1:], strict=False))
    calls = []
    align = engine.experts.moe_align_block_size
    with mock.patch.object(engine.experts, "moe_align_block_size", lambda **options: calls.append(options) or align(**options)):
        run(layer, steps((9,))[0])
    assert len(calls) == 1


def second_load(engine: Engine) -> None:
    """Weights that are loaded again over a live layer are the ones that count, and old ones go."""
    layer, first = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    step = steps((20,))[0]
    check(run(layer, step), step.exact(first))
    second = Weights.random(EXPERTS, HIDDEN, NEURONS, seed=1)
    layer.load(second.codes, second.scales)
    check(run(layer, step), step.exact(second))
    # vLLM's own reload copies new bytes into parameters whose addresses CUDA graphs know.
    third, other = Weights.random(EXPERTS, HIDDEN, NEURONS, seed=2), engine.layer(engine.moe_config(**SHAPE, local=EXPERTS))
    other.load(third.codes, third.scales)
    for name in ("w13_weight", "w2_weight"):
        getattr(layer, name).data.copy_(getattr(other, name).data)
    check(run(layer, step), step.exact(third))


def other_activation(engine: Engine) -> None:
    """An activation that we lack is refused when vLLM profiles the model, with the way out. vLLM 0.30 activates rows itself."""
    from chord_jit.errors import InputError

    if not hasattr(engine.experts, "moe_prepare_scatter"):
        return

    layer, _ = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS, activation="GELU"))
    try:
        run(layer, steps((3,))[0])
    except InputError as error:
        assert "CHORD_VLLM=0" in str(error) and "erff" in str(error)
    else:
        raise AssertionError("GELU was computed as something else")


def declined(engine: Engine) -> None:
    """A layer with another group goes to Humming with vLLM's own arguments."""
    import vllm.utils.humming as facade

    from chord_jit.integrations.vllm import notes, overlay

    asked, known = {}, ("prepare_and_transform_humming_tensors", "prepare_layer_config")
    name = next(name for name in known if name in facade._EXPORTS)
    codes = facade.HummingWeightSchema(b_dtype="uint4", bs_dtype="bfloat16", weight_scale_group_size=64)

    def convert(schema: object, tensors: dict[str, torch.Tensor], **options: object) -> tuple[object, dict[str, torch.Tensor]]:
        return codes, {"weight": tensors["weight_packed"], "weight_scale": tensors["weight_scale"]}

    def prepare(*, shape_n: int, shape_k: int, weight_schema: object, num_experts: int, **options: object) -> None:
        asked.update(shape=(shape_n, shape_k), schema=weight_schema, experts=num_experts)
        raise StopIteration

    layer, weights = engine.layer(engine.moe_config(**SHAPE, local=EXPERTS), group=64), Weights.random(EXPERTS, HIDDEN, NEURONS, group=64)
    # Humming's own conversion and preparation run kernels of its: they are replaced below the overlay.
    with (
        mock.patch.object(facade, name, overlay._OVERLAID[name](facade, prepare)),
        mock.patch.object(facade.CompressedTensorsWeightSchema, "convert_humming", convert),
        suppress(StopIteration),
    ):
        layer.load(weights.codes, weights.scales)
    assert asked == {"shape": (2 * NEURONS, HIDDEN), "schema": codes, "experts": EXPERTS}
    assert any("to Humming" in line and "groups of 32" in line for line in notes._said)


SCENARIOS: dict[str, Callable[[Engine], None]] = {
    function.__name__: function
    for function in (
        selection, conversion, tp_indexed, ep_grouped, ep_indexed, ll_masked, stale_workspaces, no_tokens, one_block_size, second_load,
        other_activation, declined,
    )
}  # fmt: skip


def main(tree: str, result: str) -> None:
    logging.basicConfig(level=logging.INFO)
    engine = Engine(Path(tree))
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(torch.device("cpu"), num_ubatches=1)
    outcome = {}
    for name, scenario in SCENARIOS.items():
        torch.manual_seed(0)
        try:
            scenario(engine)
            outcome[name] = ""
        except Exception:
            outcome[name] = traceback.format_exc()
    Path(result).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main(*sys.argv[1:])
