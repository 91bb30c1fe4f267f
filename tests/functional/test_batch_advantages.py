import math

import pytest
import torch

from oncurve.functional.advantages import group_centred
from oncurve.functional.batch_advantages import (
    batch_normalised,
    centred_over_centred_std,
    centred_over_reward_std,
    per_reward_normalised,
)

NAN = math.nan
TWO_GROUPS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.5]], dtype=torch.float64)
# An unscored completion, a group of equals, a group with one scored. Std of the six: 0.689202437604511.
MIXED = torch.tensor([[1.0, NAN, 0.0], [0.5, 0.5, 0.5], [2.0, NAN, NAN]], dtype=torch.float64)


def as_single_reward(rewards: torch.Tensor, *, ddof: int = 1, eps: float = 1e-4) -> torch.Tensor:
    return per_reward_normalised(rewards.unsqueeze(-1), torch.ones(1), ddof=ddof, eps=eps)


OF_REWARDS = [centred_over_reward_std, centred_over_centred_std, batch_normalised]
GROUP_CENTRED = [centred_over_reward_std, centred_over_centred_std, as_single_reward]


def close(actual: torch.Tensor, expected: list[list[float]], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=actual.dtype), rtol=0, atol=tolerance)


# -- three meanings of "the batch's standard deviation" ----------------------------------------------------------------


def test_three_functions_on_the_same_two_groups() -> None:
    close(
        centred_over_reward_std(TWO_GROUPS, eps=0.0),
        [
            [1.513574937328539, -0.504524979109513, -0.504524979109513, -0.504524979109513],
            [0.2522624895547565, 0.2522624895547565, 0.2522624895547565, -0.7567874686642695],
        ],
    )
    close(
        centred_over_reward_std(TWO_GROUPS, ddof=0, eps=0.0),
        [
            [1.618079669911781, -0.5393598899705937, -0.5393598899705937, -0.5393598899705937],
            [0.26967994498529685, 0.26967994498529685, 0.26967994498529685, -0.8090398349558905],
        ],
    )
    close(
        centred_over_centred_std(TWO_GROUPS, eps=0.0),
        [
            [2.0493901531919194, -0.6831300510639732, -0.6831300510639732, -0.6831300510639732],
            [0.3415650255319866, 0.3415650255319866, 0.3415650255319866, -1.0246950765959597],
        ],
    )
    close(
        batch_normalised(TWO_GROUPS, eps=0.0),
        [
            [0.8829187134416477, -1.1351812029964043, -1.1351812029964043, -1.1351812029964043],
            [0.8829187134416477, 0.8829187134416477, 0.8829187134416477, -0.12613124477737825],
        ],
    )


def test_the_defaults_are_ddof_1_and_eps_1e_4() -> None:
    pair = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    advantage = 0.5 / (0.7071067811865476 + 1e-4)
    for function in OF_REWARDS:
        close(function(pair), [[advantage, -advantage]], 1e-15)


def test_what_is_unscored_or_silent_is_zero_and_who_counts_in_the_std() -> None:
    close(centred_over_reward_std(MIXED), [[0.7253710022230855, 0.0, -0.7253710022230855], [0.0] * 3, [0.0] * 3])
    # The centred rewards are 0.5, -0.5 and four zeros: std 0.31622776601683794.
    close(centred_over_centred_std(MIXED), [[1.5806389881480885, 0.0, -1.5806389881480885], [0.0] * 3, [0.0] * 3])
    close(
        batch_normalised(MIXED),
        [
            [0.36268550111154274, 0.0, -1.0880565033346281],
            [-0.36268550111154274] * 3,
            [1.8134275055577136, 0.0, 0.0],
        ],
    )


def test_difficulty_of_prompts_is_in_the_one_std_and_not_in_the_other() -> None:
    shifted = TWO_GROUPS + torch.tensor([[0.0], [100.0]])
    torch.testing.assert_close(
        centred_over_centred_std(shifted), centred_over_centred_std(TWO_GROUPS), rtol=0, atol=1e-12
    )
    assert centred_over_reward_std(shifted).abs().max() < 0.02


def test_one_group_is_the_group_normalised_one() -> None:
    debate = torch.tensor([[1.0, 0.9, 0.0, 1.0]], dtype=torch.float64)
    trl = [0.5661619502530443, 0.3602848774337555, -1.4926087779398438, 0.5661619502530443]
    for function in OF_REWARDS:
        close(function(debate), [trl])


