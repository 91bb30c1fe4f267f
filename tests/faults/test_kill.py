"""kill -9 at 20 moments drawn over a whole run; after each the same command goes on; the end is bit for bit the same.

A child process kills itself at the n-th Python or C function call after the run began. That reaches every phase
(sampling, update, sqlite transactions, checkpoint files, renames), at the same moments every time the test is run.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from oncurve.config import Recipe
from oncurve.runlog import RunLog
from oncurve.terminal import Terminal
from oncurve.train import run
from oncurve.train.setup import prepare


@pytest.fixture(autouse=True)
def imported(tiny):
    """What transformers imports at the first use, the children shall not import one by one, nor be killed at."""
    prepare(tiny(), Terminal(quiet=True), ("sft", "grpo"))


def in_child(recipe: Recipe, die_at_call: int | None) -> tuple[int, int]:
    """Run ``recipe`` in a forked child. Returns its wait status and how many calls it made (0 if killed)."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(reading)
            calls = 0

            def count(frame, event, argument):
                nonlocal calls
                calls += 1
                if calls == die_at_call:
                    os.kill(os.getpid(), signal.SIGKILL)

            sys.setprofile(count)
            run(recipe, terminal=Terminal(quiet=True))
            sys.setprofile(None)
            os.write(writing, str(calls).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        calls = int(pipe.read() or 0)
    return os.waitpid(pid, 0)[1], calls


def fingerprint(run_dir: Path) -> tuple[str, dict[str, bytes]]:
    with RunLog.open(run_dir, readonly=True) as log:
        digest = log.digest()
        keys = [(r.iteration, r.prompt_id, r.sample) for r in log.completion_rows("train", "grpo")]
    assert len(set(keys)) == len(keys)
    weights = load_file(run_dir / "models" / "grpo" / "model.safetensors")
    return digest, {name: value.numpy().tobytes() for name, value in weights.items()}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_20_moments_the_result_is_the_same(tiny):
    whole = tiny(run={"name": "whole"}, grpo={"iterations": 3}, sft={"steps": 10}, eval={"every": 2})
    status, calls = in_child(whole, None)
    assert status == 0
    expected = fingerprint(Path(whole.run.dir) / "whole")
    draws = random.Random(20)
    killed = 0
    for moment in range(20):
        recipe = tiny(run={"name": f"killed-{moment}"}, grpo={"iterations": 3}, sft={"steps": 10}, eval={"every": 2})
        at = draws.randrange(1, calls)
        status, _ = in_child(recipe, at)
        killed += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        status, _ = in_child(recipe, None)
        assert status == 0, f"resuming after a kill at call {at} of {calls} failed"
        assert fingerprint(Path(recipe.run.dir) / recipe.run.name) == expected, f"kill at call {at} of {calls}"
    assert killed == 20


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_again_and_again_one_run_still_comes_to_the_same_end(tiny):
    sections = {"grpo": {"iterations": 3}, "sft": {"steps": 10}, "eval": {"every": 2}, "checkpoint": {"every": 1}}
    whole = tiny(run={"name": "whole"}, **sections)
    _, calls = in_child(whole, None)
    recipe = tiny(run={"name": "harried"}, **sections)
    draws, kills = random.Random(21), 0
    for _ in range(6):
        status, _ = in_child(recipe, draws.randrange(calls // 3, calls))
        kills += status != 0
        if status == 0:
            break
    assert kills >= 1
    assert in_child(recipe, None)[0] == 0
    assert fingerprint(Path(recipe.run.dir) / "harried") == fingerprint(Path(whole.run.dir) / "whole")
