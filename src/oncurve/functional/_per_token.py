"""What ratios, corrections and losses share: checked log-ratios, sums over a completion, no 0 * inf in a gradient."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oncurve.functional._checks import check_axes, check_float, check_mask, check_same_shape


def check_per_token(name: str, values: Tensor, other_name: str, other: Tensor) -> None:
    """Require the shape ``[B, T]`` of ``other``, or ``[B, 1]`` for one value per completion."""
    check_float(name, values)
    per_row = other.dim() == 2 and values.shape == (other.shape[0], 1)
    if not per_row and values.shape != other.shape:
        raise ValueError(
            f"{name} must have the shape [B, T] of {other_name} {list(other.shape)}, or [B, 1]; "
            f"got {list(values.shape)}"
        )


def difference(name: str, logprobs: Tensor, other_name: str, other: Tensor) -> Tensor:
    """``logprobs - other``, a log-ratio, after the checks each one needs. No gradient passes to ``other``."""
    check_float(name, logprobs)
    check_float(other_name, other)
    check_same_shape(other_name, other, name, logprobs)
    return logprobs - other.detach()


def kept(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """``log_ratio`` ``[B, T]`` where the mask is True, 0 elsewhere: in value and in gradient."""
    check_axes("logprobs", log_ratio, "BT")
    check_mask("mask", mask)
    check_same_shape("mask", mask, "logprobs", log_ratio)
    return torch.where(mask, log_ratio, 0.0)


def row_sum(values: Tensor) -> Tensor:
    """``[B, 1]`` float64: in float32 a sum over 10,000 tokens loses digits that the exponential shows."""
    return values.sum(dim=1, keepdim=True, dtype=torch.float64)


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """``[B, 1]`` float64, of values that are 0 where the mask is False; 0 for a row without a True entry."""
    return row_sum(values) / mask.sum(dim=1, keepdim=True).clamp(min=1)


def bounded_exp(log_ratio: Tensor, dtype: torch.dtype) -> Tensor:
    """exp in ``dtype``, with a gradient of 0 where the result is not finite.

    Without that, junk in padding, whose gradient is 0 because a mask drops it from the loss, comes back as 0 * inf.
    """
    finite = log_ratio < math.log(torch.finfo(dtype).max)  # False for nan as well
    return torch.where(finite, log_ratio, log_ratio.detach()).exp().to(dtype)


def product(factor: Tensor, gain: Tensor) -> Tensor:
    """``factor * gain`` with 0 for a gain of 0 times inf: what has advantage 0 teaches nothing, however far it is off.

    nan stays nan.
    """
    return torch.where((gain == 0) & factor.isinf(), 0.0, factor * gain)
