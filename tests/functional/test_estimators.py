import itertools
import math

import pytest

from oncurve.functional import accuracy, clustered_interval, majority_at_k, pass_at_k, wilson


def test_pass_at_k() -> None:
    expected = {1: 0.25, 2: 0.4642857142857143, 4: 0.7857142857142857, 8: 1.0}
    assert {k: pass_at_k(8, 2, k) for k in expected} == pytest.approx(expected, abs=1e-15)


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    right = [True, False, False, True, False, False]
    for k in range(1, 7):
        subsets = list(itertools.combinations(right, k))
        assert pass_at_k(6, 2, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-15)


def test_pass_at_k_ends() -> None:
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 4, 1) == 1.0
    assert pass_at_k(4, 1, 4) == 1.0
    assert pass_at_k(2000, 1, 1000) == 0.5  # numbers of 600 digits
    assert pass_at_k(10**6, 1, 1) == pytest.approx(1e-6, rel=1e-12)


def vote(answers: tuple[str | None, ...]) -> dict[str, float]:
    """The share of the vote's prize that each answer gets: all of it, or its part of a tie."""
    counts = {answer: answers.count(answer) for answer in answers if answer is not None}
    winners = [answer for answer, count in counts.items() if count == max(counts.values())]
    return {answer: 1 / len(winners) for answer in winners}


@pytest.mark.parametrize(
    ("answers", "right"),
    [
        ("aabc-", "a"),
        ("abcd", "c"),
        ("aaabbbcc", "b"),
        ("aabbccdd", "a"),
        ("----a", "a"),
        ("aaaa", "a"),
        ("aaab--bc", "c"),
        ("aabbcd-", "ad"),
    ],
)
def test_majority_at_k_is_the_mean_over_all_subsets(answers: str, right: str) -> None:
    given = [None if answer == "-" else answer for answer in answers]
    correct = [answer in right for answer in answers]
    for k in range(1, len(answers) + 1):
        prizes = [sum(vote(subset).get(answer, 0.0) for answer in right) for subset in itertools.combinations(given, k)]
        expected = math.fsum(prizes) / math.comb(len(answers), k)
        assert majority_at_k(given, correct, k) == pytest.approx(expected, abs=1e-14)


def test_majority_at_k_by_hand() -> None:
    answers = ["7", "7", "9", None]
    correct = [True, True, False, False]
    # k = 2: 77 wins, 79 ties (twice), 7- wins (twice), 9- loses: (1 + 1/2 + 1/2 + 1 + 1 + 0) / 6
    assert [majority_at_k(answers, correct, k) for k in (1, 2, 3, 4)] == pytest.approx([0.5, 4 / 6, 0.75, 1.0])


def test_a_majority_can_be_wrong() -> None:
    answers = [1] * 3 + [2] * 5
    correct = [answer == 1 for answer in answers]
    by_k = [majority_at_k(answers, correct, k) for k in (1, 3, 5, 8)]
    # k = 3: C(3,2) C(5,1) + C(3,3) = 16 of 56; k = 5: C(5,2) = 10 of 56
    assert by_k == pytest.approx([3 / 8, 16 / 56, 10 / 56, 0.0], abs=1e-15)


def test_majority_at_k_of_no_answer_and_of_many() -> None:
    assert majority_at_k([None, None], [False, False], 2) == 0.0
    assert majority_at_k([3, 4], [False, False], 1) == 0.0
    answers = [number % 10 for number in range(256)]
    shares = [majority_at_k(answers, [answer == right for answer in answers], 64) for right in range(10)]
    assert math.fsum(shares) == pytest.approx(1.0, abs=1e-12)  # somebody wins each of the 10^61 votes
    assert min(shares[:6]) > 0.1 > max(shares[6:])  # six answers have 26 voices, four have 25


