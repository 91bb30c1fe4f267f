import math

import pytest
import torch

from oncurve.functional.advantages import (
    group_centred,
    group_normalised,
    leave_one_out,
    length_weighted,
    signal_scaled,
    success_scaled,
    zero_variance,
)

NAN = math.nan
DEBATE = torch.tensor([[1.0, 0.9, 0.0, 1.0]], dtype=torch.float64)


def length_weighted_of_equal_lengths(rewards: torch.Tensor) -> torch.Tensor:
    return length_weighted(rewards, torch.full_like(rewards, 7, dtype=torch.int64))


ADVANTAGES = [
    group_normalised,
    group_centred,
    leave_one_out,
    success_scaled,
    length_weighted_of_equal_lengths,
    signal_scaled,
]


def close(actual: torch.Tensor, expected: list[float], tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, torch.tensor([expected], dtype=actual.dtype), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("ddof", "eps", "expected"),
    [
        (0, 0.0, [0.6538821281055405, 0.4161068087944349, -1.7238710650055156, 0.6538821281055405]),
        (1, 0.0, [0.5662785340200287, 0.3603590671036547, -1.492916135143712, 0.5662785340200287]),
        (1, 1e-4, [0.5661619502530443, 0.3602848774337555, -1.4926087779398438, 0.5661619502530443]),  # TRL
        (1, 1e-6, [0.5662773679446914, 0.36035832505571275, -1.4929130609450953, 0.5662773679446914]),  # verl
        (1, 1e-9, [0.5662785328539509, 0.3603590663616052, -1.4929161320695068, 0.5662785328539509]),  # OpenRLHF
        (0, 1e-4, [0.653726688033551, 0.4160078923849871, -1.723461268452089, 0.653726688033551]),  # nano-aha-moment
    ],
)
def test_the_debate_example_with_the_constants_of_each_library(ddof: int, eps: float, expected: list[float]) -> None:
    close(group_normalised(DEBATE, ddof=ddof, eps=eps), expected)


def test_the_defaults_are_those_of_trl() -> None:
    close(group_normalised(DEBATE), [0.5661619502530443, 0.3602848774337555, -1.4926087779398438, 0.5661619502530443])


def test_float32_stays_float32_and_is_as_exact() -> None:
    advantages = group_normalised(DEBATE.float())
    assert advantages.dtype == torch.float32
    close(advantages, [0.56616195, 0.36028488, -1.49260878, 0.56616195], 1e-7)


def test_a_group_of_two() -> None:
    pair = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    close(group_normalised(pair, ddof=0, eps=0.0), [1.0, -1.0])
    close(group_normalised(pair, ddof=1, eps=0.0), [0.7071067811865475, -0.7071067811865475])
    close(group_centred(pair), [0.5, -0.5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.0, 0.1, 2.3, -7.7, 1e30])
@pytest.mark.parametrize("group_size", [2, 3, 12])
@pytest.mark.parametrize("eps", [0.0, 1e-9, 1e-4])
def test_equal_rewards_give_exact_zeros(dtype: torch.dtype, value: float, group_size: int, eps: float) -> None:
    rewards = torch.full((3, group_size), value, dtype=dtype)
    for ddof in (0, 1):
        assert group_normalised(rewards, ddof=ddof, eps=eps).tolist() == [[0.0] * group_size] * 3
    assert group_centred(rewards).tolist() == [[0.0] * group_size] * 3
    assert zero_variance(rewards).tolist() == [True] * 3


def test_invariances_without_eps() -> None:
    rewards = torch.tensor(
        [
            [
                0.0012301533574825742,
                0.2987455375084699,
                -0.2741378553622176,
                -0.8905918387572742,
                -0.45467078517172255,
                -0.9916465549964624,
            ]
        ],
        dtype=torch.float64,
    )
    expected = [
        0.8440610795230519,
        1.4939459020853658,
        0.24255440450916385,
        -1.1040115512641133,
        -0.15179700488337608,
        -1.324752829970093,
    ]

    def advantages(r: torch.Tensor) -> torch.Tensor:
        return group_normalised(r, ddof=0, eps=0.0)

    close(advantages(rewards), expected)
    close(advantages(rewards + 3.0), expected)
    close(advantages(rewards * 7.0), expected)
    close(advantages(-rewards), [-a for a in expected])
    permutation = [3, 2, 5, 4, 1, 0]
    close(advantages(rewards[:, permutation]), [expected[i] for i in permutation])


def test_eps_shrinks_by_std_over_std_plus_eps() -> None:
    pair = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    close(group_normalised(pair, ddof=0, eps=0.5), [0.5, -0.5])


