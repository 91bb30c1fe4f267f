"""From logits to token-aligned log-probabilities. The only module in which anything is shifted by one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_any_float, check_axes, check_ids, check_mask


def selected_logprobs(
    logits: Tensor, targets: Tensor, temperature: float = 1.0, *, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target, and the entropy of the distribution it was drawn from.

        logprob = z[target] - logsumexp(z),   H = -sum_v p[v] log p[v],   z = logits / temperature,   p = softmax(z)

    The temperature belongs to the policy: a sampler that divides the logits by 0.6 draws from another distribution
    than the one a trainer without the division scores, and the ratio of the two is wrong on every token.

    Args:
        logits: ``[N, V]``, any floating dtype. Computed in float32, or in float64 if the logits are. -inf is legal (a
            token that cannot be drawn) in all but one entry of a row.
        targets: ``[N]`` int64, each in ``[0, V)``.
        temperature: above 0.
        entropy_gradient: the entropy is a measurement and carries no gradient, unless this is set (for an entropy
            bonus); then one more ``[N, V]`` tensor is kept for the backward pass.

    Returns:
        ``(logprobs, entropy)``, both ``[N]``, in nats.

    Source: the scaled log-softmax; no log-softmax is stored, which saves one ``[N, V]`` tensor of log-probs.

    >>> logprobs, entropy = selected_logprobs(torch.tensor([[2.0, 1.0, 0.0, -1.0]]), torch.tensor([1]), temperature=0.7)
    >>> round(logprobs.item(), 4), round(entropy.item(), 4)
    (-1.6992, 0.702)
    """
    check_any_float("logits", logits)
    check_axes("logits", logits, "NV")
    check_ids("targets", targets)
    if targets.shape != logits.shape[:1]:
        raise ValueError(
            f"targets must have shape [N] with the N of logits {list(logits.shape)}, got {list(targets.shape)}"
        )
    _check_temperature(temperature)
    scaled = logits if logits.dtype == torch.float64 else logits.float()
    if temperature != 1.0:
        scaled = scaled / temperature
    log_normaliser = scaled.logsumexp(dim=-1)
    logprobs = scaled.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_normaliser
    if entropy_gradient:
        return logprobs, _entropy_with_gradient(scaled)
    with torch.no_grad():
        probabilities = scaled.softmax(dim=-1)
        # xlogy(p, p) is p log p with 0 log 0 = 0, so that a logit of -inf adds nothing instead of nan.
        entropy = -probabilities.xlogy_(probabilities).sum(dim=-1)
    return logprobs, entropy


def predictor_mask(completion_mask: Tensor) -> Tensor:
    """Where the model's output predicts a completion token.

        out[b, t] = completion_mask[b, t + 1],   out[b, T - 1] = False

    A causal model's output at t is its prediction of the token at t + 1. This is the one shift by one: select hidden
    states with it, score them with :func:`selected_logprobs` against ``tokens[completion_mask]`` (the same order, row
    by row), and put the results back with :func:`place`.

    Args:
        completion_mask: bool ``[B, T]``, True = trained on. Its first column must be False: nothing predicts the first
            token.

    Returns:
        bool ``[B, T]``.

    Source: autoregressive factorisation, p(o) = prod_t p(o_t | q, o_<t), as in DeepSeekMath (arXiv 2402.03300) eq. 3.

    >>> predictor_mask(torch.tensor([[False, False, True, True]]))
    tensor([[False,  True,  True, False]])
    """
    check_mask("completion_mask", completion_mask)
    check_axes("completion_mask", completion_mask, "BT")
    shifted = torch.zeros_like(completion_mask)
    if completion_mask.shape[1] == 0:
        return shifted
    if bool(completion_mask[:, 0].any()):
        raise ValueError(
            "completion_mask is True in its first column, but no output predicts a first token: "
            "put at least one prompt token (for example BOS) before the completion"
        )
    shifted[:, :-1] = completion_mask[:, 1:]
    return shifted


def place(values: Tensor, completion_mask: Tensor) -> Tensor:
    """Put per-token values where their tokens are; zero elsewhere.

        out[b, t] = values[n] if completion_mask[b, t] is the n-th True, row by row, else 0

    Gradients pass to ``values`` from the True positions alone; whatever arrives at the others, nan included, is
    dropped.

    Args:
        values: ``[N]``, N = number of True entries; any floating dtype.
        completion_mask: bool ``[B, T]``.

    Returns:
        ``[B, T]`` of the dtype of ``values``, token-aligned.

    Source: none; the inverse of ``matrix[completion_mask]``.

    >>> place(torch.tensor([-0.5, -0.25]), torch.tensor([[False, True, False], [False, False, True]]))
    tensor([[ 0.0000, -0.5000,  0.0000],
            [ 0.0000,  0.0000, -0.2500]])
    """
    check_any_float("values", values)
    check_axes("values", values, "N")
    check_mask("completion_mask", completion_mask)
    check_axes("completion_mask", completion_mask, "BT")
    count = int(completion_mask.sum())
    if values.shape[0] != count:
        raise ValueError(f"values has {values.shape[0]} entries for the {count} True positions of completion_mask")
    return values.new_zeros(completion_mask.shape).masked_scatter(completion_mask, values)


def _entropy_with_gradient(scaled: Tensor) -> Tensor:
    logprobs = scaled.log_softmax(dim=-1)
    # 0 * -inf is nan, in the value and in the gradient: take the -inf out before multiplying.
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -math.inf, 0.0)).sum(dim=-1)


def _check_temperature(temperature: float) -> None:
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a finite number above 0, got {temperature}")
