"""How much better than the rest of its group a completion is: the baseline that needs no critic.

All functions here take the rewards ``[P, G]`` of one iteration, one row per prompt, and return advantages of the same
shape and dtype. They agree on four things:

* nan = unscored: such a completion is in no statistic and has advantage 0.
* Exactly 0 in a group whose scored rewards are all equal, or of which fewer than two are scored, in float32 too.
* Sums are taken in float64, and no gradient passes: an advantage is a constant of the loss.
* An infinite reward, or one beyond 1e30 in size, is an error that names its place.

Statistics over the whole iteration are in :mod:`~oncurve.functional.batch_advantages`, step rewards in
:mod:`~oncurve.functional.process`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oncurve.functional._checks import check_ids, check_same_shape
from oncurve.functional._moments import (
    all_equal,
    check_ddof_and_eps,
    check_scores,
    deviations,
    divided,
    first,
    normalised,
    scored_mean,
)


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
    check_scores("rewards", rewards, "PG")
    check_ddof_and_eps(ddof, eps)
    return normalised(rewards, ddof, eps).to(rewards.dtype)


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
    check_scores("rewards", rewards, "PG")
    return _centred(rewards).to(rewards.dtype)


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
    check_scores("rewards", rewards, "PG")
    return all_equal(rewards).squeeze(1)


def leave_one_out(rewards: Tensor) -> Tensor:
    """Rewards minus the mean of the other completions of their group.

        A[p, g] = r[p, g] - mean_{h != g} r[p, h] = n / (n - 1) (r[p, g] - mean(r[p])),   n scored in the group

    The baseline does not know the completion it is held against, so the policy gradient is unbiased; with
    :func:`group_centred` it is the same gradient times (n - 1) / n.

    Args:
        rewards: ``[P, G]`` float32 or float64; nan = unscored.

    Returns:
        ``[P, G]`` of the same dtype, in units of reward.

    Raises:
        ValueError: an infinite reward or a wrong shape.

    Source: RLOO (arXiv 2402.14740), after Kool et al. (2019). Deviation: n counts the scored completions only.

    >>> leave_one_out(torch.tensor([[1.0, 0.5, 0.0], [1.0, 0.0, float("nan")]]))
    tensor([[ 0.7500,  0.0000, -0.7500],
            [ 1.0000, -1.0000,  0.0000]])
    """
    check_scores("rewards", rewards, "PG")
    n = (~rewards.isnan()).sum(dim=1, keepdim=True).clamp(min=2)
    return (_centred(rewards) * (n / (n - 1).double())).to(rewards.dtype)


def success_scaled(rewards: Tensor) -> Tensor:
    """Rewards relative to the mean of their group: the rarer a success, the more it counts.

        A[p, g] = (r[p, g] - mean(r[p])) / mean(r[p]),   0 if the mean is 0

    With rewards of 0 and 1 this climbs the logarithm of the pass rate, where :func:`group_centred` climbs the rate
    itself. A single success in a group of G has the advantage G - 1, a failure never less than -1.

    Args:
        rewards: ``[P, G]`` float32 or float64, each at least 0; nan = unscored.

    Returns:
        ``[P, G]`` of the same dtype, without unit.

    Raises:
        ValueError: a negative or infinite reward, or a wrong shape.

    Source: MaxRL (arXiv 2602.02710). Deviation: the paper has rewards of 0 and 1; any that are not negative are taken.

    >>> success_scaled(torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]]))
    tensor([[ 3., -1., -1., -1.],
            [ 1.,  1., -1., -1.]])
    """
    check_scores("rewards", rewards, "PG")
    negative = rewards < 0
    if bool(negative.any()):
        prompt, sample = first(negative)
        value = float(rewards[prompt, sample])
        raise ValueError(f"rewards[{prompt}, {sample}] is {value}; to divide by their mean, all must be at least 0")
    informative = ~rewards.isnan() & ~all_equal(rewards)
    return divided(deviations(rewards)[0], scored_mean(rewards), informative).to(rewards.dtype)


def length_weighted(rewards: Tensor, lengths: Tensor) -> Tensor:
    """Rewards minus the mean of their group in which every token, not every completion, has one vote.

        A[p, g] = r[p, g] - sum_h l[p, h] r[p, h] / sum_h l[p, h]      over the scored completions h

    The baseline of least variance if the gradient of a completion is as long, squared, as the completion has tokens.

    Args:
        rewards: ``[P, G]`` float32 or float64; nan = unscored.
        lengths: ``[P, G]`` int64, in tokens, at least 0.

    Returns:
        ``[P, G]`` of the same dtype, in units of reward. Their sum over a group is not 0; the length-weighted sum is.
        Exactly 0 as well in a group whose scored completions are all empty: no token is there to be trained.

    Raises:
        ValueError: an infinite reward, a negative length, or a wrong shape.

    Source: OPO (arXiv 2505.23585). Deviation: none.

    >>> length_weighted(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), torch.tensor([[10, 40, 20, 30]]))
    tensor([[ 0.6000, -0.4000, -0.4000,  0.6000]])
    """
    check_scores("rewards", rewards, "PG")
    check_ids("lengths", lengths)
    check_same_shape("lengths", lengths, "rewards", rewards)
    negative = lengths < 0
    if bool(negative.any()):
        prompt, sample = first(negative)
        raise ValueError(f"lengths[{prompt}, {sample}] is {int(lengths[prompt, sample])}; a length is at least 0")
    deviation, scored = deviations(rewards)
    weights = torch.where(scored, lengths, 0).double()
    tokens = weights.sum(dim=1, keepdim=True)
    # Weighted deviations from the plain mean: the baseline without the digits that a large common reward would cost.
    baseline = (weights * deviation).sum(dim=1, keepdim=True) / tokens.clamp(min=1)
    informative = scored & ~all_equal(rewards) & (tokens > 0)
    return torch.where(informative, deviation - baseline, 0.0).to(rewards.dtype)


def signal_scaled(rewards: Tensor) -> Tensor:
    """Centred rewards, scaled up for the groups that are silent.

        A[p, g] = P / (P - M) (r[p, g] - mean(r[p])),   M groups of zero variance among the P

    Averaged over all P groups, the update is then the mean over the groups that say something.

    Args:
        rewards: ``[P, G]`` float32 or float64, all groups of the iteration, because P and M are counted here; nan =
            unscored.

    Returns:
        ``[P, G]`` of the same dtype, in units of reward; zeros if every group is silent.

    Raises:
        ValueError: an infinite reward or a wrong shape.

    Source: GPG (arXiv 2504.02546), with its normaliser F = 1. Deviations: M counts groups (:func:`zero_variance`),
    which with groups of one size is the paper's count of samples without gradient; verl divides by the number of
    scores that are not 0, which is something else.

    >>> signal_scaled(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    tensor([[ 2., -2.],
            [ 0.,  0.],
            [ 0.,  0.],
            [ 0.,  0.]])
    """
    check_scores("rewards", rewards, "PG")
    signals = int((~all_equal(rewards)).sum())
    return (_centred(rewards) * (rewards.shape[0] / max(signals, 1))).to(rewards.dtype)


def _centred(rewards: Tensor) -> Tensor:
    """float64 ``[P, G]``: r - mean, exactly 0 in a group that teaches nothing."""
    deviation, scored = deviations(rewards)
    return torch.where(scored & ~all_equal(rewards), deviation, 0.0)