def test_groups_do_not_touch_one_another() -> None:
    rewards = torch.tensor([[1.0, 0.0], [5.0, 5.0], [NAN, NAN], [0.0, 3.0]])
    assert group_normalised(rewards, ddof=0, eps=0.0).tolist() == [[1.0, -1.0], [0.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]


def test_unscored_rewards_are_left_out_of_mean_and_std() -> None:
    rewards = torch.tensor([[1.0, NAN, 0.9, 0.0, NAN, 1.0]], dtype=torch.float64)
    close(
        group_normalised(rewards),
        [0.5661619502530443, 0.0, 0.3602848774337555, -1.4926087779398438, 0.0, 0.5661619502530443],
    )
    close(group_centred(rewards), [0.275, 0.0, 0.175, -0.725, 0.0, 0.275])


@pytest.mark.parametrize(
    "group",
    [[NAN, NAN, NAN, NAN], [0.7, NAN, NAN, NAN], [NAN, 2.3, 2.3, 2.3]],
)
def test_nothing_to_compare_gives_exact_zeros(group: list[float]) -> None:
    rewards = torch.tensor([group])
    for advantages in (group_normalised(rewards), group_normalised(rewards, eps=0.0), group_centred(rewards)):
        assert advantages.tolist() == [[0.0] * 4]
    assert zero_variance(rewards).tolist() == [True]


def test_a_group_of_one_has_no_curve() -> None:
    assert group_normalised(torch.tensor([[0.7], [2.0]])).tolist() == [[0.0], [0.0]]


def test_a_difference_of_one_rounding_step_is_no_advantage_at_the_default_eps() -> None:
    rewards = torch.tensor([[0.1 + 0.2, 0.3]], dtype=torch.float64)
    assert group_normalised(rewards).abs().max().item() < 1e-11
    assert zero_variance(rewards).tolist() == [False]


def test_rewards_too_large_to_square_in_float32() -> None:
    assert group_normalised(torch.tensor([[1e30, -1e30]]), ddof=0).tolist() == [[1.0, -1.0]]


def test_the_input_is_left_alone() -> None:
    rewards = torch.tensor([[1.0, NAN, 0.0]])
    group_normalised(rewards)
    assert rewards[0].tolist()[::2] == [1.0, 0.0]
    assert math.isnan(rewards[0, 1].item())


@pytest.mark.parametrize("function", [*ADVANTAGES, zero_variance])
def test_bad_input_is_named(function) -> None:
    with pytest.raises(ValueError, match=r"rewards\[1, 0\] is -inf; use nan for unscored"):
        function(torch.tensor([[1.0, 0.0], [-math.inf, 0.0]]))
    with pytest.raises(ValueError, match=r"rewards\[0, 1\] is 1e\+200; a reward may be at most 1e\+30 in size"):
        function(torch.tensor([[1.0, 1e200]], dtype=torch.float64))
    with pytest.raises(ValueError, match=r"rewards must have shape \[P, G\], got \[3\]"):
        function(torch.zeros(3))
    with pytest.raises(ValueError, match=r"at least one completion, got \[2, 0\]"):
        function(torch.zeros(2, 0))
    with pytest.raises(TypeError, match=r"rewards must be float32 or float64, got torch\.int64"):
        function(torch.tensor([[1, 0]]))
    for dtype in (torch.float16, torch.bfloat16, torch.bool):
        with pytest.raises(TypeError, match="rewards must be float32 or float64"):
            function(torch.ones(1, 2, dtype=dtype))


@pytest.mark.parametrize("function", [group_normalised, group_centred, leave_one_out, success_scaled, signal_scaled])
def test_a_list_is_no_tensor(function) -> None:
    with pytest.raises(TypeError, match=r"rewards must be a torch\.Tensor, got list"):
        function([[1.0, 0.0]])


def test_bad_constants_are_named() -> None:
    with pytest.raises(ValueError, match="ddof must be 0 or 1, got 2"):
        group_normalised(DEBATE, ddof=2)
    for eps in (-1e-4, NAN, math.inf):
        with pytest.raises(ValueError, match="eps must be a finite number of at least 0"):
            group_normalised(DEBATE, eps=eps)


# -- leave-one-out ---------------------------------------------------------------------------------------------------


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others() -> None:
    close(
        leave_one_out(DEBATE), [0.3666666666666667, 0.2333333333333334, -0.9666666666666667, 0.3666666666666667], 1e-15
    )
    close(leave_one_out(torch.tensor([[1.0, 0.0]], dtype=torch.float64)), [1.0, -1.0])


def test_leave_one_out_counts_the_scored_only() -> None:
    rewards = torch.tensor([[1.0, NAN, 0.9, 0.0, NAN, 1.0]], dtype=torch.float64)
    others = [0.3666666666666667, 0.0, 0.2333333333333334, -0.9666666666666667, 0.0, 0.3666666666666667]
    close(leave_one_out(rewards), others, 1e-15)
    close(leave_one_out(torch.tensor([[3.0, NAN, 1.0]], dtype=torch.float64)), [2.0, 0.0, -2.0])


def test_leave_one_out_is_unbiased_and_group_centred_is_smaller_by_a_constant() -> None:
    # Two answers, 0 and 1, of probability 0.3 and 0.7 and rewards 0 and 2, in groups of three: the expectation over all
    # eight groups of A * d log p / d theta, theta the logit of answer 1. The mean reward's gradient is 2 p (1 - p).
    p = 0.7
    expected = {leave_one_out: 2 * p * (1 - p), group_centred: 2 * p * (1 - p) * 2 / 3}
    for function, gradient in expected.items():
        total = 0.0
        for group in range(8):
            answers = [group >> i & 1 for i in range(3)]
            chance = math.prod(p if answer else 1 - p for answer in answers)
            rewards = torch.tensor([[2.0 * answer for answer in answers]], dtype=torch.float64)
            scores = [answer - p for answer in answers]
            total += chance * sum(a * s for a, s in zip(function(rewards)[0].tolist(), scores, strict=True)) / 3
        assert total == pytest.approx(gradient, abs=1e-14)


# -- success-scaled --------------------------------------------------------------------------------------------------


def test_success_scaled_divides_by_the_mean() -> None:
    close(success_scaled(torch.tensor([[1.0] + [0.0] * 7], dtype=torch.float64)), [7.0] + [-1.0] * 7)
    close(success_scaled(torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)), [1.0, 1.0, -1.0, -1.0])
    close(success_scaled(torch.tensor([[0.2, NAN, 0.6]], dtype=torch.float64)), [-0.5, 0.0, 0.5])


