"""A small run log to start from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from oncurve.runlog import CompletionRow, EvalRow, RunLog

ROW = CompletionRow(
    stage="grpo",
    iteration=1,
    prompt_id=7,
    sample=0,
    split="train",
    prompt="2+2=",
    completion="4",
    token_ids=(11, 2),
    sampler_logprobs=(-0.5, -0.25),
    old_logprobs=(-0.5, -0.125),
    ref_logprobs=None,
    reward=1.2,
    advantage=0.5,
    parts={"accuracy": 1.0, "format": 0.2},
    extras={"guess": "4"},
    truncated=False,
)


@pytest.fixture
def row() -> Callable[..., CompletionRow]:
    """``row(sample=1, ...)``: the usual row, changed."""
    return lambda **changes: replace(ROW, **changes)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RunLog]:
    with RunLog.create(tmp_path / "demo", 'x = "y"\n', '{"x": "y"}', "0.1.0") as log:
        yield log


@pytest.fixture
def write() -> Callable[[RunLog, int], None]:
    """``write(log, iteration)``: one GRPO iteration of two optimizer steps and two completions, with an evaluation."""

    def write(log: RunLog, iteration: int) -> None:
        with log.iteration():
            log.metrics(
                "grpo", iteration, 2 * iteration, {"reward": iteration / 8, "time/sampling": 0.1, "step_time": 1.0}
            )
            log.completions(replace(ROW, iteration=iteration, sample=sample) for sample in (0, 1))
            log.evals([EvalRow("grpo", iteration, "greedy", "accuracy", iteration / 4, 0.0, 1.0, 16)])

    return write
