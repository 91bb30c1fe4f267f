import itertools
import math
from statistics import pvariance

import pytest
import torch

from oncurve.functional.advantages import zero_variance
from oncurve.functional.shaping import (
    cosine_length,
    informative_groups,
    max_variance_rows,
    repetition_penalty,
    soft_overlong,
)

NAN = math.nan


# -- length ------------------------------------------------------------------------------------------------------------


def test_soft_overlong_of_the_paper() -> None:
    lengths = torch.tensor([0, 100, 16384, 16385, 18432, 20480, 20481, 10**6])
    punishment = soft_overlong(lengths, max_length=20480, buffer=4096)
    assert punishment.tolist() == [0.0, 0.0, 0.0, -0.000244140625, -0.5, -1.0, -1.0, -1.0]
    assert punishment.dtype == torch.float64


def test_soft_overlong_in_the_small_and_in_any_shape() -> None:
    lengths = torch.tensor([[80, 90], [100, 101]])
    assert soft_overlong(lengths, max_length=100, buffer=20).tolist() == [[0.0, -0.5], [-1.0, -1.0]]
    # The form of verl and OpenRLHF: -min(length - expected, buffer) / buffer from expected on.
    for length in range(130):
        expected = -max(min(length - 80, 20), 0) / 20
        assert soft_overlong(torch.tensor(length), max_length=100, buffer=20).item() == expected


def test_a_buffer_of_one_token_and_of_all() -> None:
    assert soft_overlong(torch.tensor([9, 10, 11]), max_length=10, buffer=1).tolist() == [0.0, -1.0, -1.0]
    assert soft_overlong(torch.tensor([0, 5, 10]), max_length=10, buffer=10).tolist() == [0.0, -0.5, -1.0]


def test_cosine_length_of_right_and_wrong() -> None:
    lengths = torch.tensor([0, 10, 25, 50, 75, 99])
    right = cosine_length(lengths, torch.ones(6).bool(), max_length=100)
    wrong = cosine_length(lengths, torch.zeros(6).bool(), max_length=100)
    expected = torch.tensor(
        [2.0, 1.9755282581475768, 1.8535533905932737, 1.5, 1.1464466094067263, 1.000246719817134], dtype=torch.float64
    )
    torch.testing.assert_close(right, expected, rtol=0, atol=1e-12)
    expected = torch.tensor(
        [-10.0, -9.755282581475768, -8.535533905932738, -5.0, -1.4644660940672627, -0.002467198171342],
        dtype=torch.float64,
    )
    torch.testing.assert_close(wrong, expected, rtol=0, atol=1e-12)


def test_cosine_length_at_the_limit() -> None:
    lengths = torch.tensor([99, 100, 101, 5000])
    correct = torch.tensor([True, True, False, True])
    limit = {"max_length": 100}
    assert cosine_length(lengths, correct, **limit).tolist()[1:] == [-10.0, -10.0, -10.0]
    assert cosine_length(lengths, correct, **limit, exceeding=-0.1).tolist()[1:] == [-0.1] * 3
    assert cosine_length(lengths, correct, **limit, exceeding=None).tolist()[1:] == [1.0, 0.0, 1.0]


