"""Means and spreads over the scored entries of the last dimension, shared by the advantages.

An entry is scored unless it is nan. Everything is float64 and detached: an advantage is a constant of the loss.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_float

LARGEST = 1e30
"""Squares and sums of rewards up to this size stay finite in float64, and differences of them in float32."""


def check_scores(name: str, scores: Tensor, axes: str) -> None:
    """Require floats of shape ``axes`` with at least one completion per prompt, nan or of at most ``LARGEST``."""
    check_float(name, scores)
    check_axes(name, scores, axes)
    if scores.shape[1] == 0:
        shape = ", ".join(axes)
        raise ValueError(f"{name} must have shape [{shape}] with at least one completion, got {list(scores.shape)}")
    too_large = scores.abs() > LARGEST
    if bool(too_large.any()):
        where = first(too_large)
        value = float(scores[where])
        remedy = "use nan for unscored" if math.isinf(value) else f"a reward may be at most {LARGEST:g} in size"
        raise ValueError(f"{name}[{', '.join(map(str, where))}] is {value}; {remedy}")


def check_ddof_and_eps(ddof: int, eps: float) -> None:
    """Require ddof 0 or 1 and a finite eps of at least 0."""
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    if not (eps >= 0 and math.isfinite(eps)):
        raise ValueError(f"eps must be a finite number of at least 0, got {eps}")


def first(flags: Tensor) -> tuple[int, ...]:
    """The index of the first True."""
    return tuple(int(i) for i in flags.nonzero()[0])


def scored_mean(scores: Tensor) -> Tensor:
    """``[..., 1]``; 0 where nothing is scored."""
    scored = ~scores.isnan()
    values = torch.where(scored, scores.detach(), 0.0).double()
    return values.sum(dim=-1, keepdim=True) / scored.sum(dim=-1, keepdim=True).clamp(min=1)


def deviations(scores: Tensor) -> tuple[Tensor, Tensor]:
    """``(scores - their mean, 0 where unscored; scored, bool)``."""
    scored = ~scores.isnan()
    return torch.where(scored, scores.detach().double() - scored_mean(scores), 0.0), scored


def standard_deviation(deviation: Tensor, scored: Tensor, ddof: int) -> Tensor:
    """``[..., 1]``, from deviations that are 0 where unscored."""
    degrees = (scored.sum(dim=-1, keepdim=True) - ddof).clamp(min=1)
    return (deviation.square().sum(dim=-1, keepdim=True) / degrees).sqrt()


def all_equal(scores: Tensor) -> Tensor:
    """bool ``[..., 1]``: the scored entries are all the same, or fewer than two are scored.

    Compared exactly: a standard deviation of rounding noise is not zero.
    """
    if scores.shape[-1] == 0:
        return torch.ones(*scores.shape[:-1], 1, dtype=torch.bool, device=scores.device)
    unscored = scores.isnan()
    highest = scores.masked_fill(unscored, -math.inf).amax(dim=-1, keepdim=True)
    lowest = scores.masked_fill(unscored, math.inf).amin(dim=-1, keepdim=True)
    # With nothing scored highest is -inf and lowest inf; with one scored they are equal.
    return highest <= lowest


def divided(numerator: Tensor, denominator: Tensor, where: Tensor) -> Tensor:
    """numerator / denominator, exactly 0 where ``where`` is False.

    A denominator of 0 counts as 1: with eps = 0, differences under 1e-154 have a standard deviation that is 0 in
    float64, and they shall not become infinite.
    """
    return torch.where(where, numerator / torch.where(denominator > 0, denominator, 1.0), 0.0)


def normalised(scores: Tensor, ddof: int, eps: float) -> Tensor:
    """(scores - mean) / (std + eps), exactly 0 where unscored or all equal."""
    deviation, scored = deviations(scores)
    std = standard_deviation(deviation, scored, ddof)
    return divided(deviation, std + eps, scored & ~all_equal(scores))
