"""Runs in the workers of ``oncurve.rewards.verifiers`` alone: verifiers takes long to be imported. Done once, and
workers are forked from there."""

from __future__ import annotations

import asyncio
import itertools
import json
from functools import lru_cache
from types import ModuleType
from typing import Any


def _imported() -> ModuleType:
    import verifiers.v1  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    import verifiers.v1.utils.generic  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    import verifiers.v1.utils.loaders  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    return verifiers.v1


_V1 = _imported()


@lru_cache(maxsize=8)
def _taskset(name: str, options: str) -> Any:
    kind = _V1.utils.loaders.taskset_class(name)
    settings = _V1.utils.generic.concrete_type(kind, _V1.TasksetConfig) or _V1.TasksetConfig
    return kind(settings.model_validate({**json.loads(options), "id": name}))


@lru_cache(maxsize=100_000)
def _task(name: str, options: str, index: int) -> Any:
    return next(itertools.islice(_taskset(name, options), index, None))


def score(item: list[Any]) -> float:
    """``[name, options as JSON, index, reply]``: the sum of the task's rewards, each times its weight."""
    name, options, index, reply = item
    task = _task(name, options, index)
    given = task.data.prompt
    asked = [_V1.UserMessage(content=given)] if isinstance(given, str) else list(given)
    if task.data.system_prompt:
        asked = [_V1.SystemMessage(content=task.data.system_prompt), *asked]
    nodes = [
        _V1.MessageNode(parent=at - 1 if at else None, message=message, sampled=at == len(asked))
        for at, message in enumerate([*asked, _V1.AssistantMessage(content=reply)])
    ]
    trace = _V1.Trace(
        task=_V1.TraceTask(type=type(task).__name__, data=task.data),
        agent=_V1.AgentInfo(config=_V1.AgentConfig()),
        nodes=nodes,
        is_completed=True,
        ok=True,
    )
    asyncio.run(task.score(trace, None))
    unscored = [reward for reward, value in trace.rewards.items() if value is None]
    if unscored:
        raise ValueError(f"the reward {unscored[0]!r} gave no score")
    return float(trace.reward)
