"""Gates, bounds and options: what a function gave is kept, and what counts is told beside it."""

from __future__ import annotations

import math

import pytest

from oncurve.rewards import NamedReward, RewardError, combination, joined, load_functions, score
from oncurve.types import Completion, Group, Prompt


def group(texts):
    prompt = Prompt(0, "2+3?", "2+3?", (1,), {"answer": "5"})
    return [Group(prompt, tuple(Completion((1,), text, (0.0,), False) for text in texts))]


def fixed(name, values, weight=1.0):
    return NamedReward(name, weight, lambda **_: list(values))


FOUR = group("abcd")


def test_a_gate_shuts_where_its_condition_does_not_hold():
    rewards = [fixed("accuracy", [1.0, 1.0, 0.0, 1.0]), fixed("format", [1.0, 0.0, 0.0, None], 0.25)]
    names = [reward.name for reward in rewards]
    scores = score(FOUR, rewards, combination=combination({"accuracy": "format"}, {}, names))
    assert scores.parts["accuracy"] == ((1.0, 1.0, 0.0, 1.0),)
    assert scores.counted["accuracy"] == ((1.0, 0.0, 0.0, None),)
    assert scores.totals[0][:3] == (1.25, 0.0, 0.0)
    assert math.isnan(scores.totals[0][3])  # nobody knows whether the condition holds
    assert scores.sums["rewards/accuracy/gated"] == 1.0


def test_a_gate_may_ask_for_less_or_more():
    rewards = [fixed("a", [1.0] * 4), fixed("b", [0.4, 0.5, 2.0, -1.0], 0.0)]
    for condition, expected in (
        ("b", (0.0, 0.0, 1.0, 0.0)),
        ("b >= 0.5", (0.0, 1.0, 1.0, 0.0)),
        ("b>=-1e0", (1.0, 1.0, 1.0, 1.0)),
        ("a", (1.0, 1.0, 1.0, 1.0)),
    ):
        scores = score(FOUR, rewards, combination=combination({"a": condition}, {}, ["a", "b"]))
        assert scores.totals == (expected,), condition


def test_bounds_of_a_function_and_of_the_sum():
    rewards = [fixed("a", [-5.0, 0.5, 5.0, None], 2.0), fixed("b", [0.0, 0.0, 3.0, None])]
    bounds = combination({}, {"a": [-1, 1], "total": [-1.5, 4.5]}, ["a", "b"])
    scores = score(FOUR, rewards, combination=bounds)
    assert scores.parts["a"] == ((-5.0, 0.5, 5.0, None),)
    assert scores.counted["a"] == ((-1.0, 0.5, 1.0, None),)
    assert scores.totals[0][:3] == (-1.5, 1.0, 4.5)
    assert math.isnan(scores.totals[0][3])


def test_without_either_parts_are_what_counts():
    scores = score(FOUR, [fixed("a", [1.0, None, 2.0, 0.0])])
    assert scores.counted == scores.parts
    assert joined(scores, scores).counted["a"] == scores.parts["a"] * 2


@pytest.mark.parametrize(
    ("gates", "clip", "said"),
    [
        ({"acuracy": "b"}, {}, r"rewards.gates: there is no function 'acuracy' \(did you mean 'accuracy'\?\)"),
        ({"accuracy": "formt"}, {}, r"rewards.gates.accuracy = 'formt': .*did you mean 'format'"),
        ({"accuracy": "format > 1"}, {}, r"rewards.gates.accuracy = 'format > 1'"),
        ({}, {"totl": [0, 1]}, r"rewards.clip: there is no function 'totl' \(did you mean 'total'"),
        ({}, {"total": [1, 1]}, r"rewards.clip.total = \[1, 1\]: give the lower bound first"),
    ],
)
def test_what_cannot_be_combined(gates, clip, said):
    with pytest.raises(RewardError, match=said):
        combination(gates, clip, ["accuracy", "format"])


def test_options_are_given_to_the_function_they_name(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def mine(completions, bonus, names=()): return [bonus + len(names)] * len(completions)\n"
        "def free(completions, **rest): return [rest['bonus']] * len(completions)\n"
    )
    options = {"mine": {"bonus": 0.5, "names": ["a", "b"]}, "free": {"bonus": 3.0}}
    for prefix in ("", "inline:"):
        rewards = load_functions([f"{prefix}{file}:mine", f"{prefix}{file}:free"], options=options)
        scores = score(group("ab"), rewards)
        assert scores.parts == {"mine": ((2.5, 2.5),), "free": ((3.0, 3.0),)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"acuracy": {}}, r"rewards.options.acuracy: there is no function 'acuracy' \(did you mean 'accuracy'\?\)"),
        ({"accuracy": {"box_in_thought": True}}, r"takes no option 'box_in_thought' \(did you mean 'box_in_thoughts'"),
        ({"accuracy": {"prompts": []}}, "takes no option 'prompts'"),
    ],
)
def test_options_that_no_function_takes(options, said):
    with pytest.raises(RewardError, match=said):
        load_functions(["accuracy"], options=options)
