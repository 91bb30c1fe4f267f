"""Tasks that are generated from a seed: no file, no download, as many rows as wanted."""

from __future__ import annotations

from oncurve.recipe import need_task
from oncurve.tasks import chain, letters
from oncurve.tasks.base import NotEnough, Row, Split, Task, need_options

TASKS: dict[str, Task] = {each.name: each for each in (letters.TASK, chain.TASK)}

__all__ = ["TASKS", "NotEnough", "Row", "Split", "Task", "need_options", "task"]


def task(name: str) -> Task:
    """The generated task of that name. Raises OncurveError, naming the nearest, if there is none."""
    need_task(name)
    return TASKS[name]
