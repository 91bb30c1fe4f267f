"""Rows from a taskset of `verifiers` (version 1): tasks of a single turn, whose rewards need the model's reply alone.

Tried with verifiers 0.4.0.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from oncurve.types import OncurveError

Row = dict[str, Any]


def read_verifiers(name: str, size: int, options: Mapping[str, Any]) -> list[Row]:
    """The first ``size`` tasks of the taskset, in its order. ``options`` are its configuration.

    Columns: ``prompt`` (text, or messages), ``answer`` where the task has one, and ``verifiers``, by which the reward
    of that name finds the task again.

    Raises OncurveError if verifiers or the taskset is not installed, an option is refused, or a task is not of a single
    turn: one without a prompt, with tools, a judge or a set-up, or with a reward that needs a runtime.
    """
    if importlib.util.find_spec("verifiers") is None:
        raise OncurveError(f"verifiers:{name} needs the package verifiers: pip install 'oncurve[verifiers]'")
    from verifiers import v1  # noqa: PLC0415  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    from verifiers.v1.utils.generic import concrete_type  # noqa: PLC0415  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils.loaders import taskset_class  # noqa: PLC0415  # pyright: ignore[reportMissingImports]

    try:
        found = taskset_class(name)
    except (ImportError, TypeError, AttributeError, ValueError) as error:
        raise OncurveError(f"verifiers:{name}: {error}") from error
    try:
        settings = (concrete_type(found, v1.TasksetConfig) or v1.TasksetConfig).model_validate({**options, "id": name})
    except ValidationError as error:
        problem = error.errors()[0]
        raise OncurveError(f"data.options.{'.'.join(map(str, problem['loc']))}: {problem['msg']}") from error
    taskset = found(settings)
    if found.toolsets(settings):
        raise OncurveError(f"verifiers:{name} has tools; only tasks of a single turn can be trained on")
    rows = []
    for index, task in enumerate(itertools.islice(taskset, size)):
        reason = _more_than_a_reply(task, v1.Task)
        if reason:
            raise OncurveError(
                f"verifiers:{name}, task {index} {reason}; only tasks of a single turn, whose rewards need the reply "
                "alone, can be trained on"
            )
        rows.append(_row(name, options, index, task.data))
    if not rows:
        raise OncurveError(f"verifiers:{name} has no tasks")
    return rows


def _more_than_a_reply(task: Any, base: type) -> str | None:
    """What keeps a task from being scored by the reply alone."""
    kind = type(task)
    if not task.data.prompt:
        return "has no prompt"
    if task.NEEDS_CONTAINER or kind.setup is not base.setup or kind.finalize is not base.finalize:  # type: ignore[attr-defined]
        return "sets something up to run in"
    if kind.toolsets(task.config):
        return "has tools"
    if task.config.judges:
        return "has a judge"
    rewards = task.hooks("reward")
    if not rewards:
        return "has no reward"
    for reward in rewards:
        runtime = inspect.signature(reward).parameters.get("runtime")
        if runtime is not None and runtime.default is runtime.empty:
            return f"has the reward {reward.__name__!r}, which needs a runtime"
    return None


def _row(name: str, options: Mapping[str, Any], index: int, data: Any) -> Row:
    prompt = data.prompt
    if not isinstance(prompt, str):
        prompt = [{"role": message.role, "content": _text(message.content, name, index)} for message in prompt]
    if data.system_prompt:
        asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        prompt = [{"role": "system", "content": data.system_prompt}, *asked]
    row = {"prompt": prompt, "verifiers": {"name": name, "options": dict(options), "index": index}}
    answer = getattr(data, "answer", None)
    return {**row, "answer": answer} if isinstance(answer, str | int | float) else row


def _text(content: Any, name: str, index: int) -> str:
    if not isinstance(content, str):
        raise OncurveError(f"verifiers:{name}, task {index}: a message that is not plain text cannot be trained on")
    return content
