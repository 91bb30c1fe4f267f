"""A user's reward function in a process of its own: what it does there cannot hang, fill or end the trainer."""

from __future__ import annotations

import atexit
import inspect
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any

from oncurve.rewards.pool.inner import wire
from oncurve.rewards.pool.inner.load import LoadError
from oncurve.rewards.pool.process import Gone, Heavy, Late, Process
from oncurve.types import OncurveError

LOAD_SECONDS = 600.0
"""For running the user's file or importing the module, with whatever models it loads."""
CALL_SECONDS = 10.0
ROW_SECONDS = 5.0
MOST_SECONDS = 300.0
SLOWER = 20.0
"""A call may take ``CALL_SECONDS`` and for each completion ``ROW_SECONDS``, at most ``MOST_SECONDS`` in all; after a
first call for each completion ``SLOWER`` times what it took in the slowest so far. ``seconds`` of a function, an
attribute, is for each completion in place of all that."""


class FunctionFailed(Exception):
    """What a function raised in its process. ``place``: file and line; ``trace``: its traceback, as text."""

    def __init__(self, described: Mapping[str, Any]) -> None:
        super().__init__(described["text"])
        self.kind, self.place, self.trace = described["kind"], described["place"], described["trace"]


class FunctionLate(Exception):
    """A function that did not answer in time, or took too much memory, and whose process was ended."""

    kind, place = "no answer", ""

    def __init__(self, text: str, reason: str, trace: str) -> None:
        super().__init__(text)
        self.reason, self.trace = reason, trace


class Lone:
    """One process and the functions of files and modules that were loaded in it."""

    def __init__(self) -> None:
        self.process: Process | None = None
        self.loaded: list[tuple[str, str]] = []
        self.lock = threading.Lock()
        self.path: list[str] = []
        self.owner = os.getpid()
        atexit.register(_end, weakref.ref(self))

    def load(self, source: str, attribute: str) -> dict[str, Any]:
        self._own()
        with self.lock:
            self.path = [entry or os.getcwd() for entry in sys.path]
            answer = self._load(source, attribute)
            self.loaded.append((source, attribute))
            return answer

    def call(self, number: int, message: dict[str, Any], seconds: float, most_bytes: int) -> dict[str, Any]:
        self._own()
        with self.lock:
            if self.process is None:
                for source, attribute in self.loaded:
                    self._load(source, attribute)
            return self._ask({"do": "call", "function": number, **message}, seconds, most_bytes)

    def _load(self, source: str, attribute: str) -> dict[str, Any]:
        if self.process is None:
            self.process = Process("lone", {}, quiet=False)
        message = {"do": "load", "source": source, "attribute": attribute, "path": self.path}
        answer = self._ask(message, LOAD_SECONDS, None)
        if "absent" in answer:
            raise LoadError(answer["absent"], answer["wanted"], tuple(answer["public"]))
        return answer

    def _ask(self, message: dict[str, Any], seconds: float, most_bytes: int | None) -> dict[str, Any]:
        assert self.process is not None
        deadline = time.monotonic() + seconds
        try:
            # The process ends itself when the time is over, after it has noted where it stood; a little later we do.
            self.process.channel.send(message | {"seconds": seconds}, deadline + 2.0)
            return self.process.channel.receive(deadline + 2.0, pid=self.process.pid, most_bytes=most_bytes)
        except (Gone, Late, Heavy) as error:
            in_time = time.monotonic() < deadline
            stood = "" if isinstance(error, Heavy) else self.process.where_it_stood()
            code = self.process.end()
            self.process = None
            if isinstance(error, Heavy):
                raise FunctionLate(f"more than {(most_bytes or 0) >> 20} MiB of memory", "memory", "") from None
            if isinstance(error, Gone) and in_time and not stood:
                raise FunctionLate(f"its process ended ({_how(code)})", "ended", "") from None
            raise FunctionLate(f"nothing within {seconds:g} s", "timeout", stood) from None
        except BaseException:  # Ctrl-C in the middle of an answer: the next question would get this answer
            self.process.end()
            self.process = None
            raise

    def _own(self) -> None:
        """A fork of the trainer starts a process of its own."""
        if self.owner != os.getpid():
            if self.process is not None:
                self.process.forget()
            self.process, self.lock, self.owner = None, threading.Lock(), os.getpid()

    def close(self) -> None:
        if self.process is not None and self.owner == os.getpid():
            self.process.end(0.2)
            self.process = None


