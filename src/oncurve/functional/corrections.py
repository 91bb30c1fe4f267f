"""Weights for the difference between the engine that sampled and the trainer that scores the same tokens.

Both should be the same policy; other kernels, another precision or older weights make them two. The per-token loss is
multiplied by one of these weights. No weight has a gradient; each is exactly 1 while engine and trainer agree, and
finite whatever stands in padding. sampler_ratio = old policy / sampler; the loss's own ratio is policy / old policy.

    truncate    min(ratio, cap)                      bounded variance, biased where the cap binds
    mask        ratio, or 0 outside [low, high]      what disagrees too much is not trained on at all

by token (biased, of low variance) or by sequence, on the product over the completion (unbiased until it is cut, of a
variance that grows with the length).
"""

from __future__ import annotations

import torch
from torch import Tensor

from oncurve.functional._checks import check_float
from oncurve.functional._per_token import bounded_exp, check_per_token, difference, kept, row_mean, row_sum


def sampler_ratio(old_logprobs: Tensor, sampler_logprobs: Tensor) -> Tensor:
    """How much likelier the trainer finds each token than the engine that drew it did, before any update.

        ratio[b, t] = exp(old_logprobs[b, t] - sampler_logprobs[b, t])

    Args:
        old_logprobs: ``[B, T]`` float32 or float64, in nats, by the trainer.
        sampler_logprobs: the same shape, in nats, as the engine recorded them when it drew the tokens.

    Returns:
        The same shape, without unit and without gradient; what is not finite is shown. A sampler that draws from the
        top-p or top-k of the policy makes every ratio the mass it kept, under 1.

    Raises:
        TypeError: log-probs of half precision. ValueError: different shapes.

    Source: the importance ratio of truncated importance sampling (F. Yao et al., "Your efficient RL framework secretly
    brings you off-policy RL training", 2025). Deviation: none.

    >>> sampler_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -1.5]]))
    tensor([[1.0000, 0.6065]])
    """
    return difference("old_logprobs", old_logprobs, "sampler_logprobs", sampler_logprobs).detach().exp()


def truncated_token_weights(sampler_ratio: Tensor, *, cap: float) -> Tensor:
    """Truncated importance sampling by token.

        w[b, t] = min(sampler_ratio[b, t], cap)

    Args:
        sampler_ratio: ``[B, T]`` float32 or float64, from :func:`sampler_ratio`.
        cap: at least 1; published: 2.

    Returns:
        The same shape, without unit and without gradient, always finite for a finite cap: inf becomes the cap. nan,
        where nobody knows how likely the token was, becomes 0; so what stands in padding cannot reach a gradient.

    Raises:
        TypeError: a ratio that is not float32 or float64. ValueError: a cap under 1.

    Source: F. Yao et al. (2025), truncated importance sampling. Deviation: none.

    >>> truncated_token_weights(torch.tensor([[0.5, 1.0, 3.0]]), cap=2.0)
    tensor([[0.5000, 1.0000, 2.0000]])
    """
    check_float("sampler_ratio", sampler_ratio)
    _check_cap(cap)
    return _truncated(sampler_ratio.detach(), cap)


def truncated_sequence_weights(old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, cap: float) -> Tensor:
    """Truncated importance sampling by completion.

        w[b] = min( exp( sum_t mask[b, t] (old_logprobs[b, t] - sampler_logprobs[b, t]) ), cap )

    Args:
        old_logprobs: ``[B, T]`` float32 or float64, in nats, by the trainer.
        sampler_logprobs: the same shape, in nats, by the engine.
        mask: bool ``[B, T]``, True = trained on. Where it is False both log-probs may hold anything.
        cap: at least 1.

    Returns:
        ``[B, T]``, w[b] at every position of row b (an expanded view: do not write into it), without gradient; 1 in a
        row without a trained token, 0 in a row with an unknown (nan) ratio among its trained tokens.

    Raises:
        TypeError: log-probs of half precision, a mask that is not bool. ValueError: a wrong shape, a cap under 1.

    Source: the sequence form of truncated importance sampling (J. Liu, Y. Li et al., "When speed kills stability",
    2025); TRL's ``sequence_truncate``. Deviation: none.

    >>> old, sampler = torch.tensor([[-1.0, -2.0], [-1.0, -0.5]]), torch.tensor([[-1.1, -2.2], [-2.0, -1.0]])
    >>> truncated_sequence_weights(old, sampler, torch.ones(2, 2).bool(), cap=2.0)
    tensor([[1.3499, 1.3499],
            [2.0000, 2.0000]])
    """
    _check_cap(cap)
    return _truncated(_sequence_ratio(old_logprobs, sampler_logprobs, mask), cap).expand(old_logprobs.shape)


def masked_token_weights(sampler_ratio: Tensor, *, low: float, high: float) -> Tensor:
    """Importance weights where engine and trainer roughly agree, 0 elsewhere.

        w[b, t] = sampler_ratio[b, t]  if low <= sampler_ratio[b, t] <= high, else 0

    Args:
        sampler_ratio: ``[B, T]`` float32 or float64, from :func:`sampler_ratio`.
        low: 0 to 1; 0 has no lower bound.
        high: at least 1; inf has no upper bound.

    Returns:
        The same shape, without unit and without gradient. What is not finite (nan, or inf at ``high=inf``) becomes 0.
        The tokens dropped still count in the denominator of ``token_mean``.

    Raises:
        TypeError: a ratio that is not float32 or float64. ValueError: a band that does not hold 1, in which an engine
            that agrees would be dropped.

    Source: IcePop, Ring-1T (arXiv 2510.18855), with the ratio kept as the weight; TRL's ``token_mask``. Deviation:
    none.

    >>> masked_token_weights(torch.tensor([[0.4, 0.5, 1.0, 5.0, 5.1]]), low=0.5, high=5.0)
    tensor([[0.0000, 0.5000, 1.0000, 5.0000, 0.0000]])
    """
    check_float("sampler_ratio", sampler_ratio)
    _check_band(low, high)
    return _masked(sampler_ratio.detach(), low, high)


