"""Process supervision on a real (tiny) model: a reward for every step, an advantage for every token."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from oncurve.functional import process_advantages
from oncurve.rewards import NamedReward
from oncurve.terminal import Terminal
from oncurve.train import grpo
from oncurve.train.records import iteration_rows
from oncurve.train.setup import Parts, prepare
from oncurve.train.step import make_optimizer

PROCESS = {"preset": "deepseekmath-process", "prompts_per_iteration": 3, "group_size": 4}


def outcome(completion_ids, **_):
    return [float(sum(ids) % 7) for ids in completion_ids]


def in_tokens(completion_ids, **_):
    """Every second token ends a step; the reward is of the token."""
    return [[(end, float(ids[end - 1] % 3)) for end in range(2, len(ids) + 1, 2)] for ids in completion_ids]


in_tokens.step_ends = "tokens"


def in_characters(completions, **_):
    return [[(end, float(ord(text[end - 1]) % 3)) for end in range(1, len(text) + 1, 3)] for text in completions]


def iteration_of(tiny, *functions: NamedReward, **terms) -> tuple[Parts, grpo.Iteration]:
    recipe = tiny(grpo={**PROCESS, **terms})
    parts = prepare(recipe, Terminal(quiet=True), ("grpo",))
    parts = copy.copy(parts).__class__(**{**vars(parts), "rewards": list(functions)})
    reference = parts.lm.frozen_copy()
    optimizer = make_optimizer(parts.lm.module, recipe.grpo)
    return parts, next(grpo.grpo_iterations(parts, recipe.grpo, reference, optimizer, 1))


def weights(parts: Parts) -> list[torch.Tensor]:
    return list(parts.lm.module.state_dict().values())


def test_one_number_for_each_completion_is_outcome_supervision(tiny):
    mine = NamedReward("mine", 1.0, outcome)
    parts, process = iteration_of(tiny, mine)
    other, whole = iteration_of(tiny, mine, preset="deepseekmath")
    lengths = [[len(c.token_ids) for c in group.completions] for group in process.rollouts.groups]
    for p, row in enumerate(lengths):
        for g, length in enumerate(row):
            of_tokens = process.rollouts.advantages[p, g]
            torch.testing.assert_close(of_tokens[:length], whole.rollouts.advantages[p, g].expand(length))
            assert not of_tokens[length:].any()
    for a, b in zip(weights(parts), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)


def test_every_token_answers_for_the_steps_that_end_at_it_or_later(tiny):
    _, done = iteration_of(tiny, NamedReward("mine", 2.0, in_tokens))
    groups = done.rollouts.groups
    ids = [[c.token_ids for c in group.completions] for group in groups]
    most = max(len(row) // 2 for group in ids for row in group)
    rewards = torch.full((3, 4, most), math.nan, dtype=torch.float64)
    ends = torch.zeros(3, 4, most, dtype=torch.int64)
    for p, group in enumerate(ids):
        for g, row in enumerate(group):
            for s in range(len(row) // 2):
                rewards[p, g, s], ends[p, g, s] = 2.0 * (row[2 * s + 1] % 3), 2 * s + 1
    lengths = torch.tensor([[len(row) for row in group] for group in ids])
    expected = process_advantages(rewards, ends, lengths, width=int(lengths.max()))
    torch.testing.assert_close(done.rollouts.advantages, expected)
    assert done.metrics["steps/mean_count"] == float((lengths // 2).double().mean())
    assert done.metrics["loss"] != 0.0


def test_steps_by_characters_end_at_the_token_that_writes_the_character(tiny):
    parts, done = iteration_of(tiny, NamedReward("mine", 1.0, in_characters))
    for row in iteration_rows(done):
        for step in row.extras["mine/steps"]:
            before = parts.tokenizer.decode(list(row.token_ids[: step["tokens"] - 1]), skip_special_tokens=True)
            after = parts.tokenizer.decode(list(row.token_ids[: step["tokens"]]), skip_special_tokens=True)
            assert len(before) < step["end"] <= len(after)
            assert step["reward"] == ord(row.completion[step["end"] - 1]) % 3


def test_the_record_has_the_advantage_of_every_token(tiny):
    _, done = iteration_of(tiny, NamedReward("mine", 1.0, in_tokens))
    rows = list(iteration_rows(done))
    assert all(len(row.token_advantages) == len(row.token_ids) for row in rows)
    assert any(len(set(row.token_advantages)) > 1 for row in rows)
    assert rows[0].advantage == pytest.approx(sum(rows[0].token_advantages) / len(rows[0].token_ids))
    part = [value for _, value in in_tokens([rows[0].token_ids])[0]]
    assert rows[0].parts["mine"] == pytest.approx(sum(part) / len(part))


def test_two_functions_have_their_steps_in_one_pool(tiny):
    _, done = iteration_of(tiny, NamedReward("steps", 1.0, in_tokens), NamedReward("whole", 0.5, outcome))
    _, alone = iteration_of(tiny, NamedReward("steps", 1.0, in_tokens), NamedReward("whole", 0.0, outcome))
    assert done.metrics["steps/mean_count"] == alone.metrics["steps/mean_count"] + 1
    assert not torch.equal(done.rollouts.advantages, alone.rollouts.advantages)


def test_equal_steps_change_nothing(tiny):
    def equal(completion_ids, **_):
        return [[(len(ids), 1.0)] for ids in completion_ids]

    equal.step_ends = "tokens"
    parts, done = iteration_of(tiny, NamedReward("equal", 1.0, equal))
    assert done.metrics["skipped_updates"] == 1.0
    assert done.metrics["frac_reward_zero_std"] == 1.0
    fresh = prepare(parts.recipe, Terminal(quiet=True), ("grpo",))
    assert all(torch.equal(a, b) for a, b in zip(weights(parts), weights(fresh), strict=True))


def test_groups_are_kept_by_their_steps(tiny):
    """All completions have the same mean, so outcome supervision would drop every group."""

    def balanced(completion_ids, **_):
        return [[(1, 1.0), (len(ids), 0.0)] if len(ids) > 1 else [(1, 0.5)] for ids in completion_ids]

    balanced.step_ends = "tokens"
    _, done = iteration_of(tiny, NamedReward("balanced", 1.0, balanced), dynamic_sampling=1)
    assert set(done.rollouts.rewards.flatten().tolist()) == {0.5}
    assert done.metrics["dynamic_sampling/kept"] > 0


def test_caps_are_counted(tiny):
    mine = NamedReward("mine", 1.0, in_tokens)
    _, free = iteration_of(tiny, mine)
    _, capped = iteration_of(tiny, mine, advantage_cap=0.5, step_cap=1)
    assert free.metrics["steps/dropped"] == free.metrics["steps/capped_ratio"] == 0.0
    assert capped.metrics["steps/dropped"] > 0
    assert capped.metrics["steps/capped_ratio"] > 0
    assert capped.rollouts.advantages.abs().max() <= 0.5


def test_steps_count_by_their_mean_where_completions_are_compared(tiny):
    _, done = iteration_of(tiny, NamedReward("mine", 1.0, in_characters), preset="deepseekmath")
    assert done.rollouts.advantages.shape == (3, 4)
    row = next(iter(iteration_rows(done)))
    assert row.token_advantages is None
    steps = [step["reward"] for step in row.extras["mine/steps"]]
    assert row.reward == pytest.approx(sum(steps) / len(steps))
