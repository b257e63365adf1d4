"""torch.compile over the public calls: whole graphs, few of them, the eager call's bits, writes and errors."""

from dataclasses import replace

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

import chord_jit
from chord_jit.errors import InputError, InputTypeError
from tests.unit.ops.calls import EXPERTS, KINDS, POISON, TOP_K, K, N, assert_rounded, make, weight_of, weights_for

pytestmark = pytest.mark.usefixtures("fresh_compiler")

CALLS = {"indexed": chord_jit.indexed, "blocks": chord_jit.contiguous, "offsets": chord_jit.contiguous, "masked": chord_jit.masked}
#: Tokens of calls that one compiled function takes one after another, in blocks of 128 rows too.
SIZES = (5, 7, 150, 20, 300)


def packed(n: int, k: int, interleave: bool) -> chord_jit.PackedW4A16:
    """Random codes and scales of ``EXPERTS`` experts."""
    codes, scale = torch.randint(0, 16, (EXPERTS, n, k), dtype=torch.uint8), torch.rand(EXPERTS, n, k // 32).bfloat16()
    return chord_jit.pack_w4a16(codes, scale, interleave=interleave)


def compiled(function, backend="aot_eager", **options):
    """``function`` compiled without graph breaks, and its counter of compilations."""
    counter = CompileCounterWithBackend(backend)
    return torch.compile(function, fullgraph=True, backend=counter, **options), counter


# -- values -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_v41_a_function_compiles_whole_and_token_counts_share_its_graphs(reference_backend, kind, dynamic, seed):
    """Left to itself, a first graph is for its own count and the second for every other; with ``dynamic=False`` each has its own."""

    def step(x, weight, given):
        return CALLS[kind](x * 2, weight, swiglu=True, **given).float() + 1

    function, counter = compiled(step, dynamic=dynamic)
    calls = [make(kind, size, seed + turn) for turn, size in enumerate(SIZES)]
    for call in calls:
        assert torch.equal(function(call.x, call.weight, call.given), step(call.x, call.weight, call.given))
    counts = len({call.x.shape for call in calls})
    assert counter.frame_count == counts if dynamic is False else counter.frame_count <= 2
    assert counts > 2


def test_v41_a_step_that_builds_its_own_routing_compiles_whole(reference_backend, seed):
    """Routing, both projections and the sum over experts in one graph for every token count: a routing has no address while traced."""
    gate_up, down = packed(N, K, True), packed(K, N // 2, False)

    def step(x, topk_ids, topk_weights):
        routing = chord_jit.align_blocks(topk_ids, 16, EXPERTS)
        inner = chord_jit.indexed(x, gate_up, routing, swiglu=True)
        routed = chord_jit.indexed(inner, down, routing.for_down(), topk_weights=topk_weights)
        return routed.view(x.shape[0], TOP_K, K).float().sum(1)

    function, counter = compiled(step)
    for turn, size in enumerate(SIZES):
        generator = torch.Generator().manual_seed(seed + turn)
        x = torch.randn(size, K, generator=generator).bfloat16()
        given = (x, torch.randint(0, EXPERTS, (size, TOP_K), generator=generator), torch.rand(size, TOP_K, generator=generator))
        assert torch.equal(function(*given), step(*given))
    assert counter.frame_count == 2


def test_v41_a_hint_and_a_view_that_follow_the_token_count_need_no_graph_of_their_own(reference_backend, seed):
    weight = weight_of()

    def step(x, routing, topk_weights):
        hint = x.shape[0] * TOP_K / EXPERTS
        routed = chord_jit.indexed(x, weight, routing, topk_weights=topk_weights, expected_rows=hint)
        return routed.view(x.shape[0], TOP_K, N).float().sum(1)

    function, counter = compiled(step)
    for turn, size in enumerate(SIZES):
        call, topk_weights = make("indexed", size, seed + turn), weights_for(size, seed)
        given = (call.x, call.given["routing"], topk_weights)
        assert torch.equal(function(*given), step(*given))
    assert counter.frame_count == 2


def test_objects_may_be_closed_over_or_held_by_a_module(reference_backend, seed):
    call = make("indexed", 6, seed)
    weight, routing = call.weight, call.given["routing"]

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights, self.routing = [weight, weight_of(seed=1)], routing

        def forward(self, x):
            return [chord_jit.indexed(x, weight, self.routing) for weight in self.weights]

    closed, _ = compiled(lambda x: chord_jit.indexed(x, weight, routing))
    held, _ = compiled(Layer())
    first, second = held(call.x)
    assert torch.equal(closed(call.x), call.eager()) and torch.equal(first, call.eager())
    assert torch.equal(second, chord_jit.indexed(call.x, weight_of(seed=1), routing))


def test_a_weight_that_is_reserved_stays_so(reference_backend, seed):
    call = make("masked", 3, seed)
    masked, _ = compiled(lambda weight: chord_jit.masked(call.x, weight, **call.given))
    assert torch.equal(masked(replace(call.weight, mode="masked")), call.eager())
    with pytest.raises(InputError, match=r"packed for contiguous\(...\) alone"):
        masked(replace(call.weight, mode="contiguous"))


@pytest.mark.parametrize("kind", ["indexed", "masked"])
def test_inductor_keeps_the_call(reference_backend, kind, seed):
    """There is no arithmetic beside the calls, so that no C++ compiler is needed."""

    def step(x, weight, given):
        result = CALLS[kind](x, weight, **given)
        CALLS[kind](x, weight, out=result, **given)
        return result.view(-1, 2, N)

    function, counter = compiled(step, backend="inductor")
    for turn, size in enumerate((5, 9, 40)):
        call = make(kind, size, seed + turn)
        assert torch.equal(function(call.x, call.weight, call.given), call.eager().view(-1, 2, N))
    assert counter.frame_count <= 2


def test_a_weight_that_is_marked_is_a_static_input(reference_backend, seed):
    """What CUDA graphs of torch need to know, or they would copy the weight at each replay."""
    call, seen = make("indexed", 5, seed), []
    weight = replace(call.weight, data=call.weight.data.clone())
    torch._dynamo.mark_static_address(weight.data)

    def see(graph, inputs):
        static = torch._guards.TracingContext.get().fw_metadata.static_input_indices
        seen.extend(inputs[index].shape for index in static)
        return graph.forward

    function = torch.compile(lambda x: chord_jit.indexed(x, weight, **call.given), fullgraph=True, backend=aot_autograd(fw_compiler=see))
    assert torch.equal(function(call.x), call.eager()) and seen == [weight.data.shape]


# -- out ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
def test_out_is_written_and_returned_and_the_rest_of_it_kept(reference_backend, kind, seed):
    call, other = make(kind, 5, seed), make(kind, 5, seed)

    def step(x, weight, given, out):
        before = out.view(torch.int16).clone()
        result = CALLS[kind](x, weight, out=out, **given)
        return before, result, out.view(torch.int16) + 0

    function, _ = compiled(step)
    out, eager_out = call.poisoned_out(), other.poisoned_out()
    before, result, after = function(call.x, call.weight, call.given, out)
    step(other.x, other.weight, other.given, eager_out)
    assert bool((before == POISON).all()) and result.data_ptr() == out.data_ptr()
    assert_rounded(out, call, others=POISON)
    assert torch.equal(after, out.view(torch.int16)) and torch.equal(after, eager_out.view(torch.int16))


def test_two_calls_into_one_out_keep_their_order(reference_backend, seed):
    first, second = make("masked", 5, seed, whole=True), make("masked", 5, seed + 1, whole=True)

    def step(out):
        once = chord_jit.masked(first.x, first.weight, out=out, **first.given).clone()
        chord_jit.masked(second.x, second.weight, out=out, **second.given)
        return once

    function, _ = compiled(step)
    out = first.poisoned_out()
    assert torch.equal(function(out), first.eager()) and torch.equal(out, second.eager())


# -- errors -------------------------------------------------------------------------------------------------------------
REFUSED = {
    "x float32": (InputTypeError, "BF16 matrix", lambda c: dict(x=c["x"].float())),
    "x 1-D": (InputTypeError, "BF16 matrix", lambda c: dict(x=c["x"][0])),
    "x 0-D": (InputTypeError, "BF16 matrix", lambda c: dict(x=c["x"][0, 0])),
    "x too narrow": (InputError, "as wide as the weight's K", lambda c: dict(x=c["x"][:, :32].contiguous())),
    "x with rows apart": (InputError, "must be contiguous", lambda c: dict(x=c["x"].repeat(1, 2)[:, :K])),
    "x of fewer rows": (InputError, "activation rows x top_k", lambda c: dict(x=c["x"][:3])),
    "another layout": (InputError, "layout version", lambda c: dict(weight=replace(c["weight"], layout_version=7))),
    "other experts": (InputError, "count the same experts", lambda c: dict(routing=replace(c["routing"], experts=3, global_experts=4))),
    "weights bf16": (InputError, "topk_weights must be", lambda c: dict(topk_weights=weights_for(6, 0).bfloat16())),
    "out float32": (InputError, "out must be", lambda c: dict(out=torch.zeros(12, N))),
    "out too short": (InputError, "out must be", lambda c: dict(out=torch.zeros(11, N).bfloat16())),
    "a negative hint": (InputError, "expected_rows must lie in", lambda c: dict(expected_rows=-1)),
}


@pytest.mark.parametrize("error, rule, change", REFUSED.values(), ids=REFUSED)
def test_a_broken_rule_raises_its_own_error_when_the_graph_runs(reference_backend, error, rule, change, seed):
    call = make("indexed", 6, seed)
    good = dict(x=call.x, weight=call.weight, **call.given)
    function, counter = compiled(lambda given: chord_jit.indexed(**given))
    with pytest.raises(error, match=rule):
        function({**good, **change(good)})
    assert counter.frame_count == 1
    assert torch.equal(function(good), call.eager())


WRONG_KINDS = {
    "no weight": lambda c: dict(weight=c["weight"].data),
    "no routing": lambda c: dict(routing=None),
    "a tuple": lambda c: dict(routing=(1, 2, 3)),
}


@pytest.mark.parametrize("change", WRONG_KINDS.values(), ids=WRONG_KINDS)
def test_what_no_op_can_be_given_ends_the_trace(change, seed):
    """Where graphs may break, the eager call refuses it by name."""
    call = make("indexed", 6, seed)
    bad = dict(x=call.x, weight=call.weight, **call.given)
    bad.update(change(bad))
    with pytest.raises(Unsupported):
        compiled(lambda given: chord_jit.indexed(**given))[0](bad)
    torch._dynamo.reset()
    with pytest.raises(InputTypeError, match="must be a PackedW4A16|must be an IndexedRouting"):
        torch.compile(lambda given: chord_jit.indexed(**given), backend="eager")(bad)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_knob_a_compiled_call_refuses_the_cpu(kind, seed):
    call = make(kind, 5, seed)
    function, _ = compiled(lambda x, weight, given: CALLS[kind](x, weight, **given))
    with pytest.raises(InputError, match="one CUDA device"):
        function(call.x, call.weight, call.given)
