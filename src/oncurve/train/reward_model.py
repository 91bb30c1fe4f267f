"""Training a reward model, read top to bottom: Bradley-Terry on pairs, binary cross-entropy on labels.

    pairwise    - log sigmoid(s(chosen) - s(rejected) - margin) + centring (s(chosen) + s(rejected))^2
    pointwise   - y log sigmoid(s) - (1 - y) log sigmoid(-s)          s at the last token
    process     the same at the last token of every labelled step

The mean is taken over the pairs, or the labels, of an optimizer step. Math-Shepherd sums over the steps of a solution
and takes the mean over solutions; here every step counts alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.config import RewardTraining
from oncurve.data.collate import microbatches
from oncurve.data.labelled import Labelled
from oncurve.functional import binary_cross_entropy, bradley_terry
from oncurve.models.reward_model import RewardModel
from oncurve.train.step import apply_gradients, backward, learning_rate, recomputing, shuffled


@dataclass(frozen=True)
class RewardStep:
    step: int
    metrics: dict[str, float]


def total_steps(config: RewardTraining, rows: int) -> int:
    """Optimizer steps of the whole training; a short last batch of an epoch is left out."""
    return config.epochs * max(1, rows // config.rows_per_step)


def reward_model_steps(
    model: RewardModel,
    rows: Sequence[Labelled],
    config: RewardTraining,
    optimizer: torch.optim.Optimizer,
    *,
    seed: int,
    first_step: int = 0,
    gradient_checkpointing: bool = False,
) -> Iterator[RewardStep]:
    """Train from optimizer step ``first_step`` on, yielding after each. An epoch is a permutation of the rows that
    depends on the seed and the epoch alone."""
    per_step = min(config.rows_per_step, len(rows))
    per_epoch = len(rows) // per_step
    steps = total_steps(config, len(rows))
    for step in range(first_step, steps):
        began = time.perf_counter()
        order = shuffled(len(rows), "reward_model", seed, step // per_epoch)
        at = step % per_epoch * per_step
        chosen = [rows[row] for row in order[at : at + per_step]]
        with recomputing(model.module, gradient_checkpointing):
            loss, right = accumulate_gradient(model, config, chosen)
        rate = learning_rate(config, step, steps)
        grad_norm = apply_gradients(model.module, optimizer, config, rate)
        yield RewardStep(
            step + 1,
            {
                "loss": loss,
                "accuracy": right,
                "grad_norm": grad_norm,
                "learning_rate": rate,
                "time/step": time.perf_counter() - began,
            },
        )


def accumulate_gradient(model: RewardModel, config: RewardTraining, rows: Sequence[Labelled]) -> tuple[float, float]:
    """Add the gradient of the mean loss of ``rows``; returns that mean, and the share that was judged rightly."""
    counted = sum(len(row.labels) or 1 for row in rows)
    lengths = [len(row.rows) * max(map(len, row.rows)) for row in rows]
    loss = right = 0.0
    for chosen in microbatches(lengths, config.microbatch_tokens):
        micro = [rows[index] for index in chosen]
        scores = scores_of(model, micro)
        loss += backward(losses(config, micro, scores).sum() / counted)
        right += float(judged_rightly(micro, scores.detach()).sum())
    return loss, right / counted


def scores_of(model: RewardModel, rows: Sequence[Labelled]) -> Tensor:
    """``[N]``: the scores of all ends of all ``rows``, in their order; of a pair the chosen one's first."""
    texts = [ids for row in rows for ids in row.rows]
    return model.scores(texts, [ends for row in rows for ends in row.ends])


def losses(config: RewardTraining, rows: Sequence[Labelled], scores: Tensor) -> Tensor:
    """``[N]`` nats, one for each pair or each label."""
    if config.kind == "pairwise":
        margin = torch.tensor([row.margin for row in rows], device=scores.device)
        return bradley_terry(scores[::2], scores[1::2], margin=margin, centring=config.centring)
    return binary_cross_entropy(scores, labels_of(rows).to(scores.device))


def judged_rightly(rows: Sequence[Labelled], scores: Tensor) -> Tensor:
    """float ``[N]``, for each pair or label: 1 if the chosen one scores more, or if score and label are on the same
    side of one half; a tie counts half."""
    lead = scores[::2] - scores[1::2] if not rows[0].labels else scores * (labels_of(rows).to(scores.device) - 0.5)
    return (lead > 0).float() + 0.5 * (lead == 0).float()


def labels_of(rows: Sequence[Labelled]) -> Tensor:
    """``[N]`` float32."""
    return torch.tensor([label for row in rows for label in row.labels], dtype=torch.float32)
