import asyncio
import math
import os
import random
from dataclasses import FrozenInstanceError
from fractions import Fraction

import numpy
import pytest
import torch

from oncurve.rewards import NamedReward, RewardError, joined, load_functions, score
from oncurve.types import Completion, Group, OncurveError, Prompt

NAN = math.nan


def group(prompt_id, texts, raw="2+3?", **columns):
    prompt = Prompt(id=prompt_id, raw=raw, text=f"<{raw}>", token_ids=(1,), columns=columns)
    completions = tuple(Completion((len(text), 2), text, (-0.5, -0.5), False) for text in texts)
    return Group(prompt, completions)


GROUPS = [group(7, ["a", "bb"], answer="5"), group(3, ["ccc", "dddd"], answer="6")]


def returning(values, name="mine", weight=1.0):
    def function(completions):
        return values

    return NamedReward(name, weight, function)


def same(totals, expected):
    return repr(totals) == repr(expected)  # NaN equals NaN


def test_what_a_function_receives():
    seen = {}

    def function(**kwargs):
        seen.update(kwargs)
        return [len(text) for text in kwargs["completions"]]

    scores = score(GROUPS, [NamedReward("length", 1.0, function)], trainer_state="state")
    assert scores.totals == ((1.0, 2.0), (3.0, 4.0))
    del seen["log_extra"], seen["log_metric"]
    assert seen == {
        "prompts": ["2+3?"] * 4,
        "prompt_texts": ["<2+3?>"] * 4,
        "completions": ["a", "bb", "ccc", "dddd"],
        "completion_ids": [[1, 2], [2, 2], [3, 2], [4, 2]],
        "answer": ["5", "5", "6", "6"],
        "trainer_state": "state",
    }


def test_conversations_and_missing_columns():
    raw = ({"role": "user", "content": "2+3?"},)
    seen = {}

    def function(prompts, completions, level):
        seen.update(prompts=prompts, completions=completions, level=level)
        return [0.0, 0.0]

    groups = [group(0, ["a"], raw, level=2), group(1, ["b"], "plain", completions="never passed on")]
    score(groups, [NamedReward("f", 1.0, function)])
    assert seen == {
        "prompts": [[{"role": "user", "content": "2+3?"}], "plain"],
        "completions": [[{"role": "assistant", "content": "a"}], "b"],
        "level": [2, None],
    }


def test_a_function_cannot_confuse_the_next():
    def first(completions, answer):
        answer.clear()
        completions.sort(reverse=True)
        return [0.0] * 4

    def second(completions, answer):
        return [float(len(text)) + int(gold) for text, gold in zip(completions, answer, strict=True)]

    scores = score(GROUPS, [NamedReward("first", 1.0, first), NamedReward("second", 1.0, second)])
    assert scores.parts["second"] == ((6.0, 7.0), (9.0, 10.0))


def test_weights_and_unscored():
    rewards = [
        returning([1.0, None, None, 0.5], "a", 1.0),
        returning([1, 0.5, None, None], "b", 0.25),
        returning([9.0, 9.0, 9.0, None], "recorded_only", 0.0),
    ]
    scores = score(GROUPS, rewards)
    assert same(scores.totals, ((1.25, 0.125), (NAN, 0.5)))
    assert scores.parts == {
        "a": ((1.0, None), (None, 0.5)),
        "b": ((1.0, 0.5), (None, None)),
        "recorded_only": ((9.0, 9.0), (9.0, None)),
    }
    with pytest.raises(FrozenInstanceError):
        scores.totals = ()


def test_groups_of_different_sizes():
    groups = [group(0, ["a"]), group(1, ["b", "c", "d"])]
    assert score(groups, [returning([1.0, 2.0, 3.0, 4.0])]).totals == ((1.0,), (2.0, 3.0, 4.0))


def test_nothing_to_score():
    def never(**kwargs):
        raise AssertionError

    scores = score([], [NamedReward("f", 1.0, never)])
    assert (scores.totals, scores.parts) == ((), {"f": ()})
    assert same(score(GROUPS, []).totals, ((NAN, NAN), (NAN, NAN)))


