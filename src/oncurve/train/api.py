"""What Python users call: ``oncurve.train``, ``oncurve.evaluate`` and ``oncurve.sample``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from oncurve.config import MOST_ROWS, Model
from oncurve.recipe import Recipe, as_recipe, stages_of
from oncurve.terminal import Terminal
from oncurve.train.commands import evaluate_command, sample_command, trained_model
from oncurve.train.evaluate import Evaluation
from oncurve.train.run import Result, run
from oncurve.types import OncurveError


def train(recipe: Recipe | Path | str, overrides: Sequence[str] = (), *, terminal: Terminal | None = None) -> Result:
    """Run every stage of a recipe or recipe file, or go on where an earlier run of it was interrupted.

    ``overrides`` are flags as on the command line: ``["--grpo.iterations", "10"]``. ``Terminal(quiet=True)`` prints
    nothing. Raises OncurveError for anything the user can mend, Stopped on SIGINT and SIGTERM.
    """
    recipe = as_recipe(recipe, overrides)
    return run(recipe, stages=stages_of(recipe), terminal=terminal or Terminal())


def evaluate(
    recipe: Recipe | Path | str,
    model: Path | str | None = None,
    overrides: Sequence[str] = (),
    *,
    terminal: Terminal | None = None,
) -> list[Evaluation]:
    """Evaluate on a recipe's held-out prompts: ``model``, else what the recipe's run has trained, else its start."""
    return evaluate_command(as_recipe(recipe, overrides), None if model is None else str(model), terminal or Terminal())


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
    render a prompt), or else a model by directory or name; ``overrides`` are for recipes alone.
    """
    if not 1 <= n <= MOST_ROWS:
        raise OncurveError(f"n = {n}: must be a number of completions from 1 to {MOST_ROWS}")
    if not (temperature >= 0.0 and math.isfinite(temperature)):
        raise OncurveError(f"temperature = {temperature}: must be a finite number, 0 (greedy) or more")
    terminal = terminal or Terminal()
    if not isinstance(source, Recipe):
        path = Path(source)
        inside = path / "config.toml"  # of a run directory
        if not inside.is_file() and path.suffix.lower() not in (".toml", ".yaml", ".yml"):
            if overrides:
                raise OncurveError(f"{source} is taken for a model, and options such as {overrides[0]} are for recipes")
            group = sample_command(Model(path=str(source)), prompt, terminal, n=n, temperature=temperature)
            return [completion.text for completion in group.completions]
        source = inside if inside.is_file() else path
    recipe = as_recipe(source, overrides)
    trained = trained_model(recipe)
    update = {"path": str(trained), "tokenizer": None} if trained else {}
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


class CallablePackage(ModuleType):
    """``oncurve.train`` is a package and, to Python users, the function of that name: the package can be called."""

    def __call__(
        self, recipe: Recipe | Path | str, overrides: Sequence[str] = (), *, terminal: Terminal | None = None
    ) -> Result:
        return train(recipe, overrides, terminal=terminal)
