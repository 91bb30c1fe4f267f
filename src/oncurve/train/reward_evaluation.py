"""What a reward model is worth on held-out rows: does it tell right from wrong, are its probabilities true, and does it
take length for quality?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oncurve.data.collate import microbatches
from oncurve.data.labelled import Labelled
from oncurve.functional import auc, bootstrap, calibration_error, correlation, reliability
from oncurve.functional.calibration import Bin
from oncurve.models.reward_model import RewardModel, checked_scores
from oncurve.train.evaluate import Estimate, estimate
from oncurve.train.reward_model import judged_rightly, labels_of


@dataclass(frozen=True)
class RewardEvaluation:
    estimates: dict[str, Estimate]
    """``accuracy``; for pairs ``longer_chosen``, else ``auc``, ``majority``; ``calibration_error``,
    ``length_correlation``. See docs/reward_models.md."""
    table: list[Bin]
    """Reliability: of a pair how sure the model was of the one it prefers, else how probable it took a label of 1."""
    points: list[tuple[int, float, float]]
    """``(tokens, score, label)`` of every completion, or every step; of a pair the label of the chosen one is 1."""


def evaluate_reward_model(
    model: RewardModel, rows: Sequence[Labelled], *, seed: int, token_budget: int
) -> RewardEvaluation:
    """Score the held-out ``rows`` and compare. Rows about one prompt resemble one another: the intervals go by prompts.

    Raises OncurveError for a score that is not a finite number.
    """
    scores = _all_scores(model, rows, token_budget)
    lengths = [length for row in rows for length in row.lengths]
    numbers = [len(row.labels) or 1 for row in rows]
    owners = [row.question for row, number in zip(rows, numbers, strict=True) for _ in range(number)]
    right = judged_rightly(rows, scores).tolist()
    prompts: dict[str, list[int]] = {}
    for index, owner in enumerate(owners):
        prompts.setdefault(owner, []).append(index)
    clusters = [*prompts.values()]
    found = {"accuracy": estimate("accuracy", [[right[i] for i in members] for members in clusters])}
    values: list[float] = scores.tolist()
    if model.form.kind == "pairwise":
        longer = [_longer(row) for row in rows]
        found["longer_chosen"] = estimate("longer_chosen", [[longer[i] for i in members] for members in clusters])
        sure = (scores[::2] - scores[1::2]).abs().sigmoid().tolist()
        table = reliability(sure, right)
        labels = [1.0, 0.0] * len(rows)
    else:
        labels = labels_of(rows).tolist()
        true = [label > 0.5 for label in labels]
        share = sum(true) / len(true)
        found["majority"] = _number("majority", max(share, 1.0 - share), len(clusters))
        low, high = bootstrap(lambda r: auc([values[i] for i in r], [true[i] for i in r]), clusters, seed=seed)
        found["auc"] = Estimate("auc", auc(values, true), low, high, len(clusters))
        table = reliability(scores.sigmoid().tolist(), labels)
    found["calibration_error"] = _number("calibration_error", calibration_error(table), len(clusters))
    tokens = [float(length) for length in lengths]
    found["length_correlation"] = _number("length_correlation", correlation(tokens, values), len(clusters))
    return RewardEvaluation(found, table, list(zip(lengths, values, labels, strict=True)))


def _all_scores(model: RewardModel, rows: Sequence[Labelled], token_budget: int) -> Tensor:
    """``[N]`` in the order of the rows, whatever the order in which they are computed."""
    found: dict[int, Tensor] = {}
    lengths = [len(row.rows) * max(map(len, row.rows)) for row in rows]
    for chosen in microbatches(lengths, token_budget):
        texts = [ids for index in chosen for ids in rows[index].rows]
        ends = [ends for index in chosen for ends in rows[index].ends]
        parts = checked_scores(model, texts, ends).split([sum(map(len, rows[index].ends)) for index in chosen])
        found |= dict(zip(chosen, parts, strict=True))
    return torch.cat([found[index] for index in range(len(rows))])


def _longer(row: Labelled) -> float:
    chosen, rejected = row.lengths
    return 0.5 if chosen == rejected else float(chosen > rejected)


def _number(name: str, value: float, prompts: int) -> Estimate:
    """Without an interval."""
    return Estimate(name, value, math.nan, math.nan, prompts)
