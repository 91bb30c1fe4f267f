"""How much likelier the policy makes what was sampled than the policy that sampled it did: per token or per completion.

All are exactly 1 in the first update on a batch, where the policy is the old policy, and all have a gradient there. A
surrogate of :mod:`~oncurve.functional.policy_losses` takes any of them.

    token             ratio[b, t] = rho[b, t]                       gradient in logprobs[b, t]: rho[b, t]
    sequence          s[b] = (prod_t rho[b, t])^(1/n)               gradient in each trained token: s / n
    sequence_token    s[b] in value, one gradient per token         gradient in logprobs[b, t]: s
    product           R[b] = prod_t rho[b, t]                       gradient in each trained token: R

with rho[b, t] = exp(logprobs[b, t] - old_logprobs[b, t]) and n trained tokens in the row. The bounds of one are of no
use for another: at 1 % per token the product leaves [0.8, 1.2] after 19 tokens, the sequence ratio stays at 1.01.
"""

from __future__ import annotations

import torch
from torch import Tensor

from oncurve.functional._per_token import bounded_exp, difference, kept, row_mean, row_sum


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

    Raises:
        TypeError: log-probs of half precision. ValueError: different shapes.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 3, PPO (arXiv 1707.06347) eq. 6. Deviation: none; the log-ratio is not
    clamped.

    >>> token_ratio(torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.0, -1.5]]))
    tensor([[1.0000, 0.6065]])
    """
    log_ratio = difference("logprobs", logprobs, "old_logprobs", old_logprobs)
    return bounded_exp(log_ratio, log_ratio.dtype)


def sequence_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """The geometric mean of a completion's token ratios.

        s[b] = exp( 1/n sum_t mask[b, t] (logprobs[b, t] - old_logprobs[b, t]) )        n = sum_t mask[b, t]

    Aggregated with ``sequence_mean`` this is GSPO: one clip and one weight for all tokens of a completion.

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats.
        old_logprobs: the same shape; no gradient passes to it.
        mask: bool ``[B, T]``, True = trained on. Where it is False both log-probs may hold anything.

    Returns:
        ``[B, T]`` without unit, s[b] at every position of row b (an expanded view: do not write into it). Exactly 1 in
        a row without a trained token. Where it is not finite the value is shown and the gradient is 0.

    Raises:
        TypeError: log-probs of half precision, a mask that is not bool. ValueError: a wrong shape.

    Source: GSPO (arXiv 2507.18071) eq. 7. Deviation: none; the mean is taken in float64.

    >>> old = torch.tensor([[-1.0, -2.0, 0.0]])
    >>> sequence_ratio(torch.tensor([[-0.8, -2.1, 9.0]]), old, torch.tensor([[True, True, False]]))
    tensor([[1.0513, 1.0513, 1.0513]])
    """
    log_ratio = kept(difference("logprobs", logprobs, "old_logprobs", old_logprobs), mask)
    return bounded_exp(row_mean(log_ratio, mask), log_ratio.dtype).expand(log_ratio.shape)


def sequence_token_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """The value of :func:`sequence_ratio`, with a gradient for each token alone.

        s[b, t] = sg[s[b]] * policy(o_t) / sg[policy(o_t)]        sg: no gradient passes

    With one advantage for the whole completion it has the loss and the gradient of :func:`sequence_ratio` under
    ``sequence_mean``; with one advantage per token (process supervision) each token keeps its own.

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats.
        old_logprobs: the same shape; no gradient passes to it.
        mask: bool ``[B, T]``, True = trained on. Where it is False both log-probs may hold anything.

    Returns:
        ``[B, T]`` without unit, s[b] at every position of row b; 1 in a row without a trained token. Where it is not
        finite the value is shown and the gradient is 0.

    Raises:
        TypeError: log-probs of half precision, a mask that is not bool. ValueError: a wrong shape.

    Source: GSPO-token (arXiv 2507.18071) eq. 14; what verl calls "gspo" is this form. Deviation: none.

    >>> old = torch.tensor([[-1.0, -2.0, 0.0]])
    >>> sequence_token_ratio(torch.tensor([[-0.8, -2.1, 9.0]]), old, torch.tensor([[True, True, False]]))
    tensor([[1.0513, 1.0513, 1.0513]])
    """
    value = sequence_ratio(logprobs, old_logprobs, mask).detach()
    has_gradient = mask & value.isfinite() & logprobs.isfinite()
    # policy / sg[policy] without ever leaving the logarithm: exactly 1, with the gradient of logprobs.
    own = torch.where(has_gradient, logprobs - logprobs.detach(), 0.0).exp()
    return value * own


def product_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """How much likelier the policy makes the completion as a whole: the product of its token ratios.

        R[b] = policy(o | q) / old_policy(o | q) = exp( sum_t mask[b, t] (logprobs[b, t] - old_logprobs[b, t]) )

    The importance weight of a completion without bias, and the one whose spread grows with the length: at noise of
    0.01 nats per token its logarithm has a standard deviation of 0.1 after 100 tokens and of 1 after 10,000.

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats.
        old_logprobs: the same shape; no gradient passes to it.
        mask: bool ``[B, T]``, True = trained on. Where it is False both log-probs may hold anything.

    Returns:
        ``[B, T]`` without unit, R[b] at every position of row b (an expanded view: do not write into it). Exactly 1 in
        a row without a trained token. The sum is taken before exp, so a long completion overflows only if its ratio
        does (over 88 nats in float32): the value is then inf and the gradient 0. Under -103 nats it is 0.

    Raises:
        TypeError: log-probs of half precision, a mask that is not bool. ValueError: a wrong shape.

    Source: DeepSeek-R1 (arXiv 2501.12948) eq. 1, which writes the ratio of whole outputs. Deviation: none; whether
    DeepSeek trained with it, or with the token ratio of DeepSeekMath eq. 3, the paper does not say.

    >>> old = torch.tensor([[-1.0, -2.0, 0.0]])
    >>> product_ratio(torch.tensor([[-0.8, -2.1, 9.0]]), old, torch.tensor([[True, True, False]]))
    tensor([[1.1052, 1.1052, 1.1052]])
    """
    log_ratio = kept(difference("logprobs", logprobs, "old_logprobs", old_logprobs), mask)
    return bounded_exp(row_sum(log_ratio), log_ratio.dtype).expand(log_ratio.shape)
