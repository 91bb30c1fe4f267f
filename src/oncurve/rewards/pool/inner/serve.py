"""The processes of a pool: a *host* that has imported a function and forks workers of it, and a *lone* worker that
calls a user's reward function.

A host never scores anything itself: it is always alive, has no threads, and a worker in place of one that was killed
costs a fork and not an import. A lone worker is not forked, because a user's module may have started threads or loaded
a model when it was imported.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import inspect
import json
import os
import random
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

from . import load, wire

_SHOWN = 4000


def main(kind: str, fd: int, told: str) -> None:
    """Serve the other end of ``fd`` until it closes. ``kind``: "host" or "lone"; ``told``: JSON, see the two."""
    if kind == "host":
        _host(socket.socket(fileno=fd), json.loads(told))
    else:
        _lone(fd, json.loads(told))


# -- the host and its workers -----------------------------------------------------------------------------------------


def _host(control: socket.socket, told: dict[str, Any]) -> None:
    """``told``: ``target`` "module:function", ``path`` for imports, ``memory`` in bytes, ``hold`` "no", "try" or "yes",
    and ``sandbox``, the directory with the means."""
    sys.path[:] = told["path"]
    fd = control.fileno()
    try:
        module, _, attribute = told["target"].partition(":")
        function = load.load(module, attribute, {})
        hold = _means(told)
    except Exception as error:  # noqa: BLE001  told to the trainer
        cause = error.__cause__ if isinstance(error, load.ImportFailed) and error.__cause__ else error
        wire.write_message(fd, {"failed": f"{load.line_of(cause)}{type(cause).__name__}: {cause}"[:_SHOWN]})
        return
    gc.collect()
    gc.freeze()  # so that workers do not copy pages to mark what they inherit
    wire.write_message(fd, {"ready": True, "held": hold is not None})
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 1)
        if not message:
            break
        order = json.loads(message)
        if order["do"] == "fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                _worker(descriptors[0], function, told["memory"], hold)
            os.close(descriptors[0])
            children.add(pid)
            wire.write_message(fd, {"pid": pid})
        elif order["pid"] in children:
            os.kill(order["pid"], signal.SIGKILL)
            children.discard(order["pid"])
            wire.write_message(fd, {"status": os.waitpid(order["pid"], 0)[1]})
        else:
            wire.write_message(fd, {"status": 0})
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _means(told: dict[str, Any]) -> Callable[[], None] | None:
    """What a worker does to hold itself in; None if it shall not, or need not and cannot.

    Raises:
        OSError: it must, and the machine cannot.
    """
    if told["hold"] == "no":
        return None
    sys.path.append(told["sandbox"])
    try:
        # The sandbox's own means, by its directory, so that nothing else of Oncurve is imported.
        landlock, process, seccomp = (
            importlib.import_module(f"inside.{name}") for name in ("landlock", "process", "seccomp")
        )
        if not landlock.landlock_abi():
            raise OSError("the kernel has no Landlock")
        call_filter = seccomp.Filter()
    except (ImportError, OSError) as error:
        if told["hold"] == "yes":
            raise OSError(f"this machine cannot hold a worker in: {error}") from error
        return None
    finally:
        sys.path.remove(told["sandbox"])
    readable = [entry for entry in {*sys.path, sys.prefix, sys.base_prefix, "/usr/lib", "/lib", "/lib64"} if entry]

    def hold() -> None:
        process.not_dumpable()
        process.drop_capabilities()
        landlock.restrict_files(readable, ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"], [])
        call_filter.apply()

    return hold


def _worker(fd: int, function: Callable[[Any], Any], memory: int, hold: Callable[[], None] | None) -> NoReturn:
    """Answer one item after another until the other end closes. Does not return."""
    try:
        with contextlib.suppress(ValueError, OSError), open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
            resource.setrlimit(resource.RLIMIT_AS, (size + memory, size + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        random.seed(0)
        if hold is not None:
            hold()
        while (message := wire.read_message(fd)) is not None:
            wire.write_message(fd, _answer(function, message, memory))
        os._exit(0)
    except BaseException:  # noqa: BLE001  a fork must never return into its host's loop
        os._exit(1)


def _answer(function: Callable[[Any], Any], message: dict[str, Any], memory: int) -> dict[str, Any]:
    began = time.process_time()
    # Ends the process by the kernel's own hand, in the middle of anything, by processor time: a busy machine does not
    # make a right answer late.
    signal.setitimer(signal.ITIMER_PROF, message["seconds"])
    try:
        answer: dict[str, Any] = {"value": wire.encode(function(wire.decode(message["item"])))}
    except MemoryError:
        answer = {"memory": True}
    except Exception as error:  # noqa: BLE001  told to the trainer
        answer = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return answer | {"cpu": time.process_time() - began, "worn": peak > memory // 2}


# -- a user's reward function -----------------------------------------------------------------------------------------


class _Loggers:
    """``log_extra`` and ``log_metric`` within a worker: noted, checked and recorded by the trainer."""

    def __init__(self) -> None:
        self.noted: list[list[Any]] = []

    def log_extra(self, column: Any, values: Any) -> None:
        self.noted.append(["extra", _sendable(column), _sendable(values)])

    def log_metric(self, name: Any, value: Any) -> None:
        self.noted.append(["metric", _sendable(name), _sendable(value)])


def _lone(fd: int, told: dict[str, Any]) -> None:
    """``told``: ``dump``, a descriptor for where it stood when its time was over. Then messages: "load" and "call"."""
    functions: list[Callable[..., Any]] = []
    files: dict[Any, ModuleType] = {}
    random.seed(0)  # each call begins with these random numbers: a run that is resumed comes to the same rewards
    while (message := wire.read_message(fd)) is not None:
        faulthandler.dump_traceback_later(message["seconds"], exit=True, file=told["dump"])
        try:
            with load.process_state_kept():
                if message["do"] == "load":
                    answer = _loaded(message, functions, files)
                else:
                    answer = _called(functions[message["function"]], message)
        except load.LoadError as error:
            answer = {"absent": str(error), "wanted": error.wanted, "public": error.public}
        except load.ImportFailed as error:
            answer = {"failed": _described(error.__cause__ or error)}
        except (Exception, SystemExit) as error:  # noqa: BLE001  told to the trainer
            answer = {"raised": _described(error)}
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        wire.write_message(fd, answer)


def _loaded(
    message: dict[str, Any], functions: list[Callable[..., Any]], files: dict[Any, ModuleType]
) -> dict[str, Any]:
    sys.path[:] = message["path"]
    function = load.load(message["source"], message["attribute"], files)
    functions.append(function)
    try:
        parameters = [
            [parameter.name, int(parameter.kind), parameter.default is not parameter.empty]
            for parameter in inspect.signature(function).parameters.values()
        ]
    except ValueError:  # some functions written in C do not tell
        parameters = None
    attributes = {}
    for name, value in getattr(function, "__dict__", {}).items():
        with contextlib.suppress(wire.Foreign):
            attributes[name] = wire.encode(value)
    attributes.pop("__wrapped__", None)
    return {
        "name": getattr(function, "__name__", message["attribute"]),
        "parameters": parameters,
        "attributes": attributes,
        "number": len(functions) - 1,
    }


def _called(function: Callable[..., Any], message: dict[str, Any]) -> dict[str, Any]:
    loggers = _Loggers()
    keywords = wire.decode(message["keywords"])
    for name in message["loggers"]:
        keywords[name] = getattr(loggers, name)
    result = function(**keywords)
    if inspect.isawaitable(result):

        async def wait() -> Any:
            return await result

        # Not at the top: importing it takes as long as starting the rest of a worker.
        result = importlib.import_module("asyncio").run(wait())
    return {"returned": _sendable(result), "logged": loggers.noted}


def _sendable(value: Any) -> Any:
    """``value`` for the trainer to look at; what cannot cross is described, and refused there."""
    if isinstance(value, list | tuple):
        return [_sendable(item) for item in value]
    if hasattr(value, "detach"):  # a tensor that needs a gradient
        value = value.detach()
    try:
        return wire.encode(value)
    except wire.Foreign as foreign:
        return {"\x00foreign": [foreign.kind, foreign.shown]}


def _described(error: BaseException) -> dict[str, Any]:
    bad_data = any(kind.__name__ == "OncurveError" for kind in type(error).__mro__)
    # What its loader and this file did is of no interest to the user.
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, load.__file__):
        trace = trace.tb_next
    return {
        "kind": type(error).__name__,
        "text": str(error)[:_SHOWN],
        "place": load.line_of(error),
        "trace": "".join(traceback.format_exception(type(error), error, trace))[-_SHOWN:],
        "bad_data": bad_data,
    }
