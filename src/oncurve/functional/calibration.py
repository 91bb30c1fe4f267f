"""How good the scores of a reward model are: do they put right before wrong, and do their probabilities come true?"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Bin(NamedTuple):
    """Predictions of about the same probability."""

    low: float
    high: float
    n: int
    predicted: float
    """Mean of the probabilities; nan if n is 0."""
    observed: float
    """Mean of what came true."""


def reliability(probabilities: Sequence[float], outcomes: Sequence[float], bins: int = 10) -> list[Bin]:
    """The reliability table: for probabilities in each of ``bins`` equal parts of [0, 1], what share came true.

    Args:
        probabilities: each in [0, 1].
        outcomes: as many, each in [0, 1]: 1 = it came true. Soft labels are legal.
        bins: how many parts; the last one includes 1.

    Returns:
        One :class:`Bin` for each part, in their order, empty ones too.

    Raises:
        ValueError: a wrong length, a number outside [0, 1].

    Source: DeGroot and Fienberg, The Statistician 32 (1983) 12-22.

    >>> [(b.n, b.predicted, b.observed) for b in reliability([0.25, 0.75, 1.0], [0.0, 1.0, 0.0], bins=2)]
    [(1, 0.25, 0.0), (2, 0.875, 0.5)]
    """
    if len(probabilities) != len(outcomes):
        raise ValueError(f"{len(probabilities)} probabilities and {len(outcomes)} outcomes")
    wrong = [value for value in (*probabilities, *outcomes) if not 0.0 <= value <= 1.0]
    if wrong:
        raise ValueError(f"probabilities and outcomes lie between 0 and 1, got {wrong[0]}")
    members: list[list[int]] = [[] for _ in range(bins)]
    for index, probability in enumerate(probabilities):
        members[min(int(probability * bins), bins - 1)].append(index)
    return [
        Bin(
            part / bins,
            (part + 1) / bins,
            len(rows),
            _mean([probabilities[row] for row in rows]),
            _mean([outcomes[row] for row in rows]),
        )
        for part, rows in enumerate(members)
    ]


def calibration_error(table: Sequence[Bin]) -> float:
    """Expected calibration error: how far apart what was predicted and what came true are, over all predictions.

        ECE = sum over bins of n_b / N * |observed_b - predicted_b|

    A model that always predicts the base rate has 0 as well, and tells nothing apart: see :func:`auc`.

    Args:
        table: from :func:`reliability`.

    Returns:
        Between 0, which is perfect, and 1; nan for a table without predictions.

    Source: Naeini et al., AAAI 2015; Guo et al. (arXiv 1706.04599) eq. 3.

    >>> round(calibration_error(reliability([0.25, 0.75, 1.0], [0.0, 1.0, 0.0], bins=2)), 4)
    0.3333
    """
    total = sum(part.n for part in table)
    off = math.fsum(part.n * abs(part.observed - part.predicted) for part in table if part.n)
    return off / total if total else math.nan


def auc(scores: Sequence[float], right: Sequence[bool]) -> float:
    """The chance that a right one scores more than a wrong one (area under the ROC curve); a tie counts half.

    Args:
        scores: in any unit; no nan.
        right: as many.

    Returns:
        Between 0 and 1; 0.5 is chance, whatever the share of right ones. nan without both kinds.

    Source: Hanley and McNeil, Radiology 143 (1982) 29-36.

    >>> auc([3.0, 1.0, 2.0, 2.0], [True, False, True, False])
    0.875
    """
    wrong = sorted(score for score, is_right in zip(scores, right, strict=True) if not is_right)
    better = [score for score, is_right in zip(scores, right, strict=True) if is_right]
    if not wrong or not better:
        return math.nan
    won = sum(bisect_left(wrong, score) + bisect_right(wrong, score) for score in better)
    return won / (2 * len(better) * len(wrong))


def correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Do two quantities rise together?

        r = sum (x - mean x)(y - mean y) / sqrt(sum (x - mean x)^2 sum (y - mean y)^2)

    Args:
        xs: in any unit.
        ys: as many, in another.

    Returns:
        From -1 (one falls as the other rises) to 1; nan if either does not vary.

    Source: K. Pearson, Proceedings of the Royal Society 58 (1895) 240-242.

    >>> round(correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]), 6)
    1.0
    """
    if len(xs) < 2:
        return math.nan
    mean_x, mean_y = _mean(xs), _mean(ys)
    dx, dy = [x - mean_x for x in xs], [y - mean_y for y in ys]
    spread = math.sqrt(math.fsum(x * x for x in dx)) * math.sqrt(math.fsum(y * y for y in dy))
    return math.fsum(x * y for x, y in zip(dx, dy, strict=True)) / spread if spread else math.nan


def bootstrap(
    statistic: Callable[[list[int]], float], clusters: Sequence[Sequence[int]], *, seed: int, resamples: int = 400
) -> tuple[float, float]:
    """95 % interval of a statistic of all rows, from drawing the clusters again with replacement.

    Args:
        statistic: from row numbers, with repetitions, to a number; a nan is left out.
        clusters: the rows of each independent unit, such as a prompt: rows of one unit resemble one another.
        seed: the same one draws the same resamples.
        resamples: how many.

    Returns:
        ``(low, high)``: the 2.5 % and 97.5 % quantiles; nan if no resample gave a number.

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), ch. 13 (percentile), over clusters.

    >>> bootstrap(lambda rows: sum(rows) / len(rows), [[0], [0, 0], [0]], seed=0)
    (0.0, 0.0)
    """
    draws = random.Random(seed)
    found: list[float] = []
    for _ in range(resamples):
        rows = [row for _ in clusters for row in clusters[int(draws.random() * len(clusters))]]
        value = statistic(rows)
        if not math.isnan(value):
            found.append(value)
    if not found:
        return math.nan, math.nan
    found.sort()
    return found[int(0.025 * (len(found) - 1))], found[math.ceil(0.975 * (len(found) - 1))]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
