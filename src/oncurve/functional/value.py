"""The value side of PPO: rewards per token, returns, advantages from a critic, and the critic's own loss.

Time runs over trained tokens alone. A position at which the mask is False (prompt, padding, text that a tool wrote) is
stepped over as if it were not in the row: it takes no reward, no discount and no step of lambda, and gets 0. Only
:func:`clipped_value_loss` has a gradient; all else are targets and measurements, and detached.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_float, check_ids, check_mask, check_same_shape
from oncurve.functional._moments import check_ddof_and_eps


def token_rewards(scores: Tensor, kl: Tensor, mask: Tensor, *, kl_coef: float) -> Tensor:
    """The reward of a completion spread over its tokens: the KL penalty at each, the score at the last.

        r[b, t] = -kl_coef * kl[b, t] + (scores[b] if t is the last trained token of b, else 0)

    With kl from :func:`~oncurve.functional.kl.k1` the policy gradient of this reward is that of scores minus kl_coef *
    KL(policy || reference). With k3 in its place it is not: k3 belongs into the loss, k1 into the reward.

    Args:
        scores: ``[B]`` float32 or float64, in units of reward, finite where a row has a trained token. An unscored row
            has no return a critic could learn: take it out of the mask.
        kl: ``[B, T]``, nats per token; anything where the mask is False.
        mask: bool ``[B, T]``, True = trained on.
        kl_coef: at least 0, in units of reward per nat.

    Returns:
        ``[B, T]`` of the dtype of ``kl``, in units of reward, detached; 0 where the mask is False, and so in all of a
        row without a trained token.

    Raises:
        ValueError: a score that is not finite in a row with trained tokens, a wrong shape, a negative kl_coef.

    Source: DeepSeekMath (arXiv 2402.03300) eq. 2; InstructGPT (arXiv 2203.02155) eq. 2. Deviation: none; eq. 2 allows a
    score after every token, here there is one, for the whole completion.

    >>> kl = torch.tensor([[0.0, 0.1, -0.05, 0.2]])
    >>> mask = torch.tensor([[False, True, True, True]])
    >>> token_rewards(torch.tensor([1.0]), kl, mask, kl_coef=0.1)
    tensor([[ 0.0000, -0.0100,  0.0050,  0.9800]])
    """
    check_float("scores", scores)
    check_axes("scores", scores, "B")
    _check_per_token("kl", kl, mask)
    if scores.shape[0] != kl.shape[0]:
        raise ValueError(f"scores {list(scores.shape)} must have one entry for each row of kl {list(kl.shape)}")
    if not (kl_coef >= 0 and math.isfinite(kl_coef)):
        raise ValueError(f"kl_coef must be a finite number of at least 0, got {kl_coef}")
    wrong = mask.any(dim=1) & ~scores.isfinite()
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(f"scores[{row}] is {float(scores[row])}; take rows that were not scored out of the mask")
    penalty = torch.where(mask, -kl_coef * kl.detach(), 0.0)
    trained_from_here = mask.flip(1).cumsum(dim=1).flip(1)
    last = mask & (trained_from_here == 1)
    return torch.where(last, penalty + scores.detach().to(kl.dtype).unsqueeze(1), penalty)


def returns_to_go(token_rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> Tensor:
    """What is still to come: the discounted sum of the rewards from each token on.

        R[b, t] = r[b, t] + gamma * R[b, t'],   t' = next trained token of b, R = 0 after the last

    Args:
        token_rewards: ``[B, T]`` float32 or float64, in units of reward; anything where the mask is False.
        mask: bool ``[B, T]``, True = trained on.
        gamma: between 0 and 1, the discount of one trained token.

    Returns:
        ``[B, T]`` of the same dtype, in units of reward, detached; 0 where the mask is False.

    Raises:
        ValueError: a wrong shape, a gamma outside [0, 1].

    Source: GAE (arXiv 1506.02438) eq. 18 with V = 0: the return of REINFORCE. Deviation: sums are taken in float64.

    >>> rewards = torch.tensor([[-0.01, 0.005, 0.98]])
    >>> returns_to_go(rewards, torch.ones(1, 3, dtype=torch.bool))
    tensor([[0.9750, 0.9850, 0.9800]])
    """
    # Where the critic says 0 throughout, the advantage at lambda = 1 is the return.
    return gae(token_rewards, torch.zeros_like(token_rewards), mask, gamma=gamma, lam=1.0)[0]


def gae(
    token_rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, and the returns that a critic learns from.

        delta[t] = r[t] + gamma * V[t'] - V[t]           t' = next trained token of the row
        A[t]     = delta[t] + gamma * lam * A[t']        V = A = 0 after the last one
        R[t]     = A[t] + V[t]

    lam = 1: A = (return to go) - V, unbiased whatever the critic says. lam = 0: A = delta, of low variance, as wrong as
    the critic. In between, a reward at the end of a completion counts lam^l at a distance of l tokens: at 0.95 it is
    down to 0.006 after 100.

    Args:
        token_rewards: ``[B, T]`` float32 or float64, in units of reward, from :func:`token_rewards`.
        values: ``[B, T]``, what the critic expects before the token at t is chosen. Where the mask is False both may
            hold anything, nan and infinities included. Holes anywhere in a row are stepped over.
        mask: bool ``[B, T]``, True = trained on.
        gamma: between 0 and 1.
        lam: between 0 and 1; a float, or ``[B, 1]`` float32 or float64 with one for each row
            (:func:`length_adaptive_lambda`).

    Returns:
        ``(advantages, returns)``, both ``[B, T]`` of the dtype of ``values``, in units of reward, detached; 0 where the
        mask is False. To train policy and critic with a lambda each, as VC-PPO does, call it twice and take the
        advantages of one call and the returns of the other.

    Raises:
        ValueError: a wrong shape, a gamma or lam outside [0, 1].

    Source: GAE (arXiv 1506.02438) eq. 16; DeepSeekMath (arXiv 2402.03300) section 4.1.1 names it for PPO. Deviation:
    sums are taken in float64.

    >>> rewards = torch.tensor([[0.0, 0.0, 0.0, 1.0]])
    >>> values = torch.tensor([[0.5, 0.6, 0.4, 0.7]])
    >>> advantages, returns = gae(rewards, values, torch.ones(1, 4, dtype=torch.bool), lam=0.95)
    >>> advantages
    tensor([[0.4380, 0.3557, 0.5850, 0.3000]])
    >>> returns
    tensor([[0.9380, 0.9557, 0.9850, 1.0000]])
    """
    _check_per_token("token_rewards", token_rewards, mask)
    _check_per_token("values", values, mask)
    _check_share("gamma", gamma)
    if isinstance(lam, Tensor):
        check_float("lam", lam)
        if lam.shape != (values.shape[0], 1):
            raise ValueError(
                f"lam must be a float or have shape [B, 1] = [{values.shape[0]}, 1], got {list(lam.shape)}"
            )
        row_lam = lam.detach().double().squeeze(1)
        # Written so that nan is outside as well.
        wrong = ~((row_lam >= 0) & (row_lam <= 1))
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(f"lam[{row}, 0] is {float(row_lam[row])}; it must be between 0 and 1")
        decay = gamma * row_lam
    else:
        _check_share("lam", lam)
        decay = gamma * lam
    rewards, expected = token_rewards.detach().double(), values.detach().double()
    advantages = torch.zeros_like(expected)
    advantage = next_value = expected.new_zeros(expected.shape[0])
    for t in reversed(range(expected.shape[1])):
        trained = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - expected[:, t]
        advantage = torch.where(trained, delta + decay * advantage, advantage)
        next_value = torch.where(trained, expected[:, t], next_value)
        advantages[:, t] = advantage
    returns = torch.where(mask, advantages + expected, 0.0)
    return torch.where(mask, advantages, 0.0).to(values.dtype), returns.to(values.dtype)


def length_adaptive_lambda(lengths: Tensor, *, alpha: float = 0.05) -> Tensor:
    """A lambda for each completion, nearer to 1 the longer it is.

        lam = max(0, 1 - 1 / (alpha * length))

    The weights lam^l of an endless row add up to 1 / (1 - lam) = alpha * length: the share of a completion that an
    advantage looks ahead is the same for short and long ones.

    Args:
        lengths: int64, trained tokens of each row, at least 0; any shape, ``mask.sum(dim=1, keepdim=True)`` for
            :func:`gae`.
        alpha: above 0. With 0.05, completions of up to 20 tokens have a lambda of 0 and one of 200 tokens has 0.9.

    Returns:
        float64 of the same shape, in [0, 1].

    Raises:
        ValueError: an alpha that is not above 0, a length under 0.

    Source: VAPO (arXiv 2504.05118) section 4.2, lambda of the policy (its critic has 1.0). Deviation: the formula goes
    below 0 under 1 / alpha tokens and is cut at 0 there.

    >>> length_adaptive_lambda(torch.tensor([[10], [40], [200]]))
    tensor([[0.0000],
            [0.5000],
            [0.9000]], dtype=torch.float64)
    """
    check_ids("lengths", lengths)
    if not (alpha > 0 and math.isfinite(alpha)):
        raise ValueError(f"alpha must be a finite number above 0, got {alpha}")
    if bool((lengths < 0).any()):
        raise ValueError(f"lengths must be at least 0, got {int(lengths.min())}")
    return (1 - 1 / (alpha * lengths.double())).clamp(0.0, 1.0)


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Squared error of the critic, with no gradient for moves away from the old value beyond the clip.

        loss = 0.5 * max((V - R)^2, (V_clipped - R)^2),   V_clipped = clip(V, V_old - clip, V_old + clip)

    The gradient is V - R, except 0 where V is further than ``clip`` from V_old and nearer to R than V_clipped is. A
    step that went away from R can always be taken back.

    Args:
        values: ``[B, T]`` float32 or float64, in units of reward, of the critic that is trained.
        old_values: the same shape, of the critic before the first update on this batch.
        returns: the same shape, from :func:`gae`. No gradient passes to it or to ``old_values``.
        clip: above 0, in units of reward; ``math.inf`` for a plain squared error.

    Returns:
        ``[B, T]`` loss per token, in squared units of reward; :func:`~oncurve.functional.aggregate.aggregate` makes the
        scalar. Where one of the three is not finite the loss is nan and its gradient 0, so that junk in padding cannot
        come back as 0 * nan.

    Raises:
        ValueError: a wrong shape, a clip that is not above 0.

    Source: the value loss of OpenAI's PPO code, in print in arXiv 2005.12729 section 3. Deviation: that page prints min
    in place of max; the code it describes, and every other, takes max.

    >>> clipped_value_loss(torch.tensor([[1.0]]), torch.tensor([[0.3]]), torch.tensor([[0.9]]), clip=0.2)
    tensor([[0.0800]])
    """
    check_float("values", values)
    check_axes("values", values, "BT")
    for name, tensor in (("old_values", old_values), ("returns", returns)):
        check_float(name, tensor)
        check_same_shape(name, tensor, "values", values)
    if not clip > 0:
        raise ValueError(f"clip must be above 0, got {clip}")
    old_values, returns = old_values.detach(), returns.detach()
    known = values.isfinite() & old_values.isfinite() & returns.isfinite()
    value, old, target = (torch.where(known, x, 0.0) for x in (values, old_values, returns))
    clipped = value.clamp(old - clip, old + clip)
    loss = 0.5 * torch.maximum((value - target).square(), (clipped - target).square())
    return torch.where(known, loss, math.nan)


def masked_whiten(values: Tensor, mask: Tensor, *, ddof: int = 1, eps: float = 1e-8, centre: bool = True) -> Tensor:
    """Values in standard deviations from their mean, both taken over every trained token.

        y = (x - mean) / sqrt(var + eps)        (+ mean, with centre=False)
        var = sum (x - mean)^2 / (n - ddof)     n = trained tokens of all rows together

    Every token weighs the same, so long completions weigh more. Whiten what one sampling round gave before it is cut
    into minibatches: the result depends on what is in the batch.

    Args:
        values: ``[B, T]`` float32 or float64; anything where the mask is False.
        mask: bool ``[B, T]``, True = counted.
        ddof: 0 or 1.
        eps: at least 0, added to the variance, so in squared units of ``values``.
        centre: False puts the mean back on, which keeps the sign of the values (for rewards).

    Returns:
        ``[B, T]`` of the same dtype, detached; 0 where the mask is False. Where all trained values are equal (or fewer
        than two) there is nothing to scale: exact zeros, or with ``centre=False`` the values as they were.

    Raises:
        ValueError: a wrong shape, a ddof other than 0 or 1, a negative eps.

    Source: the whitening of advantages in OpenAI's PPO for language models (arXiv 1909.08593), as arXiv 2403.17031
    describes it. There is no agreement on its details (ddof 0 or 1, eps in the variance or a floor under it, over
    tokens or over rows); these are ours. Deviation: equal values are found by max == min and not left to eps; sums are
    taken in float64.

    >>> masked_whiten(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.ones(2, 2, dtype=torch.bool))
    tensor([[-1.1619, -0.3873],
            [ 0.3873,  1.1619]])
    """
    _check_per_token("values", values, mask)
    check_ddof_and_eps(ddof, eps)
    chosen = values.detach()[mask].double()
    if _all_equal(chosen):
        whitened = torch.zeros_like(chosen) if centre else chosen
    else:
        mean = chosen.mean()
        whitened = (chosen - mean) / (chosen.var(correction=ddof) + eps).sqrt()
        whitened = whitened if centre else whitened + mean
    return torch.zeros_like(values).masked_scatter(mask, whitened.to(values.dtype))


def explained_variance(values: Tensor, returns: Tensor, mask: Tensor) -> float:
    """How much of the spread of the returns the critic foresees.

        1 - var(R - V) / var(R)      over the trained tokens of all rows together

    1: all of it; 0: no more than a constant would; below 0: a constant would do better. A constant error of the critic
    does not show.

    Args:
        values: ``[B, T]`` float32 or float64, of the critic; anything where the mask is False.
        returns: ``[B, T]``, what they should have been.
        mask: bool ``[B, T]``, True = counted.

    Returns:
        A float, at most 1. nan where the returns are all equal (or fewer than two): there is nothing to explain.

    Source: the coefficient of determination, as OpenAI's PPO code reports it. Deviation: none.

    >>> values, returns = torch.tensor([[0.0, 1.0, 2.0]]), torch.tensor([[0.0, 2.0, 4.0]])
    >>> explained_variance(values, returns, torch.ones(1, 3, dtype=torch.bool))
    0.75
    """
    _check_per_token("values", values, mask)
    _check_per_token("returns", returns, mask)
    target = returns.detach()[mask].double()
    if _all_equal(target):
        return math.nan
    error = target - values.detach()[mask].double()
    # The divisor of the two variances cancels.
    return 1.0 - float(error.var(correction=0) / target.var(correction=0))


def _all_equal(chosen: Tensor) -> bool:
    """Whether ``[N]`` holds one value at most. nan equals nothing, and so stays visible in what is computed next."""
    return chosen.numel() == 0 or bool(chosen.max() == chosen.min())


def _check_per_token(name: str, tensor: Tensor, mask: Tensor) -> None:
    check_float(name, tensor)
    check_axes(name, tensor, "BT")
    check_mask("mask", mask)
    check_same_shape("mask", mask, name, tensor)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be between 0 and 1, got {value}")
