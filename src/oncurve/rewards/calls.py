"""Call reward functions on a batch, and what is done when one of them fails: smaller calls, and then a count."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from oncurve.rewards.functions import KEYWORDS, NamedReward, RewardError, accepted, said_by
from oncurve.rewards.loops import run
from oncurve.rewards.pool import FunctionFailed, FunctionLate, Supervised
from oncurve.rewards.values import MOST_FAILED
from oncurve.terminal import clean
from oncurve.types import Completion, Group, Message, OncurveError, Prompt

log = logging.getLogger(__name__)

Rows = Sequence[int]
Loggers = Callable[[NamedReward, Collection[int]], dict[str, Any]]
"""``log_extra`` and ``log_metric`` for a call of a function with those rows of the batch."""


@dataclass(frozen=True, slots=True)
class Called:
    """What came of one function."""

    values: Any
    """What it returned; after a failure a list of B, None where it failed."""
    sums: dict[str, float]
    """See ``Scores.sums``."""


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


def call_all(
    groups: Sequence[Group],
    rewards: Sequence[NamedReward],
    loggers: Loggers,
    forget: Callable[[NamedReward], None],
    trainer_state: Any,
) -> list[Called]:
    """Call every function once with the whole batch, and those that raise again with less.

    Raises:
        RewardError: a function failed for more than ``MOST_FAILED`` of the completions, or raised an ``OncurveError``.
    """
    batch = _Batch(groups, loggers, trainer_state)
    everything = range(batch.size)
    results: list[Any] = []
    seconds: list[float] = []
    waiting: dict[int, Awaitable[Any]] = {}
    with ThreadPoolExecutor(max_workers=max(1, len(rewards))) as threads:
        elsewhere = {
            index: threads.submit(_timed, reward, batch.keywords(reward, everything))
            for index, reward in enumerate(rewards)
            if isinstance(reward.function, Supervised)
        }
        try:
            for index, reward in enumerate(rewards):
                if index in elsewhere:
                    result, took = None, 0.0
                else:
                    result, took = _timed(reward, batch.keywords(reward, everything))
                results.append(result)
                seconds.append(took)
                if inspect.isawaitable(result):
                    waiting[index] = result
            finished = run(_gather(list(waiting.values()))) if waiting else []
        finally:
            for awaitable in waiting.values():
                if inspect.iscoroutine(awaitable):
                    awaitable.close()  # does nothing to one that has finished; else Python warns about it
        for index, future in elsewhere.items():
            results[index], seconds[index] = future.result()
    for index, (result, took) in zip(waiting, finished, strict=True):
        results[index] = result
        seconds[index] += took
    called: list[Called] = []
    for reward, result, took in zip(rewards, results, seconds, strict=True):
        began = time.monotonic()
        sums: dict[str, float] = {}
        if isinstance(result, _Raised):
            forget(reward)
            result, failed, late = _in_pieces(batch, reward, result.error)
            sums[f"rewards/{reward.name}/failed"] = float(failed)
            if late:
                sums[f"rewards/{reward.name}/timeout"] = float(late)
        sums[f"time/rewards/{reward.name}"] = took + time.monotonic() - began
        called.append(Called(result, sums))
    return called


def _in_pieces(batch: _Batch, reward: NamedReward, error: BaseException) -> tuple[list[Any], int, int]:
    """Values for the whole batch, from calls with one completion each, or one group; for how many these failed, and for
    how many of them because they did not end."""
    _stop_for_bad_data(reward, error)
    _tell_once(reward, error)
    values: list[Any] = [None] * batch.size
    failed = tried = late = 0
    for rows in batch.pieces(reward):
        result = _called(reward, batch.keywords(reward, rows))
        tried += len(rows)
        if isinstance(result, _Raised):
            _stop_for_bad_data(reward, result.error)
            failed += len(rows)
            late += len(rows) if isinstance(result.error, FunctionLate) and result.error.reason == "timeout" else 0
            if failed > MOST_FAILED * batch.size:
                raise _failed(reward, result.error, failed, tried, batch.size) from result.error
            continue
        found = result.tolist() if hasattr(result, "tolist") else result
        if not isinstance(found, list | tuple) or len(found) != len(rows):
            given = f"{len(found)} values" if isinstance(found, list | tuple) else f"a {type(found).__name__}"
            raise RewardError(
                f"reward {reward.title} returned {given} for {len(rows)} completions; return a list, one for each"
            )
        for row, value in zip(rows, found, strict=True):
            values[row] = value
    return values, failed, late


class _Batch:
    """The batch as keywords for calls with all of its rows or some."""

    def __init__(self, groups: Sequence[Group], loggers: Loggers, trainer_state: Any) -> None:
        self._groups, self._loggers, self._trainer_state = groups, loggers, trainer_state
        self._rows = [(group.prompt, completion) for group in groups for completion in group.completions]
        self.size = len(self._rows)

    def keywords(self, reward: NamedReward, rows: Rows) -> dict[str, Any]:
        """Built anew for each call, so that a function that sorts or shortens its lists does not confuse the next."""
        offered = {
            **_columns([self._rows[row] for row in rows], self._groups),
            "trainer_state": self._trainer_state,
            **self._loggers(reward, rows),
            **reward.options,
        }
        return accepted(reward.function, offered)

    def pieces(self, reward: NamedReward) -> list[Rows]:
        if not getattr(reward.function, "whole_group", False):
            return [[row] for row in range(self.size)]
        pieces: list[Rows] = []
        first = 0
        for group in self._groups:
            pieces.append(range(first, first + len(group.completions)))
            first += len(group.completions)
        return [piece for piece in pieces if piece]


def _timed(reward: NamedReward, keywords: dict[str, Any]) -> tuple[Any, float]:
    began = time.monotonic()
    result = _caught(lambda: reward.function(**keywords))
    return result, time.monotonic() - began


def _caught(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:  # noqa: BLE001  counted, or told by the caller
        return _Raised(error)


async def _gather(waiting: Sequence[Awaitable[Any]]) -> list[tuple[Any, float]]:
    async def finish(awaitable: Awaitable[Any]) -> tuple[Any, float]:
        began = time.monotonic()
        try:
            result = await awaitable
        except (Exception, SystemExit) as error:  # noqa: BLE001  counted, or told by the caller
            result = _Raised(error)
        return result, time.monotonic() - began

    return await asyncio.gather(*map(finish, waiting))


def _called(reward: NamedReward, keywords: dict[str, Any]) -> Any:
    result = _caught(lambda: reward.function(**keywords))
    return run(_gather([result]))[0][0] if inspect.isawaitable(result) else result


_told: list[Callable[..., Any]] = []


def _tell_once(reward: NamedReward, error: BaseException) -> None:
    """The traceback, of the first failure of each function."""
    if any(reward.function is function for function in _told):
        return
    _told.append(reward.function)
    if isinstance(error, FunctionLate):
        said, trace = f"gave no answer: {error}", error.trace
    else:
        said = "raised"
        trace = error.trace if isinstance(error, FunctionFailed) else "".join(traceback.format_exception(error))
    log.warning(
        "reward %r %s; what it cannot score is left unscored. The first time:\n%s",
        reward.name,
        said,
        clean(trace).rstrip(),
    )


def _stop_for_bad_data(reward: NamedReward, error: BaseException) -> None:
    if isinstance(error, OncurveError):
        raise RewardError(f"reward {reward.name!r} failed: {said_by(error)}") from error


def _failed(reward: NamedReward, error: BaseException, failed: int, tried: int, size: int) -> RewardError:
    most = "" if failed == tried else f" for {failed} of the first {tried} completions of {size}"
    return RewardError(f"reward {reward.name!r} failed{most}: {said_by(error)}")


def _columns(rows: Sequence[tuple[Prompt, Completion]], groups: Sequence[Group]) -> dict[str, list[Any]]:
    """Those rows of the batch as keywords: lists of one value each. A column that any group has is there."""
    names = dict.fromkeys(name for group in groups for name in group.prompt.columns if name not in KEYWORDS)
    columns: dict[str, list[Any]] = {name: [prompt.columns.get(name) for prompt, _ in rows] for name in names}
    columns["prompts"] = [_raw(prompt.raw) for prompt, _ in rows]
    columns["prompt_texts"] = [prompt.text for prompt, _ in rows]
    columns["completions"] = [
        completion.text if isinstance(prompt.raw, str) else [{"role": "assistant", "content": completion.text}]
        for prompt, completion in rows
    ]
    columns["completion_ids"] = [list(completion.token_ids) for _, completion in rows]
    return columns


def _raw(raw: str | Sequence[Message]) -> str | list[Message]:
    return raw if isinstance(raw, str) else [dict(message) for message in raw]
