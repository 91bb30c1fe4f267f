"""One kernel for all: every method here follows the gradient of a weighted log-likelihood.

    gradient = mean over tokens of  coefficient[b, t] * gradient of logprobs[b, t]

with methods differing in where the completions come from and in the coefficient, which is what
:func:`~oncurve.functional.policy_losses.weighted_nll` takes:

    | method              | completions                    | coefficient                                        |
    | supervised          | written by people              | 1                                                  |
    | rejection sampling  | of the first policy            | 1 if right, else 0                                 |
    | the same, online    | of the policy                  | 1 if right, else 0                                 |
    | RLOO                | of the policy                  | leave_one_out(rewards)                             |
    | PPO, first update   | of the policy                  | the advantage of each token, by a critic           |
    | GRPO, first update  | groups of the policy           | grpo_coefficients(...)                             |
    | DPO                 | pairs of the first policy      | dpo_coefficient(...), with + on chosen, - on other |

Source: DeepSeekMath (arXiv 2402.03300) section 5.2.1, table 10 and appendix A.1.
"""

from __future__ import annotations

import math

from torch import Tensor

from oncurve.functional._checks import check_float, check_same_shape
from oncurve.functional._per_token import check_per_token, difference


def grpo_coefficients(advantages: Tensor, logprobs: Tensor, ref_logprobs: Tensor, *, kl_coef: float) -> Tensor:
    """What GRPO multiplies each token's gradient by in the first update on a batch.

        coefficient[b, t] = A[b, t] + kl_coef * (reference(o_t) / policy(o_t) - 1)

    ``weighted_nll(logprobs, coefficients)`` has the gradient of ``clipped_surrogate + kl_coef * k3`` while the policy
    is the old policy: the second term pulls up what the reference likes better, in proportion.

    Args:
        advantages: ``[B, T]``, or ``[B, 1]`` for one value per completion.
        logprobs: ``[B, T]`` float32 or float64, in nats.
        ref_logprobs: the same shape; not looked at if kl_coef is 0.
        kl_coef: at least 0.

    Returns:
        ``[B, T]``, without unit and without gradient; what is not finite is shown (``weighted_nll`` gives it a
        gradient of 0).

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: a wrong shape, a negative kl_coef.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 21, appendix A.1.6. Deviation: none.

    >>> import torch
    >>> logprobs, reference = torch.tensor([[0.5, 0.2]]).log(), torch.tensor([[0.25, 0.4]]).log()
    >>> grpo_coefficients(torch.tensor([[1.0]]), logprobs, reference, kl_coef=0.04)
    tensor([[0.9800, 1.0400]])
    """
    log_ratio = difference("ref_logprobs", ref_logprobs, "logprobs", logprobs).detach()
    check_per_token("advantages", advantages, "logprobs", logprobs)
    if not (kl_coef >= 0 and math.isfinite(kl_coef)):
        raise ValueError(f"kl_coef must be a finite number of at least 0, got {kl_coef}")
    if kl_coef == 0:
        return advantages.detach().expand(logprobs.shape)
    return advantages.detach() + kl_coef * log_ratio.expm1()


def dpo_coefficient(chosen_log_ratio: Tensor, rejected_log_ratio: Tensor, *, beta: float) -> Tensor:
    """What DPO multiplies the gradient of a pair by: how wrong the policy still has it.

        coefficient = sigmoid( beta * rejected_log_ratio - beta * chosen_log_ratio )

    The gradient of the chosen completion's log-probs is weighted with it, that of the rejected one's with minus it.

    Args:
        chosen_log_ratio: ``[N]`` float32 or float64, or any shape: log policy - log reference of the better one, in
            nats.
        rejected_log_ratio: the same shape, of the other one.
        beta: at least 0.

    Returns:
        The same shape, between 0 and 1, without gradient: 0.5 at the start, 0 once the pair is told apart.

    Raises:
        TypeError: a dtype other than float32 or float64. ValueError: different shapes, a negative beta.

    Source: DeepSeekMath (arXiv 2402.03300) appendix A.1.4, where the log-ratios are means over the completion's tokens.
    Deviation: none there. DPO itself (arXiv 2305.18290, section 4) has sums over the completion in their place, and
    beta once more as a factor of the gradient.

    >>> import torch
    >>> dpo_coefficient(torch.tensor([0.4, 9.0]), torch.tensor([-0.2, -9.0]), beta=0.1)
    tensor([0.4850, 0.1419])
    """
    check_float("chosen_log_ratio", chosen_log_ratio)
    check_float("rejected_log_ratio", rejected_log_ratio)
    check_same_shape("rejected_log_ratio", rejected_log_ratio, "chosen_log_ratio", chosen_log_ratio)
    if not (beta >= 0 and math.isfinite(beta)):
        raise ValueError(f"beta must be a finite number of at least 0, got {beta}")
    return (beta * rejected_log_ratio.detach() - beta * chosen_log_ratio.detach()).sigmoid()
