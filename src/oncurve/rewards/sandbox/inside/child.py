"""The process that a candidate's program has to itself: forked, held in, used once.

Three uses. A *program* reads standard input and writes standard output. A *server* runs a module and then answers calls
to its functions. A *checker* runs the tests of a data set, in a worker that never sees candidates; where a test calls a
candidate's function, the call goes to the server in the other process, by value.
"""

from __future__ import annotations

import ast
import atexit
import builtins
import contextlib
import fcntl
import importlib
import os
import random
import resource
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, NoReturn

from . import landlock, process, seccomp, wire

JOB, RESULT = 3, 4
"""Descriptors, beside the usual three: messages from outside, and to it."""
_SHOWN = 200


def become(
    use: str, descriptors: list[int], limits: dict[str, int | None], call_filter: seccomp.Filter | None
) -> NoReturn:
    """Turn the process just forked into a child for one ``use``. Does not return.

    Args:
        descriptors: job, standard output, standard error, result.
        limits: the arguments of ``process.limit``.
        call_filter: None only for the level that holds nothing in.
    """
    try:
        process.die_with_parent()
        os.setsid()
        _arrange(descriptors)
        random.seed(0)  # the same program gives the same output
        process.limit(**limits)  # type: ignore[arg-type]
        if call_filter is not None:
            landlock.restrict_signals()
            call_filter.apply()
        os._exit({"program": _program, "server": _server, "checker": _checker, "probe": _probe}[use]())
    except BaseException:  # noqa: BLE001  a fork must never return into its parent's loop
        with contextlib.suppress(OSError, MemoryError, RecursionError, ValueError):
            traceback.print_exc(limit=4)
            sys.stderr.flush()
        os._exit(1)


def _arrange(descriptors: list[int]) -> None:
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in descriptors]
    for source, target in zip(high, (JOB, 1, 2, RESULT), strict=True):
        os.dup2(source, target)
    os.closerange(RESULT + 1, 4096)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _run_module(source: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    sys.modules[name] = module
    sys.argv = ["solution.py"]
    exec(compile(source, "solution.py", "exec"), module.__dict__)
    return module


# -- a program --------------------------------------------------------------------------------------------------------


def _program() -> int:
    source = wire.read_frame(JOB)["source"]
    os.dup2(JOB, 0)  # what follows the source is its standard input
    os.close(JOB)
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    code = 0
    try:
        _run_module(source, "__main__")
    except SystemExit as error:
        code = _exit_code(error.code)
    except BaseException:  # noqa: BLE001  whatever it raises is its failure
        code = 1
        traceback.print_exc(limit=-3)
    # As an interpreter ends: threads first, then what was registered, then the buffers.
    for at_end in (getattr(threading, "_shutdown", None), getattr(atexit, "_run_exitfuncs", None), sys.stdout.flush):
        try:
            if at_end is not None:
                at_end()
        except BaseException:  # noqa: BLE001
            code = code or 1
            traceback.print_exc(limit=-3)
    sys.stderr.flush()
    return code


def _exit_code(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


# -- functions --------------------------------------------------------------------------------------------------------


def _server() -> int:
    """Answers ``{"f": name, "a": [...], "k": {...}}`` by ``{"v": value}`` or ``{"e": [type, message]}``."""
    source = wire.read_frame(JOB)["source"]
    try:
        namespace = _run_module(source, "solution").__dict__
    except BaseException as error:  # noqa: BLE001
        wire.write_frame(RESULT, {"e": _described(error)})
        return 1
    wire.write_frame(RESULT, {"ready": True})
    while True:
        try:
            call = wire.read_frame(JOB)
        except EOFError:
            return 0
        try:
            arguments = [wire.decode(item) for item in call["a"]]
            keywords = {name: wire.decode(item) for name, item in call["k"].items()}
            answer = {"v": wire.encode(_function(namespace, call["f"])(*arguments, **keywords))}
        except BaseException as error:  # noqa: BLE001
            answer = {"e": _described(error)}
        wire.write_frame(RESULT, answer)


def _function(namespace: dict[str, Any], name: str) -> Callable[..., Any]:
    if name not in namespace and "Solution" in namespace:  # a method, as LeetCode has them
        return getattr(namespace["Solution"](), name)
    if name not in namespace:
        raise NameError(f"there is no {name!r}")
    return namespace[name]


def _described(error: BaseException) -> list[str]:
    try:
        return [type(error).__name__[:_SHOWN], str(error)[:_SHOWN]]
    except BaseException:  # noqa: BLE001  an exception of the candidate's own, with a method that raises
        return ["Exception", ""]


# -- tests in code ----------------------------------------------------------------------------------------------------


_ENDING = (StopIteration, StopAsyncIteration)


class CandidateError(Exception):
    """The candidate's function raised what is no exception of Python's own, or it is gone."""


def _checker() -> int:
    """Runs ``{"setup": code, "tests": [code, ...], "entry": name or None}`` one after another. Sends ``{"call": ...}``
    and reads its answer, or ``{"test": number, "ok": bool, "e": ...}``."""
    job = wire.read_frame(JOB)
    for number, test in enumerate(job["tests"], job["first"]):
        failure = None
        try:
            # A namespace for each test: one must not depend on what another left behind.
            namespace: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
            for name in free_names(job["setup"] + "\n" + test):
                namespace[name] = _real_or_remote(name, job["entry"])
            exec(compile(job["setup"], "setup.py", "exec"), namespace)
            exec(compile(test, "test.py", "exec"), namespace)
            check = namespace.get("check")
            if job["entry"] and callable(check):  # HumanEval: the tests stand in a function
                check(_Remote(job["entry"]))
        except BaseException as error:  # noqa: BLE001
            failure = _described(error)
        wire.write_frame(RESULT, {"test": number, "ok": failure is None, "e": failure})
    return 0


def free_names(code: str) -> list[str]:
    """The names that ``code`` uses and neither defines, imports nor finds among Python's own, in order."""
    tree = ast.parse(code)
    bound: set[str] = set()
    used: dict[str, None] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used[name] = None
            case (
                ast.Name(id=name) | ast.arg(arg=name) | ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name))
            ):
                bound.add(name)
            case ast.alias(name=name):
                bound.add(name.partition(".")[0])
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case _:
                pass
    return [name for name in used if name not in bound and not hasattr(builtins, name)]


