"""Single-sample estimators of KL(policy || reference), per token, from the log-probs of the sampled token alone.

All three measure the same quantity; they differ in bias, in variance and, used as a loss, in the gradient they follow.
With d = ref_logprobs - logprobs and tokens sampled from the policy (the tests check the expectations by enumeration):

    k1 = -d             value unbiased, of high variance    gradient as a loss: 0 on average, nothing but noise
    k2 = d^2 / 2        value biased, of low variance       gradient as a loss: that of KL(policy || reference)
    k3 = e^d - 1 - d    value unbiased, of low variance     gradient as a loss: that of KL(reference || policy)

Source: J. Schulman, "Approximating KL Divergence" (2020), http://joschu.net/blog/kl-approx.html.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_float, check_same_shape

_SERIES_BELOW = 0.05


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


def _reference_log_ratio(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """log reference - log policy."""
    check_float("logprobs", logprobs)
    check_float("ref_logprobs", ref_logprobs)
    check_same_shape("ref_logprobs", ref_logprobs, "logprobs", logprobs)
    return ref_logprobs.detach() - logprobs
