"""Running out of memory says what to lower, and costs nothing that was done before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from oncurve.config import Recipe
from oncurve.runlog import RunLog, list_runs
from oncurve.train import evaluate_command, run, sample_command
from oncurve.train.memory import is_out_of_memory
from oncurve.types import OncurveError

CUDA = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.00 GiB free.\nMore words")
CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4000000000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (CUDA, True),
        (CPU, True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("The size of tensor a (3) must match the size of tensor b (4)"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_is_told_from_other_errors(error: Exception, is_one: bool):
    assert is_out_of_memory(error) == is_one


def test_a_cpu_says_so_in_these_words():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(raised.value)


class Failing:
    """An engine that raises at its call number ``at``, counted from 1."""

    def __init__(self, engine: Any, at: int, error: Exception) -> None:
        self._engine, self._left, self._error = engine, at, error

    def sample(self, *arguments: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left == 0:
            raise self._error
        return self._engine.sample(*arguments, **options)

    def load_weights(self, policy: torch.nn.Module) -> None:
        self._engine.load_weights(policy)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """``failing(3, error)``: every engine made from now on raises at its third call."""
    from oncurve.train import setup

    def patch(at: int, error: Exception) -> None:
        made = setup.make_engine
        for name in ("oncurve.train.setup.make_engine", "oncurve.train.commands.make_engine"):
            monkeypatch.setattr(name, lambda *a, **o: Failing(made(*a, **o), at, error))

    return patch


def digest(recipe: Recipe) -> str:
    with RunLog.open(Path(recipe.run.dir) / recipe.run.name, readonly=True) as log:
        return log.digest()


@pytest.mark.parametrize("error", [CUDA, CPU, MemoryError()], ids=["cuda", "cpu", "python"])
def test_grpo_says_what_to_lower_and_goes_on(tiny, quiet, failing, monkeypatch, error):
    whole = tiny(run={"name": "whole"})
    run(whole, terminal=quiet)
    recipe = tiny(run={"name": "cut"})
    failing(4, error)  # evaluated twice before training, so this is the second iteration
    with pytest.raises(OncurveError) as raised:
        run(recipe, terminal=quiet)
    text = str(raised.value)
    assert text.startswith("out of memory, grpo")
    knobs = [
        "a lower grpo.microbatch_tokens (now 8192)",
        "model.gradient_checkpointing = true",
        "a lower sampling.max_rows (now 256)",
        "the same command with them resumes the run from its last checkpoint",
        "a lower grpo.group_size (now 4)",
        "in a new run (--run.name NAME)",
    ]
    places = [text.index(knob) for knob in knobs]
    assert places == sorted(places)
    assert [info.status for info in list_runs(recipe.run.dir)] == ["stopped", "finished"]
    monkeypatch.undo()
    run(tiny(run={"name": "cut"}, grpo={"microbatch_tokens": 8000}), terminal=quiet)
    assert digest(recipe) == digest(whole)


def test_it_is_told_in_the_middle_of_an_update(tiny, quiet, monkeypatch, tmp_path):
    def backward(loss: torch.Tensor) -> float:
        raise CUDA

    monkeypatch.setattr("oncurve.train.sft.backward", backward)
    with pytest.raises(OncurveError, match=r"(?s)memory, sft: CUDA out of memory.*sft.microbatch_tokens \(now 8192\)"):
        run(tiny(), terminal=quiet)
    (tmp_path / "mine.py").write_text(
        "def mine(completion_ids, **_):\n    return [float(sum(i) % 7) for i in completion_ids]\n"
    )
    rewards = {"functions": [f"{tmp_path}/mine.py:mine"], "weights": None}
    monkeypatch.setattr("oncurve.train.update.backward", backward)
    with pytest.raises(OncurveError, match=r"out of memory, grpo") as raised:
        run(tiny(model={"gradient_checkpointing": True}, sft=None, rewards=rewards), terminal=quiet)
    assert "gradient_checkpointing" not in str(raised.value)  # is on already


def test_loading_evaluating_and_sampling(tiny, quiet, failing, monkeypatch):
    recipe = tiny(sft=None, run={"name": "new"})
    failing(2, CPU)
    with pytest.raises(
        OncurveError, match=r"(?s)memory, evaluating: .*sampling\.max_rows \(now 256\), .*eval\.samples"
    ):
        evaluate_command(recipe, None, quiet)
    failing(1, CUDA)
    with pytest.raises(OncurveError, match=r"(?s)memory, sampling: CUDA out of memory.*fewer completions \(--n\)"):
        sample_command(recipe.model, "How many a's are in ab?", quiet, n=2)

    def load_model(*_: Any) -> None:
        raise CUDA

    monkeypatch.setattr("oncurve.train.setup.load_model", load_model)
    with pytest.raises(OncurveError, match=r"(?s)out of memory, loading model and data: .*model\.dtype = bfloat16"):
        run(recipe, terminal=quiet)
    assert not Path(recipe.run.dir).exists()


def test_other_errors_stay_what_they_are(tiny, quiet, failing):
    failing(1, RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        run(tiny(), terminal=quiet)


def test_on_the_command_line_it_is_one_error_without_a_traceback(tiny, failing, tmp_path, capsys):
    from oncurve.cli import main
    from oncurve.recipe import dump_toml

    recipe = tmp_path / "r.toml"
    recipe.write_text(dump_toml(tiny()))
    failing(4, CUDA)
    assert main(["grpo", str(recipe), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("out of memory, grpo: CUDA out of memory. Tried to allocate 2.00 GiB.")
    assert "Traceback" not in err
