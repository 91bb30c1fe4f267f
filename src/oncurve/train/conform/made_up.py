"""A small batch of the user's own prompts, with everything that one update reads, and more of it made up than usual."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oncurve.config import Grpo
from oncurve.train import rollouts, update
from oncurve.train.objective import ADVANTAGES, Scored, advantages_of
from oncurve.train.setup import Parts
from oncurve.train.supervision import StepRewards
from oncurve.types import Batch, Completion, Prompt, SamplingParams

# At most so many: what goes wrong with a batch goes wrong with a small one.
PROMPTS, GROUP_SIZE, NEW_TOKENS = 3, 3, 16

Row = tuple[Prompt, Completion]


def sampled_rows(parts: Parts) -> list[Row]:
    """A few completions of each of a few prompts, the prompts from the shortest to the longest. They are cut to
    different lengths: rows of one length hide a mean of means."""
    recipe = parts.recipe
    by_length = sorted(parts.train_prompts, key=lambda prompt: len(prompt.token_ids))
    count = min(PROMPTS, len(by_length))
    chosen = [by_length[index * (len(by_length) - 1) // max(1, count - 1)] for index in range(count)]
    params = SamplingParams(min(NEW_TOKENS, recipe.sampling.max_new_tokens), recipe.sampling.temperature)
    size = GROUP_SIZE if recipe.grpo is None else min(GROUP_SIZE, recipe.grpo.group_size)
    groups = parts.engine.sample(chosen, size, params, seed=recipe.run.seed, iteration=0)
    flat = [(group.prompt, completion) for group in groups for completion in group.completions]
    return [(prompt, _cut(completion, number)) for number, (prompt, completion) in enumerate(flat)]


def _cut(completion: Completion, number: int) -> Completion:
    keep = math.ceil(len(completion.token_ids) * (1.0, 0.4, 0.7, 0.2, 0.55)[number % 5])
    return dataclasses.replace(
        completion, token_ids=completion.token_ids[:keep], sampler_logprobs=completion.sampler_logprobs[:keep]
    )


def made_up_work(parts: Parts, config: Grpo, rows: Sequence[Row]) -> update.Work:
    """What one update reads: rewards that differ in every group, and an old policy and a reference a little way off, so
    that the ratio is not 1, some tokens are clipped, and the KL has a gradient."""
    groups = len({prompt.id for prompt, _ in rows})
    size = len(rows) // groups
    numbers = 3 * torch.arange(groups)[:, None] + 5 * torch.arange(size)
    rewards = (numbers % 7).double() / 6
    by_function = ((numbers[..., None] + 2 * torch.arange(len(parts.rewards))) % 7).double() / 6
    lengths = torch.tensor([len(completion.token_ids) for _, completion in rows]).view(rewards.shape)
    # Two steps to a completion, the second as good as the whole.
    steps = StepRewards(torch.stack([1 - rewards, rewards], 2), torch.stack([(lengths - 1) // 2, lengths - 1], 2))
    # A critic's advantages are per token as well; here they come without one.
    known = config if config.advantage in ADVANTAGES else config.model_copy(update={"advantage": "process"})
    advantages = advantages_of(known, Scored(rewards, by_function, rollouts.part_weights(parts), lengths, steps))
    trained = rollouts.rows_to_train_on(advantages, config.train_fraction)
    config = config.model_copy(update={"group_size": size})
    work = update.make_work(parts, config, None, rows, trained, advantages, old_is_policy=False)
    now, mask = work.old_logprobs, work.batch.completion_mask
    t = torch.arange(now.shape[1], device=now.device)
    side = torch.where(torch.arange(len(now), device=now.device) % 2 == 0, 1.0, -1.0)[:, None]
    # Well inside the usual bounds of a ratio or well outside: next to a bound, rounding would decide about a gradient.
    drift = side * torch.where(t % 5 == 0, 0.4, 0.05 + 0.03 * (t % 3))
    return dataclasses.replace(
        work,
        old_logprobs=torch.where(mask, now - drift, 0.0),
        ref_logprobs=torch.where(mask, now + 0.2 * (t % 4 - 1.7), 0.0) if config.kl_coef else None,
    )


def turned(work: update.Work) -> update.Work:
    """The rows from last to first."""
    batch = work.batch
    rows = torch.arange(len(batch) - 1, -1, -1, device=batch.tokens.device)
    moved = {
        field.name: value[rows]
        for field in dataclasses.fields(work)
        if isinstance(value := getattr(work, field.name), Tensor)
    }
    batch = Batch(batch.tokens[rows], batch.lengths[rows], batch.completion_mask[rows])
    return dataclasses.replace(work, batch=batch, **moved)


def widened(work: update.Work, extra: int, pad_id: int) -> update.Work:
    """``extra`` more columns of padding, which count as part of every row."""

    def wider(values: Tensor, fill: Any) -> Tensor:
        return torch.cat([values, values.new_full((len(values), extra), fill)], dim=1)

    batch = work.batch
    return dataclasses.replace(
        work,
        batch=Batch(wider(batch.tokens, pad_id), batch.lengths + extra, wider(batch.completion_mask, False)),
        advantages=work.advantages if work.advantages.shape[1] == 1 else wider(work.advantages, 0.0),
        sampler_logprobs=wider(work.sampler_logprobs, 0.0),
        old_logprobs=wider(work.old_logprobs, 0.0),
        ref_logprobs=None if work.ref_logprobs is None else wider(work.ref_logprobs, 0.0),
    )
