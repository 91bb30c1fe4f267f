"""What ``oncurve eval``, ``oncurve sample`` and ``oncurve conform`` do, also as functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

from oncurve.config import Data, Model, Recipe, Sampling
from oncurve.data.prompts import encode_prompt
from oncurve.recipe import located
from oncurve.terminal import Terminal, clean
from oncurve.train.conform import Check, conform
from oncurve.train.evaluate import Evaluation, evaluations
from oncurve.train.memory import memory_explained
from oncurve.train.setup import load_model, make_engine, pick_device, prepare
from oncurve.train.step import check_sampled
from oncurve.types import Group, OncurveError, Prompt, SamplingParams


def evaluate_command(recipe: Recipe, model_path: str | None, terminal: Terminal) -> list[Evaluation]:
    """Evaluate a model on the held-out prompts of ``recipe``: ``model_path`` if given, else what the recipe's run has
    trained, else its ``model.path``. Prints a table."""
    recipe = with_model(recipe, model_path, "eval")
    if recipe.data.eval_size == 0:
        raise OncurveError("data.eval_size is 0: this recipe holds out no prompts to evaluate on")
    terminal.say(f"evaluating {recipe.model.path}")
    with memory_explained(recipe, "loading"):
        parts = prepare(recipe, terminal, ())
    with memory_explained(recipe, "evaluating"), finite(recipe.model.path, recipe.model):
        found = evaluations(parts, sampled=True)
    terminal.table(
        f"held-out, {len(parts.eval_prompts)} prompts",
        ["measure", "kind", "value", "95% interval"],
        [
            [e.name, evaluation.kind, f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}"]
            for evaluation in found
            for e in evaluation.estimates.values()
        ],
    )
    return found


def with_model(recipe: Recipe, model_path: str | None, command: str) -> Recipe:
    """``recipe`` with the model that ``oncurve COMMAND`` is about: ``model_path`` if given, else what its run has
    trained, else its own. Raises OncurveError for a model that is in no recipe and so has no prompts."""
    if recipe.data.train == "-":
        verb = {"eval": "evaluate it on"}.get(command, "give it")
        raise OncurveError(
            f"{recipe.model.path} is taken for a model, and there are no prompts to {verb}: give them too "
            f"(--data.train FILE), or a recipe and this model (oncurve {command} RECIPE --model MODEL)"
        )
    path = model_path or located(recipe)[1] or recipe.model.path
    if path == recipe.model.path:
        return recipe
    # another model brings its own tokenizer
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": path, "tokenizer": None})})


def sample_command(
    model: Model,
    prompt: str,
    terminal: Terminal,
    *,
    n: int = 1,
    temperature: float = 1.0,
    max_new_tokens: int = 256,
    seed: int = 0,
    data: Data | None = None,
) -> Group:
    """Print ``n`` completions of ``prompt``, or the greedy one. ``data`` says how prompts are rendered (system prompt,
    suffix, chat)."""
    if re.search("[\ud800-\udfff]", prompt):  # how Python stands for bytes of the command line that are no text
        raise OncurveError("the prompt is not text in the encoding of this system")
    recipe = Recipe(model=model, data=data or Data(train="-"), sampling=Sampling(max_new_tokens=max_new_tokens))
    with memory_explained(recipe, "loading"):
        tokenizer, lm = load_model(recipe, pick_device("auto"))
    rendered, ids = encode_prompt(
        tokenizer, prompt, recipe.data.system_prompt, recipe.data.suffix, chat=recipe.data.chat
    )
    if lm.context is not None:
        max_new_tokens = max(1, min(max_new_tokens, lm.context - len(ids)))
    if temperature == 0.0 and n > 1:
        terminal.say("greedy (temperature 0) gives the same completion every time; here it is, once")
        n = 1
    engine = make_engine(lm, tokenizer, max_rows=n)
    with memory_explained(recipe, "sampling"), finite(model.path, model):
        [group] = engine.sample(
            [Prompt(0, prompt, rendered, tuple(ids))],
            n,
            SamplingParams(max_new_tokens, temperature),
            seed=seed,
            iteration=0,
        )
        check_sampled([group])
    for number, completion in enumerate(group.completions, 1):
        if n > 1:
            terminal.say(f"--- {number} of {n}")
        terminal.say(clean(completion.text) + (" [cut at max_new_tokens]" if completion.truncated else ""))
    return group


@contextmanager
def finite(path: str, model: Model) -> Iterator[None]:
    """Name the model whose log-probabilities are no numbers."""
    try:
        yield
    except FloatingPointError as error:
        precision = "" if model.dtype == "float32" else f", or model.dtype = {model.dtype} is too narrow for them"
        raise OncurveError(
            f"{path} cannot be sampled from: {error}; its weights are no good (training diverged?){precision}"
        ) from error


def conform_command(
    recipe: Recipe, terminal: Terminal, *, bound: float | None = None, float64: bool = False
) -> list[Check]:
    """Take one step of ``recipe`` in ways that must give the same gradient, and print how far each is off.

    ``bound`` takes the place of the bounds for the precision of the weights. ``float64`` computes in double precision,
    where rounding is out of the question. Trains nothing and writes nothing. All is well if every check has ``passed``.
    """
    if bound is not None and not (bound > 0 and math.isfinite(bound)):
        raise OncurveError(f"bound = {bound}: must be a finite number above 0, for example 1e-3")
    parts = prepare(recipe, terminal, ())
    if float64:
        parts.lm.module.double()
    try:
        checks = conform(parts, bound)
    except FloatingPointError as error:
        hint = "; some families do so in double precision alone: leave out --float64" if float64 else ""
        raise OncurveError(f"the model computes what is not a number: {error}{hint}") from error
    of = [
        recipe.model.path,
        *([f"preset {recipe.grpo.preset}"] if recipe.grpo else []),
        *(["[sft]"] if recipe.sft else []),
    ]
    terminal.table(
        f"must be the same ({', '.join(of)})",
        ["check", "error", "unit", "bound", "verdict"],
        [[check.name, _error(check.error), check.unit, f"{check.bound:g}", check.verdict] for check in checks],
    )
    for hint, names in _hints(checks).items():
        terminal.say(f"{hint} ({', '.join(names)})")
    failed = sum(not check.passed for check in checks)
    terminal.say(f"{failed} of {len(checks)} checks DIFFER" if failed else "the gradient does not depend on the cut")
    return checks


def _error(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def _hints(checks: list[Check]) -> dict[str, list[str]]:
    """What the checks that differ may mean, with their names."""
    hints: dict[str, list[str]] = {}
    for check in checks:
        if not check.same:
            hints.setdefault(check.hint, []).append(check.name)
    return hints
