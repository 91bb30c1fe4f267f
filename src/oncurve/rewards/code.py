"""Rewards for programs that a model wrote: do they pass the tests, and how fast are they? Run in a sandbox only."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from oncurve.rewards.code_tests import Grade, Test, grade, read_tests, set_up_seconds
from oncurve.rewards.extract import after_thinking, completion_text
from oncurve.rewards.sandbox import RemoteSandbox, Sandbox, current_sandbox, use_sandbox
from oncurve.types import OncurveError

Completions = Sequence[str | Sequence[Mapping[str, Any]]]

REPEATS = 3
"""How often the time of a program is measured; the least counts."""
FLOOR_SECONDS = 0.005
"""Times below this are taken for equal to it: smaller differences are noise."""
_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[ \t]*([^\s`]*)")
_PYTHON = ("", "python", "python3", "py")
_MOST_KEPT = 4096


def extract_code(text: str) -> str | None:
    """The program in a completion, or None.

    Only the text after the last ``</think>`` counts. It is the last fenced block that is closed and is marked
    ``python``, ``python3``, ``py`` or not at all; where no line begins with a fence, the whole text.
    """
    text = after_thinking(text)
    program: str | None = None
    fence: str | None = None
    fenced = False
    lines: list[str] = []
    marked = ""
    for line in text.splitlines():
        match = _FENCE.match(line)
        if fence is None and match:
            fence, marked, lines, fenced = match[1], match[2].lower(), [], True
        elif fence is not None and match and match[1].startswith(fence) and not match[2]:
            if marked in _PYTHON:
                program = "\n".join(lines) + "\n"
            fence = None
        else:
            lines.append(line)
    if not fenced:
        program = text
    return program if program and program.strip() else None


def code_reward(
    completions: Completions,
    tests: Sequence[Any],
    hidden_tests: Sequence[Any] | None = None,
    entry_point: Sequence[str | None] | None = None,
    setup: Sequence[str | None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """The ``code`` reward: 1.0 for a program that passes every test, else 0.0.

    The program is found by ``extract_code``. It runs in the sandbox that ``use_sandbox`` chose; the columns hold the
    tests, in the forms of ``oncurve.rewards.code_tests``:

    * ``tests``: of the row. None leaves it unscored.
    * ``hidden_tests``: more, for what the prompt shows are the ``tests``. They count alike.
    * ``entry_point``: the function to call where a test does not say.
    * ``setup``: code to run before tests that are code.

    A program that does not compile, raises, is ended by a limit, or crashes fails the test; one that nobody can say
    anything about, because the sandbox itself failed twice, is unscored.

    Raises:
        OncurveError: a row's tests are in no known form (the row is named), or the sandbox's level is not there.
    """
    batch = _Batch("code", completions, tests, hidden_tests, entry_point, setup)
    grades = batch.graded()
    batch.log(grades, log_extra, log_metric)
    return [None if found is None or not found.scored else float(found.accepted) for found in grades]


def code_partial_reward(
    completions: Completions,
    tests: Sequence[Any],
    hidden_tests: Sequence[Any] | None = None,
    entry_point: Sequence[str | None] | None = None,
    setup: Sequence[str | None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """The ``code_partial`` reward: the share of the tests that the program passes; else as ``code``."""
    batch = _Batch("code_partial", completions, tests, hidden_tests, entry_point, setup)
    grades = batch.graded()
    batch.log(grades, log_extra, log_metric)
    return [None if found is None or not found.scored else sum(found.passed) / len(found.passed) for found in grades]


def code_speed_reward(
    completions: Completions,
    tests: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    hidden_tests: Sequence[Any] | None = None,
    entry_point: Sequence[str | None] | None = None,
    setup: Sequence[str | None] | None = None,
    reference_solution: Sequence[str | None] | None = None,
    log_extra: Callable[[str, list[Any]], None] | None = None,
    log_metric: Callable[[str, float], None] | None = None,
    **kwargs: Any,
) -> list[float | None]:
    """The ``code_speed`` reward: how fast a program is that passes every test, from above 0 to 1.0; 0.0 for others.

    The time is processor time over all tests, without what an empty program takes, the least of three runs, and at
    least 5 ms. The score is the best time divided by the program's: the best is that of the row's
    ``reference_solution`` (a program, run here in the same way) or, without one, the fastest of those with the same
    prompt and tests that pass. What is as fast as that or faster gets 1.0.

    Raises:
        OncurveError: as ``code``; a ``reference_solution`` fails its tests; or the sandbox does not measure.
    """
    batch = _Batch("code_speed", completions, tests, hidden_tests, entry_point, setup)
    grades = batch.graded()
    times = batch.seconds([bool(found and found.accepted) for found in grades])
    best = _best_times(batch, times, prompts, reference_solution)
    batch.log(grades, log_extra, log_metric)
    if log_extra is not None:
        log_extra("code_speed/seconds", times)
    scores: list[float | None] = []
    for found, seconds, fastest in zip(grades, times, best, strict=True):
        if found is None or not found.scored:
            scores.append(None)
        elif not found.accepted:
            scores.append(0.0)
        else:
            scores.append(None if seconds is None or fastest is None else min(1.0, fastest / seconds))
    return scores


code_speed_reward.whole_group = True  # type: ignore[attr-defined]  # compares the completions of a prompt


@dataclass(frozen=True, slots=True)
class _Task:
    """A program and its tests, as text for a key and as they are."""

    source: str
    key: str
    tests: tuple[Test, ...]
    visible: int
    """How many of the tests, from the first, are not hidden."""
    entry_point: str | None
    setup: str

    def grade(self, sandbox: Sandbox | RemoteSandbox) -> Grade:
        return grade(self.source, self.tests, sandbox, entry_point=self.entry_point, setup=self.setup)


class _Batch:
    """The programs of one call, with their tests read and checked."""

    def __init__(
        self,
        name: str,
        completions: Completions,
        tests: Sequence[Any],
        hidden: Sequence[Any] | None,
        entry_points: Sequence[str | None] | None,
        setups: Sequence[str | None] | None,
    ) -> None:
        self.name = name
        self.size = len(completions)
        nothing = [None] * self.size
        columns = {"tests": tests, "hidden_tests": hidden, "entry_point": entry_points, "setup": setups}
        for column, values in columns.items():
            if values is not None and (isinstance(values, str) or len(values) != self.size):
                raise OncurveError(f"`{column}` must be a list of {self.size} values, one per completion")
        self.tasks: list[_Task | None] = []
        read: dict[str, tuple[tuple[Test, ...], int]] = {}
        for row, (completion, given, more, entry, setup) in enumerate(
            zip(completions, tests, hidden or nothing, entry_points or nothing, setups or nothing, strict=True)
        ):
            if given is None:
                self.tasks.append(None)
                continue
            key = repr((given, more, entry, setup))
            if key not in read:  # once for a group
                try:
                    visible = read_tests(given, entry)
                    read[key] = (*visible, *(read_tests(more, entry) if more is not None else [])), len(visible)
                except (OncurveError, ValueError) as error:
                    raise OncurveError(f"row {row}, the tests: {error}") from error
            source = extract_code(completion_text(completion))
            self.tasks.append(_Task(source or "", key, *read[key], entry, setup or ""))

    def graded(self) -> list[Grade | None]:
        """The grade of each completion; None for one without tests. The same program is run once."""
        sandbox = current_sandbox()
        wanted: dict[tuple[str, str, str], _Task] = {}
        known: dict[tuple[str, str, str], Grade] = {}
        for task in self.tasks:
            if task is None:
                continue
            key = (sandbox.level, task.source, task.key)
            if not task.source:
                known[key] = Grade((False,) * len(task.tests), "exception", None, 0)
            elif key in _kept:
                known[key] = _kept[key]
                _kept.move_to_end(key)
            else:
                wanted[key] = task
        for key, found in zip(wanted, _side_by_side(sandbox, list(wanted.values())), strict=True):
            known[key] = found
            if found.scored:
                _kept[key] = found
        while len(_kept) > _MOST_KEPT:
            _kept.popitem(last=False)
        return [None if task is None else known[(sandbox.level, task.source, task.key)] for task in self.tasks]

    def seconds(self, accepted: Sequence[bool]) -> list[float | None]:
        """Processor time of each accepted program: measured anew, one after another on each worker."""
        sandbox = current_sandbox()
        wanted = {
            (task.source, task.key): task for task, passes in zip(self.tasks, accepted, strict=True) if task and passes
        }
        measured = dict(zip(wanted, self.measured(sandbox, list(wanted.values())), strict=True))
        return [
            measured.get((task.source, task.key)) if task and passes else None
            for task, passes in zip(self.tasks, accepted, strict=True)
        ]

    @staticmethod
    def measured(sandbox: Sandbox | RemoteSandbox, tasks: list[_Task]) -> list[float | None]:
        if not tasks:
            return []
        set_up = set_up_seconds(sandbox)
        runs = _side_by_side(sandbox, tasks * REPEATS)
        least: list[float | None] = []
        for number in range(len(tasks)):
            times = [
                found.cpu_seconds - set_up * found.processes
                for found in runs[number :: len(tasks)]
                if found.accepted and found.cpu_seconds is not None
            ]
            least.append(max(FLOOR_SECONDS, min(times)) if times else None)
        return least

    def log(
        self,
        grades: Sequence[Grade | None],
        log_extra: Callable[[str, list[Any]], None] | None,
        log_metric: Callable[[str, float], None] | None,
    ) -> None:
        if log_extra is not None:
            log_extra(f"{self.name}/status", [found and found.status for found in grades])
            log_extra(f"{self.name}/passed", [found and sum(found.passed) for found in grades])
        if log_metric is not None:
            found = [(task, item) for task, item in zip(self.tasks, grades, strict=True) if task and item]
            for status in ("timeout", "infra_error"):
                log_metric(f"{self.name}/{status}", float(sum(item.status == status for _, item in found)))
            shown = [
                item for task, item in found if len(item.passed) > task.visible and all(item.passed[: task.visible])
            ]
            log_metric(f"{self.name}/hidden_failed", float(sum(not item.accepted for item in shown)))


def sandbox_for(functions: Sequence[Callable[..., Any]], level: str) -> str | None:
    """Choose the level at which the ``functions`` run code, if any of them does.

    Returns:
        A description of the sandbox, to be printed and recorded; None if none of them needs one.

    Raises:
        SandboxError: the level is not there.
    """
    return use_sandbox(level) if any(function in CODE_REWARDS for function in functions) else None


CODE_REWARDS = (code_reward, code_partial_reward, code_speed_reward)

_kept: OrderedDict[tuple[str, str, str], Grade] = OrderedDict()


def _side_by_side(sandbox: Sandbox | RemoteSandbox, tasks: list[_Task]) -> list[Grade]:
    if len(tasks) < 2:
        return [task.grade(sandbox) for task in tasks]
    with ThreadPoolExecutor(max_workers=sandbox.workers) as threads:
        return list(threads.map(lambda task: task.grade(sandbox), tasks))


def _best_times(
    batch: _Batch,
    times: Sequence[float | None],
    prompts: Sequence[Any] | None,
    references: Sequence[str | None] | None,
) -> list[float | None]:
    """For each completion the time to be compared with."""
    sandbox = current_sandbox()
    groups = [
        json.dumps([str(prompts[row]) if prompts is not None else "", task.key if task else ""])
        for row, task in enumerate(batch.tasks)
    ]
    fastest: dict[str, float] = {}
    for group, seconds in zip(groups, times, strict=True):
        if seconds is not None:
            fastest[group] = min(seconds, fastest.get(group, seconds))
    given: dict[str, float | None] = {}
    for row, (task, reference, group) in enumerate(
        zip(batch.tasks, references or [None] * batch.size, groups, strict=True)
    ):
        if reference is None or task is None or group not in fastest or group in given:
            continue
        model = _Task(reference, task.key, task.tests, task.visible, task.entry_point, task.setup)
        found = model.grade(sandbox)
        if found.scored and not found.accepted:
            failed = found.passed.index(False)
            raise OncurveError(
                f"row {row}: `reference_solution` fails test {failed} ({found.status}); it must pass them all"
            )
        given[group] = batch.measured(sandbox, [model])[0] if found.scored else None
    return [given[group] if group in given else fastest.get(group) for group in groups]