def test_batch_normalised_needs_no_group() -> None:
    close(batch_normalised(torch.tensor([[1.0], [0.0]], dtype=torch.float64), ddof=0, eps=0.0), [[1.0], [-1.0]])
    for function in GROUP_CENTRED:
        assert function(torch.tensor([[1.0], [0.0]])).tolist() == [[0.0], [0.0]]


# -- several rewards ---------------------------------------------------------------------------------------------------


def test_each_reward_on_its_own_curve() -> None:
    parts = torch.tensor(
        [
            [[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [1.0, 1.0]],
            [[0.2, 1.0], [0.8, NAN], [NAN, NAN], [0.5, 0.0]],
        ],
        dtype=torch.float64,
    )
    close(
        per_reward_normalised(parts, torch.tensor([1.0, 0.5])),
        [
            [0.15062717039137413, -0.7996102865193635, -0.7996102865193635, 1.4485934026473528],
            [-0.8388659875104376, 1.2977932277598434, 0.0, -0.45892724024940557],
        ],
    )


def test_combinations_that_a_sum_cannot_tell_apart_stay_apart() -> None:
    # Right without format and wrong with format both sum to 1; the format is common, a right answer is rare.
    parts = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 0.0]]], dtype=torch.float64)
    advantages = per_reward_normalised(parts, torch.ones(2, dtype=torch.float64))[0]
    assert group_centred(parts.sum(dim=2))[0, 0] == group_centred(parts.sum(dim=2))[0, 1]
    assert advantages[0].item() == pytest.approx(0.6894, abs=1e-4)
    assert advantages[1].item() == pytest.approx(0.3981, abs=1e-4)


def test_a_reward_without_variance_adds_nothing() -> None:
    both = torch.tensor([[[1.0, 2.3], [0.0, 2.3], [0.5, 2.3]]] * 2, dtype=torch.float32)
    one = per_reward_normalised(both[:, :, :1], torch.tensor([1.0]))
    assert torch.equal(per_reward_normalised(both, torch.tensor([1.0, 1.0])), one)


def test_a_weight_of_zero_removes_a_reward_and_a_negative_one_turns_it() -> None:
    parts = torch.tensor([[[1.0, 0.3], [0.0, 0.9], [0.5, 0.1]]], dtype=torch.float64)
    first = per_reward_normalised(parts[:, :, :1], torch.tensor([1.0]))
    torch.testing.assert_close(per_reward_normalised(parts, torch.tensor([1.0, 0.0])), first, rtol=0, atol=1e-15)
    torch.testing.assert_close(per_reward_normalised(parts, torch.tensor([-1.0, 0.0])), -first, rtol=0, atol=1e-15)
    assert per_reward_normalised(parts, torch.zeros(2)).tolist() == [[0.0] * 3]


@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rewards_that_cancel_give_exact_zeros(eps: float, dtype: torch.dtype) -> None:
    # Mean 1/3 and mean 2/3: the normalised terms are each other's negative but for the last bit.
    first = torch.tensor([1.0, 0.0, 0.0], dtype=dtype)
    parts = torch.stack([first, 1 - first], dim=1).unsqueeze(0)
    assert per_reward_normalised(parts, torch.ones(2), eps=eps).tolist() == [[0.0] * 3]


def test_a_part_that_is_nan_leaves_only_that_reward() -> None:
    parts = torch.tensor([[[1.0, NAN], [0.0, NAN], [NAN, 5.0]]], dtype=torch.float64)
    # One score of the second function is no comparison: its term is 0, and the completion counts as scored.
    close(per_reward_normalised(parts, torch.ones(2), eps=0.0), [[1.0, -1.0, 0.0]])


def test_bad_parts_and_weights_are_named() -> None:
    parts = torch.zeros(2, 3, 2)
    with pytest.raises(ValueError, match=r"weights must have shape \[K\].*got \[3\] for parts \[2, 3, 2\]"):
        per_reward_normalised(parts, torch.ones(3))
    with pytest.raises(ValueError, match=r"weights must have shape \[K\].*at least one reward; got \[0\]"):
        per_reward_normalised(torch.zeros(2, 3, 0), torch.ones(0))
    with pytest.raises(ValueError, match=r"weights must have shape \[K\].*got \[1, 2\]"):
        per_reward_normalised(parts, torch.ones(1, 2))
    for wrong in (NAN, math.inf):
        with pytest.raises(ValueError, match=rf"weights\[1\] is {wrong}; a weight must be finite"):
            per_reward_normalised(parts, torch.tensor([1.0, wrong]))
    with pytest.raises(TypeError, match=r"weights must be float32 or float64, got torch\.int64"):
        per_reward_normalised(parts, torch.ones(2).long())
    with pytest.raises(ValueError, match=r"parts must have shape \[P, G, K\], got \[2, 3\]"):
        per_reward_normalised(parts[..., 0], torch.ones(2))
    infinite = parts.clone()
    infinite[1, 2, 0] = math.inf
    with pytest.raises(ValueError, match=r"parts\[1, 2, 0\] is inf; use nan for unscored"):
        per_reward_normalised(infinite, torch.ones(2))
    with pytest.raises(ValueError, match=r"parts must have shape \[P, G, K\] with at least one completion"):
        per_reward_normalised(torch.zeros(2, 0, 2), torch.ones(2))


