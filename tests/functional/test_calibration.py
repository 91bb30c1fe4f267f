"""Scores against what came true: literal numbers, and the cases in which nothing can be said."""

from __future__ import annotations

import math

import pytest

from oncurve.functional import auc, bootstrap, calibration_error, correlation, reliability


def test_the_reliability_table_of_five_predictions():
    table = reliability([0.05, 0.1, 0.62, 0.69, 1.0], [0.0, 1.0, 1.0, 0.5, 1.0], bins=4)
    assert [part.n for part in table] == [2, 0, 2, 1]
    assert [(part.low, part.high) for part in table] == [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]
    assert table[0].predicted == pytest.approx(0.075)
    assert table[2].observed == 0.75
    assert math.isnan(table[1].predicted)
    assert calibration_error(table) == pytest.approx((2 * 0.425 + 2 * 0.095 + 0.0) / 5)


def test_nothing_predicted_is_nan():
    assert math.isnan(calibration_error(reliability([], [])))


@pytest.mark.parametrize(("probabilities", "outcomes"), [([1.1], [1.0]), ([0.5], [-1.0]), ([math.nan], [1.0])])
def test_what_is_no_probability_is_refused(probabilities, outcomes):
    with pytest.raises(ValueError, match="between 0 and 1"):
        reliability(probabilities, outcomes)
    with pytest.raises(ValueError, match="1 probabilities and 2 outcomes"):
        reliability([0.5], [1.0, 1.0])


def test_auc_counts_the_pairs_in_the_right_order():
    scores, right = [0.1, 0.4, 0.35, 0.8, 0.4], [False, False, True, True, True]
    pairs = [
        (a, b) for a, x in zip(scores, right, strict=True) if x for b, y in zip(scores, right, strict=True) if not y
    ]
    assert auc(scores, right) == sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs) == 4.5 / 6
    assert auc([-s for s in scores], right) == pytest.approx(1 - 4.5 / 6)
    assert math.isnan(auc([1.0, 2.0], [True, True]))


def test_correlation():
    assert correlation([1.0, 2.0, 4.0], [3.0, 1.0, 2.0]) == pytest.approx(-0.3273268353539886)
    assert math.isnan(correlation([1.0, 1.0], [1.0, 2.0]))
    assert math.isnan(correlation([1.0], [1.0]))


def test_the_bootstrap_draws_whole_clusters():
    values = [0.0] * 5 + [1.0] * 5
    wide = bootstrap(lambda rows: sum(values[r] for r in rows) / len(rows), [range(5), range(5, 10)], seed=1)
    assert wide == (0.0, 1.0)  # two clusters: both may be the same one
    narrow = bootstrap(lambda rows: sum(values[r] for r in rows) / len(rows), [[r] for r in range(10)], seed=1)
    assert 0.0 < narrow[0] < 0.5 < narrow[1] < 1.0
    assert narrow == bootstrap(lambda rows: sum(values[r] for r in rows) / len(rows), [[r] for r in range(10)], seed=1)
    assert all(math.isnan(bound) for bound in bootstrap(lambda _: math.nan, [[0]], seed=0))
