"""What vLLM does with a layer of ours, one function a scenario. They run in a process of their own (``run``), on the CPU over the
reference backend, or on a GPU over the kernels.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from unittest import mock

import torch

from tests.clients.vllm.checks import Step, Weights, check
from tests.clients.vllm.engine import Engine, Layer

EXPERTS, LOCAL, HIDDEN, NEURONS, TOP_K = 16, 4, 256, 128, 4
SHAPE = {"experts": EXPERTS, "hidden": HIDDEN, "neurons": NEURONS, "top_k": TOP_K}


def share(engine: Engine) -> torch.Tensor:
    """The local experts of a rank that has four of sixteen, not in their order."""
    expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
    expert_map[[3, 9, 4, 14]] = torch.arange(LOCAL, dtype=torch.int32)
    return expert_map.to(engine.device)


def loaded(engine: Engine, config: object, expert_map: torch.Tensor | None = None, seed: int = 0) -> tuple[Layer, Weights]:
    weights = Weights.random(config.num_local_experts, HIDDEN, NEURONS, device=engine.device, seed=seed)
    layer = engine.layer(config, expert_map=expert_map)
    layer.load(weights.codes, weights.scales)
    return layer, weights


def apply(layer: Layer, step: Step) -> torch.Tensor:
    return layer.method.apply(layer, step.x, step.weights, step.ids, None, None)


def steps(engine: Engine, tokens: tuple[int, ...], dtype: torch.dtype = torch.int32) -> list[Step]:
    """Random steps, and for each a copy with ids that go nowhere and all ids of a token on one expert."""
    found = []
    for count in tokens:
        found.append(Step.random(count, HIDDEN, EXPERTS, TOP_K, dtype=dtype, device=engine.device, seed=count))
        odd = Step.random(count, HIDDEN, EXPERTS, TOP_K, dtype=dtype, device=engine.device, seed=count + 1)
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
        words = (codes.view(*codes.shape[:2], -1, 8).long() << torch.arange(0, 32, 4, device=codes.device)).sum(-1)
        assert torch.equal(words.int(), weights.codes[name]) and torch.equal(scales, weights.scales[name])


def tp_indexed(engine: Engine) -> None:
    layer, weights = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    assert layer.chosen == "HummingIndexedExperts"
    for step in [*steps(engine, (1, 7, 32, 200)), *steps(engine, (5,), torch.int64)]:
        check(apply(layer, step), step.exact(weights))


def ep_grouped(engine: Engine) -> None:
    layer, weights = loaded(engine, engine.moe_config(**SHAPE, local=LOCAL, ep=4), share(engine))
    assert layer.chosen == "HummingGroupedExperts"
    for step in steps(engine, (1, 7, 32, 200)):
        check(apply(layer, step), step.exact(weights, share(engine)))


def ep_indexed(engine: Engine) -> None:
    """With an expert map, above and below the size from which vLLM scatters the activated rows."""
    with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE="indexed"):
        layer, weights = loaded(engine, engine.moe_config(**SHAPE, local=LOCAL, ep=4), share(engine))
        assert layer.chosen == "HummingIndexedExperts"
        for step in steps(engine, (1, 7, 66, 67, 200)):
            # Tokens of none of this rank's experts come out as vLLM's own combination leaves them: zero.
            check(apply(layer, step), step.exact(weights, share(engine)))


def quantization_humming(engine: Engine) -> None:
    """The same checkpoint under ``--quantization humming``, another of vLLM's methods."""
    weights = Weights.random(EXPERTS, HIDDEN, NEURONS, device=engine.device)
    layer = engine.layer(engine.moe_config(**SHAPE, local=EXPERTS), quantization="humming")
    layer.load(weights.codes, weights.scales)
    for step in steps(engine, (3, 40)):
        check(apply(layer, step), step.exact(weights))