@pytest.mark.parametrize(
    "values",
    [
        (1, 2, 3, 4),
        numpy.array([1, 2, 3, 4]),
        numpy.array([1, 2, 3, 4], dtype=numpy.float32),
        torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True),
        [numpy.float32(1), torch.tensor(2.0), numpy.int64(3), Fraction(4)],
    ],
)
def test_accepted_forms(values):
    scores = score(GROUPS, [returning(values)])
    assert scores.totals == ((1.0, 2.0), (3.0, 4.0))
    assert {type(value) for row in scores.totals for value in row} == {float}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0], "reward 'mine' returned 1 value; expected 4, one per completion"),
        ([1.0] * 3, "returned 3 values; expected 4"),
        ([1.0] * 5, "returned 5 values; expected 4"),
        ([], "returned 0 values; expected 4"),
        (numpy.ones(3), "returned 3 values; expected 4"),
        (1.0, r"returned 1.0 \(a float\); return a list of 4 numbers"),
        (None, r"returned None \(a NoneType\); return a list of 4 numbers"),
        ("1234", r"returned '1234' \(a str\)"),
        ({"a": 1}, r"returned \{'a': 1\} \(a dict\)"),
        (torch.tensor(1.0), r"returned tensor\(1.\) \(a Tensor\)"),
        (numpy.ones((4, 2)), r"step 0 is 1.0 \(a float\); give a pair \(end, reward\)"),
        ([1.0, 1.0, "1", 1.0], r"returned '1' \(a str\) for row 2 \(prompt 3, sample 0\)"),
        ([1.0, True, 1.0, 1.0], r"returned True \(a bool\) for row 1 \(prompt 7, sample 1\)"),
        (numpy.array([True] * 4), r"returned True \(a bool\) for row 0"),
        ([1.0, 1.0, 1.0, 1j], r"returned 1j \(a complex\) for row 3"),
        ([1.0, 1.0, 1.0, NAN], r"returned nan for row 3 \(prompt 3, sample 1\); return a finite number, or None"),
        ([1.0, -math.inf, 1.0, 1.0], "returned -inf for row 1"),
        ([1.0, 10**400, 1.0, 1.0], "returned inf for row 1"),
    ],
)
def test_refused_forms(values, said):
    with pytest.raises(RewardError, match=said):
        score(GROUPS, [returning(values)])


def test_exception_names_function_line_and_message():
    def broken(completions):
        return [1 / 0 for _ in completions]

    with pytest.raises(RewardError) as caught:
        score(GROUPS, [returning([0.0] * 4), NamedReward("broken", 1.0, broken)])
    text = str(caught.value)
    assert text.startswith("reward 'broken' failed: ")
    assert "test_score.py, line " in text
    assert "(`return [1 / 0 for _ in completions]`)" in text
    assert text.endswith("ZeroDivisionError: division by zero")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_exception_deep_in_a_library_shows_the_users_line():
    def broken(completions):
        return Fraction("x")

    with pytest.raises(RewardError, match=r"test_score.py, line \d+ \(`return Fraction\(\"x\"\)`\): ValueError"):
        score(GROUPS, [NamedReward("broken", 1.0, broken)])


def test_missing_parameter_is_an_error_of_the_function():
    with pytest.raises(RewardError, match=r"reward 'f' failed: TypeError: .*'nothing_gives_this'"):
        score(GROUPS, [NamedReward("f", 1.0, lambda completions, nothing_gives_this: [])])


def test_empty_gold_names_function_row_and_column():
    with pytest.raises(RewardError, match=r"^reward 'accuracy' failed: row 2, column `answer`: '' is empty"):
        score([GROUPS[0], group(1, ["a"], answer="")], load_functions(["accuracy"]))


def test_built_in_functions_together():
    texts = [r"<think>2+3</think>\boxed{5}", r"\boxed{5}", r"<think>2+3</think>\boxed{6}", "5"]
    scores = score([group(0, texts, answer="5")], load_functions(["accuracy", "format"], [1.0, 0.25]))
    assert scores.parts == {"accuracy": ((1.0, 1.0, 0.0, 0.0),), "format": ((1.0, 0.0, 1.0, 0.0),)}
    assert scores.totals == ((1.25, 1.0, 0.25, 0.0),)


