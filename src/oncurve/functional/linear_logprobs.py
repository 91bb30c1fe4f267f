"""Log-probabilities straight from hidden states and an output layer, without ever holding all logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from oncurve.functional._checks import check_any_float, check_axes, check_ids
from oncurve.functional._packed_linear import packed_linear

CHUNK_ELEMENTS = 1 << 22
"""Logits held at a time by default: 16 MiB in float32, which glibc's allocator can be told to keep and reuse."""


def linear_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float = 1.0,
    *,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor]:
    """What :func:`~oncurve.functional.logprobs.selected_logprobs` gives for ``hidden @ weight.T + bias``, in chunks.

        z = (hidden @ weight.T + bias) / temperature,   logprob = z[target] - logsumexp(z),   H = -sum_v p[v] log p[v]

    The backward pass computes the logits of each chunk again and turns them into their own gradient in place, so that
    memory is that of one chunk whatever N is; one more matrix product in four is the price.

    Args:
        hidden: ``[N, D]``, any floating dtype.
        weight: ``[V, D]`` of the output layer, of the dtype of hidden.
        bias: ``[V]`` or None.
        targets: ``[N]`` int64, each in ``[0, V)``.
        temperature: above 0.
        chunk_elements: logits held at a time; at least one row of V is.

    Returns:
        ``(logprobs, entropy)``, both ``[N]`` in nats, float32 or float64. Gradients pass from logprobs to hidden,
        weight and bias; the entropy is a measurement and carries none.

    Raises:
        ValueError: shapes that do not fit, a temperature that is not above 0.

    Source: the scaled log-softmax; d logprob / d z = onehot(target) - softmax(z). Deviation: logits of a 16-bit model
    are upcast after the product, not before it, as in ``selected_logprobs``.

    >>> hidden, weight = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0], [-1.0, 0.0]])
    >>> logprobs, entropy = linear_logprobs(hidden, weight, None, torch.tensor([1]), temperature=0.7)
    >>> round(logprobs.item(), 4), round(entropy.item(), 4)
    (-1.6992, 0.702)
    """
    check_any_float("hidden", hidden)
    check_axes("hidden", hidden, "ND")
    check_any_float("weight", weight)
    check_axes("weight", weight, "VD")
    check_ids("targets", targets)
    if weight.shape[1] != hidden.shape[1]:
        raise ValueError(f"weight {list(weight.shape)} must be [V, D] with the D of hidden {list(hidden.shape)}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias must have shape [V] with the V of weight {list(weight.shape)}, got {list(bias.shape)}")
    if targets.shape != hidden.shape[:1]:
        raise ValueError(
            f"targets must have shape [N] with the N of hidden {list(hidden.shape)}, got {list(targets.shape)}"
        )
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature must be a finite number above 0, got {temperature}")
    rows = max(1, chunk_elements // max(1, weight.shape[0]))
    apply = cast(Callable[..., tuple[Tensor, Tensor]], _LinearLogprobs.apply)  # pyright: ignore[reportUnknownMemberType]
    return apply(hidden, weight, bias, targets, temperature, rows)


class _LinearLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float, rows: int
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logprobs, entropy, normaliser = (hidden.new_empty(hidden.shape[0], dtype=dtype) for _ in range(3))
        layer = packed_linear(weight, bias, rows, len(hidden))
        for chunk in _chunks(len(hidden), rows):
            z = _scaled(layer(hidden[chunk]), temperature)
            largest = z.amax(dim=-1, keepdim=True)
            z.sub_(largest)
            chosen = z.gather(-1, targets[chunk, None])[:, 0]
            # With w = exp(z - max) and s = sum w:  H = -sum (w/s) (z - max - log s) = log s - sum w (z - max) / s. The
            # bound keeps 0 * inf, of a logit that is -inf, from being nan.
            weights = z.exp()
            total = weights.sum(dim=-1)
            log_total = total.log()
            normaliser[chunk] = largest[:, 0] + log_total
            logprobs[chunk] = chosen - log_total
            entropy[chunk] = log_total - weights.mul_(z.clamp_(min=_LEAST)).sum(dim=-1) / total
        ctx.save_for_backward(hidden, weight, bias, targets, normaliser)
        ctx.temperature, ctx.rows = temperature, rows
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, normaliser = ctx.saved_tensors
        upstream = grads[0] / ctx.temperature
        wanted = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if wanted[0] else None
        grad_weight = torch.zeros_like(weight) if wanted[1] else None
        grad_bias = torch.zeros_like(bias) if wanted[2] else None
        layer = packed_linear(weight, bias, ctx.rows, len(hidden))
        for chunk in _chunks(len(hidden), ctx.rows):
            z = _scaled(layer(hidden[chunk]), ctx.temperature)
            g = upstream[chunk]
            # g * (onehot - p), in place of the logits
            z = z.sub_(normaliser[chunk, None]).exp_().mul_(-g[:, None])
            z.scatter_add_(1, targets[chunk, None], g[:, None])
            z = z.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[chunk] = z @ weight
            if grad_weight is not None:
                grad_weight.addmm_(z.T, hidden[chunk])
            if grad_bias is not None:
                grad_bias += z.sum(dim=0)
        return grad_hidden, grad_weight, grad_bias, None, None, None


_LEAST = -1e30
"""A logit that far below the largest has a probability of exactly 0."""


def _scaled(z: Tensor, temperature: float) -> Tensor:
    """``[n, V]`` logits over the temperature, in their own place or in a wider type."""
    z = z if z.dtype == torch.float64 else z.float()
    return z if temperature == 1.0 else z.div_(temperature)


def _chunks(n: int, rows: int) -> list[slice]:
    return [slice(start, min(n, start + rows)) for start in range(0, n, rows)]
