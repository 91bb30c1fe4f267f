"""What is refused of a recipe and its data before a model is loaded: by ``--dry-run`` and a run alike. No torch here.

Each function is called by both. What it takes a model to see is checked in ``oncurve.train``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from oncurve.config import Recipe
from oncurve.data.order import prompts_for_iteration
from oncurve.data.prompts import bad_row, data_of, prompt_limit
from oncurve.rewards import (
    Combination,
    NamedReward,
    accuracy,
    check_signature,
    combination,
    load_functions,
    read_gold,
)
from oncurve.types import OncurveError, Prompt


def completion_limits(recipe: Recipe) -> tuple[tuple[str, int], tuple[str, int]]:
    """``(option, tokens)`` that must stay free beside a training prompt, and beside a held-out one."""
    training = ("sampling.max_new_tokens", recipe.sampling.max_new_tokens)
    evaluation = ("eval.max_new_tokens", recipe.eval.max_new_tokens or 0) if recipe.eval.max_new_tokens else training
    if recipe.data.eval_size and not recipe.held_out_apart:  # any of them may be held out
        training = max(training, evaluation, key=lambda limit: limit[1])
    return training, evaluation


def check_room(recipe: Recipe, context: int | None) -> None:
    """Raise OncurveError if a completion may be so long that the model's context has no room for a prompt."""
    training, evaluation = completion_limits(recipe)
    for option, tokens in (training, evaluation) if recipe.data.eval_size else (training,):
        prompt_limit(recipe.data, context, tokens, option)


def check_enough(recipe: Recipe, prompts: int) -> None:
    """Raise OncurveError if there are fewer training prompts than an iteration of GRPO samples from."""
    if recipe.grpo is not None:
        prompts_for_iteration(prompts, recipe.grpo.prompts_per_iteration, recipe.run.seed, 0)


def rewards_of(recipe: Recipe) -> tuple[list[NamedReward], Combination]:
    """The functions of ``recipe``, those that are rewarded first, and how their scores become one.

    Raises RewardError if one cannot be loaded, or an option, a gate or a bound is about none of them.
    """
    rewards = recipe.rewards
    weights = rewards.weights or [1.0] * len(rewards.functions)
    names, weights = [*rewards.functions, *rewards.metrics], [*weights, *[0.0] * len(rewards.metrics)]
    measures = load_functions(names, weights, rewards.options)
    rewarded = [measure.name for measure in measures[: len(rewards.functions)]]
    return measures, combination(rewards.gates, rewards.clip, rewarded)


def check_rewards(
    measures: Sequence[NamedReward], option: str, source: str, prompts: Sequence[Prompt], say: Callable[[str], None]
) -> None:
    """Every function can be called on the prompts that come from ``source``, which is the value of ``option``, and
    `accuracy` can read their answers."""
    with data_of(option, source):
        for measure in measures if prompts else ():
            check_signature(measure, list(prompts[0].columns))
        if any(measure.function is accuracy for measure in measures):
            _check_answers(source, prompts, say)


def _check_answers(source: str, prompts: Sequence[Prompt], say: Callable[[str], None]) -> None:
    unscored = 0
    for prompt in prompts:
        answer = prompt.columns["answer"]
        if answer is None:
            unscored += 1
            continue
        try:
            read_gold(answer)
        except OncurveError as error:
            raise bad_row(prompt.id, f"column `answer`: {error}") from error
    if unscored and unscored == len(prompts):
        raise OncurveError(f"{source}: no row has an `answer`, so the accuracy reward could score nothing")
    if unscored:
        say(f"{source}: {unscored} of {len(prompts)} prompts have no `answer`; accuracy leaves them unscored")
