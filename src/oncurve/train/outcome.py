"""What a run has reached: its products, and the held-out measures before and after it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from oncurve.config import Recipe
from oncurve.runlog import EvalRow, RunLog
from oncurve.terminal import Terminal
from oncurve.train.evaluate import Estimate, Evaluation
from oncurve.train.grpo import Iteration

Estimates = Mapping[str, Mapping[str, EvalRow]]
"""``{"greedy": {name: EvalRow}, "sampled": {...}}``; empty without evaluation."""


@dataclass(frozen=True)
class Result:
    """Where a finished run's products are, and what it reached."""

    run_dir: Path
    model_dir: Path
    """A plain transformers directory."""
    before: Estimates
    """Held-out estimates before GRPO."""
    after: Estimates
    seconds: float
    """Time the run has taken, all its sittings together."""


def result_of(recipe: Recipe, log: RunLog, stages: tuple[str, ...], seconds: float) -> Result:
    """The result of a run that has done its ``stages``."""
    last = recipe.grpo.iterations if recipe.grpo and "grpo" in stages else 0
    return Result(
        log.run_dir, log.run_dir / "models" / stages[-1], estimates_at(log, 0), estimates_at(log, last), seconds
    )


def already_finished(recipe: Recipe, run_dir: Path, stages: tuple[str, ...]) -> Result | None:
    """The result of a run, known to be this recipe's, that has nothing left to do; None if it has."""
    if not (run_dir / "run.sqlite").exists() or not (run_dir / "models" / stages[-1] / "config.json").exists():
        return None
    with RunLog.open(run_dir, readonly=True) as log:
        last = log.last_position(stages[-1])
        if log.get_meta("status") != "finished" or last is None:
            return None
        iteration, step = last
        if stages[-1] == "grpo":
            done = recipe.grpo is not None and iteration == recipe.grpo.iterations
        else:
            done = step == log.get_number("sft_steps")
        return result_of(recipe, log, stages, float(log.get_meta("seconds") or math.nan)) if done else None


def estimates_at(log: RunLog, iteration: int) -> Estimates:
    found: dict[str, dict[str, EvalRow]] = {}
    for row in log.eval_rows():
        if row.iteration == iteration:
            found.setdefault(row.kind, {})[row.name] = row
    return found


def show_result(result: Result, terminal: Terminal) -> None:
    """Print the held-out measures before and after GRPO side by side; and if GRPO has changed nothing at all, that."""
    rows = [
        [f"{kind} {name}", show_estimate(before), show_estimate(after), before.n]
        for kind, measures in result.before.items()
        for name, before in measures.items()
        if (after := result.after.get(kind, {}).get(name)) is not None
    ]
    if rows and result.after != result.before:
        terminal.table("held-out, with 95% intervals", ["", "before GRPO", "after GRPO", "prompts"], rows)
    with RunLog.open(result.run_dir, readonly=True) as log:
        if log.last_position("grpo") is not None and not log.series("loss", "grpo", last=1):
            terminal.say("warning: GRPO has changed nothing: every update of every iteration was skipped")


def show_estimate(estimate: EvalRow | Estimate) -> str:
    """``0.120 (0.056 to 0.238)``."""
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


def headline(done: Iteration, wanted: int, evaluated: list[Evaluation], main: str) -> dict[str, float | str]:
    """The figures of the progress line, after one iteration that ``wanted`` so many groups."""
    metrics = done.metrics
    shown: dict[str, float | str] = {"reward": metrics["reward"], "length": metrics["completions/mean_length"]}
    kept = metrics.get("dynamic_sampling/kept", wanted)
    if kept < wanted:
        shown["groups kept"] = f"{kept:.0f} of {wanted}"
    if "kl" in metrics:
        shown["kl"] = metrics["kl"]
    for evaluation in evaluated:
        if evaluation.kind == "greedy" and main in evaluation.estimates:
            shown[f"held-out {main}"] = evaluation.estimates[main].value
    return shown
