"""The custom ops by themselves: torch's own checks, equality with the eager call, shapes of fake tensors, who may call them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import chord_jit
from chord_jit import api, ops
from chord_jit.errors import InputError
from tests.unit.families.fake_gpu import bf16, machine, on_gpu, routing_of, weight_of
from tests.unit.ops.calls import EXPERTS, KINDS, POISON, N, assert_rounded, make, weights_for

__all__ = ["machine"]

ROOT = Path(__file__).resolve().parents[3]
#: Tokens, options of every call, options of an indexed call.
SHAPES = {"one": (1, {}, {}), "swiglu": (5, dict(swiglu=True), {}), "many": (40, {}, dict(expected_rows=3.5))}


def call_of(kind, shape, seed):
    size, options, more = SHAPES[shape]
    if kind == "indexed":
        options = {**options, **more, "topk_weights": weights_for(size, seed) if shape == "swiglu" else None}
    return make(kind, size, seed, **options)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_torchs_own_checks_pass(reference_backend, kind, shape, seed):
    """Schema, autograd registration, fake kernels, and AOT dispatch with symbolic sizes; of the op that writes into out too."""
    call = call_of(kind, shape, seed)
    for op, arguments in ((call.op(), call.op_arguments()), (call.op("_out"), (*call.op_arguments(), torch.zeros(call.shape).bfloat16()))):
        found = torch.library.opcheck(op, arguments)
        assert set(found.values()) == {"SUCCESS"} and len(found) == 4


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_op_eager_call_and_reference_agree(reference_backend, kind, shape, seed):
    call = call_of(kind, shape, seed)
    result, out = call.op()(*call.op_arguments()), call.poisoned_out()
    assert_rounded(result, call, others=0)
    assert torch.equal(result, call.eager())
    assert call.op("_out")(*call.op_arguments(), out) is None
    assert_rounded(out, call, others=POISON)


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_knob_the_cpu_is_refused(kind, seed):
    call = make(kind, 5, seed)
    for op, more in ((call.op(), ()), (call.op("_out"), (torch.zeros(call.shape).bfloat16(),))):
        with pytest.raises(InputError, match="one CUDA device") as caught:
            op(*call.op_arguments(), *more)
        assert "CHORD_BACKEND" in caught.value.remedy


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("swiglu", [False, True])
def test_v41_fake_tensors_have_the_results_shape_dtype_and_device(kind, swiglu, seed):
    call = make(kind, 5, seed, swiglu=swiglu)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in call.op_arguments()]
        result = call.op()(*fake)
        assert (tuple(result.shape), result.dtype, result.device) == (call.shape, torch.bfloat16, call.x.device)
        assert result.is_contiguous() and call.op("_out")(*fake, result) is None


def test_fake_rows_of_masked_are_flat(seed):
    call = make("masked", 5, seed)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in call.op_arguments()]
        assert tuple(call.op()(fake[0].view(EXPERTS, 5, -1), *fake[1:]).shape) == (5 * EXPERTS, N)


def test_an_op_carries_no_gradient_as_the_eager_call(reference_backend, seed):
    call = make("indexed", 5, seed)
    x, *rest = call.op_arguments()
    assert not call.op()(x.clone().requires_grad_(), *rest).requires_grad
    assert not chord_jit.indexed(x.clone().requires_grad_(), call.weight, **call.given).requires_grad


# -- eager calls --------------------------------------------------------------------------------------------------------
class Dispatched(TorchDispatchMode):
    """Writes down every op that reaches the dispatcher."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        self.seen.append(op)
        return op(*arguments, **(options or {}))


def test_eager_calls_pass_no_dispatcher(machine, monkeypatch):
    monkeypatch.setattr(api, "_ops", lambda: pytest.fail("an eager call asked for the ops"))
    weight, routing = weight_of(8, 256, 192, True), routing_of(6, 3, 16, 8)
    given = dict(topk_weights=on_gpu(torch.rand(6, 3)), out=bf16(18, 128))
    x = bf16(6, 192)
    chord_jit.indexed(x, weight, routing, swiglu=True, **given)
    with Dispatched() as dispatched:
        chord_jit.indexed(x, weight, routing, swiglu=True, **given)
    assert dispatched.seen == [] and len(machine.driver.launches) == 2


def test_the_api_hands_every_option_to_the_op(monkeypatch):
    """While compiling, each function passes its arguments on by name."""
    monkeypatch.setattr(api, "is_compiling", lambda: True)
    for name, tensors in (("indexed", (1, 2, 3)), ("contiguous", (1, 2, 3)), ("masked", (1, 2, 3, 4))):
        passed = []
        monkeypatch.setattr(ops, name, lambda *given, passed=passed, **options: passed.append((given, options)) or "the result")
        assert getattr(api, name)(*tensors, swiglu=True, checked=True, out=5) == "the result"
        ((given, options),) = passed
        assert given == tensors and (options["swiglu"], options["checked"], options["out"]) == (True, True, 5)


LEAN = """
import sys
import chord_jit
chord_jit.indexed, chord_jit.masked
loaded = [name for name in ("torch._dynamo", "torch._inductor", "chord_jit.ops") if name in sys.modules]
assert loaded == [], loaded
import chord_jit.ops
loaded = [name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules]
assert loaded == [], loaded
"""


def test_importing_the_calls_registers_nothing_and_the_ops_load_no_compiler():
    result = subprocess.run([sys.executable, "-c", LEAN], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
