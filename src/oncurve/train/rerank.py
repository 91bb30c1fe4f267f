"""``oncurve rerank``: of n completions of a held-out prompt the one that a reward model likes best, beside the vote of
the majority and what is possible at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from oncurve.config import MOST_ROWS, Recipe
from oncurve.functional import clustered_interval, majority_at_k
from oncurve.rewards import extract_answer, read_answer, score
from oncurve.terminal import Terminal
from oncurve.train.commands import finite, with_model
from oncurve.train.evaluate import EVAL_SEED_OFFSET, Estimate, main_measure, share
from oncurve.train.learned_rewards import LearnedReward, load_learned_reward, score_steps, score_texts
from oncurve.train.memory import memory_explained
from oncurve.train.setup import prepare
from oncurve.train.step import check_sampled
from oncurve.types import Group, OncurveError, SamplingParams

Scores = list[list[float | None]]
"""``[P][G]``; None: nothing can be said of this completion."""


@dataclass(frozen=True)
class Reranked:
    estimates: dict[str, Estimate]
    """``pass@1``, ``majority@n``, for each way of choosing ``best@n (...)``, and ``pass@n``: the most that any choice
    could reach."""
    gains: dict[str, Estimate]
    """For each way of choosing, how much more often than the majority it is right, prompt by prompt."""


def rerank_command(
    recipe: Recipe, model_path: str | None, reward_model: str, terminal: Terminal, *, n: int = 16
) -> Reranked:
    """Draw ``n`` completions of every held-out prompt as evaluation does, choose, and print a table.

    Raises OncurveError if the recipe's first measure does not say right or wrong, and for a model that is no reward
    model.
    """
    if not 2 <= n <= MOST_ROWS:
        raise OncurveError(f"--n is {n}; it must be a number of completions from 2 to {MOST_ROWS}")
    recipe = with_model(recipe, model_path, "rerank")
    if recipe.data.eval_size == 0:
        raise OncurveError("data.eval_size is 0: this recipe holds out no prompts to choose answers for")
    terminal.say(f"{n} completions of each held-out prompt by {recipe.model.path}, chosen by {reward_model}")
    with memory_explained(recipe, "loading"):
        parts = prepare(recipe, terminal, ())
        steps = recipe.reward_model.steps if recipe.reward_model else None
        reward = load_learned_reward(reward_model, key="--by", device=parts.lm.device, steps=steps)
    options = recipe.eval
    params = SamplingParams(
        recipe.eval_max_new_tokens, options.temperature, options.top_k, options.top_p, options.min_p
    )
    groups: list[Group] = []
    scores: dict[str, Scores] = {}
    at_once = max(1, recipe.sampling.max_rows // n)
    with (
        memory_explained(recipe, "evaluating"),
        finite(recipe.model.path, recipe.model),
        terminal.stage("sampling and scoring", len(parts.eval_prompts)) as bar,
    ):
        for first in range(0, len(parts.eval_prompts), at_once):
            prompts = parts.eval_prompts[first : first + at_once]
            found = parts.engine.sample(prompts, n, params, seed=recipe.run.seed + EVAL_SEED_OFFSET, iteration=0)
            check_sampled(found)
            for name, rows in learned_scores(reward, found).items():
                scores.setdefault(name, []).extend(rows)
            groups += found
            bar.advance(len(prompts))
    measure = next(each for each in parts.rewards if each.name == main_measure(parts))
    values = score(groups, [measure], trainer_state={"iteration": 0}).parts[measure.name]
    if any(value not in (0.0, 1.0, None) for row in values for value in row):
        raise OncurveError(
            f"{measure.name} gives other values than 0 and 1, and a choice is to be right or wrong; put a function "
            "that says so, such as accuracy, first in rewards.functions"
        )
    right = [[value == 1.0 for value in row] for row in values]
    reranked = rerank([[answer_of(c.text) for c in group.completions] for group in groups], right, scores)
    _show(reranked, len(groups), n, terminal)
    return reranked


def rerank(
    answers: Sequence[Sequence[Hashable | None]], right: Sequence[Sequence[bool]], scores: dict[str, Scores]
) -> Reranked:
    """All arguments ``[P][G]``: the answer of each completion (None: none), whether it is right, and by name what each
    way of choosing goes by: the highest score. Of ties each is chosen alike; without any score, all are tied."""
    n = len(right[0])
    majority = [majority_at_k(a, r, n) for a, r in zip(answers, right, strict=True)]
    chosen = {
        name: [_best(of_prompt, r) for of_prompt, r in zip(rows, right, strict=True)] for name, rows in scores.items()
    }
    estimates = {
        "pass@1": share("pass@1", [sum(row) / n for row in right]),
        f"majority@{n}": share(f"majority@{n}", majority),
        **{f"best@{n} ({name})": share(f"best@{n} ({name})", rows) for name, rows in chosen.items()},
        f"pass@{n}": share(f"pass@{n}", [float(any(row)) for row in right]),
    }
    gains = {
        name: Estimate(name, *clustered_interval([a - b for a, b in zip(rows, majority, strict=True)]), len(rows))
        for name, rows in chosen.items()
    }
    return Reranked(estimates, gains)


def learned_scores(reward: LearnedReward, groups: Sequence[Group]) -> dict[str, Scores]:
    """By way of choosing, ``[P][G]``: ``score``, or of a process model ``min`` and ``product`` of its steps'
    probabilities (the product as its logarithm). A completion without steps has no score."""
    prompts = [group.prompt.raw for group in groups for _ in group.completions]
    texts = [completion.text for group in groups for completion in group.completions]
    if reward.model.form.kind != "process":
        return {"score": _folded(score_texts(reward.model, prompts, texts), groups)}
    steps = [
        [value for _, value in of_text if value is not None]
        for of_text in score_steps(reward.model, prompts, texts, reward.split)
    ]
    ways: dict[str, Callable[[list[float]], float]] = {
        "min": min,
        "product": lambda row: math.fsum(math.log(max(value, 1e-300)) for value in row),
    }
    return {name: _folded([way(row) if row else None for row in steps], groups) for name, way in ways.items()}


def answer_of(text: str) -> Hashable | None:
    """What a completion votes for: the number that its answer is, else the text of it; None without an answer."""
    found = extract_answer(text)
    if found is None or not found.strip():
        return None
    answer = read_answer(found)
    return answer.text if answer.number is None else answer.number.value


def _best(scores: Sequence[float | None], right: Sequence[bool]) -> float:
    """How likely the choice is right."""
    known = [value for value in scores if value is not None]
    top = [r for value, r in zip(scores, right, strict=True) if not known or value == max(known)]
    return sum(top) / len(top)


def _folded(values: Sequence[float | None], groups: Sequence[Group]) -> Scores:
    remaining = iter(values)
    return [[next(remaining) for _ in group.completions] for group in groups]


def _show(found: Reranked, prompts: int, n: int, terminal: Terminal) -> None:
    gains = {f"best@{n} ({name})": gain for name, gain in found.gains.items()}

    def line(name: str, e: Estimate) -> list[str]:
        gain = gains.get(name)
        shown = "" if gain is None else f"{gain.value:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
        return [name, f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}", shown]

    terminal.table(
        f"held-out, {prompts} prompts, {n} completions each",
        ["", "right", "95% interval", "gain over majority"],
        [line(name, estimate) for name, estimate in found.estimates.items()],
    )
