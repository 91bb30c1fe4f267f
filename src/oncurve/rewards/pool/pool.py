"""A pool of killable workers for one function of one item."""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from oncurve.rewards.pool.inner import wire
from oncurve.rewards.pool.process import Channel, Gone, Late, Process
from oncurve.types import OncurveError

Status = Literal["ok", "error", "timeout", "memory", "lost"]
Hold = Literal["no", "try", "yes"]

_SANDBOX = str(Path(__file__).parent.parent / "sandbox")
_WALL = 3.0
"""Waiting may take so many times the processor time that is allowed, and two seconds."""
_MOST_ITEMS = 2000
"""After so many a worker is replaced: what scorers keep in memory grows."""


class PoolError(OncurveError):
    """A pool that cannot start; the text says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one item."""

    status: Status
    """"ok"; "error": the function raised; "timeout", "memory": it went over that limit; "lost": its worker ended by
    itself, twice."""
    value: Any = None
    """What the function returned, if "ok"."""
    error: str = ""
    """Type and text of the exception, if "error"."""
    seconds: float = 0.0
    """Wall time of the call."""
    queued: float = 0.0
    """Seconds from the call of ``map`` until a worker took it."""


@dataclass(slots=True)
class _Worker:
    pid: int
    channel: Channel
    items: int = 0