def masked_sequence_weights(
    old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor, *, low: float, high: float
) -> Tensor:
    """Importance weights of completions on which engine and trainer roughly agree, 0 for the others.

        R[b] = exp( sum_t mask[b, t] (old_logprobs[b, t] - sampler_logprobs[b, t]) )
        w[b] = R[b]  if low <= R[b] <= high, else 0

    Args:
        old_logprobs: ``[B, T]`` float32 or float64, in nats, by the trainer.
        sampler_logprobs: the same shape, in nats, by the engine.
        mask: bool ``[B, T]``, True = trained on. Where it is False both log-probs may hold anything.
        low: 0 to 1; 0 has no lower bound.
        high: at least 1; inf has no upper bound.

    Returns:
        ``[B, T]``, w[b] at every position of row b (an expanded view: do not write into it), without gradient; 1 in a
        row without a trained token, 0 where the product is not finite.

    Raises:
        TypeError: log-probs of half precision, a mask that is not bool. ValueError: a wrong shape, a band that does
            not hold 1.

    Source: masked importance sampling by sequence (J. Liu, Y. Li et al., "When speed kills stability", 2025); TRL's
    default ``sequence_mask`` is low=0, high=3. Deviation: none.

    >>> old, sampler = torch.tensor([[-1.0, -2.0], [-1.0, -0.5]]), torch.tensor([[-1.1, -2.2], [-2.0, -1.0]])
    >>> masked_sequence_weights(old, sampler, torch.ones(2, 2).bool(), low=0.0, high=3.0)
    tensor([[1.3499, 1.3499],
            [0.0000, 0.0000]])
    """
    _check_band(low, high)
    return _masked(_sequence_ratio(old_logprobs, sampler_logprobs, mask), low, high).expand(old_logprobs.shape)


def on_policy_rows(advantages: Tensor, logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, *, bound: float) -> Tensor:
    """Completions still worth training on: all but the bad ones that the policy has already left behind.

        keep[b] = not ( A[b] < 0  and  1/n sum_t mask[b, t] (old_logprobs[b, t] - logprobs[b, t]) > bound )

    A completion the policy would hardly write any more cannot teach it what to avoid; pushing it down further only
    unsettles the rest. A good one stays, however far off.

    Args:
        advantages: ``[B, 1]``, or ``[B, T]`` for one value per token.
        logprobs: ``[B, T]`` float32 or float64, in nats, of the policy now.
        old_logprobs: the same shape, in nats: of the old policy, or of the sampler to count its mismatch as well.
        mask: bool ``[B, T]``, True = trained on. Where it is False the other tensors may hold anything.
        bound: at least 0, in nats per token. Not published; TRL suggests 0.5.

    Returns:
        bool ``[B]``, True = train on this row. It keeps its place in the denominator either way.

    Raises:
        TypeError: log-probs or advantages of a wrong dtype, a mask that is not bool. ValueError: a wrong shape, a
            bound under 0.

    Source: DeepSeek-V3.2 (arXiv 2512.02556) eq. 8 and 9. Deviation: the paper decides by the advantage of each token;
    with one advantage per token, the sum over the trained tokens of a row decides for the row.

    >>> advantages, old = torch.tensor([[-1.0], [1.0]]), torch.full((2, 2), -1.0)
    >>> on_policy_rows(advantages, old - 0.6, old, torch.ones(2, 2).bool(), bound=0.5)
    tensor([False,  True])
    """
    log_ratio = kept(difference("old_logprobs", old_logprobs, "logprobs", logprobs).detach(), mask)
    check_per_token("advantages", advantages, "logprobs", logprobs)
    if not bound >= 0:
        raise ValueError(f"bound must be at least 0 nats per token, got {bound}")
    # Junk in padding is replaced before anything is summed.
    negative = row_sum(torch.where(mask, advantages.detach(), 0.0)) < 0
    return ~(negative & (row_mean(log_ratio, mask) > bound)).squeeze(1)


def _sequence_ratio(old_logprobs: Tensor, sampler_logprobs: Tensor, mask: Tensor) -> Tensor:
    """``[B, 1]``, without gradient."""
    log_ratio = kept(difference("old_logprobs", old_logprobs, "sampler_logprobs", sampler_logprobs), mask).detach()
    return bounded_exp(row_sum(log_ratio), log_ratio.dtype)


def _truncated(ratio: Tensor, cap: float) -> Tensor:
    return torch.where(ratio.isnan(), 0.0, ratio.clamp(max=cap))


def _masked(ratio: Tensor, low: float, high: float) -> Tensor:
    return torch.where((ratio >= low) & (ratio <= high) & ratio.isfinite(), ratio, 0.0)


def _check_cap(cap: float) -> None:
    if not cap >= 1:
        raise ValueError(f"cap bounds the ratio itself and must be at least 1, got {cap}")


def _check_band(low: float, high: float) -> None:
    if not 0 <= low <= 1 <= high:
        raise ValueError(f"low must be between 0 and 1 and high at least 1, got low={low} and high={high}")
