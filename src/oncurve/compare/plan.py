"""What is to be compared, from a small TOML file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oncurve.recipe import load_recipe
from oncurve.types import OncurveError

_KEYS = {"recipe", "seeds", "methods"}


@dataclass(frozen=True)
class Method:
    """A way to train: what it changes in the recipe."""

    name: str
    flags: tuple[str, ...]
    """As on the command line: ``--grpo.preset=ppo``."""


@dataclass(frozen=True)
class Plan:
    """Every method with every seed."""

    recipe: Path
    seeds: tuple[int, ...]
    methods: tuple[Method, ...]


def read_plan(path: Path | str) -> Plan:
    """Read a file like this; the recipe's path is relative to the working directory, as all paths are::

        recipe = "recipes/chain.toml"
        seeds = [0, 1, 2]

        [methods.grpo]

        [methods.ppo]
        "grpo.preset" = "ppo"
        "critic.learning_rate" = 2e-3

    Raises OncurveError naming the file and the key: it cannot be read, a key is unknown or missing, a method's recipe
    would be refused, or two methods sample another number of completions.
    """
    path = Path(path)
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OncurveError(f"{path}: {error}") from error
    unknown = sorted(tree.keys() - _KEYS)
    if unknown:
        raise OncurveError(f"{path}: {unknown[0]}: no such key; there are: {', '.join(sorted(_KEYS))}")
    missing = sorted(_KEYS - tree.keys())
    if missing:
        raise OncurveError(f"{path}: {missing[0]} is missing")
    plan = Plan(
        Path(_text(path, "recipe", tree["recipe"])), _seeds(path, tree["seeds"]), _methods(path, tree["methods"])
    )
    _check(path, plan)
    return plan


def _text(path: Path, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise OncurveError(f"{path}: {key} = {value!r}: must be text")
    return value


def _seeds(path: Path, value: Any) -> tuple[int, ...]:
    whole = isinstance(value, list) and value and all(type(seed) is int and seed >= 0 for seed in value)
    if not whole or len(set(value)) < len(value):
        raise OncurveError(f"{path}: seeds = {value!r}: must be a list of different whole numbers from 0 on")
    return tuple(value)


def _methods(path: Path, value: Any) -> tuple[Method, ...]:
    if not isinstance(value, Mapping) or not value:
        raise OncurveError(f"{path}: methods: must be tables, as [methods.ppo]; there is none")
    found: list[Method] = []
    for name, changes in value.items():
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise OncurveError(
                f"{path}: methods.{name}: the name becomes a directory: letters, digits, '.', '_' and '-'"
            )
        if not isinstance(changes, Mapping) or any(isinstance(v, Mapping) for v in changes.values()):
            raise OncurveError(
                f'{path}: methods.{name}: must be options, with their whole names: "grpo.preset" = "ppo"'
            )
        found.append(Method(name, tuple(f"--{key}={_flag(option)}" for key, option in changes.items())))
    return tuple(found)


def _flag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _check(path: Path, plan: Plan) -> None:
    sampled: dict[str, int] = {}
    for method in plan.methods:
        recipe = load_recipe(plan.recipe, [*method.flags, f"--run.seed={plan.seeds[0]}"])
        if recipe.grpo is None:
            raise OncurveError(f"{path}: {plan.recipe} has no [grpo] section; there is nothing to compare")
        grpo = recipe.grpo
        sampled[method.name] = grpo.iterations * grpo.prompts_per_iteration * grpo.group_size
    if len(set(sampled.values())) > 1:
        counts = ", ".join(f"{name} {count:,}" for name, count in sampled.items())
        raise OncurveError(
            f"{path}: the methods do not sample the same number of completions (iterations x prompts x group size): "
            f"{counts}; give each the same budget"
        )
