"""An engine with weights of its own samples from the policy's: it is given them whenever they have changed."""

from __future__ import annotations

import copy
import hashlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from oncurve.models.causal_lm import CausalLM, causal_lm
from oncurve.runlog import RunLog
from oncurve.train import run, setup
from oncurve.types import OncurveError, Stopped


def digest_of(module: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for value in module.state_dict().values():
        digest.update(value.numpy().tobytes())
    return digest.hexdigest()


class Apart:
    """Samples from a copy of the policy, made when the run begins, which only ``load_weights`` brings up to date."""

    def __init__(self, policy: CausalLM, tokenizer: Any, max_rows: int, make_engine: Any) -> None:
        self._policy = policy
        self._copy = causal_lm(copy.deepcopy(policy.module))
        self._engine = make_engine(self._copy, tokenizer, max_rows)
        self.sampled: list[tuple[int, bool]] = []
        """For each call of ``sample`` the iteration, and whether the weights were the policy's."""
        self.loaded: list[str] = []
        self.deaf_from = 1_000_000
        """The first call of ``load_weights``, counted from 0, that does nothing."""

    def sample(self, *arguments: Any, iteration: int, **options: Any) -> Any:
        self.sampled.append((iteration, digest_of(self._copy.module) == digest_of(self._policy.module)))
        return self._engine.sample(*arguments, iteration=iteration, **options)

    def load_weights(self, policy: torch.nn.Module) -> None:
        if len(self.loaded) < self.deaf_from:
            self._engine.load_weights(policy)
        self.loaded.append(digest_of(policy))


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[Apart]:
    """Every run that is begun from now on has an engine apart; they are listed here."""
    made: list[Apart] = []
    usual = setup.make_engine

    def make_engine(lm: CausalLM, tokenizer: Any, max_rows: int) -> Apart:
        made.append(Apart(lm, tokenizer, max_rows, usual))
        return made[-1]

    monkeypatch.setattr(setup, "make_engine", make_engine)
    return made


REWARD = """
import json, os, pathlib, signal
PLAN = pathlib.Path(__file__).with_name("plan.json")
def mine(completion_ids, trainer_state, **_):
    if trainer_state["iteration"] == json.loads(PLAN.read_text()):
        PLAN.write_text("null")
        os.kill(os.getpid(), signal.SIGTERM)
    return [float(sum(ids) % 7) for ids in completion_ids]
"""


@pytest.fixture
def recipe_of(tiny, tmp_path: Path):
    (tmp_path / "mine.py").write_text(REWARD)
    (tmp_path / "plan.json").write_text("null")

    def build(name: str, **sections: Any):
        rewards = {"functions": [f"inline:{tmp_path}/mine.py:mine"], "weights": None}
        return tiny(run={"name": name}, rewards=rewards, **sections)

    return build


def record(recipe) -> str:
    with RunLog.open(Path(recipe.run.dir) / recipe.run.name, readonly=True) as log:
        return log.digest()


def test_it_is_loaded_after_fine_tuning_and_after_each_update(recipe_of, quiet, engines, monkeypatch):
    apart = recipe_of("apart")
    run(apart, terminal=quiet)
    [engine] = engines
    # greedy and sampled before; 1, 2 and its greedy evaluation, 3, 4 and its two evaluations
    assert engine.sampled == [(at, True) for at in (0, 0, 1, 2, 0, 3, 4, 0, 0)]
    assert len(set(engine.loaded)) == 5  # SFT's weights, and those of four updates
    monkeypatch.undo()
    one = recipe_of("one")
    run(one, terminal=quiet)
    assert record(apart) == record(one)


@pytest.mark.parametrize("sft", [{}, None], ids=["with-sft", "grpo-alone"])
@pytest.mark.parametrize("every", [1, 3], ids=["each", "third"])
def test_it_is_loaded_after_resuming(recipe_of, quiet, engines, tmp_path, sft, every):
    sections = {"checkpoint": {"every": every}} | ({"sft": None} if sft is None else {})
    whole, cut = recipe_of("whole", **sections), recipe_of("cut", **sections)
    run(whole, terminal=quiet)
    (tmp_path / "plan.json").write_text(json.dumps(3))
    with pytest.raises(Stopped) as stopped:
        run(cut, terminal=quiet)
    assert stopped.value.signal == signal.SIGTERM
    run(cut, terminal=quiet)
    resumed = engines[2]
    assert resumed.sampled == [(3, True), (4, True), (0, True), (0, True)]
    assert record(cut) == record(whole)


def test_it_is_loaded_where_fine_tuning_was_another_command(recipe_of, quiet, engines):
    recipe = recipe_of("two")
    run(recipe, stages=("sft",), terminal=quiet)
    run(recipe, terminal=quiet)
    assert engines[1].sampled[:3] == [(0, True), (0, True), (1, True)]


@pytest.mark.parametrize("deaf_from", [0, 1, 3])
def test_one_that_is_not_loaded_is_noticed(recipe_of, quiet, engines, monkeypatch, deaf_from):
    """What the tests above would see if a call were missing, and what the first batch says of it."""
    monkeypatch.setattr(Apart, "__init__", _deaf(Apart.__init__, deaf_from))
    with pytest.raises(OncurveError, match="engine and the trainer disagree"):
        run(recipe_of("deaf", grpo={"learning_rate": 0.03}), terminal=quiet)
    assert engines[0].sampled[-1] == (deaf_from + 1 if deaf_from else 1, False)


def _deaf(init: Any, deaf_from: int) -> Any:
    def begin(self: Apart, *arguments: Any) -> None:
        init(self, *arguments)
        self.deaf_from = deaf_from

    return begin
