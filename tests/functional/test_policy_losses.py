import itertools
import math
from functools import partial

import pytest
import torch
from torch import Tensor

from oncurve.functional import aggregate, clip_flags, clipped_surrogate, group_centred, group_normalised, nll
from oncurve.functional.policy_losses import cispo, dual_clip, gmpo, reinforce, sapo, two_sided_clip, weighted_nll
from oncurve.functional.ratios import product_ratio, sequence_ratio, sequence_token_ratio, token_ratio


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


# -- dual clip, two-sided clip ----------------------------------------------------------------------------------------


def at(loss, ratio: float, advantage: float) -> tuple[float, float]:
    """Loss and gradient in the log-prob of one token."""
    logprobs = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    found = loss(token_ratio(logprobs, torch.zeros(1, 1, dtype=torch.float64)), torch.tensor([[advantage]]).double())
    found.sum().backward()
    return found.item(), logprobs.grad.item()


@pytest.mark.parametrize("loss", [dual_clip, two_sided_clip])
@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        (4.0, -1.0, 3.0, 0.0),
        (2.0, -1.0, 2.0, 2.0),
        (2.999, -1.0, 2.999, 2.999),
        (3.001, -2.0, 6.0, 0.0),
        (0.5, -1.0, 0.8, 0.0),
        (1.0, -1.0, 1.0, 1.0),
        (4.0, 1.0, -1.2, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (4.0, 0.0, 0.0, 0.0),
    ],
)
def test_a_bad_token_costs_no_more_than_its_cap(loss, ratio: float, advantage: float, value: float, gradient: float):
    found = at(partial(loss, clip_low=0.2, clip_high=0.2, cap=3.0), ratio, advantage)
    assert found == pytest.approx((value, gradient), abs=1e-12)


def test_without_a_cap_it_does() -> None:
    assert at(partial(clipped_surrogate, clip_low=0.2, clip_high=0.2), 4.0, -1.0) == pytest.approx((4.0, 4.0))
    assert at(partial(dual_clip, clip_low=0.2, clip_high=0.2, cap=math.inf), 4.0, -1.0) == pytest.approx((4.0, 4.0))


def test_the_two_ways_to_write_it_are_one_function() -> None:
    generator = torch.Generator().manual_seed(1)
    advantages = torch.randn(100, 30, generator=generator, dtype=torch.float64)
    start = 1.5 * torch.randn(100, 30, generator=generator, dtype=torch.float64)
    found = []
    for loss in (dual_clip, two_sided_clip):
        logprobs = start.clone().requires_grad_()
        ratio = token_ratio(logprobs, torch.zeros(100, 30, dtype=torch.float64))
        per_token = loss(ratio, advantages, clip_low=0.2, clip_high=0.28, cap=2.5)
        per_token.sum().backward()
        found.append((per_token.detach(), logprobs.grad))
        cut = logprobs.grad == 0
        low, high = clip_flags(ratio, advantages, clip_low=0.2, clip_high=0.28)
        past = (advantages < 0) & (ratio > 2.5)
        assert past.sum().item() > 100
        assert torch.equal(cut, low | high | past)
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


