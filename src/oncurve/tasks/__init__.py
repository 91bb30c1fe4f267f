"""Tasks that are generated from a seed: no file, no download, as many rows as wanted."""

from __future__ import annotations

import difflib

from oncurve.tasks import chain, letters
from oncurve.tasks.base import Row, Split, Task, need_options
from oncurve.types import OncurveError

TASKS: dict[str, Task] = {each.name: each for each in (letters.TASK, chain.TASK)}

__all__ = ["TASKS", "Row", "Split", "Task", "need_options", "task"]


def task(name: str) -> Task:
    """The generated task of that name. Raises OncurveError, naming the nearest, if there is none."""
    if name not in TASKS:
        nearest = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)[0]
        raise OncurveError(f"there is no task {name!r}; did you mean {nearest!r}? There are: {', '.join(TASKS)}")
    return TASKS[name]
