"""Interrupt a run anywhere, give the same command again: the result is that of a run that was never interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from oncurve.rewards import RewardError
from oncurve.runlog import RunLog
from oncurve.train import run
from oncurve.train.sft import sft_steps
from oncurve.types import OncurveError, Stopped

COUNTING_REWARD = """
import json, os, pathlib, signal
HERE = pathlib.Path(__file__).parent
def mine(completion_ids, trainer_state, **_):
    plan = json.loads((HERE / "plan.json").read_text())
    if trainer_state["iteration"] == plan.get("iteration"):
        if plan["what"] == "raise":
            raise ValueError("the reward service is down")  # for every completion, until the plan is another
        (HERE / "plan.json").write_text("{}")
        os.kill(os.getpid(), getattr(signal, plan["what"]))
    return [float(sum(ids) % 7) for ids in completion_ids]
"""


@pytest.fixture
def reward_file(tmp_path: Path) -> Path:
    path = tmp_path / "reward_with_a_plan.py"
    path.write_text(COUNTING_REWARD)
    (tmp_path / "plan.json").write_text("{}")
    return path


def plan(reward_file: Path, **what) -> None:
    (reward_file.parent / "plan.json").write_text(json.dumps(what))


def fingerprint(run_dir: Path) -> tuple[str, dict]:
    with RunLog.open(run_dir, readonly=True) as log:
        digest = log.digest()
    weights = load_file(run_dir / "models" / "grpo" / "model.safetensors")
    return digest, {name: value.numpy().tobytes() for name, value in weights.items()}


@pytest.fixture
def recipe_of(tiny, reward_file):
    def build(name: str, **sections):
        rewards = {"functions": ["accuracy", f"inline:{reward_file}:mine"], "weights": [1.0, 0.5]}
        return tiny(run={"name": name}, rewards=rewards, **sections)

    return build


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_saves_and_the_same_command_goes_on(recipe_of, reward_file, quiet, name):
    run(recipe_of("whole"), terminal=quiet)
    recipe = recipe_of("cut", checkpoint={"every": 3})
    plan(reward_file, iteration=3, what=name)
    with pytest.raises(Stopped) as stopped:
        run(recipe, terminal=quiet)
    assert stopped.value.signal == getattr(signal, name)
    run_dir = Path(recipe.run.dir) / "cut"
    with RunLog.open(run_dir, readonly=True) as log:
        assert log.get_meta("status") == "stopped"
        assert [i for i, _, _ in log.series("reward", "grpo")] == [1, 2]
    run(recipe, terminal=quiet)
    assert fingerprint(run_dir) == fingerprint(run_dir.parent / "whole")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_reward_that_raises_loses_nothing(recipe_of, reward_file, quiet):
    run(recipe_of("whole"), terminal=quiet)
    recipe = recipe_of("cut", checkpoint={"every": 3})
    plan(reward_file, iteration=3, what="raise")
    with pytest.raises(RewardError, match=r"mine.*the reward service is down"):
        run(recipe, terminal=quiet)
    plan(reward_file)
    run_dir = Path(recipe.run.dir) / "cut"
    with RunLog.open(run_dir, readonly=True) as log:
        assert [i for i, _, _ in log.series("reward", "grpo")] == [1, 2]
    plan(reward_file)
    run(recipe, terminal=quiet)
    assert fingerprint(run_dir) == fingerprint(run_dir.parent / "whole")


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_damaged_newest_checkpoint_falls_back_and_says_so(recipe_of, reward_file, epochs, capsys):
    from oncurve.terminal import Terminal

    run(recipe_of("whole", grpo={"epochs": epochs}), terminal=Terminal(quiet=True))
    recipe = recipe_of("cut", grpo={"epochs": epochs})
    plan(reward_file, iteration=4, what="SIGTERM")
    with pytest.raises(Stopped):
        run(recipe, terminal=Terminal(quiet=True))
    run_dir = Path(recipe.run.dir) / "cut"
    newest = max((run_dir / "checkpoints").glob("step-*"))
    policy = newest / "policy.safetensors"
    damaged = bytearray(policy.read_bytes())
    damaged[-1] ^= 1
    policy.write_bytes(damaged)
    run(recipe, terminal=Terminal())
    said = capsys.readouterr().out
    assert newest.name in said
    assert "resuming" in said
    assert "iteration 2" in said
    assert fingerprint(run_dir) == fingerprint(run_dir.parent / "whole")


def test_a_finished_run_is_not_run_again(recipe_of, quiet, capsys, monkeypatch):
    from oncurve.terminal import Terminal

    recipe = recipe_of("whole")
    first = run(recipe, terminal=quiet)
    before = fingerprint(first.run_dir)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["oncurve.train.run"], "prepare", None)  # not even a model is loaded
        again = run(recipe, terminal=Terminal())
    assert capsys.readouterr().out == f"{first.run_dir} is already finished\n"
    assert fingerprint(again.run_dir) == before
    assert again == first
    assert run(recipe, stages=("sft",), terminal=quiet).model_dir == first.run_dir / "models" / "sft"


def test_a_finished_run_without_its_model_saves_it_again(recipe_of, quiet):
    recipe = recipe_of("whole")
    result = run(recipe, terminal=quiet)
    before = fingerprint(result.run_dir)
    shutil.rmtree(result.model_dir)
    run(recipe, terminal=quiet)
    assert fingerprint(result.run_dir) == before


@pytest.mark.parametrize("every", [2, 3], ids=["evaluated there anyway", "not evaluated there"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_run_that_is_made_longer_equals_one_that_was_longer_from_the_beginning(
    recipe_of, reward_file, quiet, every, stopped
):
    longer = {"grpo": {"iterations": 7}, "eval": {"every": every}}
    run(recipe_of("whole", **longer), terminal=quiet)
    shorter = recipe_of("cut", eval={"every": every})
    run(shorter, terminal=quiet)
    if stopped:  # and once more on the way
        plan(reward_file, iteration=6, what="SIGTERM")
        with pytest.raises(Stopped):
            run(recipe_of("cut", **longer), terminal=quiet)
    result = run(recipe_of("cut", **longer), terminal=quiet)
    assert fingerprint(result.run_dir) == fingerprint(result.run_dir.parent / "whole")
    with pytest.raises(OncurveError, match=r"grpo\.iterations: 7 there, 4 here \(there can be more of them later"):
        run(shorter, terminal=quiet)


def test_a_run_with_a_schedule_over_all_iterations_cannot_be_made_longer(recipe_of, quiet):
    linear = {"schedule": "linear", "iterations": 2}
    run(recipe_of("whole", grpo=linear), terminal=quiet)
    with pytest.raises(OncurveError, match=r"grpo\.iterations: 2 there, 5 here \(the linear schedule of the learning"):
        run(recipe_of("whole", grpo=linear | {"iterations": 5}), terminal=quiet)
    with pytest.raises(OncurveError, match=r"(?s)clip_low: 0\.2 there, 0\.3 here.*iterations: 2 there"):
        run(recipe_of("whole", grpo=linear | {"iterations": 5, "clip_low": 0.3}), terminal=quiet)


def test_sft_first_and_grpo_later_is_the_same_as_both_at_once(recipe_of, quiet):
    run(recipe_of("whole"), terminal=quiet)
    recipe = recipe_of("two")
    assert run(recipe, stages=("sft",), terminal=quiet).model_dir.name == "sft"
    run(recipe, terminal=quiet)
    assert fingerprint(Path(recipe.run.dir) / "two") == fingerprint(Path(recipe.run.dir) / "whole")


def test_sft_that_was_cut_short_hands_its_end_to_grpo(recipe_of, quiet, monkeypatch):
    def cut(*arguments):
        for done in sft_steps(*arguments):
            if done.step == 12:  # after the checkpoint of step 10
                raise KeyboardInterrupt
            yield done

    sections = {"sft": {"steps": 14}}
    run(recipe_of("whole", **sections), terminal=quiet)
    recipe = recipe_of("cut", **sections)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["oncurve.train.run"], "sft_steps", cut)
        with pytest.raises(KeyboardInterrupt):
            run(recipe, terminal=quiet)
    run(recipe, terminal=quiet)
    run_dir = Path(recipe.run.dir) / "cut"
    assert fingerprint(run_dir) == fingerprint(run_dir.parent / "whole")


def test_another_recipe_is_refused_by_field(recipe_of, quiet):
    run(recipe_of("whole"), terminal=quiet)
    with pytest.raises(OncurveError, match=r"grpo\.clip_low: 0\.2 there, 0\.3 here"):
        run(recipe_of("whole", grpo={"clip_low": 0.3}), terminal=quiet)


def test_a_recipe_that_never_began_may_change(recipe_of, reward_file, quiet):
    plan(reward_file, iteration=1, what="raise")
    with pytest.raises(RewardError):
        run(recipe_of("whole", sft=None), terminal=quiet)
    plan(reward_file)
    run(recipe_of("whole", sft=None, grpo={"clip_low": 0.3}), terminal=quiet)


def test_speed_options_may_change_on_resume(recipe_of, reward_file, quiet):
    plan(reward_file, iteration=2, what="SIGTERM")
    with pytest.raises(Stopped):
        run(recipe_of("cut"), terminal=quiet)
    run(recipe_of("cut", checkpoint={"every": 2}, sampling={"max_rows": 64}), terminal=quiet)


def test_a_changed_data_set_is_refused(recipe_of, reward_file, quiet, tmp_path):
    data = tmp_path / "sums.jsonl"
    lines = [json.dumps({"prompt": f"How many a's are in {'ab' * n}?", "answer": str(n)}) for n in range(1, 12)]
    data.write_text("\n".join(lines))
    sections = {"sft": None, "data": {"train": str(data), "eval_size": 3}}
    plan(reward_file, iteration=2, what="SIGTERM")
    with pytest.raises(Stopped):
        run(recipe_of("cut", **sections), terminal=quiet)
    data.write_text("\n".join(lines[:-1] + lines[:1]))
    with pytest.raises(OncurveError, match="is not the data"):
        run(recipe_of("cut", **sections), terminal=quiet)


def test_a_changed_reference_is_refused(recipe_of, reward_file, quiet):
    plan(reward_file, iteration=2, what="SIGTERM")
    recipe = recipe_of("cut")
    with pytest.raises(Stopped):
        run(recipe, terminal=quiet)
    path = Path(recipe.run.dir) / "cut" / "models" / "sft" / "model.safetensors"
    changed = bytearray(path.read_bytes())
    changed[-1] ^= 1
    path.write_bytes(changed)
    with pytest.raises(OncurveError, match="reference is not the model"):
        run(recipe, terminal=quiet)
    os.remove(path)
    with pytest.raises(OncurveError, match="reference cannot be loaded"):
        run(recipe, terminal=quiet)


@pytest.mark.parametrize(
    "terms",
    [
        {"kl_target": 1e-4, "kl_coef": 0.1, "epochs": 2},
        {"dynamic_sampling": 3, "overlong_fraction": 0.5},
        {"preset": "rloo"},
        {"preset": "ppo", "minibatches": 2, "kl_target": 1e-4},
    ],
    ids=["adaptive kl", "dynamic sampling", "rloo", "ppo"],
)
def test_other_objectives_go_on_to_the_same_bits(recipe_of, reward_file, quiet, terms):
    """An adaptive coefficient is a state, further prompts are a draw: neither may depend on an interruption."""
    run(recipe_of("whole", grpo=terms), terminal=quiet)
    recipe = recipe_of("cut", checkpoint={"every": 3}, grpo=terms)
    plan(reward_file, iteration=3, what="SIGTERM")
    with pytest.raises(Stopped):
        run(recipe, terminal=quiet)
    run(recipe, terminal=quiet)
    run_dir = Path(recipe.run.dir) / "cut"
    assert fingerprint(run_dir) == fingerprint(run_dir.parent / "whole")
    if "kl_target" in terms:
        with RunLog.open(run_dir, readonly=True) as log:
            coefficients = [value for _, _, value in log.series("kl_coef", "grpo")]
        assert len(set(coefficients)) == len(coefficients) == 4
