"""A sandbox on this machine: workers of one level, handed to whoever has something to run."""

from __future__ import annotations

import atexit
import os
import queue
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from oncurve.rewards.sandbox import levels
from oncurve.rewards.sandbox.inside.wire import encode
from oncurve.rewards.sandbox.outcome import Call, Called, Ran, Status, Tested, status_of
from oncurve.rewards.sandbox.workers import Limits, Run, Worker, WorkerLost

T = TypeVar("T")

_MOST_ENDED = 3
"""So often a candidate may bring its process to an end before the rest of its tests is given up."""


class _Slots:
    """Places for so many workers; one is started when it is first needed, or after its last one was used up."""

    def __init__(self, start: Callable[[], Worker], number: int) -> None:
        self._start = start
        self.free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(number):
            self.free.put(None)

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        worker = self.free.get()
        try:
            if worker is None:
                worker = self._start()
            try:
                yield worker
            except BaseException:  # whatever it was, the worker may be in the middle of something
                worker.usable = False
                raise
        finally:
            if worker is not None and not worker.usable:
                worker.close()
                worker = None
            self.free.put(worker)

    def close(self) -> None:
        held = []
        while not self.free.empty():
            held.append(self.free.get())
        for worker in held:
            if worker is not None:
                worker.close()
            self.free.put(None)


class Sandbox:
    """Runs what a model wrote, at one of the local levels. Safe to use from several threads.

    Args:
        level: "strict", "landlock", or "none", which holds nothing in.
        workers: runs side by side; default: one for each core this process may use. As many again are started for tests
            in code, when there are any.
        limits: for each program and each call.
        sample_seconds: for all tests of one candidate together, in seconds of wall time.
        way: of ``levels.ways``; default: the first that works.

    Raises:
        SandboxError: the level is not there. The text says why, and how to mend it.
    """

    def __init__(
        self,
        level: str = "strict",
        *,
        workers: int | None = None,
        limits: Limits | None = None,
        sample_seconds: float = 120.0,
        way: levels.Way | None = None,
    ) -> None:
        if level not in levels.LOCAL:
            levels.check_level(level)
            raise levels.SandboxError(f"{level!r} is not on this machine; use open_sandbox")
        self.level = level
        self.limits = limits or Limits()
        self.sample_seconds = sample_seconds
        self.workers = workers or _cores()
        self.infra_errors = 0
        """Runs of which nothing could be said, so far."""
        first, self.way = _first_worker(level, way)
        self.description = _description(self.way, first.details)
        """The level and what it is made of, for the record of a run."""
        self._candidates = _Slots(lambda: _start(self.way), self.workers)
        self._checkers = _Slots(lambda: _start(self.way), self.workers)
        self._candidates.free.get()
        self._candidates.free.put(first)
        atexit.register(_close, weakref.ref(self))

    def close(self) -> None:
        """End all workers that are not busy. The sandbox can be used again, and starts new ones."""
        self._candidates.close()
        self._checkers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run_program(self, source: str, stdin: str = "", limits: Limits | None = None) -> Ran:
        """Run a program to its end. What it prints as the right answer is for the caller to say."""
        limits = limits or self.limits

        def once() -> Ran:
            with self._candidates.worker() as worker:
                data = stdin.encode("utf-8", "surrogatepass")
                with _running(worker, "program", {"source": source}, data, limits, limits.cpu_seconds) as run:
                    report = run.finish()
                said = run.errors.decode("utf-8", "replace")[-2000:]
                return Ran(status_of(report, said), bytes(run.output), said, report.cpu_seconds)

        return self._twice(once, Ran("infra_error", b"", "", None))

    def call(
        self, source: str, calls: Sequence[Call], limits: Limits | None = None
    ) -> tuple[list[Called], float | None]:
        """Run a module, then make the calls one after another. The arguments are all that its process is told.

        A call that ends the process (by a limit, by a crash) fails; the following ones are made of a new process, after
        the third such end they fail too.

        Returns:
            What came of each call, and the processor time of all of them; None if it could not be measured.
        """
        limits = limits or self.limits

        def once() -> tuple[list[Called], float | None]:
            with self._candidates.worker() as worker:
                server = _Server(lambda: worker, source, limits, self.sample_seconds)
                try:
                    results = [server.call(call.name, call.arguments) for call in calls]
                finally:
                    server.close()
                return results, server.cpu_seconds

        return self._twice(once, ([Called("infra_error") for _ in calls], None))

    def check(
        self,
        source: str,
        tests: Sequence[str],
        *,
        setup: str = "",
        entry: str | None = None,
        limits: Limits | None = None,
    ) -> tuple[list[Tested], float | None]:
        """Run tests that are code themselves (``assert f(2) == 4``) beside the candidate, in a process of their own.

        The names that a test leaves open are the candidate's functions; calls to them cross by value. Modules of the
        standard library need not be imported. A test passes if it comes to its end.

        Args:
            setup: code run before each test.
            entry: call the tests' ``check`` on this function, as HumanEval does.
        """
        limits = limits or self.limits

        def once() -> tuple[list[Tested], float | None]:
            with self._candidates.worker() as worker, self._checkers.worker() as checker:
                server = _Server(lambda: worker, source, limits, self.sample_seconds)
                try:
                    results = _checked(server, checker, list(tests), setup, entry, limits)
                finally:
                    server.close()
                return results, server.cpu_seconds

        return self._twice(once, ([Tested("infra_error", False) for _ in tests], None))

    def _twice(self, once: Callable[[], T], failed: T) -> T:
        """Try again with another worker if one was lost; then give up on the run, but not on the sandbox."""
        for _ in range(2):
            try:
                return once()
            except (WorkerLost, levels.SandboxError):
                continue
        self.infra_errors += 1
        return failed


