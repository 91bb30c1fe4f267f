"""What an outer iteration has done to the policy and to the reward model, measured on held-out prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from oncurve.config import Recipe, RewardTraining
from oncurve.data.labelled import Labelled, build_labelled
from oncurve.models.reward_model import RewardModel, load_reward_model
from oncurve.runlog import EvalRow
from oncurve.train.evaluate import Estimate
from oncurve.train.iterate.collect import LabelledRow, share_right
from oncurve.train.reward_evaluation import evaluate_reward_model

STAGE = "iterate"


@dataclass(frozen=True)
class Verdict:
    """One reward model on the completions that one policy gave to the held-out prompts."""

    reward: float
    """Mean probability of being right."""
    accuracy: Estimate
    auc: Estimate


def judge_policies(
    recipe: Recipe, path: Path, held_out: Mapping[int, Sequence[LabelledRow]], device: torch.device
) -> dict[int, Verdict]:
    """The reward model in ``path`` on every policy's completions, by outer iteration. Iterations without completions
    that could be labelled are left out."""
    assert recipe.reward_model is not None
    model = load_reward_model(path, key="oncurve iterate", dtype=recipe.model.dtype)
    model = RewardModel(model.module.to(device), model.tokenizer, model.form)  # type: ignore[arg-type]
    return {k: _verdict(recipe, recipe.reward_model, model, rows) for k, rows in held_out.items() if rows}


def _verdict(recipe: Recipe, config: RewardTraining, model: RewardModel, rows: Sequence[LabelledRow]) -> Verdict:
    labelled: list[Labelled] = build_labelled(rows, model.tokenizer, recipe.data, config.kind, limit=model.limit).rows
    found = evaluate_reward_model(model, labelled, seed=recipe.run.seed, token_budget=config.microbatch_tokens)
    chances = [1.0 / (1.0 + math.exp(-score)) if score > -700.0 else 0.0 for _, score, _ in found.points]
    return Verdict(math.fsum(chances) / len(chances), found.estimates["accuracy"], found.estimates["auc"])


def measures_of(
    number: int, rows: Sequence[LabelledRow], before: Mapping[int, Verdict], after: Mapping[int, Verdict]
) -> dict[str, float]:
    """The metrics of outer iteration ``number``: see docs/iterate.md. ``rows`` are the policy's on held-out prompts,
    ``before`` and ``after`` the verdicts of the reward model that it was trained with, and of the refreshed one."""
    found = {"policy/label": share_right(rows)}
    for when, verdicts in (("before", before), ("after", after)):
        if not verdicts:
            continue
        new = verdicts.get(number)
        old = [verdict for k, verdict in verdicts.items() if k < number]
        if new is not None:
            found[f"policy/reward_{when}"] = new.reward
            found[f"policy/overrated_{when}"] = new.reward - found["policy/label"]
        for measure in ("accuracy", "auc"):
            if new is not None:
                found[f"reward_model/{measure}_new_{when}"] = getattr(new, measure).value
            if old:
                values = [getattr(verdict, measure).value for verdict in old]
                found[f"reward_model/{measure}_old_{when}"] = math.fsum(values) / len(values)
    return found


def estimate_rows(number: int, after: Mapping[int, Verdict]) -> list[EvalRow]:
    """The reward model that outer iteration ``number`` ends with, on every policy so far."""
    return [
        EvalRow(STAGE, number, f"policy_{k}", e.name, e.value, e.low, e.high, e.n)
        for k, verdict in after.items()
        for e in (verdict.accuracy, verdict.auc)
    ]
