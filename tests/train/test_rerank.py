"""``oncurve rerank``: the choice among n completions, counted by hand and on a tiny model."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from oncurve.models.reward_model import Form, new_reward_model, save_reward_model
from oncurve.rewards.splitting import step_splitter
from oncurve.train.learned_rewards import LearnedReward
from oncurve.train.rerank import answer_of, learned_scores, rerank, rerank_command
from oncurve.train.setup import prepare
from oncurve.types import Completion, Group, OncurveError, Prompt
from tiny import tiny_llama, tiny_tokenizer


def test_counted_by_hand():
    answers = [[1, 1, 2, None], [3, 4, 4, 4], [5, 6, 7, 8]]
    right = [[True, True, False, False], [True, False, False, False], [False] * 4]
    scores = {
        "score": [[0.1, 0.2, 0.9, 0.3], [2.0, 1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0]],
        "other": [[0.5, 0.1, 0.5, None], [None] * 4, [0.0] * 4],
    }
    found = rerank(answers, right, scores)
    values = {name: round(each.value, 6) for name, each in found.estimates.items()}
    assert values == {
        "pass@1": 0.25,
        "majority@4": 0.333333,
        "best@4 (score)": 0.333333,  # wrong, right, wrong
        "best@4 (other)": 0.25,  # half of a tie; nothing scored: any of four; wrong
        "pass@4": 0.666667,
    }
    gain = found.gains["score"]
    assert gain.value == pytest.approx(0.0)
    assert gain.low < -0.5 < 0.5 < gain.high
    assert found.gains["other"].value == pytest.approx((-0.5 + 0.25 + 0.0) / 3)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"<think>\boxed{9}</think>\boxed{1/2}", Fraction(1, 2)),
        (r"\boxed{0.5}", Fraction(1, 2)),
        (r"\boxed{blue}", "blue"),
        (r"\boxed{ }", None),
        ("no answer", None),
        ("", None),
    ],
)
def test_what_a_completion_votes_for(text, answer):
    assert answer_of(text) == answer


def test_the_lowest_step_and_the_product():
    model = new_reward_model(tiny_llama(), tiny_tokenizer(), Form("process"))
    torch.manual_seed(1)
    torch.nn.init.normal_(model.module.score.weight)
    reward = LearnedReward(model, step_splitter("\n"))
    completions = tuple(Completion((9,), text, (0.0,), False) for text in ("four\nis\nplease", "", "hello"))
    found = learned_scores(reward, [Group(Prompt(0, "two", "two", (6,)), completions)])
    steps = model.scores([[6, 9, 8, 10, 2]], [[2, 3, 4]]).sigmoid()
    assert found["min"][0][0] == pytest.approx(steps.min().item(), abs=1e-6)
    assert found["product"][0][0] == pytest.approx(steps.log().sum().item(), abs=1e-5)
    assert found["min"][0][1] is found["product"][0][1] is None
    assert found["product"][0][2] == pytest.approx(torch.tensor(found["min"][0][2]).log().item(), abs=1e-6)


@pytest.fixture
def recipe(tiny):
    return lambda **sections: tiny(
        **({"sft": None, "rewards": {"functions": ["accuracy"], "weights": None}} | sections)
    )


@pytest.mark.parametrize("kind", ["pairwise", "process"])
def test_a_whole_run(recipe, quiet, tmp_path, kind):
    policy = prepare(recipe(), quiet, ())
    model = new_reward_model(policy.lm.frozen_copy().module, policy.tokenizer, Form(kind, steps=" "))
    torch.nn.init.normal_(model.module.score.weight)
    save_reward_model(model, tmp_path / "rm")
    found = rerank_command(recipe(), None, str(tmp_path / "rm"), quiet, n=3)
    assert list(found.gains) == (["min", "product"] if kind == "process" else ["score"])
    assert {"pass@1", "majority@3", "pass@3"} <= set(found.estimates)
    assert all(e.n == 6 and 0.0 <= e.low <= e.value <= e.high <= 1.0 for e in found.estimates.values())
    few = recipe(sampling={"max_rows": 3})
    assert rerank_command(few, None, str(tmp_path / "rm"), quiet, n=3) == found


@pytest.mark.parametrize(
    ("n", "by", "changes", "said"),
    [
        (1, "rm", {}, r"--n is 1; it must be a number of completions from 2"),
        (2, "nowhere/at/all", {}, r"--by = 'nowhere/at/all'.*there is no such directory"),
        (2, "rm", {"data": {"eval_size": 0}}, r"data\.eval_size is 0"),
        (
            2,
            "rm",
            {"rewards": {"functions": ["repetition"], "options": {"repetition": {"n": 1}}, "weights": None}},
            r"repetition gives other values than 0 and 1",
        ),
    ],
)
def test_what_cannot_be_done_is_said(recipe, quiet, tmp_path, n, by, changes, said):
    policy = prepare(recipe(), quiet, ())
    save_reward_model(
        new_reward_model(policy.lm.frozen_copy().module, policy.tokenizer, Form("pointwise")), tmp_path / "rm"
    )
    with pytest.raises(OncurveError, match=said):
        rerank_command(recipe(**changes), None, str(tmp_path / "rm") if by == "rm" else by, quiet, n=n)
