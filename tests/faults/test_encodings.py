"""Names and texts that the terminal's encoding does not have are printed as escapes, and end no command."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fake_run import make_run
from faults.conftest import VARIED, User
from oncurve.cli import main

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "OMP_NUM_THREADS": "1"}
NAME = "läufe 日本 🍓"


def in_ascii(directory: Path, *argv: str, **more: str) -> subprocess.CompletedProcess[bytes]:
    """``oncurve argv`` in a process that knows no other encoding than ASCII."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("LC_", "LANG", "PYTHONIO"))}
    return subprocess.run(
        [sys.executable, "-m", "oncurve", *argv],
        cwd=directory,
        env=environment | ASCII | more,
        capture_output=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A directory with a run of that name."""
    sizes = {"sft_steps": 2, "iterations": 2, "prompts": 1, "group_size": 4, "held_out": 2, "samples": 2}
    make_run(tmp_path / "runs" / "demo", **sizes)
    shutil.move(tmp_path / "runs" / "demo", tmp_path / "runs" / NAME)
    return tmp_path


RECIPE = f'[model]\npath = "m"\n[data]\ntrain = "task:letters"\nsuffix = "{NAME}"\n[grpo]\n'


def test_a_dry_run_is_still_a_recipe(tmp_path: Path):
    (tmp_path / f"{NAME}.toml").write_text(RECIPE, encoding="utf-8")
    done = in_ascii(tmp_path, "grpo", f"{NAME}.toml", "--dry-run")
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb'suffix = "l\u00e4ufe \u65e5\u672c \U0001f353"' in done.stdout
    assert tomllib.loads(done.stdout.decode("ascii"))["data"]["suffix"] == NAME


@pytest.mark.parametrize("encoding", ["", "ascii", "latin-1"])
def test_the_commands_on_a_run_print_its_name(named: Path, encoding: str):
    more = {"PYTHONIOENCODING": encoding} if encoding else {}
    for argv, file in ((["report"], "report.html"), (["export", "--to", "jsonl"], "completions.jsonl")):
        done = in_ascii(named, argv[0], f"runs/{NAME}", *argv[1:], **more)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.endswith(f"/{file}\n".encode())
        assert (named / "runs" / NAME / file).is_file()
    done = in_ascii(named, "runs", **more)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"finished" in done.stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["report", NAME], rb"l\udcc3\udca4ufe"),
        (
            ["grpo", f"{NAME}.toml"],
            rb" \udcf0\udc9f\udc8d\udc93.toml: no such file",
        ),
        ([NAME], b"oncurve has no command"),
        (["grpo", "r.toml", "--run.dir", NAME], b"command line: run.dir = "),
        (["grpo", "r.toml", f"--{NAME}", "1"], b"no such option"),
    ],
)
def test_an_error_quotes_what_was_given(tmp_path: Path, argv: list[str], words: bytes):
    (tmp_path / "r.toml").write_text(RECIPE, encoding="utf-8")
    done = in_ascii(tmp_path, *argv)
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "task:letters",
            "dä.jsonl",
            rb"'d\xe4.jsonl' cannot be the name of a file in this system's encoding, ascii; ",
        ),
        ("[grpo]", '[grpo]\n[rewards]\nfunctions = ["rä.py:f"]', b"PYTHONUTF8=1"),
        ('"m"', '"./mö"', rb"model.path = './m\u00f6': there is no such directory"),
    ],
)
def test_a_file_of_a_recipe_that_this_system_cannot_name(tmp_path: Path, old: str, new: str, words: bytes):
    (tmp_path / "r.toml").write_text(RECIPE.replace(old, new), encoding="utf-8")
    done = in_ascii(tmp_path, "grpo", "r.toml", "--dry-run")
    assert (done.returncode, done.stdout) == (2, b"")
    assert words in done.stderr
    assert b"Traceback" not in done.stderr


class Screen(io.TextIOWrapper):
    def __init__(self, tty: bool) -> None:
        super().__init__(io.BytesIO(), encoding="ascii")
        self.tty = tty

    def isatty(self) -> bool:
        return self.tty

    def shown(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]


@pytest.mark.parametrize("tty", [False, True])
def test_a_whole_run_on_an_ascii_screen(user: User, monkeypatch: pytest.MonkeyPatch, tty: bool):
    """Data, reward, metric and run directory with names that the screen does not have."""
    monkeypatch.setenv("TERM", "xterm-256color")
    reward = user.directory / f"{NAME}.py"
    reward.write_text(VARIED.replace("varied", "größe"), encoding="utf-8")
    rows = [{"prompt": f"How many a's are in {'ab' * n}?", "answer": str(n)} for n in range(1, 8)]
    data = user.write(f"{NAME}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    recipe = user.write_recipe(
        run={"dir": str(user.directory / NAME)},
        data={"train": data, "suffix": "é"},
        rewards={"functions": [f"{reward}:größe"]},
        eval={"every": 1},
    )
    run_dir = str(user.directory / NAME / "small")
    for argv in (
        ["grpo", recipe],
        ["eval", recipe],
        ["sample", recipe, "--prompt", "wie viele 🍓?"],
        ["runs", str(user.directory / NAME)],
        ["report", run_dir],
        ["export", run_dir, "--to", "jsonl"],
        ["grpo", recipe, "--dry-run"],
    ):
        screen: Any = Screen(tty)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", screen)
            assert main(argv) == 0
        assert screen.shown()
