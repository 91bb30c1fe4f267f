"""Process supervision: from what reward functions said about steps to tensors that advantages are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.config import Grpo
from oncurve.data.token_ends import token_ends
from oncurve.rewards import Scores, Step, Unit
from oncurve.train.setup import Parts, decode
from oncurve.types import Completion, Group


@dataclass(frozen=True)
class StepRewards:
    """Every step of P prompts with G completions each: S steps, or fewer and padded."""

    rewards: Tensor
    """``[P, G, S]`` float64, with the functions' weights; NaN = no step, or one that was not scored."""
    ends: Tensor
    """``[P, G, S]`` int64: the step's last token within its completion, from 0."""


def step_rewards(parts: Parts, config: Grpo, groups: Sequence[Group], scores: Scores) -> StepRewards | None:
    """The steps of all functions together; None if ``grpo.advantage`` looks at whole completions.

    A function that gave one number for the whole completion has scored one step that ends with it: with no other
    function, this is outcome supervision. A function of weight 0 has no steps here.
    """
    if config.advantage != "process":
        return None
    rows = [
        [
            [*_steps(parts, scores, p, g, completion)] if completion.token_ids else []
            for g, completion in enumerate(group.completions)
        ]
        for p, group in enumerate(groups)
    ]
    width = max(1, *(len(steps) for row in rows for steps in row))
    filled = [[[*steps, *[(0, math.nan)] * (width - len(steps))] for steps in row] for row in rows]
    return StepRewards(
        torch.tensor([[[r for _, r in steps] for steps in row] for row in filled], dtype=torch.float64),
        torch.tensor([[[end for end, _ in steps] for steps in row] for row in filled]),
    )


def recorded_steps(parts: Parts, scores: Scores, groups: Sequence[Group]) -> dict[str, tuple[tuple[object, ...], ...]]:
    """By column ``NAME/steps``, ``[P][G]``: for each step of a completion its last character and last token, both
    exclusive, and its reward, as the record keeps them."""
    return {
        f"{name}/steps": tuple(
            tuple(
                [*_recorded(parts, found.unit, steps, completion)]
                for steps, completion in zip(row, group.completions, strict=True)
            )
            for row, group in zip(found.steps, groups, strict=True)
        )
        for name, found in scores.steps.items()
    }


def _steps(parts: Parts, scores: Scores, p: int, g: int, completion: Completion) -> Iterator[tuple[int, float]]:
    """``(last token, reward)`` of every scored step."""
    for reward in parts.rewards:
        if not reward.weight:
            continue
        found = scores.steps.get(reward.name)
        if found is None:
            part = scores.parts[reward.name][p][g]
            if part is not None:
                yield len(completion.token_ids) - 1, reward.weight * part
            continue
        steps = found.steps[p][g]
        for step, end in zip(steps, _ends(parts, found.unit, steps, completion), strict=True):
            if step.reward is not None:
                yield end - 1, reward.weight * step.reward


def _recorded(
    parts: Parts, unit: Unit, steps: Sequence[Step], completion: Completion
) -> Iterator[dict[str, float | None]]:
    for step, tokens in zip(steps, _ends(parts, unit, steps, completion), strict=True):
        end = step.end if unit == "characters" else len(decode(parts.tokenizer, completion.token_ids[:tokens]))
        yield {"end": end, "tokens": tokens, "reward": step.reward}


def _ends(parts: Parts, unit: Unit, steps: Sequence[Step], completion: Completion) -> list[int]:
    ends = [step.end for step in steps]
    if unit == "tokens":
        return ends
    return token_ends(completion.token_ids, ends, lambda ids: decode(parts.tokenizer, ids))
