"""Rows for reward models: what they become, what is dropped and counted, what is refused."""

from __future__ import annotations

import pytest

from oncurve.config import Data
from oncurve.data.labelled import Labelled, build_labelled, check_labelled, encode_answer, hold_out, left_out
from oncurve.types import OncurveError
from tiny import TEMPLATE, tiny_tokenizer

DATA = Data(train="-")
# two plus is four please hello: 6 7 8 9 10 11; EOS: 2


def built(rows, kind, limit=None, **options):
    return build_labelled(rows, tiny_tokenizer(), DATA, kind, limit=limit, **options)


def test_a_pair():
    rows = [{"prompt": "two plus", "chosen": "four", "rejected": "please hello", "margin": 2}]
    [pair] = built(rows, "pairwise").rows
    assert pair == Labelled("two plus", ((6, 7, 9, 2), (6, 7, 10, 11, 2)), ((4,), (5,)), (), 2.0, (2, 3))
    del rows[0]["margin"]
    assert built(rows, "pairwise", margin=0.5).rows[0].margin == 0.5


def test_a_point_and_a_chat():
    data = Data(train="-", system_prompt="please")
    rows = [{"prompt": "two", "completion": [{"role": "assistant", "content": "four"}], "label": True}]
    [point] = build_labelled(rows, tiny_tokenizer(template=TEMPLATE), data, "pointwise", limit=None).rows
    assert point.rows == ((4, 10, 3, 6, 5, 9, 2),)
    assert (point.ends, point.labels, point.lengths) == (((7,),), (1.0,), (2,))


def test_steps_end_with_the_token_that_holds_their_last_character():
    rows = [{"prompt": "two", "completion": "two plus four hello", "steps": [[8, 1], [10, None], [19, 0.25]]}]
    [steps] = built(rows, "process").rows
    assert steps.rows == ((6, 6, 7, 9, 11, 2),)
    assert (steps.ends, steps.labels, steps.lengths) == (((3, 5),), (1.0, 0.25), (2, 4))


def test_what_teaches_nothing_is_dropped_and_counted():
    rows = [
        {"prompt": "two", "chosen": "four", "rejected": "four"},
        {"prompt": "two", "chosen": "four", "rejected": " \n"},
        {"prompt": "two", "chosen": "is is is four", "rejected": "is is is hello"},
        {"prompt": "two two two two", "chosen": "is", "rejected": "four"},
        {"prompt": "two", "chosen": "four", "rejected": "hello"},
    ]
    found = built(rows, "pairwise", limit=4)
    assert [row.rows for row in found.rows] == [((6, 9, 2), (6, 11, 2))]
    assert found.dropped == {"equal": 1, "empty": 1, "equal after truncation": 1, "over-long": 1}
    assert left_out(found.dropped) == "1 empty, 1 equal, 1 equal after truncation, 1 over-long"
    with pytest.raises(OncurveError, match="no row is left of 1: 1 equal"):
        built(rows[:1], "pairwise")


def test_steps_that_are_cut_off_or_have_no_label_are_no_steps():
    rows = [
        {"prompt": "two", "completion": "two plus four hello", "steps": [[19, 1]]},
        {"prompt": "two", "completion": "two plus", "steps": [[8, None]]},
        {"prompt": "two", "completion": "two plus", "steps": []},
        {"prompt": "two", "completion": "two plus four", "steps": [[3, 1], [13, 0]]},
    ]
    found = built(rows, "process", limit=3)
    assert found.dropped == {"no steps": 3}
    assert [row.ends for row in found.rows] == [((2,),)]


@pytest.mark.parametrize(
    ("kind", "row", "said"),
    [
        ("pairwise", {"prompt": "two", "chosen": "four"}, "there is no column 'rejected', only: prompt, chosen"),
        ("pairwise", {"prompt": "two", "chosen": "four", "rejected": 3}, "rejected is 3"),
        ("pairwise", {"prompt": "two", "chosen": "a", "rejected": "b", "margin": -1}, "margin is -1; it must be"),
        (
            "pointwise",
            {"prompt": "two", "completion": "four", "label": 1.5},
            "label is 1.5; it must be a number from 0",
        ),
        ("pointwise", {"prompt": "two", "completion": "four", "label": "yes"}, "label is 'yes'"),
        ("pointwise", {"prompt": "two", "label": 1}, "Set data.completion_column"),
        ("process", {"prompt": "two", "completion": "four", "steps": [[9, 1]]}, "step 0 ends at 9; .* from 1 to 4"),
        ("process", {"prompt": "two", "completion": "four", "steps": [[3, 1], [2, 1]]}, "step 1 ends at 2; .* from 3"),
        ("process", {"prompt": "two", "completion": "four", "steps": [3]}, "it must be a list of"),
        ("process", {"prompt": "two", "completion": "four", "steps": [[2, 2.0]]}, "the label of step 0 is 2.0"),
        ("pointwise", {"completion": "four", "label": 1}, "there is no column 'prompt'"),
    ],
)
def test_what_is_no_such_row_is_named(kind, row, said):
    good = {"prompt": "two", "chosen": "is", "rejected": "four", "completion": "four", "label": 1, "steps": [[4, 1]]}
    for check in (lambda rows: built(rows, kind), lambda rows: check_labelled(rows, DATA, kind)):
        with pytest.raises(OncurveError, match=f"data row 1 .*{said}"):
            check([good, row])
        check([good])


def test_a_prompt_is_held_out_with_all_its_rows():
    rows = [Labelled(str(number % 10), ((1, number),), ((2,),), (1.0,), 0.0, (1,)) for number in range(40)]
    train, held_out = hold_out(rows, 3, seed=1)
    assert len(held_out) == 12
    assert len(train) == 28
    assert not {row.question for row in train} & {row.question for row in held_out}
    assert hold_out(rows, 3, seed=1) == (train, held_out)
    assert hold_out(rows, 3, seed=2)[1] != held_out
    with pytest.raises(OncurveError, match=r"reward_model\.held_out is 10, but the rows are about only 10"):
        hold_out(rows, 10, seed=1)


def test_an_answer_may_hold_what_looks_like_eos():
    assert encode_answer(tiny_tokenizer(), "four </s> hello", [4, 15]) == ([9, 2, 11, 2], [1, 3])
