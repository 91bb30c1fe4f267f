"""The policy-gradient losses, per token. A loss is minimised: the minus sign of the objective stands here, once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_float, check_same_shape


def token_ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """How much likelier the policy makes each token than the policy that sampled it did.

        ratio[b, t] = policy(o_t | q, o_<t) / old_policy(o_t | q, o_<t) = exp(logprobs - old_logprobs)

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats, of logits / temperature.
        old_logprobs: the same shape, scored the same way before the first update on this batch. No gradient passes to
            it, so ``token_ratio(logprobs, logprobs)`` is exactly 1 and has the gradient of ``logprobs``.

    Returns:
        The same shape, without unit. The gradient is 0 where the ratio is not finite, so that junk in padding, which a
        mask drops from the loss, cannot come back as 0 * inf. Among trained tokens the value itself stays visible.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 3, PPO (arXiv 1707.06347) eq. 6. Deviation: none; the log-ratio is not
    clamped.

    >>> token_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -1.5]]))
    tensor([[1.0000, 0.6065]])
    """
    check_float("logprobs", logprobs)
    check_float("old_logprobs", old_logprobs)
    check_same_shape("old_logprobs", old_logprobs, "logprobs", logprobs)
    log_ratio = logprobs - old_logprobs.detach()
    finite = log_ratio < math.log(torch.finfo(log_ratio.dtype).max)  # False for nan as well
    return torch.where(finite, log_ratio, log_ratio.detach()).exp()


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """The clipped policy loss of PPO, as GRPO uses it.

        loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)

    The gradient is that of -ratio * A, except 0 once the ratio has gone past the bound in the direction the advantage
    asks for (:func:`clip_flags`). The way back is never cut.

    Args:
        ratio: ``[B, T]`` float32 or float64, from :func:`token_ratio`.
        advantages: ``[B, T]``, or ``[B, 1]`` for one value per completion.
        clip_low: at least 0. A bound of 1 or more never binds, because a ratio is positive.
        clip_high: at least 0.

    Returns:
        ``[B, T]`` loss per token, without unit; :func:`~oncurve.functional.aggregate.aggregate` makes the scalar. On
        the first update the ratio is 1 and the loss is -A: a value near zero says nothing about the gradient. Where an
        advantage is not finite the loss is nan and its gradient 0.

    Source: PPO (arXiv 1707.06347) eq. 7; DeepSeekMath (arXiv 2402.03300) eq. 3 with clip_low = clip_high; DAPO
    (arXiv 2503.14476) eq. 10 with two bounds. Deviation: none (no dual clip).

    >>> ratio = torch.tensor([[0.5, 1.0, 1.5], [0.5, 1.0, 1.5]])
    >>> clipped_surrogate(ratio, torch.tensor([[1.0], [-1.0]]), clip_low=0.2, clip_high=0.2)
    tensor([[-0.5000, -1.0000, -1.2000],
            [ 0.8000,  1.0000,  1.5000]])
    """
    _check_clip(ratio, advantages, clip_low, clip_high)
    # A junk advantage in padding would turn the zero gradient that arrives there into nan: use 0 and put nan back.
    known = advantages.isfinite()
    gain = torch.where(known, advantages, 0.0)
    clipped = ratio.clamp(1 - clip_low, 1 + clip_high)
    return torch.where(known, -torch.minimum(ratio * gain, clipped * gain), math.nan)


def clip_flags(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """Where :func:`clipped_surrogate` has no gradient.

        low  = (A < 0) and (ratio < 1 - clip_low)
        high = (A > 0) and (ratio > 1 + clip_high)

    A ratio outside the bounds on the other side of its advantage is not clipped, so counting ratios alone overstates.

    Args:
        ratio: ``[B, T]``; all four arguments as in :func:`clipped_surrogate`.
        advantages: ``[B, T]`` or ``[B, 1]``.
        clip_low: at least 0.
        clip_high: at least 0.

    Returns:
        ``(low, high)``, bool ``[B, T]``. Their means over the trained tokens are the metrics ``clip_ratio/low_mean``
        and ``clip_ratio/high_mean``.

    Source: the cases of PPO (arXiv 1707.06347), figure 1.

    >>> low, high = clip_flags(torch.tensor([[0.5, 1.5]]), torch.tensor([[-1.0]]), clip_low=0.2, clip_high=0.2)
    >>> low, high
    (tensor([[ True, False]]), tensor([[False, False]]))
    """
    _check_clip(ratio, advantages, clip_low, clip_high)
    return (advantages < 0) & (ratio < 1 - clip_low), (advantages > 0) & (ratio > 1 + clip_high)


def _check_clip(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> None:
    check_float("ratio", ratio)
    check_float("advantages", advantages)
    per_row = ratio.dim() == 2 and advantages.shape == (ratio.shape[0], 1)
    if not per_row and advantages.shape != ratio.shape:
        raise ValueError(
            f"advantages must have the shape [B, T] of ratio {list(ratio.shape)}, or [B, 1]; "
            f"got {list(advantages.shape)}"
        )
    for name, bound in (("clip_low", clip_low), ("clip_high", clip_high)):
        if not bound >= 0:
            raise ValueError(f"{name} must be at least 0, got {bound}")