def test_log_extra_and_log_metric():
    def function(completions, log_extra, log_metric):
        log_extra("length", numpy.array([1, 2, 3, 4]))
        log_extra("text", tuple(completions))
        log_metric("share", 0.25)
        log_metric("share", numpy.float32(0.75))
        return [0.0] * 4

    scores = score(GROUPS, [NamedReward("f", 1.0, function)])
    assert scores.extras == {"length": ((1, 2), (3, 4)), "text": (("a", "bb"), ("ccc", "dddd"))}
    assert scores.metrics == {"share": 0.5}


def log_short(completions, log_extra):
    log_extra("x", [1])


def log_scalar(completions, log_extra):
    log_extra("x", 1)


def log_words(completions, log_metric):
    log_metric("x", "many")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (log_short, r"reward 'f' failed: .*log_extra\('x', ...\) got 1 values; give a list of 4"),
        (log_scalar, r"log_extra\('x', ...\) got int"),
        (log_words, r"log_metric\('x', 'many'\): give one number"),
    ],
)
def test_logging_in_a_wrong_form(function, said):
    with pytest.raises(RewardError, match=said):
        score(GROUPS, [NamedReward("f", 1.0, function)])


def test_two_functions_cannot_log_the_same_column():
    def function(completions, log_extra):
        log_extra("x", [1] * 4)
        return [0.0] * 4

    with pytest.raises(RewardError, match=r"reward 'b' failed: .*reward 'a' logs this column already"):
        score(GROUPS, [NamedReward("a", 1.0, function), NamedReward("b", 1.0, function)])


def meeting_rewards_of(size):
    """Two async functions that finish only if they wait side by side, and one that is not async between them."""
    events = {}

    async def first(completions):
        events.setdefault("first", asyncio.Event()).set()
        await events.setdefault("second", asyncio.Event()).wait()
        return [1.0] * size

    async def second(completions):
        events.setdefault("second", asyncio.Event()).set()
        await events.setdefault("first", asyncio.Event()).wait()
        return [2.0] * size

    return [
        NamedReward("first", 1.0, first),
        returning([10.0] * size, "plain"),
        NamedReward("second", 1.0, second),
    ]


def meeting_rewards():
    return meeting_rewards_of(4)


def test_async_functions_wait_side_by_side():
    scores = score(GROUPS, meeting_rewards())
    assert scores.totals == ((13.0, 13.0), (13.0, 13.0))
    assert list(scores.parts) == ["first", "plain", "second"]


def test_async_functions_inside_a_running_loop():
    async def notebook():
        return score(GROUPS, meeting_rewards())

    assert asyncio.run(notebook()).totals == ((13.0, 13.0), (13.0, 13.0))


def test_exception_in_an_async_function():
    async def broken(completions):
        await asyncio.sleep(0)
        raise ValueError("no network")

    with pytest.raises(
        RewardError, match=r"reward 'broken' failed: .*test_score.py, line \d+ .*ValueError: no network"
    ):
        score(GROUPS, [*meeting_rewards(), NamedReward("broken", 1.0, broken)])


@pytest.mark.filterwarnings("error")
def test_async_function_before_one_that_fails_is_closed():
    def broken(completions):
        raise ValueError("no")

    with pytest.raises(RewardError, match="'broken' failed"):
        score(GROUPS, [*meeting_rewards(), NamedReward("broken", 1.0, broken)])


def test_random_state_and_working_directory_are_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()

    def restless(completions):
        random.seed(1)
        os.chdir("elsewhere")
        return [0.0] * 3

    random.seed(0)
    expected = random.Random(0).random()
    with pytest.raises(RewardError, match="3 values"):
        score(GROUPS, [NamedReward("restless", 1.0, restless)])
    assert random.random() == expected
    assert os.path.samefile(os.getcwd(), tmp_path)


# -- a function that raises for some of the completions ---------------------------------------------------------------

TEN = [group(0, ["a", "b", "c", "d", "e"], answer="5"), group(1, ["f", "g", "h", "i", "j"], answer="6")]


def raising_on(bad, name="picky", **attributes):
    calls = []

    def function(completions, log_extra, log_metric):
        calls.append(list(completions))
        log_metric("calls", 1.0)
        log_extra("upper", [text.upper() for text in completions])
        for text in completions:
            if text in bad:
                raise KeyError(text)
        return [float(ord(text)) for text in completions]

    vars(function).update(attributes)
    return NamedReward(name, 1.0, function), calls