def test_accuracy() -> None:
    assert accuracy(27, 30) == pytest.approx((0.9, 0.7437855868, 0.9654007400), abs=1e-9)
    assert accuracy(0, 10) == pytest.approx((0.0, 0.0, 0.2775401688), abs=1e-9)
    assert accuracy(50, 100, z=0.0) == pytest.approx((0.5, 0.5, 0.5), abs=1e-15)
    share, low, high = accuracy(0, 0)
    assert math.isnan(share)
    assert (low, high) == (0.0, 1.0)


def test_wilson() -> None:
    assert wilson(27, 30) == pytest.approx((0.7437855868, 0.9654007400), abs=1e-9)
    assert wilson(50, 100) == pytest.approx((0.4038298286, 0.5961701714), abs=1e-9)


@pytest.mark.parametrize(("successes", "n"), [(27, 30), (1, 10), (433, 512)])
def test_wilson_bounds_are_where_the_score_test_just_rejects(successes: int, n: int) -> None:
    for bound in wilson(successes, n):
        assert abs(successes / n - bound) / math.sqrt(bound * (1 - bound) / n) == pytest.approx(1.96, abs=1e-9)


def test_wilson_ends() -> None:
    assert wilson(0, 10) == (0.0, pytest.approx(0.2775401688, abs=1e-9))
    assert wilson(10, 10) == (pytest.approx(0.7224598312, abs=1e-9), 1.0)
    assert wilson(0, 0) == (0.0, 1.0)


def test_clustered_interval() -> None:
    # s = 0.408248, s / sqrt(4) = 0.204124
    expected = (0.5, 0.5 - 1.96 * 0.20412414523193154, 0.5 + 1.96 * 0.20412414523193154)
    assert clustered_interval([0.0, 0.5, 0.5, 1.0]) == pytest.approx(expected, abs=1e-15)
    assert clustered_interval([0.3, 0.3, 0.3]) == pytest.approx((0.3, 0.3, 0.3), abs=1e-15)


def test_samples_of_one_prompt_do_not_count_as_more_prompts() -> None:
    _, low, high = clustered_interval([0.0, 1.0] * 50)
    assert high - low == pytest.approx(2 * 1.96 * 0.05025189076296059, abs=1e-14)


def test_one_prompt_says_nothing_about_spread() -> None:
    mean, low, high = clustered_interval([0.25])
    assert mean == 0.25
    assert math.isnan(low)
    assert math.isnan(high)


def test_bad_input_is_named() -> None:
    for k in (0, 5):
        with pytest.raises(ValueError, match="k must be between 1 and the n = 4 samples"):
            pass_at_k(4, 2, k)
    for c in (-1, 5):
        with pytest.raises(ValueError, match="c must be between 0 and the n = 4 samples"):
            pass_at_k(4, c, 2)
    for successes, n in ((-1, 4), (5, 4), (0, -1)):
        with pytest.raises(ValueError, match="successes must be between 0 and n"):
            wilson(successes, n)
    with pytest.raises(ValueError, match="per_prompt_means is empty"):
        clustered_interval([])
    with pytest.raises(ValueError, match="not finite: leave unscored prompts out"):
        clustered_interval([0.5, math.nan])
    for k in (0, 3):
        with pytest.raises(ValueError, match=f"k must be between 1 and the n = 2 answers, got {k}"):
            majority_at_k(["a", "b"], [True, False], k)
    with pytest.raises(ValueError, match="correct must have one entry for each of the 2 answers, got 1"):
        majority_at_k(["a", "b"], [True], 1)
    with pytest.raises(ValueError, match="the answer 'a' is marked right in one completion and wrong in another"):
        majority_at_k(["a", "b", "a"], [True, False, False], 1)
    with pytest.raises(ValueError, match=r"correct\[1\] is True, but answers\[1\] is None"):
        majority_at_k(["a", None], [True, True], 1)
    with pytest.raises(ValueError, match="successes must be between 0 and n"):
        accuracy(5, 4)
