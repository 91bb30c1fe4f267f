"""Where the rows come from that are looked at: a data set by its name, or the training data of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from oncurve.config import Recipe
from oncurve.data.prompts import data_of
from oncurve.data.readers import options_for, read_rows
from oncurve.recipe import load_recipe, recipe_from_dict
from oncurve.tasks import need_options, task

Row = dict[str, Any]


def recipe_for(source: str, flags: Sequence[str], model: str | None = None) -> Recipe:
    """The recipe in a file that ends in .toml, .yaml or .yml, or one whose ``data.train`` is ``source``; flags on top.
    ``model`` replaces its ``model.path``."""
    if Path(source).suffix in (".toml", ".yaml", ".yml"):
        return load_recipe(source, [*flags, *(["--model.path", model] if model else [])])
    tree = {"model": {"path": model or "embedded:letters"}, "data": {"train": source}}
    return recipe_from_dict(tree, "command line", flags)


def rows_of(recipe: Recipe, most: int | None) -> list[Row]:
    """The first ``most`` training rows of a recipe; None: all of a file, ``data.size`` of what is generated. Those of a
    generated task have the ``completion`` of a tutor without flaws."""
    source, data = recipe.data.train, recipe.data
    size = data.size if most is None else most
    with data_of("data.train", source):
        if source.startswith("task:"):
            embedded = task(source.removeprefix("task:").partition(":")[0])
            need_options(embedded, data.options)
            return embedded.demonstrations(size, recipe.run.seed, **dict.fromkeys(embedded.options, 0.0))
        options = options_for(source, recipe.sources, data.options)
        return read_rows(source, size=size, seed=recipe.run.seed, options=options)[:most]
