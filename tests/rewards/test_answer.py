from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction

import pytest

from oncurve.rewards import accuracy
from oncurve.types import OncurveError


def verdict(completion, gold):
    (value,) = accuracy([completion], [gold])
    return value


def boxed(answer):
    return rf"So the answer is \boxed{{{answer}}}."


def test_last_box_wins():
    text = r"So \boxed{4}. Hmm, let me redo this carefully. So \boxed{5}."
    assert verdict(text, "5") == 1.0
    assert verdict(text, "4") == 0.0
    assert verdict(r"\boxed{840}., … \boxed{840}", "840") == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{2^{2005}+1}{3·2^{2006}}", r"\frac{1}{3·2^{2006}}"),
        ("3*x-1*y+13=0", "3x + 4y + 14=0"),
        ("$3*x-1*y+13=0$", "$3x + 4y + 14=0$"),
        ("(1,2)", "1,2"),
        ("1,2", "(1,2)"),
        ("(0,1)", "0<x<1"),
        ("0<x<1", "(0,1)"),
        ("B", "b"),
        ("B", "(B)"),
        ("5", "x=5"),
        ("1/3", "0.333"),
        ("0.333", "1/3"),
        ("3.14", "3,14"),
        ("42", "42 apples"),
        ("42", r"42\text{ million}"),
        (r"42\text{ m}", r"42\text{ cm}"),
        ("102", "10²"),
        ("1234", "1, 234"),
        ("5", ""),
        ("5", "1/0"),
        ("1e5", "1e99999999999"),
    ],
)
def test_not_equal(gold, answer):
    assert verdict(boxed(answer), gold) == 0.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\text{13}", "13"),
        ("13", r"\text{13}"),
        ("12345", r"12\,345"),
        ("12345", "12,345"),
        ("12345", "12{,}345"),
        ("12,345", "12 345"),
        ("1/2", "0.5"),
        (r"\frac{1}{2}", r"\dfrac{2}{4}"),
        (r"-\frac{1}{2}", "-.5"),
        ("50%", "0.5"),
        ("50", r"50\%"),
        ("0.5", r"50\%"),
        ("42", r"42\text{ cm}"),
        ("42", r"\$42"),
        ("-42", "\u221242"),
        ("42", "٤٢"),
        ("1500", r"1.5 \times 10^{3}"),
        ("1500", "1.5e3"),
        ("(1,2)", "(1, 2)"),
        ("3x+4y=0", "$3x + 4y = 0$"),
        ("B", "B."),
        (r"\frac{1}{2004!}", r"\frac{1}{2004!}"),
        (r"\boxed{72}", "72"),
        ("Natalia sold 48/2 = 24 clips in May.\n#### 72", "72"),
        (42, "42.0"),
        (42.0, "42"),
        (0.1, "1/10"),
        (1e-7, r"10^{-7}"),
        (Fraction(1, 3), r"\frac{1}{3}"),
        (Decimal("0.25"), "1/4"),
    ],
)
def test_equal(gold, answer):
    assert verdict(boxed(answer), gold) == 1.0


@pytest.mark.parametrize(
    "line", ["#### 42.", "#### $42", "#### 42.0", "####42", "#### 7 #### 42", "#### 42 \nThat is it."]
)
def test_hash_marks(line):
    assert verdict(f"6 times 7.\n{line}", "42") == 1.0


def test_hash_marks_with_unicode_minus():
    assert verdict("#### \u221242", "-42") == 1.0
    assert verdict("#### \u221242", "42") == 0.0


def test_final_answer_line():
    assert verdict("First 2*234 = 437 + 468 ...\nFinal Answer: **73**", "73") == 1.0


def test_number_that_merely_stands_there_is_no_answer():
    assert verdict("The answer is 42.", "42") == 0.0
    assert verdict("", "42") == 0.0
    assert verdict(r"\fbox{42}", "42") == 0.0


def test_thoughts_do_not_count():
    assert verdict(r"<think>\boxed{42}</think>It is \boxed{41}", "42") == 0.0
    assert verdict(r"<think>\boxed{42}</think>It is 42", "42") == 0.0
    assert verdict(r"<think>\boxed{41}</think>\boxed{42}", "42") == 1.0


def test_long_answers():
    answer = "+".join(f"x_{{{i}}}" for i in range(25))  # 140 characters
    assert verdict(boxed(answer), answer) == 1.0
    assert verdict(boxed("y" * 600), "y" * 600) == 1.0
    assert verdict(boxed("1" * 600), "1" * 599 + "2") == 0.0
    assert verdict(boxed(" " * 200_000 + "42"), "42") == 1.0


def test_bombs_are_wrong_and_the_next_is_unaffected():
    bombs = ["10^{10^{10}}", "9^{9^{9^9}}", "1e" + "9" * 400, "{" * 2000 + "}" * 2000, "1/" + "1" * 500, "9" * 200_000]
    completions = [boxed(bomb) for bomb in bombs] + [boxed("5")]
    assert accuracy(completions, ["5"] * len(completions)) == [0.0] * len(bombs) + [1.0]


def test_code_is_text():
    poison = r"\pi + __import__('os').system('touch marker')"
    assert accuracy([boxed(poison), boxed("4")], [r"\pi", "5"]) == [0.0, 0.0]


def test_same_verdict_in_a_thread():
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(verdict, boxed(r"\frac{1}{2}"), "0.5").result() == 1.0


@pytest.mark.parametrize("gold", ["", "  ", "$", "...", r"\boxed{}", "#### "])
def test_empty_gold_is_a_data_error(gold):
    with pytest.raises(OncurveError, match=r"row 1, column `answer`.*empty"):
        accuracy(["nothing", "<answer></answer>"], ["42", gold])


@pytest.mark.parametrize(
    ("gold", "said"), [(True, "bool"), ([1, 2], "list"), (float("nan"), "nan"), (float("inf"), "inf")]
)
def test_gold_of_a_wrong_type_is_a_data_error(gold, said):
    with pytest.raises(OncurveError, match=f"row 0, column `answer`.*{said}"):
        accuracy(["5"], [gold])


def test_missing_gold_is_unscored():
    assert accuracy([boxed("5"), boxed("5")], [None, "5"]) == [None, 1.0]


def test_answer_must_be_one_per_completion():
    with pytest.raises(OncurveError, match="2 values, one per completion; got 1 values"):
        accuracy(["a", "b"], ["5"])
    with pytest.raises(OncurveError, match="got '42'"):
        accuracy(["a", "b"], "42")


def test_messages_and_further_keywords():
    completion = [{"role": "assistant", "content": boxed("5")}]
    assert accuracy(completions=[completion], answer=["5"], prompts=["?"], trainer_state=None) == [1.0]
