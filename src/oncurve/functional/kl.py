"""Single-sample estimators of KL(policy || reference), per token, from the log-probs of the sampled token alone.

All measure the same quantity; they differ in bias, in variance and, used as a loss, in the gradient they follow. With
d = ref_logprobs - logprobs and tokens sampled from the policy (the tests check the expectations by enumeration):

    k1 = -d                    value unbiased, of high variance    gradient as a loss: 0 on average, nothing but noise
    k2 = d^2 / 2               value biased, of low variance       gradient as a loss: that of KL(policy || reference)
    k3 = e^d - 1 - d           value unbiased, of low variance     gradient as a loss: that of KL(reference || policy)
    k3_ratio = ratio * k3      value unbiased, of low variance     gradient as a loss: that of KL(policy || reference)

From the second update on a batch the tokens are those of the old policy. Then only k3_ratio, which carries the ratio
policy / old policy along, is still right in value and in gradient. The derivatives in logprobs show why: 1 for k1, -d
for k2, 1 - e^d for k3 and -ratio * d for k3_ratio, while KL(policy || reference) wants -d on the policy's own samples.

k1 has its place in the reward: taken off as a constant, it weights each token's gradient by -d. k3 in the reward
follows neither KL.

Source: J. Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html; for the gradients
arXiv 2510.01555.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_float, check_same_shape
from oncurve.functional.ratios import token_ratio

_SERIES_BELOW = 0.05
_EXPANDED_ABOVE = 3.0


def k1(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The log-ratio itself.

        k1 = log policy - log reference

    Its mean over samples is the KL, a single value may be negative. For measuring, or inside a reward; not as a loss.

    Args:
        logprobs: float32 or float64, any shape (``[B, T]``), in nats.
        ref_logprobs: the same shape; no gradient passes to it.

    Returns:
        The same shape, in nats per token.

    Source: Schulman (2020), k1; the KL of PPO-RLHF rewards (arXiv 2203.02155 eq. 2).

    >>> k1(torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.4]).log())
    tensor([ 0.6931, -0.6931])
    """
    return -_reference_log_ratio(logprobs, ref_logprobs)


