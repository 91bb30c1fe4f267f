"""Supervised fine-tuning: which rows, which tokens, and that the cut of a batch changes nothing."""

from __future__ import annotations

import pytest
import torch

from oncurve.config import Sft
from oncurve.terminal import Terminal
from oncurve.train.setup import prepare
from oncurve.train.sft import rows_of_step, sft_steps, total_steps
from oncurve.types import Demonstration


def gradients(recipe, demonstrations=None) -> tuple[float, dict[str, torch.Tensor]]:
    parts = prepare(recipe, Terminal(quiet=True), ("sft",))
    if demonstrations is not None:
        parts = parts.__class__(**{**vars(parts), "demonstrations": demonstrations})
    parts.lm.module.double()
    found: dict[str, torch.Tensor] = {}

    class Capture(torch.optim.SGD):
        def step(self, closure=None):
            found.update({n: p.grad.clone() for n, p in parts.lm.module.named_parameters()})

    config = recipe.sft.model_copy(update={"max_grad_norm": 1e9})
    done = next(sft_steps(parts, config, Capture(parts.lm.module.parameters(), lr=0.0), 0, 1))
    return done.metrics["loss"], found


@pytest.mark.parametrize(
    "cut",
    [
        {"microbatch_tokens": 1},
        {"microbatch_tokens": 100},
        {"packing": True},
        {"packing": True, "microbatch_tokens": 100},
        {"packing": True, "microbatch_tokens": 1},
    ],
)
def test_the_cut_and_packing_change_neither_loss_nor_gradient(tiny, cut):
    loss, expected = gradients(tiny())
    cut_loss, found = gradients(tiny(sft={**cut}))
    assert abs(cut_loss - loss) <= 1e-12
    for name, value in expected.items():
        assert (value - found[name]).abs().max() <= 1e-10, name


def test_the_loss_is_that_of_the_completion_tokens_alone(tiny):
    """Against torch's own cross entropy with the prompt's labels ignored."""
    recipe = tiny(sft={"rows_per_step": 2})
    rows = [Demonstration((3, 4, 5), (6, 7, 1)), Demonstration((8, 9), (10, 1))]
    loss, _ = gradients(recipe, rows)
    parts = prepare(recipe, Terminal(quiet=True), ("sft",))
    parts.lm.module.double()
    tokens = torch.tensor([[3, 4, 5, 6, 7, 1], [8, 9, 10, 1, 0, 0]])
    labels = torch.tensor([[-100, -100, -100, 6, 7, 1], [-100, -100, 10, 1, -100, -100]])
    logits = parts.lm.module(tokens, use_cache=False).logits
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert loss == pytest.approx(float(expected.detach()), abs=1e-12)


def test_every_epoch_is_a_permutation():
    config = Sft(rows_per_step=4)
    first = [row for step in range(3) for row in rows_of_step(config, 12, 0, step)]
    second = [row for step in range(3, 6) for row in rows_of_step(config, 12, 0, step)]
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert first[:4] == rows_of_step(config, 12, 0, 0)


def test_a_short_last_batch_is_left_out_and_fewer_rows_than_a_step_are_all_used():
    assert total_steps(Sft(epochs=2, rows_per_step=4), 11) == 4
    assert total_steps(Sft(epochs=2, rows_per_step=16), 11) == 2
    assert sorted(rows_of_step(Sft(rows_per_step=16), 11, 0, 0)) == list(range(11))
