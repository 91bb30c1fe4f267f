import math

import pytest
import torch

from oncurve.functional import aggregate, clip_flags, clipped_surrogate, token_ratio


def loss_and_gradient(ratio: float, advantage: float, low: float, high: float) -> tuple[float, float]:
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    r = token_ratio(logprobs, torch.zeros(1, 1, dtype=torch.float64))
    loss = clipped_surrogate(r, torch.tensor([[advantage]], dtype=torch.float64), clip_low=low, clip_high=high)
    loss.sum().backward()
    return loss.item(), logprobs.grad.item()


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient", "cut"),
    [
        (1.0, 0.5, -0.5, -0.5, (False, False)),
        (1.0, 0.79, -0.79, -0.79, (False, False)),
        (1.0, 1.0, -1.0, -1.0, (False, False)),
        (1.0, 1.19, -1.19, -1.19, (False, False)),
        (1.0, 1.5, -1.2, 0.0, (False, True)),
        (-1.0, 0.5, 0.8, 0.0, (True, False)),
        (-1.0, 0.79, 0.8, 0.0, (True, False)),
        (-1.0, 1.0, 1.0, 1.0, (False, False)),
        (-1.0, 1.19, 1.19, 1.19, (False, False)),
        (-1.0, 1.5, 1.5, 1.5, (False, False)),
        (0.0, 1.5, 0.0, 0.0, (False, False)),
    ],
)
def test_the_six_cases_of_ppo(
    advantage: float, ratio: float, loss: float, gradient: float, cut: tuple[bool, bool]
) -> None:
    assert loss_and_gradient(ratio, advantage, 0.2, 0.2) == pytest.approx((loss, gradient), abs=1e-12)
    low, high = clip_flags(
        torch.tensor([[ratio]], dtype=torch.float64),
        torch.tensor([[advantage]], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.2,
    )
    assert (low.item(), high.item()) == cut


def test_two_bounds() -> None:
    assert loss_and_gradient(1.25, 1.0, 0.2, 0.28) == pytest.approx((-1.25, -1.25), abs=1e-12)
    assert loss_and_gradient(1.30, 1.0, 0.2, 0.28) == pytest.approx((-1.28, 0.0), abs=1e-12)
    assert loss_and_gradient(1.25, 1.0, 0.2, 0.20) == pytest.approx((-1.2, 0.0), abs=1e-12)


def test_a_clip_of_ten_never_binds_from_below() -> None:
    assert loss_and_gradient(12.0, 1.0, 10.0, 10.0) == pytest.approx((-11.0, 0.0), abs=1e-12)
    assert loss_and_gradient(0.01, -1.0, 10.0, 10.0) == pytest.approx((0.01, 0.01), abs=1e-12)


def test_the_flags_are_exactly_where_the_gradient_is_cut() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs = (0.3 * torch.randn(50, 40, generator=generator)).requires_grad_()
    advantages = torch.randn(50, 1, generator=generator)
    ratio = token_ratio(logprobs, torch.zeros(50, 40))
    clipped_surrogate(ratio, advantages, clip_low=0.2, clip_high=0.28).sum().backward()
    low, high = clip_flags(ratio, advantages, clip_low=0.2, clip_high=0.28)
    assert torch.equal(low | high, logprobs.grad == 0)
    assert low.any()
    assert high.any()


def test_the_ratio_of_the_policy_to_itself_is_one_and_has_a_gradient() -> None:
    logprobs = torch.tensor([[-1.0, -2.0]], requires_grad=True)
    ratio = token_ratio(logprobs, logprobs)
    assert ratio.tolist() == [[1.0, 1.0]]
    clipped_surrogate(ratio, torch.tensor([[0.5]]), clip_low=0.2, clip_high=0.2).sum().backward()
    assert logprobs.grad.tolist() == [[-0.5, -0.5]]


def test_one_advantage_for_a_completion_or_one_for_each_token() -> None:
    ratio = torch.tensor([[0.9, 1.1], [1.0, 1.3]])
    per_row = clipped_surrogate(ratio, torch.tensor([[1.0], [-2.0]]), clip_low=0.2, clip_high=0.2)
    per_token = clipped_surrogate(ratio, torch.tensor([[1.0, 1.0], [-2.0, -2.0]]), clip_low=0.2, clip_high=0.2)
    assert torch.equal(per_row, per_token)
    torch.testing.assert_close(per_row, torch.tensor([[-0.9, -1.1], [2.0, 2.6]]))


@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30, -1e30])
@pytest.mark.parametrize("place", ["logprobs", "old_logprobs", "advantages"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_junk_in_padding_reaches_neither_loss_nor_gradient(junk: float, place: str, advantage: float) -> None:
    tensors = {
        "logprobs": torch.tensor([[-1.0, -1.0]]),
        "old_logprobs": torch.tensor([[-1.1, -1.1]]),
        "advantages": torch.tensor([[advantage, advantage]]),
    }
    tensors[place][0, 1] = junk
    logprobs = tensors["logprobs"].requires_grad_()
    ratio = token_ratio(logprobs, tensors["old_logprobs"])
    per_token = clipped_surrogate(ratio, tensors["advantages"], clip_low=0.2, clip_high=0.2)
    loss = aggregate(per_token, torch.tensor([[True, False]]), "token_mean", 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(-advantage * math.exp(0.1), rel=1e-6)
    assert logprobs.grad.tolist() == [[pytest.approx(-advantage * math.exp(0.1), rel=1e-6), 0.0]]


def test_junk_in_a_trained_token_stays_visible() -> None:
    for logprob, advantage in ((math.nan, 1.0), (-1.0, math.nan), (-1.0, math.inf)):
        ratio = token_ratio(torch.tensor([[logprob]]), torch.tensor([[-1.0]]))
        loss = clipped_surrogate(ratio, torch.tensor([[advantage]]), clip_low=0.2, clip_high=0.2)
        assert math.isnan(loss.item())


def test_a_ratio_that_overflows_is_clipped_like_any_other() -> None:
    logprobs = torch.tensor([[0.0]], requires_grad=True)
    ratio = token_ratio(logprobs, torch.tensor([[-200.0]]))
    assert ratio.item() == math.inf
    loss = clipped_surrogate(ratio, torch.tensor([[1.0]]), clip_low=0.2, clip_high=0.2)
    loss.sum().backward()
    assert loss.item() == pytest.approx(-1.2)
    assert logprobs.grad.item() == 0.0


@pytest.mark.parametrize("function", [clipped_surrogate, clip_flags])
def test_bad_input_is_named(function) -> None:
    ratio = torch.ones(2, 3)
    for shape in ((2,), (3,), (1, 3), (3, 1), (2, 2), (2, 1, 1)):
        with pytest.raises(ValueError, match=r"advantages must have the shape \[B, T\] of ratio \[2, 3\], or \[B, 1\]"):
            function(ratio, torch.ones(shape), clip_low=0.2, clip_high=0.2)
    with pytest.raises(ValueError, match=r"clip_low must be at least 0, got -0\.2"):
        function(ratio, torch.ones(2, 1), clip_low=-0.2, clip_high=0.2)
    with pytest.raises(ValueError, match="clip_high must be at least 0, got nan"):
        function(ratio, torch.ones(2, 1), clip_low=0.2, clip_high=math.nan)
    with pytest.raises(TypeError, match=r"advantages must be float32 or float64, got torch\.int64"):
        function(ratio, torch.ones(2, 1, dtype=torch.int64), clip_low=0.2, clip_high=0.2)


def test_log_probs_of_half_precision_or_another_shape_are_refused() -> None:
    with pytest.raises(TypeError, match=r"old_logprobs must be float32 or float64, got torch\.float16"):
        token_ratio(torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"old_logprobs \[1, 2\] and logprobs \[2, 2\] must have the same shape"):
        token_ratio(torch.zeros(2, 2), torch.zeros(1, 2))