def _close(reference: weakref.ref[Sandbox]) -> None:
    sandbox = reference()
    if sandbox is not None:
        sandbox.close()


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _first_worker(level: str, way: levels.Way | None) -> tuple[Worker, levels.Way]:
    if sys.platform != "linux":
        raise levels.missing(level, [])
    reasons: list[str] = []
    for candidate in [way] if way else levels.ways(level):
        try:
            return _start(candidate), candidate
        except (levels.SandboxError, WorkerLost) as error:
            reasons.append(f"{candidate.namespaces or candidate.level}: {error}")
    raise levels.missing(level, reasons)


def _start(way: levels.Way) -> Worker:
    """A worker that has been seen to hold.

    Raises:
        SandboxError: it did not start, or a child of it could do what it must not.
    """
    worker = Worker(way)
    if way.level == "none":
        return worker
    try:
        with _running(worker, "probe", {}, None, Limits(), 10.0) as run:
            answer = run.ask(None)
            report = run.finish()
    except BaseException:
        worker.close()
        raise
    said = run.errors.decode("utf-8", "replace").strip().splitlines()
    if not isinstance(answer, dict) or report.exit != 0:
        worker.close()
        raise levels.SandboxError(f"the first child failed: {said[-1] if said else f'exit {report.exit}'}")
    if answer["succeeded"]:
        worker.close()
        raise levels.SandboxError(f"it does not hold; a child could {', '.join(answer['succeeded'])}")
    return worker


def _description(way: levels.Way, details: dict[str, Any]) -> str:
    if way.level == "none":
        return "none (nothing is held in, only limited)"
    spaces = f"namespaces by {way.namespaces}, " if way.namespaces else ""
    return f"{way.level} ({spaces}Landlock {details['landlock']}, seccomp, limits)"


@contextmanager
def _running(
    worker: Worker, use: str, message: dict[str, Any], stdin: bytes | None, limits: Limits, total_cpu: float
) -> Iterator[Run]:
    run = worker.run(use, message, stdin, limits, total_cpu)
    try:
        yield run
    finally:
        run.abandon()


