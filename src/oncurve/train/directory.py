"""Whose run directory it is: a run goes on with the recipe it began with, in one process at a time, and in no directory
that holds anything else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

import oncurve
from oncurve.config import MAY_CHANGE_ON_RESUME, Recipe
from oncurve.recipe import differences, dump_toml
from oncurve.runlog import RunLog, RunLogError, locked, refuse_if_locked
from oncurve.types import OncurveError

ELSE_A_NAME = "give this run a name of its own (--run.name NAME)"


def check_run_directory(recipe: Recipe, run_dir: Path) -> None:
    """Raise OncurveError if ``recipe`` can neither begin nor go on in ``run_dir``. Changes nothing there, and needs no
    model: so it is told at once."""
    refuse_if_locked(run_dir)
    try:
        if (run_dir / "run.sqlite").exists():
            _refuse_another_recipe(recipe, run_dir)
        else:
            _refuse_what_is_no_run(recipe, run_dir)
    except OSError as error:
        raise OncurveError(
            f"the run directory {run_dir} cannot be used: {error.strerror}; set run.dir or run.name to another"
        ) from error


@contextmanager
def open_run(recipe: Recipe, run_dir: Path) -> Iterator[RunLog]:
    """The run's record, new or as it was left. No other process can go on with the run meanwhile."""
    with locked(run_dir):
        check = _refuse_another_recipe if (run_dir / "run.sqlite").exists() else _refuse_what_is_no_run
        check(recipe, run_dir)  # once more: another process may have begun a run since, and come to its end
        with _record(recipe, run_dir) as log:
            yield log


def _record(recipe: Recipe, run_dir: Path) -> RunLog:
    if not (run_dir / "run.sqlite").exists():
        return RunLog.create(run_dir, dump_toml(recipe), recipe.model_dump_json(), oncurve.__version__)
    log = RunLog.open(run_dir)
    log.set_recipe(dump_toml(recipe), recipe.model_dump_json())
    return log


def _refuse_another_recipe(recipe: Recipe, run_dir: Path) -> None:
    """Options that change nothing but speed may differ, and before anything was trained all may."""
    try:
        with RunLog.open(run_dir, readonly=True) as log:
            begun, version = log.get_meta("recipe") or "", log.get_meta("oncurve")
            untouched = not any(log.metric_names(stage) for stage in ("sft", "grpo", "reward_model"))
    except RunLogError as error:
        raise OncurveError(f"{error}\nnothing was changed; put back a copy of that file, or {ELSE_A_NAME}") from error
    if untouched and not (any((run_dir / "checkpoints").glob("**/step-*")) or (run_dir / "iterate").exists()):
        return
    try:
        there = Recipe.model_validate_json(begun)
    except ValidationError as error:
        raise OncurveError(
            f"{run_dir / 'run.sqlite'}: the recipe it was begun with, by Oncurve {version}, is none that Oncurve "
            f"{oncurve.__version__} can read; go on with that version, or {ELSE_A_NAME}"
        ) from error
    may_change = MAY_CHANGE_ON_RESUME | ({"grpo.iterations"} if _longer(there, recipe) else set())
    changed = [(key, old, new) for key, old, new in differences(there, recipe) if key not in may_change]
    if changed:
        listed = "\n".join(f"  {key}: {old!r} there, {new!r} here{_why(key, there)}" for key, old, new in changed)
        raise OncurveError(
            f"{run_dir} belongs to a run with another recipe:\n{listed}\n{ELSE_A_NAME}, or put these back to go on "
            "with that run"
        )


def _longer(there: Recipe, here: Recipe) -> bool:
    """There are to be more iterations, and nothing that was done so far depends on their number."""
    return (
        there.grpo is not None
        and here.grpo is not None
        and there.grpo.iterations < here.grpo.iterations
        and (there.grpo.schedule == "constant")
    )


def _why(key: str, there: Recipe) -> str:
    if key != "grpo.iterations" or there.grpo is None:
        return ""
    if there.grpo.schedule == "constant":
        return " (there can be more of them later, and not fewer)"
    return (
        f" (the {there.grpo.schedule} schedule of the learning rate runs over all of them, so that the steps that were "
        "made would have been others; with a constant one there can be more later)"
    )


def _refuse_what_is_no_run(recipe: Recipe, run_dir: Path) -> None:
    """Nothing that is there may be written over, nor taken for this run's own."""
    if run_dir.exists() and not run_dir.is_dir():
        raise OncurveError(f"{run_dir} is a file, and a run needs a directory; {ELSE_A_NAME}, or set run.dir")
    for part in ("checkpoints", "models"):
        if (run_dir / part).exists():
            raise OncurveError(
                f"{run_dir} has {part} and no run.sqlite, the record that belongs to them; put it back, move the "
                f"directory away, or {ELSE_A_NAME}"
            )
    config = run_dir / "config.toml"
    if config.exists() and (not config.is_file() or config.read_bytes() != dump_toml(recipe).encode()):
        # The same one is left by a process that was killed between writing it and beginning the record.
        raise OncurveError(f"{config} is not this run's, and would be written over; move it away, or {ELSE_A_NAME}")
    nearest = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise OncurveError(f"the run directory {run_dir} cannot be made: {nearest} is a file; set run.dir to another")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise OncurveError(f"the run directory {run_dir} cannot be written: no permission in {nearest}; set run.dir")