def ll_masked(engine: Engine) -> None:
    """Rows as low-latency dispatch leaves them: each expert's first ones count, the others are stale."""
    capacity, counts = 12, torch.tensor([0, 12, 5, 1], dtype=torch.int32, device=engine.device)
    config = engine.moe_config(**SHAPE, local=LOCAL, ep=4, all2all="deepep_low_latency")
    with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE="grouped_masked"):
        # Dispatch and combination are DeepEP's: the experts alone are vLLM's part of this layer.
        with mock.patch.object(type(engine.layer(config).method), "_setup_kernel"):
            layer, weights = loaded(engine, config)
        assert layer.chosen == "BatchedHummingGroupedExperts"
        experts = layer.method.experts_cls(
            moe_config=config, quant_config=layer.method.get_fused_moe_quant_config(layer), max_num_tokens=capacity // 4, num_dispatchers=4
        )
        x = torch.randn(LOCAL, capacity, HIDDEN).bfloat16().to(engine.device)
        for expert, count in enumerate(counts.tolist()):
            x[expert, count:] = torch.nan
        ids = torch.zeros(3, TOP_K, dtype=torch.int64, device=engine.device)
        first, second, shape = experts._workspace_shapes(capacity, TOP_K, config.activation)
        out = torch.full(shape, torch.nan, dtype=torch.bfloat16, device=engine.device)
        spaces = [torch.full(size, torch.nan, dtype=torch.bfloat16, device=engine.device) for size in (first, second)]
        meta = engine.kernel.ExpertTokensMetadata(expert_num_tokens=counts, expert_num_tokens_cpu=None)
        experts.apply(
            out, x, layer.w13_weight, layer.w2_weight, ids.float(), ids, config.activation, EXPERTS, None, None, None, *spaces,
            meta, False,
        )  # fmt: skip
        for expert, count in enumerate(counts.tolist()):
            if count:
                check(out[expert, :count], weights.expert(x[expert, :count], expert))


def stale_workspaces(engine: Engine) -> None:
    """What an earlier step left in the workspaces, NaN here, reaches no result."""
    for config, expert_map in (
        (engine.moe_config(**SHAPE, local=EXPERTS), None), (engine.moe_config(**SHAPE, local=LOCAL, ep=4), share(engine)),
    ):  # fmt: skip
        layer, weights = loaded(engine, config, expert_map)
        for step in steps(engine, (33,)):
            apply(layer, step)
            from vllm.v1.worker.workspace import current_workspace_manager

            for space in current_workspace_manager().get_simultaneous(((1 << 16,), torch.bfloat16), ((1 << 16,), torch.bfloat16)):
                space.fill_(torch.nan)
            check(apply(layer, step), step.exact(weights, expert_map))


def no_tokens(engine: Engine) -> None:
    """Experts without a row, as a data-parallel rank meets them: a step without tokens, and calls without rows in every layout."""
    import vllm.utils.humming as facade

    layer, _ = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    assert apply(layer, Step.random(0, HIDDEN, EXPERTS, TOP_K, device=engine.device)).shape == (0, HIDDEN)
    config, device = layer.humming_configs["w13"], engine.device
    out, x = (torch.empty(0, width, dtype=torch.bfloat16, device=device) for width in (2 * NEURONS, HIDDEN))
    none, zero = (torch.zeros(size, dtype=torch.int32, device=device) for size in (0, 1))
    layouts = (
        {"sorted_ids": none, "expert_ids": none, "num_tokens_padded": zero, "top_k": TOP_K},
        {"expert_layout": torch.zeros(EXPERTS + 1, dtype=torch.int64, device=device)},
        {"expert_layout": torch.zeros(EXPERTS, dtype=torch.int32, device=device)},
    )
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
        apply(layer, steps(engine, (9,))[0])
    assert len(calls) == 1


def second_load(engine: Engine) -> None:
    """Weights that are loaded again over a live layer are the ones that count, and old ones go."""
    layer, first = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS))
    step = steps(engine, (20,))[0]
    check(apply(layer, step), step.exact(first))
    second = Weights.random(EXPERTS, HIDDEN, NEURONS, device=engine.device, seed=1)
    layer.load(second.codes, second.scales)
    check(apply(layer, step), step.exact(second))
    # vLLM's own reload copies new bytes into parameters whose addresses CUDA graphs know.
    other, third = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS), seed=2)
    for name in ("w13_weight", "w2_weight"):
        getattr(layer, name).data.copy_(getattr(other, name).data)
    check(apply(layer, step), step.exact(third))


def other_activation(engine: Engine) -> None:
    """An activation that we lack is refused when vLLM profiles the model, with the way out. vLLM 0.30 activates rows itself."""
    from chord_jit.errors import InputError

    if not hasattr(engine.experts, "moe_prepare_scatter"):
        return

    layer, _ = loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS, activation="GELU"))
    try:
        apply(layer, steps(engine, (3,))[0])
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

    def prepare(
        *, shape_n: int, shape_k: int, weight_schema: object, num_experts: int, torch_dtype: torch.dtype, **options: object
    ) -> None:
        asked.update(shape=(shape_n, shape_k), schema=weight_schema, experts=num_experts)
        raise StopIteration

    layer = engine.layer(engine.moe_config(**SHAPE, local=EXPERTS), group=64)
    weights = Weights.random(EXPERTS, HIDDEN, NEURONS, group=64, device=engine.device)
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
        selection, conversion, tp_indexed, ep_grouped, ep_indexed, quantization_humming, ll_masked, stale_workspaces, no_tokens,
        one_block_size, second_load, other_activation, declined,
    )
}  # fmt: skip
