"""The maths is tested in tests/functional/test_shaping.py; here, that it is given the right things."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from oncurve.functional.shaping import cosine_length, repetition_penalty, soft_overlong
from oncurve.rewards import (
    RewardError,
    check_signature,
    cosine_reward,
    load_functions,
    overlong_reward,
    repetition_reward,
)


def ids(*lengths):
    return [[7] * length for length in lengths]


def test_overlong():
    values = overlong_reward(ids(0, 80, 90, 100, 101), max_length=100, buffer=20)
    assert values == [0.0, 0.0, -0.5, -1.0, -1.0]
    assert values == soft_overlong(torch.tensor([0, 80, 90, 100, 101]), max_length=100, buffer=20).tolist()


def test_cosine():
    texts = [r"\boxed{5}", r"\boxed{5}", r"\boxed{6}", r"\boxed{6}", r"\boxed{5}", r"\boxed{5}"]
    values = cosine_reward(texts, ids(0, 50, 0, 50, 100, 3), ["5"] * 5 + [None], max_length=100)
    assert values == [2.0, pytest.approx(1.5), -10.0, pytest.approx(-5.0), -10.0, None]
    found = cosine_length(torch.tensor([50, 50]), torch.tensor([True, False]), max_length=100)
    assert [values[1], values[3]] == found.tolist()
    other = cosine_reward([r"\boxed{6}"], ids(0), ["5"], max_length=100, wrong_shortest=-1.0)
    assert other == [-1.0]
    thought = [r"<think>\boxed{5}</think> done"]
    assert cosine_reward(thought, ids(0), ["5"], max_length=100) == [-10.0]
    assert cosine_reward(thought, ids(0), ["5"], max_length=100, box_in_thoughts=True) == [2.0]


def test_repetition():
    given = [[5, 5, 5, 5, 5], [1, 2, 3], [4], []]
    values = repetition_reward(given, n=2, max_penalty=-1.0)
    assert values == [-0.75, 0.0, 0.0, 0.0]
    assert values == repetition_penalty(given, n=2, max_penalty=-1.0).tolist()
    assert repetition_reward([[1] * 100])[0] < -0.9


def test_an_empty_batch():
    assert overlong_reward([], max_length=10, buffer=5) == []
    assert cosine_reward([], [], [], max_length=10) == []
    assert repetition_reward([]) == []


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("overlong", {"max_length": 10, "buffer": 20}, "buffer must be between 1 and max_length"),
        ("overlong", {"max_length": 10.5, "buffer": 2}, "max_length = 10.5: give a whole number"),
        ("overlong", {"max_length": 10}, "buffer"),
        ("cosine", {"max_length": 0}, "max_length"),
        ("cosine", {"max_length": 10, "exceeding": float("nan")}, "exceeding must be finite"),
        ("repetition", {"n": 0}, "n must be at least 1"),
        ("repetition", {"max_penalty": 1.0}, "max_penalty must be"),
    ],
)
def test_wrong_options_are_refused_when_it_is_loaded(name, options, said):
    with pytest.raises(RewardError, match=rf"rewards.options.{name}: .*{said}"):
        load_functions([name], options={name: options})


def test_what_must_be_set_is_named():
    with pytest.raises(RewardError, match=r"requires `max_length`.*rewards.options.overlong.max_length"):
        check_signature(load_functions(["overlong"])[0], ["answer"])
    (reward,) = load_functions(["overlong"], options={"overlong": {"max_length": 10, "buffer": 5}})
    check_signature(reward, [])


def test_rewards_are_imported_without_torch():
    code = "import sys, oncurve.rewards; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
