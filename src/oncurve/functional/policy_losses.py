"""The policy-gradient losses, per token. A loss is minimised: the minus sign of the objective stands here, once.

A surrogate takes a ratio of :mod:`~oncurve.functional.ratios` and an advantage. In the first update on a batch the
ratio is 1, and each has the gradient of :func:`reinforce`. Later, for a token with ratio r and advantage A:

    surrogate            gradient in its log-prob, as a multiple of -A
    reinforce            1
    clipped_surrogate    r, 0 past 1 + clip_high (A > 0) or under 1 - clip_low (A < 0)
    dual_clip            the same, and 0 past cap (A < 0)
    two_sided_clip       the same as dual_clip wherever cap >= 1 + clip_high
    cispo                min(r, cap), never 0
    sapo                 r * 4 p (1 - p),  p = sigmoid(tau (r - 1)): fades out on both sides
    gmpo                 one ratio per completion; 0 for the tokens past their own bound

A gradient is 0 where its ratio is not finite. An advantage of 0 gives a loss of 0 even where the ratio is infinite; an
advantage that is not finite gives a loss of nan and a gradient of 0. No gradient passes to an advantage.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_float, check_same_shape
from oncurve.functional._per_token import bounded_exp, check_per_token, difference, kept, product, row_mean


def clipped_surrogate(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """The clipped policy loss of PPO, as GRPO uses it.

        loss = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)

    The gradient is that of -ratio * A, except 0 once the ratio has gone past the bound in the direction the advantage
    asks for (:func:`clip_flags`). The way back is never cut.

    Args:
        ratio: ``[B, T]`` float32 or float64, from :mod:`~oncurve.functional.ratios`.
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
    gain = _gain(advantages)
    return _loss(_clipped(ratio, ratio, gain, clip_low, clip_high), advantages)


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


def dual_clip(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, cap: float) -> Tensor:
    """The clipped loss with a limit on what a single bad token can cost.

        objective = min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
        loss      = -objective                     A >= 0
                    -max(objective, cap * A)       A < 0

    :func:`clipped_surrogate` leaves a bad token unbounded whose ratio has grown; here the loss stops at cap * abs(A)
    and the gradient is 0 past it.

    Args:
        ratio: ``[B, T]`` float32 or float64, from :mod:`~oncurve.functional.ratios`.
        advantages: ``[B, T]``, or ``[B, 1]`` for one value per completion.
        clip_low: at least 0.
        clip_high: at least 0.
        cap: a ratio, above 1; published: 3.

    Returns:
        ``[B, T]`` loss per token, without unit, finite even where the ratio overflows.

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: a wrong shape, a bound out of its range.

    Source: dual-clip PPO (arXiv 1912.09729), where the cap is called c; always on in verl, with 3. Deviation: none.

    >>> dual_clip(torch.tensor([[0.5, 2.0, 4.0]]), torch.tensor([[-1.0]]), clip_low=0.2, clip_high=0.2, cap=3.0)
    tensor([[0.8000, 2.0000, 3.0000]])
    """
    _check_clip(ratio, advantages, clip_low, clip_high)
    if not cap > 1:
        raise ValueError(f"cap bounds the ratio itself and must be above 1, got {cap}")
    gain = _gain(advantages)
    objective = _clipped(ratio, ratio, gain, clip_low, clip_high)
    return _loss(torch.where(gain < 0, torch.maximum(objective, cap * gain), objective), advantages)


def two_sided_clip(ratio: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float, cap: float) -> Tensor:
    """The clipped loss with the ratio itself capped before the minimum is taken.

        loss = -min(min(ratio, cap) * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)

    Where A > 0 the clip binds first and nothing changes. So this is :func:`dual_clip` written in another way, for every
    cap it allows.

    Args:
        ratio: ``[B, T]`` float32 or float64, from :mod:`~oncurve.functional.ratios`.
        advantages: ``[B, T]``, or ``[B, 1]`` for one value per completion.
        clip_low: at least 0.
        clip_high: at least 0.
        cap: a ratio, above 1 + clip_high; published: 4.

    Returns:
        ``[B, T]`` loss per token, without unit, finite even where the ratio overflows.

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: a wrong shape, a bound out of its range.

    Source: INTELLECT-2 (arXiv 2505.07291), two-sided clipping, where the cap is called delta; TRL's ``delta``.
    Deviation: none.

    >>> two_sided_clip(torch.tensor([[0.5, 2.0, 9.0]]), torch.tensor([[-1.0]]), clip_low=0.2, clip_high=0.2, cap=4.0)
    tensor([[0.8000, 2.0000, 4.0000]])
    """
    _check_clip(ratio, advantages, clip_low, clip_high)
    if not cap > 1 + clip_high:
        raise ValueError(f"cap bounds the ratio itself and must be above 1 + clip_high = {1 + clip_high}, got {cap}")
    gain = _gain(advantages)
    return _loss(_clipped(ratio.clamp(max=cap), ratio, gain, clip_low, clip_high), advantages)


