"""What can be said of a recipe without loading its model and without a network: for ``--dry-run``. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from oncurve.checks import check_enough, check_rewards, check_room
from oncurve.config import EMBEDDED_CONTEXT, GENERATED, Model, Recipe
from oncurve.data.demonstrations import check_demonstrations
from oncurve.data.labelled import check_labelled
from oncurve.data.order import apart, question
from oncurve.data.prompts import bare_prompts, data_of, prompt_of
from oncurve.data.readers import WITH_OPTIONS, Row, options_for, read_rows
from oncurve.models.source import check_reward_model, context_of, find_source, read_chat_template
from oncurve.recipe import need_task
from oncurve.rewards import NamedReward, combination, load_functions, sandbox_for
from oncurve.rewards.learned import ModelToLoad
from oncurve.types import OncurveError, Prompt

T = TypeVar("T")
Use = Literal["train", "eval", "sft", "reward_model"]

_FEW = 8  # questions of a generator, of which some may have no answer


@dataclass(frozen=True)
class Found:
    """What was found out about a recipe that nothing is wrong with."""

    rows: Mapping[str, int]
    """How many prompts there are to train on (``train``), held-out ones (``eval``) and demonstrations (``sft``), as far
    as that is known without a tokenizer: over-long ones are counted."""
    notes: Sequence[str]
    """What a run would say of the data."""


def check_recipe(recipe: Recipe, stages: Sequence[str]) -> Found:
    """Is there what the recipe names: model, tokenizer and template, data with its columns, and reward functions that
    can be called on them? Do the numbers fit the data and the model? Runs the user's reward files, as training does.
    Names on the hub are taken at their word.

    Raises OncurveError, with a line for each thing that is wrong.
    """
    if tuple(stages) == ("reward_model",):
        return _reward_model(recipe)
    problems: list[str] = []
    notes: list[str] = []

    def attempt(check: Callable[..., T], *arguments: object) -> T | None:
        try:
            return check(*arguments)
        except OncurveError as error:
            problems.append(str(error))
            return None

    attempt(check_room, recipe, attempt(_context, recipe.model))
    measures = attempt(_measures, recipe) or []
    attempt(sandbox_for, [measure.function for measure in measures], recipe.rewards.sandbox)
    train = attempt(_prompts, recipe, "train")
    held_out = attempt(_prompts, recipe, "eval") if recipe.data.eval is not None and recipe.data.eval_size else None
    if "grpo" in stages:
        for source, prompts in ((recipe.source("train"), train), (recipe.source("eval"), held_out)):
            if prompts is not None:
                attempt(check_rewards, measures, *source, prompts, notes.append)
    kept, held_out = attempt(_apart, recipe, train, held_out, notes) or (None, held_out)
    number = attempt(_trained_on, recipe, kept)
    if "grpo" in stages and number is not None and not problems:
        attempt(check_enough, recipe, number)
    rows = {"train": number, "eval": None if held_out is None else len(held_out)}
    if "sft" in stages:
        rows["sft"] = attempt(_demonstrations, recipe, {question(prompt.raw) for prompt in held_out or ()})
    if problems:
        raise OncurveError("\n".join(dict.fromkeys(problems)))  # train and eval may be the same file
    return Found({use: rows for use, rows in rows.items() if rows is not None}, list(dict.fromkeys(notes)))


def _reward_model(recipe: Recipe) -> Found:
    """Of a recipe whose reward model alone is trained: its data and the model it begins as."""
    config = recipe.reward_model
    if config is None:
        raise OncurveError("the recipe has no [reward_model] section, which `oncurve reward-model` trains; add one")
    problems: list[str] = []
    try:
        if config.path is None:
            _context(recipe.model)
        elif config.path.startswith("embedded:"):
            _context(Model(path=config.path))
        else:
            find_source("reward_model.path", config.path)
    except OncurveError as error:
        problems.append(str(error))
    option, source = recipe.source("reward_model")
    rows: list[Row] | None = None
    try:
        with data_of(option, source):
            if source.startswith(GENERATED):
                raise OncurveError(f"{source} has questions and no labels; give a file with labelled rows")
            rows = _rows(recipe, source, "reward_model")
            check_labelled(rows or (), recipe.data, config.kind)
    except OncurveError as error:
        problems.append(str(error))
    if problems:
        raise OncurveError("\n".join(problems))
    return Found({} if rows is None else {"reward_model": len(rows)}, [])


def _context(model: Model) -> int | None:
    """The model's context in tokens, if the disk says so."""
    kind, _, name = model.path.partition(":")
    if model.tokenizer is not None:
        find_source("model.tokenizer", model.tokenizer)
    if model.chat_template is not None:
        read_chat_template(model.chat_template)
    if kind == "embedded":
        with data_of("model.path", model.path):
            need_task(name)
        return EMBEDDED_CONTEXT
    return context_of(find_source("model.path", model.path))


