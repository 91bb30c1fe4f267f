"""Weights that are finite and of no use: noticed before anything else is sampled, scored or saved."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from oncurve.models.causal_lm import CausalLM
from oncurve.runlog import RunLog
from oncurve.train import evaluate_command, run, sample_command, setup
from oncurve.train.step import check_policy
from oncurve.types import OncurveError


@pytest.fixture
def overflowing(monkeypatch: pytest.MonkeyPatch):
    """``overflowing("grpo", 2)``: the second update leaves finite weights with which the logits overflow."""

    def patch(stage: str, at: int) -> None:
        where = f"oncurve.train.{stage}.apply_gradients"
        usual = pytest.importorskip(f"oncurve.train.{stage}").apply_gradients
        updates: list[int] = []

        def apply_gradients(module, *arguments):
            norm = usual(module, *arguments)
            updates.append(1)
            if len(updates) == at:
                with torch.no_grad():
                    module.model.norm.weight.fill_(3e38)
                assert all(bool(value.isfinite().all()) for value in module.parameters())
            return norm

        monkeypatch.setattr(where, apply_gradients)

    return patch


@pytest.fixture
def recipe_of(tiny, tmp_path: Path):
    (tmp_path / "mine.py").write_text(
        "def mine(completion_ids, **_):\n    return [float(sum(i) % 7) for i in completion_ids]\n"
    )
    rewards = {"functions": [f"{tmp_path}/mine.py:mine"], "weights": None}

    def build(**sections):
        blind = {"data": {"eval_size": 0}, "eval": {"every": 0}, "checkpoint": {"every": 3}}
        return tiny(**{"rewards": rewards, "grpo": {"iterations": 3}} | blind | sections)

    return build


def iterations(recipe) -> list[int]:
    with RunLog.open(Path(recipe.run.dir) / recipe.run.name, readonly=True) as log:
        return [iteration for iteration, _, _ in log.series("reward", "grpo")]


@pytest.mark.parametrize(
    ("at", "reason"),
    [(1, "logits is no distribution: it holds nan or +inf"), (3, "the logits of the trained policy are not finite")],
    ids=["first", "last"],
)
def test_an_update_of_grpo(recipe_of, quiet, overflowing, at, reason):
    """After the last one nothing is sampled any more where nothing is evaluated."""
    overflowing("grpo", at)
    recipe = recipe_of(sft=None)
    for _ in range(2):  # the same command does not get over it either
        with pytest.raises(OncurveError) as raised:
            run(recipe, terminal=quiet)
        text = str(raised.value)
        assert text.startswith(f"grpo, after iteration {at}: ")
        assert reason in text
        assert "new run (--run.name NAME) with a lower grpo.learning_rate (0.001)" in text
        assert iterations(recipe) == list(range(1, at + 1))
        assert not (Path(recipe.run.dir) / "tiny" / "models").exists()
        if at == 1:
            break  # which has no checkpoint yet, and would begin anew


def test_the_greedy_evaluation_after_an_update(recipe_of, quiet, overflowing):
    overflowing("grpo", 1)
    with pytest.raises(
        OncurveError, match="grpo, after iteration 1: the log-probabilities of what was sampled are not"
    ):
        run(recipe_of(sft=None, data={"eval_size": 2}, eval={"every": 1}), terminal=quiet)


def test_the_last_step_of_fine_tuning(recipe_of, quiet, overflowing):
    overflowing("sft", 12)
    recipe = recipe_of(grpo=None, sft={"steps": 12})
    with pytest.raises(
        OncurveError, match=r"sft, after step 12: the logits of the trained policy are not finite.*lower sft"
    ):
        run(recipe, terminal=quiet)
    assert not (Path(recipe.run.dir) / "tiny" / "models").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_other_commands_name_the_model(tiny, quiet, monkeypatch, value, temperature):
    usual = setup.load_model

    def load_model(*arguments):
        tokenizer, lm = usual(*arguments)
        return tokenizer, dataclasses.replace(lm, head=lambda hidden: lm.head(hidden) * 0.0 + value)

    monkeypatch.setattr("oncurve.train.setup.load_model", load_model)
    monkeypatch.setattr("oncurve.train.commands.load_model", load_model)
    recipe = tiny(sft=None)
    with pytest.raises(OncurveError, match=r"embedded:letters cannot be sampled from: .*its weights are no good"):
        sample_command(recipe.model, "How many a's are in ab?", quiet, temperature=temperature)
    if temperature == 0.0:
        with pytest.raises(OncurveError, match=r"embedded:letters cannot be sampled from: .*its weights are no good"):
            evaluate_command(recipe, None, quiet)


def test_a_policy_that_is_well(tiny, quiet):
    lm: CausalLM = setup.prepare(tiny(sft=None), quiet, ("grpo",)).lm
    check_policy(lm, [5, 6, 7])
    with pytest.raises(FloatingPointError, match="the logits of the trained policy are not finite"):
        check_policy(dataclasses.replace(lm, head=lambda hidden: lm.head(hidden) * math.nan), [5, 6, 7])