def cispo(ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, cap: float) -> Tensor:
    """REINFORCE with a capped importance weight: the weight is clipped, never the gradient.

        loss = -sg[min(ratio, cap)] * A * logprobs          sg: no gradient passes

    Args:
        ratio: ``[B, T]`` float32 or float64, from :mod:`~oncurve.functional.ratios`; no gradient passes to it.
        advantages: ``[B, T]``, or ``[B, 1]`` for one value per completion.
        logprobs: ``[B, T]``, in nats.
        cap: the largest weight, at least 1: 1 + epsilon where a paper says epsilon. ScaleRL: 5, no better or worse from
            4 to 8. inf: no cap.

    Returns:
        ``[B, T]`` loss per token. Its value depends on the log-probs and is of no use as a measure of anything.

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: a wrong shape, a cap under 1.

    Source: CISPO, MiniMax-M1 (arXiv 2506.13585) eq. 4 and 5; ScaleRL (arXiv 2510.13786) for min(ratio, cap).
    Deviation: no lower bound; MiniMax-M1 writes one and sets it out of reach.

    >>> cispo(torch.tensor([[0.5, 8.0]]), torch.tensor([[1.0]]), torch.tensor([[-1.0, -1.0]]), cap=5.0)
    tensor([[0.5000, 5.0000]])
    """
    check_float("ratio", ratio)
    check_float("logprobs", logprobs)
    check_same_shape("ratio", ratio, "logprobs", logprobs)
    check_per_token("advantages", advantages, "ratio", ratio)
    if not cap >= 1:
        raise ValueError(f"cap bounds the ratio itself (1 + epsilon, not epsilon) and must be at least 1, got {cap}")
    return weighted_nll(logprobs, product(ratio.detach().clamp(max=cap), advantages))


