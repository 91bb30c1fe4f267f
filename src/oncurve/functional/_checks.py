"""Input checks shared by the functions of this package. They look at types and shapes only, never at values, so that
they cost nothing on an accelerator."""

from __future__ import annotations

import torch
from torch import Tensor


def check_float(name: str, tensor: Tensor) -> None:
    """Require float32 or float64: a log-prob near -0.6 rounded to bfloat16 is off by up to 0.002 nats."""
    _check_tensor(name, tensor)
    if tensor.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"{name} must be float32 or float64, got {tensor.dtype}")


def check_any_float(name: str, tensor: Tensor) -> None:
    """Require a floating dtype of any width, for what the function itself upcasts."""
    _check_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be a floating-point tensor, got {tensor.dtype}")


def check_ids(name: str, tensor: Tensor) -> None:
    """Require int64: ids, counts and keys."""
    _check_tensor(name, tensor)
    if tensor.dtype != torch.int64:
        raise TypeError(f"{name} must be int64, got {tensor.dtype}")


def check_mask(name: str, tensor: Tensor) -> None:
    """Require bool: a mask of 0 and 1 would be taken for indices or for a factor (and 0 * inf is nan)."""
    _check_tensor(name, tensor)
    if tensor.dtype != torch.bool:
        raise TypeError(f"{name} must be bool (True = kept), got {tensor.dtype}")


def check_axes(name: str, tensor: Tensor, axes: str) -> None:
    """Require as many dimensions as ``axes`` has letters: ``"BT"`` stands for ``[B, T]``."""
    if tensor.dim() != len(axes):
        raise ValueError(f"{name} must have shape [{', '.join(axes)}], got {list(tensor.shape)}")


def check_same_shape(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """Require equal shapes: broadcasting one row over a batch is how a wrong shape stays unseen."""
    if tensor.shape != other.shape:
        raise ValueError(f"{name} {list(tensor.shape)} and {other_name} {list(other.shape)} must have the same shape")


def _check_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(value).__name__}")
