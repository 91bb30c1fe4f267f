"""Every choice of every term makes a run, and the trainer's step is the formula that the term names."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from oncurve.presets import PRESETS, TERMS
from oncurve.rewards import NamedReward
from oncurve.terminal import Terminal
from oncurve.train.grpo import grpo_iterations
from oncurve.train.objective import ADVANTAGES, CORRECTIONS, KL_IN_LOSS, RATIOS, SURROGATES
from oncurve.train.setup import prepare
from oncurve.train.step import make_optimizer

RUNNABLE = [name for name, preset in PRESETS.items() if preset.needs != "critic"]


def spread(completion_ids, **_):
    """Different inside most groups, never negative."""
    return [float(sum(ids) % 7) for ids in completion_ids]


def iterations(recipe, n=1, reward=spread, kl_coef=None):
    parts = prepare(recipe, Terminal(quiet=True), ("grpo",))
    parts = dataclasses.replace(parts, rewards=[NamedReward("spread", 1.0, reward)])
    config = recipe.grpo
    reference = parts.lm.frozen_copy() if config.kl_coef else None
    optimizer = make_optimizer(parts.lm.module, config)
    found = grpo_iterations(parts, config, reference, optimizer, 1, kl_coef)
    return parts, [next(found) for _ in range(n)]


def test_every_choice_of_a_term_has_a_function():
    tables = {
        "advantage": {*ADVANTAGES, "gae"},
        "ratio": {*RATIOS, "none"},
        "surrogate": set(SURROGATES),
        "kl": {*KL_IN_LOSS, "k1_in_reward"},
        "sampler_correction": {*CORRECTIONS, "none"},
    }
    for term, names in tables.items():
        choices = TERMS[term].choices
        assert choices is not None
        assert set(choices) == names


@pytest.mark.parametrize("preset", RUNNABLE)
def test_every_preset_trains(tiny, preset):
    recipe = tiny(grpo={"preset": preset, "epochs": 2, "minibatches": 2, "iterations": 2})
    parts, [first, second] = iterations(recipe, 2)
    metrics = second.metrics
    assert math.isfinite(metrics["loss"])
    assert metrics["grad_norm"] > 0
    assert all(p.isfinite().all() for p in parts.lm.module.parameters())
    assert ("kl" in metrics) == (recipe.grpo.kl_coef > 0)
    assert first.iteration == 1


def test_the_default_is_the_paper(tiny):
    """No preset and the preset by name are one objective, bit for bit."""
    weights = []
    for grpo in ({}, {"preset": "deepseekmath"}):
        parts, _ = iterations(tiny(grpo={"epochs": 2, **grpo}))
        weights.append(torch.cat([p.detach().flatten() for p in parts.lm.module.parameters()]))
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    "terms",
    [
        {"kl": "k2"},
        {"kl": "k3_ratio"},
        {"kl": "k1", "allow_k1_in_loss": True},
        {"kl": "k1_in_reward"},
        {"surrogate": "dual_clip", "ratio_cap": 3.0},
        {"surrogate": "two_sided", "ratio_cap": 4.0},
        {"surrogate": "sapo"},
        {"surrogate": "gmpo"},
        {"ratio": "sequence_token"},
        {"sampler_correction": "truncate_token"},
        {"sampler_correction": "truncate_sequence"},
        {"sampler_correction": "mask_token"},
        {"sampler_correction": "mask_sequence"},
        {"off_policy_bound": 0.5},
        {"entropy_coef": 0.01},
        {"advantage": "success_scaled"},
        {"advantage": "length_weighted"},
        {"advantage": "signal_scaled"},
        {"advantage": "centred_over_reward_std"},
        {"advantage": "per_reward_normalised"},
    ],
    ids=lambda terms: ",".join(map(str, terms.values())),
)
def test_every_other_term_trains(tiny, terms):
    _, [iteration] = iterations(tiny(grpo={"epochs": 2, **terms}))
    assert math.isfinite(iteration.metrics["loss"])
    assert iteration.metrics["grad_norm"] > 0
    if "sampler_correction" in terms:
        assert iteration.metrics["sampling/importance_weight"] == pytest.approx(1.0, abs=1e-3)


def test_dynamic_sampling_fills_the_places_of_groups_without_variance(tiny):
    calls = []

    def rewards(completions, **_):
        """In the first round only the last group differs, in the second all do."""
        calls.append(len(completions))
        alike = len(completions) - 4 if len(calls) == 1 else 0
        return [0.0 if row < alike else float(row % 4) for row in range(len(completions))]

    recipe = tiny(grpo={"dynamic_sampling": 3, "group_size": 4, "prompts_per_iteration": 3})
    _, [iteration] = iterations(recipe, reward=rewards)
    assert calls == [12, 8]
    assert iteration.metrics["dynamic_sampling/rounds"] == 2
    assert iteration.metrics["dynamic_sampling/groups"] == 5
    assert iteration.metrics["dynamic_sampling/kept"] == 3
    assert iteration.trained_rows == list(range(8, 20))
    ids = [group.prompt.id for group in iteration.rollouts.groups]
    assert len(set(ids)) == len(ids)


def test_a_dropped_group_does_not_move_the_weights(tiny):
    recipe = tiny(grpo={"dynamic_sampling": 1, "advantage": "batch_normalised"})
    parts = prepare(recipe, Terminal(quiet=True), ("grpo",))
    before = [p.detach().clone() for p in parts.lm.module.parameters()]
    size = recipe.grpo.group_size

    def by_group(completions, **_):
        return [float(row // size) for row in range(len(completions))]

    parts, [iteration] = iterations(recipe, reward=by_group)
    assert iteration.metrics["dynamic_sampling/kept"] == 0
    assert not iteration.rollouts.advantages.any()
    assert all(torch.equal(a, b) for a, b in zip(before, parts.lm.module.parameters(), strict=True))


def test_overlong_completions_are_punished_before_they_are_compared(tiny):
    recipe = tiny(grpo={"overlong_fraction": 0.5})
    limit = recipe.sampling.max_new_tokens
    _, [iteration] = iterations(recipe, reward=lambda completions, **_: [1.0] * len(completions))
    buffer = max(1, round(0.5 * limit))
    for group, rewards in zip(iteration.rollouts.groups, iteration.rollouts.rewards.tolist(), strict=True):
        for completion, reward in zip(group.completions, rewards, strict=True):
            over = max(0, len(completion.token_ids) - (limit - buffer))
            assert reward == pytest.approx(1.0 - over / buffer, abs=1e-12)


def test_an_adaptive_coefficient_follows_the_target(tiny):
    recipe = tiny(grpo={"kl_target": 1e-9, "kl_coef": 0.1, "epochs": 2, "learning_rate": 1e-3})
    _, [iteration] = iterations(recipe)
    rows = len(iteration.trained_rows)
    assert iteration.metrics["kl_coef"] == 0.1
    assert iteration.kl_coef == pytest.approx(0.1 * (1 + 0.2 * rows / 10_000), abs=1e-12)
    _, [again] = iterations(recipe, kl_coef=0.3)
    assert again.metrics["kl_coef"] == 0.3


def test_k1_in_the_reward_is_zero_at_the_reference_and_counts_later(tiny):
    recipe = tiny(grpo={"kl": "k1_in_reward", "kl_coef": 0.5, "iterations": 2, "learning_rate": 1e-2})
    _, [first, second] = iterations(recipe, 2)
    totals = [torch.tensor(i.rollouts.scores.totals, dtype=torch.float64) for i in (first, second)]
    assert (first.rollouts.rewards - totals[0]).abs().max() <= 1e-6
    assert (second.rollouts.rewards - totals[1]).abs().max() > 1e-3
