"""A worker: an interpreter that has imported what programs use, holds itself in, and forks a child for each run.

It reads commands of a few bytes from its control socket; programs, inputs and results pass between the outside and the
child alone, so that nothing of one run is in the memory that the next one inherits. It watches the child's processor
time and threads, reaps it, and ends when the socket is closed, however the other side ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from . import child, landlock, namespaces, process, seccomp

PRELOADED = (
    *("abc", "array", "asyncio", "base64", "bisect", "calendar", "cmath", "collections", "contextlib", "copy", "csv"),
    *("dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io"),
    *("itertools", "json", "math", "numbers", "operator", "pprint", "queue", "random", "re", "resource", "statistics"),
    *("string", "struct", "textwrap", "threading", "time", "typing", "unicodedata", "uuid", "zlib"),
    "encodings.idna",
)
MAX_THREADS = 64
_PAGE = os.sysconf("SC_PAGE_SIZE")


def main(config: dict[str, Any]) -> None:
    """Hold the process in as the level asks, say so on the control socket, then serve it.

    Args:
        config: ``control`` descriptor; ``level``; ``namespaces``: how they come about, "unshare", "bubblewrap" or None;
            ``readable`` and ``devices``: paths.
    """
    control = socket.socket(fileno=config["control"])
    for name in PRELOADED:
        importlib.import_module(name)
    try:
        details = _hold_in(config)
    except OSError as error:
        control.send(json.dumps({"failed": f"{error.strerror or error}"}).encode())
        return
    call_filter = None if config["level"] == "none" else seccomp.Filter()
    scratch = bool(config["namespaces"])
    gc.collect()
    gc.freeze()  # so that children do not copy pages to mark what they inherit
    control.send(json.dumps({"ready": details}).encode())
    with control:
        _serve(control, call_filter, scratch)


def _hold_in(config: dict[str, Any]) -> dict[str, Any]:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # of all processes of the machine these are to be ended first
    if config["level"] == "none":
        return {"landlock": 0, "memory": _address_space()}
    if config["namespaces"] == "unshare":
        namespaces.enter_namespaces(config["readable"], config["devices"])
    elif config["namespaces"] == "bubblewrap":
        namespaces.mount_scratch("/tmp")
    os.chdir("/tmp" if config["namespaces"] else "/")
    memory = _address_space()
    process.not_dumpable()
    process.drop_capabilities()
    landlock.restrict_files(config["readable"], config["devices"], ["/tmp"] if config["namespaces"] else [])
    return {"landlock": landlock.landlock_abi(), "memory": memory}


def _address_space() -> int:
    global _base  # cannot be read any more once files are closed off
    with open("/proc/self/statm", encoding="ascii") as file:
        _base = int(file.read().split()[0]) * _PAGE
    return _base


_base = 0


def _serve(control: socket.socket, call_filter: seccomp.Filter | None, scratch: bool) -> None:
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 8)
        if not message:
            return
        command = json.loads(message)
        if command["do"] != "run":
            continue  # about a child that had ended already
        report = _supervise(control, command, descriptors, call_filter, scratch)
        if report is None:
            return
        report["used_up"] = (scratch and bool(os.listdir("/tmp"))) or _has_children()
        control.send(json.dumps(report).encode())
        if report["used_up"]:
            return  # a fresh worker has a fresh scratch directory


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
        return True
    except ChildProcessError:
        return False


def _supervise(
    control: socket.socket,
    command: dict[str, Any],
    descriptors: list[int],
    call_filter: seccomp.Filter | None,
    scratch: bool,
) -> dict[str, Any] | None:
    """Fork the child, and watch it to its end. None if the outside is gone."""
    most_cpu = command["cpu"]
    limits: dict[str, int | None] = {
        "memory": _base + command["memory"],
        "cpu_seconds": math.ceil(command["total_cpu"]) + 1,
        "file_size": (1 << 20) if scratch else 0,
        "files": 64,
        # Counted over all of a user's processes, unless its namespace has a count of its own; root's are not counted.
        "threads": MAX_THREADS if scratch and os.getuid() else None,
    }
    pid = os.fork()
    if pid == 0:
        control.close()
        child.become(command["use"], descriptors, limits, call_filter)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(pid)
    clock = (~pid << 3) | 2  # the processor time of that process, see clock_getcpuclockid
    events = select.poll()
    events.register(control, select.POLLIN)
    events.register(ended, select.POLLIN)
    why, armed_at, outside = None, 0.0, True
    try:
        while True:
            ready = [fd for fd, _ in events.poll(20)]
            if ended in ready:
                break
            if control.fileno() in ready:
                message = control.recv(4096)
                if not message:
                    outside = False
                    break
                order = json.loads(message)
                if order["id"] == command["id"] and order["do"] == "kill":
                    why = order["why"]
                elif order["id"] == command["id"] and order["do"] == "arm":
                    armed_at = _processor_time(clock)
            if why is None and _processor_time(clock) - armed_at > most_cpu:
                why = "cpu"
            if why is None and _threads(pid) > MAX_THREADS:
                why = "threads"
            if why is not None:
                signal.pidfd_send_signal(ended, signal.SIGKILL)
                break
        if not outside:
            signal.pidfd_send_signal(ended, signal.SIGKILL)
    finally:
        os.close(ended)
    _, status, usage = os.wait4(pid, 0)
    if not outside:
        return None
    return {
        "id": command["id"],
        "exit": os.waitstatus_to_exitcode(status),
        "why": why,
        "cpu": usage.ru_utime + usage.ru_stime,
        "rss": usage.ru_maxrss * 1024,
    }


def _processor_time(clock: int) -> float:
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0  # it has just ended


def _threads(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/task").st_nlink - 2
    except OSError:
        return 0


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
