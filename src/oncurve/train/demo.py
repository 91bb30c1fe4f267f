"""``oncurve demo``: the embedded default, told as it happens, and the control that gives the same time to more SFT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from oncurve.config import Recipe
from oncurve.tasks import Task, task
from oncurve.terminal import Terminal
from oncurve.train.commands import sample_command
from oncurve.train.control import run_control, training_seconds
from oncurve.train.evaluate import Evaluation
from oncurve.train.outcome import Result, show_estimate
from oncurve.train.run import run
from oncurve.types import OncurveError


@dataclass(frozen=True)
class DemoResult:
    result: Result
    control: list[Evaluation] | None
    """The control's held-out evaluations: greedy, then sampled."""


def run_demo(recipe: Recipe, control: bool, terminal: Terminal) -> DemoResult:
    """Run ``recipe``, whose data is an embedded task, print what was learned and, if asked, the control beside it."""
    if not recipe.data.train.startswith("task:") or recipe.sft is None or recipe.grpo is None:
        raise OncurveError("the demo needs an embedded task as data.train, an [sft] and a [grpo] section")
    embedded = task(recipe.data.train.removeprefix("task:"))
    _introduce(embedded, recipe, terminal)
    result = run(recipe, terminal=terminal)
    measured = run_control(recipe, terminal) if control else None
    _summarise(recipe, result, measured, terminal)
    for row in embedded.showcase:
        _show(recipe, result, row, terminal)
    return DemoResult(result, measured)


def _introduce(embedded: Task, recipe: Recipe, terminal: Terminal) -> None:
    assert recipe.sft is not None
    assert recipe.grpo is not None
    sizes = embedded.check(recipe.run.seed)
    tutor = embedded.tutor_score(embedded.demonstrations(recipe.sft.size, recipe.run.seed, **recipe.data.options))
    completions = recipe.grpo.prompts_per_iteration * recipe.grpo.group_size
    terminal.say(
        f"The task: {embedded.showcase[0]['prompt']}\n"
        f"1. A new model of a quarter of a million parameters imitates {recipe.sft.size} worked examples. They are\n"
        "   flawed on purpose: the tutor knows how it is done, but is careless in most of them and often leaves out\n"
        f"   the box. The tutor's own score is {tutor['right_and_boxed']:.2f} (right and boxed). With clean examples\n"
        "   imitation alone would do, and there would be nothing left for rewards to mend.\n"
        f"2. GRPO is to mend it: {recipe.grpo.iterations} iterations, each samples {completions} answers\n"
        f"   ({recipe.grpo.prompts_per_iteration} questions x {recipe.grpo.group_size}), scores them by rule, and "
        "moves the model towards those that did\n   better than their own group.\n"
        "No question is in two splits (checked): " + ", ".join(f"{name} {n}" for name, n in sizes.items()) + ".\n"
        "Measured: accuracy (right and boxed), format (one think block, then one box), chain_right (every step of the\n"
        "working is right), right_unboxed (right, boxed or not), on held-out questions, greedy and sampled.\n"
    )


def _summarise(recipe: Recipe, result: Result, control: list[Evaluation] | None, terminal: Terminal) -> None:
    sft, grpo, _ = training_seconds(result.run_dir)
    columns = ["", f"after SFT ({sft:.0f} s)", f"after GRPO (+{grpo:.0f} s)"]
    if control is not None:
        columns.append(f"control: SFT alone ({sft + grpo:.0f} s)")
    rows: list[list[str]] = []
    for kind in ("greedy", "sampled"):
        for name, before in result.before.get(kind, {}).items():
            row = [f"{kind} {name}", show_estimate(before), show_estimate(result.after[kind][name])]
            if control is not None:
                found = next(each for each in control if each.kind == kind).estimates.get(name)
                row.append(show_estimate(found) if found else "-")
            rows.append(row)
    terminal.say()
    terminal.table(f"{recipe.data.eval_size} unseen questions, with 95% intervals", columns, rows)


def _show(recipe: Recipe, result: Result, row: dict[str, Any], terminal: Terminal) -> None:
    for title, stage in (("before", "sft"), ("after", "grpo")):
        terminal.say(f"\n{row['prompt']}  ({title} GRPO, greedy)")
        sample_command(
            recipe.model.model_copy(update={"path": str(result.run_dir / "models" / stage)}),
            row["prompt"],
            terminal,
            temperature=0.0,
            max_new_tokens=recipe.sampling.max_new_tokens,
        )
    terminal.say()
