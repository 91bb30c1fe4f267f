"""A full disk, wherever it strikes: told with the file's name, nothing half-written, and the same command goes on once
there is room."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors
from transformers import PreTrainedModel

from faults.conftest import User, fingerprint, iterations
from oncurve.parallel import tensor_file
from oncurve.parallel.checkpoint import load
from oncurve.runlog import RunLog


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_for_safetensors(*_: Any, **__: Any) -> Any:
    raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def after(times: int, then: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """``real`` for so many calls, and ``then`` from there on."""
    calls = iter([real] * times)
    return lambda *args, **kwargs: next(calls, then)(*args, **kwargs)


def unless(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda path, *args, **kwargs: full() if name in path.name else real(path, *args, **kwargs)


def full_database(log: RunLog, rows: Any) -> None:
    raise sqlite3.OperationalError("database or disk is full")


STRIKES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, list[int]]] = {
    "the record, at once": (
        lambda patch: patch.setattr(RunLog, "completions", full_database),
        "run.sqlite: database or disk is full",
        [],
    ),
    "the record, later": (
        lambda patch: patch.setattr(RunLog, "completions", after(4, full_database, RunLog.completions)),
        "run.sqlite: database or disk is full",
        [1, 2],
    ),
    "a checkpoint": (
        lambda patch: patch.setattr(tensor_file, "save_file", after(2, full_for_safetensors, tensor_file.save_file)),
        "checkpoint {run}/checkpoints/step-00000002 was not saved: Error while serializing: I/O error: No space left",
        [1, 2],
    ),
    "the final model": (
        lambda patch: patch.setattr(PreTrainedModel, "save_pretrained", full),
        "{run}/models/grpo cannot be written: No space left on device; nothing that was there is lost",
        [1, 2, 3],
    ),
    "the report": (
        lambda patch: patch.setattr(Path, "write_text", unless("report.html", Path.write_text)),
        "cannot write {run}/report.html: [Errno 28] No space left on device",
        [1, 2, 3],
    ),
}


@pytest.mark.parametrize("strike", STRIKES)
def test_the_disk_is_full_for(user: User, monkeypatch: pytest.MonkeyPatch, strike: str):
    sections: dict[str, Any] = {"grpo": {"iterations": 3}, "eval": {"every": 1}}
    whole = user.write_recipe(**sections, run={"name": "whole"}, name="whole.toml")
    user.says("grpo", whole).went_well()
    recipe = user.write_recipe(**sections)
    fill, words, recorded = STRIKES[strike]
    with monkeypatch.context() as patch:
        fill(patch)
        user.says("grpo", recipe).refused(words.format(run=user.run_dir))
    assert iterations(user.run_dir) == recorded
    user.says("grpo", recipe).went_well()
    assert fingerprint(user.run_dir) == fingerprint(user.run_dir.parent / "whole")
    leftovers = [path for path in user.run_dir.rglob("*") if ".tmp" in path.name or ".new-" in path.name]
    assert leftovers == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_goes_to_a_full_disk(user: User):
    with open("/dev/full", "w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "oncurve", "grpo", user.write_recipe(), "--dry-run"],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "No space left on device; make room, and the same command goes on\n"


@contextlib.contextmanager
def small_disk(path: Path, kilobytes: int) -> Iterator[None]:
    path.mkdir()
    size = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(path)]
    if subprocess.run(size, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a small disk here")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.skipif(not (sys.platform == "linux" and os.geteuid() == 0 and shutil.which("mount")), reason="needs root")
@pytest.mark.parametrize("kilobytes", [1, 40, 100, 2000, 3600, 7400, 10_000])
def test_a_disk_that_fills_up(user: User, kilobytes: int):
    """From one on which not even the record fits to one that lacks room for nothing."""
    disk = user.directory / "disk"
    recipe = user.write_recipe(run={"dir": str(disk)}, grpo={"iterations": 3})
    with small_disk(disk, kilobytes):
        outcome = user.says("grpo", recipe)
        if kilobytes < 10_000:
            outcome.refused(str(disk))
            assert "full" in outcome.err or "No space left" in outcome.err
        for checkpoint in (disk / "small" / "checkpoints").glob("step-*"):
            load(checkpoint)  # whole, to the last bit
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        user.says("grpo", recipe).went_well()
        assert iterations(disk / "small") == [1, 2, 3]
