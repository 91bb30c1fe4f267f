"""Tasks that are generated from a seed: no file, no download, as many rows as wanted."""

from __future__ import annotations

from oncurve.recipe import need_task
from oncurve.tasks import chain, countdown, functions, letters, strings
from oncurve.tasks.base import NotEnough, Row, Split, Task, need_options

_MODULES = (letters, chain, countdown, strings, functions)
TASKS: dict[str, Task] = {module.TASK.name: module.TASK for module in _MODULES}

__all__ = ["TASKS", "NotEnough", "Row", "Split", "Task", "need_options", "task"]


def task(name: str) -> Task:
    """The generated task of that name. Raises OncurveError, naming the nearest, if there is none."""
    need_task(name)
    return TASKS[name]