def test_success_scaled_is_zero_where_all_fail_or_all_pass() -> None:
    rewards = torch.tensor([[0.0] * 4, [1.0] * 4, [NAN, 0.0, 0.0, -0.0]])
    assert success_scaled(rewards).tolist() == [[0.0] * 4] * 3


def test_success_scaled_refuses_a_negative_reward() -> None:
    with pytest.raises(ValueError, match=r"rewards\[1, 2\] is -0\.5; to divide by their mean, all must be at least 0"):
        success_scaled(torch.tensor([[1.0, 0.0, 0.0], [NAN, 1.0, -0.5]]))


def test_success_scaled_of_rewards_too_small_to_average() -> None:
    # Their mean is 0 in float64.
    assert success_scaled(torch.tensor([[5e-324, 0.0, 0.0]], dtype=torch.float64)).isfinite().all()


# -- length-weighted -------------------------------------------------------------------------------------------------


def test_length_weighted_baseline() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    close(length_weighted(rewards, torch.tensor([[10, 40, 20, 30]])), [0.6, -0.4, -0.4, 0.6])


def test_equal_lengths_make_it_the_plain_mean() -> None:
    close(length_weighted_of_equal_lengths(DEBATE), [0.275, 0.175, -0.725, 0.275])


def test_lengths_of_unscored_completions_do_not_count() -> None:
    rewards = torch.tensor([[1.0, NAN, 0.0, 0.0, 1.0]], dtype=torch.float64)
    close(length_weighted(rewards, torch.tensor([[10, 999, 40, 20, 30]])), [0.6, 0.0, -0.4, -0.4, 0.6])


def test_empty_completions_have_no_vote() -> None:
    rewards = torch.tensor([[1.0, 0.0, 4.0], [1.0, 0.0, 4.0], [1.0, NAN, 0.0]], dtype=torch.float64)
    lengths = torch.tensor([[3, 1, 0], [0, 0, 0], [0, 5, 0]])
    assert length_weighted(rewards, lengths).tolist() == [[0.25, -0.75, 3.25], [0.0] * 3, [0.0] * 3]


def test_a_large_common_reward_costs_no_digits() -> None:
    rewards = torch.tensor([[1e9 + 1.0, 1e9, 1e9, 1e9 + 1.0]], dtype=torch.float64)
    close(length_weighted(rewards, torch.tensor([[10, 40, 20, 30]])), [0.6, -0.4, -0.4, 0.6], 1e-15)


def test_bad_lengths_are_named() -> None:
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"lengths\[1, 0\] is -3; a length is at least 0"):
        length_weighted(rewards, torch.tensor([[1, 2], [-3, 4]]))
    with pytest.raises(ValueError, match=r"lengths \[2\] and rewards \[2, 2\] must have the same shape"):
        length_weighted(rewards, torch.tensor([1, 2]))
    with pytest.raises(TypeError, match=r"lengths must be int64, got torch\.float32"):
        length_weighted(rewards, torch.ones(2, 2))
    with pytest.raises(TypeError, match=r"lengths must be int64, got torch\.bool"):
        length_weighted(rewards, torch.ones(2, 2).bool())


