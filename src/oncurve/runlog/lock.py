"""One process at a time goes on with a run: a lock that the kernel lets go of, however its process ends.

The lock is on the file ``.lock`` in the run directory, which stays there, and holds the number of the process that has
it. Reading a run needs no lock.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oncurve.runlog.schema import RunLogError

LOCK = ".lock"

# Some network file systems know no locks. There a run goes on without one, as it would have to anyway.
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

log = logging.getLogger(__name__)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep every other process from going on with the run in ``run_dir``, which is made if need be.

    Raises RunLogError, naming the process, if one is at it already, and if the directory cannot be written.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(run_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise RunLogError(f"cannot write to the run directory {run_dir}: {error.strerror}") from error
    _open.add(descriptor)
    try:
        _take(descriptor, fcntl.LOCK_EX, run_dir)
        _write(descriptor, str(os.getpid()))
        try:
            yield
        finally:
            _write(descriptor, "")
    finally:
        _close(descriptor)


def refuse_if_locked(run_dir: Path) -> None:
    """Raise RunLogError, naming the process, if one is going on with the run in ``run_dir``. Changes nothing."""
    try:
        descriptor = os.open(run_dir / LOCK, os.O_RDONLY)
    except OSError:
        return  # Never locked. What else may be the matter with the directory is told when it is to be written.
    try:
        _take(descriptor, fcntl.LOCK_SH, run_dir)
    finally:
        os.close(descriptor)


def _take(descriptor: int, kind: int, run_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = os.pread(descriptor, 32, 0).decode("ascii", "replace")
        raise RunLogError(
            f"{run_dir} is in use: another process{f' (pid {pid})' if pid else ''} goes on with that run; wait for it "
            "or stop it, or give this run a name of its own (--run.name NAME)"
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise RunLogError(f"{run_dir / LOCK} cannot be locked: {error.strerror}") from error
        log.warning("%s cannot be locked (%s): make sure that one process alone uses it", run_dir, error.strerror)


def _write(descriptor: int, text: str) -> None:
    if descriptor not in _open:
        return
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except OSError as error:  # a full disk; the number is a courtesy, the lock does not need it
        log.debug("the lock could not be labelled: %s", error)


# A process forked from this one (a worker of a reward function) shares the lock, and would keep it after a kill -9 of
# this one. So a child lets go of its share at once; afterwards the numbers of these files may be other files' there.
_open: set[int] = set()


def _close(descriptor: int) -> None:
    if descriptor in _open:
        _open.remove(descriptor)
        os.close(descriptor)


def _close_all() -> None:
    for descriptor in list(_open):
        _close(descriptor)


os.register_at_fork(after_in_child=_close_all)
