"""Formulas and outcomes. The exact comparison is in test_answer.py."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from oncurve.rewards import accuracy, extract_answer, read_gold
from oncurve.rewards.correctness import _formula_pool, formulas_can_be_compared
from oncurve.types import OncurveError


def boxed(answer):
    return rf"So the answer is \boxed{{{answer}}}."


def verdict(completion, gold):
    (value,) = accuracy([completion], [gold])
    return value


def outcomes(completions, golds, **options):
    found = {}
    values = accuracy(completions, golds, log_extra=lambda name, given: found.update({name: given}), **options)
    return values, found["accuracy/outcome"]


needs_math = pytest.mark.skipif(not formulas_can_be_compared(), reason='needs pip install "oncurve[math]"')


@needs_math
@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("4", r"\sqrt{16}"),
        (r"\sqrt{16}", "4"),
        (r"4\sqrt{2}", r"4\sqrt(2)"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        ("1024", "2^{10}"),
        ("1.5", r"1\frac12"),
        (r"\frac{1}{2^{99}}", "2^{-99}"),
        (r"\frac{\pi}{2}", r"0.5\pi"),
        (r"2\pi", "2π"),
        ("1-1/e", r"1-1/\mathrm{e}"),
        (r"\frac{1}{2004!}", r"1/2004!"),
        ("x^2+2x+1", "(x+1)^2"),
        (r"\sin^2 x+\cos^2 x", "1"),
        (r"\frac{x}{y}", "x/y"),
        ("1,2", "2,1"),
        (r"\{1,2\}", "1,2"),
        ("5,6", "5 or 6"),
        ("(1,2)", r"\left(1, \frac{4}{2}\right)"),
        ("[0,1)", r"[0, \frac{2}{2})"),
        ("x=5", "5=x"),
        ("3*x-1*y+13=0", "-6x+2y-26=0"),
        ("y=2x+1", "2x-y+1=0"),
        ("x>1", "1<x"),
        ("2x>2", "x>1"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
        ("10", r"\binom{5}{2}"),
        (r"\log_2 8", "3"),
        ("2+3i", "3i+2"),
        (0.5, r"\sin(\frac{\pi}{6})"),
    ],
)
def test_equal_formulas(gold, answer):
    assert verdict(boxed(answer), gold) == 1.0


@needs_math
@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        # What math-verify 0.9.0 itself takes for equal.
        (r"\frac{1}{2004!}", r"\frac{1}{2006!}"),
        (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
        (r"\frac{2^{2005}+1}{3·2^{2006}}", r"\frac{1}{3·2^{2006}}"),
        ("3*x-1*y+13=0", "3x + 4y + 14=0"),
        (r"1+\frac{1}{e}", r"1-1/\mathrm e"),
        ("4", r"4\sqrt(2)"),
        ("(1,2)", "1,2"),
        ("1,2", "(1,2)"),
        ("(0,1)", "0<x<1"),
        ("0<x<1", "(0,1)"),
        ("11", "11_2"),
        ("10", "5 5"),
        ("1,2,10", r"1,2,\ldots,10"),
        ("357", r"12\,345"),
        # No tolerance.
        (r"\sqrt{2}", "1.41421356"),
        (r"\pi", r"\frac{22}{7}"),
        (r"\pi", "3.14159265358979"),
        # Others.
        (r"\sqrt{x^2}", "x"),
        ("x^2+2x+1", "(x+2)^2"),
        ("(1,2)", "(2,1)"),
        ("[0,1)", "(0,1)"),
        ("x>1", "x<1"),
        ("x>1", r"x\ge 1"),
        ("x<1", "-x<-1"),
        ("x=5", "5"),
        ("5", "x=5"),
        ("5", "5 or 6"),
        ("5", "4,5"),
        ("5", r"\frac{5}{0}"),
        ("1234", "1, 234"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{pmatrix}1&3\\2&4\end{pmatrix}"),
        (r"(-\infty,3]\cup[5,\infty)", r"(-\infty, 3]\cup(5, \infty)"),
    ],
)
def test_formulas_that_are_not_equal(gold, answer):
    assert verdict(boxed(answer), gold) == 0.0


@needs_math
def test_outcomes_are_told_apart():
    golds = ["5", "5", "5", "5", "5", None, r"\pi", "B", "B", "June 20"]
    texts = [
        boxed("5"),
        boxed("6"),
        "It is 5.",
        boxed("I do not know"),
        boxed("9^{9^{9^9}}"),
        boxed("5"),
        boxed(r"\frac{"),
        boxed("C"),
        boxed("b c d e"),
        boxed("20 June"),
    ]
    logged = {}
    values, found = outcomes(texts, golds, log_metric=lambda name, value: logged.update({name: value}))
    assert found[:8] == ["right", "wrong", "no_answer", "unparseable", "timeout", "unscored", "no_answer", "wrong"]
    assert found[8:] == ["wrong", "wrong"]
    assert values == [1.0, 0.0, 0.0, 0.0, 0.0, None, 0.0, 0.0, 0.0, 0.0]
    assert logged.pop("time/rewards/accuracy/queue") >= 0.0
    assert logged == {"accuracy/no_answer": 2.0, "accuracy/unparseable": 1.0, "accuracy/timeout": 1.0}


def test_two_that_cannot_be_read_shift_nothing():
    texts = [boxed("1"), boxed("%%%"), boxed("3"), boxed("{{"), boxed("5")]
    assert accuracy(texts, ["1", "2", "3", "4", "5"]) == [1.0, 0.0, 1.0, 0.0, 1.0]


BOMBS = [
    "10^{10^{10}}",
    "100000000!",
    "((9!)!)!",
    "2^{2^{2^{2^{16}}}}",
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\sum_{k=1}^{10^9} k^k",
    "{" * 2000 + "5" + "}" * 2000,
    "(" * 230 + "6" + ")" * 230,
    r"\sqrt{" * 70 + "2" + "}" * 70,
    r"\(" * 10_000,
    ",".join(map(str, range(3000))),
    "1%" * 200,
    "x" * 200_000,
]


@needs_math
def test_bombs_end_and_leave_the_next_unharmed():
    _formula_pool().start()
    for bomb in BOMBS:
        began = time.monotonic()
        values, found = outcomes([boxed(bomb), boxed(r"\sqrt{25}"), boxed(r"\sqrt{36}")], ["5"] * 3)
        assert values == [0.0, 1.0, 0.0], bomb[:40]
        assert found[0] in ("wrong", "unparseable", "timeout")
        assert time.monotonic() - began < 15.0, bomb[:40]


def test_texts_that_are_long_repeated_or_empty():
    texts = ["<answer>5</answer>" * 20_000, "</think>" * 20_000, "", "x" * 200_000, "<think>" * 20_000 + boxed("5")]
    began = time.process_time()
    assert accuracy(texts, ["5"] * 5) == [1.0, 0.0, 0.0, 0.0, 1.0]
    assert time.process_time() - began < 0.5


@needs_math
def test_code_is_never_run(tmp_path):
    marker = tmp_path / "marker"
    poison = [rf"\pi + __import__('os').system('touch {marker}')", f"[__import__('os').system('touch {marker}')]"]
    assert accuracy([boxed(text) for text in poison] + [boxed("x+1")], [r"\pi", "5", "x+2"]) == [0.0] * 3
    assert not marker.exists()


@needs_math
def test_the_same_from_threads_and_coroutines():
    pairs = [(boxed(rf"\sqrt{{{n * n}}}"), str(n)) for n in range(20)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda pair: verdict(*pair), pairs)) == [1.0] * 20

    async def server():
        return verdict(boxed(r"\sqrt{169}"), "13"), verdict(boxed("((7!)!)!"), "13")

    assert asyncio.run(server()) == (1.0, 0.0)


def test_without_the_library_formulas_are_not_read(monkeypatch, caplog):
    monkeypatch.setattr("oncurve.rewards.correctness.formulas_can_be_compared", lambda: False)
    monkeypatch.setattr("oncurve.rewards.correctness._told", False)
    values, found = outcomes([boxed(r"\sqrt{16}"), boxed("4"), boxed("5")], ["4"] * 3)
    assert values == [0.0, 1.0, 0.0]
    assert found == ["unparseable", "right", "wrong"]
    assert caplog.text.count('pip install "oncurve[math]"') == 1


def test_a_box_in_the_thoughts_counts_only_when_asked_for():
    thought = r"<think>It must be \boxed{5}.</think> That is it."
    assert verdict(thought, "5") == 0.0
    assert accuracy([thought], ["5"], box_in_thoughts=True) == [1.0]
    for text in (
        r"<think>\boxed{5} or \boxed{6}</think> That is it.",  # not the only one
        r"<think>\boxed{5}</think> #### 6",  # an answer follows
        r"<think>\boxed{5}</think> \boxed{6}",
        r"<think>\boxed{5</think> That is it.",
    ):
        assert accuracy([text], ["5"], box_in_thoughts=True) == [0.0], text
    assert extract_answer(r"\boxed{5} in one", box_in_thoughts=True) == "5"


@pytest.mark.parametrize("gold", ["see figure", "See the diagram.", "proof", "notfound", r"\text{Not found}", "N/A"])
def test_a_gold_that_says_there_is_none_is_a_data_error(gold):
    with pytest.raises(OncurveError, match="is no answer; give the right one, or null"):
        read_gold(gold)
    with pytest.raises(OncurveError, match="row 0, column `answer`"):
        accuracy([boxed("5")], [gold])


def test_words_that_are_answers_are_none_of_these():
    for gold in ("seen", "proofs of concept", "New York", "Evelyn", r"\text{even}"):
        assert verdict(boxed(gold), gold) == 1.0
