"""Many rows per expert through the WGMMA kernel: values against both references, between fences, poison where nothing is promised."""

from dataclasses import replace

import pytest
import torch

from chord_jit import align_blocks, knobs
from chord_jit.families.indexed import FAMILY
from chord_jit.schedules.schedule import Schedule
from tests.gpu.cases import PAIRS, Case
from tests.gpu.compare import assert_right
from tests.gpu.prefill_cases import CALLS, CUT, MMA, RESIDENT, SHORT, WHOLE, WIDE, named, resident, shaped, wgmma
from tests.gpu.routers import poisoned
from tests.gpu.tensors import bits, fenced, fenced_result, generator_of, integer_weight, integers, weight_of
from tests.gpu.workload import Work, build, forced

EVERY = dict(
    n={128, 384, 512, 768, 1536, 4096, 7168}, k={64, 96, 192, 256, 1344, 2048, 7168}, experts={1, 8, 48, 384, 1025},
    draw={"random", "balanced", "hot", "sparse", "dropped", "ep"},
)  # fmt: skip

#: Rows of an expert: 0 to 40, and around the height of each taller tile.
RISING = [*range(41), *(rows + beside for rows in (64, 96, 128, 160, 192, 256) for beside in (-1, 0, 1))]
#: Blocks of two and three tiles end in tiles without rows.
RISING_BY = [
    (shaped(block_m, experts=len(RISING)), schedule)
    for block_m, schedule in (
        (16, WIDE), (96, SHORT), (48, wgmma(48, 256, 128, 4)), (128, CUT), (192, wgmma(96, 256, 128, 3, 2)), (256, wgmma(256, 128, 64, 3)),
    )
]  # fmt: skip
RISING_BY += [
    (replace(shaped(block_m, experts=len(RISING)), k=256), resident(bm, 256, 3)) for block_m, bm in ((256, 128), (96, 96), (64, 64))
]
SAME = [shaped(192), shaped(192, **PAIRS)]
SAME += [replace(case, k=256) for case in SAME]
#: Every kernel that computes ``SAME``; ``RESIDENT`` where K is 256.
SAME_BY = (MMA, CUT, wgmma(96, 256, 128, 3, 2))


def by(case: Case) -> tuple[Schedule, ...]:
    return (*SAME_BY, RESIDENT) if case.k == 256 else SAME_BY


SMALL = Case(8, 1024, 768, 20, 2, 64)
LARGE = shaped(64, 1000)
BROKEN = shaped(64, 400, top_k=1)
BROKEN_SHORT = replace(BROKEN, k=256)
GATE_UP, DOWN = Case(8, 768, 256, 300, 4, 64, "ep", **PAIRS), Case(8, 256, 384, 1200, 1, 64, "ep", weighted=True)
KERNELS = [(replace(case, weighted=weighted), how) for case in SAME for how in by(case) for weighted in (False, True)]
KERNELS += [(case, None) for case in (SMALL, LARGE)] + [(BROKEN, SHORT), (GATE_UP, CUT), (DOWN, CUT)]


@pytest.mark.parametrize("call", named(CALLS))
def test_v47_v50_values(call, gpu, seed):
    case, schedule = call
    work = build(case, gpu, seed)
    with forced(schedule):
        assert_right(work.fenced_call(), work)


@pytest.mark.parametrize("field", EVERY)
def test_v47_every_value_has_a_case(field):
    assert EVERY[field] <= {getattr(case, field) for case, _ in CALLS}


@pytest.mark.quick
@pytest.mark.parametrize("call", named(RISING_BY))
def test_every_number_of_rows(call, gpu, seed):
    """Every fill of a tile and every number of tiles at once, in an order of tokens that follows nothing."""
    case, schedule = call
    generator = generator_of(gpu, seed)
    counts = torch.tensor(RISING, device=gpu)[torch.randperm(len(RISING), generator=generator, device=gpu)]
    topk_ids = torch.arange(len(RISING), device=gpu).repeat_interleave(counts)
    topk_ids = topk_ids[torch.randperm(len(topk_ids), generator=generator, device=gpu)].view(-1, 1)
    x = torch.randn(len(topk_ids), case.k, generator=generator, device=gpu).bfloat16()
    routing = poisoned(align_blocks(topk_ids, case.block_m, len(RISING)), generator)
    assert len(routing.sorted_ids) % case.block_m, "a capacity of whole blocks shows less"
    work = Work(fenced(x), weight_of(len(RISING), case.n, case.k, False, gpu), routing)
    with forced(schedule):
        assert_right(work.fenced_call(checked=True), work)


