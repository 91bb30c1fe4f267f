"""Reading a recipe: defaults < file < flags, checked against ``oncurve.config``. No torch here.

Values in a file are strictly typed (``"8"`` is not a number); flags are text and are read as what their option wants.
Paths inside a recipe are relative to the working directory, not to the recipe, as users of trl and verl expect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from oncurve.config import Recipe
from oncurve.recipe.arithmetic import batch_arithmetic, completions_kept
from oncurve.recipe.errors import Origins, explain, nearest_key, need_task, unusable_values
from oncurve.recipe.flags import apply_flags
from oncurve.recipe.text import RecipeError, Source, Tree, is_table, read_source, to_toml

RECIPE_SUFFIXES = (".toml", ".yaml", ".yml")

__all__ = [
    "RECIPE_SUFFIXES",
    "Recipe",
    "RecipeError",
    "as_recipe",
    "batch_arithmetic",
    "completions_kept",
    "differences",
    "dump_toml",
    "load_recipe",
    "located",
    "nearest_key",
    "need_task",
    "recipe_from_dict",
    "recipe_path",
    "stages_of",
]


def load_recipe(
    path: Path | str, overrides: Sequence[str] = (), defaults: Mapping[str, Mapping[str, Any]] | None = None
) -> Recipe:
    """Read a TOML or YAML file (by suffix), put ``defaults`` beneath and ``overrides`` above it, and check the whole.

    ``overrides`` are flags as on the command line: ``["--grpo.learning-rate", "1e-5", "--data.options.min_terms=3"]``;
    the word ``none`` takes an option back to its default, or a stage out. Files named in a recipe are relative to the
    working directory. Raises RecipeError with one line for each thing that is wrong.
    """
    source = read_source(path)
    return _checked(_merged(dict(defaults or {}), source.tree), overrides, source)


def recipe_from_dict(tree: Mapping[str, Any], source: str = "recipe", overrides: Sequence[str] = ()) -> Recipe:
    """As ``load_recipe``, from nested dictionaries; ``source`` is what errors call them."""
    return _checked(dict(tree), overrides, Source(source, {}, {}))


def as_recipe(recipe: Recipe | Path | str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe, or the recipe in a file, with flags put on top."""
    if not isinstance(recipe, Recipe):
        return load_recipe(recipe, overrides)
    return recipe_from_dict(recipe.model_dump(exclude_none=True), overrides=overrides) if overrides else recipe


def located(source: Recipe | Path | str, overrides: Sequence[str] = ()) -> tuple[Recipe, str | None]:
    """The recipe that ``source`` stands for, and the model to look at instead of its `model.path`, if there is one.

    A recipe or its file stands for the newest model that its run has trained; so does a run directory, wherever it has
    been moved; a model inside a run directory for itself. All of these have the recipe of the run. Anything else is
    taken for a model by directory or name, and has a recipe of `overrides` alone, whose `data.train` is ``-`` if they
    do not set it.
    """
    if isinstance(source, Recipe) or Path(source).suffix.lower() in RECIPE_SUFFIXES:
        recipe = as_recipe(source, overrides)
        return recipe, _trained(Path(recipe.run.dir) / recipe.run.name)
    path = Path(source)
    if (path / "config.toml").is_file():
        return load_recipe(path / "config.toml", overrides), _trained(path)
    run_dir = path.parent.parent
    if path.parent.name == "models" and (run_dir / "config.toml").is_file() and (path / "config.json").is_file():
        return load_recipe(run_dir / "config.toml", overrides), str(path)
    tree = {"model": {"path": str(source)}, "data": {"train": "-"}}
    return recipe_from_dict(tree, str(source), overrides), None


def _trained(run_dir: Path) -> str | None:
    """The newest model that a run has finished, if any."""
    models = run_dir / "models"
    return next((str(models / stage) for stage in ("grpo", "sft") if (models / stage / "config.json").exists()), None)


def recipe_path(name: str) -> Path:
    """Where a recipe that ships with Oncurve lies: in the package when installed, beside ``src/`` in a checkout."""
    package = Path(__file__).resolve().parent.parent
    folders = (package / "recipes", package.parent.parent / "recipes")
    for folder in folders:
        if (found := folder / f"{name}.toml").is_file():
            return found
    shipped = sorted({path.stem for folder in folders for path in folder.glob("*.toml")})
    raise RecipeError(f"no recipe {name!r} ships with Oncurve; there are: {', '.join(shipped) or 'none'}")


def stages_of(recipe: Recipe) -> tuple[str, ...]:
    """The stages a recipe has, in the order they run. Raises RecipeError if there is none."""
    stages = tuple(name for name in ("sft", "grpo") if getattr(recipe, name) is not None)
    if not stages:
        raise RecipeError("the recipe has nothing to train: it needs an [sft] or a [grpo] section")
    return stages


def dump_toml(recipe: Recipe) -> str:
    """The whole recipe, defaults too, as TOML that ``load_recipe`` reads back to an equal one."""
    return to_toml(recipe.model_dump())


def differences(a: Recipe, b: Recipe) -> list[tuple[str, Any, Any]]:
    """``(dotted key, value in a, value in b)`` for every option that differs. A stage or a generator's option that
    only one of them has is one entry, with None for the other."""
    return _differences(a.model_dump(), b.model_dump(), "")


def _differences(a: Tree, b: Tree, prefix: str) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for key in [*a, *(key for key in b if key not in a)]:
        old, new = a.get(key), b.get(key)
        if is_table(old) and is_table(new):
            found += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            found.append((prefix + key, old, new))
    return found


def _checked(tree: Tree, overrides: Sequence[str], source: Source) -> Recipe:
    tree, flagged = apply_flags(tree, overrides)
    origins = Origins(source, flagged)
    problems = unusable_values(tree, origins)
    if not problems:
        try:
            # as JSON, because strict checking of Python values would refuse a list where a tuple is wanted
            return Recipe.model_validate_json(json.dumps(tree), strict=True)
        except ValidationError as error:
            problems = [explain(problem, tree, origins) for problem in error.errors()]
    raise RecipeError("\n".join(problems))


def _merged(beneath: Tree, above: Tree) -> Tree:
    """``above`` laid over ``beneath``: tables are merged, everything else is replaced."""
    both = dict(beneath)
    for key, value in above.items():
        under = both.get(key)
        both[key] = _merged(under, value) if is_table(under) and is_table(value) else value
    return both
