"""What can be said of a recipe without loading its model and without a network: for ``--dry-run``. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from oncurve.config import Model, Recipe
from oncurve.data.demonstrations import check_demonstrations
from oncurve.data.prompts import check_rows, data_of
from oncurve.data.readers import Row, options_for, read_rows
from oncurve.models.source import find_source, read_chat_template
from oncurve.recipe import need_task
from oncurve.rewards import NamedReward, check_signature, load_functions, sandbox_for
from oncurve.types import OncurveError

T = TypeVar("T")

_FEW = 8  # questions of a generator, of which some may have no answer


def check_recipe(recipe: Recipe, stages: Sequence[str]) -> None:
    """Is there what the recipe names: model, tokenizer and template, data with its columns, and reward functions that
    can be called on them? Runs the user's reward files, as training does. Names on the hub are taken at their word.

    Raises OncurveError, with a line for each thing that is wrong.
    """
    problems: list[str] = []

    def attempt(check: Callable[..., T], *arguments: object) -> T | None:
        try:
            return check(*arguments)
        except OncurveError as error:
            problems.append(str(error))
            return None

    attempt(_check_model, recipe.model)
    measures = attempt(_measures, recipe) or []
    attempt(sandbox_for, [measure.function for measure in measures], recipe.rewards.sandbox)
    for use in ("train", "eval", "sft"):
        if (use == "eval" and recipe.data.eval_size == 0) or (use == "sft" and "sft" not in stages):
            continue
        columns = attempt(_columns, recipe, use)
        if columns is not None and use != "sft" and "grpo" in stages:
            attempt(_check_signatures, measures, columns, *recipe.source(use))
    if problems:
        raise OncurveError("\n".join(dict.fromkeys(problems)))  # train and eval may be the same file


def _check_model(model: Model) -> None:
    kind, _, name = model.path.partition(":")
    if kind == "embedded":
        with data_of("model.path", model.path):
            need_task(name)
    else:
        find_source("model.path", model.path)
    if model.tokenizer is not None:
        find_source("model.tokenizer", model.tokenizer)
    if model.chat_template is not None:
        read_chat_template(model.chat_template)


def _measures(recipe: Recipe) -> list[NamedReward]:
    names = [*recipe.rewards.functions, *recipe.rewards.metrics]
    # Oncurve's own are there, and importing the tasks would load torch.
    return load_functions([name for name in names if not name.startswith("oncurve.")])


def _columns(recipe: Recipe, use: Literal["train", "eval", "sft"]) -> list[str] | None:
    """The columns that reward functions get; None if they are not known yet."""
    option, source = recipe.source(use)
    with data_of(option, source):
        rows = _rows(recipe, source, use)
        if rows is None:
            return None
        if use == "sft":
            check_demonstrations(rows, recipe.data)
            return []
        return check_rows(rows, recipe.data)


def _rows(recipe: Recipe, source: str, use: Literal["train", "eval", "sft"]) -> list[Row] | None:
    kind, _, rest = source.partition(":")
    if kind == "task":
        need_task(rest if use == "sft" else rest.partition(":")[0])  # task:NAME:SPLIT gives prompts only
        return None
    if kind == "hub":
        return None
    options = options_for(source, recipe.sources, recipe.data.options)
    return read_rows(source, size=_FEW, seed=recipe.run.seed, options=options)


def _check_signatures(measures: Sequence[NamedReward], columns: Sequence[str], option: str, source: str) -> None:
    with data_of(option, source):
        for measure in measures:
            check_signature(measure, columns)