class _Server:
    """A candidate's module in its process, started again when it has ended."""

    def __init__(self, worker: Callable[[], Worker], source: str, limits: Limits, seconds: float) -> None:
        self._worker, self._source, self._limits = worker, source, limits
        self._until = time.monotonic() + seconds
        self._run: Run | None = None
        self._starts = 0
        self._broken: Called | None = None
        """Why no more calls are made."""
        self.cpu_seconds = 0.0

    def call(self, name: str, arguments: Sequence[Any], keywords: dict[str, Any] | None = None) -> Called:
        return self.send({"f": name, "a": [encode(item) for item in arguments], "k": keywords or {}})

    def send(self, message: dict[str, Any]) -> Called:
        if self._run is None and self._broken is None:
            self._start()
        if time.monotonic() > self._until:
            self._broken = self._broken or Called("timeout", error="the time for all its tests is over")
        if self._broken is not None or self._run is None:
            return self._broken or Called("killed")
        return self._read(self._run.ask(message))

    def _start(self) -> None:
        if self._starts == _MOST_ENDED:
            self._broken = Called("killed", error=f"its process ended {_MOST_ENDED} times")
            return
        self._starts += 1
        self._run = self._worker().run(
            "server", {"source": self._source}, None, self._limits, 10 * self._limits.cpu_seconds
        )
        answer = self._run.ask(None)
        if not (isinstance(answer, dict) and answer.get("ready") is True):
            failed = self._read(answer)
            # A module that does not load will not load the next time.
            self._broken = Called("exception" if failed.status == "ok" else failed.status, error=failed.error)
            self.close()

    def _read(self, answer: Any) -> Called:
        """An answer of the candidate's process, who may have written anything, or nothing."""
        match answer:
            case {"v": value}:
                return Called("ok", value)
            case {"e": [str(kind), str(message)]}:
                return Called("memory" if kind == "MemoryError" else "exception", error=f"{kind}: {message}"[:500])
            case _:
                status = self.close()
                return Called(status if status != "ok" else "killed", error="its process ended or wrote no answer")

    def close(self) -> Status:
        """End the process, if there is one."""
        if self._run is None:
            return "ok"
        run, self._run = self._run, None
        try:
            report = run.finish(now=True)
        finally:
            run.abandon()
        self.cpu_seconds += report.cpu_seconds
        return "ok" if report.why == "done" else status_of(report, run.errors.decode("utf-8", "replace"))


def _checked(
    server: _Server, checker: Worker, tests: list[str], setup: str, entry: str | None, limits: Limits
) -> list[Tested]:
    results: list[Tested] = []
    while len(results) < len(tests):
        first = len(results)
        message = {"tests": tests[first:], "first": first, "setup": setup, "entry": entry}
        with _running(checker, "checker", message, None, limits, 10 * limits.cpu_seconds) as run:
            blamed: Called | None = None
            answer: Any = None
            while len(results) < len(tests):
                said = run.ask(answer)
                answer = None
                match said:
                    case {"call": name, "a": arguments, "k": keywords}:
                        called = server.send({"f": name, "a": arguments, "k": keywords})
                        blamed = called if called.status not in ("ok", "exception") else blamed
                        answer = {"v": called.wire} if called.status == "ok" else {"e": _two(called.error)}
                    case {"test": int(number), "ok": bool(passed)} if number == len(results):
                        error = "" if passed else ": ".join(said["e"])
                        status: Status = blamed.status if blamed and not passed else "ok"
                        results.append(Tested(status, passed, error))
                        blamed = None
                    case _:
                        # The tests' own process ended: on what it was given by the candidate, so far as one can tell.
                        status = status_of(run.finish(now=True), run.errors.decode("utf-8", "replace"))
                        results.append(Tested("timeout" if status == "ok" else status, False, "the test did not end"))
                        break
            if run.report is None:
                run.finish(now=True)
    return results


def _two(error: str) -> list[str]:
    kind, _, message = error.partition(": ")
    return [kind or "Exception", message]
