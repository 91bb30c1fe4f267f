"""Step rewards: what functions may return, and what is said of anything else."""

from __future__ import annotations

import pytest

from oncurve.rewards import NamedReward, RewardError, joined, score
from oncurve.rewards.steps import Step, StepScores
from oncurve.types import Completion, Group, Prompt

GROUP = Group(
    Prompt(7, "2+2=", "2+2=", (1,), {}),
    (
        Completion((5, 6, 7), "a\nbc\nd", (0.0, 0.0, 0.0), truncated=False),
        Completion((5, 6), "xy", (0.0, 0.0), truncated=False),
    ),
)


def scored(values, unit=None):
    def steps(**_):
        return values

    if unit:
        steps.step_ends = unit
    return score([GROUP], [NamedReward("steps", 0.5, steps)])


def test_a_completion_scores_the_mean_of_its_steps():
    found = scored([[(2, 1.0), (5, None), (6, 0.0)], [(2, 0.25)]])
    assert found.parts["steps"] == ((0.5, 0.25),)
    assert found.totals == ((0.25, 0.125),)
    assert found.steps["steps"] == StepScores(
        "characters", (((Step(2, 1.0), Step(5, None), Step(6, 0.0)), (Step(2, 0.25),)),)
    )


@pytest.mark.parametrize("nothing", [[], None])
def test_without_steps_a_completion_is_unscored(nothing):
    found = scored([nothing, [(2, 1.0)]])
    assert found.parts["steps"] == ((None, 1.0),)
    assert found.steps["steps"].steps[0][0] == ()


def test_ends_in_tokens():
    assert scored([[(3, 1.0)], [(2, 1.0)]], "tokens").steps["steps"].unit == "tokens"
    with pytest.raises(RewardError, match=r"row 0 .*step 0 ends at 4 .*number of tokens up to its end, from 1 to 3"):
        scored([[(4, 1.0)], []], "tokens")


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(0, 1.0)], r"step 0 ends at 0 \(a int\); give the number of characters up to its end, from 1 to 6"),
        ([(7, 1.0)], "step 0 ends at 7"),
        ([(2.5, 1.0)], r"step 0 ends at 2.5 \(a float\)"),
        ([(True, 1.0)], r"step 0 ends at True"),
        ([(3, 1.0), (2, 1.0)], r"step 1 ends at 2, before step 0 \(3\); give them in order"),
        ([(3, float("nan"))], "step 0 has the reward nan"),
        ([(3, "1")], "step 0 has the reward '1'"),
        ([(3, True)], "step 0 has the reward True"),
        ([3], r"step 0 is 3 \(a int\); give a pair \(end, reward\)"),
        ([(3, 1.0, 2)], r"step 0 is \(3, 1.0, 2\) \(a tuple\); give a pair"),
    ],
)
def test_refused_steps(steps, message):
    with pytest.raises(RewardError, match=r"reward 'steps', row 0 \(prompt 7, sample 0\): " + message):
        scored([steps, []])


def test_numbers_and_steps_do_not_mix():
    with pytest.raises(RewardError, match=r"returned 1.0 \(a float\) for row 1 .* and steps for others"):
        scored([[(2, 1.0)], 1.0])


def test_an_unknown_unit_is_refused():
    with pytest.raises(RewardError, match=r"reward 'steps': its attribute step_ends is 'words'; it must be"):
        scored([[(2, 1.0)], []], "words")


def test_joined():
    first, second = scored([[(2, 1.0)], []]), scored([None, None])
    assert second.steps == {}
    assert joined(first, second).steps["steps"].steps == (((Step(2, 1.0),), ()), ((), ()))
    assert joined(second, first).steps["steps"].steps == (((), ()), ((Step(2, 1.0),), ()))
