"""One update of a tiny random policy, made by the trainer's own functions, for the tests of its invariants."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from families import tiny_model
from oncurve.config import Grpo
from oncurve.functional import place, process_advantages
from oncurve.models.causal_lm import CausalLM
from oncurve.presets import PRESETS
from oncurve.train import update
from oncurve.train.objective import ADVANTAGES, Scored, advantages_of
from oncurve.train.setup import Parts
from oncurve.train.step import TokenMeans
from oncurve.train.supervision import StepRewards
from oncurve.types import Completion, Prompt, SamplingParams
from policies import parts_of

ALL_AT_ONCE = 10**9
Row = tuple[Prompt, Completion]


class Norm(nn.Module):
    """The root mean square norm of most families, in the precision of its input: theirs is in float32 always."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, hidden: Tensor) -> Tensor:
        return self.weight * hidden * (hidden.square().mean(-1, keepdim=True) + self.eps).rsqrt()


def policy(family: str = "gpt2", **options: Any) -> Parts:
    """In float64 throughout, if not told otherwise."""
    module = tiny_model(family)
    for part in list(module.modules()):
        for name, child in part.named_children():
            if hasattr(child, "variance_epsilon"):
                setattr(part, name, Norm(child.weight, child.variance_epsilon))
    return parts_of(module, **options)


def config_of(preset: str, **terms: Any) -> Grpo:
    """The preset's objective, also where GRPO alone could not train by it: advantages are given here."""
    section = {**PRESETS[preset].terms, "preset": preset, "microbatch_tokens": ALL_AT_ONCE, **terms}
    return Grpo.model_construct(**(Grpo().model_dump() | section))


def sampled(parts: Parts, prompts: int = 3, group_size: int = 4) -> list[Row]:
    params = SamplingParams(parts.recipe.sampling.max_new_tokens, parts.recipe.sampling.temperature)
    groups = parts.engine.sample(parts.train_prompts[:prompts], group_size, params, seed=1, iteration=0)
    rows = [(group.prompt, completion) for group in groups for completion in group.completions]
    return [(prompt, cut(completion, number)) for number, (prompt, completion) in enumerate(rows)]


def cut(completion: Completion, number: int) -> Completion:
    """To a length of its own: rows of one length would hide much."""
    keep = math.ceil(len(completion.token_ids) * (1.0, 0.4, 0.7, 0.2, 0.55)[number % 5])
    return dataclasses.replace(
        completion, token_ids=completion.token_ids[:keep], sampler_logprobs=completion.sampler_logprobs[:keep]
    )


def rewards_for(rows: Sequence[Row], groups: int = 3) -> Tensor:
    """``[P, G]``: they differ in every group."""
    size = len(rows) // groups
    return (3 * torch.arange(groups)[:, None] + 5 * torch.arange(size)).remainder(7).double() / 6


def advantages_for(config: Grpo, rows: Sequence[Row], rewards: Tensor) -> Tensor:
    """``[P, G]``; what needs more than rewards gets the group's."""
    lengths = torch.tensor([len(completion.token_ids) for _, completion in rows]).view(rewards.shape)
    one_step = StepRewards(rewards[..., None], lengths[..., None] - 1)
    scored = Scored(
        rewards, torch.stack([rewards, rewards.flip(1)], dim=2), torch.tensor([1.0, 0.5]).double(), lengths, one_step
    )
    known = config if config.advantage in ADVANTAGES else config.model_copy(update={"advantage": "group_normalised"})
    return advantages_of(known, scored)


def work_of(
    parts: Parts,
    config: Grpo,
    rows: Sequence[Row],
    *,
    rewards: Tensor | None = None,
    advantages: Tensor | None = None,
    reference: CausalLM | None = None,
    old_is_policy: bool = True,
) -> update.Work:
    """The trainer's, in the precision of the policy and with the exact advantages."""
    if advantages is None:
        advantages = advantages_for(config, rows, rewards_for(rows) if rewards is None else rewards)
    config = config.model_copy(update={"group_size": advantages.shape[1]})
    work = update.make_work(
        parts, config, reference, rows, list(range(len(rows))), advantages, old_is_policy=old_is_policy
    )
    dtype = next(parts.lm.module.parameters()).dtype
    precise = {
        name: value.to(dtype) for name, value in vars(work).items() if isinstance(value, Tensor) and name != "prompts"
    }
    return dataclasses.replace(
        work, **precise | {"advantages": update.of_tokens(advantages.flatten(0, 1).to(dtype), work.batch)}
    )


def drifted(work: update.Work) -> update.Work:
    """Off-policy: ratios within the usual bounds and outside, none near them; a reference of its own."""
    mask, t = work.batch.completion_mask, torch.arange(work.old_logprobs.shape[1])
    side = torch.where(torch.arange(len(mask)) % 2 == 0, 1.0, -1.0)[:, None].double()
    drift = side * torch.where(t % 5 == 0, 0.4, 0.05 + 0.03 * (t % 3))
    old = work.old_logprobs
    return dataclasses.replace(
        work,
        old_logprobs=torch.where(mask, old - drift, 0.0),
        ref_logprobs=torch.where(mask, old + 0.2 * (t % 4 - 1.7), 0.0),
        old_is_policy=False,
    )


def per_token(work: update.Work, rewards: Tensor, *, steps: int = 3) -> update.Work:
    """Process supervision: ``steps`` steps in every completion, the last at its last token."""
    mask = work.batch.completion_mask
    lengths = mask.sum(dim=1).view(rewards.shape)
    index = torch.arange(1, steps + 1)
    ends = (lengths[..., None] * index) // steps - 1
    step_rewards = torch.where(ends >= 0, rewards[..., None] + 0.1 * (index - steps), float("nan"))
    width = int(lengths.max())
    values = process_advantages(step_rewards, ends.clamp(min=0), lengths, width=width).flatten(end_dim=1)
    of_completion = torch.arange(width) < lengths.view(-1, 1)
    return dataclasses.replace(work, advantages=place(values[of_completion], mask))


def gradient(
    parts: Parts,
    config: Grpo,
    work: update.Work,
    minibatch: Sequence[int] | None = None,
    *,
    means: TokenMeans | None = None,
) -> dict[str, Tensor]:
    """Of the trainer's step, by parameter."""
    module = parts.lm.module
    module.zero_grad(set_to_none=True)
    chosen = list(range(len(work.batch))) if minibatch is None else list(minibatch)
    update.accumulate_gradient(parts, config, work, chosen, TokenMeans() if means is None else means, config.kl_coef)
    found = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad(set_to_none=True)
    return found


def off_by(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of an entry, in units of the largest entry."""
    assert one.keys() == other.keys()
    largest = max(float(value.abs().max()) for value in one.values())
    assert largest > 1e-6
    return max(float((one[name] - other[name]).abs().max()) for name in one) / largest
