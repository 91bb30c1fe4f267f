"""From what the loops yield to rows of the run log."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor

from oncurve.rewards import Scores
from oncurve.runlog import CompletionRow, EvalRow
from oncurve.train.evaluate import Evaluation
from oncurve.train.grpo import Iteration
from oncurve.types import Group


def iteration_rows(iteration: Iteration) -> Iterator[CompletionRow]:
    """Every completion of one GRPO iteration. Log-probs of rows that were not trained on are None."""
    place_of = {row: place for place, row in enumerate(iteration.trained_rows)}
    rollouts = iteration.rollouts
    group_size = rollouts.advantages.shape[1]
    for p, group in enumerate(rollouts.groups):
        for g in range(group_size):
            place = place_of.get(p * group_size + g)
            yield _row(
                group,
                g,
                split="train",
                iteration=iteration.iteration,
                scores=rollouts.scores,
                p=p,
                reward=float(rollouts.rewards[p, g]),
                advantages=_of_completion(rollouts.advantages[p, g], len(group.completions[g].token_ids)),
                values=None if rollouts.values is None else rollouts.values[p][g],
                old_logprobs=None if place is None else iteration.old_logprobs[place],
                ref_logprobs=None if place is None or iteration.ref_logprobs is None else iteration.ref_logprobs[place],
            )


def evaluation_rows(evaluation: Evaluation, iteration: int) -> Iterator[CompletionRow]:
    for p, group in enumerate(evaluation.groups):
        for g in range(len(group.completions)):
            yield _row(
                group,
                g,
                split=f"eval_{evaluation.kind}",
                iteration=iteration,
                scores=evaluation.scores,
                p=p,
                reward=evaluation.scores.totals[p][g],
                old_logprobs=None,
                ref_logprobs=None,
            )


def estimate_rows(evaluation: Evaluation, iteration: int) -> list[EvalRow]:
    return [
        EvalRow("grpo", iteration, evaluation.kind, e.name, e.value, e.low, e.high, e.n)
        for e in evaluation.estimates.values()
    ]


def _of_completion(advantages: Tensor, tokens: int) -> Tensor:
    """One advantage, or those of the completion's own tokens."""
    return advantages[:tokens] if advantages.ndim else advantages


def _row(
    group: Group,
    g: int,
    *,
    split: str,
    iteration: int,
    scores: Scores,
    p: int,
    reward: float,
    old_logprobs: list[float] | None,
    ref_logprobs: list[float] | None,
    advantages: Tensor | None = None,
    values: list[float] | None = None,
) -> CompletionRow:
    completion = group.completions[g]
    return CompletionRow(
        stage="grpo",
        iteration=iteration,
        prompt_id=group.prompt.id,
        sample=g,
        split=split,
        prompt=group.prompt.text,
        completion=completion.text,
        token_ids=completion.token_ids,
        sampler_logprobs=completion.sampler_logprobs,
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        reward=None if math.isnan(reward) else reward,
        advantage=None if advantages is None else float(advantages.mean()),
        parts={name: values[p][g] for name, values in scores.parts.items()},
        extras={name: values[p][g] for name, values in scores.extras.items()},
        truncated=completion.truncated,
        token_advantages=advantages.tolist() if advantages is not None and advantages.ndim else None,
        token_values=values,
    )
