"""One GRPO iteration on a real (tiny) model, against what the paper says must come out."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from families import exact_norms
from oncurve.rewards import NamedReward
from oncurve.terminal import Terminal
from oncurve.train import grpo, objective, update
from oncurve.train.grpo import grpo_iterations
from oncurve.train.rollouts import rows_to_train_on
from oncurve.train.setup import Parts, prepare
from oncurve.train.step import make_optimizer
from oncurve.types import OncurveError


def parts_of(recipe) -> Parts:
    return prepare(recipe, Terminal(quiet=True), ("grpo",))


def first_iterations(parts: Parts, n: int, reference=None) -> list[grpo.Iteration]:
    config = parts.recipe.grpo
    assert config is not None
    optimizer = make_optimizer(parts.lm.module, config)
    iterations = grpo_iterations(parts, config, reference, optimizer, 1)
    return [next(iterations) for _ in range(n)]


def weights(parts: Parts) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in parts.lm.module.state_dict().items()}


def with_reward(parts: Parts, function) -> Parts:
    return copy.copy(parts).__class__(**{**vars(parts), "rewards": [NamedReward("mine", 1.0, function)]})


def varied(completion_ids, **_):
    """Anything that differs within a group."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def test_the_walkthrough_of_the_seed_document(tiny, monkeypatch):
    """5 prompts x 8 outputs, 3 epochs: 40 completions, 40 advantages, 3 backward passes, ratio 1 in the first only."""
    parts = parts_of(tiny(grpo={"prompts_per_iteration": 5, "group_size": 8, "epochs": 3, "kl_coef": 0.04}))
    parts = with_reward(parts, varied)
    ratios, backwards, updates = [], [], []
    real_ratio, real_backward, real_apply = objective.token_ratio, update.backward, grpo.apply_gradients
    monkeypatch.setattr(objective, "token_ratio", lambda a, b: ratios.append(real_ratio(a, b)) or ratios[-1])
    monkeypatch.setattr(update, "backward", lambda loss: backwards.append(1) or real_backward(loss))
    monkeypatch.setattr(grpo, "apply_gradients", lambda *a: updates.append(1) or real_apply(*a))
    [iteration] = first_iterations(parts, 1, parts.lm.frozen_copy())
    assert sum(len(group.completions) for group in iteration.rollouts.groups) == 40
    assert iteration.rollouts.advantages.shape == (5, 8)
    assert len(backwards) == len(updates) == 3
    assert iteration.step == 3
    assert (ratios[0] - 1).abs().max() <= 1e-6
    assert (ratios[1] - 1).abs().max() > 1e-4
    assert (ratios[2] - 1).abs().max() > 1e-4


def test_the_first_update_is_on_policy(tiny):
    parts = parts_of(tiny())
    [iteration] = first_iterations(with_reward(parts, varied), 1, parts.lm.frozen_copy())
    metrics = iteration.metrics
    assert metrics["ratio"] == 1.0
    assert metrics["clip_ratio/region_mean"] == 0.0
    assert abs(metrics["kl"]) <= 1e-9
    assert metrics["sampling/sampling_logp_difference/max"] <= 1e-4
    # mean over completions of A, whose sum over a group is 0: the value says nothing, the gradient does
    assert abs(metrics["loss"]) <= 1e-6
    assert metrics["grad_norm"] > 0


@pytest.mark.parametrize("budget", [1, 30, 60, 100_000])
def test_the_gradient_does_not_depend_on_the_microbatch(tiny, budget):
    recipe = tiny(grpo={"microbatch_tokens": budget, "epochs": 2, "minibatches": 2})
    whole = tiny(grpo={"microbatch_tokens": 100_000, "epochs": 2, "minibatches": 2})
    results = []
    for each in (recipe, whole):
        parts = with_reward(parts_of(each), varied)
        reference = parts.lm.frozen_copy()
        first_iterations(parts, 1, reference)
        results.append(weights(parts))
    for name, value in results[0].items():
        # Adam turns a rounding of 1e-7 in a tiny gradient into a small part of the learning rate 1e-3
        assert torch.allclose(value, results[1][name], rtol=0, atol=2e-5), name