def _real_or_remote(name: str, entry: str | None) -> Any:
    """A module of the standard library where a test leaves out the import, else the candidate's function.

    What the tests compare with (``set``, ``sorted``, ``math``) is never the candidate's, whatever it defines.
    """
    if name != entry and name in sys.stdlib_module_names:
        return importlib.import_module(name)
    return _Remote(name)


class _Remote:
    """A function of the candidate's, in the other process. Arguments and results cross by value."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        call = {
            "call": self._name,
            "a": [wire.encode(item) for item in arguments],
            "k": {name: wire.encode(item) for name, item in keywords.items()},
        }
        wire.write_frame(RESULT, call)
        answer = wire.read_frame(JOB)
        if "v" in answer:
            return wire.decode(answer["v"])
        kind, message = answer["e"]
        known = getattr(builtins, kind, None)
        # A test may expect ValueError. It may not be ended by SystemExit or StopIteration.
        if isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _ENDING):
            try:
                error = known(message)
            except TypeError:  # some want more than a message
                error = CandidateError(f"{kind}: {message}")
            raise error
        raise CandidateError(f"{kind}: {message}")


# -- is the border there? ---------------------------------------------------------------------------------------------


def _probe() -> int:
    """Tries what must fail, and says what of it did not: a level is believed only when it has been seen to hold."""

    def fork() -> None:
        if os.fork() == 0:
            os._exit(0)

    attempts: dict[str, Callable[[], object]] = {
        "read a file outside": lambda: os.close(os.open("/proc/self/environ", os.O_RDONLY)),
        "list the root directory": lambda: os.listdir("/"),
        "write a file outside": lambda: os.close(os.open("/dev/shm", os.O_WRONLY | os.O_TMPFILE)),
        "open a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).close(),
        "fork": fork,
        "signal its parent": lambda: os.kill(os.getppid(), signal.SIGCONT),
        "change limits of its parent": lambda: resource.prlimit(os.getppid(), 0),
        "change a file's mode": lambda: os.chmod("/dev/null", 0o666),
    }
    succeeded = []
    for name, attempt in attempts.items():
        try:
            attempt()
            succeeded.append(name)
        except OSError:
            continue
    wire.write_frame(RESULT, {"succeeded": succeeded})
    return 0
