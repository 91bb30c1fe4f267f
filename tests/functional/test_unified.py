"""The coefficients of the unified view: the weighted likelihood with them has the gradient of the loss itself."""

import math

import pytest
import torch
from torch import Tensor

from oncurve.functional import aggregate, clipped_surrogate, group_normalised, k3, place, selected_logprobs
from oncurve.functional.policy_losses import cispo, dual_clip, reinforce, sapo, two_sided_clip, weighted_nll
from oncurve.functional.ratios import sequence_token_ratio, token_ratio
from oncurve.functional.unified import dpo_coefficient, grpo_coefficients

# A policy whose token at position t is drawn from softmax(THETA[t]), whatever came before.
THETA = torch.tensor([[0.2, -0.1, 0.4], [0.0, 0.3, -0.2]], dtype=torch.float64)
REFERENCE = torch.tensor([[0.6, 0.0, 0.3], [0.0, 0.6, -0.1]], dtype=torch.float64)
TOKENS = torch.tensor([[0, 1], [2, 0], [1, 0], [2, 2]])
MASK = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1]]).bool()
ADVANTAGES = group_normalised(torch.tensor([[1.0, 0.9, 0.0, 1.0]], dtype=torch.float64), ddof=0, eps=0.0).reshape(4, 1)


def score(theta: Tensor) -> Tensor:
    position = torch.arange(2).expand(TOKENS.shape)
    return place(selected_logprobs(theta[position[MASK]], TOKENS[MASK])[0], MASK)


def gradient(per_token, mode: str = "sequence_mean", divide_by: float = 4.0) -> Tensor:
    """In the logits, of the aggregated loss that ``per_token(logprobs)`` makes."""
    theta = THETA.clone().requires_grad_()
    aggregate(per_token(score(theta)), MASK, mode, divide_by).backward()
    assert theta.grad is not None
    return theta.grad


def close(actual: Tensor, expected: list[list[float]], tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def test_the_coefficients_of_grpo() -> None:
    found = grpo_coefficients(ADVANTAGES, score(THETA), score(REFERENCE), kl_coef=0.04)
    assert found[0].tolist() == pytest.approx([0.6656323438895587, 0.6597871323542674], abs=1e-12)
    assert found[1].tolist() == pytest.approx([0.4074949013141866, 0.4101140723623635], abs=1e-12)
    assert found[2, 0].item() == pytest.approx(-1.7255335622285042, abs=1e-12)
    assert found[3].tolist() == pytest.approx([0.6452702206252922, 0.6514659668041487], abs=1e-12)


def test_with_them_the_weighted_likelihood_has_the_gradient_of_grpo() -> None:
    reference, old = score(REFERENCE), score(THETA)
    coefficients = grpo_coefficients(ADVANTAGES, old, reference, kl_coef=0.04)
    expected = [
        [-0.15631935371941777, 0.3772182361551489, -0.22089888243573116],
        [0.01664320966317527, 0.009192103192037584, -0.02583531285521288],
    ]
    close(gradient(lambda logprobs: weighted_nll(logprobs, coefficients)), expected)

    def grpo(logprobs: Tensor) -> Tensor:
        ratio = token_ratio(logprobs, old)
        return clipped_surrogate(ratio, ADVANTAGES, clip_low=0.2, clip_high=0.2) + 0.04 * k3(logprobs, reference)

    torch.testing.assert_close(
        gradient(grpo), gradient(lambda logprobs: weighted_nll(logprobs, coefficients)), rtol=0, atol=1e-15
    )


@pytest.mark.parametrize(
    ("mode", "divide_by", "expected"),
    [
        (
            "sequence_mean",
            4.0,
            [
                [-0.15447929310125105, 0.3770776655387807, -0.22259837243752967],
                [0.015992895528994945, 0.01006356496820313, -0.026056460497198106],
            ],
        ),
        (
            "token_mean",
            7.0,
            [
                [-0.09341173258650576, 0.24626729500078792, -0.15285556241428216],
                [0.018277594890279934, 0.011501217106517872, -0.029778811996797827],
            ],
        ),
        (
            "token_mean",  # divided by a budget of four tokens for each of four rows
            16.0,
            [
                [-0.04086763300659628, 0.10774194156284471, -0.06687430855624846],
                [0.007996447764497473, 0.005031782484101565, -0.013028230248599053],
            ],
        ),
    ],
)
def test_the_first_update_of_every_surrogate_is_reinforce_with_the_baseline_of_the_group(
    mode: str, divide_by: float, expected: list[list[float]]
) -> None:
    old = score(THETA)
    losses = [
        lambda x: weighted_nll(x, ADVANTAGES),
        lambda x: reinforce(x, ADVANTAGES),
        lambda x: clipped_surrogate(token_ratio(x, old), ADVANTAGES, clip_low=0.2, clip_high=0.2),
        lambda x: clipped_surrogate(sequence_token_ratio(x, old, MASK), ADVANTAGES, clip_low=3e-4, clip_high=4e-4),
        lambda x: dual_clip(token_ratio(x, old), ADVANTAGES, clip_low=0.2, clip_high=0.2, cap=3.0),
        lambda x: two_sided_clip(token_ratio(x, old), ADVANTAGES, clip_low=0.2, clip_high=0.2, cap=4.0),
        lambda x: cispo(token_ratio(x, old), ADVANTAGES, x, cap=5.0),
        lambda x: sapo(token_ratio(x, old), ADVANTAGES),
    ]
    for loss in losses:
        close(gradient(loss, mode, divide_by), expected)


def test_rejection_sampling_is_the_likelihood_of_what_is_right() -> None:
    right = torch.tensor([[1.0], [0.0], [0.0], [1.0]], dtype=torch.float64)
    one = gradient(lambda logprobs: weighted_nll(logprobs, right))
    other = gradient(lambda logprobs: torch.where(right == 1, -logprobs, 0.0))
    assert one.abs().max().item() > 0.05
    torch.testing.assert_close(one, other, rtol=0, atol=1e-15)


def test_without_a_kl_the_reference_is_not_looked_at() -> None:
    reference = torch.full((4, 2), math.nan, dtype=torch.float64)
    found = grpo_coefficients(ADVANTAGES, score(THETA), reference, kl_coef=0.0)
    assert torch.equal(found, ADVANTAGES.expand(4, 2))


def test_a_coefficient_is_a_constant() -> None:
    tensors = [torch.tensor([[x]], requires_grad=True) for x in (1.0, -0.7, -1.4)]
    for kl_coef in (0.0, 0.04):
        assert not grpo_coefficients(*tensors, kl_coef=kl_coef).requires_grad
    assert not dpo_coefficient(*tensors[:2], beta=0.1).requires_grad


def test_an_advantage_for_each_token() -> None:
    advantages = torch.tensor([[1.0, -2.0]])
    logprobs, reference = torch.tensor([[0.5, 0.2]]).log(), torch.tensor([[0.25, 0.4]]).log()
    found = grpo_coefficients(advantages, logprobs, reference, kl_coef=0.5)
    torch.testing.assert_close(found, torch.tensor([[0.75, -1.5]]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_junk_in_padding_reaches_no_gradient(junk: float, place: int) -> None:
    mask = torch.tensor([[True, False]])
    tensors = [torch.tensor([[1.0, 1.0]]), torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.25]]).log()]
    tensors[place][0, 1] = junk
    logprobs = tensors[1].requires_grad_()
    coefficients = grpo_coefficients(*tensors, kl_coef=0.04)
    assert not coefficients.requires_grad
    loss = aggregate(weighted_nll(logprobs, coefficients), mask, "token_mean", 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.98 * math.log(2), rel=1e-6)
    assert logprobs.grad.tolist() == [[pytest.approx(-0.98, rel=1e-6), 0.0]]


