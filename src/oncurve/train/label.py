"""``oncurve label``: what a policy writes, labelled by a rule, as the data of a reward model (DeepSeekMath, section
4.1.3, makes its own so)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from oncurve.config import MOST_ROWS, Recipe
from oncurve.data.labelled import build_labelled, left_out
from oncurve.data.order import permutation
from oncurve.rewards import NamedReward, check_signature, load_functions, score
from oncurve.rewards.splitting import Splitter, step_splitter
from oncurve.rewards.values import PerCompletion
from oncurve.runlog import replacing
from oncurve.tasks import task
from oncurve.terminal import Terminal
from oncurve.train.commands import finite, with_model
from oncurve.train.evaluate import main_measure
from oncurve.train.labelling import Collected, StepLabels, checked_labels, collect_pairs, collect_points, collect_steps
from oncurve.train.memory import memory_explained
from oncurve.train.monte_carlo import monte_carlo_labels
from oncurve.train.setup import Parts, decode, prepare
from oncurve.train.step import check_sampled
from oncurve.types import Group, OncurveError, SamplingParams

# Labelling draws from streams of its own: neither those of training nor those of evaluation.
LABEL_SEED_OFFSET = 1 << 41
_MOST_SAMPLES = 4096


@dataclass(frozen=True)
class Labelling:
    kind: str | None = None
    """``pairwise``, ``pointwise`` or ``process``; None: the recipe's `reward_model.kind`, else pointwise."""
    prompts: int = 200
    """Training prompts, drawn by the seed; all, if there are fewer."""
    samples: int = 8
    """Completions of each."""
    checker: str | None = None
    """For steps: a function that scores them, named as in `rewards.functions`."""
    monte_carlo: int = 0
    """For steps: completions from each of them, in place of a checker."""
    soft: bool = False
    """The share of these that come out right, and not whether any does."""