def test_gradients_of_the_cut_add_up(tiny):
    gradients = []
    for budget in (1, 50, 100_000):
        parts = with_reward(parts_of(tiny(grpo={"microbatch_tokens": budget})), varied)
        exact_norms(parts.lm.module)
        captured = {}

        class Capture(torch.optim.SGD):
            def step(self, closure=None, *, into=captured, module=parts.lm.module):
                into.update({n: p.grad.clone() for n, p in module.named_parameters()})

        optimizer = Capture(parts.lm.module.parameters(), lr=0.0)
        config = parts.recipe.grpo.model_copy(update={"max_grad_norm": 1e9})
        next(grpo_iterations(parts, config, parts.lm.frozen_copy(), optimizer, 1))
        gradients.append(captured)
    for other in gradients[1:]:
        for name, value in gradients[0].items():
            assert (value - other[name]).abs().max() <= 1e-10, name


def test_equal_rewards_leave_weights_and_optimizer_untouched(tiny):
    parts = with_reward(parts_of(tiny()), lambda completions, **_: [0.7] * len(completions))
    optimizer = make_optimizer(parts.lm.module, parts.recipe.grpo)
    before = weights(parts)
    iteration = next(grpo_iterations(parts, parts.recipe.grpo, parts.lm.frozen_copy(), optimizer, 1))
    assert all(torch.equal(value, before[name]) for name, value in weights(parts).items())
    assert optimizer.state_dict()["state"] == {}
    assert iteration.metrics["skipped_updates"] == 1.0
    assert iteration.metrics["frac_reward_zero_std"] == 1.0


def test_unscored_completions_are_left_out_and_counted(tiny):
    def mostly_none(completions, **_):
        return [1.0 if index == 0 else None for index in range(len(completions))]

    [iteration] = first_iterations(with_reward(parts_of(tiny()), mostly_none), 1)
    assert iteration.metrics["unscored"] == 11.0
    assert iteration.metrics["reward"] == 1.0
    assert not iteration.rollouts.advantages.any()


def test_no_kl_coefficient_builds_no_reference(tiny, monkeypatch, quiet):
    from oncurve.models.causal_lm import CausalLM
    from oncurve.train import run

    monkeypatch.setattr(CausalLM, "frozen_copy", lambda self: pytest.fail("a reference was built"))
    result = run(tiny(grpo={"kl_coef": 0.0, "iterations": 1}, eval={"samples": 0}), terminal=quiet)
    assert result.model_dir.is_dir()


def test_an_engine_with_other_weights_is_noticed(tiny):
    recipe = tiny()
    parts = with_reward(parts_of(recipe), varied)
    stale = copy.deepcopy(parts.lm.module)
    with torch.no_grad():
        for parameter in parts.lm.module.parameters():
            parameter.mul_(1.5)
    from oncurve.engines.torch_engine import TorchEngine
    from oncurve.models.causal_lm import causal_lm

    engine = TorchEngine(causal_lm(stale), eos_ids=[1], decode=lambda ids: "", max_rows=64)
    parts = parts.__class__(**{**vars(parts), "engine": engine})
    with pytest.raises(OncurveError, match="engine and the trainer disagree"):
        first_iterations(parts, 1)


def test_rows_to_train_on_keeps_the_loudest_of_each_group():
    advantages = torch.tensor([[0.1, -2.0, 0.5, 1.4], [0.0, 0.0, 0.0, 0.0]])
    assert rows_to_train_on(advantages, 1.0) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert rows_to_train_on(advantages, 0.5) == [1, 3, 4, 5]
    assert rows_to_train_on(advantages, 0.01) == [1, 4]


def test_a_loss_that_is_not_finite_changes_nothing(tiny):
    parts = with_reward(parts_of(tiny()), varied)
    before = weights(parts)
    reference = parts.lm.frozen_copy()
    with torch.no_grad():
        reference.module.lm_head.weight.fill_(math.inf)
    with pytest.raises(FloatingPointError, match="loss is"):
        first_iterations(parts, 1, reference)
    assert all(torch.equal(value, before[name]) for name, value in weights(parts).items())
