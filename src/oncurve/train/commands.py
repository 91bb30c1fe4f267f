"""What ``oncurve eval`` and ``oncurve sample`` do, also as functions."""

from __future__ import annotations

import re
from pathlib import Path

from oncurve.config import Data, Model, Recipe, Sampling
from oncurve.data.prompts import encode_prompt
from oncurve.terminal import Terminal, clean
from oncurve.train.evaluate import Evaluation, evaluations
from oncurve.train.setup import load_model, make_engine, pick_device, prepare, run_directory
from oncurve.types import Group, OncurveError, Prompt, SamplingParams


def trained_model(recipe: Recipe) -> Path | None:
    """The newest model that a run of ``recipe`` has finished, if any."""
    models = run_directory(recipe) / "models"
    return next((models / stage for stage in ("grpo", "sft") if (models / stage / "config.json").exists()), None)


def evaluate_command(recipe: Recipe, model_path: str | None, terminal: Terminal) -> list[Evaluation]:
    """Evaluate a model on the held-out prompts of ``recipe``: ``model_path`` if given, else what the recipe's run has
    trained, else its ``model.path``. Prints a table."""
    if recipe.data.eval_size == 0:
        raise OncurveError("data.eval_size is 0: this recipe holds out no prompts to evaluate on")
    path = model_path or str(trained_model(recipe) or recipe.model.path)
    if path != recipe.model.path:  # another model brings its own tokenizer
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"path": path, "tokenizer": None})})
    terminal.say(f"evaluating {path}")
    parts = prepare(recipe, terminal, ())
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
    """Print ``n`` completions of ``prompt``. ``data`` says how prompts are rendered (system prompt, suffix, chat)."""
    if re.search("[\ud800-\udfff]", prompt):  # how Python stands for bytes of the command line that are no text
        raise OncurveError("the prompt is not text in the encoding of this system")
    recipe = Recipe(model=model, data=data or Data(train="-"), sampling=Sampling(max_new_tokens=max_new_tokens))
    tokenizer, lm = load_model(recipe, pick_device("auto"))
    rendered, ids = encode_prompt(
        tokenizer, prompt, recipe.data.system_prompt, recipe.data.suffix, chat=recipe.data.chat
    )
    if lm.context is not None:
        max_new_tokens = max(1, min(max_new_tokens, lm.context - len(ids)))
    engine = make_engine(lm, tokenizer, max_rows=n)
    [group] = engine.sample(
        [Prompt(0, prompt, rendered, tuple(ids))],
        n,
        SamplingParams(max_new_tokens, temperature),
        seed=seed,
        iteration=0,
    )
    for number, completion in enumerate(group.completions, 1):
        if n > 1:
            terminal.say(f"--- {number} of {n}")
        terminal.say(clean(completion.text) + (" [cut at max_new_tokens]" if completion.truncated else ""))
    return group
