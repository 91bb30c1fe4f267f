"""Advantages that look at all completions of the iteration, not only at those of one prompt.

"Divided by the batch's standard deviation" is said of three different things. Here each has its own name:
:func:`centred_over_reward_std` divides by the spread of the rewards as they are, so that prompts of unequal difficulty
make it large; :func:`centred_over_centred_std` by the spread that is left when each group's mean is gone;
:func:`batch_normalised` takes the mean from the whole batch too. (The fourth, the spread over tokens, where a long
completion has more votes, is ``masked_whiten``.)

The rewards must be those of the whole iteration: given in parts, the same rewards get other advantages. nan, equal
rewards, dtype and gradient are as in :mod:`~oncurve.functional.advantages`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oncurve.functional._checks import check_float
from oncurve.functional._moments import (
    all_equal,
    check_ddof_and_eps,
    check_scores,
    deviations,
    divided,
    first,
    normalised,
    standard_deviation,
)

_CANCELLED = 1e-12


def centred_over_reward_std(rewards: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Rewards minus the mean of their group, in standard deviations of all rewards of the iteration.

        A[p, g] = (r[p, g] - mean(r[p])) / (std(r) + eps),   std over all P*G scored rewards

    Args:
        rewards: ``[P, G]`` float32 or float64, all groups of the iteration; nan = unscored.
        ddof: 1 divides the sum of squares by n - 1, 0 by n, with n all scored completions.
        eps: at least 0, in units of reward.

    Returns:
        ``[P, G]`` of the same dtype, without unit. Exactly 0 in a group whose scored rewards are all equal or of which
        fewer than two are scored; such a group's scored rewards still count in the standard deviation.

    Raises:
        ValueError: an infinite reward, a wrong shape, a ddof other than 0 or 1, a negative eps.

    Source: Lite PPO (arXiv 2508.08221), group mean with batch standard deviation; TRL's ``scale_rewards="batch"``,
    whose ddof and eps are the defaults.

    >>> centred_over_reward_std(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[ 0.9998, -0.9998],
            [ 0.0000,  0.0000]])
    """
    check_scores("rewards", rewards, "PG")
    check_ddof_and_eps(ddof, eps)
    deviation, scored = deviations(rewards)
    std = standard_deviation(*deviations(rewards.reshape(1, -1)), ddof)
    return divided(deviation, std + eps, scored & ~all_equal(rewards)).to(rewards.dtype)


def centred_over_centred_std(rewards: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Rewards minus the mean of their group, in standard deviations of just these differences.

        c[p, g] = r[p, g] - mean(r[p])              A[p, g] = c[p, g] / (std(c) + eps)

    How much better one prompt goes than another is not in the standard deviation, unlike in
    :func:`centred_over_reward_std`. The mean of c is 0, so nothing is subtracted.

    Args:
        rewards: ``[P, G]`` float32 or float64, all groups of the iteration; nan = unscored.
        ddof: 1 divides the sum of squares by n - 1, 0 by n, with n all scored completions.
        eps: at least 0, in units of reward.

    Returns:
        ``[P, G]`` of the same dtype, without unit. Exactly 0 in a group whose scored rewards are all equal or of which
        fewer than two are scored; the zeros of such a group count in the standard deviation.

    Raises:
        ValueError: an infinite reward, a wrong shape, a ddof other than 0 or 1, a negative eps.

    Source: the variant with a group baseline of REINFORCE++ (arXiv 2501.03262). The paper gives neither ddof nor eps.
    Deviation: the spread is over completions; verl's whitening is over tokens.

    >>> centred_over_centred_std(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[ 1.2244, -1.2244],
            [ 0.0000,  0.0000]])
    """
    check_scores("rewards", rewards, "PG")
    check_ddof_and_eps(ddof, eps)
    deviation, scored = deviations(rewards)
    informative = scored & ~all_equal(rewards)
    centred = torch.where(informative, deviation, 0.0)
    std = standard_deviation(centred.reshape(1, -1), scored.reshape(1, -1), ddof)
    return divided(centred, std + eps, informative).to(rewards.dtype)


def batch_normalised(rewards: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Rewards in standard deviations from the mean of the iteration, whatever their group.

        A[p, g] = (r[p, g] - mean(r)) / (std(r) + eps),   both over all P*G scored rewards

    It needs no group: G may be 1. With groups, a prompt that is always solved is pushed up for ever.

    Args:
        rewards: ``[P, G]`` float32 or float64, all of the iteration; nan = unscored.
        ddof: 1 divides the sum of squares by n - 1, 0 by n, with n all scored completions.
        eps: at least 0, in units of reward.

    Returns:
        ``[P, G]`` of the same dtype, without unit. Exactly 0 only if the scored rewards of the whole iteration are
        equal or fewer than two; a group of equal rewards among others has an advantage.

    Raises:
        ValueError: an infinite reward, a wrong shape, a ddof other than 0 or 1, a negative eps.

    Source: REINFORCE++ (arXiv 2501.03262), global advantage normalisation, for one reward per completion (its reward
    also holds the KL penalty). The paper gives neither ddof nor eps.

    >>> batch_normalised(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    tensor([[ 0.4999, -1.4997],
            [ 0.4999,  0.4999]])
    """
    check_scores("rewards", rewards, "PG")
    check_ddof_and_eps(ddof, eps)
    return normalised(rewards.reshape(1, -1), ddof, eps).reshape(rewards.shape).to(rewards.dtype)