def test_the_coefficient_of_dpo() -> None:
    chosen = torch.tensor([0.4, 0.0, 9.0], dtype=torch.float64)
    rejected = torch.tensor([-0.2, 0.0, -9.0], dtype=torch.float64)
    found = dpo_coefficient(chosen, rejected, beta=0.1)
    assert found[0].item() == pytest.approx(0.4850044983805899, abs=1e-12)
    assert found[1].item() == 0.5
    assert found[2].item() == pytest.approx(1 / (1 + math.exp(1.8)), abs=1e-12)
    # a pair the wrong way round weighs more
    assert dpo_coefficient(rejected, chosen, beta=0.1)[0].item() == pytest.approx(1 - 0.4850044983805899, abs=1e-12)


def test_dpo_is_a_weighted_likelihood_of_both_completions() -> None:
    """The derivative of -log sigmoid(beta (chosen - rejected)) is the coefficient times beta, with either sign."""
    log_ratios = torch.tensor([[0.7, -0.3], [-1.2, 0.4]], dtype=torch.float64, requires_grad=True)
    chosen, rejected = log_ratios.unbind(dim=1)
    (-torch.nn.functional.logsigmoid(0.3 * (chosen - rejected))).sum().backward()
    coefficient = dpo_coefficient(chosen, rejected, beta=0.3)
    assert not coefficient.requires_grad
    expected = 0.3 * torch.stack([-coefficient, coefficient], dim=1)
    torch.testing.assert_close(log_ratios.grad, expected, rtol=0, atol=1e-15)


def test_extremes_of_dpo() -> None:
    found = dpo_coefficient(torch.tensor([1e30, -1e30, math.inf]), torch.tensor([0.0, 0.0, 0.0]), beta=0.1)
    assert found.tolist() == [0.0, 1.0, 0.0]


def test_bad_input_is_named() -> None:
    ones = torch.ones(2, 3)
    for shape in ((2,), (3,), (1, 3), (2, 2)):
        with pytest.raises(
            ValueError, match=r"advantages must have the shape \[B, T\] of logprobs \[2, 3\], or \[B, 1\]"
        ):
            grpo_coefficients(torch.ones(shape), ones, ones, kl_coef=0.1)
    with pytest.raises(ValueError, match=r"logprobs \[2, 3\] and ref_logprobs \[2, 1\] must have the same shape"):
        grpo_coefficients(ones, ones, torch.ones(2, 1), kl_coef=0.1)
    with pytest.raises(TypeError, match=r"ref_logprobs must be float32 or float64, got torch\.bfloat16"):
        grpo_coefficients(ones, ones, ones.bfloat16(), kl_coef=0.1)
    for bad in (-0.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"kl_coef must be a finite number of at least 0, got {bad}"):
            grpo_coefficients(ones, ones, ones, kl_coef=bad)
        with pytest.raises(ValueError, match=f"beta must be a finite number of at least 0, got {bad}"):
            dpo_coefficient(ones, ones, beta=bad)
    with pytest.raises(ValueError, match=r"rejected_log_ratio \[2\] and chosen_log_ratio \[2, 3\] must have the same"):
        dpo_coefficient(ones, torch.ones(2), beta=0.1)
    with pytest.raises(TypeError, match=r"chosen_log_ratio must be float32 or float64, got torch\.int64"):
        dpo_coefficient(ones.long(), ones, beta=0.1)
