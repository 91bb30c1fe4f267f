"""What runs there are, and how far each has come."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from oncurve.runlog.log import RunLog
from oncurve.runlog.rows import EvalRow
from oncurve.runlog.schema import DATABASE, RunLogError

UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class RunInfo:
    """One run directory at a glance. What a run has not reached yet is None."""

    name: str
    path: Path
    status: str
    """``running`` (or killed while it was), ``stopped``, ``finished``, or ``unreadable``."""
    problem: str | None = None
    """Why it is unreadable."""
    created: str | None = None
    """UTC, ISO 8601."""
    stage: str | None = None
    """The last stage with metrics: ``sft``, ``grpo`` or ``reward_model``."""
    iteration: int | None = None
    """GRPO iterations done; 0 in SFT."""
    step: int | None = None
    """Optimizer steps done in ``stage``."""
    reward: float | None = None
    """Mean reward of the last iteration."""
    accuracy: float | None = None
    """The last greedy held-out accuracy (or, without one, the recipe's first reward function)."""


def list_runs(directory: Path | str) -> list[RunInfo]:
    """The runs in ``directory``, by name. One that is damaged is listed with the reason, never raised."""
    directory = Path(directory)
    if not directory.is_dir():
        return []
    candidates = sorted(path for path in directory.iterdir() if path.is_dir())
    return [_info(path) for path in candidates if (path / DATABASE).exists() or (path / "config.toml").exists()]


def _info(path: Path) -> RunInfo:
    try:
        with RunLog.open(path, readonly=True) as log:
            stage, position = None, None
            for candidate in ("reward_model", "sft", "grpo"):
                if (found := log.last_position(candidate)) is not None:
                    stage, position = candidate, found
            rewards = log.series("reward", "grpo", last=1)
            greedy = [row for row in log.eval_rows() if row.kind == "greedy"]
            main = main_measure(greedy)
            return RunInfo(
                name=path.name,
                path=path,
                status=log.get_meta("status") or "unknown",
                created=log.get_meta("created"),
                stage=stage,
                iteration=position[0] if position else None,
                step=position[1] if position else None,
                reward=rewards[-1][2] if rewards else None,
                accuracy=next((row.value for row in reversed(greedy) if row.name == main), None),
            )
    except (RunLogError, OSError) as error:
        return RunInfo(path.name, path, UNREADABLE, problem=str(error))


def main_measure(rows: list[EvalRow]) -> str | None:
    """The name that says whether an answer is right: ``accuracy`` if it was measured, else the first (evaluations list
    the reward functions first, in the recipe's order)."""
    names = [row.name for row in rows if not row.name.startswith(("time/", "pass@"))]
    return "accuracy" if "accuracy" in names else next(iter(names), None)
