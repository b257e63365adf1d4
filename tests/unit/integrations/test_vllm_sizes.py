"""The sizes that vLLM is told: intervals without a gap, one block size for both projections, few kernels, all of them warmed up."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from chord_jit import device, plan
from chord_jit.errors import InputError
from chord_jit.families import base, grouped, indexed
from chord_jit.integrations.vllm import sizes
from chord_jit.integrations.vllm.layer import ServedLayer
from chord_jit.jit.warmup import WarmupReport

HOPPER = device.target("sm_90a")
#: Experts, N and K of w13, as vLLM deploys Kimi K2 over eight ranks.
KIMI = {"tp8": (384, 512, 7168), "ep8": (48, 4096, 7168)}


def layers(experts: int, n: int, k: int) -> list[ServedLayer]:
    """w13 and w2 of a layer."""
    found = []
    for gated, shape_n, shape_k in ((True, n, k), (False, k, n // 2)):
        config = ServedLayer()
        config.num_experts, config.shape_n, config.shape_k = experts, shape_n, shape_k
        config.gated, config.index, config.sizes = gated, -1, {}
        found.append(config)
    return found


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setattr(ServedLayer, "facts", HOPPER)


@pytest.mark.parametrize("gemm_type", sizes.LAYOUTS)
@pytest.mark.parametrize("shape", KIMI.values(), ids=KIMI)
def test_intervals_cover_every_size_alike_for_both_projections(shape, gemm_type):
    told = [sizes.heuristics(layer_config=config, gemm_type=SimpleNamespace(value=gemm_type)) for config in layers(*shape)]
    assert told[0] == told[1] == json.loads(json.dumps(told[0]))
    assert told[0][0][0] == -1 and told[0][-1][1] == 1 << 30
    assert all(before[1] == after[0] < after[1] for before, after in zip(told[0], told[0][1:], strict=False))
    assert all(len(entry[2]["block_shape"]) == 3 and entry[2]["block_shape"][0] % 8 == 0 for entry in told[0])


@pytest.mark.parametrize("gemm_type", sizes.LAYOUTS)
def test_a_forward_finds_the_interval_that_vllm_finds(gemm_type):
    config = layers(*KIMI["ep8"])[0]
    told = sizes.heuristics(config, gemm_type=gemm_type)
    for rows in (0, 1, 2, 3, 5, 8, 31, 32, 33, 384, 1000, 24576, 24577, 1 << 30):
        theirs = next(entry for lower, upper, entry in told if lower < rows <= upper)
        assert sizes.at(config, gemm_type, rows).block_m == theirs["block_shape"][0]
        assert sizes.heuristics(config, rows, gemm_type=gemm_type) == theirs


@pytest.mark.parametrize("gemm_type", sizes.LAYOUTS)
@pytest.mark.parametrize("shape", KIMI.values(), ids=KIMI)
def test_what_a_forward_asks_for_was_warmed_up(shape, gemm_type):
    for config in layers(*shape):
        found = sizes.of(config, gemm_type)
        warmed = set(sizes.problems(HOPPER, config.num_experts, config.shape_n, config.shape_k, gemm_type, found))
        for rows in (1, 7, 8, 64, 100, 1000, 3072, 50000, 500000):
            size = sizes.at(config, gemm_type, rows)
            given = (HOPPER, config.num_experts, config.shape_n, config.shape_k)
            if gemm_type == "indexed":
                asked = indexed.FAMILY.problem(*given, size.expected_rows, block_m=size.block_m)
            else:
                rows_of = int(size.expected_rows) if gemm_type == "grouped_masked" else size.expected_rows
                asked = grouped.FAMILY.problem(*given, rows_of, layout=sizes.LAYOUTS[gemm_type])
            assert asked in warmed


@pytest.mark.parametrize("gemm_type", sizes.LAYOUTS)
@pytest.mark.parametrize("shape", KIMI.values(), ids=KIMI)
def test_a_deployment_needs_few_kernels(shape, gemm_type):
    kernels = set()
    for config in layers(*shape):
        for problem in sizes.problems(HOPPER, config.num_experts, config.shape_n, config.shape_k, gemm_type, sizes.of(config, gemm_type)):
            family = base.family(problem.family)
            kernels.add(family.spec(problem, family.schedule(problem)))
    assert len(kernels) <= 16


def test_kernels_of_a_shape_are_built_once(monkeypatch):
    built = []
    monkeypatch.setattr(sizes, "_build", lambda *key: built.append(key))
    config = layers(*KIMI["ep8"])[0]
    sizes.heuristics(config, gemm_type="indexed")
    assert built == []
    config.index = 3
    sizes.heuristics(config, gemm_type="indexed")
    assert built == [(3, HOPPER, 48, 4096, 7168, "indexed", config.sizes["indexed"])]


@pytest.mark.parametrize("options", [{"gemm_type": "dense"}, {"gemm_type": "indexed", "use_batch_invariant": True}, {"gemm_type": None}])
def test_what_no_layer_of_ours_can_be_is_refused(options):
    with pytest.raises(InputError, match="CHORD_VLLM=0"):
        sizes.heuristics(layers(*KIMI["ep8"])[0], **options)


@pytest.mark.parametrize("gemm_type", sizes.LAYOUTS)
def test_what_is_built_is_what_the_library_can_warm_up(gemm_type, monkeypatch):
    """On a GPU that is not there: every problem of a layer, and the kernel that moves its rows, go to one warm-up."""
    asked = []

    def warm_up(problems):
        asked.extend(spec.stem for spec, *_ in plan.chosen(problems))
        return WarmupReport(compiled=1, hit=0, failed=0, seconds=0.0, errors=())

    monkeypatch.setattr(sizes.api, "warm_up", warm_up)
    monkeypatch.setattr(sizes.torch.cuda, "device", lambda index: nullcontext())
    sizes._build.cache_clear()
    config = layers(*KIMI["ep8"])[0]
    config.index = 0
    for _ in range(2):
        sizes.heuristics(config, gemm_type=gemm_type)
    assert asked.count("move_rows") == 1 and "w4a16_wgmma" in asked
