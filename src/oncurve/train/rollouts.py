"""The first half of an iteration: sample groups of completions, score them, choose what to train on."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.config import Grpo
from oncurve.data.order import further_prompts, prompts_for_iteration
from oncurve.functional import informative_groups, soft_overlong
from oncurve.recipe import completions_kept
from oncurve.rewards import Scores, joined, score
from oncurve.train.clock import Clock
from oncurve.train.setup import Parts
from oncurve.train.step import check_sampled
from oncurve.train.supervision import StepRewards, recorded_steps, step_rewards
from oncurve.types import Group, SamplingParams


@dataclass(frozen=True)
class Rollouts:
    """One iteration's completions with all that is known about them. Lists are ``[P][G]``; with dynamic sampling P may
    be more than ``prompts_per_iteration``."""

    groups: list[Group]
    scores: Scores
    rewards: Tensor
    """``[P, G]`` float64: what the functions gave, less an overlong punishment and a KL in the reward; NaN =
    unscored."""
    advantages: Tensor
    """``[P, G]``; under process supervision ``[P, G, T]``, completion-aligned."""
    compared: Tensor
    """``[P, N]``: see :func:`compared`."""
    steps: StepRewards | None
    """Under process supervision."""
    rounds: int
    """Sampling rounds: 1, or more with dynamic sampling."""
    values: list[list[list[float]]] | None = None
    """``[P][G][T]``: what a critic expected before each token."""


def sample_and_score(
    parts: Parts, config: Grpo, iteration: int, clock: Clock
) -> tuple[list[Group], Scores, int] | None:
    """Groups, their scores and the number of rounds it took; None if a stop was asked for.

    With dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) there are further rounds, with prompts that this
    iteration has not had, until ``prompts_per_iteration`` groups have rewards that differ, or the rounds are used up.
    """
    seed, wanted, number = parts.recipe.run.seed, config.prompts_per_iteration, parts.earlier + iteration
    params = SamplingParams(parts.recipe.sampling.max_new_tokens, parts.recipe.sampling.temperature)
    chosen = prompts_for_iteration(len(parts.train_prompts), wanted, seed, number - 1)
    groups: list[Group] = []
    scores: Scores | None = None
    used: list[int] = []
    rounds = 0
    while chosen and rounds < max(1, config.dynamic_sampling):
        prompts = [parts.train_prompts[index] for index in chosen]
        found = parts.engine.sample(prompts, config.group_size, params, seed=seed, iteration=number)
        check_sampled(found)
        clock.lap("sampling")
        clock.sampled(parts.engine)
        if parts.stop.requested:
            return None
        more = score(found, parts.rewards, trainer_state={"iteration": iteration}, combination=parts.combination)
        clock.lap("rewards")
        groups, scores = groups + found, more if scores is None else joined(scores, more)
        used, rounds = used + chosen, rounds + 1
        steps = step_rewards(parts, config, groups, scores)
        missing = wanted - int(informative_groups(compared(scores, steps)).sum())
        chosen = further_prompts(len(parts.train_prompts), missing, seed, number - 1, used)
    assert scores is not None
    recorded = dataclasses.replace(scores, extras={**recorded_steps(parts, scores, groups), **scores.extras})
    return groups, recorded, rounds


def compared(scores: Scores, steps: StepRewards | None) -> Tensor:
    """``[P, N]`` float64: what the reward functions gave and a group must differ in to teach anything; NaN = unscored.
    The rewards of its completions, or under process supervision of all their steps."""
    return torch.tensor(scores.totals, dtype=torch.float64) if steps is None else steps.rewards.flatten(1)


def overlong(parts: Parts, config: Grpo, lengths: Tensor) -> Tensor:
    """``[P, G]`` soft punishment of completions that come near the token limit (DAPO eq. 13)."""
    limit = parts.recipe.sampling.max_new_tokens
    buffer = max(1, round(config.overlong_fraction * limit))
    return soft_overlong(lengths, max_length=limit, buffer=buffer).double()


def stacked(scores: Scores, rewards: Tensor) -> Tensor:
    """``[P, G, K]`` float64: each function's score; NaN = unscored."""
    parts = [[[math.nan if v is None else v for v in row] for row in part] for part in scores.counted.values()]
    return torch.tensor(parts, dtype=rewards.dtype).permute(1, 2, 0)


def part_weights(parts: Parts) -> Tensor:
    return torch.tensor([reward.weight for reward in parts.rewards], dtype=torch.float64)


def kept_groups(config: Grpo, rewards: Tensor) -> Tensor:
    """bool ``[P]``: all groups, or with dynamic sampling the first ``prompts_per_iteration`` whose completions the
    reward functions tell apart. ``rewards`` ``[P, N]``: see :func:`compared`."""
    if not config.dynamic_sampling:
        return torch.ones(len(rewards), dtype=torch.bool)
    informative = informative_groups(rewards)
    return informative & (informative.cumsum(0) <= config.prompts_per_iteration)


def rows_to_train_on(advantages: Tensor, fraction: float, kept: Tensor | None = None) -> list[int]:
    """Row numbers (of P*G) to train on: of every kept group the ``ceil(fraction * G)`` with the largest |advantage|.

    1.0 is the paper. Less is a deviation in the manner of CPPO (arXiv 2503.22342): advantages are computed from the
    whole group first, then the completions that say least are left out of the update, KL term included. Where tokens
    have advantages of their own, a completion counts by its largest.
    """
    if advantages.ndim == 3:
        advantages = advantages.abs().amax(dim=2)
    group_size = advantages.shape[1]
    keep = completions_kept(group_size, fraction)
    best = advantages.abs().argsort(dim=1, descending=True, stable=True)[:, :keep].sort(dim=1).values
    return (
        (best + torch.arange(len(advantages))[:, None] * group_size)[slice(None) if kept is None else kept]
        .flatten()
        .tolist()
    )
