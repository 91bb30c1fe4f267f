import math

import pytest
import torch

from oncurve.functional import (
    clipped_value_loss,
    explained_variance,
    gae,
    k1,
    k3,
    length_adaptive_lambda,
    masked_whiten,
    returns_to_go,
    token_rewards,
)

REWARDS = [0.0, 0.0, 0.0, 1.0]
VALUES = [0.5, 0.6, 0.4, 0.7]
JUNK = [math.nan, math.inf, -math.inf, 1e300]


def row(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def bits(*rows: str) -> torch.Tensor:
    """``bits("01", "11")`` is a mask of two rows."""
    return torch.tensor([[character == "1" for character in text] for text in rows])


def close(actual: torch.Tensor, expected: list[float] | list[list[float]], tolerance: float = 1e-12) -> None:
    wanted = torch.tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, wanted.view_as(actual), rtol=0, atol=tolerance)


def gae_of_one_row(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The sum that defines it, term by term."""
    following = [*values, 0.0][1:]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [
        math.fsum((gamma * lam) ** distance * delta for distance, delta in enumerate(deltas[start:]))
        for start in range(len(deltas))
    ]


# -- gae --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [
        (1.0, 1.0, [0.5, 0.4, 0.6, 0.30000000000000004]),
        (1.0, 0.95, [0.4379625, 0.35575, 0.585, 0.30000000000000004]),
        (1.0, 0.0, [0.09999999999999998, -0.19999999999999996, 0.29999999999999993, 0.30000000000000004]),
        (0.99, 0.95, [0.41088132478750006, 0.33692857500000006, 0.57515, 0.30000000000000004]),
    ],
)
def test_gae(gamma: float, lam: float, expected: list[float]) -> None:
    advantages, returns = gae(row(*REWARDS), row(*VALUES), bits("1111"), gamma=gamma, lam=lam)
    close(advantages, expected)
    close(returns, [a + v for a, v in zip(expected, VALUES, strict=True)])


def test_returns_of_gae() -> None:
    _, returns = gae(row(*REWARDS), row(*VALUES), bits("1111"), lam=0.95)
    close(returns, [0.9379625, 0.95575, 0.985, 1.0])


@pytest.mark.parametrize("junk", [0.0, *JUNK])
@pytest.mark.parametrize(
    "mask", ["0001111", "0101101000", "1111000", "1000111", "0110000011", "001110001", "111100", "1111"]
)
def test_only_trained_tokens_are_steps_of_time(mask: str, junk: float) -> None:
    """The prompt before, the padding after and holes anywhere, at the end of a row too, as if they were not there."""
    where = bits(mask)
    rewards = torch.full(where.shape, junk, dtype=torch.float64).masked_scatter(where, row(*REWARDS))
    values = torch.full(where.shape, junk, dtype=torch.float64).masked_scatter(where, row(*VALUES))
    advantages, returns = gae(rewards, values, where, gamma=0.99, lam=0.95)
    close(advantages[where], [0.41088132478750006, 0.33692857500000006, 0.57515, 0.30000000000000004])
    close(returns[where], [0.9108813247875001, 0.936928575, 0.97515, 1.0])
    assert advantages[~where].eq(0.0).all()
    assert returns[~where].eq(0.0).all()


def test_rows_do_not_mix_and_a_row_without_a_trained_token_is_zero() -> None:
    generator = torch.Generator().manual_seed(2)
    rewards = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    values = torch.randn(5, 12, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 12, generator=generator) < 0.5
    mask[2] = False
    lam = torch.tensor([[0.0], [0.3], [0.5], [0.9], [1.0]], dtype=torch.float64)
    advantages, returns = gae(rewards, values, mask, gamma=0.9, lam=lam)
    for b in range(5):
        expected = gae_of_one_row(rewards[b][mask[b]].tolist(), values[b][mask[b]].tolist(), 0.9, lam[b].item())
        close(advantages[b][mask[b]], expected)
    close(returns[mask], (advantages + values)[mask].tolist())
    assert advantages[2].tolist() == returns[2].tolist() == [0.0] * 12


def test_identities_of_gae() -> None:
    generator = torch.Generator().manual_seed(4)
    rewards = torch.randn(3, 9, generator=generator, dtype=torch.float64)
    values = torch.randn(3, 9, generator=generator, dtype=torch.float64)
    mask = torch.rand(3, 9, generator=generator) < 0.7
    to_go = returns_to_go(rewards, mask, gamma=0.8)
    advantages, returns = gae(rewards, values, mask, gamma=0.8, lam=1.0)
    close(advantages, torch.where(mask, to_go - values, 0.0).tolist())
    close(returns, to_go.tolist())


def test_gae_of_nothing() -> None:
    for shape in ((0, 3), (2, 0)):
        empty = torch.zeros(shape)
        advantages, returns = gae(empty, empty, torch.ones(shape, dtype=torch.bool))
        assert advantages.shape == returns.shape == shape


def test_float32_comes_back_as_float32_and_is_summed_in_float64() -> None:
    rewards = torch.full((1, 4096), 0.1)
    mask = torch.ones(1, 4096, dtype=torch.bool)
    advantages, returns = gae(rewards, torch.zeros_like(rewards), mask)
    assert advantages.dtype == returns.dtype == torch.float32
    assert advantages[0, 0].item() == pytest.approx(4096 * rewards[0, 0].item(), rel=1e-7)


def test_targets_carry_no_gradient() -> None:
    rewards, values = row(*REWARDS).requires_grad_(), row(*VALUES).requires_grad_()
    mask = bits("1111")
    outputs = [*gae(rewards, values, mask, lam=0.9), returns_to_go(rewards, mask), masked_whiten(values, mask)]
    outputs.append(token_rewards(torch.ones(1, requires_grad=True), values, mask, kl_coef=0.1))
    assert not any(output.requires_grad for output in outputs)


def test_nan_among_trained_tokens_stays_visible() -> None:
    advantages, _ = gae(row(0.0, math.nan, 0.0), row(0.0, 0.0, 0.0), bits("111"))
    assert advantages.isnan().tolist() == [[True, True, False]]


# -- lambda -----------------------------------------------------------------------------------------------------------


def test_length_adaptive_lambda() -> None:
    lengths = torch.tensor([0, 1, 20, 21, 40, 100, 200, 2000])
    close(length_adaptive_lambda(lengths), [0.0, 0.0, 0.0, 1 - 1 / 1.05, 0.5, 0.8, 0.9, 0.99])
    close(length_adaptive_lambda(torch.tensor([4]), alpha=0.5), [0.5])
    assert length_adaptive_lambda(torch.zeros(3, 1, dtype=torch.int64)).shape == (3, 1)


def test_a_lambda_for_each_row_reaches_gae() -> None:
    mask = torch.ones(2, 40, dtype=torch.bool)
    mask[1, 20:] = False
    rewards = torch.where(mask & ~torch.nn.functional.pad(mask, (0, 1))[:, 1:], 1.0, 0.0).double()
    lam = length_adaptive_lambda(mask.sum(dim=1, keepdim=True))
    advantages, _ = gae(rewards, torch.zeros_like(rewards), mask, lam=lam)
    # One reward of 1 at the end, V = 0: A at a distance of l tokens is lam^l; lam is 0.5 for 40 tokens, 0 for 20.
    close(advantages[0], [0.5**distance for distance in reversed(range(40))])
    close(advantages[1], [0.0] * 19 + [1.0] + [0.0] * 20)


# -- rewards per token ------------------------------------------------------------------------------------------------


def test_kl_in_the_reward() -> None:
    rewards = token_rewards(torch.tensor([1.0]), row(0.1, -0.05, 0.2), bits("111"), kl_coef=0.1)
    close(rewards, [-0.010000000000000002, 0.005000000000000001, 0.98])
    close(returns_to_go(rewards, bits("111")), [0.975, 0.985, 0.98])
    close(returns_to_go(rewards, bits("111"), gamma=0.5), [-0.01 + 0.5 * 0.495, 0.005 + 0.5 * 0.98, 0.98])


@pytest.mark.parametrize("junk", JUNK)
def test_the_score_goes_to_the_last_trained_token(junk: float) -> None:
    mask = bits("0110100", "0001111", "0000000", "0100000")
    kl = torch.full(mask.shape, junk, dtype=torch.float64).masked_fill(mask, 0.5)
    # The third row has no trained token: its score may be anything.
    rewards = token_rewards(row(1.0, -2.0, junk, 3.0)[0], kl, mask, kl_coef=0.1)
    expected = [
        [0.0, -0.05, -0.05, 0.0, 0.95, 0.0, 0.0],
        [0.0, 0.0, 0.0, -0.05, -0.05, -0.05, -2.05],
        [0.0] * 7,
        [0.0, 2.95, 0.0, 0.0, 0.0, 0.0, 0.0],
    ]
    close(rewards, expected)
    to_go = returns_to_go(rewards.masked_fill(~mask, junk), mask)
    close(to_go[0], [0.0, 0.85, 0.9, 0.0, 0.95, 0.0, 0.0])
    close(to_go[2], [0.0] * 7)


def test_k1_in_the_reward_follows_the_gradient_of_the_kl_and_k3_does_not() -> None:
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    for estimator, expected in (
        (k1, [0.34624303734425377, -0.22038908428549142, -0.12585395305876235]),
        (k3, [0.04624303734425379, -0.020389084285491424, -0.02585395305876237]),
    ):
        logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log().requires_grad_()
        logprobs = logits.log_softmax(-1)
        # The three outcomes as three rows of one token; the mean over samples is a sum weighted by the policy.
        kl = estimator(logprobs.detach(), reference).unsqueeze(1)
        mask = torch.ones(3, 1, dtype=torch.bool)
        rewards = token_rewards(torch.zeros(3, dtype=torch.float64), kl, mask, kl_coef=1.0).squeeze(1)
        (-(logprobs.exp().detach() * rewards * logprobs).sum()).backward()
        close(logits.grad, expected)


# -- the critic's loss ------------------------------------------------------------------------------------------------


def test_clipped_value_loss() -> None:
    assert clipped_value_loss(row(1.0), row(0.3), row(0.9), clip=0.2).item() == pytest.approx(0.08, abs=1e-15)
    assert clipped_value_loss(row(1.0), row(0.3), row(0.9), clip=math.inf).item() == pytest.approx(0.005, abs=1e-15)


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient"),
    [
        (0.4, 0.3, 0.9, 0.125, -0.5),  # within the clip
        (0.3, 0.3, 0.9, 0.18, -0.6),  # the first update: the plain squared error
        (0.7, 0.3, 0.9, 0.08, 0.0),  # past it, towards the return: no gradient
        (1.0, 0.3, 0.9, 0.08, 0.0),  # and a little beyond the return
        (1.5, 0.3, 0.9, 0.18, 0.6),  # so far beyond it that the old place was better
        (-0.1, 0.3, 0.9, 0.5, -1.0),  # away from the return: the way back is open
        (-0.5, 0.3, -0.6, 0.245, 0.0),  # the same, mirrored
        (0.9, 0.3, -0.6, 1.125, 1.5),
    ],
)
def test_where_the_clip_of_the_value_stops_the_gradient(
    value: float, old: float, target: float, loss: float, gradient: float
) -> None:
    values, old_values, returns = (row(number).requires_grad_() for number in (value, old, target))
    actual = clipped_value_loss(values, old_values, returns, clip=0.2)
    actual.sum().backward()
    assert actual.item() == pytest.approx(loss, abs=1e-12)
    assert values.grad.item() == pytest.approx(gradient, abs=1e-12)
    assert old_values.grad is None
    assert returns.grad is None


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("junk", JUNK)
def test_junk_in_padding_reaches_no_gradient_of_the_critic(which: int, junk: float) -> None:
    arguments = [row(0.4, 0.4), row(0.3, 0.3), row(0.9, 0.9)]
    arguments[which][0, 1] = junk
    values, old_values, returns = arguments
    values.requires_grad_()
    loss = torch.where(bits("10"), clipped_value_loss(values, old_values, returns, clip=0.2), 0.0).sum()
    loss.backward()
    assert loss.item() == pytest.approx(0.125, abs=1e-12)
    assert values.grad.tolist() == [[pytest.approx(-0.5, abs=1e-12), 0.0]]


def test_nan_in_a_value_stays_visible_in_the_loss() -> None:
    assert math.isnan(clipped_value_loss(row(math.nan), row(0.3), row(0.9), clip=0.2).item())


# -- whitening and explained variance ---------------------------------------------------------------------------------


def test_masked_whiten() -> None:
    values, mask = row(1.0, 2.0, 3.0, 4.0), bits("1111")
    close(
        masked_whiten(values, mask),
        [-1.1618950003765403, -0.38729833345884673, 0.38729833345884673, 1.1618950003765403],
    )
    close(
        masked_whiten(values, mask, ddof=0, eps=0.0),
        [-1.3416407864998738, -0.4472135954999579, 0.4472135954999579, 1.3416407864998738],
    )
    close(
        masked_whiten(values, mask, ddof=0, eps=0.0, centre=False),
        [2.5 - 1.3416407864998738, 2.5 - 0.4472135954999579, 2.5 + 0.4472135954999579, 2.5 + 1.3416407864998738],
    )
    # eps is added to the variance (5/3), not to the standard deviation.
    close(masked_whiten(values, mask, eps=1.0), [x / math.sqrt(8 / 3) for x in (-1.5, -0.5, 0.5, 1.5)])


@pytest.mark.parametrize("junk", JUNK)
def test_whitening_is_over_the_trained_tokens_of_all_rows(junk: float) -> None:
    mask = bits("01010", "00000", "00110")
    values = torch.full((3, 5), junk, dtype=torch.float64).masked_scatter(mask, row(1.0, 2.0, 3.0, 4.0))
    whitened = masked_whiten(values, mask)
    close(whitened[mask], [-1.1618950003765403, -0.38729833345884673, 0.38729833345884673, 1.1618950003765403])
    assert whitened[~mask].eq(0.0).all()


@pytest.mark.parametrize("ddof", [0, 1])
def test_equal_values_whiten_to_exact_zeros(ddof: int) -> None:
    for count in (1, 12):
        values = torch.full((1, count), 2.3)
        mask = torch.ones(1, count, dtype=torch.bool)
        assert masked_whiten(values, mask, ddof=ddof, eps=0.0).tolist() == [[0.0] * count]
        assert torch.equal(masked_whiten(values, mask, ddof=ddof, eps=0.0, centre=False), values)


def test_whitening_nothing() -> None:
    assert masked_whiten(row(math.nan, 1.0), bits("00")).tolist() == [[0.0, 0.0]]
    assert masked_whiten(torch.zeros(0, 3), torch.zeros(0, 3, dtype=torch.bool)).shape == (0, 3)
    assert masked_whiten(row(math.nan, 1.0), bits("11")).isnan().all()


def test_explained_variance() -> None:
    returns = row(0.0, 2.0, 4.0)
    mask = bits("111")
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(returns - 5.0, returns, mask) == pytest.approx(1.0, abs=1e-12)  # a constant error
    assert explained_variance(row(7.0, 7.0, 7.0), returns, mask) == pytest.approx(0.0, abs=1e-12)
    assert explained_variance(row(0.0, 1.0, 2.0), returns, mask) == pytest.approx(0.75, abs=1e-12)
    assert explained_variance(-returns, returns, mask) == pytest.approx(-3.0, abs=1e-12)


@pytest.mark.parametrize("junk", JUNK)
def test_explained_variance_sees_trained_tokens_alone(junk: float) -> None:
    mask = bits("0110", "0010")
    returns = torch.full((2, 4), junk, dtype=torch.float64).masked_scatter(mask, row(0.0, 2.0, 4.0))
    values = torch.full((2, 4), junk, dtype=torch.float64).masked_scatter(mask, row(0.0, 1.0, 2.0))
    assert explained_variance(values, returns, mask) == pytest.approx(0.75, abs=1e-12)


def test_equal_returns_have_nothing_to_explain() -> None:
    assert math.isnan(explained_variance(row(0.1, 0.2, 0.3), row(2.3, 2.3, 2.3), bits("111")))
    assert math.isnan(explained_variance(row(0.1, 0.2), row(1.0, 2.0), bits("10")))
    assert math.isnan(explained_variance(row(0.1, 0.2), row(1.0, 2.0), bits("00")))


# -- bad input --------------------------------------------------------------------------------------------------------


def test_bad_input_is_named() -> None:
    one, mask = row(1.0, 2.0), bits("11")
    integers = torch.ones(1, 2, dtype=torch.int64)
    calls = [
        (lambda: gae(one, row(1.0), mask), ValueError, r"mask \[1, 2\] and values \[1, 1\]"),
        (lambda: gae(one, one, integers), TypeError, r"mask must be bool .*int64"),
        (lambda: gae(integers, one, mask), TypeError, r"token_rewards must be float32 or float64"),
        (lambda: gae(one[0], one[0], mask[0]), ValueError, r"token_rewards must have shape \[B, T\], got \[2\]"),
        (lambda: gae(one, one, mask, gamma=1.5), ValueError, r"gamma must be between 0 and 1, got 1\.5"),
        (lambda: gae(one, one, mask, lam=-0.1), ValueError, r"lam must be between 0 and 1, got -0\.1"),
        (lambda: gae(one, one, mask, lam=math.nan), ValueError, r"lam must be between 0 and 1, got nan"),
        (lambda: gae(one, one, mask, lam=torch.ones(2)), ValueError, r"shape \[B, 1\] = \[1, 1\], got \[2\]"),
        (lambda: gae(one, one, mask, lam=row(math.nan)), ValueError, r"lam\[0, 0\] is nan"),
        (lambda: gae(one, one, mask, lam=torch.ones(1, 1).long()), TypeError, r"lam must be float32 or float64"),
        (lambda: returns_to_go(one, mask, gamma=2.0), ValueError, r"gamma must be between 0 and 1, got 2\.0"),
        (lambda: returns_to_go(one, bits("111")), ValueError, r"must have the same shape"),
        (
            lambda: token_rewards(torch.ones(2), one, mask, kl_coef=0.1),
            ValueError,
            r"scores \[2\] must have one entry for each row of kl \[1, 2\]",
        ),
        (lambda: token_rewards(one, one, mask, kl_coef=0.1), ValueError, r"scores must have shape \[B\]"),
        (lambda: token_rewards(torch.ones(1), one, mask, kl_coef=-1.0), ValueError, r"kl_coef .* got -1\.0"),
        (
            lambda: token_rewards(torch.tensor([math.nan]), one, mask, kl_coef=0.1),
            ValueError,
            r"scores\[0\] is nan; take rows that were not scored out of the mask",
        ),
        (lambda: length_adaptive_lambda(one), TypeError, r"lengths must be int64"),
        (lambda: length_adaptive_lambda(integers, alpha=0.0), ValueError, r"alpha .* above 0, got 0\.0"),
        (lambda: clipped_value_loss(one, row(1.0), one, clip=0.2), ValueError, r"old_values \[1, 1\] and values"),
        (lambda: clipped_value_loss(one, one, row(1.0), clip=0.2), ValueError, r"returns \[1, 1\] and values"),
        (lambda: clipped_value_loss(one, one, one, clip=0.0), ValueError, r"clip must be above 0, got 0\.0"),
        (lambda: clipped_value_loss(one, one, one, clip=math.nan), ValueError, r"clip must be above 0, got nan"),
        (lambda: masked_whiten(one, mask, ddof=2), ValueError, r"ddof must be 0 or 1, got 2"),
        (lambda: masked_whiten(one, mask, eps=-1.0), ValueError, r"eps .* got -1\.0"),
        (lambda: masked_whiten(one, integers), TypeError, r"mask must be bool"),
        (lambda: explained_variance(one, row(1.0), mask), ValueError, r"mask \[1, 2\] and returns \[1, 1\]"),
        (lambda: explained_variance(one.bfloat16(), one, mask), TypeError, r"values must be float32 or float64"),
    ]
    for call, kind, message in calls:
        with pytest.raises(kind, match=message):
            call()
