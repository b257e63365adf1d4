"""The functions of a forward over a layer of ours: the forms of ``may_process_input``, the three layouts, and what is refused."""

from __future__ import annotations

import pytest
import torch

from chord_jit import knobs
from chord_jit.errors import InputError, InputTypeError
from chord_jit.integrations import vllm as plugin
from chord_jit.integrations.vllm import sizes
from tests.unit.integrations.fake_vllm import Facade, install, prepared

SILU = {"activation_type": "binary_split", "activation_impl": "(a / (1.f + expf(-a))) * b"}


@pytest.fixture
def facade(monkeypatch) -> Facade:
    found = install(monkeypatch, Facade())
    plugin.register()
    with knobs.scope(CHORD_BACKEND="reference"):
        yield found


@pytest.fixture
def layer(facade):
    return prepared(facade)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.float().chunk(2, dim=1)
    return (torch.nn.functional.silu(gate) * up).bfloat16()


def rows(count: int = 6, columns: int = 128) -> torch.Tensor:
    return torch.randn(count, columns).bfloat16()


def marked(count: int, columns: int = 64) -> torch.Tensor:
    return torch.full((count, columns), 7.0).bfloat16()


def test_rows_that_need_nothing_are_handed_back(facade, layer):
    x = rows()
    counts = torch.tensor([2, 1], dtype=torch.int32)
    for options in ({}, {"outputs": marked(6, 128)}, {"hadamard_block_size": 0}, {"layout": "grouped_mask", "expert_tokens": counts}):
        assert facade.may_process_input(layer[0], inputs=x, token_scales=None, **options)[0] is x


def test_activation(facade, layer):
    x, out = rows(), marked(6)
    found, *scales = facade.may_process_input(layer[0], inputs=x, outputs=out, **SILU)
    assert found is out and scales == [None, None]
    torch.testing.assert_close(out, silu_and_mul(x))
    torch.testing.assert_close(facade.may_process_input(layer[0], inputs=x, **SILU)[0], out)


def test_activation_up_to_a_bound(facade, layer):
    x, out = rows(), marked(6)
    x[4:] = torch.nan
    facade.may_process_input(layer[0], inputs=x, outputs=out, num_valid_tokens=torch.tensor([4]), **SILU)
    torch.testing.assert_close(out[:4], silu_and_mul(x[:4]))
    assert torch.equal(out[4:], marked(2))


def test_activation_of_own_rows(facade, layer):
    x, out = rows(), marked(6)
    x[1::2] = torch.nan
    own = torch.tensor([0, -1, 2, -1, 4, -1], dtype=torch.int32).view(-1, 1)
    facade.may_process_input(layer[0], inputs=x, outputs=out, layout="scatter", scatter_idx=own, **SILU)
    torch.testing.assert_close(out[::2], silu_and_mul(x[::2]))
    assert torch.equal(out[1::2], marked(3))


def test_activation_of_counted_rows(facade, layer):
    x, out = rows(), marked(6)
    x[[2, 4, 5]] = torch.nan
    facade.may_process_input(
        layer[0], inputs=x, outputs=out, layout="grouped_mask", expert_tokens=torch.tensor([2, 1], dtype=torch.int32), **SILU
    )
    torch.testing.assert_close(out[[0, 1, 3]], silu_and_mul(x[[0, 1, 3]]))
    assert torch.equal(out[[2, 4, 5]], marked(3))


def test_rows_are_scattered(facade, layer):
    x, out = rows(3, 64), marked(6)
    places = torch.tensor([[2, 0], [5, 3], [1, -1]], dtype=torch.int32)
    facade.may_process_input(layer[0], inputs=x, outputs=out, layout="scatter", scatter_idx=places, num_valid_tokens=torch.tensor([4]))
    assert torch.equal(out[:4], x[[0, 2, 0, 1]]) and torch.equal(out[4:], marked(2))
    fresh = facade.may_process_input(layer[0], inputs=x, layout="scatter", scatter_idx=places)[0]
    assert fresh.shape == (6, 64) and torch.equal(fresh[[0, 1, 2, 3, 5]], x[[0, 2, 0, 1, 1]])


@pytest.mark.parametrize(
    "activation",
    [("binary_split", "(gelu(a)) * b"), ("binary_interleaved", SILU["activation_impl"]), ("unary", "a / (1.f + expf(-a))"),
     ("binary_split", None)],
    ids=str,
)  # fmt: skip
def test_another_activation_is_refused_by_name(facade, layer, activation):
    with pytest.raises(InputError, match=r"SiLU\(gate\) \* up alone") as caught:
        facade.may_process_input(layer[0], inputs=rows(), activation_type=activation[0], activation_impl=activation[1])
    assert activation[0] in str(caught.value) and "CHORD_VLLM=0" in str(caught.value)


@pytest.mark.parametrize("options", [{"hadamard_block_size": 64}, {"zero_invalid": True}], ids=str)
def test_what_only_hummings_layers_have_is_refused(facade, layer, options):
    with pytest.raises(InputError, match="neither transformed nor zeroed"):
        facade.may_process_input(layer[0], inputs=rows(), **options)


def test_rows_without_a_layout_are_refused(facade, layer):
    with pytest.raises(InputError, match="sorted_ids or expert_layout"):
        facade.humming_forward(layer[0], rows(6, 64), layer[1]["weight"])


def test_counts_of_the_wrong_type_are_refused(facade, layer):
    with pytest.raises(InputTypeError, match="int32"):
        facade.humming_forward(layer[0], rows(6, 64), layer[1]["weight"], expert_layout=torch.ones(2, dtype=torch.int16))


def test_layouts_agree(facade, layer):
    """The same rows, told to experts in three ways; a capacity that is no multiple of the block."""
    config, weight = layer[0], layer[1]["weight"]
    x = rows(4, 64)
    contiguous = facade.humming_forward(config, x, weight, expert_layout=torch.tensor([0, 3, 4]), valid_shape_m=4)
    padded = torch.full((6, 64), torch.nan).bfloat16()
    padded[:3], padded[3] = x[:3], x[3]
    masked = facade.humming_forward(config, padded, weight, expert_layout=torch.tensor([3, 1], dtype=torch.int32), valid_shape_m=4)
    assert torch.equal(masked[:4], contiguous)
    block = sizes.at(config, "indexed", 4).block_m
    ids = torch.full((2 * block - 3,), 4, dtype=torch.int32)
    ids[:3], ids[block] = torch.arange(3), 3
    experts, padded_ids = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([2 * block], dtype=torch.int32)
    routing = {"sorted_ids": ids, "expert_ids": experts, "num_tokens_padded": padded_ids}
    out = torch.empty(4, 128, dtype=torch.bfloat16)
    assert facade.humming_forward(config, x, weight, outputs=out, top_k=1, valid_shape_m=4, locks=None, **routing) is out
    assert torch.equal(out, contiguous)
