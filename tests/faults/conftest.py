"""The command line as a user meets it, on runs that take a quarter of a second."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from oncurve.cli import main
from oncurve.recipe import dump_toml
from oncurve.runlog import RunLog

VARIED = "def varied(completion_ids, **_):\n    return [float(sum(ids) % 7) for ids in completion_ids]\n"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """Told alone on standard error, without a traceback, in words that hold these."""
        assert self.code == 2, self.out + self.err
        for word in words:
            assert word in self.err
        assert "Traceback" not in self.out + self.err

    def went_well(self) -> Outcome:
        assert (self.code, self.err) == (0, "")
        return self


@dataclass(frozen=True)
class User:
    """Somebody with a directory, a recipe and a reward file."""

    directory: Path
    write_recipe: Callable[..., str]
    """``write_recipe(grpo={"epochs": 2})``: the small recipe with sections changed, in a file. Its path."""
    says: Callable[..., Outcome]
    """``says("grpo", path, ...)``: what came of ``oncurve grpo path ...``."""

    @property
    def run_dir(self) -> Path:
        return self.directory / "runs" / "small"

    def write(self, name: str, text: str) -> str:
        path = self.directory / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def write_rows(self, *rows: dict[str, Any], name: str = "data.jsonl") -> str:
        return self.write(name, "".join(json.dumps(row) + "\n" for row in rows))

    def reward(self, body: str) -> None:
        """The body of the function that the small recipe trains on."""
        self.write("reward.py", f"def varied(completion_ids, trainer_state, log_metric, **_):\n    {body}\n")


@pytest.fixture
def user(tmp_path: Path, tiny: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> User:
    """The small recipe: GRPO alone, two iterations, a reward of the user's own that always differs within a group."""
    reward = tmp_path / "reward.py"
    reward.write_text(VARIED)
    small: dict[str, Any] = {
        "run": {"name": "small"},
        "sft": None,
        "data": {"eval_size": 2},
        "rewards": {"functions": [f"{reward}:varied"], "weights": [1.0]},
        "grpo": {"iterations": 2, "kl_coef": 0.0},
        "eval": {"every": 0, "samples": 0, "pass_at": []},
    }

    def write_recipe(*, name: str = "recipe.toml", **sections: Any) -> str:
        merged = dict(small)
        for section, changes in sections.items():
            merged[section] = (merged.get(section) or {}) | changes
        path = tmp_path / name
        path.write_text(dump_toml(tiny(**merged)), encoding="utf-8")
        return str(path)

    def says(*argv: str) -> Outcome:
        capsys.readouterr()
        code = main(list(argv))
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return User(tmp_path, write_recipe, says)


def kept(run_dir: Path) -> dict[str, str]:
    """Digests of all that a run has on disk: its record by what it says, every other file by its bytes."""
    files = [path for path in sorted(run_dir.rglob("*")) if path.is_file()]
    found = {str(path.relative_to(run_dir)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    for name in [name for name in found if name == ".lock" or name.startswith("run.sqlite")]:
        del found[name]
    if (run_dir / "run.sqlite").exists():
        with RunLog.open(run_dir, readonly=True) as log:
            found["record"] = log.digest()
    return found


def fingerprint(run_dir: Path) -> tuple[str, dict[str, bytes]]:
    """What two runs of one recipe have in common: records and trained weights, bit for bit."""
    with RunLog.open(run_dir, readonly=True) as log:
        digest = log.digest()
    weights = load_file(run_dir / "models" / "grpo" / "model.safetensors")
    return digest, {name: value.numpy().tobytes() for name, value in weights.items()}


def iterations(run_dir: Path) -> list[int]:
    with RunLog.open(run_dir, readonly=True) as log:
        return [iteration for iteration, _, _ in log.series("reward", "grpo")]