def test_cosine_length_with_the_values_of_trl() -> None:
    trl = {"correct_shortest": 1.0, "correct_longest": 0.5, "wrong_shortest": -1.0, "wrong_longest": -0.5}
    lengths = torch.tensor([[0, 25], [75, 100]])
    right = cosine_length(lengths, torch.ones(2, 2).bool(), max_length=100, **trl, exceeding=None)
    wrong = cosine_length(lengths, torch.zeros(2, 2).bool(), max_length=100, **trl, exceeding=None)
    expected = torch.tensor([[1.0, 0.9267766952966369], [0.5732233047033631, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(right, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(wrong, -expected, rtol=0, atol=1e-12)


def test_bad_lengths_and_limits_are_named() -> None:
    lengths = torch.tensor([3, 4])
    correct = torch.tensor([True, False])
    for function in (
        lambda n, limit=9: soft_overlong(n, max_length=limit, buffer=1),
        lambda n, limit=9: cosine_length(n, correct, max_length=limit),
    ):
        with pytest.raises(ValueError, match=r"lengths\[1\] is -4; a length is at least 0"):
            function(torch.tensor([3, -4]))
        with pytest.raises(TypeError, match=r"lengths must be int64, got torch\.float32"):
            function(lengths.float())
        with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
            function(lengths, 0)
    for buffer in (0, -1, 10):
        with pytest.raises(ValueError, match=f"buffer must be between 1 and max_length, 9; got {buffer}"):
            soft_overlong(lengths, max_length=9, buffer=buffer)
    with pytest.raises(TypeError, match=r"correct must be bool \(True = kept\), got torch\.float32"):
        cosine_length(lengths, correct.float(), max_length=9)
    with pytest.raises(ValueError, match=r"correct \[1\] and lengths \[2\] must have the same shape"):
        cosine_length(lengths, correct[:1], max_length=9)
    for name in ("correct_shortest", "correct_longest", "wrong_shortest", "wrong_longest", "exceeding"):
        with pytest.raises(ValueError, match=f"{name} must be finite, got nan"):
            cosine_length(lengths, correct, max_length=9, **{name: NAN})


# -- repetition --------------------------------------------------------------------------------------------------------


def test_repetition_penalty_by_the_share_of_repeated_ngrams() -> None:
    completions = [[5] * 5, [1, 2, 3, 1, 2], [1, 2, 3, 4], [1, 2], [1], []]
    penalty = repetition_penalty(completions, n=2, max_penalty=-1.0)
    # 3 of 4, 1 of 4, none, none, too short, empty.
    assert penalty.tolist() == [-0.75, -0.25, 0.0, 0.0, 0.0, 0.0]
    assert math.copysign(1.0, penalty[2].item()) == 1.0
    assert penalty.dtype == torch.float64


def test_repetition_penalty_by_n_and_size() -> None:
    completion = [[7, 8, 7, 8, 7, 8]]
    assert [repetition_penalty(completion, n=n, max_penalty=-2.0).item() for n in range(1, 8)] == pytest.approx(
        [-2 * 4 / 6, -2 * 3 / 5, -2 * 2 / 4, -2 * 1 / 3, 0.0, 0.0, 0.0], abs=1e-15
    )
    assert repetition_penalty(completion, n=2, max_penalty=0.0).tolist() == [0.0]
    assert repetition_penalty([], n=2, max_penalty=-1.0).tolist() == []


def test_bad_repetition_is_named() -> None:
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        repetition_penalty([[1]], n=0, max_penalty=-1.0)
    for wrong in (0.5, NAN, -math.inf):
        with pytest.raises(ValueError, match="max_penalty must be a finite number of at most 0"):
            repetition_penalty([[1]], n=2, max_penalty=wrong)
    # The entries of a tensor are tensors, each unlike every other.
    with pytest.raises(TypeError, match=r"completions\[1\] must be a list of token ids, got Tensor"):
        repetition_penalty([[1], torch.tensor([5, 5, 5])], n=1, max_penalty=-1.0)
    with pytest.raises(TypeError, match=r"completions\[0\] must be a list of token ids, got Tensor"):
        repetition_penalty(torch.tensor([[5, 5, 5]]), n=1, max_penalty=-1.0)
    with pytest.raises(TypeError, match=r"completions\[0\] must be a list of token ids, got str"):
        repetition_penalty(["again again"], n=1, max_penalty=-1.0)


# -- which to keep -----------------------------------------------------------------------------------------------------


def test_informative_groups() -> None:
    groups = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]], dtype=torch.float64)
    assert informative_groups(groups).tolist() == [False, False, True, True]
    odd = torch.tensor([[2.3] * 12, [NAN] * 12, [1.0] + [NAN] * 11, [1.0, 0.5] + [NAN] * 10])
    assert informative_groups(odd).tolist() == [False, False, False, True]
    assert torch.equal(informative_groups(odd), ~zero_variance(odd))
    assert informative_groups(torch.zeros(0, 3)).tolist() == []
    with pytest.raises(ValueError, match=r"rewards\[0, 1\] is inf; use nan for unscored"):
        informative_groups(torch.tensor([[0.0, math.inf]]))


@pytest.mark.parametrize(
    ("p", "group_size", "chance"),
    [(0.05, 4, 0.8145124999999999), (0.5, 8, 0.0078125), (0.9, 8, 0.4304672200000001), (0.05, 8, 0.6634204313281248)],
)
def test_the_chance_of_a_silent_group(p: float, group_size: int, chance: float) -> None:
    groups = torch.tensor(list(itertools.product((0.0, 1.0), repeat=group_size)), dtype=torch.float64)
    silent = ~informative_groups(groups)
    probability = (groups * p + (1 - groups) * (1 - p)).prod(dim=1)
    assert probability[silent].sum().item() == pytest.approx(chance, abs=1e-12)


def test_max_variance_rows_takes_from_both_ends() -> None:
    rewards = torch.tensor([[0.1, 1.0, 0.4, 0.9, 0.0, 0.5], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    assert max_variance_rows(rewards, 4).tolist() == [[0, 1, 3, 4], [0, 1, 2, 3]]
    assert max_variance_rows(rewards, 2).tolist() == [[1, 4], [0, 1]]
    assert max_variance_rows(rewards, 6).tolist() == [[0, 1, 2, 3, 4, 5]] * 2
    assert max_variance_rows(rewards, 1).tolist() == [[1], [0]]
    # One outlier below: all but one from the top.
    assert max_variance_rows(torch.tensor([[0.9, 1.0, -5.0, 0.8, 0.7]]), 3).tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_max_variance_rows_against_every_subset(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    for group_size, keep in ((1, 1), (4, 2), (7, 3), (7, 4), (8, 5), (8, 8)):
        continuous = torch.randn(6, group_size, generator=generator, dtype=torch.float64)
        discrete = torch.randint(0, 3, (6, group_size), generator=generator).double() / 3
        for rewards in (continuous.to(dtype), discrete.to(dtype), (discrete + 1e4).to(dtype)):
            rows = max_variance_rows(rewards, keep)
            assert rows.shape == (6, keep)
            assert rows.dtype == torch.int64
            for values, chosen in zip(rewards.tolist(), rows.tolist(), strict=True):
                assert chosen == sorted(set(chosen))
                largest = max(pvariance(subset) for subset in itertools.combinations(values, keep))
                assert pvariance([values[i] for i in chosen]) == pytest.approx(largest, rel=1e-6, abs=1e-14)


def test_max_variance_rows_prefers_more_of_the_best_and_is_settled_by_place() -> None:
    # Two right and one wrong, or one right and two wrong: the same variance.
    assert max_variance_rows(torch.tensor([[0.0, 1.0, 0.0, 1.0, 1.0]]), 3).tolist() == [[1, 2, 3]]
    for value in (0.0, 2.3, 1e30):
        assert max_variance_rows(torch.full((1, 12), value), 3).tolist() == [[0, 1, 2]]


def test_max_variance_rows_takes_the_unscored_last() -> None:
    rewards = torch.tensor([[NAN, 0.5, 1.0, NAN, 0.0], [NAN, NAN, NAN, 0.3, NAN], [NAN] * 5])
    assert max_variance_rows(rewards, 2).tolist() == [[2, 4], [0, 3], [0, 1]]
    assert max_variance_rows(rewards, 4).tolist() == [[0, 1, 2, 4], [0, 1, 2, 3], [0, 1, 2, 3]]


def test_max_variance_rows_of_far_away_rewards() -> None:
    # Close to one another against their size: the variance must not drown.
    rewards = torch.tensor([[1e8 + 3, 1e8, 1e8 + 1, 1e8 + 2, 1e8 + 1.5]], dtype=torch.float64)
    assert max_variance_rows(rewards, 2).tolist() == [[0, 1]]
    assert max_variance_rows(torch.tensor([[1e30, -1e30, 0.0, 1.0]]), 2).tolist() == [[0, 1]]
    assert max_variance_rows(torch.tensor([[1e-30, 0.0, 5e-31, 5e-31]]), 2).tolist() == [[0, 1]]


def test_bad_input_of_max_variance_rows_is_named() -> None:
    for keep in (0, -1, 4):
        with pytest.raises(ValueError, match=f"keep must be between 1 and the group size, 3; got {keep}"):
            max_variance_rows(torch.zeros(2, 3), keep)
    with pytest.raises(ValueError, match=r"rewards\[0, 0\] is inf; use nan for unscored"):
        max_variance_rows(torch.tensor([[math.inf, 0.0]]), 1)
    with pytest.raises(TypeError, match=r"rewards must be float32 or float64, got torch\.int64"):
        max_variance_rows(torch.zeros(2, 3).long(), 2)
    assert max_variance_rows(torch.zeros(0, 3), 2).shape == (0, 2)
