"""Chunks of logits, recomputed in the backward pass, are the whole log-softmax."""

import pytest
import torch

from oncurve.functional import linear_logprobs, selected_logprobs

N, D, V = 13, 6, 11


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    hidden, weight, bias = (
        torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((N, D), (V, D), (V,))
    )
    targets = torch.randint(0, V, (N,), generator=generator)
    upstream = torch.randn(N, generator=generator, dtype=torch.float64).to(dtype)
    return hidden, weight, bias, targets, upstream


@pytest.mark.parametrize("chunk_elements", [1, V, 3 * V, 10_000])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_against_all_logits_at_once(chunk_elements, temperature):
    hidden, weight, bias, targets, upstream = inputs()
    found = linear_logprobs(hidden, weight, bias, targets, temperature, chunk_elements=chunk_elements)
    gradients = torch.autograd.grad((found[0] * upstream).sum(), (hidden, weight, bias))
    expected = selected_logprobs(hidden @ weight.T + bias, targets, temperature)
    wanted = torch.autograd.grad((expected[0] * upstream).sum(), (hidden, weight, bias))
    for one, other in zip((*found, *gradients), (*expected, *wanted), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_by_finite_differences():
    hidden, weight, bias, targets, _ = inputs()
    assert torch.autograd.gradcheck(
        lambda h, w, b: linear_logprobs(h, w, b, targets, 0.7, chunk_elements=4 * V)[0], (hidden, weight, bias)
    )


def test_without_a_bias_and_with_a_frozen_layer():
    hidden, weight, _, targets, upstream = inputs()
    logprobs, entropy = linear_logprobs(hidden, weight.detach(), None, targets)
    assert not entropy.requires_grad
    (gradient,) = torch.autograd.grad((logprobs * upstream).sum(), hidden)
    expected = selected_logprobs(hidden @ weight.detach().T, targets)[0]
    torch.testing.assert_close(
        gradient, torch.autograd.grad((expected * upstream).sum(), hidden)[0], rtol=0, atol=1e-12
    )


def test_no_row_at_all():
    hidden, weight, bias, _, _ = inputs()
    logprobs, entropy = linear_logprobs(hidden[:0], weight, bias, torch.zeros(0, dtype=torch.int64))
    assert logprobs.shape == entropy.shape == (0,)
    logprobs.sum().backward()
    assert not weight.grad.any()


def test_a_logit_that_is_far_off_gives_no_nan():
    hidden = torch.tensor([[200.0]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    logprobs, entropy = linear_logprobs(hidden, weight, None, torch.tensor([1]))
    logprobs.backward()
    assert logprobs.tolist() == [-400.0]
    assert entropy.tolist() == [0.0]
    assert hidden.grad.tolist() == [[-2.0]]
    assert weight.grad.tolist() == [[-200.0], [200.0]]


def test_sixteen_bits_are_summed_in_thirty_two():
    hidden, weight, bias, targets, _ = inputs(torch.bfloat16)
    logprobs, entropy = linear_logprobs(hidden, weight, bias, targets)
    assert logprobs.dtype == entropy.dtype == torch.float32
    expected = selected_logprobs(torch.nn.functional.linear(hidden, weight, bias), targets)[0]
    torch.testing.assert_close(logprobs, expected, rtol=0, atol=1e-6)
    logprobs.sum().backward()
    assert hidden.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.zeros(V, D + 1)}, r"weight \[11, 7\] must be \[V, D\] with the D of hidden"),
        ({"bias": torch.zeros(V + 1)}, r"bias must have shape \[V\]"),
        ({"targets": torch.zeros(N + 1, dtype=torch.int64)}, r"targets must have shape \[N\]"),
        ({"temperature": 0.0}, "temperature must be a finite number above 0"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    arguments = {
        "hidden": torch.zeros(N, D),
        "weight": torch.zeros(V, D),
        "bias": None,
        "targets": torch.zeros(N, dtype=torch.int64),
        "temperature": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        linear_logprobs(**(arguments | change))
