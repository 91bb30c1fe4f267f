"""The reward ``verifiers``: what a task of verifiers (version 1) says of a single reply, in processes that can be
killed."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from oncurve.rewards.extract import completion_text
from oncurve.rewards.pool import Outcome, Pool
from oncurve.types import OncurveError

SECONDS = 20.0
"""Processor time for one reply."""


def verifiers_reward(
    completions: Sequence[str | Sequence[Mapping[str, Any]]],
    verifiers: Sequence[Mapping[str, Any] | None],
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """The sum of the task's own rewards, each times its weight, for data from ``verifiers:NAME``.

    The rewards are the taskset's code and run with your rights, in processes of their own. A reply for which one
    raises, or goes over 20 s of processor time or 4 GB, is unscored and counted.

    Raises:
        OncurveError: verifiers is not installed, or scoring failed for every reply; the first error is told.
    """
    if importlib.util.find_spec("verifiers") is None:
        raise OncurveError("the reward `verifiers` needs the package verifiers: pip install 'oncurve[verifiers]'")
    items = [
        [task["name"], json.dumps(task.get("options") or {}, sort_keys=True), task["index"], completion_text(reply)]
        for reply, task in zip(completions, verifiers, strict=True)
        if task is not None
    ]
    outcomes = iter(_pool().map(items))
    found = [None if task is None else next(outcomes) for task in verifiers]
    scores = [None if outcome is None else _score(outcome) for outcome in found]
    failed = [outcome for outcome, score in zip(found, scores, strict=True) if outcome is not None and score is None]
    if failed and len(failed) == len(items):
        raise OncurveError(f"the rewards of verifiers failed for every reply: {failed[0].error or failed[0].status}")
    if log_extra is not None:
        log_extra("verifiers/status", [outcome and outcome.status for outcome in found])
    if log_metric is not None:
        log_metric("verifiers/failed", float(len(failed)))
    return scores


@lru_cache(maxsize=1)
def _pool() -> Pool:
    return Pool(
        "oncurve.rewards.verifiers_scorer:score", seconds=SECONDS, memory_mb=4096, hold="no", start_seconds=300.0
    )


def _score(outcome: Outcome) -> float | None:
    if outcome.status != "ok" or not isinstance(outcome.value, int | float) or not math.isfinite(outcome.value):
        return None
    return float(outcome.value)
