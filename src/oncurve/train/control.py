"""The control of an SFT + GRPO run: all of its training time spent on supervised fine-tuning alone."""

from __future__ import annotations

from pathlib import Path

from oncurve.config import Recipe
from oncurve.runlog import RunLog
from oncurve.terminal import Terminal
from oncurve.train.commands import evaluate_command
from oncurve.train.evaluate import Evaluation
from oncurve.train.run import run
from oncurve.train.setup import run_directory
from oncurve.types import OncurveError


def training_seconds(run_dir: Path) -> tuple[float, float, int]:
    """Seconds in SFT steps, seconds in GRPO iterations, and the number of SFT steps. Evaluation, loading and saving are
    in neither."""
    with RunLog.open(run_dir, readonly=True) as log:
        sft = [value for _, _, value in log.series("time/step", "sft")]
        grpo = [value for _, _, value in log.series("step_time", "grpo")]
    return sum(sft), sum(grpo), len(sft)


def control_recipe(recipe: Recipe) -> Recipe:
    """``recipe`` without GRPO, and with as many SFT steps as its finished run had time for; the schedule is stretched
    over all of them."""
    if recipe.sft is None:
        raise OncurveError("the control is more supervised fine-tuning, and this recipe has no [sft] section")
    sft, grpo, steps = training_seconds(run_directory(recipe))
    return recipe.model_copy(
        update={
            "run": recipe.run.model_copy(update={"name": f"{recipe.run.name}-control"}),
            "sft": recipe.sft.model_copy(update={"steps": round(steps * (sft + grpo) / sft)}),
            "grpo": None,
        }
    )


def run_control(recipe: Recipe, terminal: Terminal) -> list[Evaluation]:
    """Train the control of ``recipe``'s finished run from scratch; its evaluations on the same held-out prompts."""
    longer = control_recipe(recipe)
    assert longer.sft is not None
    terminal.say(f"control: {longer.sft.steps} steps of supervised fine-tuning, in the time that SFT and GRPO took")
    run(longer, terminal=terminal)
    return evaluate_command(longer, None, terminal)
