"""Scenarios that need a GPU: CUDA graphs, what a forward may not do, memory of a load, a layer of Kimi K2."""

from __future__ import annotations

import os
from collections.abc import Callable
from unittest import mock

import torch

from tests.clients.vllm.checks import Step, Weights, check
from tests.clients.vllm.engine import Engine
from tests.clients.vllm.scenarios import EXPERTS, HIDDEN, LOCAL, SHAPE, TOP_K, apply, loaded, share

#: A rank of Kimi K2 over eight that share the experts.
KIMI = {"experts": 384, "local": 48, "hidden": 7168, "neurons": 2048, "top_k": 8, "ep": 8}
_TOKENS = 40


def graphs(engine: Engine) -> None:
    """A replay follows tokens, ids and weights that were written into the captured buffers, in both standard formats."""
    for config, expert_map in (
        (engine.moe_config(**SHAPE, local=EXPERTS), None), (engine.moe_config(**SHAPE, local=LOCAL, ep=4), share(engine)),
    ):  # fmt: skip
        layer, weights = loaded(engine, config, expert_map)
        step = _step(0)
        apply(layer, step)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = apply(layer, step)
        for seed in range(1, 4):
            fresh = _step(seed)
            fresh.ids[: 10 * seed, 0] = -1
            for into, source in ((step.x, fresh.x), (step.ids, fresh.ids), (step.weights, fresh.weights)):
                into.copy_(source)
            graph.replay()
            check(out, fresh.exact(weights, expert_map))
            assert torch.equal(out, apply(layer, fresh)), "a replay differs from an eager call"


def nothing_is_built_in_a_forward(engine: Engine) -> None:
    """Kernels are compiled and loaded while weights are processed: from then on the counters stand still, whatever a step's size."""
    from chord_jit import counters

    whole, rank = engine.moe_config(**SHAPE, local=EXPERTS), engine.moe_config(**SHAPE, local=LOCAL, ep=4)
    for environment, config, expert_map in (("indexed", whole, None), ("grouped", rank, share(engine)), ("indexed", rank, share(engine))):
        with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE=environment):
            layer, _ = loaded(engine, config, expert_map)
            before = counters()
            for tokens in (1, 2, 3, 5, 8, 16, 40, 100, 300, 1000, 3000, 8000):
                apply(layer, _step(0, tokens))
            torch.cuda.synchronize()
            after = counters()
            assert (after.compiles, after.loads) == (before.compiles, before.loads), f"{environment}: {before} became {after}"


def streams(engine: Engine) -> None:
    """Two layers on two streams at once, each with vLLM's workspace for its lane, give what they give one after another."""
    from vllm.v1.worker.workspace import init_workspace_manager, use_workspace_lane

    init_workspace_manager(torch.device(engine.device), num_ubatches=1, num_lanes=2)
    layers = [loaded(engine, engine.moe_config(**SHAPE, local=EXPERTS), seed=seed)[0] for seed in (0, 1)]
    step = _step(5)
    alone = [apply(layer, step).clone() for layer in layers]
    lanes = [torch.cuda.Stream() for _ in layers]
    torch.cuda.synchronize()
    for _ in range(20):
        found = []
        for lane, (layer, stream) in enumerate(zip(layers, lanes, strict=True)):
            with torch.cuda.stream(stream), use_workspace_lane(lane):
                found.append(apply(layer, step).clone())
        torch.cuda.synchronize()
        assert all(torch.equal(one, other) for one, other in zip(alone, found, strict=True))


def load_memory(engine: Engine) -> None:
    """Beyond source and packed weights a load holds less than one expert. Eight experts of Kimi K2, through the names that vLLM calls."""
    from vllm.utils.humming import BaseWeightSchema, HummingInputSchema, prepare_and_transform_humming_tensors

    scheme = {"quant_method": "compressed-tensors", "format": "pack-quantized", "type": "int", "num_bits": 4, "strategy": "group",
              "group_size": 32, "symmetric": True}  # fmt: skip
    weights = Weights.random(8, KIMI["hidden"], KIMI["neurons"], device=engine.device)
    for name, codes in weights.codes.items():
        n, k = codes.shape[1], 8 * codes.shape[2]
        source = {"weight_packed": codes, "weight_scale": weights.scales[name]}
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        stacks = [n // 2, n // 2] if name == "w13" else [n]
        schema, tensors = BaseWeightSchema.from_config(scheme).convert_humming(source, stacks, [k], torch.bfloat16, 8)
        _, packed = prepare_and_transform_humming_tensors(
            tensors=tensors, shape_n=n, shape_k=k, weight_schema=schema, input_schema=HummingInputSchema(), num_experts=8,
            torch_dtype=torch.bfloat16, device=torch.device(engine.device),
        )
        torch.cuda.synchronize()
        # What was asked for, not what the allocator rounds it up to.
        peak, expert = torch.cuda.memory_stats()["requested_bytes.all.peak"], packed["weight"][0].numel()
        beyond = peak - before - packed["weight"].numel()
        assert beyond <= expert, f"{name}: {beyond} bytes beyond source and result, an expert has {expert}"


def kimi(engine: Engine) -> None:
    """A rank's layer of Kimi K2, decode and prefill, in both standard formats."""
    expert_map = torch.full((384,), -1, dtype=torch.int32)
    expert_map[96:144] = torch.arange(48, dtype=torch.int32)
    expert_map, config = expert_map.to(engine.device), engine.moe_config(**KIMI)
    weights = Weights.random(48, 7168, 2048, device=engine.device)
    for environment in ("grouped", "indexed"):
        with mock.patch.dict(os.environ, VLLM_HUMMING_MOE_GEMM_TYPE=environment):
            layer = engine.layer(config, expert_map=expert_map)
            layer.load(weights.codes, weights.scales)
            for tokens in (1, 50, 2000):
                step = Step.random(tokens, 7168, 384, 8, device=engine.device, seed=tokens)
                # Of a token's eight experts some are on this rank, as in a step; of the first token all are.
                step.ids[0] = torch.arange(100, 108, device=engine.device)
                check(apply(layer, step), step.exact(weights, expert_map))
            del layer
            torch.cuda.empty_cache()


def _step(seed: int, tokens: int = _TOKENS) -> Step:
    return Step.random(tokens, HIDDEN, EXPERTS, TOP_K, device="cuda", seed=seed)


SCENARIOS: dict[str, Callable[[Engine], None]] = {
    function.__name__: function for function in (graphs, nothing_is_built_in_a_forward, streams, load_memory, kimi)
}
