import itertools
import math

import pytest

from oncurve.functional import clustered_interval, pass_at_k, wilson


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