# -- signal-scaled ---------------------------------------------------------------------------------------------------


def test_signal_scaled_by_groups_over_groups_that_say_something() -> None:
    rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [3.0, 1.0], [1.0, NAN]], dtype=torch.float64)
    # 5 groups, 3 silent: 5 / 2.
    expected = [[1.25, -1.25], [0.0, 0.0], [0.0, 0.0], [2.5, -2.5], [0.0, 0.0]]
    assert signal_scaled(rewards).tolist() == expected


def test_signal_scaled_mean_over_all_groups_is_the_mean_over_those_that_say_something() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.2, 0.9, 0.4]], dtype=torch.float64)
    loud = group_centred(rewards[[0, 2]]).abs().sum().item() / 2
    assert signal_scaled(rewards).abs().sum().item() / 3 == pytest.approx(loud, abs=1e-15)


def test_signal_scaled_without_any_signal() -> None:
    assert signal_scaled(torch.full((3, 4), 2.3)).tolist() == [[0.0] * 4] * 3


# -- what all agree on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ADVANTAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
# In float64 the mean of three 0.1 is not 0.1.
@pytest.mark.parametrize(("group_size", "value"), [(12, 2.3), (3, 0.1)])
def test_a_group_without_a_difference_is_exactly_zero(
    function, dtype: torch.dtype, group_size: int, value: float
) -> None:
    rewards = torch.full((6, group_size), value, dtype=dtype)
    rewards[1] = NAN
    rewards[2, 1:] = NAN
    rewards[3, :-2] = NAN
    rewards[4] = torch.tensor([0.0, 1.0, 1.0] * (group_size // 3))
    rewards[5] = 1e30
    advantages = function(rewards)
    assert advantages.dtype == dtype
    assert advantages[[0, 1, 2, 3, 5]].tolist() == [[0.0] * group_size] * 5
    assert (advantages[4] != 0).all()


@pytest.mark.parametrize("function", ADVANTAGES)
def test_a_group_of_one_is_zero(function) -> None:
    assert function(torch.tensor([[0.7], [2.0]])).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("function", ADVANTAGES)
def test_no_prompt_no_advantage(function) -> None:
    assert function(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.parametrize("function", ADVANTAGES)
def test_no_gradient_passes(function) -> None:
    rewards = torch.tensor([[1.0, 0.0, NAN]], requires_grad=True)
    advantages = function(rewards)
    assert not advantages.requires_grad
    assert advantages[0, 0].item() > 0
    assert advantages[0, 2].item() == 0.0


@pytest.mark.parametrize("function", ADVANTAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e30, 1e-30, 1e-44])
def test_huge_and_tiny_rewards_stay_finite_and_ordered(function, dtype: torch.dtype, size: float) -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.5], [0.0, 0.0, 1.0]], dtype=torch.float64).mul(size).to(dtype)
    advantages = function(rewards)
    assert advantages.isfinite().all()
    assert advantages[0, 0] >= advantages[0, 2] >= advantages[0, 1]
    assert advantages[0, 0] > 0 or size == 1e-44  # 1e-44 / eps is no float32


def test_differences_too_small_to_square_stay_finite_without_eps() -> None:
    advantages = group_normalised(torch.tensor([[1e-200, 0.0]], dtype=torch.float64), eps=0.0)
    assert advantages.isfinite().all()


@pytest.mark.parametrize("function", ADVANTAGES)
def test_the_order_within_a_group_carries_over(function) -> None:
    rewards = torch.tensor([[0.1, 0.7, 0.3, 0.7]], dtype=torch.float64)
    order = [2, 0, 3, 1]
    close(function(rewards[:, order]), function(rewards)[0, order].tolist(), 1e-15)


def test_binary_rewards_in_closed_form() -> None:
    # G completions, k right: std = sqrt(p (1 - p)), mean |A| = 2 sqrt(p (1 - p)) normalised, 2 p (1 - p) centred.
    for group_size, right, normalised, centred in (
        (8, 1, 0.6614378277661477, 0.21875),
        (8, 4, 1.0, 0.5),
        (8, 7, 0.6614378277661477, 0.21875),
        (16, 2, 0.6614378277661477, 0.21875),
    ):
        rewards = torch.tensor([[1.0] * right + [0.0] * (group_size - right)], dtype=torch.float64)
        assert group_normalised(rewards, ddof=0, eps=0.0).abs().mean().item() == pytest.approx(normalised, abs=1e-14)
        assert group_centred(rewards).abs().mean().item() == pytest.approx(centred, abs=1e-14)
