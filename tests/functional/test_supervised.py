import math

import pytest
import torch

from oncurve.functional import (
    aggregate,
    binary_cross_entropy,
    bradley_terry,
    denominator,
    nll,
    place,
    predictor_mask,
    selected_logprobs,
)

CHOSEN, REJECTED = [1.5, 0.0, -2.0], [0.5, 0.0, 1.0]


def test_nll_is_minus_the_log_prob() -> None:
    logprobs = torch.tensor([[-0.5, -2.0]], requires_grad=True)
    loss = nll(logprobs)
    assert loss.tolist() == [[0.5, 2.0]]
    loss.sum().backward()
    assert logprobs.grad.tolist() == [[-1.0, -1.0]]


def test_the_token_mean_is_cross_entropy_on_the_completion_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 11, (3, 7), generator=generator)
    logits = torch.randn(3, 7, 11, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[0, 0, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 0, 0]]).bool()
    selected, _ = selected_logprobs(logits[predictor_mask(mask)], tokens[mask])
    loss = aggregate(nll(place(selected, mask)), mask, "token_mean", denominator(mask, "token_mean"))
    labels = tokens.masked_fill(~mask, -100)
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 11), labels[:, 1:].reshape(-1))
    assert loss.item() == pytest.approx(expected.item(), abs=1e-14)


def float64(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def test_bradley_terry() -> None:
    chosen, rejected = float64(*CHOSEN).requires_grad_(), float64(*REJECTED).requires_grad_()
    loss = bradley_terry(chosen, rejected)
    assert loss.tolist() == pytest.approx([0.31326168751822286, 0.6931471805599453, 3.048587351573742], abs=1e-14)
    loss.sum().backward()
    gradient = [-0.2689414213699951, -0.5, -0.9525741268224334]
    assert chosen.grad.tolist() == pytest.approx(gradient, abs=1e-14)
    assert rejected.grad.tolist() == pytest.approx([-g for g in gradient], abs=1e-14)


def test_the_margin_of_a_pair() -> None:
    chosen, rejected = float64(*CHOSEN), float64(*REJECTED)
    loss = bradley_terry(chosen, rejected, margin=0.5)
    assert loss[0].item() == pytest.approx(0.4740769841801067, abs=1e-14)
    per_pair = bradley_terry(chosen, rejected, margin=float64(0.5, 0.0, -3.0))
    expected = [0.4740769841801067, 0.6931471805599453, 0.6931471805599453]
    assert per_pair.tolist() == pytest.approx(expected, abs=1e-14)


def test_the_centring_of_a_pair() -> None:
    chosen, rejected = float64(*CHOSEN).requires_grad_(), float64(*REJECTED)
    plain = bradley_terry(chosen, rejected)
    added = bradley_terry(chosen, rejected, centring=0.01) - plain
    assert added.tolist() == pytest.approx([0.04, 0.0, 0.01], abs=1e-14)
    added.sum().backward()
    assert chosen.grad.tolist() == pytest.approx([0.04, 0.0, -0.02], abs=1e-14)


def test_bradley_terry_far_from_zero() -> None:
    chosen = torch.tensor([200.0, -200.0, 17.0], requires_grad=True)
    loss = bradley_terry(chosen, torch.zeros(3))
    assert loss.tolist() == pytest.approx([0.0, 200.0, 4.139937e-08], rel=1e-6)
    loss.sum().backward()
    assert chosen.grad.tolist() == pytest.approx([0.0, -1.0, -4.139937e-08], rel=1e-6)


def test_binary_cross_entropy() -> None:
    scores = float64(0.0, 2.0, 2.0, -1.0).requires_grad_()
    loss = binary_cross_entropy(scores, float64(1.0, 1.0, 0.0, 0.25))
    # ln 2; ln(1 + e^-2); 2 + ln(1 + e^-2); 0.25 (1 + ln(1 + e^-1)) + 0.75 ln(1 + e^-1)
    expected = [0.6931471805599453, 0.1269280110429725, 2.1269280110429727, 0.5632616875182229]
    assert loss.tolist() == pytest.approx(expected, abs=1e-14)
    loss.sum().backward()
    # sigmoid(s) - y
    expected = [-0.5, -0.11920292202211757, 0.8807970779778824, 0.018941421369995104]
    assert scores.grad.tolist() == pytest.approx(expected, abs=1e-14)


def test_a_soft_label_is_best_met_by_its_own_probability() -> None:
    probability = 0.3
    scores = float64(math.log(probability / (1 - probability))).requires_grad_()
    loss = binary_cross_entropy(scores, float64(probability))
    loss.sum().backward()
    assert loss.item() == pytest.approx(0.6108643020548935, abs=1e-14)  # the entropy of a coin of 0.3
    assert scores.grad.item() == pytest.approx(0.0, abs=1e-15)


def test_binary_cross_entropy_far_from_zero() -> None:
    scores = torch.tensor([200.0, 200.0, -200.0], requires_grad=True)
    loss = binary_cross_entropy(scores, torch.tensor([1.0, 0.0, 1.0]))
    loss.sum().backward()
    assert loss.tolist() == [0.0, 200.0, 200.0]
    assert scores.grad.tolist() == [0.0, 1.0, -1.0]


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 7.0])
def test_steps_without_a_label_reach_neither_value_nor_gradient(junk: float) -> None:
    mask = torch.tensor([[False, True, False], [False, False, False]])
    scores = torch.where(mask, 2.0, junk).double().requires_grad_()
    loss = binary_cross_entropy(scores, torch.where(mask, 0.0, junk), mask)
    assert loss.dtype == torch.float64
    assert loss.tolist() == [[0.0, pytest.approx(2.1269280110429727, abs=1e-14), 0.0], [0.0, 0.0, 0.0]]
    aggregate(loss, mask, "token_mean", 1.0).backward()
    assert scores.grad.tolist() == [[0.0, pytest.approx(0.8807970779778824, abs=1e-14), 0.0], [0.0, 0.0, 0.0]]