def label_command(recipe: Recipe, model_path: str | None, out: Path, how: Labelling, terminal: Terminal) -> Collected:
    """Sample from ``model_path`` (default: what the recipe's run has trained, else its model), label, and write ``out``
    in the form that `oncurve reward-model` reads. Says what was left out and why.

    ``out`` is written when all is done; until then, and if anything goes wrong, it stays as it was.

    Raises OncurveError for a checker that scores no steps, labels that are none, and if nothing is left to be written.
    """
    kind = how.kind or (recipe.reward_model.kind if recipe.reward_model else "pointwise")
    _check(how, kind, out)
    recipe = with_model(recipe, model_path, "label")
    split = step_splitter(recipe.reward_model.steps if recipe.reward_model else "\n")
    with memory_explained(recipe, "loading"):
        parts = prepare(recipe, terminal, ())
    seed = recipe.run.seed + LABEL_SEED_OFFSET
    collect = _collector(parts, kind, how, split, seed)
    order = permutation(len(parts.train_prompts), f"label/{recipe.run.seed}")[: how.prompts]
    prompts = [parts.train_prompts[index] for index in order]
    terminal.say(f"labelling {how.samples} completions of each of {len(prompts)} prompts by {recipe.model.path}")
    params = SamplingParams(recipe.sampling.max_new_tokens, recipe.sampling.temperature)
    found = Collected()
    at_once = max(1, recipe.sampling.max_rows // how.samples)
    with (
        memory_explained(recipe, "sampling"),
        finite(recipe.model.path, recipe.model),
        terminal.stage("labelling", len(prompts)) as bar,
    ):
        for first in range(0, len(prompts), at_once):
            some = prompts[first : first + at_once]
            groups = parts.engine.sample(some, how.samples, params, seed=seed, iteration=0)
            check_sampled(groups)
            collect(found, groups)
            bar.advance(len(groups), rows=float(len(found.rows)))
    _write(found, out)
    _say(parts, found, kind, out, terminal)
    return found


def _collector(
    parts: Parts, kind: str, how: Labelling, split: Splitter, seed: int
) -> Callable[[Collected, Sequence[Group]], None]:
    """What makes rows of some groups, by the kind of reward model and the rule that labels."""
    measure = next(reward for reward in parts.rewards if reward.name == main_measure(parts))
    columns = (parts.recipe.data.prompt_column, parts.recipe.data.completion_column)

    def values(groups: Sequence[Group]) -> PerCompletion[float | None]:
        return score(groups, [measure], trainer_state={"iteration": 0}).parts[measure.name]

    if kind == "pairwise":
        return lambda found, groups: collect_pairs(found, groups, values(groups), columns[0])
    if kind == "pointwise":
        return lambda found, groups: collect_points(found, groups, values(groups), columns)
    if how.monte_carlo:
        return lambda found, groups: collect_steps(
            found,
            groups,
            monte_carlo_labels(
                parts, groups, values(groups), measure, split, completions=how.monte_carlo, soft=how.soft, seed=seed
            ),
            columns,
        )
    checker = _checker(parts, how)
    return lambda found, groups: collect_steps(found, groups, _checked(parts, groups, checker), columns)


def _check(how: Labelling, kind: str, out: Path) -> None:
    least = 2 if kind == "pairwise" else 1
    for name, value, low, high in (
        ("prompts", how.prompts, 1, MOST_ROWS),
        ("samples", how.samples, least, _MOST_SAMPLES),
        ("monte-carlo", how.monte_carlo, 0, _MOST_SAMPLES),
    ):
        if not low <= value <= high:
            raise OncurveError(f"--{name} is {value}; it must be a number from {low} to {high}")
    if kind != "process" and (how.checker or how.monte_carlo):
        raise OncurveError(f"--checker and --monte-carlo label steps, and the kind is {kind}; give --kind process")
    if how.checker and how.monte_carlo:
        raise OncurveError("--checker and --monte-carlo are two ways to label steps; give one of them")
    if how.soft and not how.monte_carlo:
        raise OncurveError("--soft is about --monte-carlo; give that too")
    if out.suffix.lower() != ".jsonl":
        raise OncurveError(f"--out is {str(out)!r}; what is written is JSON lines: give a name that ends in .jsonl")
    if out.is_dir():
        raise OncurveError(f"--out is {str(out)!r}, which is a directory; give a file")


def _checker(parts: Parts, how: Labelling) -> NamedReward:
    """The function that scores steps: the one asked for, else the task's own."""
    name, source = how.checker, parts.recipe.data.train
    if name is None and source.startswith("task:"):
        name = task(source.removeprefix("task:").partition(":")[0]).steps
    if name is None:
        raise OncurveError(f"nothing says which steps are right on {source}; give --checker FUNC or --monte-carlo N")
    [checker] = load_functions([name])
    check_signature(checker, list(parts.train_prompts[0].columns))
    return checker


def _checked(parts: Parts, groups: Sequence[Group], checker: NamedReward) -> StepLabels:
    scores = score(groups, [checker], trainer_state={"iteration": 0})
    steps = scores.steps.get(checker.name)
    if steps is None:
        if any(value is not None for row in scores.parts[checker.name] for value in row):
            raise OncurveError(
                f"{checker.title} gives whole completions a number, and no steps; give --checker a function that "
                "returns (end, reward) for each step, or --monte-carlo N"
            )
        return [[[] for _ in group.completions] for group in groups]
    return checked_labels(steps, groups, lambda ids: len(decode(parts.tokenizer, ids)))


def _write(found: Collected, out: Path) -> None:
    if not found.rows:
        raise OncurveError(
            f"there is nothing to write: of all completions were left out {_reasons(found)}. Pairs want prompts that "
            "are answered rightly and wrongly: more samples, other prompts, or another model"
        )
    with replacing(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        for row in found.rows:
            file.write(json.dumps(row) + "\n")


def _say(parts: Parts, found: Collected, kind: str, out: Path, terminal: Terminal) -> None:
    """What was written, what was left out, and what a reward model on this tokenizer would leave out besides."""
    reasons = _reasons(found)
    terminal.say(f"{len(found.rows)} rows in {out}" + (f"; left out: {reasons}" if reasons else ""))
    if found.labels:
        right = sum(label > 0.5 for label in found.labels)
        what = "steps" if kind == "process" else "completions"
        terminal.say(f"{right} of {len(found.labels)} {what} are right ({right / len(found.labels):.1%})")
    config = parts.recipe.reward_model
    limit = config.max_tokens if config and config.max_tokens else parts.lm.context
    dropped = build_labelled(found.rows, parts.tokenizer, parts.recipe.data, kind, limit=limit).dropped
    if dropped:
        terminal.say(f"with at most {limit} tokens `oncurve reward-model` will drop {left_out(dropped)}")


def _reasons(found: Collected) -> str:
    return left_out({reason: number for reason, number in found.dropped.items() if number})