def sapo(ratio: Tensor, advantages: Tensor, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> Tensor:
    """A soft clip: the gradient fades as the ratio leaves 1, on both sides, and never jumps.

        loss = -4/tau sigmoid(tau (ratio - 1)) * A          tau = tau_positive where A > 0, else tau_negative

    Args:
        ratio: ``[B, T]`` float32 or float64, from :mod:`~oncurve.functional.ratios`.
        advantages: ``[B, T]``, or ``[B, 1]`` for one value per completion.
        tau_positive: above 0; how fast the gradient of a good token fades.
        tau_negative: above 0; the same for a bad one.

    Returns:
        ``[B, T]`` loss per token, without unit: -2A/tau at a ratio of 1, where its slope is -A, that of REINFORCE.
        Between 0 and 4/tau * abs(A) in size, even where the ratio overflows.

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: a wrong shape, a tau that is not above 0.

    Source: SAPO (arXiv 2511.20347); the defaults are its published values. Deviation: none.

    >>> sapo(torch.tensor([[0.5, 1.0, 1.5]]), torch.tensor([[1.0]]))
    tensor([[-1.5102, -2.0000, -2.4898]])
    """
    check_float("ratio", ratio)
    check_per_token("advantages", advantages, "ratio", ratio)
    for name, tau in (("tau_positive", tau_positive), ("tau_negative", tau_negative)):
        if not (tau > 0 and math.isfinite(tau)):
            raise ValueError(f"{name} must be a finite number above 0, got {tau}")
    gain = _gain(advantages)
    # Tensors of the ratio's dtype: torch.where of two Python floats is float32, in which 1.05 has 8 digits.
    tau = torch.where(gain > 0, ratio.new_tensor(tau_positive), ratio.new_tensor(tau_negative))
    # A ratio of junk must not come back from a masked position as 0 * nan.
    known = torch.where(ratio.isnan(), 1.0, ratio)
    loss = _loss((tau * (known - 1)).sigmoid() * (4 / tau) * gain, advantages)
    return torch.where(ratio.isnan(), math.nan, loss)


def gmpo(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, clip_low: float, clip_high: float
) -> Tensor:
    """The geometric mean of a completion's clipped token ratios, times its advantage.

        l[b, t] = logprobs[b, t] - old_logprobs[b, t]
        c[b, t] = min(l[b, t], clip_high)          A > 0
                  max(l[b, t], -clip_low)          A < 0
        loss    = -exp( 1/n sum_t mask[b, t] c[b, t] ) * A                      n = sum_t mask[b, t]

    Each token is clipped on the side its advantage pushes to, before the mean is taken, so that one outlier neither
    moves the mean nor stops the gradient of the other tokens (it stops its own).

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats.
        old_logprobs: the same shape; no gradient passes to it.
        advantages: ``[B, 1]``, or ``[B, T]`` for one value per token.
        mask: bool ``[B, T]``, True = trained on. Where it is False the other tensors may hold anything.
        clip_low: at least 0, **in nats, of the log-ratio**: the ratio is kept above exp(-clip_low). Published: 0.4.
        clip_high: at least 0, in nats: the ratio is kept under exp(clip_high). Published: 0.4.

    Returns:
        ``[B, T]`` loss per token, without unit: with one advantage per completion the same at every position of a row,
        -A in a row without a trained token. Meant for ``sequence_mean``.

    Raises:
        TypeError: a wrong dtype, a mask that is not bool. ValueError: a wrong shape, a bound under 0.

    Source: GMPO (arXiv 2507.20673), the objective with token-level clipping. Deviation: with one advantage per token,
    each is clipped by its own sign and multiplies its own loss, where the paper has one per completion.

    >>> old = torch.tensor([[-1.0, -2.0]])
    >>> gmpo(old + torch.tensor([[0.2, 3.0]]), old, torch.tensor([[1.0]]), torch.tensor([[True, True]]),
    ...      clip_low=0.4, clip_high=0.4)
    tensor([[-1.3499, -1.3499]])
    """
    log_ratio = kept(difference("logprobs", logprobs, "old_logprobs", old_logprobs), mask)
    check_per_token("advantages", advantages, "logprobs", logprobs)
    _check_bounds(clip_low, clip_high)
    gain = _gain(advantages)
    from_above = torch.where(gain > 0, log_ratio.clamp(max=clip_high), log_ratio)
    clipped = torch.where(gain < 0, log_ratio.clamp(min=-clip_low), from_above)
    ratio = bounded_exp(row_mean(clipped, mask), log_ratio.dtype)
    return _loss(product(ratio, gain), advantages).expand(log_ratio.shape)


def reinforce(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """The plain policy gradient: no ratio, no clip.

        loss = -A * logprobs

    Right for tokens sampled from the policy as it is, so for one update per batch.

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats.
        advantages: ``[B, T]``, or ``[B, 1]`` for one value per completion.

    Returns:
        ``[B, T]`` loss per token. Its gradient is that of ``clipped_surrogate`` at a ratio of 1; its value is not.

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: a wrong shape.

    Source: Williams (1992), REINFORCE; with leave-one-out advantages RLOO (arXiv 2402.14740). Deviation: none.

    >>> reinforce(torch.tensor([[-1.0, -0.5]]), torch.tensor([[2.0]]))
    tensor([[2., 1.]])
    """
    check_float("logprobs", logprobs)
    check_per_token("advantages", advantages, "logprobs", logprobs)
    return weighted_nll(logprobs, advantages)


def weighted_nll(logprobs: Tensor, coefficients: Tensor) -> Tensor:
    """Negative log-likelihood with a weight per token: the one loss behind all methods of the unified view.

        loss = -sg[coefficients] * logprobs          sg: no gradient passes

    The coefficients of each method stand in :mod:`~oncurve.functional.unified`: 1 for supervised fine-tuning, 1 or 0
    for rejection sampling, an advantage for RLOO and for the first update of GRPO.

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats.
        coefficients: ``[B, T]``, or ``[B, 1]`` for one value per completion.

    Returns:
        ``[B, T]`` loss per token. Where a coefficient is not finite it is nan, with a gradient of 0.

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: a wrong shape.

    Source: DeepSeekMath (arXiv 2402.03300) section 5.2.1, eq. 5. Deviation: none.

    >>> weighted_nll(torch.tensor([[-1.0, -0.5], [-2.0, -0.1]]), torch.tensor([[1.0], [0.0]]))
    tensor([[1.0000, 0.5000],
            [0.0000, 0.0000]])
    """
    check_float("logprobs", logprobs)
    check_per_token("coefficients", coefficients, "logprobs", logprobs)
    return _loss(product(logprobs, _gain(coefficients)), coefficients)


def _clipped(ratio: Tensor, clipped_from: Tensor, gain: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """The pessimistic of the ratio's and the clipped ratio's objective."""
    return torch.minimum(product(ratio, gain), product(clipped_from.clamp(1 - clip_low, 1 + clip_high), gain))


def _gain(advantages: Tensor) -> Tensor:
    """Advantages as constant factors, 0 where they are junk.

    In padding, where a gradient of 0 arrives, 0 * inf would be nan. :func:`_loss` makes the junk visible again.
    """
    return torch.where(advantages.isfinite(), advantages, 0.0).detach()


def _loss(objective: Tensor, advantages: Tensor) -> Tensor:
    """What is minimised; nan where the advantage is not finite. (0 - 0 is 0, where -0 would be printed as -0.)"""
    return torch.where(advantages.isfinite(), 0.0 - objective, math.nan)


def _check_clip(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> None:
    check_float("ratio", ratio)
    check_per_token("advantages", advantages, "ratio", ratio)
    _check_bounds(clip_low, clip_high)


def _check_bounds(clip_low: float, clip_high: float) -> None:
    for name, bound in (("clip_low", clip_low), ("clip_high", clip_high)):
        if not bound >= 0:
            raise ValueError(f"{name} must be at least 0, got {bound}")
