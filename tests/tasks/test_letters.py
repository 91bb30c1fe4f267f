from collections import Counter

import pytest

from oncurve.tasks import letters
from oncurve.types import OncurveError

STRAWBERRY = (
    "<think>\ns: no (0)\nt: no (0)\nr: yes (1)\na: no (1)\nw: no (1)\nb: no (1)\ne: no (1)\nr: yes (2)\nr: yes (3)\n"
    "y: no (3)\n</think>\n\\boxed{3}"
)


def test_a_worked_example_reads_like_this():
    assert letters.question("strawberry", "r") == "How many r's are in strawberry?"
    assert letters.worked("strawberry", "r") == STRAWBERRY


def test_a_slip_does_not_raise_the_count_and_a_forgotten_box_leaves_the_number():
    assert letters.worked("erer", "r", slips=[True, False], boxed=False) == (
        "<think>\ne: no (0)\nr: yes (0)\ne: no (0)\nr: yes (1)\n</think>\n1"
    )


@pytest.mark.parametrize("split", ["train", "validation", "eval"])
def test_rows_are_right_balanced_and_repeatable(split):
    rows = letters.rows(500, 0, split)
    assert rows == letters.rows(500, 0, split)
    assert rows != letters.rows(500, 1, split)
    assert Counter(row["answer"] for row in rows) == {str(n): 100 for n in range(5)}
    assert len({row["word"] for row in rows}) == 500
    for row in rows:
        assert row["prompt"] == f"How many {row['letter']}'s are in {row['word']}?"
        assert row["answer"] == str(row["word"].count(row["letter"]))


def test_the_table_of_splits_is_kept():
    seen = {split: {row["word"] for row in letters.rows(500, 0, split)} for split in ("train", "validation", "eval")}
    assert not seen["train"] & seen["eval"]
    assert not seen["validation"] & seen["eval"]
    every = {row["word"] for row in letters.rows(20_000, 0, "train")}
    assert len(every) == 8000
    assert "strawberry" not in every
    assert {row["word"] for row in letters.demonstrations(2000, 0)} <= every


def test_the_tutor_is_as_careless_as_it_says():
    rows = letters.demonstrations(4000, 0)
    score = letters.TASK.tutor_score(rows)
    assert 0.57 < score["boxed"] < 0.63
    # 0 to 4 occurrences, each counted with probability 0.4: the mean of 0.4 ** n is 0.330
    assert 0.30 < score["right"] < 0.36
    assert 0.168 < score["right_and_boxed"] < 0.228
    assert rows == letters.demonstrations(4000, 0)
    assert letters.TASK.tutor_score(letters.demonstrations(200, 0, slip=0.0, unboxed=0.0)) == {
        "right_and_boxed": 1.0,
        "right": 1.0,
        "boxed": 1.0,
    }


def test_chain_right_wants_every_step():
    completions = [
        STRAWBERRY,
        STRAWBERRY.replace("\\boxed{3}", "3"),  # steps right, no box
        STRAWBERRY.replace("y: no (3)\n", ""),  # a letter short
        STRAWBERRY.replace("r: yes (2)", "r: yes (1)"),
        STRAWBERRY.replace("</think>", "z: no (3)\n</think>"),
        "\\boxed{3}",
        "",
    ]
    n = len(completions)
    asked = {"completions": completions, "word": ["strawberry"] * n, "letter": ["r"] * n, "answer": ["3"] * n}
    assert letters.chain_right(**asked) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert letters.right_unboxed(**asked) == [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]


def test_bad_arguments_are_named():
    with pytest.raises(OncurveError, match="split is 'test'"):
        letters.rows(3, 0, "test")
    with pytest.raises(OncurveError, match="1000 words for eval, and 1001 were asked for"):
        letters.rows(1001, 0, "eval")
    with pytest.raises(OncurveError, match=r"slip is 60; it is a share"):
        letters.demonstrations(3, 0, slip=60)


def test_the_showcase_is_the_question_everyone_asks():
    (row,) = letters.TASK.showcase
    assert row == {"prompt": "How many r's are in strawberry?", "answer": "3", "word": "strawberry", "letter": "r"}