def test_bad_input_is_named() -> None:
    with pytest.raises(TypeError, match=r"logprobs must be float32 or float64, got torch\.bfloat16"):
        nll(torch.zeros(1, 1, dtype=torch.bfloat16))
    pair = torch.zeros(2)
    calls = [
        (lambda: bradley_terry(pair, torch.zeros(3)), ValueError, r"rejected \[3\] and chosen \[2\]"),
        (lambda: bradley_terry(pair.view(1, 2), pair.view(1, 2)), ValueError, r"chosen must have shape \[N\]"),
        (lambda: bradley_terry(pair.long(), pair), TypeError, "chosen must be float32 or float64"),
        (lambda: bradley_terry(pair, pair, margin=torch.zeros(1)), ValueError, r"margin \[1\] and chosen \[2\]"),
        (lambda: bradley_terry(pair, pair, margin=math.nan), ValueError, "margin must be finite, got nan"),
        (lambda: bradley_terry(pair, pair, centring=-0.1), ValueError, r"centring .* got -0\.1"),
        (lambda: binary_cross_entropy(pair, torch.zeros(3)), ValueError, r"labels \[3\] and scores \[2\]"),
        (lambda: binary_cross_entropy(pair, pair.long()), TypeError, "labels must be float32 or float64"),
        (lambda: binary_cross_entropy(pair, pair, pair), TypeError, "mask must be bool"),
        (lambda: binary_cross_entropy(pair, pair, torch.ones(1).bool()), ValueError, r"mask \[1\] and scores \[2\]"),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()
    for label in (1.5, -1.0, math.nan):
        with pytest.raises(ValueError, match=rf"labels\[1\] is {label}; a label is a probability, between 0 and 1"):
            binary_cross_entropy(pair, torch.tensor([1.0, label]))
