"""The examples run, learn from what they say they learn from, and need no more than they say."""

from __future__ import annotations

import ast
import copy
import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ONE_FILE = Path(__file__).resolve().parents[1] / "examples" / "grpo_in_one_file.py"


@pytest.fixture
def example() -> ModuleType:
    """A fresh copy, whose settings a test may change."""
    spec = importlib.util.spec_from_file_location("grpo_in_one_file", ONE_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_file_is_short_and_imports_torch_and_the_mathematics_alone() -> None:
    text = ONE_FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    foreign = {name for name in imported if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign == {"torch", "torch.nn.functional", "oncurve.functional"}


def test_one_file_runs() -> None:
    command = [sys.executable, str(ONE_FILE), "--sft-steps", "2", "--iterations", "1", "--held-out", "20"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for stage in ("SFT", "GRPO"):
        assert re.search(rf"^after {stage}: \d+ of 20 right = \d+\.\d%, 95% \d+\.\d% to ", result.stdout, re.M)


def test_rows_of_one_file(example: ModuleType) -> None:
    tokens, mask = example.lay_out([(3, 1, 3), (9, 0, 8, 7)], [[1, 3, 3, example.END], []])
    assert tokens.tolist() == [
        [3, 1, 3, 10, 1, 3, 3, 11, 11, 11, 11, 11],
        [9, 0, 8, 7, 10, 11, 11, 11, 11, 11, 11, 11],
    ]
    assert mask.int().tolist() == [[0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0], [0] * 12]


def test_the_reward_of_one_file_wants_every_digit_and_the_end(example: ModuleType) -> None:
    end = example.END
    answers = [[1, 3, 3, end], [1, 3, end], [3, 1, 3, end], [1, 3, 3], []]
    assert [example.reward((3, 1, 3), answer) for answer in answers] == [1.0, 0.0, 0.0, 0.0, 0.0]
    lessons = [example.lesson((3, 1, 3), random.Random(seed)) for seed in range(200)]
    assert {tuple(lesson) for lesson in lessons} == {(1, 3, end), (1, 3, 3, end)}
    assert 100 < lessons.count([1, 3, end]) < 140  # six in ten


def test_what_one_file_samples_is_what_it_scores(example: ModuleType) -> None:
    torch.manual_seed(0)
    policy = example.Policy().double()
    asked = example.questions(50, random.Random(0))
    answers = example.sample(policy, asked, greedy=True)
    tokens, mask = example.lay_out(asked, answers)
    assert [row[kept].tolist() for row, kept in zip(tokens, mask, strict=True)] == answers
    assert all(example.END not in answer[:-1] for answer in answers)
    logprobs = example.score(policy, tokens, mask)
    # No other token would have been likelier than the one drawn greedily.
    best = policy(tokens).log_softmax(-1).amax(-1)[:, :-1][mask[:, 1:]]
    torch.testing.assert_close(logprobs[mask], best, rtol=0, atol=1e-12)


def test_the_size_of_a_pass_does_not_change_what_one_file_learns(example: ModuleType) -> None:
    example.PROMPTS, example.GROUP, example.MINIBATCHES = 6, 4, 2
    torch.manual_seed(0)
    start = example.Policy().double()
    example.sft(start, 30, random.Random(0), frozenset())
    weights = []
    for example.MICROBATCH in (1, 5, 12):
        torch.manual_seed(0)
        policy = copy.deepcopy(start)
        example.grpo(policy, 2, random.Random(0), frozenset())
        weights.append(torch.nn.utils.parameters_to_vector(policy.parameters()))
    moved = (weights[0] - torch.nn.utils.parameters_to_vector(start.parameters())).abs().max().item()
    assert moved > 1e-4
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], rtol=0, atol=1e-9)