# -- what all agree on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [*OF_REWARDS, as_single_reward])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
def test_a_batch_without_a_difference_is_exactly_zero(function, dtype: torch.dtype, eps: float) -> None:
    equal = torch.full((3, 12), 2.3, dtype=dtype)
    one_scored = torch.full((3, 12), NAN, dtype=dtype)
    one_scored[1, 4] = 0.7
    for rewards in (equal, one_scored, torch.full((3, 12), NAN, dtype=dtype)):
        for ddof in (0, 1):
            advantages = function(rewards, ddof=ddof, eps=eps)
            assert advantages.dtype == dtype
            assert advantages.tolist() == [[0.0] * 12] * 3


@pytest.mark.parametrize("function", GROUP_CENTRED)
@pytest.mark.parametrize("eps", [0.0, 1e-4])
@pytest.mark.parametrize(
    ("dtype", "group_size", "value"),
    # In float64 the mean of three 0.1 is not 0.1.
    [(torch.float32, 12, 2.3), (torch.float64, 12, 2.3), (torch.float64, 3, 0.1)],
)
def test_a_silent_group_among_others_is_exactly_zero(
    function, eps: float, dtype: torch.dtype, group_size: int, value: float
) -> None:
    rewards = torch.full((4, group_size), value, dtype=dtype)
    rewards[1] = torch.tensor([0.0, 1.0, 0.0] * (group_size // 3))
    rewards[2, 1:] = NAN
    rewards[3] = NAN
    advantages = function(rewards, eps=eps)
    assert advantages[[0, 2, 3]].tolist() == [[0.0] * group_size] * 3
    assert (advantages[1] != 0).all()


def test_a_silent_group_among_others_is_not_zero_when_the_batch_is_the_baseline() -> None:
    advantages = batch_normalised(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), ddof=0, eps=0.0)
    assert advantages.tolist() == [[1.0, 1.0], [-1.0, -1.0]]


@pytest.mark.parametrize("function", [*OF_REWARDS, as_single_reward])
def test_no_gradient_passes(function) -> None:
    rewards = torch.tensor([[1.0, 0.0, NAN]], requires_grad=True)
    advantages = function(rewards)
    assert not advantages.requires_grad
    assert advantages[0, 0].item() > 0
    assert advantages[0, 2].item() == 0.0


@pytest.mark.parametrize("function", [*OF_REWARDS, as_single_reward])
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_huge_and_tiny_rewards(function, size: float) -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0]]) * size
    plain = function(rewards / size, ddof=0, eps=0.0)
    torch.testing.assert_close(function(rewards, ddof=0, eps=0.0), plain, rtol=1e-6, atol=0)
    assert plain.tolist() == [[1.0, -1.0], [-1.0, 1.0]]


@pytest.mark.parametrize("function", [*OF_REWARDS, as_single_reward])
def test_no_prompt_no_advantage(function) -> None:
    assert function(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("function", OF_REWARDS)
def test_bad_input_is_named(function) -> None:
    with pytest.raises(ValueError, match=r"rewards\[1, 0\] is inf; use nan for unscored"):
        function(torch.tensor([[1.0, 0.0], [math.inf, 0.0]]))
    with pytest.raises(ValueError, match=r"rewards must have shape \[P, G\], got \[3\]"):
        function(torch.zeros(3))
    with pytest.raises(ValueError, match=r"at least one completion, got \[2, 0\]"):
        function(torch.zeros(2, 0))
    with pytest.raises(TypeError, match=r"rewards must be float32 or float64, got torch\.int64"):
        function(torch.tensor([[1, 0]]))


@pytest.mark.parametrize("function", [*OF_REWARDS, as_single_reward])
def test_bad_constants_are_named(function) -> None:
    with pytest.raises(ValueError, match="ddof must be 0 or 1, got 2"):
        function(TWO_GROUPS, ddof=2)
    for eps in (-1e-4, NAN, math.inf):
        with pytest.raises(ValueError, match="eps must be a finite number of at least 0"):
            function(TWO_GROUPS, eps=eps)
