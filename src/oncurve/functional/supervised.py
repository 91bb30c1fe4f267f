"""The losses that learn from labels: of supervised fine-tuning per token, of reward models per pair or per label."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from oncurve.functional._checks import check_axes, check_float, check_mask, check_same_shape


def nll(logprobs: Tensor) -> Tensor:
    """Negative log-likelihood of the demonstrated tokens.

        loss[b, t] = -log policy(o_t | q, o_<t)

    In the unified view of policy gradients this is a gradient coefficient of 1 on every token of a human answer.

    Args:
        logprobs: ``[B, T]`` float32 or float64, in nats.

    Returns:
        The same shape, nats per token. Aggregated with ``token_mean`` over the completion mask it is the usual
        cross-entropy on completions alone.

    Source: DeepSeekMath (arXiv 2402.03300) section 5.2.1 and appendix A.1.1.

    >>> nll(torch.tensor([[0.5, 0.25]]).log())
    tensor([[0.6931, 1.3863]])
    """
    check_float("logprobs", logprobs)
    return -logprobs


def bradley_terry(
    chosen: Tensor, rejected: Tensor, *, margin: Tensor | float | None = None, centring: float = 0.0
) -> Tensor:
    """How surprised a reward model is that the chosen answer of a pair was chosen.

        loss = -log sigmoid(chosen - rejected - margin) + centring * (chosen + rejected)^2

    Only differences of scores count in the first term, so nothing holds their level; the second pulls it to 0.

    Args:
        chosen: ``[N]`` float32 or float64, the score of the better answer of each pair.
        rejected: ``[N]``, of the other.
        margin: how far apart the scores should be, in units of the score: a finite float for all pairs, or ``[N]`` of
            float32 or float64 (Llama 2: 1 to 3 where labellers were surer). None is 0.
        centring: at least 0; 0.01 is usual.

    Returns:
        ``[N]``, nats per pair (plus the squared score of the centring); ``.mean()`` is the usual scalar.

    Raises:
        ValueError: a wrong shape, a margin that is not finite, a negative centring.

    Source: InstructGPT (arXiv 2203.02155) eq. 1; Llama 2 (arXiv 2307.09288) eq. 2 for the margin; Eisenstein et al.
    (arXiv 2312.09244) for the centring. Deviation: one pair a row; InstructGPT's mean over the pairs of one prompt is
    the caller's.

    >>> bradley_terry(torch.tensor([1.5, 0.0, -2.0]), torch.tensor([0.5, 0.0, 1.0]))
    tensor([0.3133, 0.6931, 3.0486])
    """
    check_float("chosen", chosen)
    check_axes("chosen", chosen, "N")
    check_float("rejected", rejected)
    check_same_shape("rejected", rejected, "chosen", chosen)
    if isinstance(margin, Tensor):
        check_float("margin", margin)
        check_same_shape("margin", margin, "chosen", chosen)
        margin = margin.detach()
        if not bool(margin.isfinite().all()):
            row = int((~margin.isfinite()).nonzero()[0])
            raise ValueError(f"margin[{row}] is {float(margin[row])}; it must be finite")
    elif margin is not None and not math.isfinite(margin):
        raise ValueError(f"margin must be finite, got {margin}")
    if not (centring >= 0 and math.isfinite(centring)):
        raise ValueError(f"centring must be a finite number of at least 0, got {centring}")
    lead = chosen - rejected if margin is None else chosen - rejected - margin
    loss = -logsigmoid(lead)
    return loss + centring * (chosen + rejected).square() if centring else loss


def binary_cross_entropy(scores: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    """Loss of a reward model that says how probably an answer, or a step of it, is right.

        loss = -y log sigmoid(s) - (1 - y) log sigmoid(-s)

    Args:
        scores: float32 or float64, any shape: ``[B]`` for outcomes, ``[B, T]`` with the score of a step where it ends.
            Logits, finite where they count: the probability is sigmoid(s).
        labels: float32 or float64 of the same shape, each between 0 and 1. Soft labels (the share of continuations
            from this step that got it right) are legal; the loss is then lowest, but not 0, at sigmoid(s) = y.
        mask: bool of the same shape, True = labelled; None: all. Where it is False scores and labels may hold anything,
            nan and infinities included.

    Returns:
        The same shape and dtype as ``scores``, in nats; 0 where the mask is False.

    Raises:
        ValueError: a label that is counted and not between 0 and 1, a wrong shape.

    Source: Math-Shepherd (arXiv 2312.08935) eq. 1 for outcomes, eq. 2 for steps, eqs. 3 and 4 for soft and hard labels.
    Deviation: computed from logits, because log(1 - sigmoid(40)) is already -inf in float32; no sum over the steps of a
    solution is taken, that is what an aggregation is for.

    >>> binary_cross_entropy(torch.tensor([2.0, 2.0, -1.0]), torch.tensor([1.0, 0.0, 0.25]))
    tensor([0.1269, 2.1269, 0.5633])
    """
    check_float("scores", scores)
    check_float("labels", labels)
    check_same_shape("labels", labels, "scores", scores)
    if mask is None:
        mask = torch.ones_like(scores, dtype=torch.bool)
    check_mask("mask", mask)
    check_same_shape("mask", mask, "scores", scores)
    # Written so that nan is outside as well.
    wrong = mask & ~((labels >= 0) & (labels <= 1))
    if bool(wrong.any()):
        where = tuple(int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"labels[{', '.join(map(str, where))}] is {float(labels[where])}; a label is a probability, between 0 and 1"
        )
    # Before the loss as well as after it: the gradient that comes back to junk is 0 * nan, and stops here.
    score = torch.where(mask, scores, 0.0)
    label = labels.detach().to(scores.dtype)
    loss = -label * logsigmoid(score) - (1 - label) * logsigmoid(-score)
    return torch.where(mask, loss, 0.0)
