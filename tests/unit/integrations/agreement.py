"""How far two language models agree: logits by norm, tokens wherever the choice is clear."""

from __future__ import annotations

import torch

#: Lead of the best logit over the next, in units of the logits' deviation, from which roundings cannot change a token.
LEAD, NEW = 0.1, 8


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@torch.no_grad()
def assert_same_tokens(got: torch.nn.Module, want: torch.nn.Module, prompts: torch.Tensor, least: int) -> None:
    """Greedy tokens of both after ``prompts`` [rows, tokens] are the same up to each row's first step without a clear choice,
    and at least ``least`` steps are clear.
    """
    options = dict(max_new_tokens=NEW, do_sample=False, attention_mask=torch.ones_like(prompts))
    tokens = got.generate(prompts, **options)
    right = want.generate(prompts, **options, output_logits=True, return_dict_in_generate=True)
    logits = torch.stack(right.logits, 1).double()
    best = logits.topk(2, -1).values
    clear = ((best[..., 0] - best[..., 1]) / logits.std() > LEAD).long().cumprod(1).bool()
    assert tokens.shape == right.sequences.shape and int(clear.sum()) >= least, f"only {int(clear.sum())} steps have a clear choice"
    new = slice(prompts.shape[1], None)
    wrong = (clear & (tokens[:, new] != right.sequences[:, new])).nonzero()
    assert len(wrong) == 0, f"{len(wrong)} tokens differ, first in row {int(wrong[0, 0])} at step {int(wrong[0, 1])}"
