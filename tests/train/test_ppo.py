"""PPO on a real (tiny) model: the critic learns, the policy does not see it, a resumed run has the same bits."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from oncurve.functional import gae, masked_whiten
from oncurve.models.critic import critic_of
from oncurve.rewards import NamedReward
from oncurve.terminal import Terminal
from oncurve.train import ppo
from oncurve.train.grpo import Iteration
from oncurve.train.records import iteration_rows
from oncurve.train.setup import prepare
from oncurve.train.step import make_optimizer
from oncurve.train.update import make_work
from oncurve.types import SamplingParams

PPO = {"preset": "ppo", "prompts_per_iteration": 3, "group_size": 2, "minibatches": 2, "learning_rate": 1e-3}


def spread(completion_ids, **_):
    return [float(sum(ids) % 3) for ids in completion_ids]


def begun(tiny, *, reward=spread, critic=None, **terms):
    recipe = tiny(grpo={**PPO, **terms}, critic={"learning_rate": 1e-2, **(critic or {})})
    parts = prepare(recipe, Terminal(quiet=True), ("grpo",))
    parts = copy.copy(parts).__class__(**{**vars(parts), "rewards": [NamedReward("mine", 1.0, reward)]})
    reference = parts.lm.frozen_copy() if recipe.grpo.kl_coef else None
    value = critic_of(parts.lm, own_trunk=recipe.critic.kind == "separate")
    optimizer = make_optimizer(parts.lm.module, recipe.grpo)
    theirs = make_optimizer(value.module, recipe.grpo.model_copy(update={"learning_rate": 1e-2}))
    return parts, value, ppo.ppo_iterations(parts, recipe.grpo, recipe.critic, reference, optimizer, value, theirs, 1)


def weights(module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first, second) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_an_untrained_critic_expects_nothing_and_advantages_are_whitened_returns(tiny):
    _, _, iterations = begun(tiny, kl_coef=0.0)
    done = next(iterations)
    assert all(value == 0.0 for row in iteration_rows(done) for value in row.token_values)
    # gamma = lambda = 1, V = 0: every token's advantage is the reward, before whitening over tokens
    rows = list(iteration_rows(done))
    rewards = torch.tensor([row.reward for row in rows for _ in row.token_ids])[None]
    expected = masked_whiten(rewards, torch.ones_like(rewards, dtype=torch.bool))[0]
    found = torch.tensor([value for row in rows for value in row.token_advantages])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_critic_learns_what_a_completion_earns(tiny):
    def constant(completion_ids, **_):
        return [1.0 for _ in completion_ids]

    _, _, iterations = begun(tiny, reward=constant, kl_coef=0.0, iterations=12, critic={"value_clip": 1e6})
    found: list[Iteration] = list(iterations)
    assert found[0].metrics["value/mean"] == 0.0
    assert abs(found[-1].metrics["value/mean"] - 1.0) < 0.2
    assert found[-1].metrics["value/loss"] < found[0].metrics["value/loss"] / 10


@pytest.mark.parametrize("kind", ["separate", "head"])
def test_the_value_loss_never_reaches_the_policy(tiny, kind):
    parts, value, iterations = begun(tiny, critic={"kind": kind, "pretrain_iterations": 1})
    before, head = weights(parts.lm.module), value.head.weight.clone()
    done = next(iterations)
    assert same(before, weights(parts.lm.module))
    assert not torch.equal(head, value.head.weight)
    assert done.metrics["skipped_updates"] == 2.0
    assert all(p.grad is None for p in parts.lm.module.parameters())
    next(iterations)
    assert not same(before, weights(parts.lm.module))


@pytest.mark.parametrize("kind", ["separate", "head"])
def test_the_policy_gets_the_same_update_whatever_the_critic_learns_from_it(tiny, kind):
    results = []
    for clip in (1e-9, 1e9):  # the critic moves a little, or as far as it likes
        parts, _, iterations = begun(tiny, minibatches=1, critic={"kind": kind, "value_clip": clip})
        next(iterations)
        results.append(weights(parts.lm.module))
    assert same(*results)


def test_the_kl_is_taken_off_at_every_token_and_the_reward_stands_at_the_last(tiny):
    parts, value, _ = begun(tiny)
    config, options = parts.recipe.grpo, parts.recipe.critic.model_copy(update={"gae_lambda": 0.5, "value_lambda": 1.0})
    prompts = parts.train_prompts[:2]
    params = SamplingParams(6, 1.0)
    groups = parts.engine.sample(prompts, 2, params, seed=0, iteration=1)
    flat = [(group.prompt, completion) for group in groups for completion in group.completions]
    work = make_work(parts, config, parts.lm.frozen_copy(), flat, [0, 1, 2, 3], torch.zeros(2, 2), old_is_policy=False)
    drifted = torch.where(work.batch.completion_mask, work.old_logprobs - 0.25, 0.0)
    work = work.__class__(**{**vars(work), "ref_logprobs": drifted})
    found = ppo.returns_of(parts, config, options, value, work, torch.tensor([1.0, 0.0, 0.5, 2.0]), 0.2)
    mask = work.batch.completion_mask
    for row, reward in enumerate((1.0, 0.0, 0.5, 2.0)):
        returns = found.returns[row][mask[row]].tolist()
        n = len(returns)
        expected = [reward - 0.2 * 0.25 * (n - t) for t in range(n)]
        assert returns == pytest.approx(expected, abs=1e-5)
    per_token = torch.where(mask, -0.05, 0.0)
    last = mask & (mask.flip(1).cumsum(1).flip(1) == 1)
    per_token[last] += torch.tensor([1.0, 0.0, 0.5, 2.0])
    advantages, _ = gae(per_token, torch.zeros_like(per_token), mask, lam=0.5)
    torch.testing.assert_close(found.advantages, masked_whiten(advantages, mask), rtol=1e-4, atol=1e-4)


def test_the_gradient_of_the_critic_does_not_depend_on_the_cut(tiny):
    parts, value, iterations = begun(tiny, kl_coef=0.0, minibatches=1, prompts_per_iteration=4)
    next(iterations)  # so that the head is no longer zero and the decoder has a gradient
    config, options = parts.recipe.grpo, parts.recipe.critic
    params = SamplingParams(6, 1.0)
    groups = parts.engine.sample(parts.train_prompts[:4], 2, params, seed=1, iteration=2)
    flat = [(group.prompt, completion) for group in groups for completion in group.completions]
    work = make_work(parts, config, None, flat, list(range(8)), torch.zeros(4, 2), old_is_policy=False)
    found = ppo.returns_of(parts, config, options, value, work, torch.arange(8.0), 0.0)
    gradients = []
    for budget in (1, 30, 10_000):
        cut = config.model_copy(update={"microbatch_tokens": budget})
        value.module.zero_grad(set_to_none=True)
        ppo.accumulate_value_gradient(parts, cut, options, value, work, found, list(range(8)), ppo.TokenMeans())
        gradients.append(torch.cat([p.grad.flatten() for p in value.module.parameters() if p.grad is not None]))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-4, atol=1e-6)


def test_unscored_completions_are_left_out(tiny):
    def some(completion_ids, **_):
        return [None if i % 2 else float(sum(ids) % 3) for i, ids in enumerate(completion_ids)]

    _, _, iterations = begun(tiny, reward=some)
    done = next(iterations)
    assert done.trained_rows == [0, 2, 4]
    assert math.isfinite(done.metrics["value/loss"])
    left_out = list(iteration_rows(done))[1::2]
    assert all(row.reward is None and not any(row.token_advantages) for row in left_out)


def test_with_nothing_scored_nothing_is_updated(tiny):
    parts, value, iterations = begun(tiny, reward=lambda completion_ids, **_: [None for _ in completion_ids])
    before, theirs = weights(parts.lm.module), weights(value.module)
    done = next(iterations)
    assert same(before, weights(parts.lm.module))
    assert same(theirs, weights(value.module))
    assert done.metrics["unscored"] == 6.0


def test_groups_of_one(tiny):
    _, _, iterations = begun(tiny, group_size=1, prompts_per_iteration=4)
    done = next(iterations)
    assert done.rollouts.advantages.shape[:2] == (4, 1)
    assert done.metrics["grad_norm"] > 0
