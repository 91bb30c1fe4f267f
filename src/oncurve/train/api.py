"""What Python users call: ``oncurve.train``, ``oncurve.evaluate`` and ``oncurve.sample``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from oncurve.config import MOST_ROWS
from oncurve.recipe import Recipe, as_recipe, located, stages_of
from oncurve.terminal import Terminal
from oncurve.train.commands import evaluate_command, sample_command
from oncurve.train.evaluate import Evaluation
from oncurve.train.outcome import Result, show_result
from oncurve.train.run import run
from oncurve.types import OncurveError


def train(recipe: Recipe | Path | str, overrides: Sequence[str] = (), *, terminal: Terminal | None = None) -> Result:
    """Run every stage of a recipe or recipe file, or go on where an earlier run of it was interrupted.

    ``overrides`` are flags as on the command line: ``["--grpo.iterations", "10"]``. With ``"--quiet"`` among them, or
    ``Terminal(quiet=True)``, nothing is printed. Raises OncurveError for anything the user can mend, Stopped on SIGINT
    and SIGTERM.
    """
    overrides, terminal = _quietly(overrides, terminal)
    recipe = as_recipe(recipe, overrides)
    result = run(recipe, stages=stages_of(recipe), terminal=terminal)
    show_result(result, terminal)
    return result


def evaluate(
    source: Recipe | Path | str,
    model: Path | str | None = None,
    overrides: Sequence[str] = (),
    *,
    terminal: Terminal | None = None,
) -> list[Evaluation]:
    """Evaluate on the held-out prompts of a recipe, recipe file or run directory: ``model``, else what its run has
    trained, else its start. Or a model by directory or name, on the prompts of ``["--data.train", "FILE"]``."""
    overrides, terminal = _quietly(overrides, terminal)
    recipe, found = located(source, overrides)
    return evaluate_command(recipe, found if model is None else str(model), terminal)


def sample(
    source: Recipe | Path | str,
    prompt: str,
    overrides: Sequence[str] = (),
    *,
    n: int = 4,
    temperature: float = 1.0,
    terminal: Terminal | None = None,
) -> list[str]:
    """The texts of ``n`` completions of ``prompt``, which are printed too; temperature 0 is greedy.

    ``source`` is a recipe, recipe file or run directory (its trained model if there is one, its limits and its way to
    render a prompt), or else a model by directory or name. At temperature 0 there is one completion, for all would be
    the same.
    """
    if not 1 <= n <= MOST_ROWS:
        raise OncurveError(f"n = {n}: must be a number of completions from 1 to {MOST_ROWS}")
    if not (temperature >= 0.0 and math.isfinite(temperature)):
        raise OncurveError(f"temperature = {temperature}: must be a finite number, 0 (greedy) or more")
    overrides, terminal = _quietly(overrides, terminal)
    recipe, model = located(source, overrides)
    update = {"path": model, "tokenizer": None} if model else {}
    group = sample_command(
        recipe.model.model_copy(update=update),
        prompt,
        terminal,
        n=n,
        temperature=temperature,
        max_new_tokens=recipe.eval_max_new_tokens,
        seed=recipe.run.seed,
        data=recipe.data,
    )
    return [completion.text for completion in group.completions]


def _quietly(overrides: Sequence[str], terminal: Terminal | None) -> tuple[list[str], Terminal]:
    """``overrides`` without ``--quiet``, which the command line has too, and the terminal that it asks for."""
    rest = [flag for flag in overrides if flag != "--quiet"]
    return rest, terminal or Terminal(quiet=len(rest) < len(overrides))


class CallablePackage(ModuleType):
    """``oncurve.train`` is a package and, to Python users, the function of that name: the package can be called."""

    def __call__(
        self, recipe: Recipe | Path | str, overrides: Sequence[str] = (), *, terminal: Terminal | None = None
    ) -> Result:
        return train(recipe, overrides, terminal=terminal)
