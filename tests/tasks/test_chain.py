import pytest

from oncurve.tasks import chain
from oncurve.types import OncurveError


def test_a_worked_example_reads_like_this():
    assert chain.question((7, 8, -3)) == "7 + 8 - 3 = ?"
    assert chain.worked((7, 8, -3)) == "<think>\n7 + 8 = 15\n15 - 3 = 12\n</think>\n\\boxed{12}"


@pytest.mark.parametrize(
    ("numbers", "slips", "totals"),
    [
        ((7, 8), [True], [7, 5]),  # the carry is forgotten
        ((15, -8), [True], [15, 17]),  # the borrow is forgotten
        ((2, 3), [True], [2, 5]),  # no ten to forget
        ((7, 8, -3), [True, True], [7, 5, 2]),  # what follows is worked out from the slip
        ((7, 8, -3), [False, True], [7, 15, 12]),
    ],
)
def test_slips(numbers, slips, totals):
    assert chain.totals(numbers, slips) == totals


@pytest.mark.parametrize("split", ["train", "validation", "eval"])
def test_rows_are_right_and_distinct(split):
    rows = chain.rows(600, 0, split)
    assert rows == chain.rows(600, 0, split)
    assert rows != chain.rows(600, 1, split)
    assert len({row["prompt"] for row in rows}) == 600
    assert {len(row["numbers"]) for row in rows} == {3, 4, 5}
    for row in rows:
        assert int(row["answer"]) == eval(row["prompt"].removesuffix(" = ?"))
        assert all(0 <= total <= 20 for total in chain.totals(row["numbers"]))


def test_splits_do_not_overlap():
    assert chain.check(0) == {"eval": 500, "validation": 500, "train": 5000, "showcase": 1}
    held_out = {row["prompt"] for row in chain.rows(500, 1, "eval")}
    assert not held_out & {row["prompt"] for row in chain.demonstrations(3000, 0)}


def test_a_sum_in_two_splits_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chain, "rows", lambda size, seed, split: [{"prompt": "1 + 2 + 3 = ?"}])
    with pytest.raises(OncurveError, match=r"'1 \+ 2 \+ 3 = \?' is in the splits eval and validation"):
        chain.check(0)


def test_the_tutor_is_careless():
    rows = chain.demonstrations(3000, 0)
    score = chain.TASK.tutor_score(rows)
    assert 0.57 < score["boxed"] < 0.63
    assert 0.30 < score["right_and_boxed"] < 0.50
    assert not any("-1" in row["completion"].replace(" - ", "") for row in rows)
    assert all(row["answer"] in row["completion"] for row in chain.demonstrations(300, 0, slip=0.0))


def test_chain_right_wants_every_step():
    right = "<think>\n7 + 8 = 15\n15 - 3 = 12\n</think>\n\\boxed{12}"
    completions = [
        right,
        right.replace("\\boxed{12}", "12"),
        right.replace("15", "5"),
        "<think>\n15 - 3 = 12\n</think>\n\\boxed{12}",
        "",
    ]
    asked = {"completions": completions, "numbers": [(7, 8, -3)] * 5, "answer": ["12"] * 5}
    assert chain.chain_right(**asked) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert chain.right_unboxed(**asked) == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_more_sums_than_there_are_is_refused_and_not_searched_for():
    assert chain.sizes() == {"train": 22539, "validation": 1362, "eval": 1299}
    assert len({row["prompt"] for row in chain.rows(1299, 0, "eval")}) == 1299
    with pytest.raises(OncurveError, match="1299 different sums for eval, and 1300 were asked for; ask for fewer"):
        chain.rows(1300, 0, "eval")
