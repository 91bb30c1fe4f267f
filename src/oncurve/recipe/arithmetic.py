"""How much work a recipe is, in words: prompts are not completions, and iterations are not optimizer steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from oncurve.config import GENERATED, Grpo, Recipe, RewardTraining, Sft


def completions_kept(group_size: int, train_fraction: float) -> int:
    """Completions of one group that are trained on: ``train_fraction`` of them, rounded up, at least one."""
    # the small amount keeps 0.1 * 30 = 3.0000000000000004 from rounding up to 4
    return max(1, math.ceil(group_size * train_fraction - 1e-9))


def greedy_evaluations(iterations: int, every: int) -> int:
    """Before, after, and every so many iterations in between."""
    return 2 + ((iterations - 1) // every if every else 0)


def batch_arithmetic(
    recipe: Recipe, stages: tuple[str, ...] = ("sft", "grpo"), counted: Mapping[str, int] | None = None
) -> list[tuple[str, str]]:
    """``(what, how many)`` rows for the stages that the recipe has, in reading order. Token counts are upper bounds.

    ``counted`` has what the recipe alone does not say: how many prompts there are to train on (``train``), held-out
    prompts (``eval``) and demonstrations (``sft``).
    """
    counted = counted or {}
    rows: list[tuple[str, str]] = []
    if recipe.sft and "sft" in stages:
        rows += _sft(recipe, recipe.sft, counted.get("sft"))
    if recipe.reward_model and "reward_model" in stages:
        rows += _reward_model(recipe, recipe.reward_model, counted.get("reward_model"))
    if recipe.grpo and "grpo" in stages:
        rows += _grpo(recipe, recipe.grpo, counted.get("train"))
        rows += _evaluations(recipe, recipe.grpo, counted.get("eval", recipe.data.eval_size))
    return rows


def _sft(recipe: Recipe, sft: Sft, demonstrations: int | None) -> list[tuple[str, str]]:
    batch = _count(sft.rows_per_step, "row")
    if sft.steps is not None:
        rows = sft.steps * sft.rows_per_step
        return [("sft", f"{_count(sft.steps, 'optimizer step')} x {batch} = {_count(rows, 'row')}")]
    passes = _count(sft.epochs, "pass", "passes")
    source = sft.data or recipe.data.train
    if demonstrations is None and source.startswith(GENERATED):
        demonstrations = sft.size
    if demonstrations is None:
        return [("sft", f"{passes} over {source}, {batch} an optimizer step")]
    steps = sft.epochs * max(1, demonstrations // sft.rows_per_step)  # a short last batch is left out
    rows = _count(demonstrations, "row")
    return [("sft", f"{passes} x {rows} / {batch} a step = {_count(steps, 'optimizer step')}")]


def _reward_model(recipe: Recipe, config: RewardTraining, there: int | None) -> list[tuple[str, str]]:
    passes, batch = _count(config.epochs, "pass", "passes"), _count(config.rows_per_step, "row")
    rows = recipe.source("reward_model")[1] if there is None else _count(there, "row")
    held_out = f"less those about {_count(config.held_out, 'held-out prompt')}" if config.held_out else "none held out"
    return [("reward model", f"{passes} over {rows} ({held_out}), {batch} an optimizer step")]


def _grpo(recipe: Recipe, grpo: Grpo, there: int | None) -> list[tuple[str, str]]:
    prompts, size = grpo.prompts_per_iteration, grpo.group_size
    completions = prompts * size
    kept = completions_kept(size, grpo.train_fraction)
    steps = grpo.epochs * grpo.minibatches
    rounds = max(1, grpo.dynamic_sampling)
    sampled, at_most = completions * rounds, "at most " if rounds > 1 else ""
    tokens = sampled * recipe.sampling.max_new_tokens
    epochs = _count(grpo.epochs, "epoch")
    minibatches = _count(grpo.minibatches, "minibatch", "minibatches")
    rows = [("grpo, an iteration", f"{_count(prompts, 'prompt')} x {size} in a group = {completions:,} completions")]
    if rounds > 1:
        rows.append(
            ("  sampled", f"in up to {rounds} rounds, while groups without variance are left: at most {sampled:,}")
        )
    if kept < size:
        rows.append(("  trained on", f"{kept} of {size} in a group = {prompts * kept:,} completions"))
    rows += [
        (
            "  a minibatch",
            f"{prompts * kept:,} completions / {minibatches} = {_split(prompts * kept, grpo.minibatches)}",
        ),
        ("  optimizer steps", f"{epochs} x {minibatches} = {steps:,}"),
        ("  new tokens", f"{sampled:,} completions x {recipe.sampling.max_new_tokens:,} = at most {tokens:,}"),
        (
            "grpo, in all",
            f"{_count(grpo.iterations, 'iteration')}: {_count(grpo.iterations * steps, 'optimizer step')}, "
            f"{at_most}{grpo.iterations * sampled:,} completions, at most {grpo.iterations * tokens:,} new tokens",
        ),
    ]
    drawn = grpo.iterations * prompts * rounds
    if there is None and recipe.data.train.startswith(GENERATED):
        there = recipe.data.size
    if there:
        passes = f"{drawn / there:.3g}"
        of = "" if recipe.data.train.startswith(GENERATED) else f" of {recipe.data.train}"
        said = f"{at_most}{drawn:,} drawn from {there:,}{of} = {passes} {'pass' if passes == '1' else 'passes'}"
        rows.append(("  prompts", said))
    else:
        rows.append(("  prompts", f"{at_most}{drawn:,} drawn from {recipe.data.train}"))
    return rows


def _evaluations(recipe: Recipe, grpo: Grpo, prompts: int) -> list[tuple[str, str]]:
    settings = recipe.eval
    if prompts == 0:
        return [("evaluation", "none (data.eval_size is 0)")]
    limit, asked = recipe.eval_max_new_tokens, _count(prompts, "prompt")
    times = greedy_evaluations(grpo.iterations, settings.every)
    greedy, sampled = times * prompts, 2 * prompts * settings.samples
    rows = [("evaluation, greedy", f"{times} times x {asked} = {_count(greedy, 'completion')}")]
    if settings.samples:
        rows.append(("evaluation, sampled", f"2 times x {asked} x {settings.samples} = {sampled:,} completions"))
    rows.append(("  new tokens", f"at most {(greedy + sampled) * limit:,}"))
    return rows


def _count(number: int, one: str, more: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def _split(rows: int, parts: int) -> str:
    low, extra = divmod(rows, parts)
    return f"{low:,} or {low + 1:,}" if extra else f"{low:,}"
