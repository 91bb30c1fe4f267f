"""A reward that says the same of everything is told, at a cost that does not grow with the run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oncurve.runlog import RunLog
from oncurve.runlog import log as log_module
from oncurve.train.constant_rewards import constant_rewards

DONE: Any = SimpleNamespace(
    rollouts=SimpleNamespace(
        scores=SimpleNamespace(parts={"flat": None}),
        groups=[SimpleNamespace(completions=[SimpleNamespace(text="a\n\x1b[2Jb")])],
    )
)


@pytest.fixture
def log(tmp_path: Path):
    with RunLog.create(tmp_path / "run", "", "{}", "0") as log:
        yield log


def record(log: RunLog, first: int, last: int, mean: float = 0.25, spread: float = 0.0) -> None:
    with log.iteration():
        for iteration in range(first, last + 1):
            log.metrics("grpo", iteration, iteration, {"rewards/flat/mean": mean, "rewards/flat/std": spread})


def test_it_is_told_after_twenty_iterations_once(log: RunLog):
    record(log, 1, 19)
    assert list(constant_rewards(log, DONE)) == []
    record(log, 20, 20)
    [warning] = constant_rewards(log, DONE)
    assert warning == (
        "warning: reward 'flat' has given 0.25 to every completion of the last 20 iterations; it teaches nothing. Some "
        "of them:\n  a b"
    )
    record(log, 21, 21)
    assert list(constant_rewards(log, DONE)) == []


def test_it_is_told_again_after_another_value(log: RunLog):
    record(log, 1, 25)
    record(log, 26, 26, mean=0.5, spread=0.1)
    record(log, 27, 45)
    assert list(constant_rewards(log, DONE)) == []
    record(log, 46, 46)
    assert len(list(constant_rewards(log, DONE))) == 1


def test_only_the_last_iterations_are_read(log: RunLog, monkeypatch: pytest.MonkeyPatch):
    record(log, 1, 3000)
    read: list[Any] = []
    convert = log_module.metric_from_sql
    monkeypatch.setattr(log_module, "metric_from_sql", lambda row: read.append(row) or convert(row))
    assert list(constant_rewards(log, DONE)) == []
    assert len(read) == 42  # 21 means and 21 spreads


def test_the_work_does_not_grow_with_the_run(log: RunLog):
    """Steps of sqlite's machine, by hundreds: also what is read without being handed out."""
    counts = []
    for first, last in ((1, 100), (101, 3000)):
        record(log, first, last)
        steps: list[int] = []
        log._db.set_progress_handler(lambda steps=steps: steps.append(1), 100)
        assert list(constant_rewards(log, DONE)) == []
        log._db.set_progress_handler(None, 0)
        counts.append(len(steps))
    assert counts[1] <= counts[0] + 1
