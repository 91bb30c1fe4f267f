import dataclasses
import subprocess
import sys

import pytest
import torch

import oncurve.train.sft as sft
import oncurve.train.update as update
from oncurve.rewards import NamedReward
from oncurve.terminal import Terminal
from oncurve.train.fitting import TokenBudget
from oncurve.train.grpo import grpo_iterations
from oncurve.train.setup import prepare
from oncurve.train.step import make_optimizer


def test_half_of_the_budget_until_it_fits_and_for_good():
    said, tried, undone = [], [], []
    budget = TokenBudget()

    def attempt(tokens):
        tried.append(tokens)
        if tokens > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return tokens

    assert (
        budget.fit("grpo.microbatch_tokens", 1000, 100, attempt, undo=lambda: undone.append(1), say=said.append) == 250
    )
    assert (tried, len(undone)) == ([1000, 500, 250], 2)
    assert (
        budget.fit("grpo.microbatch_tokens", 1000, 100, attempt, undo=lambda: undone.append(1), say=said.append) == 250
    )
    assert len(said) == 2
    assert said[0] == (
        "out of memory with 1000 tokens in a forward pass (grpo.microbatch_tokens): from here on 500, with the same "
        "result"
    )


def test_a_single_row_that_does_not_fit_is_an_error():
    def attempt(_tokens):
        raise MemoryError

    with pytest.raises(MemoryError):
        TokenBudget().fit("sft.microbatch_tokens", 1000, 400, attempt, undo=lambda: None, say=print)


def test_other_errors_are_not_tried_again():
    tried = []

    def attempt(tokens):
        tried.append(tokens)
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        TokenBudget().fit("sft.microbatch_tokens", 1000, 4, attempt, undo=lambda: None, say=print)
    assert tried == [1000]


class Full:
    """``token_logprobs`` on a device that holds so many padded tokens, of which the second pass of a step fails."""

    def __init__(self, usual, most):
        self.usual, self.most, self.calls, self.failures = usual, most, 0, 0

    def __call__(self, lm, batch, *arguments, **keywords):
        self.calls += 1
        if batch.tokens.numel() > self.most and self.calls % 2 == 0:
            self.failures += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return self.usual(lm, batch, *arguments, **keywords)


def trained(recipe, terminal):
    """The weights after two SFT and two GRPO steps, and what the latter recorded."""
    parts = prepare(recipe, terminal, ("sft", "grpo"))
    parts = dataclasses.replace(parts, rewards=[NamedReward("mine", 1.0, scores)])
    steps = sft.sft_steps(parts, recipe.sft, make_optimizer(parts.lm.module, recipe.sft), 0, 2)
    list(steps)
    iterations = grpo_iterations(
        parts, recipe.grpo, parts.lm.frozen_copy(), make_optimizer(parts.lm.module, recipe.grpo), 1
    )
    metrics = [iteration.metrics for iteration in iterations]
    return torch.cat([p.detach().flatten() for p in parts.lm.module.parameters()]), metrics


def scores(completion_ids, **_):
    return [float(sum(ids) % 7) for ids in completion_ids]


def test_steps_that_run_out_of_memory_come_to_the_same(tiny, monkeypatch):
    said = []

    class Listening(Terminal):
        def say(self, text):
            said.append(text)

    recipe = tiny(
        sft={"microbatch_tokens": 150}, grpo={"iterations": 2, "microbatch_tokens": 150, "epochs": 2, "kl_coef": 0.1}
    )
    plain, of_plain = trained(recipe, Listening(quiet=True))
    assert said == [text for text in said if "out of memory" not in text]
    full = [Full(module.token_logprobs, most) for module, most in ((sft, 140), (update, 60))]
    for module, way in zip((sft, update), full, strict=True):
        monkeypatch.setattr(module, "token_logprobs", way)
    cut, of_cut = trained(recipe, Listening(quiet=True))
    failures = [way.failures for way in full]
    assert all(1 <= number <= 2 for number in failures)  # by the second halving at the latest it fits, and for good
    assert len([text for text in said if text.startswith("out of memory")]) == sum(failures)
    # Adam's first steps make of rounding in a gradient near zero a difference of the size of the learning rate (1e-3).
    torch.testing.assert_close(cut, plain, rtol=0, atol=1e-4)
    for one, other in zip(of_plain, of_cut, strict=True):
        for name in ("entropy", "kl", "ratio", "loss"):
            assert one[name] == pytest.approx(other[name], abs=1e-5)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a limit of Linux")
def test_beyond_the_limit_an_allocation_fails_as_running_out_of_memory():
    code = """
import resource, torch
from oncurve.train.memory import is_out_of_memory
resource.setrlimit(resource.RLIMIT_DATA, (4 << 30, resource.RLIM_INFINITY))  # ulimit -d 4194304
torch.zeros(1 << 27)
try:
    torch.zeros(1 << 31)
except RuntimeError as error:
    print(is_out_of_memory(error))
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True"]