def k2(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Half the squared log-ratio.

        k2 = (log policy - log reference)^2 / 2

    Args:
        logprobs: float32 or float64, any shape (``[B, T]``), in nats.
        ref_logprobs: the same shape; no gradient passes to it.

    Returns:
        The same shape, in nats per token, never negative. The gradient is 0 where the value is not finite, so that junk
        in padding, which a mask drops from the loss, cannot come back as 0 * inf.

    Source: Schulman (2020), k2. As a loss on the policy's own samples it follows the gradient of KL(policy ||
    reference) (arXiv 2510.01555).

    >>> k2(torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.4]).log())
    tensor([0.2402, 0.2402])
    """
    d = _reference_log_ratio(logprobs, ref_logprobs)
    d = torch.where(d.isfinite(), d, d.detach())
    return 0.5 * d.square()


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """The estimator in the loss of the GRPO paper.

        k3 = reference / policy - log(reference / policy) - 1 = e^d - 1 - d,   d = log reference - log policy

    Args:
        logprobs: float32 or float64, any shape (``[B, T]``), in nats.
        ref_logprobs: the same shape; no gradient passes to it.

    Returns:
        The same shape, in nats per token, never negative. The gradient is 0 where e^d is not finite, as in :func:`k2`.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 4; Schulman (2020), k3. The ratio is reference over policy: the reversed
    form is also non-negative and zero at equality, and only its values tell (1/e or e - 2 at a log-ratio of 1).
    Deviation: e^d - 1 - d as written loses every digit near 0 (7e-8 for 5e-13 in float32), so expm1 is used, and under
    ``abs(d) < 0.05``, where even that cancels, the series d^2/2 + d^3/6 + ... Nothing is clamped.

    >>> k3(torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.4]).log())
    tensor([0.1931, 0.3069])
    """
    d = _reference_log_ratio(logprobs, ref_logprobs)
    # torch.where passes 0 to the side not taken, and 0 * inf is nan: each side must be finite where it is not taken.
    overflows = ~(d < math.log(torch.finfo(d.dtype).max))
    d = torch.where(overflows, d.detach(), d)
    small = d.abs() < _SERIES_BELOW
    near = torch.where(small, d, 0.0)
    series = near.square() / 2 * (1 + near / 3 * (1 + near / 4 * (1 + near / 5 * (1 + near / 6 * (1 + near / 7)))))
    far = torch.where(small, 0.0, d)
    return torch.where(small, series, far.expm1() - far)


def k3_ratio(logprobs: Tensor, ref_logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """k3 weighted by the ratio of the policy to the policy that sampled, both differentiated.

        k3_ratio = ratio * (e^d - 1 - d),   ratio = policy / old policy,   d = log reference - log policy

    The gradient in logprobs is -ratio * d: bounded where the policy has all but given up a token that the reference
    likes, which k3 alone pulls back with a weight of e^d.

    Args:
        logprobs: float32 or float64, any shape (``[B, T]``), in nats.
        ref_logprobs: the same shape; no gradient passes to it.
        old_logprobs: the same shape; no gradient passes to it. ``logprobs.detach()`` in the first update.

    Returns:
        The same shape, in nats per token, never negative. In the first update the value is that of :func:`k3`. The
        gradient is 0 where the value is not finite, as in :func:`k2`.

    Raises:
        TypeError: log-probs of half precision. ValueError: different shapes.

    Source: DeepSeek-V3.2 (arXiv 2512.02556) eq. 7; TRL's default form (``use_bias_correction_kl``). Deviation: where
    e^d is large and the ratio small it is computed as reference / old - ratio * (1 + d), the same number without
    0 * inf; the gradient is written out, and cannot be differentiated again.

    >>> logprobs, reference = torch.tensor([0.5, 0.2]).log(), torch.tensor([0.25, 0.4]).log()
    >>> k3_ratio(logprobs, reference, torch.tensor([0.25, 0.4]).log())
    tensor([0.3863, 0.1534])
    """
    now = logprobs.detach()
    d = _reference_log_ratio(now, ref_logprobs)
    ratio = token_ratio(now, old_logprobs)
    # A policy that gives a token no chance at all has a ratio of 0 and d = inf; ratio * d goes to 0.
    # Nor is there any KL where the reference agrees, however large the ratio.
    ratio_times_d = torch.where((ratio == 0) | (d == 0), 0.0, ratio * d)
    expanded = (ref_logprobs.detach() - old_logprobs.detach()).exp() - ratio - ratio_times_d
    divergence = k3(now, ref_logprobs)
    weighted = torch.where(divergence == 0, 0.0, ratio * divergence)
    value = torch.where((d > _EXPANDED_ABOVE) & (ratio < 1), expanded, weighted)
    slope = torch.where(value.isfinite() & ratio_times_d.isfinite(), -ratio_times_d, 0.0)
    # 0 in value, with the gradient of logprobs.
    step = torch.where(now.isfinite(), logprobs - now, 0.0)
    return value + slope * step


def adaptive_kl_coef(kl_coef: float, kl: float, *, target: float, horizon: float, n: int) -> float:
    """The coefficient for the next iteration, moved towards the one that keeps the KL at its target.

        error   = clip(kl / target - 1, -0.2, 0.2)
        kl_coef * (1 + error * n / horizon)

    Args:
        kl_coef: the coefficient used so far, at least 0.
        kl: measured in this iteration, in the unit of target: nats per token or per completion, as one likes.
        target: above 0.
        horizon: above 0, in completions: after so many at the largest error the coefficient has changed by a fifth.
        n: completions since the last call, from 0 to horizon.

    Returns:
        At least 0.8 and at most 1.2 times kl_coef. A coefficient of 0 stays 0.

    Raises:
        ValueError: a number that is not finite or out of its range.

    Source: Ziegler et al., "Fine-tuning language models from human preferences" (arXiv 1909.08593) section 2.2, whose
    constant 0.1 is n / horizon here, as in its code. Deviation: n above horizon is refused; above 5 horizons a single
    call could turn the sign.

    >>> adaptive_kl_coef(0.1, 9.0, target=6.0, horizon=10_000, n=512)
    0.101024
    """
    for name, value, least in (("kl_coef", kl_coef, 0), ("kl", kl, -math.inf), ("n", n, 0)):
        if not (value >= least and math.isfinite(value)):
            wanted = "finite" if least else "a finite number of at least 0"
            raise ValueError(f"{name} must be {wanted}, got {value}")
    for name, value in (("target", target), ("horizon", horizon)):
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number above 0, got {value}")
    if n > horizon:
        raise ValueError(f"n must be at most the horizon of {horizon} completions, got {n}")
    error = min(max(kl / target - 1, -0.2), 0.2)
    return kl_coef * (1 + error * n / horizon)


def _reference_log_ratio(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log reference - log policy."""
    check_float("logprobs", logprobs)
    check_float("ref_logprobs", ref_logprobs)
    check_same_shape("ref_logprobs", ref_logprobs, "logprobs", logprobs)
    return ref_logprobs.detach() - logprobs