def per_reward_normalised(parts: Tensor, weights: Tensor, *, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Each reward function graded on its own curve, then summed.

        a[p, g, k] = (x[p, g, k] - mean(x[p, :, k])) / (std(x[p, :, k]) + eps)
        s[p, g]    = sum_k w[k] a[p, g, k]
        A[p, g]    = s[p, g] / (std(s) + eps),   std over all completions of the iteration that any function scored

    Summed first and normalised then, a correct answer in a bad format and a wrong one in a good format may be the same
    number; here they stay apart. The mean of s over the iteration is 0, so nothing is subtracted.

    Args:
        parts: ``[P, G, K]`` float32 or float64, the raw reward of each function; nan = unscored by that function,
            which leaves that function's statistics and adds 0 to s.
        weights: ``[K]`` float32 or float64, finite. They weigh standard deviations, not rewards.
        ddof: 1 divides sums of squares by n - 1, 0 by n, in both places.
        eps: at least 0, in both places.

    Returns:
        ``[P, G]`` of the dtype of ``parts``, without unit. Exactly 0 for a completion that no function scored, and
        where every function's group is of zero variance or the terms of s cancel.

    Raises:
        ValueError: an infinite reward or weight, a wrong shape, a ddof other than 0 or 1, a negative eps.

    Source: GDPO (arXiv 2601.05242). The paper gives neither ddof nor eps; the defaults are those of TRL. Deviation: a
    sum that cancels to its rounding noise counts as 0, so that a small eps cannot blow it up.

    >>> parts = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]]])
    >>> per_reward_normalised(parts, torch.tensor([1.0, 1.0]))
    tensor([[-0.6894, -0.3981, -0.3981,  1.4856]])
    """
    check_scores("parts", parts, "PGK")
    check_float("weights", weights)
    if weights.shape != parts.shape[2:] or weights.numel() == 0:
        shapes = f"got {list(weights.shape)} for parts {list(parts.shape)}"
        raise ValueError(f"weights must have shape [K], one weight for each of at least one reward; {shapes}")
    infinite = ~weights.isfinite()
    if bool(infinite.any()):
        (reward,) = first(infinite)
        raise ValueError(f"weights[{reward}] is {float(weights[reward])}; a weight must be finite")
    check_ddof_and_eps(ddof, eps)
    terms = normalised(parts.transpose(1, 2), ddof, eps).transpose(1, 2) * weights.detach().double()
    total = terms.sum(dim=2)
    total = torch.where(total.abs() > _CANCELLED * terms.abs().sum(dim=2), total, 0.0)
    scored = ~parts.isnan().all(dim=2)
    std = standard_deviation(total.reshape(1, -1), scored.reshape(1, -1), ddof)
    return divided(total, std + eps, scored).to(parts.dtype)