class Pool:
    """Calls ``target`` with one item at a time, in worker processes. An item that hangs, or eats memory, costs that
    item.

    A host process imports ``target`` once and forks workers; one in place of a worker that was killed costs
    milliseconds. Safe to use from several threads and, by ``map_async``, from coroutines; after a fork of the trainer
    the child gets workers of its own.

    Args:
        target: ``package.module:function``; it takes and returns what JSON can hold (also bytes, sets and fractions;
            tuples become lists).
        workers: side by side; default: one for each core this process may use, at most 16.
        seconds: of processor time for each item. Waiting is ended after three times that and two seconds.
        memory_mb: address space for each worker, beyond what the function needed to be imported.
        hold: "yes" holds each worker in, by Landlock and seccomp: it reads nothing but Python's own files and packages,
            writes nothing and reaches no network, whatever a scorer makes of a model's text. "try": where the kernel
            can.
        fresh: fork a new worker for every item, so that nothing of one is there in the next.
    """

    def __init__(
        self,
        target: str,
        *,
        workers: int | None = None,
        seconds: float = 5.0,
        memory_mb: int = 1024,
        hold: Hold = "try",
        fresh: bool = False,
        start_seconds: float = 120.0,
    ) -> None:
        self.target = target
        self.workers = workers or min(16, _cores())
        self.seconds = seconds
        self.memory_mb = memory_mb
        self.killed = 0
        """Workers ended for going over a limit, so far."""
        self._hold, self._fresh, self._start_seconds = hold, fresh, start_seconds
        self._begin()
        atexit.register(_close, weakref.ref(self))

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.RLock()
        self._host: Process | None = None
        self.held = False
        self._free: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.workers):
            self._free.put(None)

    def _own(self) -> None:
        """A fork of the trainer has the sockets of its parent's workers, and must not speak with them."""
        if self._owner != os.getpid():
            if self._host is not None:
                self._host.forget()
            while not self._free.empty():
                worker = self._free.get_nowait()
                if worker is not None:
                    worker.channel.close()
            self._begin()

    def start(self) -> None:
        """Start the host now, rather than with the first item.

        Raises:
            PoolError: the function cannot be imported, or the workers cannot be held in as they must.
        """
        self._own()
        with self._lock:
            if self._host is not None:
                return
            told = {
                "target": self.target,
                "path": [entry or os.getcwd() for entry in sys.path],
                "memory": self.memory_mb << 20,
                "hold": self._hold,
                "sandbox": _SANDBOX,
            }
            host = Process("host", told, quiet=True)
            try:
                answer = host.channel.receive(time.monotonic() + self._start_seconds)
            except (Gone, Late) as error:
                host.end()
                how = "ended" if isinstance(error, Gone) else f"did not start within {self._start_seconds:g} s"
                raise PoolError(f"the process that should score with {self.target} {how}") from error
            if "failed" in answer:
                host.end()
                raise PoolError(f"{self.target} cannot be used: {answer['failed']}")
            self._host, self.held = host, answer["held"]

    def close(self) -> None:
        """End all processes. The pool can be used again, and starts new ones."""
        if self._owner != os.getpid():
            return
        with self._lock:
            if self._host is not None:
                self._host.end(0.5)  # its workers are ended by it, and see the end of their sockets
                self._host = None
            idle = []
            while not self._free.empty():
                idle.append(self._free.get_nowait())
            for worker in idle:
                if worker is not None:
                    worker.channel.close()
                self._free.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def map(self, items: Sequence[Any], *, seconds: float | None = None) -> list[Outcome]:
        """An outcome for each item, in order. Blocks.

        Raises:
            PoolError: the pool cannot start.
        """
        items = list(items)
        if not items:
            return []
        self.start()
        began = time.monotonic()
        limit = self.seconds if seconds is None else seconds
        if len(items) == 1:
            return [self._one(items[0], limit, began)]
        with ThreadPoolExecutor(max_workers=min(self.workers, len(items))) as threads:
            return list(threads.map(lambda item: self._one(item, limit, began), items))

    async def map_async(self, items: Sequence[Any], *, seconds: float | None = None) -> list[Outcome]:
        """As ``map``, without blocking the loop."""
        return await asyncio.to_thread(self.map, items, seconds=seconds)

    # -- one item -----------------------------------------------------------------------------------------------------

    def _one(self, item: Any, limit: float, asked: float) -> Outcome:
        worker = self._free.get()
        queued = time.monotonic() - asked
        try:
            outcome, worker = self._try(worker or self._fork(), item, limit, queued)
            if outcome.status == "lost":  # perhaps it was ended by somebody else
                outcome, worker = self._try(self._fork(), item, limit, queued)
            return outcome
        finally:
            self._free.put(worker)

    def _try(self, worker: _Worker, item: Any, limit: float, queued: float) -> tuple[Outcome, _Worker | None]:
        """The outcome, and the worker if it can go on."""
        began = time.monotonic()
        deadline = began + _WALL * limit + 2.0
        try:
            worker.channel.send({"item": wire.encode(item), "seconds": limit}, deadline)
            answer = worker.channel.receive(deadline)
        except Late:
            self._end(worker)
            self.killed += 1
            return Outcome("timeout", seconds=time.monotonic() - began, queued=queued), None
        except Gone:
            status = self._end(worker)
            by_limit = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF  # set by itself
            self.killed += by_limit
            return Outcome("timeout" if by_limit else "lost", seconds=time.monotonic() - began, queued=queued), None
        seconds = time.monotonic() - began
        worker.items += 1
        spent = answer["worn"] or self._fresh or worker.items >= _MOST_ITEMS or "memory" in answer
        if spent:
            self._end(worker)
        left = None if spent else worker
        if "value" in answer:
            return Outcome("ok", wire.decode(answer["value"]), "", seconds, queued), left
        if "memory" in answer:
            self.killed += 1
            return Outcome("memory", None, "", seconds, queued), left
        return Outcome("error", None, answer["error"], seconds, queued), left

    def _fork(self) -> _Worker:
        with self._lock:
            for attempt in range(2):
                self.start()
                assert self._host is not None
                ours, theirs = socket.socketpair()
                try:
                    with theirs:
                        answer = self._ask({"do": "fork"}, [theirs.fileno()])
                    return _Worker(answer["pid"], Channel(ours))
                except (Gone, Late) as error:  # the host itself was killed, by somebody short of memory
                    ours.close()
                    self._host.end()
                    self._host = None
                    if attempt:
                        raise PoolError(f"the process that scores with {self.target} ends by itself") from error
        raise AssertionError("unreachable")

    def _end(self, worker: _Worker) -> int:
        """End a worker and have it reaped. Returns how it ended, as ``os.waitpid`` says it; 0 if nobody knows."""
        worker.channel.close()
        with self._lock:
            if self._host is None:
                return 0
            try:
                return self._ask({"do": "end", "pid": worker.pid}, [])["status"]
            except (Gone, Late):
                self._host.end()  # and its workers with it: they are in its session
                self._host = None
                return 0

    def _ask(self, order: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        assert self._host is not None
        deadline = time.monotonic() + 30.0
        self._host.channel.send(order, deadline, descriptors)
        return self._host.channel.receive(deadline)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _close(reference: weakref.ref[Pool]) -> None:
    pool = reference()
    if pool is not None:
        pool.close()
