"""From what the loops yield to rows of the run log."""

from __future__ import annotations

import math
from collections.abc import Iterator

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
                advantage=float(rollouts.advantages[p, g]),
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
                advantage=None,
                old_logprobs=None,
                ref_logprobs=None,
            )


def estimate_rows(evaluation: Evaluation, iteration: int) -> list[EvalRow]:
    return [
        EvalRow("grpo", iteration, evaluation.kind, e.name, e.value, e.low, e.high, e.n)
        for e in evaluation.estimates.values()
    ]


def _row(
    group: Group,
    g: int,
    *,
    split: str,
    iteration: int,
    scores: Scores,
    p: int,
    reward: float,
    advantage: float | None,
    old_logprobs: list[float] | None,
    ref_logprobs: list[float] | None,
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
        advantage=advantage,
        parts={name: values[p][g] for name, values in scores.parts.items()},
        extras={name: values[p][g] for name, values in scores.extras.items()},
        truncated=completion.truncated,
    )
