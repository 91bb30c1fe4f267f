"""A run that has nothing to learn from says so: at once, and when it goes on like that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from oncurve.config import Grpo
from oncurve.runlog import RunLog
from oncurve.terminal import Terminal
from oncurve.train import run
from oncurve.train.constant_rewards import few_updates


@pytest.fixture
def flat(tmp_path) -> dict[str, Any]:
    file = tmp_path / "flat.py"
    file.write_text("def flat(completions, **_):\n    return [0.5] * len(completions)\n")
    return {"functions": [f"{file}:flat"], "weights": None}


def test_a_first_iteration_without_any_spread_is_told(tiny, flat, capsys):
    run(tiny(grpo={"iterations": 2}, rewards=flat, eval={"samples": 0}), terminal=Terminal())
    said = capsys.readouterr().out
    assert said.count("there was nothing to learn from (mean reward 0.5)") == 1


def test_dapo_that_keeps_no_group_is_told(tiny, flat, capsys):
    """Its punishment of length makes rewards differ that the reward function does not tell apart."""
    grpo = {"preset": "dapo", "iterations": 6, "dynamic_sampling": 2, "kl_coef": 0.0}
    recipe = tiny(sft=None, grpo=grpo, rewards=flat, eval={"samples": 0}, data={"eval_size": 0})
    result = run(recipe, terminal=Terminal())
    said = capsys.readouterr().out
    assert said.count("there was nothing to learn from (mean reward 0.5)") == 1
    assert said.count("warning: the last 5 iterations changed nothing, for in none of their groups did the") == 1
    assert said.count("groups kept 0 of 3") == 6
    with RunLog.open(result.run_dir, readonly=True) as log:
        assert [value for _, _, value in log.series("frac_reward_zero_std", "grpo")] == [1.0] * 6
        assert max(value for _, _, value in log.series("reward_std", "grpo")) > 0.0
        assert [value for _, _, value in log.series("skipped_updates", "grpo")] == [1.0] * 6


def test_only_a_punishment_of_length_to_learn_from_is_told(tiny, flat, capsys):
    grpo = {"preset": "dapo", "iterations": 1, "dynamic_sampling": 0, "overlong_fraction": 0.9}
    long = {"max_new_tokens": 60}
    run(tiny(sft=None, grpo=grpo, rewards=flat, data={"eval_size": 0}, sampling=long), terminal=Terminal())
    assert "there was no answer to learn from (mean reward 0.5)" in capsys.readouterr().out


DONE: Any = SimpleNamespace(
    rollouts=SimpleNamespace(
        scores=SimpleNamespace(totals=((0.0, 1.0),)),
        groups=[SimpleNamespace(completions=[SimpleNamespace(text="a")])] * 9,
    )
)


def told(log: RunLog, config: Grpo, metric: str, values: list[float]) -> list[str]:
    """What is said after each of the iterations, first words only."""
    said: list[str] = []
    for number, value in enumerate(values, 1):
        with log.iteration():
            log.metrics("grpo", number, number, {metric: value})
        said += [" ".join(text.split()[1:8]) for text in few_updates(log, DONE, config)]
    return said


NONE = "the last 5 iterations changed nothing, for"
FEW = "in each of the last 5 iterations"


@pytest.mark.parametrize(
    ("grpo", "metric", "values", "expected"),
    [
        ({"dynamic_sampling": 1}, "dynamic_sampling/kept", [0] * 4 + [2] + [0] * 4, []),
        ({"dynamic_sampling": 1}, "dynamic_sampling/kept", [0] * 9, [NONE]),
        ({"dynamic_sampling": 1}, "dynamic_sampling/kept", [1] * 9, [FEW]),
        ({"dynamic_sampling": 1}, "dynamic_sampling/kept", [1, 0, 1, 0, 0, 0, 0, 0, 1, 1], [FEW, NONE]),
        ({"dynamic_sampling": 1}, "dynamic_sampling/kept", [0] * 5 + [1] * 5, [NONE]),
        ({"dynamic_sampling": 1}, "dynamic_sampling/kept", [0] * 5 + [4] + [0] * 5, [NONE, NONE]),
        ({"minibatches": 2}, "skipped_updates", [2] * 9, [NONE]),
        ({"minibatches": 2}, "skipped_updates", [1] * 9, []),
    ],
)
def test_few_updates_are_told_once_for_each_stretch(tmp_path, grpo, metric, values, expected):
    config = Grpo(prompts_per_iteration=4, **grpo)
    with RunLog.create(tmp_path / "run", "", "{}", "0") as log:
        assert told(log, config, metric, values) == expected


def test_evaluating_all_wrong_is_no_certainty():
    from oncurve.train.evaluate import estimate

    found = estimate("accuracy", [[0.0, 0.0]] * 8)
    assert (found.value, found.low) == (0.0, 0.0)
    assert 0.32 < found.high < 0.33
