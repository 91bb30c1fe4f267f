"""How much work a recipe is, in words: prompts are not completions, and iterations are not optimizer steps."""

from __future__ import annotations

import math

from oncurve.config import Eval, Grpo, Recipe, Sft

_GENERATED = ("task:", "reasoning_gym:")


def completions_kept(group_size: int, train_fraction: float) -> int:
    """Completions of one group that are trained on: ``train_fraction`` of them, rounded up, at least one."""
    # the small amount keeps 0.1 * 30 = 3.0000000000000004 from rounding up to 4
    return max(1, math.ceil(group_size * train_fraction - 1e-9))


def greedy_evaluations(iterations: int, every: int) -> int:
    """Before, after, and every so many iterations in between."""
    return 2 + ((iterations - 1) // every if every else 0)


def batch_arithmetic(recipe: Recipe, stages: tuple[str, ...] = ("sft", "grpo")) -> list[tuple[str, str]]:
    """``(what, how many)`` rows for the stages that the recipe has, in reading order. Token counts are upper bounds."""
    rows: list[tuple[str, str]] = []
    if recipe.sft and "sft" in stages:
        rows += _sft(recipe, recipe.sft)
    if recipe.grpo and "grpo" in stages:
        rows += _grpo(recipe, recipe.grpo)
        rows += _evaluations(recipe, recipe.eval, recipe.grpo)
    return rows


def _sft(recipe: Recipe, sft: Sft) -> list[tuple[str, str]]:
    batch = f"{sft.rows_per_step:,} rows"
    if sft.steps is not None:
        rows = sft.steps * sft.rows_per_step
        return [("sft", f"{sft.steps:,} optimizer steps x {batch} = {rows:,} rows")]
    passes = _count(sft.epochs, "pass", "passes")
    source = sft.data or recipe.data.train
    if not source.startswith(_GENERATED):
        return [("sft", f"{passes} over {source}, {batch} an optimizer step")]
    steps = sft.epochs * max(1, sft.size // sft.rows_per_step)  # a short last batch is left out
    return [("sft", f"{passes} x {sft.size:,} rows / {batch} a step = {steps:,} optimizer steps")]


def _grpo(recipe: Recipe, grpo: Grpo) -> list[tuple[str, str]]:
    prompts, size = grpo.prompts_per_iteration, grpo.group_size
    completions = prompts * size
    kept = completions_kept(size, grpo.train_fraction)
    steps = grpo.epochs * grpo.minibatches
    rounds = max(1, grpo.dynamic_sampling)
    sampled, at_most = completions * rounds, "at most " if rounds > 1 else ""
    tokens = sampled * recipe.sampling.max_new_tokens
    epochs = _count(grpo.epochs, "epoch", "epochs")
    minibatches = _count(grpo.minibatches, "minibatch", "minibatches")
    rows = [("grpo, an iteration", f"{prompts:,} prompts x {size} in a group = {completions:,} completions")]
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
            f"{_count(grpo.iterations, 'iteration', 'iterations')}: {grpo.iterations * steps:,} optimizer steps, "
            f"{at_most}{grpo.iterations * sampled:,} completions, at most {grpo.iterations * tokens:,} new tokens",
        ),
    ]
    drawn = grpo.iterations * prompts * rounds
    if recipe.data.train.startswith(_GENERATED):
        share = drawn / recipe.data.size
        rows.append(("  prompts", f"{at_most}{drawn:,} drawn from {recipe.data.size:,} = {share:.3g} passes"))
    else:
        rows.append(("  prompts", f"{at_most}{drawn:,} drawn from {recipe.data.train}"))
    return rows


def _evaluations(recipe: Recipe, settings: Eval, grpo: Grpo) -> list[tuple[str, str]]:
    prompts = recipe.data.eval_size
    if prompts == 0:
        return [("evaluation", "none (data.eval_size is 0)")]
    limit = recipe.eval_max_new_tokens
    times = greedy_evaluations(grpo.iterations, settings.every)
    greedy, sampled = times * prompts, 2 * prompts * settings.samples
    rows = [("evaluation, greedy", f"{times} times x {prompts:,} prompts = {greedy:,} completions")]
    if settings.samples:
        rows.append(
            ("evaluation, sampled", f"2 times x {prompts:,} prompts x {settings.samples} = {sampled:,} completions")
        )
    rows.append(("  new tokens", f"at most {(greedy + sampled) * limit:,}"))
    return rows


def _count(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"


def _split(rows: int, parts: int) -> str:
    low, extra = divmod(rows, parts)
    return f"{low:,} or {low + 1:,}" if extra else f"{low:,}"
