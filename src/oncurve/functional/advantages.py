"""How much better than the rest of its group a completion is: the baseline that needs no critic."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_float


def group_normalised(rewards: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Rewards in standard deviations from the mean of their group.

        A[p, g] = (r[p, g] - mean(r[p])) / (std(r[p]) + eps)

    Args:
        rewards: ``[P, G]`` float32 or float64, one row per prompt. nan = unscored: left out of the mean and the
            standard deviation, advantage 0. Infinities are an error.
        ddof: 1 divides the sum of squares by n - 1, 0 by n, with n the scored completions of the group.
        eps: at least 0, in units of reward; with a positive eps, doubling every reward does not quite leave the
            advantages alone (they are smaller by the factor std / (std + eps)).

    Returns:
        ``[P, G]`` of the same dtype, without unit; the same value holds for every token of the completion. Exactly 0
        in a group whose scored rewards are all equal, or in which fewer than two are scored.

    Raises:
        ValueError: an infinite reward, a wrong shape, a ddof other than 0 or 1, a negative eps.

    Source: DeepSeekMath (arXiv 2402.03300) section 4.1.2. The paper gives neither ddof nor eps; the defaults are those
    of TRL. Deviations: zero variance is found by max == min and not left to eps (in float32 the rounding noise of
    twelve rewards of 2.3 becomes an advantage of 0.95 at eps = 1e-9); sums are taken in float64.

    >>> group_normalised(torch.tensor([[1.0, 0.9, 0.0, 1.0], [0.1, 0.1, 0.1, 0.1]]))
    tensor([[ 0.5662,  0.3603, -1.4926,  0.5662],
            [ 0.0000,  0.0000,  0.0000,  0.0000]])
    """
    _check_rewards(rewards)
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, got {ddof}")
    if not (eps >= 0 and math.isfinite(eps)):
        raise ValueError(f"eps must be a finite number of at least 0, got {eps}")
    deviation, scored = _deviation(rewards)
    informative = ~zero_variance(rewards).unsqueeze(1)
    degrees = (scored.sum(dim=1, keepdim=True) - ddof).clamp(min=1)
    std = (deviation.square().sum(dim=1, keepdim=True) / degrees).sqrt()
    advantages = deviation / torch.where(informative, std + eps, 1.0)
    return torch.where(informative & scored, advantages, 0.0).to(rewards.dtype)


def group_centred(rewards: Tensor) -> Tensor:
    """Rewards minus the mean of their group.

        A[p, g] = r[p, g] - mean(r[p])

    Args:
        rewards: ``[P, G]`` float32 or float64; nan = unscored, as in :func:`group_normalised`.

    Returns:
        ``[P, G]`` of the same dtype, in units of reward; exact zeros as in :func:`group_normalised`.

    Raises:
        ValueError: an infinite reward or a wrong shape.

    Source: Dr. GRPO (arXiv 2503.20783): no division by the standard deviation, so that very easy and very
    hard prompts weigh no more than others.

    >>> group_centred(torch.tensor([[1.0, 0.0], [1.0, float("nan")]]))
    tensor([[ 0.5000, -0.5000],
            [ 0.0000,  0.0000]])
    """
    _check_rewards(rewards)
    deviation, scored = _deviation(rewards)
    informative = ~zero_variance(rewards).unsqueeze(1)
    return torch.where(informative & scored, deviation, 0.0).to(rewards.dtype)


def zero_variance(rewards: Tensor) -> Tensor:
    """Groups that teach nothing, because nothing in them is better than anything else.

        out[p] = max(r[p]) == min(r[p]) over the scored completions, or fewer than two are scored

    The share of such groups is the metric ``frac_reward_zero_std``.

    Args:
        rewards: ``[P, G]`` float32 or float64; nan = unscored.

    Returns:
        bool ``[P]``.

    Raises:
        ValueError: an infinite reward or a wrong shape.

    Source: DAPO (arXiv 2503.14476) section 3.2 calls them prompts with zero gradient. Deviation: compared exactly, not
    through a standard deviation that rounding keeps above zero.

    >>> zero_variance(torch.tensor([[2.3, 2.3, 2.3], [0.0, 1.0, 0.0], [1.0, float("nan"), float("nan")]]))
    tensor([ True, False,  True])
    """
    _check_rewards(rewards)
    unscored = rewards.isnan()
    highest = rewards.masked_fill(unscored, -math.inf).amax(dim=1)
    lowest = rewards.masked_fill(unscored, math.inf).amin(dim=1)
    # With nothing scored highest is -inf and lowest inf; with one scored they are equal.
    return highest <= lowest


def _deviation(rewards: Tensor) -> tuple[Tensor, Tensor]:
    """``(r - mean of the scored, float64, 0 where unscored; scored, bool)``, both ``[P, G]``."""
    scored = ~rewards.isnan()
    values = torch.where(scored, rewards, 0.0).double()
    mean = values.sum(dim=1, keepdim=True) / scored.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.where(scored, values - mean, 0.0), scored


def _check_rewards(rewards: Tensor) -> None:
    check_float("rewards", rewards)
    check_axes("rewards", rewards, "PG")
    if rewards.shape[1] == 0:
        raise ValueError(f"rewards must have shape [P, G] with at least one completion, got {list(rewards.shape)}")
    infinite = rewards.isinf()
    if bool(infinite.any()):
        prompt, sample = (int(i) for i in infinite.nonzero()[0])
        raise ValueError(f"rewards[{prompt}, {sample}] is {float(rewards[prompt, sample])}; use nan for unscored")
