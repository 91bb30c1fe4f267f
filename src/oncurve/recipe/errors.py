"""What is wrong with a recipe, in words: where it says so, the key, its value, and what would be right."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from oncurve.config import TASKS, Recipe, leaves
from oncurve.recipe.text import KeyPath, RecipeError, Source, Tree, describe, dotted_name, is_table

# What other trainers call an option, for the "did you mean" of people who come from there.
_OTHER_NAMES = {
    "batch_size": "grpo.prompts_per_iteration",
    "beta": "grpo.kl_coef",
    "dataset_name": "data.train",
    "epsilon": "grpo.clip_low",
    "epsilon_high": "grpo.clip_high",
    "lr": "grpo.learning_rate",
    "max_completion_length": "sampling.max_new_tokens",
    "max_prompt_length": "data.max_prompt_tokens",
    "max_steps": "grpo.iterations",
    "model_name_or_path": "model.path",
    "num_generations": "grpo.group_size",
    "num_iterations": "grpo.epochs",
    "output_dir": "run.dir",
    "reward_funcs": "rewards.functions",
    "reward_weights": "rewards.weights",
}


@dataclass(frozen=True)
class Origins:
    """Who said what: the command line, or a line of the file."""

    source: Source
    flagged: Sequence[KeyPath]
    """The keys that flags have set."""

    def is_flag(self, path: KeyPath) -> bool:
        return any(path[: len(flag)] == flag for flag in self.flagged)

    def place(self, path: KeyPath) -> str:
        return "command line" if self.is_flag(path) else self.source.place(path)


def nearest_key(key: str) -> str | None:
    """The option or section that someone who wrote ``key`` probably meant."""
    section, _, last = key.rpartition(".")

    def closeness(candidate: str) -> float:
        its_section, _, its_last = candidate.rpartition(".")
        likeness = difflib.SequenceMatcher(None, last, its_last).ratio()
        return likeness + (0.1 if likeness >= 0.6 and its_section == section else 0.0)

    best = max([*leaves(), *Recipe.model_fields], key=closeness)
    if last in _OTHER_NAMES:
        other = _OTHER_NAMES[last]
        here = f"{section}.{other.rpartition('.')[2]}"  # lr is sft.learning_rate in [sft]
        if here in leaves():
            return here
        if closeness(best) < 0.9:
            return other
    return best if closeness(best) >= 0.6 else None


def need_task(name: str) -> None:
    """Raises RecipeError, naming the nearest, if there is no generated task of that name."""
    if name not in TASKS:
        nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise RecipeError(f"there is no task {name!r}; did you mean {nearest!r}? There are: {', '.join(TASKS)}")


def unusable_values(tree: Any, origins: Origins, path: KeyPath = ()) -> list[str]:
    """One line for each value no option may have, wherever it stands: also in ``data.options``, where any key goes."""
    if is_table(tree):
        return [line for key in tree for line in unusable_values(tree[key], origins, (*path, key))]
    if isinstance(tree, list | tuple):
        items: list[Any] = list(tree)  # pyright: ignore[reportUnknownArgumentType]
        return [line for at, item in enumerate(items) for line in unusable_values(item, origins, (*path, at))]
    reason = _unusable(tree, path)
    return [f"{origins.place(path)}: {dotted_name(path)} {reason}"] if reason else []


def _unusable(value: Any, path: KeyPath) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"= {value}: must be a finite number"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "does not fit in 64 bits"
    if isinstance(value, str) and re.search(r"[\ud800-\udfff]", value):
        return f"= {value!a}: holds half of a surrogate pair, which is not text"
    if isinstance(value, str) and "\0" in value:
        return f"= {value!a}: holds a NUL character, which is in no text and in no file's name"
    if value is None and len(path) == 1:
        return "is an empty section: leave it out, or write {} for one with every default"
    if value is None and path[:2] in (("data", "options"), ("rewards", "options")):
        return "is null: give it a value or leave it out"
    if not isinstance(value, int | float | str | None):
        return f"= {value}: a {type(value).__name__} has no use here; for text, put it in quotes"
    return None


def explain(problem: Mapping[str, Any], tree: Tree, origins: Origins) -> str:
    """One line for one error of pydantic's."""
    path: KeyPath = problem["loc"]
    kind: str = problem["type"]
    key = dotted_name(path)
    if kind == "value_error":  # of a whole section: point at the options that the text names
        text = str(problem["ctx"]["error"])
        words = re.findall(r"[a-z_0-9]+(?:\.[a-z_0-9]+)?", text)
        names = (name for word in words for name in (f"{key}.{word}".strip("."), word))
        named = [tuple(name.split(".")) for name in names if name in leaves()] or [path]
        # What a flag has set is what does not fit the rest: the file may have been right before.
        at = next((name for name in named if origins.is_flag(name)), named[0])
        return f"{origins.place(at)}: {text}"
    if kind == "missing" and isinstance(path[-1], str):
        return f"{origins.place(path)}: {_missing(key)}"
    if kind == "missing":  # a list that is too short for its tuple
        path, key = path[:-1], dotted_name(path[:-1])
        right = f"must have {len(get_args(leaves()[key].annotation))} values"
    elif kind == "extra_forbidden":
        near = nearest_key(key)
        right = f"no such key; did you mean {near}?" if near else "no such key"
    else:
        right = _right(kind, problem["msg"], _value_at(tree, path), from_file=not origins.is_flag(path))
    reason = _REASONS.get((key, kind))
    right = f"{right}: {reason}" if reason else right
    return f"{origins.place(path)}: {key} = {_short(_value_at(tree, path))}: {right}"


