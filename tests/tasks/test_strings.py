import pytest

from oncurve.tasks import strings


def test_a_worked_example_reads_like_this():
    operations = ("reverse", "double last", "swap ends")
    assert strings.question("bako", operations) == "bako: reverse, double last, swap ends = ?"
    assert strings.worked("bako", operations) == (
        "<think>\nreverse: okab\ndouble last: okabb\nswap ends: bkabo\n</think>\n\\boxed{bkabo}"
    )
    assert strings.worked("bako", operations, slips=[False, True, False], boxed=False) == (
        "<think>\nreverse: okab\ndouble last: okab\nswap ends: bkao\n</think>\nbkao"
    )


@pytest.mark.parametrize(
    ("operation", "becomes"),
    [("reverse", "okab"), ("swap ends", "oakb"), ("drop first", "ako"), ("drop last", "bak"),
     ("double first", "bbako"), ("double last", "bakoo"), ("first to end", "akob")],
)  # fmt: skip
def test_operations(operation, becomes):
    assert strings.stages("bako", (operation,)) == [becomes]


def test_every_operation_of_every_question_finds_two_letters():
    for row in strings.rows(3000, 0, "train"):
        assert all(len(word) >= 2 for word in [row["word"], *strings.stages(row["word"], row["operations"])[:-1]])


def test_held_out_words_are_in_no_question_of_any_seed():
    words = {split: {row["word"] for row in strings.rows(2000, 1, split)} for split in ("validation", "eval")}
    words["train"] = {row["word"] for row in strings.demonstrations(5000, 0)}
    assert not words["train"] & (words["eval"] | words["validation"])
    assert not words["eval"] & words["validation"]


def test_chain_right_wants_every_step_and_right_unboxed_the_last_word():
    row = {"word": "bako", "operations": ("reverse", "drop last"), "answer": "oka"}
    right = strings.worked("bako", row["operations"])
    completions = [
        right,
        right.replace("\\boxed{oka}", "oka"),
        right.replace("okab", "kaob"),
        "\\boxed{oka}",
        "\\boxed",
        "",
    ]
    asked = {"completions": completions, **{name: [value] * len(completions) for name, value in row.items()}}
    assert strings.chain_right(**asked) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert strings.right_unboxed(**asked) == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("<think>\nreverse: okab\ndrop last: oka\n</think>\n\\boxed{oka}", [1, 1, 1]),
        ("<think>\nreverse: bako\ndrop last: bak\n</think>\n\\boxed{bak}", [0, 1, 0]),  # left out, then rightly
        ("<think>\nreverse: okab\ndrop first: kab\n</think>\n\\boxed{kab}", [1, 0, 0]),  # another operation
        ("<think>\ndrop last: oka\n</think>\n\\boxed{oka}", [0, 1]),
        ("<think>\n?\ndrop last: oka\nreverse: ako\n</think>\noka", [0, 1, 0, 0]),
        ("<think>\nreverse: k\ndrop last: \n", [0, 0]),
    ],
)
def test_a_step_is_judged_for_itself(text, rewards):
    (steps,) = strings.strings_steps(
        completions=[text], word=["bako"], operations=[("reverse", "drop last")], answer=["oka"]
    )
    assert [reward for _, reward in steps] == rewards
