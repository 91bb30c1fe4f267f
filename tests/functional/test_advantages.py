import math

import pytest
import torch

from oncurve.functional import group_centred, group_normalised, zero_variance

NAN = math.nan
DEBATE = torch.tensor([[1.0, 0.9, 0.0, 1.0]], dtype=torch.float64)


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


@pytest.mark.parametrize("function", [group_normalised, group_centred, zero_variance])
def test_bad_input_is_named(function) -> None:
    with pytest.raises(ValueError, match=r"rewards\[1, 0\] is -inf; use nan for unscored"):
        function(torch.tensor([[1.0, 0.0], [-math.inf, 0.0]]))
    with pytest.raises(ValueError, match=r"rewards must have shape \[P, G\], got \[3\]"):
        function(torch.zeros(3))
    with pytest.raises(ValueError, match=r"at least one completion, got \[2, 0\]"):
        function(torch.zeros(2, 0))
    with pytest.raises(TypeError, match=r"rewards must be float32 or float64, got torch\.int64"):
        function(torch.tensor([[1, 0]]))
    with pytest.raises(TypeError, match=r"rewards must be a torch\.Tensor, got list"):
        function([[1.0, 0.0]])


def test_bad_constants_are_named() -> None:
    with pytest.raises(ValueError, match="ddof must be 0 or 1, got 2"):
        group_normalised(DEBATE, ddof=2)
    for eps in (-1e-4, NAN, math.inf):
        with pytest.raises(ValueError, match="eps must be a finite number of at least 0"):
            group_normalised(DEBATE, eps=eps)