class Supervised:
    """A reward function that runs in another process. To be called like the function itself, with keywords only.

    The functions of one file, or module, share a process. A process that was ended is started again with the next call.

    Raises:
        FunctionFailed: it raised. ``OncurveError`` is raised as such.
        FunctionLate: it did not answer in time and was ended.
    """

    def __init__(self, source: str, attribute: str, lone: Lone) -> None:
        """Load it into ``lone``, the process that it shares with the other functions of its file.

        Raises:
            LoadError: there is no such file, module or function.
            FunctionFailed: running the file, or importing the module, raised.
            FunctionLate: it did not end.
        """
        self._lone = lone
        answer = lone.load(source, attribute)
        if "failed" in answer or "raised" in answer:
            raise FunctionFailed(answer.get("failed") or answer["raised"])
        for name, value in answer["attributes"].items():  # whole_group, step_ends, seconds, memory_mb
            if name.isidentifier() and not name.startswith("_"):
                setattr(self, name, wire.decode(value))
        self.__name__: str = answer["name"]
        self._number: int = answer["number"]
        self._slowest: float | None = None
        if answer["parameters"] is not None:
            self.__signature__ = inspect.Signature(
                [
                    inspect.Parameter(
                        name,
                        inspect._ParameterKind(kind),
                        default=None if has_default else inspect.Parameter.empty,
                    )
                    for name, kind, has_default in answer["parameters"]
                ]
            )

    def __call__(self, /, **keywords: Any) -> Any:
        loggers = {name: keywords.pop(name) for name in ("log_extra", "log_metric") if name in keywords}
        lists = [len(value) for value in keywords.values() if isinstance(value, list)]
        rows = len(keywords["completions"]) if "completions" in keywords else max(lists, default=1)
        sent = {}
        for name, value in keywords.items():
            try:
                sent[name] = wire.encode(value)
            except wire.Foreign as foreign:
                raise OncurveError(
                    f"`{name}` holds {foreign.shown} (a {foreign.kind}), which cannot be sent to the function's own "
                    "process; put `inline:` before its name, and it runs in the trainer's"
                ) from foreign
        began = time.monotonic()
        message = {"keywords": sent, "loggers": list(loggers)}
        answer = self._lone.call(self._number, message, self._seconds(rows), self._most_bytes())
        took = (time.monotonic() - began) / max(1, rows)
        self._slowest = max(took, self._slowest or 0.0)
        if "raised" in answer:
            described = answer["raised"]
            if described["bad_data"]:
                raise OncurveError(described["text"])
            raise FunctionFailed(described)
        for kind, name, value in answer["logged"]:
            if f"log_{kind}" in loggers:
                loggers[f"log_{kind}"](_shown(name), _shown(value))
        return _shown(answer["returned"])

    def _seconds(self, rows: int) -> float:
        given = getattr(self, "seconds", None)
        if given is not None:
            return float(given) * max(1, rows)
        each = ROW_SECONDS if self._slowest is None else SLOWER * self._slowest
        return min(MOST_SECONDS, CALL_SECONDS + each * rows)

    def _most_bytes(self) -> int:
        given = getattr(self, "memory_mb", None)
        if given is not None:
            return math.ceil(float(given)) << 20
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _shown(value: Any) -> Any:
    """A decoded answer, with stand-ins for what could not cross: of the same type's name, and shown the same."""
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, dict) and "\x00foreign" in value:
        kind, text = value["\x00foreign"]
        return type(kind, (), {"__repr__": lambda _: text})()
    return wire.decode(value)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _end(reference: weakref.ref[Lone]) -> None:
    lone = reference()
    if lone is not None:
        lone.close()
