"""From per-token values to one scalar, in a way that does not depend on how the batch was cut.

The denominator is counted over everything that one optimizer step trains on and is passed in. The sum over microbatches
(and ranks) of ``aggregate(...)``, each with that same denominator, is then the value of the whole batch, and so is the
gradient. A mean of microbatch means is not: for token means 2.6 in place of 2.857 in the tests' example.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_float, check_mask, check_same_shape

AggregationMode = Literal["sequence_mean", "token_mean"]
"""``sequence_mean``: over the tokens of each completion, then over completions (every completion weighs the same).
``token_mean``: over all tokens (every token weighs the same)."""


def denominator(mask: Tensor, mode: AggregationMode) -> float:
    """What :func:`aggregate` divides by, counted over a whole optimizer step.

        sequence_mean: number of rows            token_mean: number of True entries

    Counts of microbatches, and of ranks, add up.

    Args:
        mask: bool ``[B, T]``, True = trained on. A row without a True entry counts as a row in ``sequence_mean``: it
            was sampled, and adds 0 to the sum.
        mode: see :data:`AggregationMode`.

    Returns:
        Completions or tokens, as a float.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 3, 1/G; DAPO (arXiv 2503.14476) eq. 8, 1/sum_i abs(o_i). Deviation: over
    all rows of the step, where the papers write one group.

    >>> mask = torch.tensor([[True, True, False], [True, False, False]])
    >>> denominator(mask, "sequence_mean"), denominator(mask, "token_mean")
    (2.0, 3.0)
    """
    check_mask("mask", mask)
    check_axes("mask", mask, "BT")
    _check_mode(mode)
    return float(mask.shape[0]) if mode == "sequence_mean" else float(mask.sum())


def aggregate(per_token: Tensor, mask: Tensor, mode: AggregationMode, denominator: float) -> Tensor:
    """The share of these rows in the mean over one optimizer step.

        sequence_mean: 1/D sum_b 1/n_b sum_t mask[b, t] x[b, t]            n_b = sum_t mask[b, t]
        token_mean:    1/D sum_b       sum_t mask[b, t] x[b, t]

    Args:
        per_token: ``[B, T]`` float32 or float64.
        mask: bool ``[B, T]``, True = counted. Where it is False per_token may hold anything, nan and infinities
            included: it reaches neither the value nor the gradient.
        mode: see :data:`AggregationMode`.
        denominator: D, from :func:`denominator` over the whole step, above 0.

    Returns:
        Scalar of the dtype of ``per_token``. A row without a True entry adds 0.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 3 (sequence_mean); DAPO (arXiv 2503.14476) eq. 8 (token_mean).
    Deviation: sums are taken in float64, so that the order of the rows and the padding do not show in a float32 result.

    >>> per_token = torch.tensor([[1.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 6.0], [4.0, 0.0, 0.0, 0.0]])
    >>> mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]]).bool()
    >>> aggregate(per_token, mask, "sequence_mean", denominator=3.0)
    tensor(3.)
    >>> aggregate(per_token, mask, "token_mean", denominator=7.0)
    tensor(2.8571)
    """
    check_float("per_token", per_token)
    check_axes("per_token", per_token, "BT")
    check_mask("mask", mask)
    check_same_shape("mask", mask, "per_token", per_token)
    _check_mode(mode)
    if not (denominator > 0 and math.isfinite(denominator)):
        raise ValueError(f"denominator must be a finite number above 0, got {denominator}")
    # where, not a product with the mask: inf * 0 is nan.
    row_sums = torch.where(mask, per_token, 0.0).sum(dim=1, dtype=torch.float64)
    if mode == "sequence_mean":
        row_sums = row_sums / mask.sum(dim=1).clamp(min=1)
    return (row_sums.sum() / denominator).to(per_token.dtype)


def _check_mode(mode: str) -> None:
    if mode not in get_args(AggregationMode):
        raise ValueError(f"mode must be one of {', '.join(get_args(AggregationMode))}; got {mode!r}")
