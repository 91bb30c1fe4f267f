import pytest

from oncurve.tasks import countdown


def test_a_worked_example_reads_like_this():
    assert countdown.question((7, 5, 3), 26) == "7, 5, 3 to make 26"
    assert countdown.worked((3, "*", 7, 21), (21, "+", 5, 26)) == (
        "<think>\n3 * 7 = 21\n21 + 5 = 26\n</think>\n\\boxed{(3 * 7) + 5}"
    )
    assert countdown.worked((5, "-", 3, 2), (7, "*", 2, 14), boxed=False).endswith("</think>\n7 * (5 - 3)")


def test_what_can_be_made_is_what_some_solution_makes():
    numbers = (2, 3, 7)
    reachable = countdown.reachable(numbers)
    assert reachable == {t for t in range(1, 100) if countdown.solutions(numbers, t)}
    assert {12, 42, 13, 23, 2} <= reachable  # 2+3+7, 2*3*7, 2*3+7, 3*7+2, (7-3)-2: and 99 from no calculation
    assert 99 not in reachable


@pytest.mark.parametrize(
    ("expression", "right"),
    [
        ("(3 * 7) + 5", True),
        ("5+7*3", True),
        ("((5)) + (7 * 3)", True),
        ("26", False),  # the target itself
        ("13 + 13", False),  # numbers that are not in the list
        ("3 * 7 + 5 + 0", False),
        ("3 * 7 + 5 * 1", False),
        ("7 * 3", False),  # a number left out
        ("3 * 7 + 7", False),
        ("3 * 7 - 5", False),  # another value
        ("-(-3 * 7) + 5", False),  # no sign before a number
        ("3 ** 7 + 5", False),
        ("03 * 7 + 5", False),
        ("(3 * 7) + 5 = 26", False),
        ("3 * 7 + 5 # yes", False),
        ("3 * 7 +", False),
        ("", False),
        ("(" * 50 + "3" + ")" * 50, False),
        ("((((((((((((" * 8, False),
        ("9**9**9", False),
        ("__import__('os').system('true')", False),
        ("3 * 7 + 5" + " " * 100, False),  # over-long
        ("３ * 7 + 5", False),
    ],
)
def test_a_solution_uses_each_number_once_and_comes_to_the_target(expression, right):
    assert countdown.is_solution(expression, (7, 5, 3), 26) is right
    assert countdown.solved(completions=[f"So \\boxed{{{expression}}}"], numbers=[(7, 5, 3)], target=[26]) == [right]


def test_every_gold_answer_is_a_solution_and_so_is_every_other_one():
    for row in countdown.rows(600, 0, "eval"):
        assert countdown.is_solution(row["answer"], row["numbers"], row["target"])
        for first, second in countdown.solutions(row["numbers"], row["target"]):
            text = countdown.worked(first, second)
            assert countdown.solved(completions=[text], numbers=[row["numbers"]], target=[row["target"]]) == [1.0]


def test_the_last_box_counts_and_a_box_among_the_thoughts_does_not():
    asked = {"numbers": [(7, 5, 3)] * 3, "target": [26] * 3}
    completions = ["\\boxed{1} no, \\boxed{5 + 3 * 7}", "<think>\\boxed{5 + 3 * 7}</think>\\boxed{5}", "5 + 3 * 7"]
    assert countdown.solved(completions=completions, **asked) == [1.0, 0.0, 0.0]
    assert countdown.solved_unboxed(completions=completions, **asked) == [0.0, 0.0, 1.0]
    assert countdown.solved(
        completions=[[{"role": "assistant", "content": "\\boxed{5 + 3 * 7}"}]], **asked_one(asked)
    ) == [1.0]


def asked_one(asked):
    return {name: values[:1] for name, values in asked.items()}


@pytest.mark.parametrize(
    ("text", "rewards"),
    [
        ("<think>\n3 * 7 = 21\n21 + 5 = 26\n</think>\n\\boxed{(3 * 7) + 5}", [1, 1, 1]),
        ("<think>\n7 * 3 = 21\n5 + 21 = 26\n</think>\n5 + (7 * 3)", [1, 1, 0]),  # no box
        ("<think>\n3 + 7 = 10\n10 + 5 = 15\n</think>\n\\boxed{(3 + 7) + 5}", [0, 1, 0]),  # out of reach after line 1
        ("<think>\n3 * 7 = 20\n20 + 5 = 25\n</think>\n\\boxed{(3 * 7) + 5}", [0, 1, 1]),
        ("<think>\n3 * 7 = 21\n21 - 5 = 16\n</think>\n\\boxed{(3 * 7) - 5}", [1, 0, 0]),  # could still be made
        ("<think>\n3 * 7 = 21\n7 + 5 = 12\n</think>\n\\boxed{1}", [1, 0, 0]),  # the 7 is used up
        ("<think>\n13 * 2 = 26\n</think>\n\\boxed{13 * 2}", [0, 0]),
        ("<think>\nhm\n3 * 7 = 21\n21 + 5 = 26\n26 + 0 = 26\n", [0, 1, 1, 0]),
        ("<think>\n7 + 7 = 14\n", [0]),  # there is one 7 only
    ],
)
def test_a_step_is_right_if_the_target_stays_in_reach(text, rewards):
    (steps,) = countdown.countdown_steps(completions=[text], numbers=[(7, 5, 3)], target=[26])
    assert [reward for _, reward in steps] == rewards
