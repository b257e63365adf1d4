"""The custom ops on the device: torch's own checks, compiled calls with the eager call's bits, capture, no way to the reference."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import chord_jit
from chord_jit import counters, knobs
from chord_jit.errors import InputError
from chord_jit.families import host
from tests.gpu.launches import capture
from tests.gpu.tensors import POISON, bits
from tests.unit.ops.calls import KINDS, TOP_K, N, make, weights_for

CALLS = {"indexed": chord_jit.indexed, "blocks": chord_jit.contiguous, "offsets": chord_jit.contiguous, "masked": chord_jit.masked}
SIZES = (5, 7, 150, 20, 300)
pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("options", [{}, dict(swiglu=True)], ids=["plain", "swiglu"])
@pytest.mark.parametrize("kind", KINDS)
def test_torchs_own_checks_pass(kind, options, gpu, seed):
    """Without rows of nobody, which hold what the memory held."""
    call = make(kind, 20, seed, gpu, whole=True, **options)
    out = torch.zeros(call.shape, dtype=torch.bfloat16, device=gpu)
    for op, arguments in ((call.op(), call.op_arguments()), (call.op("_out"), (*call.op_arguments(), out))):
        found = torch.library.opcheck(op, arguments)
        assert set(found.values()) == {"SUCCESS"} and len(found) == 4


@pytest.mark.quick
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("kind", KINDS)
def test_v41_a_compiled_call_has_the_eager_bits_at_every_token_count(kind, backend, gpu, seed):
    """Into a poisoned out, rows of nobody too; one graph for the first count and one for every other."""

    def step(x, weight, given, out):
        result = CALLS[kind](x * 2, weight, swiglu=True, out=out, **given)
        return result.float() + 1

    counter = CompileCounterWithBackend(backend)
    function = torch.compile(step, fullgraph=True, backend=counter)
    for turn, size in enumerate(SIZES):
        call = make(kind, size, seed + turn, gpu, swiglu=True)
        given = {name: value for name, value in call.given.items() if name != "swiglu"}
        outs = call.poisoned_out(), call.poisoned_out()
        results = function(call.x, call.weight, given, outs[0]), step(call.x, call.weight, given, outs[1])
        assert torch.equal(bits(outs[0]), bits(outs[1]))
        named = ~call.exact().isnan().any(1)
        assert torch.equal(results[0][named], results[1][named])
    assert counter.frame_count <= 2


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_function_can_be_captured(kind, gpu, seed):
    call = make(kind, 20, seed, gpu)
    function = torch.compile(lambda x, out: CALLS[kind](x, call.weight, out=out, **call.given), fullgraph=True, backend="aot_eager")
    out = call.poisoned_out()
    graph = capture(lambda: function(call.x, out))
    before = counters()
    for _ in range(3):
        call.x.copy_(torch.randn(call.x.shape, device=gpu))
        eager = call.eager(out=call.poisoned_out())
        bits(out).fill_(POISON)
        graph.replay()
        assert torch.equal(bits(out), bits(eager))
    assert counters() == before


def test_graphs_that_torch_captures_itself_follow_the_activations(gpu, seed):
    """Rows weighted and summed behind the call, as ``mode="reduce-overhead"`` replays it."""
    call = make("indexed", 20, seed, gpu, whole=True)
    torch._dynamo.mark_static_address(call.weight.data)
    weight, routing, topk_weights = call.weight, call.given["routing"], weights_for(20, seed, gpu)

    def step(x):
        routed = chord_jit.indexed(x, weight, routing, topk_weights=topk_weights)
        return routed.view(-1, TOP_K, N).float().sum(1)

    function = torch.compile(step, fullgraph=True, mode="reduce-overhead")
    for _ in range(5):
        x = torch.randn_like(call.x)
        torch.compiler.cudagraph_mark_step_begin()
        torch.testing.assert_close(function(x).clone(), step(x), rtol=1e-6, atol=1e-6)


def test_the_reference_is_no_way_out_on_a_gpu(gpu, seed, monkeypatch):
    for name in ("indexed", "contiguous", "masked"):
        monkeypatch.setattr(host, name, lambda *given, **options: pytest.fail("the reference was asked"))
    for kind in KINDS:
        call = make(kind, 20, seed, gpu, whole=True)
        right = call.eager()
        with knobs.scope(CHORD_BACKEND="reference"):
            assert torch.equal(bits(call.eager()), bits(right)) and torch.equal(bits(call.op()(*call.op_arguments())), bits(right))
            with pytest.raises(InputError, match="one CUDA device"):
                CALLS[kind](call.x.cpu(), call.weight, **call.given)


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_call_over_other_devices_is_refused(kind, gpu, seed):
    call = make(kind, 20, seed, gpu)
    function = torch.compile(lambda x: CALLS[kind](x, call.weight, **call.given), fullgraph=True, backend="aot_eager")
    with pytest.raises(InputError, match="one CUDA device"):
        function(call.x.cpu())
