"""The parts put together: the gradient of a whole GRPO step, on a policy small enough to check by hand."""

import math

import pytest
import torch

from oncurve.functional import (
    AggregationMode,
    aggregate,
    clipped_surrogate,
    denominator,
    group_normalised,
    k3,
    place,
    selected_logprobs,
    token_ratio,
)

# A policy whose token at position t is drawn from softmax(THETA[t]), whatever came before.
THETA = torch.tensor([[0.2, -0.1, 0.4], [0.0, 0.3, -0.2]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.6, 0.0, 0.3], [0.0, 0.6, -0.1]], dtype=torch.float64)
TOKENS = torch.tensor([[0, 1], [2, 0], [1, 0], [2, 2]])
MASK = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1]]).bool()
REWARDS = torch.tensor([[1.0, 0.9, 0.0, 1.0]], dtype=torch.float64)


def score(theta: torch.Tensor, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    position = torch.arange(tokens.shape[1]).clamp(max=1).expand(tokens.shape)
    return place(selected_logprobs(theta[position[mask]], tokens[mask])[0], mask)


def step(
    mode: AggregationMode = "sequence_mean",
    divide_by: float | None = None,
    *,
    old: torch.Tensor = THETA,
    beta: float = 0.0,
    rows: list[int] | None = None,
    parts: list[list[int]] | None = None,
    padding: int = 0,
) -> tuple[float, torch.Tensor]:
    """Loss and gradient of one optimizer step; ``parts`` are microbatches."""
    theta = THETA.clone().requires_grad_()
    order = [0, 1, 2, 3] if rows is None else rows
    tokens = torch.nn.functional.pad(TOKENS[order], (0, padding))
    mask = torch.nn.functional.pad(MASK[order], (0, padding))
    advantages = group_normalised(REWARDS[:, order], ddof=0, eps=0.0).reshape(4, 1)
    whole = denominator(mask, mode) if divide_by is None else divide_by
    total = 0.0
    for part in parts or [[0, 1, 2, 3]]:
        m = mask[part]
        logprobs = score(theta, tokens[part], m)
        ratio = token_ratio(logprobs, score(old, tokens[part], m))
        per_token = clipped_surrogate(ratio, advantages[part], clip_low=0.2, clip_high=0.2)
        per_token = per_token + beta * k3(logprobs, score(REFERENCE, tokens[part], m))
        # What stands in the padding must not matter.
        per_token = torch.where(m, per_token, math.nan)
        loss = aggregate(per_token, m, mode, whole)
        loss.backward()
        total += loss.item()
    assert theta.grad is not None
    return total, theta.grad


def assert_gradient(actual: torch.Tensor, expected: list[list[float]], tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def test_the_first_step_is_reinforce_with_a_group_baseline() -> None:
    loss, gradient = step("sequence_mean")
    assert loss == pytest.approx(0.0, abs=1e-15)  # and yet:
    assert_gradient(
        gradient,
        [
            [-0.15447929310125105, 0.3770776655387807, -0.22259837243752967],
            [0.015992895528994945, 0.01006356496820313, -0.026056460497198106],
        ],
    )
    loss, gradient = step("token_mean")
    assert loss == pytest.approx(-0.246267295000788, abs=1e-14)
    assert_gradient(
        gradient,
        [
            [-0.09341173258650576, 0.24626729500078792, -0.15285556241428216],
            [0.018277594890279934, 0.011501217106517872, -0.029778811996797827],
        ],
    )
    loss, gradient = step("token_mean", divide_by=4 * 4.0)  # Dr. GRPO with a budget of 4 tokens
    assert loss == pytest.approx(-0.10774194156284475, abs=1e-14)
    assert_gradient(
        gradient,
        [
            [-0.04086763300659628, 0.10774194156284471, -0.06687430855624846],
            [0.007996447764497473, 0.005031782484101565, -0.013028230248599053],
        ],
    )


def test_the_gradient_coefficient_of_deepseekmath() -> None:
    """Equation 21: the gradient is that of a weighted log-likelihood, with A + beta (reference / policy - 1)."""
    _, gradient = step(beta=0.04)
    expected = [
        [-0.15631935371941777, 0.3772182361551489, -0.22089888243573116],
        [0.01664320966317527, 0.009192103192037584, -0.02583531285521288],
    ]
    assert_gradient(gradient, expected)

    theta = THETA.clone().requires_grad_()
    logprobs = score(theta, TOKENS, MASK)
    advantages = group_normalised(REWARDS, ddof=0, eps=0.0).reshape(4, 1)
    coefficients = advantages + 0.04 * (token_ratio(score(REFERENCE, TOKENS, MASK), logprobs) - 1)
    by_row = [c[m].tolist() for c, m in zip(coefficients.detach(), MASK, strict=True)]
    assert by_row[0] == pytest.approx([0.6656323438895587, 0.6597871323542674], abs=1e-9)
    assert by_row[1] == pytest.approx([0.4074949013141866, 0.4101140723623635], abs=1e-9)
    assert by_row[2] == pytest.approx([-1.7255335622285042], abs=1e-9)
    assert by_row[3] == pytest.approx([0.6452702206252922, 0.6514659668041487], abs=1e-9)
    aggregate(-coefficients.detach() * logprobs, MASK, "sequence_mean", 4.0).backward()
    assert_gradient(theta.grad, expected)


@pytest.mark.parametrize("mode", ["sequence_mean", "token_mean"])
def test_a_batch_may_be_cut_ordered_and_padded_in_any_way(mode: AggregationMode) -> None:
    old = THETA + torch.tensor([[0.3, -0.3, 0.0], [-0.4, 0.1, 0.2]], dtype=torch.float64)
    loss, gradient = step(mode, old=old, beta=0.04)
    assert gradient.abs().max().item() > 0.05
    for options in (
        {"rows": [2, 0, 3, 1]},
        {"rows": [3, 2, 1, 0]},
        {"parts": [[0], [1, 2, 3]]},
        {"parts": [[0], [1], [2], [3]]},
        {"padding": 3},
        {"rows": [1, 3, 0, 2], "parts": [[0, 1, 2], [3]], "padding": 1},
    ):
        other_loss, other_gradient = step(mode, old=old, beta=0.04, **options)
        assert other_loss == pytest.approx(loss, abs=1e-15)
        torch.testing.assert_close(other_gradient, gradient, rtol=0, atol=1e-15)
