"""One worker seen from outside, and one run in it: pipes, deadlines, and what became of the child."""

from __future__ import annotations

import itertools
import json
import os
import selectors
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from oncurve.rewards.sandbox import levels
from oncurve.rewards.sandbox.inside import wire

_KEPT_ERRORS = 64 << 10
_MOST_RESULT = 1 << 20  # read as JSON it takes about twenty times that in memory
_PATIENCE = 5.0
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one run may use up. A run that goes over is ended, and has failed."""

    cpu_seconds: float = 4.0
    """Processor time, which does not depend on how busy the machine is: of a program, or of one call."""
    wall_seconds: float = 15.0
    """The guard against waiting: of a program, or of one call."""
    memory_mb: int = 512
    """Address space, beyond what the interpreter has."""
    output_bytes: int = 4 << 20
    """Of standard output. The result of a call is at most a mebibyte."""

    def __post_init__(self) -> None:
        for name in ("cpu_seconds", "wall_seconds", "memory_mb", "output_bytes"):
            if not 0 < getattr(self, name) < float("inf"):
                raise levels.SandboxError(f"{name} = {getattr(self, name)!r}; give a number above 0")


class WorkerLost(Exception):
    """A worker that ended or does not answer: nobody can say anything about the run."""


@dataclass(frozen=True, slots=True)
class Report:
    """How a child ended, as its worker saw it: nothing here was said by the child."""

    exit: int
    """Its exit code, or minus the signal that ended it."""
    why: str | None
    """If it was ended by us: "cpu", "wall", "output", "threads" or "done"."""
    cpu_seconds: float
    """Processor time, with what it takes to fork and to set up, about two milliseconds."""
    peak_bytes: int


class Worker:
    """A process that forks a child for each run. Not for two threads at a time.

    Raises:
        SandboxError: it did not come up.
    """

    def __init__(self, way: levels.Way) -> None:
        started = levels.start(way)
        self.way = way
        self.details = started.details
        self._process = started.process
        self.control = started.control
        self.usable = True

    def close(self) -> None:
        self.usable = False
        levels.stop(self._process, self.control)

    def run(self, use: str, message: Mapping[str, Any], stdin: bytes | None, limits: Limits, total_cpu: float) -> Run:
        """Start a child for a ``use``. ``message`` is the first frame it reads; with ``stdin`` it can read that next
        and then the end; with None the run stays open for ``Run.ask``.

        Raises:
            WorkerLost: the worker is gone.
        """
        return Run(self, use, wire.pack(message), stdin, limits, total_cpu)


class Run:
    """One child, from its start to its report. Everything read from it is bounded, and none of it is believed."""

    def __init__(
        self, worker: Worker, use: str, first: bytes, stdin: bytes | None, limits: Limits, total_cpu: float
    ) -> None:
        self._worker, self._limits = worker, limits
        self._most_result = min(limits.output_bytes, _MOST_RESULT)
        self._id = next(_numbers)
        self._to_send = memoryview(first + (stdin or b""))
        self._close_when_sent = stdin is not None
        self.output, self.errors, self._results = bytearray(), bytearray(), bytearray()
        self.report: Report | None = None
        self._killed_at: float | None = None
        self._killed_for: str | None = None
        self._selector = selectors.PollSelector()
        theirs: list[int] = []
        job_end, job = os.pipe2(os.O_CLOEXEC)
        theirs.append(job_end)
        self._ours: dict[int, str] = {job: "job"}
        for name in ("output", "errors", "results"):
            ours, end = os.pipe2(os.O_CLOEXEC)
            theirs.append(end)
            self._ours[ours] = name
        try:
            for fd, name in self._ours.items():
                os.set_blocking(fd, False)
                self._selector.register(fd, selectors.EVENT_WRITE if name == "job" else selectors.EVENT_READ)
            self._selector.register(worker.control, selectors.EVENT_READ)
            self._job = job
            order = {
                "do": "run",
                "id": self._id,
                "use": use,
                "cpu": limits.cpu_seconds,
                "total_cpu": total_cpu,
                "memory": limits.memory_mb << 20,
            }
            try:
                socket.send_fds(worker.control, [json.dumps(order).encode()], theirs)
            except OSError as error:
                raise WorkerLost(f"the worker is gone: {error}") from error
        except BaseException:
            self._close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)

    def ask(self, message: Any) -> Any | None:
        """Send a message (None: only wait), and return the child's next one; None if there is none.

        The child's limits count anew from here.
        """
        if message is not None:
            self._order("arm")
            self._to_send = memoryview(bytes(self._to_send) + wire.pack(message))
            self._want_to_write()
        deadline = time.monotonic() + self._limits.wall_seconds
        while True:
            body = self._next_frame()
            if body is not None:
                try:
                    return wire.unpack(body)
                except wire.WireError:
                    return None
            if self.report is not None:
                return None
            self._turn(deadline)

    def finish(self, *, now: bool = False) -> Report:
        """Wait for the end of the child, or bring it about ``now``, and return the worker's report.

        Raises:
            WorkerLost: the worker ended or does not answer.
        """
        if now and self.report is None:
            self._kill("done")
        deadline = time.monotonic() + self._limits.wall_seconds
        while self.report is None:
            self._turn(deadline)
        self._close()
        return self.report

    def abandon(self) -> None:
        """Let go of the pipes. For a run whose worker is lost."""
        self._close()

    # -- reading and writing ------------------------------------------------------------------------------------------

    def _turn(self, deadline: float) -> None:
        """Wait for the next thing that happens, and take note of it."""
        wait = 0.05 if self._killed_at is not None else max(0.0, min(1.0, deadline - time.monotonic()))
        events = self._selector.select(wait)
        ended = False
        for key, _ in events:
            if key.fileobj is self._worker.control:
                ended = True
            elif key.fd == self._job:
                self._write()
            else:
                self._read(key.fd)
        if ended:
            self._hear()
        now = time.monotonic()
        if self.report is None and self._killed_at is None and now > deadline and not events:
            self._kill("wall")
        if self.report is None and self._killed_at is not None and now > self._killed_at + _PATIENCE:
            raise WorkerLost("the worker does not answer")

    def _write(self) -> None:
        try:
            sent = os.write(self._job, self._to_send[: 1 << 16]) if self._to_send else 0
            self._to_send = self._to_send[sent:]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not read what it is given; that is its own affair
            self._to_send = memoryview(b"")
            self._forget(self._job)
            return
        if not self._to_send:
            if self._close_when_sent:
                self._forget(self._job)
            else:
                self._selector.unregister(self._job)

    def _want_to_write(self) -> None:
        if self._job in self._ours and self._job not in self._selector.get_map():
            self._selector.register(self._job, selectors.EVENT_WRITE)

    def _read(self, fd: int) -> bool:
        """Take what there is; False at the end or when there is nothing."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._forget(fd)
            return False
        name = self._ours[fd]
        if name == "errors":
            self.errors += data[: max(0, _KEPT_ERRORS - len(self.errors))]
            return True
        target, most = self.output, self._limits.output_bytes
        if name == "results":
            target, most = self._results, self._most_result + 4
        room = most - len(target)
        target += data[: max(0, room)]
        if len(data) > room and self._killed_at is None:
            self._kill("output")
        return True

    def _next_frame(self) -> bytes | None:
        if len(self._results) < 4:
            return None
        size = int.from_bytes(self._results[:4], "big")
        if size > self._most_result:
            if self._killed_at is None and self.report is None:
                self._kill("output")
            return None
        if len(self._results) < 4 + size:
            return None
        body = bytes(self._results[4 : 4 + size])
        del self._results[: 4 + size]
        return body

    def _hear(self) -> None:
        try:
            message = self._worker.control.recv(4096)
        except ConnectionError:
            message = b""
        if not message:
            self._worker.usable = False
            raise WorkerLost("the worker ended")
        answer = json.loads(message)
        if answer["id"] != self._id:
            return
        # The child is gone and can have no children, so what it wrote is in the pipes.
        for fd in [fd for fd, name in self._ours.items() if name != "job"]:
            for _ in range(64):  # a pipe holds less; where nothing is held in, something may still be writing
                if not self._read(fd):
                    break
        if answer["used_up"]:
            self._worker.usable = False
        why = self._killed_for if self._killed_for == "output" else answer["why"]
        self.report = Report(answer["exit"], why, answer["cpu"], answer["rss"])

    def _kill(self, why: str) -> None:
        self._killed_at = time.monotonic()
        self._killed_for = why
        self._order("kill", why=why)

    def _order(self, what: str, **more: str) -> None:
        try:
            self._worker.control.send(json.dumps({"do": what, "id": self._id, **more}).encode())
        except OSError as error:
            self._worker.usable = False
            raise WorkerLost(f"the worker is gone: {error}") from error

    def _forget(self, fd: int) -> None:
        if fd in self._selector.get_map():
            self._selector.unregister(fd)
        if self._ours.pop(fd, None) is not None:
            os.close(fd)

    def _close(self) -> None:
        for fd in list(self._ours):
            self._forget(fd)
        self._selector.close()
