"""Runs in the workers of ``oncurve.rewards.gym`` alone: importing reasoning-gym takes seconds, and what its scorers
call cannot be trusted. It is imported once, and workers are forked from there."""

from __future__ import annotations

import ast
import contextlib
import io
from functools import lru_cache
from typing import Any


def _registered() -> dict[str, tuple[Any, Any]]:
    """Data sets and their configurations, by name."""
    with contextlib.redirect_stdout(io.StringIO()):  # some of its modules print
        from reasoning_gym.factory import DATASETS  # noqa: PLC0415
    return DATASETS


_DATASETS = _registered()


@lru_cache(maxsize=64)
def _dataset(name: str, options: str) -> Any:
    dataset, config = _DATASETS[name]
    return dataset(config=config(**ast.literal_eval(options)))


def score(item: list[str]) -> float:
    """``[name, options, entry, answer]``, of which options and entry are as Python writes them."""
    name, options, entry, answer = item
    return float(_dataset(name, options).score_answer(answer, ast.literal_eval(entry)))