_IN_MEMORY = "all rows are made at once and held in memory"
# Why a value is out of range, where the number alone does not say it.
_REASONS = {
    ("grpo.group_size", "greater_than_equal"): "a group has at least one completion",
    ("grpo.group_size", "less_than_equal"): "all completions of an iteration are held in memory",
    ("eval.samples", "less_than_equal"): "all completions of an evaluation are held in memory",
    ("data.size", "less_than_equal"): _IN_MEMORY,
    ("data.eval_size", "less_than_equal"): _IN_MEMORY,
    ("sft.size", "less_than_equal"): _IN_MEMORY,
    ("sampling.temperature", "greater_than"): "at 0 all completions of a group would be the same",
    ("eval.temperature", "greater_than"): "at 0 it would be the greedy evaluation, which is made anyway",
    ("checkpoint.keep_last", "greater_than_equal"): "should the newest be damaged, a run goes on from the one before",
    ("run.name", "string_pattern_mismatch"): "it is the name of one directory, in letters, digits, '.', '_' and '-'",
}

_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a section",
}


def _right(kind: str, message: str, value: Any, from_file: bool) -> str:
    """What would be right. A flag is text to begin with, so quotes are no advice there."""
    wanted = _WANTED.get(kind)
    if wanted is None:
        text = re.sub(r"^(Input should|String should|List should|Tuple should)", "must", message).replace(
            " after validation", ""
        )
        near = difflib.get_close_matches(str(value), re.findall(r"'([^']*)'", text)) if kind == "literal_error" else []
        return f"{text}; did you mean {near[0]!r}?" if near else text
    if not from_file:
        return f"must be {wanted}"
    text = f"must be {wanted}, not {describe(value)}"
    if wanted == "text" and isinstance(value, bool):
        return f"{text}: put it in quotes (YAML reads a bare yes, no, on or off as true or false)"
    if wanted == "text" and isinstance(value, int | float):
        return f"{text}: put it in quotes"
    if isinstance(value, str) and kind in ("int_type", "float_type", "bool_type"):
        return f"{text}: write it without quotes"
    return text


def _missing(key: str) -> str:
    if key in leaves():
        return f"{key} is missing: {' '.join((leaves()[key].description or 'it has no default').split())}"
    section = Recipe.model_fields[key].annotation
    needed = [name for name, info in getattr(section, "model_fields", {}).items() if info.is_required()]
    return f"section [{key}] is missing; it needs at least {' and '.join(needed)}"


def _value_at(tree: Any, path: KeyPath) -> Any:
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