def test_what_raises_is_unscored_and_counted(caplog):
    reward, calls = raising_on("ci")
    scores = score(TEN, [reward, returning([0.5] * 10, "other")])
    expected = [None if text in "ci" else float(ord(text)) for text in "abcdefghij"]
    assert scores.parts["picky"] == (tuple(expected[:5]), tuple(expected[5:]))
    assert scores.totals[0][2] == 0.5  # the other function scored it
    assert scores.sums["rewards/picky/failed"] == 2.0
    assert "rewards/other/failed" not in scores.sums
    assert calls == [list("abcdefghij"), *[[text] for text in "abcdefghij"]]
    # What it logged in the call that failed is forgotten; what it logged for a completion before it raised is kept.
    assert scores.extras["upper"] == (tuple("ABCDE"), tuple("FGHIJ"))
    assert scores.metrics == {"calls": 1.0}
    assert caplog.text.count("KeyError: 'c'") == 1
    score(TEN, [reward])
    assert caplog.text.count("Traceback") == 1


def test_more_than_a_fifth_stops():
    reward, calls = raising_on("cij")
    with pytest.raises(RewardError, match=r"reward 'picky' failed for 3 of the first 10 completions of 10: .*KeyError"):
        score(TEN, [reward])
    reward, calls = raising_on("abcdefghij")
    with pytest.raises(RewardError, match=r"reward 'picky' failed: .*KeyError: 'c'"):
        score(TEN, [reward])
    assert len(calls) == 1 + 3  # no more calls than it takes to know


def test_a_function_that_compares_is_called_with_whole_groups():
    groups = [group(number, [text, "z"]) for number, text in enumerate("abcdef")]
    reward, calls = raising_on("c", whole_group=True)
    scores = score(groups, [reward])
    assert scores.parts["picky"] == tuple(
        (None, None) if text == "c" else (float(ord(text)), 122.0) for text in "abcdef"
    )
    assert scores.sums["rewards/picky/failed"] == 2.0
    assert calls[1:] == [[text, "z"] for text in "abcdef"]


def test_columns_are_the_same_in_smaller_calls():
    def picky(completions, **columns):
        if "a" in completions:
            raise ValueError
        assert set(columns) >= {"answer", "level", "prompts", "completion_ids"}
        return [float(len(completions) == len(columns["level"]))]

    groups = [group(0, ["a", "b", "c"], answer="5", level=1), group(1, ["d", "e"], answer="6")]
    assert score(groups, [NamedReward("picky", 1.0, picky)]).parts["picky"] == ((None, 1.0, 1.0), (1.0, 1.0))


def test_async_functions_that_raise_for_some():
    async def picky(completions):
        await asyncio.sleep(0)
        return [1 / (text != "c") for text in completions]

    async def notebook():
        return score(TEN, [NamedReward("picky", 1.0, picky), *meeting_rewards_of(10)])

    for scores in (asyncio.run(notebook()), score(TEN, [NamedReward("picky", 1.0, picky)])):
        assert scores.parts["picky"] == ((1.0, 1.0, None, 1.0, 1.0), (1.0,) * 5)


def test_wrong_data_stops_at_once():
    calls = []

    def strict(completions):
        calls.append(completions)
        raise OncurveError("row 3 is not right")

    with pytest.raises(RewardError, match=r"^reward 'strict' failed: .*row 3 is not right"):
        score(TEN, [NamedReward("strict", 1.0, strict)])
    assert len(calls) == 1


def test_a_smaller_call_must_return_as_many():
    def strange(completions):
        if len(completions) > 1:
            raise ValueError
        return []

    with pytest.raises(RewardError, match="reward 'strange' returned 0 values for 1 completions"):
        score(TEN, [NamedReward("strange", 1.0, strange)])


def test_sums_of_two_batches_add_up():
    picky, _ = raising_on("ci")
    both = joined(score(TEN, [picky]), score(TEN, [picky]))
    assert both.sums["rewards/picky/failed"] == 4.0
    assert both.sums["time/rewards/picky"] > 0.0
    clean, _ = raising_on("")
    assert joined(score(TEN, [clean]), score(TEN, [picky])).sums["rewards/picky/failed"] == 2.0