def _measures(recipe: Recipe) -> list[NamedReward]:
    rewards = recipe.rewards
    # Oncurve's own are there, and importing the tasks would load torch.
    functions, metrics = (
        [name for name in names if not name.startswith("oncurve.")] for names in (rewards.functions, rewards.metrics)
    )
    own = [n.rpartition(":")[2] for n in [*rewards.functions, *rewards.metrics] if n.startswith("oncurve.")]
    options = {name: given for name, given in rewards.options.items() if name not in own}
    measures = load_functions([*functions, *metrics], options=options)
    for measure in measures:
        if isinstance(measure.function, ModelToLoad):
            check_reward_model("rewards.functions", measure.function.path)
    combination(rewards.gates, rewards.clip, [*(measure.name for measure in measures[: len(functions)]), *own])
    return measures


def _prompts(recipe: Recipe, use: Use) -> list[Prompt] | None:
    """Those of a file, or a few of a generator; None if they are not known yet."""
    option, source = recipe.source(use)
    with data_of(option, source):
        rows = _rows(recipe, source, use)
        return None if rows is None else bare_prompts(rows, recipe.data)


def _apart(
    recipe: Recipe, train: list[Prompt] | None, given: list[Prompt] | None, notes: list[str]
) -> tuple[list[Prompt], list[Prompt]] | None:
    """The prompts of a file that are trained on, and those held out; None where they are not known yet."""
    if train is None or recipe.data.train.startswith(WITH_OPTIONS):
        return None
    apart_already = (given or []) if recipe.data.eval is not None else None
    kept, held_out = apart(train, apart_already, recipe.data.eval_size, recipe.run.seed)
    leaked = len(train) - len(kept) - (0 if recipe.data.eval is not None else len(held_out))
    if leaked:
        notes.append(f"{leaked} training prompts ask what a held-out prompt asks and are left out of training")
    return kept, held_out


def _trained_on(recipe: Recipe, kept: list[Prompt] | None) -> int | None:
    """How many prompts there are to train on: of a generator as many as it is asked for."""
    if kept is not None:
        return len(kept)
    if not recipe.data.train.startswith(GENERATED):
        return None
    size, held_out = recipe.data.size, 0 if recipe.held_out_apart else recipe.data.eval_size
    if held_out >= size:
        raise OncurveError(
            f"data.eval_size is {held_out}, but the training data, of which they are split off, has only data.size = "
            f"{size} prompts; lower it, or give data.eval"
        )
    return size - held_out


def _demonstrations(recipe: Recipe, asked: set[str]) -> int | None:
    """How many there are in a file that do not answer what is ``asked``."""
    option, source = recipe.source("sft")
    with data_of(option, source):
        rows = _rows(recipe, source, "sft")
        if rows is None:
            return None
        check_demonstrations(rows, recipe.data)
        if source.startswith(WITH_OPTIONS):
            return None
        return sum(question(prompt_of(row, recipe.data, index)) not in asked for index, row in enumerate(rows))


def _rows(recipe: Recipe, source: str, use: Use) -> list[Row] | None:
    kind, _, rest = source.partition(":")
    if kind == "task":
        need_task(rest if use == "sft" else rest.partition(":")[0])  # task:NAME:SPLIT gives prompts only
        return None
    if kind == "hub":
        return None
    options = options_for(source, recipe.sources, recipe.data.options)
    return read_rows(source, size=_FEW, seed=recipe.run.seed, options=options)