@pytest.mark.quick
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("case", SAME, ids=str)
def test_v53_one_weight_gives_the_same_bits_in_every_call(case, weighted, gpu, seed):
    """By both kernels: small integers, scales and routing weights that are powers of two, so every sum is exact in FP32, in any order."""
    generator = generator_of(gpu, seed)
    work = build(replace(case, weighted=weighted), gpu, seed)
    weight = integer_weight(case.experts, case.n, case.k, case.interleaved, generator)
    work = replace(work, x=fenced(integers(case.tokens, case.k, generator)), weight=weight)
    if weighted:
        powers = torch.randint(-3, 1, work.topk_weights.shape, generator=generator, device=gpu)
        work = replace(work, topk_weights=torch.exp2(powers.float()))
    results = {}
    for schedule in by(case):
        with forced(schedule):
            results[str(schedule)] = work.fenced_call(checked=True)
    if not case.swiglu:  # its exponential is an approximation, the same one in every kernel
        results["FP64"] = work.expected().bfloat16()
    right = results[str(MMA)]
    wrong = {name: int((bits(out) != bits(right)).sum()) for name, out in results.items() if not torch.equal(bits(out), bits(right))}
    assert not wrong, f"outputs that differ from {MMA}, of {right.numel()}: {wrong}"


@pytest.mark.parametrize("case, kernel, overrides", [
    (SMALL, "w4a16_wgmma", dict(CHORD_W4A16_BM="64")),
    (SMALL, "w4a16_wgmma", dict(CHORD_W4A16_BM="64", CHORD_W4A16_BN="128", CHORD_W4A16_BK="64", CHORD_W4A16_SPLIT="1")),
    (LARGE, "w4a16_mma", dict(CHORD_W4A16_BM="8")),
    (LARGE, "w4a16_mma", dict(CHORD_W4A16_BM="16", CHORD_W4A16_BN="128", CHORD_W4A16_STAGES="3")),
], ids=["tile of 64", "tile of 64x128", "tile of 8", "tile of 16x128"])  # fmt: skip
def test_an_override_takes_the_kernel_that_the_resolver_would_not(case, kernel, overrides, gpu, seed):
    work = build(case, gpu, seed)
    assert FAMILY.schedule(work.problem).kernel != kernel
    with knobs.scope(**overrides):
        assert FAMILY.schedule(work.problem).kernel == kernel
        assert_right(work.fenced_call(), work)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")], ids=str)
def test_non_finite_activations_stay_in_their_rows(bad, gpu, seed):
    """Three tokens hold one such value each, at the first, a middle and the last k: all other rows keep their bits."""
    work = build(shaped(64), gpu, seed)
    tokens = torch.tensor([0, 200, 399], device=gpu)
    with forced(CUT):
        clean = work.fenced_call()
        work.x[tokens, torch.tensor([0, 400, 767], device=gpu)] = bad
        spoilt = work.fenced_call()
    hit = torch.zeros(800, dtype=torch.bool, device=gpu)
    hit[torch.cat((2 * tokens, 2 * tokens + 1))] = True
    assert torch.equal(bits(spoilt)[~hit], bits(clean)[~hit])
    assert not bool(spoilt[hit].isfinite().any())


@pytest.mark.quick
@pytest.mark.parametrize("case, schedule", [(BROKEN, WHOLE), (BROKEN, SHORT), (BROKEN, MMA), (BROKEN_SHORT, RESIDENT)], ids=str)
def test_broken_routing_is_left_out(case, schedule, gpu, seed):
    """Ids behind a sentinel of their tile and blocks of unknown experts are not followed; a count past the capacity is cut."""
    work = build(case, gpu, seed)
    routing, padded = work.routing, int(work.routing.num_tokens_padded)
    with forced(schedule):
        clean = work.fenced_call()
        blocks = routing.sorted_ids[:padded].view(-1, 64)
        lost = torch.cat((blocks[0, 5 : schedule.bm], blocks[1:3].flatten()))
        owned = torch.ones(400, dtype=torch.bool, device=gpu)
        owned[lost[lost < 400].long()] = False
        blocks[0, 5] = 407
        routing.expert_ids[1], routing.expert_ids[2] = 16, -1
        routing.sorted_ids[padded:] = 400
        routing.num_tokens_padded.fill_(1 << 20)
        out = fenced_result(lambda out: work.call(out=out), 1024, owned)
    assert torch.equal(bits(out)[owned], bits(clean)[owned])


def test_gate_up_and_down_share_one_routing(gpu, seed):
    """Blocks built once for both projections of a prefill step: SwiGLU, then down with the router's weights."""
    gate_up = build(GATE_UP, gpu, seed)
    scores = torch.rand(300, 4, generator=generator_of(gpu, seed), device=gpu)
    with forced(CUT):
        middle = gate_up.fenced_call()
        assert_right(middle, gate_up)
        down = Work(fenced(middle), weight_of(8, 256, 384, False, gpu), gate_up.routing.for_down(), topk_weights=scores)
        assert_right(down.fenced_call(), down)
