"""Inputs that once gave a silent wrong number, with what is right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import tensor

from oncurve import functional as F


def test_sapo_keeps_junk_out_of_the_gradient():
    ratio = tensor([[1.0, math.nan]], requires_grad=True)
    mask = tensor([[True, False]])
    loss = F.aggregate(F.sapo(ratio, tensor([[1.0]])), mask, "token_mean", 1.0)
    loss.backward()
    assert ratio.grad.tolist() == [[-1.0, 0.0]]
    assert F.sapo(ratio, tensor([[1.0]]))[0, 1].isnan()


def test_an_infinite_ratio_with_no_advantage_is_no_loss():
    assert F.clipped_surrogate(tensor([[math.inf]]), tensor([[0.0]]), clip_low=0.2, clip_high=math.inf).item() == 0.0


def test_k3_ratio_is_zero_where_the_reference_agrees():
    assert F.k3_ratio(tensor([[-1.0]]), tensor([[-1.0]]), tensor([[-200.0]])).item() == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.bradley_terry(tensor([1.0]), tensor([0.0]), margin=tensor([math.nan])), r"margin\[0\] is nan"),
        (lambda: F.length_adaptive_lambda(tensor([[-5]])), "lengths must be at least 0, got -5"),
        (lambda: F.wilson(3, 5, -1.96), "z must be a finite number of at least 0"),
        (lambda: F.wilson(3, 5, math.nan), "z must be a finite number of at least 0"),
        (lambda: F.clustered_interval([0.5, 0.25], z=-1.0), "z must be a finite number of at least 0"),
        (lambda: F.completion_mask(tensor([1]), tensor([2**63 - 1]), 4), "row 0 has a prompt of 1"),
        (
            lambda: F.denominator(tensor([[True]]), "length_budget", budget=1.5),
            "length_budget needs a budget of at least 1 token",
        ),
        (
            lambda: F.aggregate(tensor([[1.0]]), tensor([[True]]), "prompt_mean", 1.0, group_tokens=tensor([0])),
            "group_tokens must count at least the trained tokens of each row",
        ),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_length_that_would_overflow_is_no_empty_mask():
    assert torch.equal(F.completion_mask(tensor([1]), tensor([2]), 4), tensor([[False, True, True, False]]))
