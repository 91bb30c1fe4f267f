"""The loss of supervised fine-tuning, per token."""

from __future__ import annotations

from torch import Tensor

from oncurve.functional._checks import check_float


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

    >>> import torch
    >>> nll(torch.tensor([[0.5, 0.25]]).log())
    tensor([[0.6931, 1.3863]])
    """
    check_float("logprobs", logprobs)
    return -logprobs
