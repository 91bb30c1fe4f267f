"""Tasksets of verifiers, as data and as reward. Most of this needs the package, and is left out without it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from oncurve.data.readers import read_rows
from oncurve.rewards import load_functions
from oncurve.rewards.verifiers import verifiers_reward
from oncurve.types import OncurveError

TASKSET = """
import os
import time

import verifiers.v1 as vf

__all__ = ["Sums"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def right(self, trace) -> float:
        if trace.last_reply == "raise":
            raise ValueError("no")
        if trace.last_reply == "end":
            os._exit(3)
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 40 and trace.last_reply != "")
{more}

class SumsConfig(vf.TasksetConfig):
    largest: int = 9


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for a in range(1, self.config.largest + 1):
            yield SumTask(SumData(prompt=f"{{a}} + {{a}} = ?", answer=str(2 * a){fields}), self.config.task)
"""


@pytest.fixture
def taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("verifiers")
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name: str, more: str = "", fields: str = "") -> str:
        (tmp_path / f"{name}.py").write_text(TASKSET.format(more=more, fields=fields))
        importlib.invalidate_caches()
        return f"verifiers:{name}"

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


def rows_of(source: str, size: int = 3, **options: Any) -> list[dict[str, Any]]:
    return read_rows(source, size=size, seed=0, options=options)


def test_without_the_package_the_mend_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(OncurveError, match=r"pip install 'oncurve\[verifiers\]'"):
        read_rows("verifiers:sums", size=3, seed=0, options={})
    with pytest.raises(OncurveError, match=r"pip install 'oncurve\[verifiers\]'"):
        verifiers_reward(["4"], verifiers=[{"name": "sums", "options": {}, "index": 0}])


def test_a_recipe_may_name_it() -> None:
    (reward,) = load_functions(["verifiers"])
    assert reward.function is verifiers_reward


def test_rows_and_options(taskset) -> None:
    source = taskset("sums_a")
    assert rows_of(source)[1] == {
        "prompt": "2 + 2 = ?",
        "answer": "4",
        "verifiers": {"name": "sums_a", "options": {}, "index": 1},
    }
    assert len(rows_of(source, 50, largest=5)) == 5
    with pytest.raises(OncurveError, match=r"data\.options\.larges"):
        rows_of(source, larges=5)
    (row,) = rows_of(taskset("sums_b", fields=', system_prompt="Be brief."'), 1)
    assert row["prompt"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1 = ?"},
    ]


def test_what_wants_more_than_a_reply_is_refused(taskset) -> None:
    runtime = "\n    @vf.reward\n    async def ran(self, trace, runtime) -> float:\n        return 1.0\n"
    with pytest.raises(OncurveError, match="task 0 has the reward 'ran', which needs a runtime"):
        rows_of(taskset("sums_c", runtime))
    setup = "\n    async def setup(self, trace, runtime):\n        pass\n"
    with pytest.raises(OncurveError, match="task 0 sets something up"):
        rows_of(taskset("sums_d", setup))
    with pytest.raises(OncurveError, match="no_such_taskset"):
        rows_of("verifiers:no_such_taskset")


def test_rewards_are_summed_with_their_weights_and_failures_are_unscored(taskset) -> None:
    rows = rows_of(taskset("sums_e"))
    counts: dict[str, float] = {}
    scores = verifiers_reward(
        ["2", "5", [{"role": "assistant", "content": "6" * 50}], "", "raise", "2", "9"],
        verifiers=[row["verifiers"] for row in (rows[0], rows[1], rows[2], rows[0], rows[0], rows[0])] + [None],
        log_metric=counts.__setitem__,
    )
    assert scores == [1.5, 0.5, 0.0, 0.0, None, 1.5, None]
    assert counts == {"verifiers/failed": 1.0}


def test_a_reward_that_ends_its_process_costs_its_own_reply_and_all_failing_is_an_error(taskset) -> None:
    rows = rows_of(taskset("sums_e"))
    assert verifiers_reward(["end", "2"], verifiers=[rows[0]["verifiers"]] * 2) == [None, 1.5]
    with pytest.raises(OncurveError, match="failed for every reply"):
        verifiers_reward(["raise", "raise"], verifiers=[rows[0]["verifiers"]] * 2)
