"""One rank's share of a model."""

import pytest

from chord_jit.errors import InputError
from chord_jit.schedules.deployment import Deployment
from tests.unit.schedules.problems import KIMI

#: ranks: local experts, N and K of gate/up, N and K of down.
SHARES = {
    "EP8": (48, (4096, 7168), (7168, 2048)),
    "EP16": (24, (4096, 7168), (7168, 2048)),
    "TP8": (384, (512, 7168), (7168, 256)),
    "TP16": (384, (256, 7168), (7168, 128)),
}


@pytest.mark.parametrize("name", SHARES)
def test_share_of_a_rank(name):
    model = KIMI[name]
    assert (model.local_experts, model.gate_up, model.down) == SHARES[name]


def test_both_cuts_at_once():
    model = Deployment(1024, 384, 12, 2, tp=3, ep=4)
    assert (model.local_experts, model.gate_up, model.down) == (3, (256, 1024), (1024, 128))


UNEVEN = {
    "tp": (dict(tp=3), "intermediate must divide evenly", dict(intermediate=2048, ranks=3)),
    "ep": (dict(ep=7), "experts must divide evenly", dict(experts=384, ranks=7)),
    "no tp": (dict(tp=0), "intermediate must divide evenly", dict(intermediate=2048, ranks=0)),
    "negative ep": (dict(ep=-8), "experts must divide evenly", dict(experts=384, ranks=-8)),
    "more ranks than experts": (dict(ep=768), "experts must divide evenly", dict(experts=384, ranks=768)),
}


@pytest.mark.parametrize("ranks, rule, values", UNEVEN.values(), ids=UNEVEN)
def test_v51_what_does_not_divide_is_refused(ranks, rule, values):
    with pytest.raises(InputError) as caught:
        Deployment(7168, 2048, 384, 8, **ranks)
    assert (caught.value.rule, caught.value.values) == (rule, values) and caught.value.remedy
