"""Held-out evaluation: greedy, and pass@1 and pass@k by sampling, each with a 95% interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oncurve.functional import clustered_interval, pass_at_k, wilson
from oncurve.rewards import Scores, score
from oncurve.train.setup import Parts
from oncurve.train.step import check_sampled
from oncurve.types import Group, SamplingParams

PerPrompt = Sequence[Sequence[float | None]]

# Evaluation draws from streams of its own, the same ones before, during and after: a difference is then the model's.
EVAL_SEED_OFFSET = 1 << 40


@dataclass(frozen=True)
class Estimate:
    name: str
    """A reward or metric function's name, or ``pass@k``."""
    value: float
    low: float
    high: float
    n: int
    """Prompts."""


@dataclass(frozen=True)
class Evaluation:
    kind: str
    """``greedy`` or ``sampled``."""
    groups: list[Group]
    scores: Scores
    estimates: dict[str, Estimate]


def evaluations(parts: Parts, *, sampled: bool) -> list[Evaluation]:
    """Greedy and, if ``sampled`` and the recipe has ``eval.samples``, by sampling."""
    found = [evaluate_greedy(parts)]
    if sampled and parts.recipe.eval.samples:
        found.append(evaluate_sampled(parts))
    return found


def evaluate_greedy(parts: Parts) -> Evaluation:
    """One completion per held-out prompt, the most likely token each time."""
    return _evaluate(parts, "greedy", 1, SamplingParams(parts.recipe.eval_max_new_tokens, temperature=0.0))


def evaluate_sampled(parts: Parts) -> Evaluation:
    """``eval.samples`` completions per held-out prompt."""
    options = parts.recipe.eval
    length = parts.recipe.eval_max_new_tokens
    params = SamplingParams(length, options.temperature, options.top_k, options.top_p, options.min_p)
    return _evaluate(parts, "sampled", options.samples, params)


def _evaluate(parts: Parts, kind: str, samples: int, params: SamplingParams) -> Evaluation:
    seed = parts.recipe.run.seed + EVAL_SEED_OFFSET
    groups = parts.engine.sample(parts.eval_prompts, samples, params, seed=seed, iteration=0)
    check_sampled(groups)
    scores = score(groups, parts.measures, trainer_state={"iteration": 0}, combination=parts.combination)
    estimates = {name: estimate(name, values) for name, values in scores.parts.items()}
    main = main_measure(parts)
    if kind == "sampled" and _is_binary(scores.parts[main]):
        for k in parts.recipe.eval.pass_at:
            per_prompt = [
                pass_at_k(len(row), sum(value == 1.0 for value in row), k)
                for row in (_scored(row) for row in scores.parts[main])
                if len(row) >= k
            ]
            if per_prompt:
                estimates[f"pass@{k}"] = share(f"pass@{k}", per_prompt)
    return Evaluation(kind, groups, scores, estimates)


def main_measure(parts: Parts) -> str:
    """The function that says whether an answer is right: ``accuracy`` if the recipe has it, else the first."""
    names = [reward.name for reward in parts.rewards]
    return "accuracy" if "accuracy" in names else names[0]


def estimate(name: str, values: PerPrompt) -> Estimate:
    """Mean over prompts with a 95% interval: Wilson's for one right-or-wrong value per prompt, otherwise from the
    spread of the prompts' own means (several samples of a prompt are not independent)."""
    rows = [scored for scored in (_scored(row) for row in values) if scored]
    if not rows:
        return Estimate(name, math.nan, math.nan, math.nan, 0)
    if all(len(row) == 1 for row in rows) and _is_binary(rows):
        right = sum(row[0] for row in rows)
        return Estimate(name, right / len(rows), *wilson(int(right), len(rows)), len(rows))
    means = [sum(row) / len(row) for row in rows]
    return share(name, means) if _is_binary(rows) else Estimate(name, *clustered_interval(means), len(rows))


def share(name: str, per_prompt: list[float]) -> Estimate:
    """A mean in [0, 1], and an interval that is too. All right or all wrong is no certainty: Wilson's interval then."""
    mean, low, high = clustered_interval(per_prompt)
    if mean in (0.0, 1.0):
        low, high = wilson(round(mean * len(per_prompt)), len(per_prompt))
    return Estimate(name, mean, max(0.0, low), min(1.0, high), len(per_prompt))


def _scored(row: Sequence[float | None]) -> list[float]:
    return [value for value in row if value is not None]


def _is_binary(values: PerPrompt) -> bool:
    return all(value in (0.0, 1.0) for row in values for value in _scored(row))
