"""A run directory has one writer, and a writer that is dead is none."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from oncurve.runlog import RunLogError, locked, refuse_if_locked


def child(what: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            what()
        finally:
            os._exit(0)
    return pid


def test_a_second_one_is_refused_and_told_which_process_has_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "runs" / "a"
    with locked(run_dir):
        for attempt in (lambda: refuse_if_locked(run_dir), lambda: locked(run_dir).__enter__()):
            with pytest.raises(RunLogError, match=rf"runs/a is in use.*pid {os.getpid()}\).*--run.name"):
                attempt()
    refuse_if_locked(run_dir)
    with locked(run_dir):
        pass
    assert [path.name for path in run_dir.iterdir()] == [".lock"]
    assert (run_dir / ".lock").read_text() == ""


def test_it_is_let_go_when_the_block_fails(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    refuse_if_locked(tmp_path)


def test_looking_makes_nothing(tmp_path: Path) -> None:
    refuse_if_locked(tmp_path / "none")
    refuse_if_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_leaves_no_lock_nor_do_the_workers_it_had(tmp_path: Path) -> None:
    """The worker outlives its parent, as the worker of a reward function may."""
    holds, says = os.pipe()
    ends, end = os.pipe()

    def hold() -> None:
        with locked(tmp_path):
            os.close(end)
            child(lambda: os.read(ends, 1) and None)  # the worker waits until the test is over
            os.write(says, b"x")
            signal.pause()

    pid = child(hold)
    assert os.read(holds, 1) == b"x"
    with pytest.raises(RunLogError, match=rf"pid {pid}\)"):
        refuse_if_locked(tmp_path)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with locked(tmp_path):
        assert (tmp_path / ".lock").read_text() == str(os.getpid())
    for descriptor in (end, ends, holds, says):
        os.close(descriptor)


def test_a_child_that_unwinds_takes_nothing_from_its_parent(tmp_path: Path) -> None:
    with locked(tmp_path):
        pid = os.fork()
        if pid == 0:
            os.open(tmp_path / "other", os.O_CREAT | os.O_RDWR)  # gets the number that the lock had
        else:
            os.waitpid(pid, 0)
            assert (tmp_path / ".lock").read_text() == str(os.getpid())
            with pytest.raises(RunLogError):
                refuse_if_locked(tmp_path)
    if pid == 0:
        os._exit(0)


def test_a_file_system_without_locks_is_used_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING), locked(tmp_path):
        assert "No locks available" in caplog.text


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunLogError, match=r"cannot write to the run directory .*file/run: Not a directory"):
        locked(tmp_path / "file" / "run").__enter__()