# -- CISPO ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cap", "weights"), [(5.0, [0.5, 1.0, 3.0, 5.0]), (4.0, [0.5, 1.0, 3.0, 4.0]), (math.inf, [0.5, 1.0, 3.0, 8.0])]
)
def test_cispo_clips_the_weight_and_never_the_gradient(cap: float, weights: list[float]) -> None:
    logprobs = torch.tensor([[0.5, 1.0, 3.0, 8.0]] * 2, dtype=torch.float64).log().requires_grad_()
    ratio = token_ratio(logprobs, torch.zeros(2, 4, dtype=torch.float64))
    advantages = torch.tensor([[2.0], [-1.0]], dtype=torch.float64)
    per_token = cispo(ratio, advantages, logprobs, cap=cap)
    per_token.sum().backward()
    expected = torch.tensor([[-2 * w for w in weights], weights], dtype=torch.float64)
    torch.testing.assert_close(logprobs.grad, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(per_token.detach(), expected * logprobs.detach(), rtol=0, atol=1e-12)


def test_an_epsilon_in_place_of_a_cap_is_noticed() -> None:
    with pytest.raises(ValueError, match=r"cap bounds the ratio itself \(1 \+ epsilon, not epsilon\).*got 0\.28"):
        cispo(torch.ones(1, 1), torch.ones(1, 1), torch.zeros(1, 1), cap=0.28)


# -- SAPO -------------------------------------------------------------------------------------------------------------


def test_the_soft_gate() -> None:
    """f(r) = 4/tau sigmoid(tau (r - 1)), with a slope of 1 at r = 1."""
    for advantage, gates in (
        (1.0, [1.5101626751925816, 2.0, 2.4898373248074184]),
        (-1.0, [1.4159383303033666, 1.9047619047619047, 2.3935854792204427]),
    ):
        for ratio, gate in zip((0.5, 1.0, 1.5), gates, strict=True):
            assert at(sapo, ratio, advantage)[0] == pytest.approx(-advantage * gate, abs=1e-12)
    assert at(sapo, 1.0, 1.0)[1] == pytest.approx(-1.0, abs=1e-12)
    assert at(sapo, 1.0, -1.0)[1] == pytest.approx(1.0, abs=1e-12)
    # the derivative in the log-prob is the ratio times the slope; the slopes were found by finite differences
    assert at(sapo, 2.0, 1.0)[1] / -2 == pytest.approx(0.7864477327146346, abs=1e-9)
    assert at(sapo, 2.0, -1.0)[1] / 2 == pytest.approx(0.7681097917711099, abs=1e-9)
    assert at(sapo, 2.0, 0.0) == (0.0, 0.0)


def test_the_temperatures_follow_the_sign_and_keep_their_digits() -> None:
    found = at(partial(sapo, tau_positive=2.0, tau_negative=0.1), 1.5, 3.0)[0]
    assert found == pytest.approx(-3 * 2 / (1 + math.exp(-1.0)), abs=1e-12)
    found = at(partial(sapo, tau_positive=2.0, tau_negative=0.1), 1.5, -3.0)[0]
    assert found == pytest.approx(3 * 40 / (1 + math.exp(-0.05)), abs=1e-12)


# -- GMPO -------------------------------------------------------------------------------------------------------------


def gmpo_of(log_ratios: list[float], advantage: float, mask: list[bool] | None = None) -> tuple[float, list[float]]:
    """The loss of one completion and its gradient, with bounds of 0.4 nats."""
    old = torch.full((1, len(log_ratios)), -3.0, dtype=torch.float64)
    logprobs = (old + torch.tensor([log_ratios], dtype=torch.float64)).requires_grad_()
    kept = torch.tensor([mask or [True] * len(log_ratios)])
    per_token = gmpo(logprobs, old, torch.tensor([[advantage]]).double(), kept, clip_low=0.4, clip_high=0.4)
    loss = aggregate(per_token, kept, "sequence_mean", 1.0)
    loss.backward()
    return loss.item(), logprobs.grad[0].tolist()


def test_gmpo_clips_before_the_mean() -> None:
    # 0.2 and 3.0: the second counts as 0.4 and has no gradient. exp(0.3) = 1.3498588075760032
    loss, gradient = gmpo_of([0.2, 3.0], 1.0)
    assert loss == pytest.approx(-1.3498588075760032, abs=1e-12)
    assert gradient == pytest.approx([-1.3498588075760032 / 2, 0.0], abs=1e-12)


def test_gmpo_clips_on_the_side_of_the_advantage_alone() -> None:
    # A > 0: -3.0 is the way back, not clipped. exp(-1.4) = 0.2465969639416065
    loss, gradient = gmpo_of([0.2, -3.0], 2.0)
    assert loss == pytest.approx(-2 * 0.2465969639416065, abs=1e-12)
    assert gradient == pytest.approx([-0.2465969639416065] * 2, abs=1e-12)
    # A < 0: now -3.0 counts as -0.4. exp(-0.1) = 0.9048374180359595
    loss, gradient = gmpo_of([0.2, -3.0], -2.0)
    assert loss == pytest.approx(2 * 0.9048374180359595, abs=1e-12)
    assert gradient == pytest.approx([0.9048374180359595, 0.0], abs=1e-12)


def test_gmpo_means_over_the_trained_tokens() -> None:
    loss, gradient = gmpo_of([0.1, 0.3, 5.0], 1.0, [True, True, False])
    assert loss == pytest.approx(-1.2214027581601699, abs=1e-12)
    assert gradient == pytest.approx([-1.2214027581601699 / 2] * 2 + [0.0], abs=1e-12)
    loss, gradient = gmpo_of([0.1, 0.3], 1.0, [False, False])
    assert (loss, gradient) == (0.0, [0.0, 0.0])


def test_gmpo_at_wide_bounds_is_the_sequence_ratio() -> None:
    old = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -0.7, -9.0]], dtype=torch.float64)
    new = old + torch.tensor([[0.3, -0.9, 0.2], [1.2, 0.4, 7.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    advantages = torch.tensor([[0.7], [-1.1]], dtype=torch.float64)
    found = gmpo(new, old, advantages, mask, clip_low=math.inf, clip_high=math.inf)
    torch.testing.assert_close(found, -advantages * sequence_ratio(new, old, mask), rtol=0, atol=1e-14)


def test_gmpo_with_an_advantage_for_each_token_clips_each_by_its_own_sign() -> None:
    old = torch.zeros(1, 3, dtype=torch.float64)
    new = torch.tensor([[1.0, -1.0, 0.6]], dtype=torch.float64)
    advantages = torch.tensor([[2.0, -3.0, 0.0]], dtype=torch.float64)
    found = gmpo(new, old, advantages, torch.ones(1, 3).bool(), clip_low=0.3, clip_high=0.6)
    ratio = math.exp((0.6 - 0.3 + 0.6) / 3)
    assert found[0].tolist() == pytest.approx([-2 * ratio, 3 * ratio, 0.0], abs=1e-12)


# -- REINFORCE, weighted likelihood -----------------------------------------------------------------------------------


def test_reinforce_and_the_weighted_likelihood() -> None:
    logprobs = torch.tensor([[-1.0, -0.5], [-2.0, -0.25]], dtype=torch.float64, requires_grad=True)
    per_token = reinforce(logprobs, torch.tensor([[2.0], [-1.0]], dtype=torch.float64))
    assert per_token.tolist() == [[2.0, 1.0], [-2.0, -0.25]]
    per_token.sum().backward()
    assert logprobs.grad.tolist() == [[-2.0, -2.0], [1.0, 1.0]]
    logprobs.grad = None
    per_token = weighted_nll(logprobs, torch.tensor([[1.0, 0.0], [0.5, -4.0]], dtype=torch.float64))
    assert per_token.tolist() == [[1.0, 0.0], [1.0, -1.0]]
    per_token.sum().backward()
    assert logprobs.grad.tolist() == [[-1.0, 0.0], [-0.5, 4.0]]


def test_a_weight_of_one_is_supervised_fine_tuning() -> None:
    logprobs = torch.tensor([[-1.0, -0.5], [-2.0, -0.25]])
    assert torch.equal(weighted_nll(logprobs, torch.ones(2, 1)), nll(logprobs))


def test_the_expected_gradient_over_all_groups_of_a_bandit() -> None:
    """Every group of two of three arms, with its probability: leave-one-out is the true gradient of the mean reward,
    the group mean as baseline half of it, and division by the standard deviation points elsewhere."""
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    arms = torch.tensor([1.0, 0.2, 0.0], dtype=torch.float64)
    true = torch.tensor([0.22, -0.108, -0.112], dtype=torch.float64)
    for advantage, expected in (
        (lambda rewards: 2 * group_centred(rewards), true),
        (group_centred, true / 2),
        (partial(group_normalised, ddof=0, eps=0.0), torch.tensor([0.25, -0.09, -0.16], dtype=torch.float64)),
    ):
        logits = policy.log().requires_grad_()
        total = torch.zeros((), dtype=torch.float64)
        for group in itertools.product(range(3), repeat=2):
            drawn = torch.tensor(group)
            advantages = advantage(arms[drawn].unsqueeze(0)).reshape(2, 1)
            per_token = reinforce(logits.log_softmax(0)[drawn].unsqueeze(1), advantages)
            total = total + policy[drawn].prod() * aggregate(per_token, torch.ones(2, 1).bool(), "sequence_mean", 2.0)
        total.backward()
        torch.testing.assert_close(-logits.grad, expected, rtol=0, atol=1e-12)


# -- all of them ------------------------------------------------------------------------------------------------------

BOUNDS = {"clip_low": 0.2, "clip_high": 0.3}
SURROGATES = {
    "clip": lambda r, a, new, old, mask: clipped_surrogate(r, a, **BOUNDS),
    "dual_clip": lambda r, a, new, old, mask: dual_clip(r, a, **BOUNDS, cap=3.0),
    "two_sided": lambda r, a, new, old, mask: two_sided_clip(r, a, **BOUNDS, cap=3.0),
    "cispo": lambda r, a, new, old, mask: cispo(r, a, new, cap=5.0),
    "sapo": lambda r, a, new, old, mask: sapo(r, a),
    "gmpo": lambda r, a, new, old, mask: gmpo(new, old, a, mask, **BOUNDS),
    "reinforce": lambda r, a, new, old, mask: reinforce(new, a),
    "weighted": lambda r, a, new, old, mask: weighted_nll(new, a),
}
RATIOS = {
    "token": lambda new, old, mask: token_ratio(new, old),
    "sequence": sequence_ratio,
    "sequence_token": sequence_token_ratio,
    "product": product_ratio,
}
OLD = torch.tensor([[-1.0, -0.5, -2.0, -0.1], [-0.7, -3.0, -0.2, -0.4], [-1.0, -1.0, -1.0, -1.0]])
NEW = OLD + torch.tensor([[0.10, -0.50, 0.45, 0.00], [-0.60, 0.02, 0.05, 0.00], [0.3, 0.2, 0.1, 0.0]])
MASK = torch.tensor([[True, True, True, False], [False, True, True, False], [False] * 4])


def every_surrogate() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("surrogate", SURROGATES.values(), ids=SURROGATES)


def every_ratio() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("ratio", RATIOS.values(), ids=RATIOS)


def step(surrogate, ratio, new: Tensor, old: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The scalar loss of these rows, and its gradient."""
    new = new.detach().clone().requires_grad_()
    per_token = surrogate(ratio(new, old, mask), advantages, new, old, mask)
    assert per_token.shape == new.shape
    loss = aggregate(per_token, mask, "token_mean", 5.0)
    loss.backward()
    assert new.grad is not None
    return loss.detach(), new.grad


@every_surrogate()
@every_ratio()
@pytest.mark.parametrize("wide", [False, True], ids=["per_row", "per_token"])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_no_junk_in_padding_reaches_loss_or_gradient(surrogate, ratio, wide: bool, sign: float) -> None:
    advantages = sign * torch.tensor([[1.0], [-0.5], [2.0]])
    if wide:
        advantages = advantages * torch.tensor([[1.0, 0.5, -2.0, 1.0]])
    loss, gradient = step(surrogate, ratio, NEW, OLD, advantages, MASK)
    assert gradient.abs().max().item() > 0.01
    assert torch.equal(gradient[~MASK], torch.zeros(7))
    for junk in (math.nan, math.inf, -math.inf, 1e30, -1e30):
        for place in range(4 if wide else 3):
            new, old = (torch.where(MASK, x, junk) if place in (i, 2) else x for i, x in enumerate((NEW, OLD)))
            dirty = torch.where(MASK, advantages, junk) if place == 3 else advantages
            found, found_gradient = step(surrogate, ratio, new, old, dirty, MASK)
            assert torch.equal(found, loss)
            assert torch.equal(found_gradient, gradient)


@every_surrogate()
@every_ratio()
def test_in_the_first_update_all_have_the_gradient_of_reinforce(surrogate, ratio) -> None:
    advantages = torch.tensor([[1.5], [-0.5], [2.0]])
    new = OLD.clone().requires_grad_()
    per_token = surrogate(ratio(new, OLD, MASK), advantages, new, OLD, MASK)
    aggregate(per_token, MASK, "sequence_mean", 3.0).backward()
    expected = torch.tensor([[-0.5 / 3] * 3 + [0.0], [0.0, 0.25 / 3, 0.25 / 3, 0.0], [0.0] * 4])
    if ratio is product_ratio and surrogate not in (
        SURROGATES[name] for name in ("cispo", "gmpo", "reinforce", "weighted")
    ):
        expected = expected * torch.tensor([[3.0], [2.0], [1.0]])  # the whole completion's, not its mean token's
    torch.testing.assert_close(new.grad, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("surrogate", [s for name, s in SURROGATES.items() if name != "cispo"])
@pytest.mark.parametrize("ratio", [r for name, r in RATIOS.items() if name != "sequence_token"])
def test_autograd_agrees_with_finite_differences(surrogate, ratio) -> None:
    advantages = torch.tensor([[1.5], [-0.5], [2.0]], dtype=torch.float64)
    old = OLD.double()

    def loss(new: Tensor) -> Tensor:
        return aggregate(surrogate(ratio(new, old, MASK), advantages, new, old, MASK), MASK, "sequence_mean", 3.0)

    assert torch.autograd.gradcheck(loss, NEW.double().requires_grad_(), atol=1e-6, rtol=1e-6)


@every_surrogate()
@every_ratio()
@pytest.mark.parametrize("log_ratio", [100.0, -100.0, -math.inf, math.inf])
def test_extremes_in_float32_leave_a_finite_gradient(surrogate, ratio, log_ratio: float) -> None:
    mask = torch.tensor([[True, True]] * 3)
    old = torch.zeros(3, 2)
    new = torch.tensor([[log_ratio, 0.1]] * 3)
    advantages = torch.tensor([[1.0], [-1.0], [0.0]])
    _, gradient = step(surrogate, ratio, new, old, advantages, mask)
    assert gradient.isfinite().all()
    assert torch.equal(gradient[2], torch.zeros(2))


@every_surrogate()
@every_ratio()
def test_an_advantage_of_zero_costs_nothing_however_far_the_ratio_has_run(surrogate, ratio) -> None:
    for far in (200.0, -200.0, math.inf):
        new = torch.tensor([[far, -1.0]])
        loss, gradient = step(surrogate, ratio, new, torch.zeros(1, 2), torch.zeros(1, 1), torch.ones(1, 2).bool())
        assert loss.item() == 0.0
        assert torch.equal(gradient, torch.zeros(1, 2))


@every_ratio()
def test_a_bound_on_the_ratio_keeps_the_loss_of_a_bad_token_finite(ratio) -> None:
    new, old, mask = torch.tensor([[100.0]]), torch.zeros(1, 1), torch.ones(1, 1).bool()
    bad, good = torch.tensor([[-1.0]]), torch.tensor([[1.0]])
    for name, limit in (("dual_clip", 3.0), ("two_sided", 3.0), ("sapo", 4 / 1.05)):
        loss, gradient = step(SURROGATES[name], ratio, new, old, bad, mask)
        assert 5 * loss.item() == pytest.approx(limit, rel=1e-6)
        assert gradient.item() == 0.0
    loss, gradient = step(SURROGATES["clip"], ratio, new, old, bad, mask)
    assert (loss.item(), gradient.item()) == (math.inf, 0.0)  # visible, harmless
    loss, _ = step(SURROGATES["clip"], ratio, new, old, good, mask)
    assert 5 * loss.item() == pytest.approx(-1.3, rel=1e-6)


@every_surrogate()
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf])
def test_junk_advantages_of_trained_tokens_stay_visible_and_have_no_gradient(surrogate, junk: float) -> None:
    advantages = torch.tensor([[junk], [1.0], [1.0]])
    loss, gradient = step(surrogate, RATIOS["token"], NEW, OLD, advantages, MASK)
    assert math.isnan(loss.item())
    assert torch.equal(gradient[0], torch.zeros(4))
    assert gradient[1].abs().max().item() > 0.01


@every_surrogate()
def test_no_gradient_passes_to_the_advantages_or_the_old_policy(surrogate) -> None:
    new, old = NEW.clone().requires_grad_(), OLD.clone().requires_grad_()
    advantages = torch.ones(3, 1, requires_grad=True)
    surrogate(token_ratio(new, old), advantages, new, old, MASK).sum().backward()
    assert new.grad is not None
    assert advantages.grad is None
    assert old.grad is None


@every_surrogate()
@every_ratio()
@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_nothing_at_all(surrogate, ratio, shape: tuple[int, int]) -> None:
    nothing = torch.zeros(shape)
    loss, _ = step(surrogate, ratio, nothing, nothing, torch.zeros(shape[0], 1), nothing.bool())
    assert loss.item() == 0.0


@every_surrogate()
def test_float64_stays_float64_and_bad_advantages_are_named(surrogate) -> None:
    new, old = NEW.double(), OLD.double()
    ratio = token_ratio(new, old)
    assert surrogate(ratio, torch.ones(3, 1).double(), new, old, MASK).dtype == torch.float64
    for shape in ((3,), (4,), (1, 4), (4, 1), (3, 2), (3, 1, 1), ()):
        with pytest.raises(ValueError, match=r" must have the shape \[B, T\] of \w+ \[3, 4\], or \[B, 1\]; got "):
            surrogate(ratio, torch.ones(shape).double(), new, old, MASK)
    with pytest.raises(TypeError, match=r" must be float32 or float64, got torch\.bool"):
        surrogate(ratio, torch.ones(3, 1).bool(), new, old, MASK)
    with pytest.raises(TypeError, match=r" must be a torch\.Tensor, got float"):
        surrogate(ratio, 1.0, new, old, MASK)


def test_bounds_out_of_their_range_are_named() -> None:
    ratio = torch.ones(1, 1)
    for cap in (1.0, 0.5, math.nan):
        with pytest.raises(ValueError, match=f"cap bounds the ratio itself and must be above 1, got {cap}"):
            dual_clip(ratio, ratio, clip_low=0.2, clip_high=0.2, cap=cap)
    for cap in (1.25, 0.25, math.nan):
        with pytest.raises(ValueError, match=rf"must be above 1 \+ clip_high = 1\.25, got {cap}"):
            two_sided_clip(ratio, ratio, clip_low=0.2, clip_high=0.25, cap=cap)
    with pytest.raises(ValueError, match="must be at least 1, got nan"):
        cispo(ratio, ratio, ratio, cap=math.nan)
    for tau in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"tau_negative must be a finite number above 0, got {tau}"):
            sapo(ratio, ratio, tau_negative=tau)
    with pytest.raises(ValueError, match=r"tau_positive must be a finite number above 0, got 0\.0"):
        sapo(ratio, ratio, tau_positive=0.0)
    for name in ("clip_low", "clip_high"):
        bounds = {"clip_low": 0.4, "clip_high": 0.4, name: -0.1}
        for call in (
            partial(dual_clip, ratio, ratio, cap=3.0),
            partial(two_sided_clip, ratio, ratio, cap=3.0),
            partial(gmpo, ratio, ratio, ratio, torch.ones(1, 1).bool()),
        ):
            with pytest.raises(ValueError, match=rf"{name} must be at least 0, got -0\.1"):
                call(**bounds)


def test_shapes_that_do_not_fit_one_another_are_named() -> None:
    with pytest.raises(ValueError, match=r"ratio \[2, 1\] and logprobs \[2, 3\] must have the same shape"):
        cispo(torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 3), cap=5.0)
    with pytest.raises(ValueError, match=r"old_logprobs \[2, 1\] and logprobs \[2, 3\] must have the same shape"):
        gmpo(torch.ones(2, 3), torch.ones(2, 1), torch.ones(2, 1), torch.ones(2, 3).bool(), clip_low=0.4, clip_high=0.4)
    with pytest.raises(ValueError, match=r"mask \[2, 1\] and logprobs \[2, 3\] must have the same shape"):
        gmpo(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1), torch.ones(2, 1).bool(), clip_low=0.4, clip_high=0.4)
    with pytest.raises(TypeError, match=r"mask must be bool \(True = kept\), got torch\.int64"):
        gmpo(torch.ones(2, 3), torch.ones(2, 3), torch.ones(2, 1), torch.ones(2, 3).long(), clip_low=0.4, clip_high=0.4)
